//! Runs stages and measures for each the number of documents it returned, its time, and whether it used the disk.

use super::operation::{Context, Stage, most_before};
use super::runtime::resources::Resources;
use super::runtime::stream::{Input, Stream};
use crate::error::Result;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The measurements of a stage so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// how many documents it made
    pub returned: u64,
    /// the time it took, including the stages before it
    pub took: Duration,
    /// true if it put documents on disk
    pub used_disk: bool,
}

/// The measurements of a pipeline's stages, updated while it runs.
#[derive(Debug, Default)]
pub struct Measurements(Vec<Rc<Measuring>>);

#[derive(Debug, Default)]
struct Measuring {
    returned: Cell<u64>,
    took: Cell<Duration>,
    used_disk: Rc<Cell<bool>>,
}

impl Measurements {
    /// Returns the present measurements of all stages.
    pub fn stages(&self) -> Vec<Measured> {
        let of = |stage: &Rc<Measuring>| Measured {
            returned: stage.returned.get(),
            took: stage.took.get(),
            used_disk: stage.used_disk.get(),
        };
        self.0.iter().map(of).collect()
    }
}

/// Runs stages over documents, and measures them.
pub(super) fn run<'s>(
    stages: &[Stage],
    mut input: Input<'s>,
    resources: &Resources,
) -> Result<(Input<'s>, Measurements)> {
    let mut measurements = Measurements::default();
    for (position, stage) in stages.iter().enumerate() {
        let measuring = Rc::new(Measuring::default());
        let memory = resources.memory.noting(Rc::clone(&measuring.used_disk));
        let resources = Resources { memory, ..resources.clone() };
        let most = most_before(stages.get(position + 1..).unwrap_or_default());
        let context = Context { most, ..Context::new(&resources) };
        let began = Instant::now();
        let stream = Arc::clone(&stage.operation).begin(input, &context)?;
        measuring.took.set(began.elapsed());
        measurements.0.push(Rc::clone(&measuring));
        input = Box::new(MeasuredStream { stream, measuring });
    }
    Ok((input, measurements))
}

struct MeasuredStream<'s> {
    stream: Input<'s>,
    measuring: Rc<Measuring>,
}

impl Stream for MeasuredStream<'_> {
    fn advance(&mut self) -> Result<bool> {
        let began = Instant::now();
        let more = self.stream.advance();
        let measuring = &self.measuring;
        measuring.took.set(measuring.took.get() + began.elapsed());
        measuring.returned.set(measuring.returned.get() + u64::from(matches!(more, Ok(true))));
        more
    }

    fn bytes(&self) -> &[u8] {
        self.stream.bytes()
    }

    fn key(&self) -> &[u8] {
        self.stream.key()
    }
}
