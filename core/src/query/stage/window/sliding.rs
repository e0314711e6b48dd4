//! The window of a function, which moves over a partition with the current document.
//!
//! Two readers are at the ends of the window: `head` after its last document, `tail` at its first. Both move forward with the
//! current document. A document that the head reads is added to the function's state, one that the tail reads is removed. If the
//! function cannot remove values, its result is computed again from the documents between the readers.

use super::bounds::{Bound, Bounds};
use super::function::{Class, Function};
use super::partition::{Partition, Reader};
use super::tally::Tally;
use crate::error::Result;
use crate::query::stage::position::Position;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use std::sync::Arc;

/// A function with the state of its moving window.
pub(super) struct Sliding {
    function: Arc<Function>,
    head: Reader,
    /// None if the window begins with the partition
    tail: Option<Reader>,
    /// reads documents of the window again, or ahead of it; then returns to the head
    probe: Option<Reader>,
    /// the `sortBy` value of the next document of the head, if it has been read
    ahead: Option<Position>,
    /// the same for the tail
    behind: Option<Position>,
    content: Content,
    /// the result of a window that is the same for all documents
    result: Option<Value>,
}

/// The state over the documents in a window.
enum Content {
    Kept(Box<dyn Tally>),
    /// none: the result is computed again for each document
    Anew,
    Ends {
        first: Option<Value>,
        last: Option<Value>,
    },
}

/// One end of the window of the current document.
enum Edge {
    Open,
    /// at this document
    Index(i64),
    /// at this value
    Position(Position),
}

impl Sliding {
    /// Begins before the first partition does.
    pub fn new(function: Arc<Function>, partition: &mut Partition<'_>) -> Result<Self> {
        let content = content(&function)?;
        let looks_back = !function.bounds.is_left_open();
        let head = partition.reader();
        let tail = looks_back.then(|| partition.reader());
        let probe = (looks_back || function.bounds.path().is_some()).then(|| partition.reader());
        Ok(Self { function, head, tail, probe, ahead: None, behind: None, content, result: None })
    }

    /// Resets the window for the next partition.
    pub fn restart(&mut self) -> Result<()> {
        let readers = std::iter::once(&mut self.head).chain(&mut self.tail).chain(&mut self.probe);
        readers.for_each(Reader::restart);
        (self.ahead, self.behind, self.result) = (None, None, None);
        self.content = content(&self.function)?;
        Ok(())
    }

    /// Returns the result for the document at `index` of the partition, after moving the window there.
    pub fn next(&mut self, partition: &mut Partition<'_>, index: u64, document: RawObject<'_>) -> Result<Value> {
        if let Some(result) = &self.result {
            return Ok(result.clone());
        }
        let (lower, upper) = edges(&self.function.bounds, index, document)?;
        while self.reaches(partition, &upper)? {
            self.take_in(partition)?;
        }
        while self.passes(partition, &lower)? {
            self.let_go(partition)?;
        }
        let result = self.compute(partition)?;
        if let Some(probe) = &mut self.probe {
            partition.follow(probe, &self.head);
        }
        if matches!(self.function.bounds, Bounds::Documents(Bound::Unbounded, Bound::Unbounded)) {
            self.result = Some(result.clone());
        }
        Ok(result)
    }

    /// True if the next document of the head is in the window.
    fn reaches(&mut self, partition: &mut Partition<'_>, upper: &Edge) -> Result<bool> {
        if let Edge::Index(index) = upper
            && is_behind(*index, &self.head)
        {
            return Ok(false);
        }
        if !partition.has(self.head.next)? {
            return Ok(false);
        }
        let Edge::Position(upper) = upper else { return Ok(true) };
        if self.ahead.is_none() {
            self.ahead = position(&self.function.bounds, partition, &self.head, &mut self.probe)?;
        }
        Ok(self.ahead.as_ref().is_some_and(|ahead| ahead.compare(upper).is_le()))
    }

    /// True if the next document of the tail is before the window.
    fn passes(&mut self, partition: &mut Partition<'_>, lower: &Edge) -> Result<bool> {
        let Some(tail) = self.tail.as_ref().filter(|tail| tail.next < self.head.next) else { return Ok(false) };
        match lower {
            Edge::Open => Ok(false),
            Edge::Index(index) => Ok(!is_behind(index.saturating_sub(1), tail)),
            Edge::Position(lower) => {
                if self.behind.is_none() {
                    self.behind = position(&self.function.bounds, partition, tail, &mut self.probe)?;
                }
                Ok(self.behind.as_ref().is_some_and(|at| at.compare(lower).is_lt()))
            }
        }
    }

    /// Reads a document at the head and adds it to the state.
    fn take_in(&mut self, partition: &mut Partition<'_>) -> Result<()> {
        self.ahead = None;
        let Some(document) = partition.read(&mut self.head)? else { return Ok(()) };
        match &mut self.content {
            Content::Anew => Ok(()),
            Content::Kept(tally) => tally.add(self.function.input.of(document)?),
            Content::Ends { first, last } => {
                let value = self.function.input.of(document)?.into_value();
                if self.tail.is_none() && first.is_none() {
                    *first = Some(value.clone());
                }
                *last = Some(value);
                Ok(())
            }
        }
    }

    /// Reads a document at the tail and removes it from the state.
    fn let_go(&mut self, partition: &mut Partition<'_>) -> Result<()> {
        self.behind = None;
        let Some(tail) = &mut self.tail else { return Ok(()) };
        let Some(document) = partition.read(tail)? else { return Ok(()) };
        match &mut self.content {
            Content::Anew => {}
            Content::Kept(tally) => tally.remove(self.function.input.of(document)?),
            Content::Ends { first, .. } => *first = None,
        }
        Ok(())
    }

    fn compute(&mut self, partition: &mut Partition<'_>) -> Result<Value> {
        let input = &self.function.input;
        // Reads from the beginning of the window.
        let mut again = match (&self.tail, &mut self.probe) {
            (Some(tail), Some(probe)) => {
                partition.follow(probe, tail);
                Some(probe)
            }
            _ => None,
        };
        match (&mut self.content, &self.function.kind) {
            (Content::Kept(tally), _) => tally.result(),
            (Content::Anew, Class::Tally { begin, .. }) => {
                let mut tally = begin()?;
                while let Some(probe) = again.as_mut().filter(|probe| probe.next < self.head.next)
                    && let Some(document) = partition.read(probe)?
                {
                    tally.add(input.of(document)?)?;
                }
                tally.result()
            }
            (Content::Ends { first, last }, Class::Ends { end, default }) => {
                if let Some(probe) = again.filter(|_| first.is_none()) {
                    if probe.next == self.head.next {
                        return Ok(default.clone());
                    }
                    if let Some(document) = partition.read(probe)? {
                        *first = Some(input.of(document)?.into_value());
                    }
                }
                match (first, last) {
                    (Some(first), Some(last)) => end.of(first, last),
                    _ => Ok(default.clone()),
                }
            }
            _ => Ok(Value::Null),
        }
    }
}

/// True if a reader has read the document at an index.
fn is_behind(index: i64, reader: &Reader) -> bool {
    u64::try_from(index).map_or(true, |index| index < reader.next)
}

/// Returns the state of an empty window.
fn content(function: &Function) -> Result<Content> {
    Ok(match &function.kind {
        Class::Tally { begin, removes } if *removes || function.bounds.is_left_open() => Content::Kept(begin()?),
        Class::Tally { .. } | Class::Fill => Content::Anew,
        Class::Ends { .. } => Content::Ends { first: None, last: None },
    })
}

/// Returns the ends of the window of a document.
fn edges(bounds: &Bounds, index: u64, document: RawObject<'_>) -> Result<(Edge, Edge)> {
    let index = i64::try_from(index).unwrap_or(i64::MAX);
    match bounds {
        Bounds::Documents(lower, upper) => {
            let edge = |bound: &Bound<i64>| match bound {
                Bound::Unbounded => Edge::Open,
                Bound::Current => Edge::Index(index),
                Bound::At(distance) => Edge::Index(index.saturating_add(*distance)),
            };
            Ok((edge(lower), edge(upper)))
        }
        Bounds::Range(range) => {
            let current = range.current(document)?;
            let edge = |bound| -> Result<Edge> {
                Ok(match bound {
                    &Bound::Unbounded => Edge::Open,
                    &Bound::Current => Edge::Index(index),
                    Bound::At(distance) => Edge::Position(range.shifted(&current, distance)?),
                })
            };
            Ok((edge(&range.lower)?, edge(&range.upper)?))
        }
    }
}

/// Returns the `sortBy` value of the next document of a reader; the probe reads it.
fn position(
    bounds: &Bounds,
    partition: &mut Partition<'_>,
    reader: &Reader,
    probe: &mut Option<Reader>,
) -> Result<Option<Position>> {
    let (Bounds::Range(range), Some(probe)) = (bounds, probe) else { return Ok(None) };
    partition.follow(probe, reader);
    Ok(partition.read(probe)?.map(|document| range.position(document)))
}
