//! Calls that find, insert, update, delete, check and inspect documents, or take the locks for that.

use super::checked::CheckedCall;
use crate::error::Result;
use crate::error::{Kind, error};
use crate::values::document::{normalise, raw};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

checked_calls! {
    /// The first document of a shard key, and of an `_id` if one is given, that matches the filter if one is given, as jsonb's bytes; None
    /// if there is none.
    find_document => FindDocument<'a> {
        skey: Cow<'a, [u8]>,
        id: Option<Cow<'a, [u8]>>,
        filter: Option<Cow<'a, str>>,
    } -> Option<Vec<u8>>;

    /// The first documents of a range of an index, packed; None if the shard declines and the executor must search.
    find_by_index_range => FindByIndexRange<'a> {
        /// the lower bounds of the index's first columns, or the only key of each; an empty one is no bound
        lo: Vec<Cow<'a, [u8]>>,
        /// their upper bounds, exclusive, or again the only key
        hi: Vec<Cow<'a, [u8]>>,
        /// the text of an [`IndexRangeSearch`]
        search: Cow<'a, str>,
    } -> Option<Vec<u8>>;

    /// Like [`FindByIndexRange`], for a statement that the shard counts as [`at_keys`](super::sql::at_keys) does.
    find_in_index_range => FindInIndexRange<'a> {
        lo: Vec<Cow<'a, [u8]>>,
        hi: Vec<Cow<'a, [u8]>>,
        search: Cow<'a, str>,
        /// a shard key in each chunk that the statement reads; none: it reads most of the collection
        keys_read: Vec<Cow<'a, [u8]>>,
    } -> Option<Vec<u8>>;

    /// Takes the locks that a write to `[lo, hi)` needs and checks the version under them; None is no bound.
    lock_and_check => LockAndCheck<'a> { lo: Option<Cow<'a, [u8]>>, hi: Option<Cow<'a, [u8]>> } -> bool;

    /// Inserts documents, as [`pack`] packs them; answers how many.
    insert_documents => InsertDocuments<'a> { documents: Cow<'a, [u8]> } -> i64;

    /// Finds the documents, among those packed by [`pack`], whose insert the collection's validator refuses; answers the text of
    /// [`Refused`].
    find_violations => FindViolations<'a> { documents: Cow<'a, [u8]> } -> String;

    /// Updates one document, found as by [`FindDocument`]; answers 0 if there is none, 1 if it stays as it is, 2 if it changed.
    update_document => UpdateDocument<'a> {
        skey: Cow<'a, [u8]>,
        id: Option<Cow<'a, [u8]>>,
        filter: Option<Cow<'a, str>>,
        update: Cow<'a, str>,
        /// paths that must not change
        fixed: Vec<String>,
    } -> i64;

    /// Deletes one document, found as by [`FindDocument`]; answers how many.
    delete_document => DeleteDocument<'a> {
        skey: Cow<'a, [u8]>,
        id: Option<Cow<'a, [u8]>>,
        filter: Option<Cow<'a, str>>,
    } -> i64;

    /// Reads every document of a collection at the shard; answers what is wrong, as JSON.
    inspect_documents => InspectDocuments<'a> {
        /// the text of the shard key
        key: Cow<'a, str>,
        /// the bounds of the shard's ranges: lo, hi, lo, hi …; an empty hi is no bound
        owned: Vec<Cow<'a, [u8]>>,
        /// the most problems that are reported
        most: i32,
    } -> String;
}

impl UpdateDocument<'_> {
    /// The call for each row of a statement, around the SQL of its further arguments. `$1` and `$2` are the token and the version.
    pub fn for_rows(collection: i32, arguments: [&str; 5]) -> String {
        format!("{}({collection}, $1, $2, {})", Self::SIGNATURE.name(), arguments.join(", "))
    }
}

/// Positions of documents that a validator refuses, each with MongoDB's `errInfo`, or None after about [`MAX_REPORTS`] bytes of these.
pub type Refused = Vec<(usize, Option<String>)>;

/// The most bytes of `errInfo` in one answer or reply.
pub const MAX_REPORTS: usize = 1_000_000;

/// Appends a document to those of [`InsertDocuments`]: the encoded shard key and `_id`, and jsonb's bytes, each preceded by its length.
pub fn pack(into: &mut Vec<u8>, parts: [&[u8]; 3]) {
    for part in parts {
        into.extend_from_slice(&u32::try_from(part.len()).expect("shorter than a document may be").to_be_bytes());
        into.extend_from_slice(part);
    }
}

/// Reads packed documents, which are checked.
///
/// # Errors
/// `BadValue` for malformed bytes; those of [`normalise::check_stored`].
pub fn unpack(mut bytes: &[u8]) -> Result<Vec<[&[u8]; 3]>> {
    fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        *bytes = rest;
        Some(part)
    }
    let mut documents = Vec::new();
    while !bytes.is_empty() {
        let document = || Some([part(&mut bytes)?, part(&mut bytes)?, part(&mut bytes)?]);
        let document = { document }().ok_or_else(|| error!(Kind::BadValue, "malformed packed documents: truncated"))?;
        raw::validate(document[2])?;
        normalise::check_stored(document[2])?;
        documents.push(document);
    }
    Ok(documents)
}

/// Stands for the shard key's own index in the place of an index's number.
pub const SHARD_KEY: i32 = 0;

/// How a range of an index is searched, and what is returned: a record of named fields, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IndexRangeSearch {
    /// the number of a secondary index with a b-tree of all documents except those that have entries, or [`SHARD_KEY`]
    pub index: i32,
    /// true if the index is read backward
    pub backward: bool,
    /// the most documents that are returned: the first ones
    pub most: usize,
    /// true if all documents are wanted: the shard declines if there are more than `most`
    pub all: bool,
    /// true if the index is in the order of the sort
    pub in_order: bool,
    /// true if the answer has the keys, too
    pub keyed: bool,
    /// the text of the sort by whose keys the documents are returned; None: they are in the order of the index, without keys or with the
    /// shard key as the key
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// the projection's text
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection: Option<String>,
}

impl IndexRangeSearch {
    /// The record as it is sent.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("numbers, flags and texts are valid JSON")
    }

    /// Reads such a record. A missing, unknown or malformed field is an error: a shard must not ignore what a later router asks for.
    /// Errors: `BadValue`, naming the field.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| error!(Kind::BadValue, "find_by_index_range: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_arrives_as_it_was_sent() {
        let plain = IndexRangeSearch {
            index: 7,
            backward: true,
            most: 20,
            all: false,
            in_order: true,
            keyed: false,
            sort: None,
            projection: None,
        };
        let full =
            IndexRangeSearch { sort: Some(r#"{"a": "\""}"#.into()), projection: Some("{}".into()), ..plain.clone() };
        for search in [&plain, &full] {
            assert_eq!(IndexRangeSearch::parse(&search.to_text()).unwrap(), *search);
        }
        let text = plain.to_text();
        for wrong in [
            text.replace("\"keyed\":false", "\"keyed\":0"),
            text.replace("\"keyed\":false,", "").replace(",\"keyed\":false", ""),
            text.replace("{", "{\"later\":1,"),
            text.replace("\"most\":20", "\"most\":-1"),
            text.replace("{", "{\"sort\":1,"),
            "[]".into(),
        ] {
            assert!(IndexRangeSearch::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
