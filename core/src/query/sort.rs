//! Sort specifications, and the sort keys of documents.
//!
//! The key is the concatenation of its fields' encodings, which are prefix-free: the first difference lies inside one field. Inverting
//! every byte of a field reverses its order.

use crate::error::{Kind, Result, bail, ensure};
use crate::query::direction::is_descending;
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::raw::{RawArray, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::encode::{encode_under, encode_value};
use crate::values::path;
use serde_json::Value as Json;
use std::sync::Arc;

/// A parsed sort specification.
#[derive(Clone, Debug, Default)]
pub struct Sort {
    /// dotted path, and true for descending
    pub fields: Vec<(String, bool)>,
    /// how strings compare; None for bytewise
    pub collator: Option<Arc<Collator>>,
}

/// MongoDB's limit on compound keys.
const MAX_FIELDS: usize = 32;

/// The encoding of an empty array at the end of a path: between MinKey and null.
pub(crate) const EMPTY_ARRAY: u8 = 0x18;

impl Sort {
    /// Parses a specification such as `{"sent": -1}`; `{}` does not sort.
    ///
    /// # Errors
    /// `Location15974` for a direction that is not a number, `Location15975` for one other than 1 and -1, `Location17312` for a
    /// document, `Location31138` for unknown metadata, `FailedToParse` for more than `$meta`, `Location13103` for more than 32
    /// fields, those of field paths, `NotImplemented` for `{"$meta": …}` and `$natural`.
    pub fn parse(json: &Json) -> Result<Sort> {
        Sort::parse_in(json, &Environment::default())
    }

    /// Reads a sort that a router has sent, with its environment.
    ///
    /// # Errors
    /// Those of [`Sort::parse`] and [`Environment::parse`].
    pub fn read(json: &Json) -> Result<Sort> {
        let (environment, inner) = envelope::unwrap(json)?;
        Sort::parse_in(inner, &environment)
    }

    /// The specification, without the collation.
    pub fn to_json(&self) -> Json {
        let direction = |down: bool| Json::from(if down { -1 } else { 1 });
        Json::Object(self.fields.iter().map(|(path, down)| (path.clone(), direction(*down))).collect())
    }

    /// As [`Sort::parse`], under a statement's collation.
    ///
    /// # Errors
    /// Those of [`Sort::parse`].
    pub fn parse_in(json: &Json, environment: &Environment) -> Result<Sort> {
        let Json::Object(specification) = json else {
            bail!(Kind::TypeMismatch, "the sort specification must be an object")
        };
        ensure!(specification.len() <= MAX_FIELDS, 13103, "too many compound keys: at most {MAX_FIELDS}");
        let fields = specification.iter().map(|(path, direction)| {
            ensure!(path != "$natural", Kind::NotImplemented, "sorting by $natural is not supported");
            path::check_field_path(path)?;
            Ok((path.clone(), is_descending(path, direction)?))
        });
        Ok(Sort { fields: fields.collect::<Result<_>>()?, collator: environment.collator().cloned() })
    }

    /// The document's sort key: keys compare bytewise as the documents do. Descending fields are inverted byte by byte. An array
    /// sorts by its least element in ascending order, and by its greatest element in descending order. An empty array sorts below
    /// null. A missing field counts as null.
    pub fn key_of(&self, document: RawObject<'_>) -> Vec<u8> {
        let mut key = Vec::with_capacity(16 * self.fields.len());
        self.append_key_of(document, &mut key);
        key
    }

    /// As [`key_of`](Self::key_of), at the end of a buffer.
    pub fn append_key_of(&self, document: RawObject<'_>, key: &mut Vec<u8>) {
        for (path, descending) in &self.fields {
            let start = key.len();
            self.append(document, path, *descending, key);
            if *descending {
                key[start..].iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
    }

    /// The part of the sort key for one field, as an index stores it: a descending field is not inverted. Empty if there is no such
    /// field.
    pub fn field_key_of(&self, document: RawObject<'_>, field: usize) -> Vec<u8> {
        let mut key = Vec::new();
        if let Some((path, descending)) = self.fields.get(field) {
            self.append(document, path, *descending, &mut key);
        }
        key
    }

    fn append(&self, document: RawObject<'_>, path: &str, descending: bool, key: &mut Vec<u8>) {
        let collator = self.collator.as_deref();
        let mut field = Field { start: key.len(), end: None, descending, collator, key };
        visit(document, path, &mut |candidate| field.offer(candidate));
    }
}

/// A value by which a document may sort in one field.
enum Candidate<'a> {
    Missing,
    EmptyArray,
    Value(RawValue<'a>),
}

/// The field of a key whose value is being chosen: `key[start..end]` is the best candidate so far.
struct Field<'k> {
    key: &'k mut Vec<u8>,
    start: usize,
    end: Option<usize>,
    descending: bool,
    collator: Option<&'k Collator>,
}

impl Field<'_> {
    fn offer(&mut self, candidate: Candidate<'_>) {
        match candidate {
            Candidate::Missing => encode_value(&Value::Null, self.key),
            Candidate::EmptyArray => self.key.push(EMPTY_ARRAY),
            Candidate::Value(value) => encode_under(&Element::of(value), self.collator, self.key),
        }
        let Some(end) = self.end else {
            self.end = Some(self.key.len());
            return;
        };
        let (best, offered) = self.key[self.start..].split_at(end - self.start);
        if if self.descending { offered > best } else { offered < best } {
            self.key.drain(self.start..end);
            self.end = Some(self.key.len());
        } else {
            self.key.truncate(end);
        }
    }
}

/// Calls `offer` with each value at a path, and at least once. The values are those of MongoDB's index keys: of an array at the end
/// of the path its elements; of an array on the path the values in each element, or in the one that a numeric component names.
fn visit<'a>(object: RawObject<'a>, path: &str, offer: &mut impl FnMut(Candidate<'a>)) {
    let (head, rest) = path::split(path);
    match object.get(head) {
        None => offer(Candidate::Missing),
        Some(value) => visit_value(value, rest, offer),
    }
}

fn visit_value<'a>(value: RawValue<'a>, rest: Option<&str>, offer: &mut impl FnMut(Candidate<'a>)) {
    match (value, rest) {
        (RawValue::Array(array), None) if array.is_empty() => offer(Candidate::EmptyArray),
        (RawValue::Array(array), None) => array.iter().for_each(|element| offer(Candidate::Value(element))),
        (RawValue::Array(array), Some(rest)) => visit_array(array, rest, offer),
        (value, None) => offer(Candidate::Value(value)),
        (value, Some(rest)) => match path::embedded(value) {
            Some(inner) => visit(inner, rest, offer),
            None => offer(Candidate::Missing),
        },
    }
}

fn visit_array<'a>(array: RawArray<'a>, path: &str, offer: &mut impl FnMut(Candidate<'a>)) {
    let (head, rest) = path::split(path);
    if let Some(element) = path::array_index(head).and_then(|index| array.get(index)) {
        return visit_value(element, rest, offer);
    }
    if array.is_empty() {
        return offer(Candidate::Missing);
    }
    for element in array.iter() {
        match path::embedded(element) {
            Some(inner) => visit(inner, path, offer),
            None => offer(Candidate::Missing),
        }
    }
}
