//! The window of a function, which moves over a partition with the current document.
//!
//! Two readers are at the ends of the window: `head` after its last document, `tail` at its first. Both move forward with the
//! current document. A document that the head reads is added to the function's state, one that the tail reads is removed. If the
//! function cannot remove values, its result is computed again from the documents between the readers.

use super::bounds::{Bound, Bounds};
use super::function::{Function, FunctionKind};
use super::partition::{Partition, Reader};
use super::tally::Tally;
use crate::error::Result;
use crate::query::stage::runtime::position::Position;
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
    head_position: Option<Position>,
    /// the `sortBy` value of the next document of the tail, if it has been read
    tail_position: Option<Position>,
    content: Content,
    /// the result of a window that is the same for all documents
    result: Option<Value>,
}

/// The state over the documents in a window.
enum Content {
    Kept(Box<dyn Tally>),
    /// none: the result is computed again for each document
    Recomputed,
    EndValues {
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
    /// Creates readers, so it must be called before the first partition begins.
    pub fn new(function: Arc<Function>, partition: &mut Partition<'_>) -> Result<Self> {
        let content = content(&function)?;
        let looks_back = !function.bounds.begins_with_partition();
        let head = partition.reader();
        let tail = looks_back.then(|| partition.reader());
        let probe = (looks_back || function.bounds.path().is_some()).then(|| partition.reader());
        Ok(Self { function, head, tail, probe, head_position: None, tail_position: None, content, result: None })
    }

    /// Resets the window for the next partition.
    pub fn restart(&mut self) -> Result<()> {
        let readers = std::iter::once(&mut self.head).chain(&mut self.tail).chain(&mut self.probe);
        readers.for_each(Reader::restart);
        (self.head_position, self.tail_position, self.result) = (None, None, None);
        self.content = content(&self.function)?;
        Ok(())
    }

    /// Returns the result for the document at `index` of the partition, after moving the window there.
    pub fn next(&mut self, partition: &mut Partition<'_>, index: u64, document: RawObject<'_>) -> Result<Value> {
        if let Some(result) = &self.result {
            return Ok(result.clone());
        }
        let (lower, upper) = edges(&self.function.bounds, index, document)?;
        while self.head_is_in_window(partition, &upper)? {
            self.advance_head(partition)?;
        }
        while self.tail_is_before_window(partition, &lower)? {
            self.advance_tail(partition)?;
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
    fn head_is_in_window(&mut self, partition: &mut Partition<'_>, upper: &Edge) -> Result<bool> {
        if let Edge::Index(index) = upper
            && has_read(*index, &self.head)
        {
            return Ok(false);
        }
        if !partition.has(self.head.next)? {
            return Ok(false);
        }
        let Edge::Position(upper) = upper else { return Ok(true) };
        if self.head_position.is_none() {
            self.head_position = position(&self.function.bounds, partition, &self.head, &mut self.probe)?;
        }
        Ok(self.head_position.as_ref().is_some_and(|position| position.compare(upper).is_le()))
    }

    /// True if the next document of the tail is before the window.
    fn tail_is_before_window(&mut self, partition: &mut Partition<'_>, lower: &Edge) -> Result<bool> {
        let Some(tail) = self.tail.as_ref().filter(|tail| tail.next < self.head.next) else { return Ok(false) };
        match lower {
            Edge::Open => Ok(false),
            Edge::Index(index) => Ok(!has_read(index.saturating_sub(1), tail)),
            Edge::Position(lower) => {
                if self.tail_position.is_none() {
                    self.tail_position = position(&self.function.bounds, partition, tail, &mut self.probe)?;
                }
                Ok(self.tail_position.as_ref().is_some_and(|position| position.compare(lower).is_lt()))
            }
        }
    }

    /// Reads a document at the head and adds it to the state.
    fn advance_head(&mut self, partition: &mut Partition<'_>) -> Result<()> {
        self.head_position = None;
        let Some(document) = partition.read(&mut self.head)? else { return Ok(()) };
        match &mut self.content {
            Content::Recomputed => Ok(()),
            Content::Kept(tally) => tally.add(self.function.input.of(document)?),
            Content::EndValues { first, last } => {
                let value = self.function.end_value(document)?;
                if self.tail.is_none() && first.is_none() {
                    *first = Some(value.clone());
                }
                *last = Some(value);
                Ok(())
            }
        }
    }

    /// Reads a document at the tail and removes it from the state.
    fn advance_tail(&mut self, partition: &mut Partition<'_>) -> Result<()> {
        self.tail_position = None;
        let Some(tail) = &mut self.tail else { return Ok(()) };
        let Some(document) = partition.read(tail)? else { return Ok(()) };
        match &mut self.content {
            Content::Recomputed => {}
            Content::Kept(tally) => tally.remove(self.function.input.of(document)?),
            Content::EndValues { first, .. } => *first = None,
        }
        Ok(())
    }

    fn compute(&mut self, partition: &mut Partition<'_>) -> Result<Value> {
        let input = &self.function.input;
        // The probe at the beginning of the window; None if the window begins with the partition.
        let mut window_reader = match (&self.tail, &mut self.probe) {
            (Some(tail), Some(probe)) => {
                partition.follow(probe, tail);
                Some(probe)
            }
            _ => None,
        };
        match (&mut self.content, &self.function.kind) {
            (Content::Kept(tally), _) => tally.result(),
            (Content::Recomputed, FunctionKind::Tally { begin, .. }) => {
                let mut tally = begin()?;
                while let Some(probe) = window_reader.as_mut().filter(|probe| probe.next < self.head.next)
                    && let Some(document) = partition.read(probe)?
                {
                    tally.add(input.of(document)?)?;
                }
                tally.result()
            }
            (Content::EndValues { first, last }, FunctionKind::EndValues { function, default }) => {
                if let Some(probe) = window_reader.filter(|_| first.is_none()) {
                    if probe.next == self.head.next {
                        return Ok(default.clone());
                    }
                    if let Some(document) = partition.read(probe)? {
                        *first = Some(self.function.end_value(document)?);
                    }
                }
                match (first, last) {
                    (Some(first), Some(last)) => function.of(first, last),
                    _ => Ok(default.clone()),
                }
            }
            _ => Ok(Value::Null),
        }
    }
}

/// True if a reader has read the document at an index, or if the index is before the partition.
fn has_read(index: i64, reader: &Reader) -> bool {
    u64::try_from(index).map_or(true, |index| index < reader.next)
}

/// Returns the state of an empty window.
fn content(function: &Function) -> Result<Content> {
    Ok(match &function.kind {
        FunctionKind::Tally { begin, removes } if *removes || function.bounds.begins_with_partition() => {
            Content::Kept(begin()?)
        }
        FunctionKind::Tally { .. } | FunctionKind::LinearFill => Content::Recomputed,
        FunctionKind::EndValues { .. } => Content::EndValues { first: None, last: None },
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

/// Returns the `sortBy` value of the next document of a reader. The probe reads the document, so that the reader does not move.
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
