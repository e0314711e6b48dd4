//! `$linearFill`: interpolates a missing value linearly between the known values before and after it.

use super::function::Function;
use super::partition::{Partition, Reader};
use crate::error::{Kind, Result, bail, ensure};
use crate::query::expression::{difference, product_of};
use crate::query::operand::Operand;
use crate::query::stage::runtime::position::Position;
use crate::values::document::number::{Number, quotient};
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use std::sync::Arc;

/// A known value and its position on the `sortBy` axis.
type KnownValue = (Position, Number);

/// The known values around the current document.
pub(super) struct LinearFill {
    function: Arc<Function>,
    /// reads ahead to the next known value
    lookahead: Reader,
    /// the position of the previous document
    last: Option<Position>,
    before: Option<KnownValue>,
    /// the next known value, which the lookahead has read last
    after: Option<KnownValue>,
}

impl LinearFill {
    /// Creates readers, so it must be called before the first partition begins.
    pub fn new(function: Arc<Function>, partition: &mut Partition<'_>) -> Self {
        Self { function, lookahead: partition.reader(), last: None, before: None, after: None }
    }

    /// Resets the state for the next partition.
    pub fn restart(&mut self) {
        self.lookahead.restart();
        (self.last, self.before, self.after) = (None, None, None);
    }

    /// Returns the result for the document that `own` has read last.
    pub fn next(&mut self, partition: &mut Partition<'_>, own: &Reader, document: RawObject<'_>) -> Result<Value> {
        let (position, value) = self.read(document)?;
        if let Some(last) = &self.last {
            ensure!(last.compare(&position).is_ne(), 6050106, "There can be no repeated values in the sort field");
            ensure!(
                is_number(last) == is_number(&position),
                Kind::TypeMismatch,
                "Conflicting sort value types, previously received type {}, but found {}",
                last.type_name(),
                position.type_name()
            );
        }
        self.last = Some(position.clone());
        if self.lookahead.next < own.next {
            partition.follow(&mut self.lookahead, own);
            self.after = None;
        }
        if let Some(value) = value {
            self.before = Some((position, value.clone()));
            return Ok(Value::Number(value));
        }
        let Some(before) = self.before.clone() else { return Ok(Value::Null) };
        // `after` was reset if the current document has passed it, so if it is set, it is the next known value.
        if self.after.is_none() {
            self.look_ahead(partition)?;
        }
        match &self.after {
            Some(after) => Ok(Value::Number(between(&before, after, &position)?)),
            None => Ok(Value::Null),
        }
    }

    fn look_ahead(&mut self, partition: &mut Partition<'_>) -> Result<()> {
        while let Some(document) = partition.read(&mut self.lookahead)? {
            let found = point(&self.function, document)?;
            if let (position @ (Position::Number(_) | Position::Date(_)), Some(value)) = found {
                self.after = Some((position, value));
                break;
            }
        }
        Ok(())
    }

    /// Returns a document's position and value, and checks the position's type.
    fn read(&self, document: RawObject<'_>) -> Result<(Position, Option<Number>)> {
        let (position, value) = point(&self.function, document)?;
        if matches!(position, Position::Other(_)) {
            bail!(
                Kind::TypeMismatch,
                "Value of the sortBy field must be numeric or a date, but found {}",
                position.type_name()
            );
        }
        Ok((position, value))
    }
}

fn is_number(position: &Position) -> bool {
    matches!(position, Position::Number(_))
}

fn point(function: &Function, document: RawObject<'_>) -> Result<(Position, Option<Number>)> {
    let Value::Array(pair) = function.input.of(document)?.into_value() else {
        return Ok((Position::Other(Value::Null), None));
    };
    let mut pair = pair.into_iter();
    let position = pair.next().map_or(Position::Other(Value::Null), Position::from);
    match pair.next() {
        Some(Value::Number(number)) => Ok((position, Some(number))),
        Some(Value::Null | Value::Undefined) | None => Ok((position, None)),
        Some(other) => bail!(
            Kind::TypeMismatch,
            "Value to be filled must be numeric or nullish, but found {}",
            Operand::Given(&other).type_name()
        ),
    }
}

/// The value at a position on the line through two points.
fn between(before: &KnownValue, after: &KnownValue, position: &Position) -> Result<Number> {
    let rise = difference(&after.1, &before.1)?;
    let run = distance(&after.0, &before.0)?;
    product_of(&distance(position, &before.0)?, &quotient(&rise, &run))?.add(&before.1)
}

/// Returns the difference of two positions, in milliseconds for dates.
fn distance(position: &Position, other: &Position) -> Result<Number> {
    match (position, other) {
        (Position::Number(position), Position::Number(other)) => difference(position, other),
        (Position::Date(position), Position::Date(other)) => difference(&Number::int(*position), &Number::int(*other)),
        _ => bail!(
            Kind::TypeMismatch,
            "Conflicting sort value types, previously received type {}, but found {}",
            other.type_name(),
            position.type_name()
        ),
    }
}
