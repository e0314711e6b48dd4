//! Values of a numeric or date axis, by which `$densify` and window functions order documents.

use crate::query::operand::Operand;
use crate::values::document::number::{self, Number};
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::path;
use std::cmp::Ordering;

/// A value by which documents are sorted.
#[derive(Clone, Debug)]
pub(in crate::query::stage) enum Position {
    Number(Number),
    Date(i64),
    /// missing or of another type
    Other(Value),
}

impl From<Value> for Position {
    fn from(value: Value) -> Position {
        match value {
            Value::Number(number) => Position::Number(number),
            Value::Date(millis) => Position::Date(millis),
            other => Position::Other(other),
        }
    }
}

impl Position {
    /// The value at a path.
    pub fn of(document: RawObject<'_>, path: &str) -> Position {
        let value = path::resolve(document, path).map_or(Operand::Missing, Operand::Stored);
        Position::from(value.into_value())
    }

    pub fn into_value(self) -> Value {
        match self {
            Position::Number(number) => Value::Number(number),
            Position::Date(millis) => Value::Date(millis),
            Position::Other(value) => value,
        }
    }

    /// MongoDB's alias of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Position::Number(number) => number.type_name(),
            Position::Date(_) => "date",
            Position::Other(value) => value.type_name(),
        }
    }

    /// Compares in MongoDB's order of values of all types.
    pub fn compare(&self, other: &Position) -> Ordering {
        match (self, other) {
            (Position::Number(one), Position::Number(other)) => number::compare(one, other),
            (Position::Date(one), Position::Date(other)) => one.cmp(other),
            (one, other) => {
                let (one, other) = (one.clone().into_value(), other.clone().into_value());
                Operand::Given(&one).compare(&Operand::Given(&other), None)
            }
        }
    }
}
