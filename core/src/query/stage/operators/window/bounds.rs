//! The bounds of windows: `documents` are distances in documents, `range` are distances in the `sortBy` value.

use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::expression::{Expression, Unit};
use crate::query::operand::Operand;
use crate::query::sort::Sort;
use crate::query::stage::runtime::position::Position;
use crate::values::document::ext_json;
use crate::values::document::number::{self, Number};
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use serde_json::Value as Json;
use std::cmp::Ordering;

/// The bounds of a window.
#[derive(Clone, Debug)]
pub(super) enum Bounds {
    /// distances from the current document, in documents
    Documents(Bound<i64>, Bound<i64>),
    /// distances from the current document's `sortBy` value
    Range(Range),
}

/// One end of a window.
#[derive(Clone, Debug)]
pub(super) enum Bound<T> {
    /// the beginning or the end of the partition
    Unbounded,
    /// the current document
    Current,
    /// at a distance from the current document
    At(T),
}

/// A window by values.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub lower: Bound<Number>,
    pub upper: Bound<Number>,
    /// the field of `sortBy`
    path: String,
    /// the unit of the distances, if the values are dates
    unit: Option<Unit>,
}

impl Bounds {
    /// The whole partition.
    pub fn partition() -> Bounds {
        Bounds::Documents(Bound::Unbounded, Bound::Unbounded)
    }

    /// A single document at a distance from the current one.
    pub fn one(distance: i64) -> Bounds {
        Bounds::Documents(Bound::At(distance), Bound::At(distance))
    }

    /// The partition up to the current document.
    pub fn so_far() -> Bounds {
        Bounds::Documents(Bound::Unbounded, Bound::Current)
    }

    /// True if the window begins with the partition.
    pub fn begins_with_partition(&self) -> bool {
        match self {
            Bounds::Documents(lower, _) => matches!(lower, Bound::Unbounded),
            Bounds::Range(range) => matches!(range.lower, Bound::Unbounded),
        }
    }

    /// Returns the field whose values bound the window, if any.
    pub fn path(&self) -> Option<&str> {
        match self {
            Bounds::Documents(..) => None,
            Bounds::Range(range) => Some(&range.path),
        }
    }

    /// Parses the `window` of a function.
    pub fn parse(json: &Json, sort: Option<&Sort>, environment: &Environment) -> Result<Bounds> {
        let Some(fields) = ext_json::document(json) else {
            bail!(Kind::FailedToParse, "'window' field must be an object")
        };
        let (documents, range, unit) = (fields.get("documents"), fields.get("range"), fields.get("unit"));
        if documents.is_some() && range.is_some() {
            bail!(Kind::FailedToParse, "Window bounds can specify either 'documents' or 'range', not both.");
        }
        if unit.is_some() && range.is_none() {
            bail!(Kind::FailedToParse, "Window bounds can only specify 'unit' with range-based bounds.");
        }
        let most = 1 + usize::from(unit.is_some());
        match (documents, range) {
            (None, None) if fields.is_empty() => Ok(Bounds::partition()),
            (Some(documents), _) if fields.len() == 1 => {
                let [lower, upper] = pair(documents)?;
                let bounds = (document_bound(lower, environment)?, document_bound(upper, environment)?);
                check_order(&bounds.0, &bounds.1, i64::cmp, &0)?;
                let unbounded = matches!(bounds, (Bound::Unbounded, Bound::Unbounded));
                ensure!(unbounded || sort.is_some(), 5339901, "Document-based bounds require a sortBy");
                Ok(Bounds::Documents(bounds.0, bounds.1))
            }
            (_, Some(range)) if fields.len() == most => {
                let [lower, upper] = pair(range)?;
                let unit = unit.map(parse_unit).transpose()?;
                let lower = range_bound(lower, unit, environment)?;
                let upper = range_bound(upper, unit, environment)?;
                check_order(&lower, &upper, number::compare, &Number::int(0))?;
                let fields = sort.map_or(&[][..], |sort| &sort.fields);
                let [(path, descending)] = fields else {
                    bail!(5339902, "Range-based bounds require sortBy a single field")
                };
                ensure!(!descending, 8947401, "Range-based bounds require an ascending sortBy");
                Ok(Bounds::Range(Range { lower, upper, path: path.clone(), unit }))
            }
            _ => bail!(
                Kind::FailedToParse,
                "'window' field can only contain 'documents' as the only argument or 'range' with an optional 'unit' field"
            ),
        }
    }
}

fn pair(json: &Json) -> Result<[&Json; 2]> {
    match json.as_array().map(Vec::as_slice) {
        Some([lower, upper]) => Ok([lower, upper]),
        _ => bail!(Kind::FailedToParse, "Window bounds must be a 2-element array: {json}"),
    }
}

/// Parses a unit of time.
pub(super) fn parse_unit(json: &Json) -> Result<Unit> {
    let Json::String(name) = json else { bail!(Kind::FailedToParse, "'unit' must be a string, but found: {json}") };
    Unit::find(name).ok_or_else(|| error!(Kind::FailedToParse, "unknown time unit value: {name}"))
}

fn bound<T>(json: &Json, environment: &Environment, read: impl FnOnce(Value) -> Result<T>) -> Result<Bound<T>> {
    match json.as_str() {
        Some("unbounded") => Ok(Bound::Unbounded),
        Some("current") => Ok(Bound::Current),
        Some(_) => bail!(Kind::FailedToParse, "Window bounds must be 'unbounded', 'current', or a number."),
        None => {
            let constant = Expression::parse(json, environment)?.constant();
            let constant =
                constant.ok_or_else(|| error!(Kind::FailedToParse, "Window bounds expression must be a constant."))?;
            Ok(Bound::At(read(constant)?))
        }
    }
}

fn document_bound(json: &Json, environment: &Environment) -> Result<Bound<i64>> {
    bound(json, environment, |value| {
        // As in MongoDB, bounds are 32-bit integers.
        Operand::Given(&value)
            .int32()
            .ok_or_else(|| error!(Kind::FailedToParse, "Numeric document-based bounds must be an integer"))
    })
}

fn range_bound(json: &Json, unit: Option<Unit>, environment: &Environment) -> Result<Bound<Number>> {
    bound(json, environment, |value| match value {
        Value::Number(number) if unit.is_none() || number.as_i64().is_some() => Ok(number),
        Value::Number(_) => bail!(Kind::FailedToParse, "With 'unit', range-based bounds must be an integer"),
        _ => bail!(Kind::FailedToParse, "Range-based bounds expression must be a number"),
    })
}

fn check_order<T>(lower: &Bound<T>, upper: &Bound<T>, compare: fn(&T, &T) -> Ordering, zero: &T) -> Result<()> {
    let (lower, upper) = match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => return Ok(()),
        (lower, upper) => (lower.distance_or(zero), upper.distance_or(zero)),
    };
    ensure!(compare(lower, upper).is_le(), 5339900, "Lower bound must not exceed upper bound");
    Ok(())
}

impl<T> Bound<T> {
    fn distance_or<'b>(&'b self, zero: &'b T) -> &'b T {
        if let Bound::At(distance) = self { distance } else { zero }
    }
}

impl Range {
    /// Returns a document's `sortBy` value.
    pub fn position(&self, document: RawObject<'_>) -> Position {
        Position::of(document, &self.path)
    }

    /// Returns the current document's `sortBy` value, and checks its type.
    ///
    /// # Errors
    /// `Location5429513`, `Location5429413` and `Location5429414` for a value of a wrong type.
    pub fn current(&self, document: RawObject<'_>) -> Result<Position> {
        let position = self.position(document);
        match (&position, self.unit) {
            (Position::Date(_), Some(_)) | (Position::Number(_), None) => Ok(position),
            (_, Some(_)) => bail!(
                5429513,
                "Invalid range: Expected the sortBy field to be a Date, but it was {}",
                position.type_name()
            ),
            (Position::Date(_), None) => {
                bail!(5429413, "Invalid range: For windows that involve date or time ranges, a unit must be provided.")
            }
            _ => bail!(
                5429414,
                "Invalid range: Expected the sortBy field to be a number, but it was {}",
                position.type_name()
            ),
        }
    }

    /// Returns the value at a distance from `current`, the current document's value.
    pub fn shifted(&self, current: &Position, by: &Number) -> Result<Position> {
        match (current, self.unit, by) {
            (Position::Date(millis), Some(unit), by) => {
                let shifted = by.as_i64().and_then(|by| unit.after(*millis, by));
                Ok(Position::Date(
                    shifted
                        .ok_or_else(|| error!(Kind::Overflow, "the range of a window exceeds the range of dates"))?,
                ))
            }
            (Position::Number(Number::Int(value, _)), _, Number::Int(by, _)) if value.checked_add(*by).is_some() => {
                Ok(Position::Number(Number::int(value + by)))
            }
            (Position::Number(value), ..) => {
                // Decimals add numbers such as 0.1 exactly as they are written.
                let sum = Number::Decimal(value.to_decimal()).add(&Number::Decimal(by.to_decimal()))?;
                Ok(Position::Number(sum))
            }
            (other, ..) => Ok(other.clone()),
        }
    }
}
