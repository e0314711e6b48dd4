//! Sort specifications, and the sort keys of documents.
//!
//! The key is the concatenation of its fields' encodings, which are prefix-free: the first difference lies inside one field. Inverting
//! every byte of a field reverses its order.

use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::direction::is_descending;
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
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
    /// the collation of strings; None: they are compared bytewise
    pub collator: Option<Arc<Collator>>,
}

/// MongoDB's limit on compound keys.
const MAX_FIELDS: usize = 32;

/// The encoding of an empty array at the end of a path: between MinKey and null.
pub(crate) const EMPTY_ARRAY: u8 = 0x18;

impl Sort {
    /// Parses a specification such as `{"sent": -1}` or `[["sent", -1]]`; `{}` does not sort.
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

    /// Like [`Sort::parse`], under a statement's collation.
    ///
    /// # Errors
    /// Those of [`Sort::parse`].
    pub fn parse_in(json: &Json, environment: &Environment) -> Result<Sort> {
        let Some(specification) = ext_json::ordered(json) else {
            return Err(
                error!(Kind::TypeMismatch, "the sort specification must be an object").with_hint(ext_json::ORDER_HINT)
            );
        };
        ensure!(specification.len() <= MAX_FIELDS, 13103, "too many compound keys: at most {MAX_FIELDS}");
        let fields = specification.iter().map(|(path, direction)| {
            ensure!(path != "$natural", Kind::NotImplemented, "sorting by $natural is not supported");
            path::check_field_path(path)?;
            Ok((path.clone(), is_descending(path, direction)?))
        });
        Ok(Sort { fields: fields.collect::<Result<_>>()?, collator: environment.collator().cloned() })
    }

    /// The document's sort key. The bytewise order of keys is the order of the sort, as the bytes of descending fields are inverted. An
    /// array sorts by its least element in ascending order, and by its greatest element in descending order; several fields that lead into
    /// one array have the values of the same element, the one that gives the least key. An empty array sorts below null. A missing field
    /// counts as null.
    ///
    /// # Errors
    /// `BadValue` if two fields lead into different arrays, or if nested arrays yield more than 100,000 keys.
    pub fn key_of(&self, document: RawObject<'_>) -> Result<Vec<u8>> {
        let mut key = Vec::with_capacity(16 * self.fields.len());
        self.append_key_of(document, &mut key)?;
        Ok(key)
    }

    /// Like [`key_of`](Self::key_of), but appends the key to a buffer.
    ///
    /// # Errors
    /// Those of [`key_of`](Self::key_of).
    pub fn append_key_of(&self, document: RawObject<'_>, key: &mut Vec<u8>) -> Result<()> {
        let start = key.len();
        let mut arrays = 0;
        for (path, descending) in &self.fields {
            let start = key.len();
            arrays += usize::from(self.append(document, path, *descending, key));
            if *descending {
                invert(&mut key[start..]);
            }
        }
        // If one field leads into an array, its best value is in the least key. If several do, their values must be of the same element.
        if arrays > 1 {
            key.truncate(start);
            key.extend(ArrayKeys::least(self, document)?.bytes);
        }
        Ok(())
    }

    /// The part of the sort key for one field, as an index stores it: a descending field is not inverted. Empty if there is no such
    /// field.
    ///
    /// # Errors
    /// Those of [`key_of`](Self::key_of).
    pub fn field_key_of(&self, document: RawObject<'_>, field: usize) -> Result<Vec<u8>> {
        let Some((path, descending)) = self.fields.get(field) else { return Ok(Vec::new()) };
        let mut key = Vec::new();
        let is_array = self.append(document, path, *descending, &mut key);
        if is_array && self.fields.len() > 1 {
            let least = ArrayKeys::least(self, document)?;
            let start = field.checked_sub(1).map_or(0, |before| least.ends[before]);
            key = least.bytes[start..least.ends[field]].to_vec();
            if *descending {
                invert(&mut key);
            }
        }
        Ok(key)
    }

    /// Appends the best value of a field; true if there is an array on its path.
    fn append(&self, document: RawObject<'_>, path: &str, descending: bool, key: &mut Vec<u8>) -> bool {
        let collator = self.collator.as_deref();
        let mut field = Field { start: key.len(), end: None, descending, collator, key };
        visit(document, path, &mut |candidate| field.offer(candidate))
    }
}

fn invert(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

/// Where a field's path leads in a document.
#[derive(Clone, Copy)]
enum Position<'a, 'p> {
    /// the value by which the document sorts
    End(Candidate<'a>),
    /// an array, with the path below it; None if the path ends there
    Array(RawArray<'a>, Option<&'p str>),
}

/// A sort key.
#[derive(Default)]
struct FieldKeys {
    bytes: Vec<u8>,
    /// where the part of each field ends in `bytes`
    ends: Vec<usize>,
}

/// The sort keys of a document with arrays: one for each element of an array into which fields lead.
struct ArrayKeys<'s> {
    sort: &'s Sort,
    least: Option<FieldKeys>,
    count: usize,
}

/// The largest number of keys of a document. Nested arrays have a key for each combination of their elements.
const MAX_KEYS: usize = 100_000;

impl<'s> ArrayKeys<'s> {
    fn least(sort: &'s Sort, document: RawObject<'_>) -> Result<FieldKeys> {
        let mut keys = Self { sort, least: None, count: 0 };
        let positions: Vec<_> = sort.fields.iter().map(|(path, _)| position_in(document, path)).collect();
        keys.expand(&positions)?;
        Ok(keys.least.unwrap_or_default())
    }

    /// Offers the key of each combination of elements. Arrays in an element of an array are entered in turn.
    fn expand<'a>(&mut self, positions: &[Position<'a, 's>]) -> Result<()> {
        budget::step();
        let mut arrays = positions.iter().filter_map(|position| match position {
            Position::Array(array, _) => Some(*array),
            Position::End(_) => None,
        });
        let Some(array) = arrays.next() else {
            self.count += 1;
            ensure!(self.count <= MAX_KEYS, Kind::BadValue, "a document has more than {MAX_KEYS} sort keys");
            self.offer(positions);
            return Ok(());
        };
        if arrays.any(|other| !other.is_same(array)) {
            bail!(Kind::BadValue, "cannot sort with keys that are parallel arrays");
        }
        // A path that names an element by its position has that element in all keys. Only other paths require a key for each element.
        let named = |rest: &Option<&str>| rest.is_some_and(|rest| element_at(array, rest).is_some());
        let is_expanded = positions.iter().any(|position| matches!(position, Position::Array(_, rest) if !named(rest)));
        let elements: &mut dyn Iterator<Item = Option<RawValue<'a>>> = match is_expanded && !array.is_empty() {
            true => &mut array.iter().map(Some),
            false => &mut std::iter::once(None),
        };
        for element in elements {
            let below = positions.iter().map(|position| match *position {
                Position::Array(array, rest) => position_below(array, rest, element),
                end @ Position::End(_) => end,
            });
            self.expand(&below.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn offer(&mut self, positions: &[Position<'_, '_>]) {
        let mut keys = FieldKeys::default();
        for (position, (_, descending)) in positions.iter().zip(&self.sort.fields) {
            let start = keys.bytes.len();
            if let Position::End(candidate) = position {
                candidate.encode(self.sort.collator.as_deref(), &mut keys.bytes);
            }
            if *descending {
                invert(&mut keys.bytes[start..]);
            }
            keys.ends.push(keys.bytes.len());
        }
        if self.least.as_ref().is_none_or(|least| keys.bytes < least.bytes) {
            self.least = Some(keys);
        }
    }
}

/// Follows a path in an object as far as its end or the first array.
fn position_in<'a, 'p>(object: RawObject<'a>, path: &'p str) -> Position<'a, 'p> {
    let (head, rest) = path::split(path);
    object.get(head).map_or(Position::End(Candidate::Missing), |value| position_of(value, rest))
}

fn position_of<'a, 'p>(value: RawValue<'a>, rest: Option<&'p str>) -> Position<'a, 'p> {
    match (value, rest) {
        (RawValue::Array(array), rest) => Position::Array(array, rest),
        (value, None) => Position::End(Candidate::Value(value)),
        (value, Some(rest)) => {
            path::embedded(value).map_or(Position::End(Candidate::Missing), |inner| position_in(inner, rest))
        }
    }
}

/// The array element that a path begins with by its position, and the rest of the path; None if there is no such element.
fn element_at<'a, 'p>(array: RawArray<'a>, path: &'p str) -> Option<(RawValue<'a>, Option<&'p str>)> {
    let (head, rest) = path::split(path);
    let element = path::array_index(head).and_then(|index| array.get(index))?;
    Some((element, rest))
}

/// Follows the path below an array: into the element that the path names by its position, or else into `element`. If `element` is None then,
/// the array is empty.
fn position_below<'a, 'p>(
    array: RawArray<'a>,
    path: Option<&'p str>,
    element: Option<RawValue<'a>>,
) -> Position<'a, 'p> {
    if let Some((named, rest)) = path.and_then(|path| element_at(array, path)) {
        return position_of(named, rest);
    }
    match (element, path) {
        (Some(element), Some(path)) => {
            path::embedded(element).map_or(Position::End(Candidate::Missing), |inner| position_in(inner, path))
        }
        (Some(element), None) => Position::End(Candidate::Value(element)),
        (None, Some(_)) => Position::End(Candidate::Missing),
        (None, None) => Position::End(Candidate::EmptyArray),
    }
}

/// A value by which a document may sort in one field.
#[derive(Clone, Copy)]
enum Candidate<'a> {
    Missing,
    EmptyArray,
    Value(RawValue<'a>),
}

impl Candidate<'_> {
    fn encode(self, collator: Option<&Collator>, key: &mut Vec<u8>) {
        match self {
            Candidate::Missing => encode_value(&Value::Null, key),
            Candidate::EmptyArray => key.push(EMPTY_ARRAY),
            Candidate::Value(value) => encode_under(&Element::of(value), collator, key),
        }
    }
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
        candidate.encode(self.collator, self.key);
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

/// Calls `offer` with each value at a path, and at least once; true if there is an array on the path. The values are those of MongoDB's
/// index keys: for an array at the end of the path, its elements; for an array on the path, the values in each element, or in the one that
/// a numeric component names.
fn visit<'a>(object: RawObject<'a>, path: &str, offer: &mut impl FnMut(Candidate<'a>)) -> bool {
    visit_at(position_in(object, path), offer)
}

fn visit_at<'a>(position: Position<'a, '_>, offer: &mut impl FnMut(Candidate<'a>)) -> bool {
    let (array, path) = match position {
        Position::End(candidate) => {
            offer(candidate);
            return false;
        }
        Position::Array(array, path) => (array, path),
    };
    if array.is_empty() || path.is_some_and(|path| element_at(array, path).is_some()) {
        visit_at(position_below(array, path, None), offer);
    } else {
        array.iter().for_each(|element| {
            visit_at(position_below(array, path, Some(element)), offer);
        });
    }
    true
}
