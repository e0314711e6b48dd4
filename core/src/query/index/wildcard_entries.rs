//! The entries of wildcard indexes: all paths of a document with their values.
//!
//! All keys are entries: the path, a zero byte, a [`Passage`] and the encoding of a value, which is truncated if it is too long. A
//! path that is too long is represented by its beginning and its hash.
//!
//! In a compound index the encodings of the fields before the wildcard come first, and those after it last; a key ends at a truncated
//! value. No array may be on their paths. Every document also has one entry without path and value, for searches without a path.
//!
//! RULE: a document has an entry for every value that a filter tests at one of the index's paths, except an array itself, a document
//! with fields and a missing value. The index does not serve a test that such values may pass, nor one whose path names a
//! position of an array.

use super::composed::Composed;
use super::keys::{Fields, IndexKeys};
use super::wanted::MAX_CANDIDATES;
use super::wildcard::{MAX_PATH, Wildcard};
use crate::error::{Error, Result, error};
use crate::query::filter::Part;
use crate::query::sort::EMPTY_ARRAY;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::encode::{encoded_under, hash_encoded, prefix_successor};
use crate::values::key::{KeyRange, KeyRanges};
use crate::values::order::Class;
use crate::values::path;

/// The length of the beginning of a path that is too long; its hash follows.
const SHORTENED: usize = MAX_PATH - size_of::<i64>();

/// The kind of the route to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    /// the entry has no path and no value: it represents the document
    None = 0,
    /// no array on the path: this is its only value
    Straight = 1,
    /// an array on the path or at its end
    Array = 2,
}

impl Wildcard {
    /// The document's entries, sorted, each once.
    ///
    /// # Errors
    /// `Location7246301` for an array at a field beside the wildcard.
    pub(super) fn entries(&self, index: &IndexKeys, document: RawObject<'_>) -> Result<Vec<Vec<u8>>> {
        let (front, behind) = index.around_wildcard();
        let (front, behind) = (index.beside(front, document)?, index.beside(behind, document)?);
        if front.is_cut {
            return Ok(vec![front.key]);
        }
        let (path, entries) = (String::new(), Vec::new());
        let mut walk = Walk { wildcard: self, index, front: &front.key, behind: &behind.key, path, entries };
        if index.fields.len() > 1 {
            walk.push_key(Passage::None, &[]);
        }
        walk.object(document, true, Passage::Straight);
        let mut entries = walk.entries;
        entries.sort_unstable();
        entries.dedup();
        Ok(entries)
    }

    /// The entries that a search for a filter's documents visits: those of the path that the filter narrows most. A search of a compound
    /// index whose other fields are narrowed may visit the documents' entries without a path instead. Conditions on the paths in `given`
    /// are ignored.
    pub(super) fn wanted(&self, index: &IndexKeys, filter: Part<'_>, given: &[&str]) -> Composed {
        let (front, behind) = index.around_wildcard();
        let mut head = Composed::of_all();
        let reached = index.beside_wanted(&mut head, front, filter);
        if !reached {
            return if says_more(&front[..head.depth], given) { head } else { Composed::of_all() };
        }
        let served = |path: &str| {
            let named = path.split('.').any(|part| path::array_index(part).is_some());
            !named && !given.contains(&path) && self.holds(path)
        };
        let with = |path: &str, passages: &[(Passage, &KeyRanges)]| {
            let composed = passages.iter().map(|(passage, ranges)| {
                let mut composed = head.clone();
                composed.append(&prefix(path, *passage));
                if composed.demand(index, ranges) {
                    index.beside_wanted(&mut composed, behind, filter);
                }
                composed
            });
            composed.reduce(|one, other| one.or(&other, index)).unwrap_or_else(Composed::of_all)
        };
        let mut found = self.paths_narrowed(index, filter, &head, &served, &with);
        found.extend(elements_narrowed(index, filter, &served, &with));
        if index.fields.len() > 1 && found.is_empty() {
            let mut documents = head.clone();
            documents.append(&prefix("", Passage::None));
            index.beside_wanted(&mut documents, behind, filter);
            let said = [front, &behind[..documents.depth - front.len()]].concat();
            if says_more(&said, given) {
                found.push((Rank::Exists, documents));
            }
        }
        let best = found.into_iter().min_by_key(|(rank, composed)| (*rank, composed.ranges(index).as_slice().len()));
        best.map_or_else(Composed::of_all, |(_, composed)| composed)
    }

    /// The entries of each path that the filter narrows. `with` composes them for ranges of a path's values.
    fn paths_narrowed(
        &self,
        index: &IndexKeys,
        filter: Part<'_>,
        head: &Composed,
        served: &dyn Fn(&str) -> bool,
        with: &Compose<'_>,
    ) -> Vec<(Rank, Composed)> {
        let narrowed = |path: &str| {
            let straight = index.without_array(filter, path);
            let one = filter.ranges_of_one(path, index.collation.as_deref());
            if has_entries(&straight) && has_entries(&one) {
                let passages = [(Passage::Straight, &straight), (Passage::Array, &one)];
                let rank = if straight.are_points() && one.are_points() { Rank::Points } else { Rank::Ranges };
                return Some((rank, with(path, &passages)));
            }
            let exists = filter.demands_existence(path) && self.holds_all_below(path) && path.len() < SHORTENED;
            let starting = |end: char| head.starting(format!("{path}{end}").as_bytes());
            exists.then(|| (Rank::Exists, starting('\0').or(&starting('.'), index)))
        };
        let paths = filter.paths().into_iter().filter(|path| served(path));
        paths.take(MAX_CANDIDATES).filter_map(narrowed).collect()
    }
}

/// Composes the entries of a path, for the ranges of its values on each passage.
type Compose<'c> = dyn Fn(&str, &[(Passage, &KeyRanges)]) -> Composed + 'c;

/// The entries of each path in elements of arrays that `$elemMatch` narrows.
fn elements_narrowed(
    index: &IndexKeys,
    filter: Part<'_>,
    served: &dyn Fn(&str) -> bool,
    with: &Compose<'_>,
) -> Vec<(Rank, Composed)> {
    let mut found = Vec::new();
    for (prefix, part) in filter.element_parts().into_iter().take(MAX_CANDIDATES) {
        for inner in part.paths().into_iter().take(MAX_CANDIDATES) {
            let path = format!("{prefix}.{inner}");
            let one = part.ranges_of_one(inner, index.collation.as_deref());
            if served(&path) && has_entries(&one) {
                let rank = if one.are_points() { Rank::Points } else { Rank::Ranges };
                found.push((rank, with(&path, &[(Passage::Array, &one)])));
            }
        }
    }
    found
}

/// How far a filter narrows a path; the best rank first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Points,
    Ranges,
    Exists,
}

/// A walk through a whole document.
struct Walk<'w> {
    wildcard: &'w Wildcard,
    index: &'w IndexKeys,
    /// the bytes before each path; `behind`: those after each value
    front: &'w [u8],
    behind: &'w [u8],
    path: String,
    entries: Vec<Vec<u8>>,
}

impl Walk<'_> {
    fn object(&mut self, object: RawObject<'_>, outermost: bool, passage: Passage) {
        let outer = self.path.len();
        for (name, value) in object.iter() {
            if !outermost {
                self.path.push('.');
            }
            self.path.push_str(name);
            if self.wildcard.enters(&self.path) {
                self.value(value, passage);
            }
            self.path.truncate(outer);
        }
    }

    fn value(&mut self, value: RawValue<'_>, passage: Passage) {
        match value {
            RawValue::Array(array) if array.is_empty() => self.push(Passage::Array, &[EMPTY_ARRAY]),
            RawValue::Array(array) => array.iter().for_each(|element| match element {
                RawValue::Array(_) => self.push(Passage::Array, &self.index.encoded(element)),
                element => self.single(element, Passage::Array),
            }),
            value => self.single(value, passage),
        }
    }

    fn single(&mut self, value: RawValue<'_>, passage: Passage) {
        match path::embedded(value) {
            Some(object) if !object.is_empty() => self.object(object, false, passage),
            _ => self.push(passage, &self.index.encoded(value)),
        }
    }

    fn push(&mut self, passage: Passage, encoding: &[u8]) {
        if self.wildcard.holds(&self.path) {
            self.push_key(passage, encoding);
        }
    }

    fn push_key(&mut self, passage: Passage, encoding: &[u8]) {
        let mut entry = [self.front, &prefix(&self.path, passage)].concat();
        if self.index.push_column(encoding, &mut entry) {
            entry.extend_from_slice(self.behind);
        }
        self.entries.push(entry);
    }
}

/// The part of a key for the fields beside a wildcard.
struct Beside {
    key: Vec<u8>,
    /// true if a value is truncated, which ends the key
    is_cut: bool,
}

impl IndexKeys {
    fn beside(&self, fields: &Fields, document: RawObject<'_>) -> Result<Beside> {
        let mut beside = Beside { key: Vec::new(), is_cut: false };
        for (path, _) in fields {
            let value = match path::resolve(document, path) {
                Some(RawValue::Array(_)) => return Err(refuse_array(path)),
                value => value.unwrap_or(RawValue::Null),
            };
            if !beside.is_cut {
                beside.is_cut = !self.push_column(&self.encoded(value), &mut beside.key);
            }
        }
        Ok(beside)
    }

    /// Adds the filter's demands on the fields; true if demands on the next column can be added.
    fn beside_wanted(&self, composed: &mut Composed, fields: &Fields, filter: Part<'_>) -> bool {
        fields.iter().all(|(path, _)| composed.demand(self, &self.without_array(filter, path)))
    }
}

fn refuse_array(path: &str) -> Error {
    error!(7246301, "a compound wildcard index does not take an array beside the wildcard. Found one at path: {path}")
}

/// True if one of the fields is not among the paths in `given`.
fn says_more(fields: &Fields, given: &[&str]) -> bool {
    fields.iter().any(|(path, _)| !given.contains(&path.as_str()))
}

/// The bytes with which the entries of a path begin, after the fields before the wildcard.
fn prefix(path: &str, passage: Passage) -> Vec<u8> {
    let mut prefix = path.as_bytes().to_vec();
    if path.len() > MAX_PATH {
        prefix.truncate(SHORTENED);
        prefix.extend(hash_encoded(path.as_bytes()).to_be_bytes());
    }
    prefix.extend([0, passage as u8]);
    prefix
}

/// True if all values in the ranges have entries: the ranges contain neither missing values nor documents with fields.
fn has_entries(ranges: &KeyRanges) -> bool {
    let object = [Class::Object as u8];
    let null = encoded_under(&Value::Null, None);
    let none = encoded_under(&Value::fixed_object(Vec::new()), None);
    let objects = KeyRanges::new(vec![KeyRange { lo: object.to_vec(), hi: prefix_successor(&object) }]);
    let among = ranges.intersect(&objects);
    !ranges.contains(&null) && (among.is_none() || among == KeyRanges::new(vec![KeyRange::point(&none)]))
}
