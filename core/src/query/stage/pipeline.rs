//! Stages one after the other, run over documents or divided over shards.

use super::fields::Fields;
use super::operation::{Operation, Outcome};
use super::table::{self, Merge, StageOperator};
use crate::budget::Evaluation;
use crate::error::Result;
use crate::query::environment::Environment;
use crate::values::collation::Collator;
use crate::values::document::raw::{self, RawObject};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::sync::Arc;

/// A parsed pipeline.
#[derive(Debug)]
pub struct Pipeline {
    stages: Vec<(&'static StageOperator, Operation)>,
    collator: Option<Arc<Collator>>,
}

/// Which stages run where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// so many, from the first, run at each shard
    pub at_shards: usize,
    /// those from this one on run over the shards' results, in their order
    pub merging_from: usize,
}

impl Pipeline {
    /// Parses the stages of a pipeline.
    ///
    /// # Errors
    /// `TypeMismatch` and `Location40323` for what is no stage, `Location40324` for an unknown one, `NotImplemented` for one
    /// that is not understood; those of filters, projections and expressions.
    pub fn parse(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, false)
    }

    /// As [`parse`](Self::parse), of an update's stages, each of which makes one document of one.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse); `InvalidOptions` for a stage that an update may not have.
    pub(crate) fn parse_update(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        Self::parse_for(stages, environment, true)
    }

    fn parse_for(stages: &[Json], environment: &Environment, in_update: bool) -> Result<Pipeline> {
        let _evaluation = Evaluation::begin();
        let parse = |json| {
            let (stage, argument) = table::find(json, in_update)?;
            Ok((stage, (stage.parse)(stage.name, argument, environment)?))
        };
        let stages = stages.iter().map(parse).collect::<Result<_>>()?;
        Ok(Pipeline { stages, collator: environment.collator().cloned() })
    }

    /// Its stages, with the fields that each reads and writes.
    pub fn stages(&self) -> impl Iterator<Item = (&'static StageOperator, Fields)> + '_ {
        self.stages.iter().map(|(stage, operation)| (*stage, operation.fields()))
    }

    /// How it is divided over shards whose documents come together in the order that they have there.
    pub fn division(&self) -> Division {
        let divided = self.stages.iter().take_while(|(stage, _)| stage.merge == Merge::Union).count();
        // A stage that runs again ends what runs at shards.
        let again = self.stages.get(divided).is_some_and(|(stage, _)| stage.merge == Merge::Again);
        Division { at_shards: divided + usize::from(again), merging_from: divided }
    }

    /// Begins to run some of the stages, from the first document.
    pub fn run(&self, stages: std::ops::Range<usize>) -> Run<'_> {
        let stages = self.stages.get(stages).unwrap_or_default();
        let remembering = stages.iter().filter(|(stage, _)| stage.remembers).count();
        Run { stages, collator: self.collator.as_deref(), seen: vec![0; remembering], has_ended: false }
    }

    /// As [`run`](Self::run), of all stages.
    pub fn run_all(&self) -> Run<'_> {
        self.run(0..self.stages.len())
    }
}

/// Stages that documents go through.
#[derive(Debug)]
pub struct Run<'p> {
    stages: &'p [(&'static StageOperator, Operation)],
    collator: Option<&'p Collator>,
    /// how many documents each stage that remembers has been given
    seen: Vec<u64>,
    has_ended: bool,
}

impl Run<'_> {
    /// True if no document goes on any more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// What becomes of the next document, in jsonb; None if it does not go on.
    ///
    /// # Errors
    /// Those of expressions; `Location40228` if a stage makes something else than a document.
    pub fn next<'d>(&mut self, document: RawObject<'d>) -> Result<Option<Cow<'d, [u8]>>> {
        let mut made: Option<Vec<u8>> = None;
        let mut counts = self.seen.iter_mut();
        for (stage, operation) in self.stages {
            let now = made.as_deref().and_then(raw::document).unwrap_or(document);
            let seen = match if stage.remembers { counts.next() } else { None } {
                None => 0,
                Some(count) => std::mem::replace(count, *count + 1),
            };
            match operation.apply(now, seen, self.collator)? {
                Outcome::Kept => {}
                Outcome::Made(bytes) => made = Some(bytes),
                Outcome::Dropped => return Ok(None),
                Outcome::Ended => {
                    self.has_ended = true;
                    return Ok(None);
                }
            }
        }
        Ok(Some(made.map_or(Cow::Borrowed(document.bytes()), Cow::Owned)))
    }
}
