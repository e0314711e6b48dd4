//! A parsed window function: the bounds of its window, its argument, and how its result is computed.

use super::bounds::Bounds;
use super::tally::Tally;
use crate::error::{Kind, Result, bail, ensure};
use crate::query::expression::{Expression, difference, product_of};
use crate::query::operand::Operand;
use crate::query::sort::Sort;
use crate::query::stage::operators::accumulating::Accumulating;
use crate::query::stage::runtime::position::Position;
use crate::values::collation::Collator;
use crate::values::document::number::{self, Number, quotient};
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A parsed window function.
#[derive(Debug)]
pub(super) struct Function {
    pub bounds: Bounds,
    pub input: FunctionArgument,
    pub kind: FunctionKind,
}

/// The argument of a function, computed from a document.
#[derive(Debug)]
pub(super) enum FunctionArgument {
    /// the argument of an accumulator
    Accumulated(Accumulating),
    Value(Expression, Option<Arc<Collator>>),
    /// the document's sort key
    SortKey(Sort),
    /// an array of the document's `sortBy` value and a second value
    Positioned(String, Expression, Option<Arc<Collator>>),
}

/// How the result of a function is computed.
pub(super) enum FunctionKind {
    /// from all values in the window; `removes`: the first value can be removed from the state
    Tally { begin: Box<dyn Fn() -> Result<Box<dyn Tally>> + Send + Sync>, removes: bool },
    /// from the first and the last value in the window; `default` replaces a missing value, and is the result of an empty window
    EndValues { function: EndFunction, default: Value },
    /// `$linearFill`: from the known values before and after the document
    LinearFill,
}

/// A function whose result is computed from the first and the last value of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndFunction {
    First,
    Last,
    /// `$derivative`; its unit in milliseconds, if given
    Derivative(Option<i64>),
}

impl fmt::Debug for FunctionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FunctionKind::Tally { .. } => f.write_str("Tally"),
            FunctionKind::EndValues { function, .. } => function.fmt(f),
            FunctionKind::LinearFill => f.write_str("LinearFill"),
        }
    }
}

impl Function {
    /// The paths that it reads; None for the whole document.
    pub fn fields_read(&self) -> Option<BTreeSet<String>> {
        let mut paths = self.input.fields_read()?;
        paths.extend(self.bounds.path().map(str::to_owned));
        Some(paths)
    }
}

impl Function {
    /// Computes the argument of a function of [end values](FunctionKind::EndValues) for a document.
    pub fn end_value(&self, document: RawObject<'_>) -> Result<Value> {
        Ok(match (self.input.of(document)?, &self.kind) {
            (Operand::Missing, FunctionKind::EndValues { default, .. }) => default.clone(),
            (value, _) => value.into_value(),
        })
    }
}

impl FunctionArgument {
    /// Computes the argument for a document.
    pub fn of<'d>(&'d self, document: RawObject<'d>) -> Result<Operand<'d>> {
        match self {
            FunctionArgument::Accumulated(accumulating) => accumulating.input(document),
            FunctionArgument::Value(expression, collator) => expression.operand(document, collator.as_deref()),
            FunctionArgument::SortKey(sort) => Ok(Operand::Made(Value::Binary(0, sort.key_of(document)?))),
            FunctionArgument::Positioned(path, expression, collator) => {
                let position = Position::of(document, path).into_value();
                let value = expression.operand(document, collator.as_deref())?;
                Operand::array(vec![position, value.into_value()])
            }
        }
    }

    fn fields_read(&self) -> Option<BTreeSet<String>> {
        match self {
            FunctionArgument::Accumulated(accumulating) => accumulating.fields_read(),
            FunctionArgument::Value(expression, _) => expression.fields_read(),
            FunctionArgument::SortKey(sort) => Some(sort.fields.iter().map(|(path, _)| path.clone()).collect()),
            FunctionArgument::Positioned(path, expression, _) => {
                let mut paths = expression.fields_read()?;
                paths.insert(path.clone());
                Some(paths)
            }
        }
    }
}

impl EndFunction {
    /// Computes the result.
    ///
    /// # Errors
    /// Those of `$derivative`, for a value that is not a date or number.
    pub fn of(self, first: &Value, last: &Value) -> Result<Value> {
        match self {
            EndFunction::First => Ok(first.clone()),
            EndFunction::Last => Ok(last.clone()),
            EndFunction::Derivative(unit) => match (first, last) {
                (Value::Array(first), Value::Array(last)) => derivative(first, last, unit),
                _ => Ok(Value::Null),
            },
        }
    }
}

/// Returns the change of the value divided by the change of the position; null if the position does not change.
fn derivative(first: &[Value], last: &[Value], unit: Option<i64>) -> Result<Value> {
    let ([from, low], [to, high]) = (first, last) else { return Ok(Value::Null) };
    let run = match (from, to, unit) {
        (Value::Date(from), Value::Date(to), Some(_)) => difference(&Number::int(*to), &Number::int(*from))?,
        (_, _, Some(_)) => bail!(5624900, "$derivative with 'unit' expects the sortBy field to be a Date"),
        (Value::Date(_), ..) | (_, Value::Date(_), _) => {
            bail!(5624901, "$derivative where the sortBy is a Date requires a 'unit'")
        }
        (Value::Number(from), Value::Number(to), None) => difference(to, from)?,
        _ => bail!(5624902, "$derivative (with no 'unit') expects the sortBy field to be numeric"),
    };
    let rise = match (low, high) {
        (Value::Number(low), Value::Number(high)) => difference(high, low)?,
        (Value::Date(low), Value::Date(high)) => difference(&Number::int(*high), &Number::int(*low))?,
        _ => {
            let nullish = |value| Operand::Given(value).is_nullish();
            ensure!(!nullish(low) && !nullish(high), 5624903, "$derivative input must not be null or missing");
            bail!(
                Kind::TypeMismatch,
                "$derivative can't subtract {} from {}",
                Operand::Given(low).type_name(),
                Operand::Given(high).type_name()
            )
        }
    };
    if number::compare(&run, &Number::int(0)).is_eq() {
        return Ok(Value::Null);
    }
    let slope = quotient(&rise, &run);
    Ok(Value::Number(match unit {
        None => slope,
        Some(millis) => product_of(&slope, &Number::int(millis))?,
    }))
}
