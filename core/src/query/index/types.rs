//! What the keys of a b-tree leave open of a document's values, so that keys and this together are the values.
//!
//! Values that compare equal have one key: 2, 2.0 and decimal 2.00; null and missing. A column behind the keys says which of
//! them it was, by a code for each leaf of the values that leaves something open, in the order in which their encodings come.
//! 0 is what is likely: `decode`'s reading of the key, and of a whole field's null that it is missing. Zeros at the end
//! are left out, so the column is mostly empty.
//!
//! RULE: for a document that does not stand apart, `IndexKeys::restored` of its keys and `IndexKeys::types` has at, and
//! below, each of the index's paths what the document has there; and of what is around them the documents that lead there.

use crate::values::document::element::Element;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::path;

/// What the key says.
pub(super) const PLAIN: u8 = 0;
/// A double, of an integer's key.
const DOUBLE: u8 = 1;
/// A decimal; two bytes follow, how many of its digits stand behind the point.
const DECIMAL: u8 = 2;
/// A decimal that is not finite.
const SPECIAL_DECIMAL: u8 = 3;
/// A symbol, of a string's key.
const SYMBOL: u8 = 1;
/// Null, of a key that whole fields have, too, if they are missing.
pub(super) const PRESENT_NULL: u8 = 1;
/// Added to the number of documents that lead to a missing field, if there are any.
pub(super) const MISSING_BELOW: u8 = 1;
/// Undefined, of null's key.
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

/// Appends the codes of a value, and of what it contains.
pub(super) fn of_value(element: &Element<'_>, codes: &mut Vec<u8>) {
    match element {
        Element::Null | Element::String(_) | Element::Number(Number::Int(_)) => codes.push(PLAIN),
        Element::Undefined => codes.push(UNDEFINED),
        Element::Symbol(_) => codes.push(SYMBOL),
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

/// Codes that are read; behind their end all are [`PLAIN`].
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

/// Makes of a key's reading the value that it was; None for codes that it cannot have.
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
        Value::Object(fields) | Value::CodeWithScope(_, fields) => {
            fields.iter_mut().try_for_each(|(_, child)| retype(child, codes))?;
        }
        Value::Array(items) => items.iter_mut().try_for_each(|child| retype(child, codes))?,
        _ => {}
    }
    Some(())
}

fn typed(number: &Number, codes: &mut Codes<'_>) -> Option<Number> {
    Some(match codes.next() {
        PLAIN => number.clone(),
        DOUBLE => Number::Double(number.to_f64()),
        DECIMAL => {
            let scale = i16::from_be_bytes([codes.next(), codes.next()]);
            Number::Decimal(number.to_decimal_of_scale(scale)?)
        }
        SPECIAL_DECIMAL => Number::Decimal(Decimal::of_f64(number.to_f64())),
        _ => return None,
    })
}

/// Puts a value at a path, or as many of the documents that lead there as there are.
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
                fields.push((name.to_owned(), Value::Object(Vec::new())));
                fields.len() - 1
            });
            if let Value::Object(inner) = &mut fields[at].1 {
                put(inner, rest, documents.saturating_sub(1), value);
            }
        }
    }
}
