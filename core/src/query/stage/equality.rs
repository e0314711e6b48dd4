//! Equality of a field of one document and a field of documents of another collection, by MongoDB's rules: an array stands for its
//! elements on either side, on the other side also for itself, and null equals a missing field.
//!
//! Values are compared by their encodings: two are equal exactly if their encodings are, under the collation. So the documents of a
//! query for the values of several documents are assigned to these by a hash table.

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

/// Values, and which documents have them. Documents are numbered.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// each value once
    values: Vec<Value>,
    /// by a value's encoding: its documents, in order
    documents: HashMap<Vec<u8>, Vec<usize>>,
}

impl Values {
    /// Adds a value of a document. Documents are added in order.
    pub fn add(&mut self, value: Value, document: usize, collator: Option<&Collator>) {
        budget::step();
        // A condition cannot name undefined. It sorts and encodes as null.
        let value = if matches!(value, Value::Undefined) { Value::Null } else { value };
        let documents = self.documents.entry(encoded_under(&value, collator)).or_default();
        if documents.is_empty() {
            self.values.push(value);
        }
        if documents.last() != Some(&document) {
            documents.push(document);
        }
    }

    /// Adds the values of a field, or null if it has none.
    pub fn add_field(&mut self, object: RawObject<'_>, path: &str, document: usize, collator: Option<&Collator>) {
        let mut is_missing = true;
        values_at(object, path, &mut |value| {
            is_missing = false;
            self.add(Value::from_raw(value), document, collator);
        });
        if is_missing {
            self.add(Value::Null, document, collator);
        }
    }

    /// The filter for documents that have one of the values in a field; None without values.
    pub fn filter(&self, path: &str) -> Option<Json> {
        // In a list a regular expression is a pattern.
        let (patterns, others): (Vec<&Value>, Vec<&Value>) =
            self.values.iter().partition(|value| matches!(value, Value::Regex(..)));
        let equals = |value: &Value| json!({path: {"$eq": ext_json::to_json(value)}});
        let mut filters: Vec<Json> = patterns.into_iter().map(equals).collect();
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

    /// Calls back with each document that has one of the values which another document has in a field; perhaps more than once.
    pub fn matching(
        &self,
        other: RawObject<'_>,
        path: &str,
        collator: Option<&Collator>,
        mut found: impl FnMut(usize),
    ) {
        let encodings = RefCell::new(Vec::new());
        // Collects all values, as none is accepted.
        path::any(Base::Object(other), path, AtEnd::Elements, &|value| {
            let mut encoding = Vec::new();
            encode_under(&Element::of(value.unwrap_or(RawValue::Null)), collator, &mut encoding);
            encodings.borrow_mut().push(encoding);
            false
        });
        for encoding in encodings.into_inner() {
            self.documents.get(&encoding).into_iter().flatten().for_each(|document| found(*document));
        }
    }
}

/// Calls back with the values of a document's field. Arrays on the path, and at its end, stand for their elements; a number in the
/// path names a position if it follows an array.
pub(super) fn values_at<'d>(object: RawObject<'d>, path: &str, found: &mut impl FnMut(RawValue<'d>)) {
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
