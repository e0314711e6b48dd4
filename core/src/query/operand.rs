//! A value in an expression: borrowed from the document, from the expression, or computed.

use crate::budget;
use crate::error::Result;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::raw::RawValue;
use crate::values::document::value::Value;
use crate::values::document::write::Part;
use crate::values::key::encode::{encode_under, encode_value, encode_value_under};
use crate::values::order::{self, Class, Strings};
use crate::values::path;
use crate::values::view::View;
use bigdecimal::ToPrimitive;
use std::cmp::Ordering;

/// A value, or a missing one, which expressions distinguish from null.
#[derive(Clone, Debug)]
pub(crate) enum Operand<'a> {
    /// no value: a field that is not there, `$$REMOVE`
    Missing,
    /// read from the document
    Stored(RawValue<'a>),
    /// a constant of the expression, or a variable's value
    Given(&'a Value),
    /// computed
    Made(Value),
}

/// The longest text of a value in a message, in bytes.
const MAX_SHOWN: usize = 200;

/// The beginning of a value that fits into a message, so that large values are not copied; `room` is approximate, in bytes.
fn beginning_of(value: &Value, room: &mut usize) -> Value {
    let mut begins = |text: &str| {
        let end = text.floor_char_boundary(*room);
        *room -= end;
        text[..end].to_owned()
    };
    match value {
        Value::String(text) => Value::String(begins(text)),
        Value::Code(text) => Value::Code(begins(text)),
        Value::Symbol(text) => Value::Symbol(begins(text)),
        Value::Binary(subtype, bytes) => {
            let end = bytes.len().min(*room);
            *room -= end;
            Value::Binary(*subtype, bytes[..end].to_vec())
        }
        Value::Array(items) => {
            let mut shown = Vec::new();
            for item in items {
                let Some(left) = room.checked_sub(1) else { break };
                *room = left;
                shown.push(beginning_of(item, room));
            }
            Value::fixed_array(shown)
        }
        Value::Object(fields) => {
            let mut shown = Vec::new();
            for (name, value) in fields {
                let Some(left) = room.checked_sub(name.len() + 1) else { break };
                *room = left;
                shown.push((name.clone(), beginning_of(value, room)));
            }
            Value::fixed_object(shown)
        }
        other => other.clone(),
    }
}

/// Counts steps and memory before `count` elements are turned into operands.
fn charge(count: usize) {
    budget::room_for(count * size_of::<Operand<'_>>());
    budget::steps(1 + count / 16);
}

impl<'a> Operand<'a> {
    pub(crate) const NULL: Operand<'static> = Operand::Made(Value::Null);

    pub(crate) fn int(value: i64) -> Operand<'static> {
        Operand::Made(Value::Number(Number::int(value)))
    }

    pub(crate) fn long(value: i64) -> Operand<'static> {
        Operand::Made(Value::Number(Number::long(value)))
    }

    pub(crate) fn double(value: f64) -> Operand<'static> {
        Operand::Made(Value::Number(Number::Double(value)))
    }

    pub(crate) fn number_of(value: Number) -> Operand<'static> {
        Operand::Made(Value::Number(value))
    }

    pub(crate) fn string(value: impl Into<String>) -> Operand<'static> {
        Operand::Made(Value::String(value.into()))
    }

    pub(crate) fn bool(value: bool) -> Operand<'static> {
        Operand::Made(Value::Bool(value))
    }

    pub(crate) fn date_of(millis: i64) -> Operand<'static> {
        Operand::Made(Value::Date(millis))
    }

    /// An array.
    ///
    /// # Errors
    /// `DocumentTooDeep`.
    pub(crate) fn array(items: Vec<Value>) -> Result<Operand<'static>> {
        Value::array(items).map(Operand::Made)
    }

    /// A document.
    ///
    /// # Errors
    /// `DocumentTooDeep`.
    pub(crate) fn object(fields: Vec<(String, Value)>) -> Result<Operand<'static>> {
        Value::object(fields).map(Operand::Made)
    }

    /// The value if it is not stored.
    fn owned(&self) -> Option<&Value> {
        match self {
            Operand::Given(value) => Some(value),
            Operand::Made(value) => Some(value),
            _ => None,
        }
    }

    /// Calls `use_view` with a view of the value, in which undefined looks like null, and a symbol like its string. None if the value is
    /// missing.
    pub(crate) fn with_view<R>(&self, use_view: impl FnOnce(View<'_>) -> R) -> Option<R> {
        match self {
            Operand::Missing => None,
            Operand::Stored(raw) => Some(use_view(View::of_element(&Element::of(*raw)))),
            Operand::Given(value) => Some(use_view(View::of_value(value))),
            Operand::Made(value) => Some(use_view(View::of_value(value))),
        }
    }

    /// Calls `find` with a view of the value, unless it is missing.
    fn find<R>(&self, find: impl FnOnce(View<'_>) -> Option<R>) -> Option<R> {
        self.with_view(find).flatten()
    }

    /// The value; None if it is null, undefined or missing.
    pub(crate) fn non_null(self) -> Option<Operand<'a>> {
        (!self.is_nullish()).then_some(self)
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Operand::Missing)
    }

    /// True for null, undefined and missing.
    pub(crate) fn is_nullish(&self) -> bool {
        match self {
            Operand::Missing => true,
            Operand::Stored(raw) => Class::of_raw(*raw) == Class::Null,
            _ => matches!(self.owned(), Some(Value::Null | Value::Undefined)),
        }
    }

    /// MongoDB's alias of the type, or "missing".
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Operand::Missing => "missing",
            Operand::Stored(raw) => Element::of(*raw).type_name(),
            Operand::Given(value) => value.type_name(),
            Operand::Made(value) => value.type_name(),
        }
    }

    /// The value as messages show it.
    pub(crate) fn shown(&self) -> String {
        let mut room = 2 * MAX_SHOWN;
        let value = match (self, self.owned()) {
            (Operand::Stored(raw), _) => beginning_of(&Value::from_raw(*raw), &mut room),
            (_, Some(value)) => beginning_of(value, &mut room),
            (_, None) => return "MISSING".to_owned(),
        };
        let mut text = match &value {
            Value::Number(Number::Decimal(decimal)) => decimal.to_string(),
            Value::Number(Number::Double(double)) => double.to_string(),
            value => ext_json::to_json(value).to_string(),
        };
        if text.len() > MAX_SHOWN {
            text.truncate(text.floor_char_boundary(MAX_SHOWN));
            text.push('…');
        }
        text
    }

    /// The truth of a value: false, null, undefined, missing and zero are false.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Operand::Stored(RawValue::Bool(value)) => *value,
            Operand::Made(Value::Bool(value)) => *value,
            _ if self.is_nullish() => false,
            _ => self
                .with_view(|view| match view {
                    View::Bool(value) => value,
                    View::Number(number) => !number.is_zero(),
                    _ => true,
                })
                .unwrap_or(false),
        }
    }

    /// True for a number of any type.
    pub(crate) fn is_number(&self) -> bool {
        match self {
            Operand::Stored(RawValue::Number(_)) => true,
            _ => self.with_view(|view| matches!(view, View::Number(_))) == Some(true),
        }
    }

    pub(crate) fn number(&self) -> Option<Number> {
        match self {
            Operand::Stored(RawValue::Number(number)) => Some(number.to_number()),
            _ => self.find(|view| if let View::Number(number) = view { Some(number.clone()) } else { None }),
        }
    }

    /// The value as a 64-bit integer, for any type of number; None if it is no such integer.
    pub(crate) fn int64(&self) -> Option<i64> {
        self.number()?.as_i64()
    }

    /// The value as a 32-bit integer, for any type of number; None if it is no such integer.
    pub(crate) fn int32(&self) -> Option<i64> {
        self.int64().filter(|value| i32::try_from(*value).is_ok())
    }

    /// The text of a string; None for other types, including symbols.
    pub(crate) fn text(&self) -> Option<&str> {
        match (self, self.owned()) {
            (Operand::Stored(RawValue::String(text)), _) => Some(text),
            (_, Some(Value::String(text))) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn date(&self) -> Option<i64> {
        self.find(|view| if let View::Date(millis) = view { Some(millis) } else { None })
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        self.find(|view| if let View::Bool(value) = view { Some(value) } else { None })
    }

    /// True for an array.
    pub(crate) fn is_array(&self) -> bool {
        matches!(self, Operand::Stored(RawValue::Array(_))) || matches!(self.owned(), Some(Value::Array(_)))
    }

    /// True for an embedded document.
    pub(crate) fn is_object(&self) -> bool {
        match self {
            Operand::Stored(raw) => path::embedded(*raw).is_some(),
            _ => matches!(self.owned(), Some(Value::Object(_))),
        }
    }

    /// The number of an array's elements.
    pub(crate) fn array_len(&self) -> Option<usize> {
        match (self, self.owned()) {
            (Operand::Stored(RawValue::Array(array)), _) => Some(array.len()),
            (_, Some(Value::Array(items))) => Some(items.len()),
            _ => None,
        }
    }

    /// An array's elements.
    pub(crate) fn into_items(self) -> Option<Vec<Operand<'a>>> {
        match self {
            Operand::Stored(RawValue::Array(array)) => {
                charge(array.len());
                Some(array.iter().map(Operand::Stored).collect())
            }
            Operand::Given(Value::Array(items)) => {
                charge(items.len());
                Some(items.iter().map(Operand::Given).collect())
            }
            Operand::Made(Value::Array(items)) => {
                charge(items.len());
                Some(items.into_iter().map(Operand::Made).collect())
            }
            _ => None,
        }
    }

    /// An array's element.
    pub(crate) fn into_item(self, index: usize) -> Operand<'a> {
        let found = match self {
            Operand::Stored(RawValue::Array(array)) => array.get(index).map(Operand::Stored),
            Operand::Given(Value::Array(items)) => items.get(index).map(Operand::Given),
            Operand::Made(Value::Array(items)) => items.into_iter().nth(index).map(Operand::Made),
            _ => None,
        };
        found.unwrap_or(Operand::Missing)
    }

    /// A document's fields; None for other values. Those of a stored document are in the order that it keeps, or else in jsonb's.
    pub(crate) fn into_fields(self) -> Option<Vec<(String, Operand<'a>)>> {
        match self {
            Operand::Stored(raw) => {
                let object = path::embedded(raw)?;
                charge(2 * object.len());
                Some(object.in_order().map(|(name, value)| (name.to_owned(), Operand::Stored(value))).collect())
            }
            Operand::Given(Value::Object(fields)) => {
                charge(2 * fields.len());
                Some(fields.iter().map(|(name, value)| (name.clone(), Operand::Given(value))).collect())
            }
            Operand::Made(Value::Object(fields)) => {
                Some(fields.into_iter().map(|(name, value)| (name, Operand::Made(value))).collect())
            }
            _ => None,
        }
    }

    /// A document's field; missing if the value is not a document.
    pub(crate) fn into_field(self, name: &str) -> Operand<'a> {
        let found = match self {
            Operand::Stored(raw) => path::embedded(raw).and_then(|object| object.get(name)).map(Operand::Stored),
            Operand::Given(Value::Object(fields)) => {
                fields.iter().rev().find(|(field, _)| field == name).map(|(_, value)| Operand::Given(value))
            }
            Operand::Made(Value::Object(fields)) => {
                fields.into_iter().rev().find(|(field, _)| field == name).map(|(_, value)| Operand::Made(value))
            }
            _ => None,
        };
        found.unwrap_or(Operand::Missing)
    }

    /// The value at a dotted path, as expressions read it: an array on the path yields an array of the values that its documents have at
    /// the rest of the path.
    pub(crate) fn at(self, path: &str) -> Operand<'a> {
        if self.is_array() {
            let inside = self.into_items().unwrap_or_default().into_iter().filter(Operand::is_object);
            let found = inside.filter_map(|item| {
                budget::step();
                item.at(path).into_option()
            });
            // The depth need not be checked: the result is not nested deeper than the array that its values come from.
            return Operand::Made(Value::fixed_array(found.collect()));
        }
        let (head, rest) = path::split(path);
        let value = self.into_field(head);
        match rest {
            None => value,
            Some(rest) => value.at(rest),
        }
    }

    /// The owned value; None if it is missing.
    pub(crate) fn into_option(self) -> Option<Value> {
        match self {
            Operand::Missing => None,
            Operand::Stored(raw) => Some(Value::from_raw(raw)),
            Operand::Given(value) => Some(budget::copying(|| value.clone())),
            Operand::Made(value) => Some(value),
        }
    }

    /// The owned value; null if it is missing, as an element of an array is.
    pub(crate) fn into_value(self) -> Value {
        self.into_option().unwrap_or(Value::Null)
    }

    /// Appends the encoding of the value as a key; a missing one counts as null.
    pub(crate) fn encode_under(&self, strings: Strings<'_>, out: &mut Vec<u8>) {
        match self {
            Operand::Missing => encode_value(&Value::Null, out),
            Operand::Stored(value) => encode_under(&Element::of(*value), strings, out),
            Operand::Given(value) => encode_value_under(value, strings, out),
            Operand::Made(value) => encode_value_under(value, strings, out),
        }
    }

    /// The same value, owned.
    pub(crate) fn into_owned(self) -> Operand<'static> {
        self.into_option().map_or(Operand::Missing, Operand::Made)
    }

    /// The value as part of a document; None if it is missing.
    pub(crate) fn into_part(self) -> Option<Part<'a>> {
        match self {
            Operand::Missing => None,
            Operand::Stored(raw) => Some(Part::Raw(raw)),
            Operand::Given(value) => Some(Part::Owned(budget::copying(|| value.clone()))),
            Operand::Made(value) => Some(Part::Owned(value)),
        }
    }

    /// The rank of missing and undefined, between MinKey and null; None for other values.
    fn rank(&self) -> Option<u8> {
        let undefined = match self {
            Operand::Missing => true,
            Operand::Stored(raw) => matches!(raw, RawValue::Object(_)) && self.type_name() == "undefined",
            _ => matches!(self.owned(), Some(Value::Undefined)),
        };
        undefined.then_some(Class::MinKey as u8 + 1)
    }

    fn class(&self) -> u8 {
        self.with_view(|view| view.class() as u8).unwrap_or(0)
    }

    /// Compares in the order of all types, with missing and undefined below null.
    pub(crate) fn compare(&self, other: &Operand<'_>, strings: order::Strings<'_>) -> Ordering {
        budget::step();
        match (self.rank(), other.rank()) {
            (Some(_), Some(_)) => Ordering::Equal,
            (Some(rank), None) => rank.cmp(&other.class()),
            (None, Some(rank)) => self.class().cmp(&rank),
            (None, None) => match (self, other) {
                (Operand::Stored(a), Operand::Given(b)) if strings.is_none() => order::compare_raw(*a, b),
                _ => self
                    .with_view(|a| other.with_view(|b| order::compare_views(&a, &b, strings)))
                    .flatten()
                    .unwrap_or(Ordering::Equal),
            },
        }
    }
}

/// The number rounded towards zero; None for NaN, and for an integer that does not fit 64 bits.
pub(crate) fn truncated(number: &Number) -> Option<i64> {
    match number {
        Number::Int(value, _) => Some(*value),
        Number::Double(value) => Number::Double(value.trunc()).as_i64(),
        Number::Decimal(Decimal::Finite(value)) => value.to_i64(),
        Number::Decimal(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_cut_towards_zero() {
        let decimal = |text: &str| Number::Decimal(Decimal::parse(text).unwrap());
        for (number, expected) in [
            (Number::Double(5.9), Some(5)),
            (Number::Double(-5.9), Some(-5)),
            (Number::Double(1e300), None),
            (Number::Double(f64::NAN), None),
            (decimal("5.9"), Some(5)),
            (decimal("-5.9"), Some(-5)),
            (decimal("1E+3"), Some(1000)),
            (decimal("1E+300"), None),
            (decimal("1E-6000"), Some(0)),
            (decimal("1E+6000"), None),
            (decimal("NaN"), None),
        ] {
            assert_eq!(truncated(&number), expected, "{number:?}");
        }
    }
}
