//! Modifiers: the changes of single values.

use super::array::{AddToSet, Pull, Push};
use super::context::{Context, UpdateOutcome};
use super::message::shown;
use crate::error::{Kind, Result, bail, error};
use crate::values::document::element::Element;
use crate::values::document::number::Number;
use crate::values::document::raw::{self, RawArray, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::Part;
use crate::values::order;
use std::cmp::Ordering;

/// The change at a path.
#[derive(Debug)]
pub(super) enum Modifier {
    /// set to the value, as jsonb
    Set(Vec<u8>),
    /// set to the value, as jsonb, if the document is being inserted
    SetOnInsert(Vec<u8>),
    /// removed
    Unset,
    /// increased
    Inc(Number),
    /// multiplied
    Mul(Number),
    /// replaced by the value if the existing one is missing, or if its comparison with the value has this result
    Replace(Ordering, Value),
    /// bitwise operations, one after the other
    Bit {
        operations: Vec<(Bitwise, i64)>,
        /// true if an operand is a long
        is_long: bool,
    },
    /// the time of the update, as a date or a timestamp
    CurrentDate { timestamp: bool },
    /// moved to the path
    RenameTo(String),
    /// moved from the path
    RenameFrom(String),
    /// elements inserted, the array sorted and truncated
    Push(Push),
    /// elements that the array lacks are appended
    AddToSet(AddToSet),
    /// the first element removed, or the last
    Pop(PopSide),
    /// elements removed
    Pull(Pull),
}

/// An operation on bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bitwise {
    And,
    Or,
    Xor,
}

/// An end of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PopSide {
    First,
    Last,
}

impl Modifier {
    /// True if the modifier creates the documents that its path lacks.
    pub fn needs_place(&self, context: &Context<'_>) -> bool {
        match self {
            Modifier::Unset | Modifier::RenameTo(_) => false,
            Modifier::SetOnInsert(_) => context.inserting,
            Modifier::RenameFrom(from) => context.renamed(from).is_some(),
            _ => true,
        }
    }

    /// Changes an existing or missing value.
    pub fn apply<'a>(
        &'a self,
        name: &str,
        existing: Option<RawValue<'a>>,
        context: &Context<'a>,
    ) -> Result<UpdateOutcome<'a>> {
        Ok(match self {
            Modifier::SetOnInsert(_) if !context.inserting => UpdateOutcome::Keep,
            Modifier::Set(bytes) | Modifier::SetOnInsert(bytes) => UpdateOutcome::Write(Part::Raw(raw::root(bytes))),
            Modifier::Unset | Modifier::RenameTo(_) if existing.is_none() => UpdateOutcome::Keep,
            Modifier::Unset | Modifier::RenameTo(_) => UpdateOutcome::Remove,
            Modifier::RenameFrom(from) => {
                context.renamed(from).map_or(UpdateOutcome::Keep, |value| UpdateOutcome::Write(Part::Raw(value)))
            }
            Modifier::Inc(amount) => number(
                match existing {
                    None => amount.clone(),
                    Some(value) => combine("$inc", name, value, context, |number| number.add(amount))?,
                },
                existing,
            ),
            Modifier::Mul(factor) => number(
                match existing {
                    None => Number::int(0).multiply(factor)?,
                    Some(value) => combine("$mul", name, value, context, |number| number.multiply(factor))?,
                },
                existing,
            ),
            Modifier::Replace(ordering, value) => match existing {
                Some(existing) if order::compare_raw_with(existing, value, context.strings) != *ordering => {
                    UpdateOutcome::Keep
                }
                _ => UpdateOutcome::Write(Part::Owned(value.clone())),
            },
            Modifier::Bit { operations, is_long } => {
                let (bits, was_long) = change_bits(name, existing, operations, context)?;
                number(Number::integer(bits, was_long || *is_long), existing)
            }
            Modifier::CurrentDate { timestamp } => {
                UpdateOutcome::Write(Part::Owned(current_date(context.now, *timestamp)?))
            }
            Modifier::Push(push) => push.apply(name, existing, context)?,
            Modifier::AddToSet(add) => add.apply(name, existing, context)?,
            Modifier::Pop(end) => pop(name, existing, *end)?,
            Modifier::Pull(pull) => pull.apply(existing, context)?,
        })
    }
}

fn current_date(now: Option<i64>, timestamp: bool) -> Result<Value> {
    let millis = now.ok_or_else(|| {
        error!(Kind::InternalError, "$currentDate needs the statement's time, and the update has none")
    })?;
    Ok(if timestamp {
        Value::Timestamp(u32::try_from(millis.div_euclid(1000)).unwrap_or(u32::MAX), 1)
    } else {
        Value::Date(millis)
    })
}

/// Writes a number. A long that replaces a marked long is marked even where other values are not. As in MongoDB, a double zero that stays
/// zero keeps its sign: negative zero plus zero is negative zero.
fn number<'a>(number: Number, existing: Option<RawValue<'_>>) -> UpdateOutcome<'a> {
    let is_zero = |number: &Number| matches!(number, Number::Double(value) if *value == 0.0);
    if is_zero(&number)
        && let Some(Element::Number(before)) = existing.map(Element::of)
        && is_zero(&before)
    {
        return UpdateOutcome::Keep;
    }
    UpdateOutcome::Write(match number.small_long() {
        Some(long) if is_marked(existing) => Part::Marked(long),
        _ => Part::Owned(Value::Number(number)),
    })
}

fn is_marked(existing: Option<RawValue<'_>>) -> bool {
    matches!(existing, Some(RawValue::Number(number)) if number.is_marked_long())
}

fn combine(
    operator: &str,
    name: &str,
    value: RawValue<'_>,
    context: &Context<'_>,
    combine: impl FnOnce(&Number) -> Result<Number>,
) -> Result<Number> {
    let element = Element::of(value);
    let Element::Number(number) = element else {
        bail!(
            Kind::TypeMismatch,
            "Cannot apply {operator} to a value of non-numeric type. {{{}}} has the field '{name}' of non-numeric type {}",
            context.shown_id(),
            element.type_name()
        )
    };
    combine(&number).map_err(|_| {
        error!(
            Kind::BadValue,
            "Failed to apply {operator} operations to current value ({}) for document {{{}}}",
            shown(value),
            context.shown_id()
        )
    })
}

/// The result of the operations, and whether the existing value is a long.
fn change_bits(
    name: &str,
    existing: Option<RawValue<'_>>,
    operations: &[(Bitwise, i64)],
    context: &Context<'_>,
) -> Result<(i64, bool)> {
    let (bits, is_long) = match existing.map(Element::of) {
        None => (0, false),
        Some(Element::Number(number @ Number::Int(bits, _))) => (bits, number.is_long()),
        Some(other) => bail!(
            Kind::BadValue,
            "Cannot apply $bit to a value of non-integral type. {{{}}} has the field {name} of non-integer type {}",
            context.shown_id(),
            other.type_name()
        ),
    };
    let bits = operations.iter().fold(bits, |bits, (operation, operand)| match operation {
        Bitwise::And => bits & operand,
        Bitwise::Or => bits | operand,
        Bitwise::Xor => bits ^ operand,
    });
    Ok((bits, is_long))
}

fn pop<'a>(name: &str, existing: Option<RawValue<'a>>, end: PopSide) -> Result<UpdateOutcome<'a>> {
    let array: RawArray<'a> = match existing {
        None => return Ok(UpdateOutcome::Keep),
        Some(RawValue::Array(array)) => array,
        Some(other) => {
            let found = Element::of(other).type_name();
            bail!(Kind::TypeMismatch, "Path '{name}' contains an element of non-array type '{found}'");
        }
    };
    if array.is_empty() {
        return Ok(UpdateOutcome::Keep);
    }
    let skipped = if end == PopSide::First { 1 } else { 0 };
    Ok(UpdateOutcome::Write(Part::Array(array.iter().skip(skipped).take(array.len() - 1).map(Part::Raw).collect())))
}
