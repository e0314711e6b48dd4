//! The equality of `$lookup`, by MongoDB's rules. An array in the local document matches by its elements, an array in a foreign
//! document by its elements and as a whole. Null equals a missing field.
//!
//! Two values are equal under the collation exactly if their encodings are equal. So if a query asks for several values, a hash table of
//! encodings assigns each returned document to the values that it matches.

use crate::budget;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::encode::{encode_under, encoded_under};
use crate::values::path::{self, AtEnd, Base};
use serde_json::{Value as Json, json};
use std::cell::RefCell;
use std::collections::HashMap;

/// The encoding of a value that a query asks for, and the value.
pub(in crate::query::stage) type EncodedValue = (Vec<u8>, Value);

/// Encodes a value that a query asks for. Undefined is replaced by null, which it equals, because a condition cannot name undefined.
pub(in crate::query::stage) fn encoded_value(value: Value, collator: Option<&Collator>) -> EncodedValue {
    let value = if matches!(value, Value::Undefined) { Value::Null } else { value };
    (encoded_under(&value, collator), value)
}

/// The values of a document's field, or null if it has none.
pub(in crate::query::stage) fn field_values(
    object: RawObject<'_>,
    path: &str,
    collator: Option<&Collator>,
) -> Vec<EncodedValue> {
    let mut values = Vec::with_capacity(1);
    values_at(object, path, &mut |value| values.push(encoded_value(Value::from_raw(value), collator)));
    if values.is_empty() {
        values.push(encoded_value(Value::Null, collator));
    }
    values
}

/// The distinct values that a query asks for, numbered in the order of their addition.
#[derive(Debug, Default)]
pub(in crate::query::stage) struct Values {
    values: Vec<Value>,
    numbers: HashMap<Vec<u8>, usize>,
}

impl Values {
    /// Adds a value if it is new. Returns its number.
    pub fn add(&mut self, (encoding, value): EncodedValue) -> usize {
        budget::step();
        let next = self.values.len();
        let number = *self.numbers.entry(encoding).or_insert(next);
        if number == next {
            self.values.push(value);
        }
        number
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The encodings of the values, with their numbers.
    pub fn into_encodings(self) -> impl Iterator<Item = (Vec<u8>, usize)> {
        self.numbers.into_iter()
    }

    /// Returns the filter for documents that have one of the values at the path; None if there are no values.
    pub fn filter(&self, path: &str) -> Option<Json> {
        // In `$in` a regular expression would match as a pattern, and a name that starts with `$` be an operator, so each such value has an
        // `$eq` of its own.
        let (special, others): (Vec<&Value>, Vec<&Value>) = self.values.iter().partition(|value| match value {
            Value::Regex(..) => true,
            Value::Object(fields) => fields.first().is_some_and(|(name, _)| name.starts_with('$')),
            _ => false,
        });
        let equals = |value: &Value| json!({path: {"$eq": ext_json::to_json(value)}});
        let mut filters: Vec<Json> = special.into_iter().map(equals).collect();
        match others.as_slice() {
            [] => {}
            [value] => filters.push(equals(value)),
            values => filters
                .push(json!({path: {"$in": values.iter().map(|value| ext_json::to_json(value)).collect::<Json>()}})),
        }
        match filters.len() {
            0 | 1 => filters.pop(),
            _ => Some(json!({"$or": filters})),
        }
    }

    /// Calls `found` with the number of each value that a document has in a field, perhaps more than once.
    pub fn for_each_match(
        &self,
        other: RawObject<'_>,
        path: &str,
        collator: Option<&Collator>,
        found: impl FnMut(usize),
    ) {
        let state = RefCell::new((Vec::new(), found));
        // `any` visits all values, because the closure accepts none.
        path::any(Base::Object(other), path, AtEnd::Elements, &|value| {
            let (encoding, found) = &mut *state.borrow_mut();
            encoding.clear();
            encode_under(&Element::of(value.unwrap_or(RawValue::Null)), collator, encoding);
            if let Some(number) = self.numbers.get(encoding) {
                found(*number);
            }
            false
        });
    }
}

/// Calls `found` with each value at a path. Arrays on the path and at its end are replaced by their elements. A number in the path
/// is a position if it follows an array.
pub(in crate::query::stage) fn values_at<'d>(object: RawObject<'d>, path: &str, found: &mut impl FnMut(RawValue<'d>)) {
    let (head, rest) = path::split(path);
    if let Some(value) = object.get(head) {
        values_below(value, rest, found);
    }
}

fn values_below<'d>(value: RawValue<'d>, path: Option<&str>, found: &mut impl FnMut(RawValue<'d>)) {
    budget::step();
    match (path, value) {
        (None, RawValue::Array(array)) => array.iter().for_each(found),
        (None, value) => found(value),
        (Some(path), RawValue::Array(array)) => {
            let (head, rest) = path::split(path);
            match path::array_index(head) {
                Some(position) => {
                    if let Some(element) = array.get(position) {
                        values_below(element, rest, found);
                    }
                }
                None => array.iter().filter_map(path::embedded).for_each(|inner| values_at(inner, path, found)),
            }
        }
        (Some(path), value) => {
            if let Some(inner) = path::embedded(value) {
                values_at(inner, path, found);
            }
        }
    }
}
