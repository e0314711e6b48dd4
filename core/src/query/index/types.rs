//! The type information that the keys of a b-tree lack, so that both together determine the values.
//!
//! Values that compare equal have the same key: 2, 2.0 and decimal 2.00; null and missing. A column after the keys distinguishes them by a
//! code for each ambiguous leaf of the values, in the order of the encodings. Code 0 is the most frequent case: the value has the type that
//! `decode` returns; a whole field with the key of null is missing. Trailing zeros are omitted, so the column is usually empty.
//!
//! RULE: for a document whose keys are not entries, `IndexKeys::restore_document`, given its keys and `IndexKeys::types`, returns a
//! document that equals it at and below each of the index's paths, and has the documents that lead there.

use crate::values::document::element::Element;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::{Fields, Value};
use crate::values::path;

/// The value has the type that its key decodes to; a whole field with the key of null is missing.
pub(super) const PLAIN: u8 = 0;
/// A double with the key of an integer.
const DOUBLE: u8 = 1;
/// A decimal. Two bytes follow: its scale, the number of digits after the point.
const DECIMAL: u8 = 2;
/// A decimal that is not finite.
const SPECIAL_DECIMAL: u8 = 3;
/// A double that is negative zero.
const NEGATIVE_ZERO: u8 = 4;
/// A long that fits 32 bits.
pub(super) const LONG: u8 = 5;
/// A symbol with the key of a string.
const SYMBOL: u8 = 1;
/// A whole field that is null; a missing field has the same key.
pub(super) const PRESENT_NULL: u8 = 1;
/// The code of a missing field with existing documents on its path is their number plus this.
pub(super) const MISSING_BELOW: u8 = 1;
/// Undefined, which has the key of null.
pub(super) const UNDEFINED: u8 = u8::MAX;

/// The code of a field that is missing.
pub(super) fn missing(document: RawObject<'_>, path: &str) -> u8 {
    let mut around = document;
    let mut documents = 0;
    for name in path.split('.') {
        let Some(inner) = around.get(name).and_then(path::embedded) else { break };
        (around, documents) = (inner, documents + 1);
    }
    if documents == 0 { PLAIN } else { documents + MISSING_BELOW }
}

pub(super) fn of_field(element: &Element<'_>, codes: &mut Vec<u8>) {
    match element {
        Element::Null => codes.push(PRESENT_NULL),
        element => of_value(element, codes),
    }
}

/// Appends the codes of a value and of the values inside.
pub(super) fn of_value(element: &Element<'_>, codes: &mut Vec<u8>) {
    match element {
        Element::Null | Element::String(_) => codes.push(PLAIN),
        Element::Number(number @ Number::Int(..)) => {
            codes.push(if number.small_long().is_some() { LONG } else { PLAIN });
        }
        Element::Undefined => codes.push(UNDEFINED),
        Element::Symbol(_) => codes.push(SYMBOL),
        Element::Number(Number::Double(value)) if *value == 0.0 && value.is_sign_negative() => {
            codes.push(NEGATIVE_ZERO)
        }
        Element::Number(number @ Number::Double(_)) => {
            codes.push(if number.as_i64().is_some() { DOUBLE } else { PLAIN });
        }
        Element::Number(Number::Decimal(decimal)) => match decimal.scale() {
            Some(scale) => {
                codes.push(DECIMAL);
                codes.extend(scale.to_be_bytes());
            }
            None => codes.push(SPECIAL_DECIMAL),
        },
        Element::Object(object) | Element::CodeWithScope(_, object) => {
            object.iter().for_each(|(_, child)| of_value(&Element::of(child), codes));
        }
        Element::Array(array) => array.iter().for_each(|child: RawValue<'_>| of_value(&Element::of(child), codes)),
        Element::MinKey
        | Element::Binary(..)
        | Element::ObjectId(_)
        | Element::Bool(_)
        | Element::Date(_)
        | Element::Timestamp(..)
        | Element::Regex(..)
        | Element::DbPointer(..)
        | Element::Code(_)
        | Element::MaxKey => {}
    }
}

/// Reads codes; after their end all are [`PLAIN`].
pub(super) struct Codes<'a>(pub(super) &'a [u8]);

impl Codes<'_> {
    pub(super) fn peek(&self) -> u8 {
        self.0.first().copied().unwrap_or(PLAIN)
    }

    pub(super) fn next(&mut self) -> u8 {
        let code = self.peek();
        self.0 = self.0.get(1..).unwrap_or_default();
        code
    }
}

/// Restores the types in a decoded key; None for impossible codes.
pub(super) fn retype(value: &mut Value, codes: &mut Codes<'_>) -> Option<()> {
    match value {
        Value::Null => match codes.next() {
            PLAIN => {}
            UNDEFINED => *value = Value::Undefined,
            _ => return None,
        },
        Value::String(text) => match codes.next() {
            PLAIN => {}
            SYMBOL => *value = Value::Symbol(std::mem::take(text)),
            _ => return None,
        },
        Value::Number(number) => *number = typed(number, codes)?,
        Value::Object(fields) => retype_fields(fields, codes)?,
        Value::CodeWithScope(_, fields) => retype_fields(fields, codes)?,
        Value::Array(items) => items.edit(|items| items.iter_mut().try_for_each(|child| retype(child, codes)))?,
        _ => {}
    }
    Some(())
}

fn retype_fields(fields: &mut Fields, codes: &mut Codes<'_>) -> Option<()> {
    fields.edit(|fields| fields.iter_mut().try_for_each(|(_, child)| retype(child, codes)))
}

fn typed(number: &Number, codes: &mut Codes<'_>) -> Option<Number> {
    Some(match codes.next() {
        PLAIN => number.clone(),
        DOUBLE => Number::Double(number.to_f64()),
        LONG => Number::long(number.as_i64()?),
        DECIMAL => {
            let scale = i16::from_be_bytes([codes.next(), codes.next()]);
            Number::Decimal(number.to_decimal_of_scale(scale)?)
        }
        NEGATIVE_ZERO if number.is_zero() => Number::Double(-0.0),
        SPECIAL_DECIMAL => Number::Decimal(Decimal::of_result(number.to_f64())),
        _ => return None,
    })
}

/// Sets a value at a path; if it is None, only creates the given number of documents on the path.
pub(super) fn put(fields: &mut Vec<(String, Value)>, path: &str, documents: usize, value: Option<Value>) {
    let (name, rest) = path::split(path);
    let at = fields.iter().position(|(field, _)| field == name);
    match (rest, value) {
        (None, None) => {}
        (None, Some(value)) => match at {
            Some(at) => fields[at].1 = value,
            None => fields.push((name.to_owned(), value)),
        },
        (Some(_), None) if documents == 0 => {}
        (Some(rest), value) => {
            let at = at.unwrap_or_else(|| {
                fields.push((name.to_owned(), Value::fixed_object(Vec::new())));
                fields.len() - 1
            });
            if let Value::Object(inner) = &mut fields[at].1 {
                inner.edit(|inner| put(inner, rest, documents.saturating_sub(1), value));
            }
        }
    }
}
