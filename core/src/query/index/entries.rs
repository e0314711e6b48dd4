//! The entries of a document with arrays on the index's paths: one key for each element, as in MongoDB.
//!
//! A key is the concatenation of the columns' encodings, in the index's order, all ascending; it ends after a value that is truncated. It
//! begins with a [`Tag`], which tells on which paths the array is. On the other paths there is one value, which must satisfy all
//! conditions. An element of an array determines the values of all columns whose paths lead into the array, so an array yields as many keys
//! as it has elements. Two parallel arrays are refused.
//!
//! RULE: for each column, the keys contain every value that a filter tests at the path ([`path::any`](crate::values::path::any)),
//! except an array itself; a document without a value at the path has null. Columns without a common array have all combinations
//! of their values.

use super::keys::IndexKeys;
use crate::error::{Error, Kind, Result, error};
use crate::query::sort::EMPTY_ARRAY;
use crate::values::document::raw::{RawArray, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::encode::encoded_under;
use crate::values::path;

/// The progress of a column along its path.
#[derive(Clone)]
enum Column<'a> {
    /// at the end: the encoded value
    Value(Vec<u8>),
    /// at an array, with the rest of the path
    Array(RawArray<'a>, Option<&'a str>),
}

impl<'a> Column<'a> {
    fn null() -> Self {
        Column::Value(encoded_under(&Value::Null, None))
    }

    /// Follows the path through embedded documents.
    fn walk(index: &IndexKeys, value: RawValue<'a>, rest: Option<&'a str>) -> Self {
        match (value, rest) {
            (RawValue::Array(array), rest) => Column::Array(array, rest),
            (value, None) => Column::Value(index.encoded(value)),
            (value, Some(rest)) => {
                path::embedded(value).map_or_else(Column::null, |inner| Column::enter(index, inner, rest))
            }
        }
    }

    fn enter(index: &IndexKeys, object: RawObject<'a>, path: &'a str) -> Self {
        let (head, rest) = path::split(path);
        object.get(head).map_or_else(Column::null, |value| Column::walk(index, value, rest))
    }

    /// The encoding. The caller has expanded all arrays.
    fn value(&self) -> &[u8] {
        let Column::Value(value) = self else { unreachable!("all arrays are expanded") };
        value
    }

    /// The column's progress inside an element of an array; None if the path does not lead into the element.
    fn element(index: &IndexKeys, element: RawValue<'a>, rest: Option<&'a str>) -> Option<Self> {
        match (element, rest) {
            (element, None) => Some(Column::Value(index.encoded(element))),
            // `$elemMatch` treats an array as a document whose names are positions. Such a document lacks the field, hence null. A search
            // does not use paths in `$elemMatch` that name positions.
            (RawValue::Array(_), Some(_)) => Some(Column::null()),
            (element, Some(rest)) => path::embedded(element).map(|inner| Column::enter(index, inner, rest)),
        }
    }
}

/// The beginning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// the document has a value that is too long, and no array on the index's paths
    NoArray,
    /// the document has an array on the paths that begin with the same name as this column's path; the column is the first of these
    ArrayAt(usize),
}

impl Tag {
    /// The tag as a byte, below [`IN_ENTRIES`](super::IN_ENTRIES).
    pub(super) fn byte(self) -> u8 {
        match self {
            Tag::NoArray => 0,
            Tag::ArrayAt(column) => u8::try_from(column + 1).unwrap_or(u8::MAX - 1),
        }
    }
}

impl IndexKeys {
    /// The first column whose path begins with this name; 0 if there is none.
    pub(super) fn first_with_head(&self, head: &str) -> usize {
        self.fields.iter().position(|(path, _)| path::split(path).0 == head).unwrap_or(0)
    }

    fn tag(&self, document: RawObject<'_>) -> Tag {
        let leads = |path: &str| matches!(path::resolve(document, path), Some(RawValue::Array(_)));
        match self.fields.iter().find(|(path, _)| leads(path)) {
            None => Tag::NoArray,
            Some((path, _)) => Tag::ArrayAt(self.first_with_head(path::split(path).0)),
        }
    }

    /// The document's entries, sorted, each once.
    ///
    /// # Errors
    /// `CannotIndexParallelArrays`.
    pub fn entries(&self, document: RawObject<'_>) -> Result<Vec<Vec<u8>>> {
        if let Some(wildcard) = &self.wildcard {
            return wildcard.entries(self, document);
        }
        let mut entries = Vec::new();
        self.expand(self.columns(document), &|columns| self.joined(columns), &mut entries)?;
        let tag = self.tag(document).byte();
        entries.iter_mut().for_each(|entry| entry.insert(0, tag));
        entries.sort_unstable();
        entries.dedup();
        Ok(entries)
    }

    fn columns<'a>(&'a self, document: RawObject<'a>) -> Vec<Column<'a>> {
        self.fields.iter().map(|(path, _)| Column::enter(self, document, path)).collect()
    }

    /// The document's keys, each with its fields' untruncated encodings. The index is not a wildcard index.
    ///
    /// # Errors
    /// `CannotIndexParallelArrays`.
    pub(super) fn whole_keys(&self, document: RawObject<'_>) -> Result<Vec<Vec<Vec<u8>>>> {
        let mut keys = Vec::new();
        let fields = |columns: &[Column<'_>]| columns.iter().map(|column| column.value().to_vec()).collect();
        self.expand(self.columns(document), &fields, &mut keys)?;
        Ok(keys)
    }

    /// Expands the first array, then recursively the others, and adds the key that `join` makes of each combination of columns.
    fn expand<K>(
        &self,
        columns: Vec<Column<'_>>,
        join: &dyn Fn(&[Column<'_>]) -> K,
        entries: &mut Vec<K>,
    ) -> Result<()> {
        let Some((first, array)) = columns.iter().enumerate().find_map(|(at, column)| match column {
            Column::Array(array, _) => Some((at, *array)),
            Column::Value(_) => None,
        }) else {
            entries.push(join(&columns));
            return Ok(());
        };
        let mut together = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            match column {
                Column::Array(other, rest) if std::ptr::eq(other.bytes(), array.bytes()) => together.push((at, *rest)),
                Column::Array(..) => return Err(self.parallel(first, at)),
                Column::Value(_) => {}
            }
        }
        let with = |values: &mut dyn FnMut(Option<&_>) -> _| {
            let mut next = columns.clone();
            for (at, rest) in &together {
                next[*at] = values(rest.as_ref());
            }
            next
        };
        if array.is_empty() {
            let empty = |rest: Option<&&str>| rest.map_or(Column::Value(vec![EMPTY_ARRAY]), |_| Column::null());
            return self.expand(with(&mut |rest| empty(rest)), join, entries);
        }
        let before = entries.len();
        for element in array.iter() {
            let mut enters = false;
            let next = with(&mut |rest: Option<&&str>| {
                let column = Column::element(self, element, rest.copied());
                enters |= column.is_some();
                column.unwrap_or_else(Column::null)
            });
            if enters {
                self.expand(next, join, entries)?;
            }
        }
        for position in positions_named(together.iter().filter_map(|(_, rest)| *rest)) {
            let Some(element) = array.get(position) else { continue };
            let next = with(&mut |rest: Option<&&str>| match rest.map(|rest| path::split(rest)) {
                Some((head, rest)) if path::array_index(head) == Some(position) => Column::walk(self, element, rest),
                _ => Column::null(),
            });
            self.expand(next, join, entries)?;
        }
        if entries.len() == before {
            return self.expand(with(&mut |_| Column::null()), join, entries);
        }
        Ok(())
    }

    fn joined(&self, columns: &[Column<'_>]) -> Vec<u8> {
        let mut key = Vec::new();
        let _all_are_whole = columns.iter().all(|column| self.push_column(column.value(), &mut key));
        key
    }

    /// Appends a column's encoding to an entry; false if it is truncated, which ends the entry.
    pub(super) fn push_column(&self, encoding: &[u8], entry: &mut Vec<u8>) -> bool {
        let limit = self.column_limit();
        entry.extend_from_slice(&encoding[..encoding.len().min(limit)]);
        encoding.len() < limit
    }

    fn parallel(&self, one: usize, other: usize) -> Error {
        let (one, other) = (&self.fields[one].0, &self.fields[other].0);
        error!(Kind::CannotIndexParallelArrays, "cannot index parallel arrays [{other}] [{one}]")
            .with_hint("At most one of the fields of a compound index may hold an array in one document.")
    }
}

/// The array positions that the paths begin with, ascending, each once.
fn positions_named<'p>(paths: impl Iterator<Item = &'p str>) -> Vec<usize> {
    let mut positions: Vec<usize> = paths.filter_map(|rest| path::array_index(path::split(rest).0)).collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::document::ext_json::from_json;
    use crate::values::document::{raw, write};
    use crate::values::key::encode::decode;
    use serde_json::{Value as Json, json};

    fn entries(keys: Json, doc: Json) -> Result<Vec<Vec<String>>> {
        let index = IndexKeys::parse(&keys).unwrap();
        let stored = write::value(&from_json(&doc).unwrap()).unwrap();
        let entries = index.entries(raw::document(&stored).unwrap())?;
        Ok(entries.iter().map(|entry| shown(&entry[1..])).collect())
    }

    fn shown(mut entry: &[u8]) -> Vec<String> {
        let mut values = Vec::new();
        while !entry.is_empty() {
            if entry[0] == EMPTY_ARRAY {
                values.push("empty".to_owned());
                entry = &entry[1..];
                continue;
            }
            let (value, rest) = decode(entry).unwrap();
            values.push(crate::values::document::ext_json::to_json(&value).to_string());
            entry = rest;
        }
        values
    }

    #[test]
    fn every_element_has_its_key_with_the_other_columns() {
        assert_eq!(
            entries(json!({"to": 1, "sent": -1}), json!({"to": ["b", "a", "b"], "sent": 7})).unwrap(),
            [["\"a\"", "7"], ["\"b\"", "7"]]
        );
        assert_eq!(entries(json!({"to": 1}), json!({"to": []})).unwrap(), [["empty"]]);
        assert_eq!(entries(json!({"to": 1}), json!({"to": [[1, 2], 3]})).unwrap(), [["3"], ["[1,2]"]]);
    }

    #[test]
    fn columns_through_one_array_go_together() {
        let doc = json!({"a": [{"b": 1, "c": 2}, {"b": 3}, 4, [5]]});
        let expected = [["null", "null"], ["1", "2"], ["3", "null"]];
        assert_eq!(entries(json!({"a.b": 1, "a.c": 1}), doc).unwrap(), expected);
        assert_eq!(entries(json!({"a.b": 1}), json!({"a": [1, 2]})).unwrap(), [["null"]]);
    }

    #[test]
    fn positions_may_be_named() {
        let doc = json!({"a": [{"b": 1}, {"b": 2}, {"0": {"b": 3}}]});
        assert_eq!(entries(json!({"a.0.b": 1}), doc).unwrap(), [["null"], ["1"], ["3"]]);
    }

    #[test]
    fn arrays_side_by_side_are_refused() {
        for doc in [json!({"a": [1], "b": [2]}), json!({"a": [], "b": []})] {
            let error = entries(json!({"a": 1, "b": 1}), doc).unwrap_err();
            assert_eq!(error.kind, Kind::CannotIndexParallelArrays);
            assert!(error.message.ends_with("parallel arrays [b] [a]"), "{}", error.message);
        }
        assert!(entries(json!({"a.b": 1, "a.c": 1}), json!({"a": [{"b": [1], "c": [2]}]})).is_err());
        let apart = json!({"a": [{"b": [1]}, {"c": [2]}]});
        assert_eq!(entries(json!({"a.b": 1, "a.c": 1}), apart).unwrap(), [["null", "2"], ["1", "null"]]);
    }
}
