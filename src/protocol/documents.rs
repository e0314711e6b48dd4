//! Calls that find, insert, update, delete and inspect documents, or lock for that.

use crate::pg::datum::json;
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use serde_json::{Value as Json, json};
use std::borrow::Cow;

checked_calls! {
    /// The first document of a shard key, and of an `_id` if one is given, that matches the filter if one is given; jsonb's bytes.
    find_document => FindDocument<'a> {
        skey: Cow<'a, [u8]>,
        id: Option<Cow<'a, [u8]>>,
        filter: Option<Cow<'a, str>>,
    } -> Option<Vec<u8>>;

    /// The first documents of a range of an index, packed; None if the shard declines, and the executor has to look.
    find_by_index_range => FindByIndexRange<'a> {
        /// of each of the index's first columns the least key, or the only one; an empty one is no bound
        lo: Vec<Cow<'a, [u8]>>,
        /// of each of these the least key above, or again the only one
        hi: Vec<Cow<'a, [u8]>>,
        /// the text of an [`IndexRangeSearch`]
        search: Cow<'a, str>,
    } -> Option<Vec<u8>>;

    /// Takes the locks that a write to `[lo, hi)` needs and checks the version under them; None is no bound.
    lock_and_check => LockAndCheck<'a> { lo: Option<Cow<'a, [u8]>>, hi: Option<Cow<'a, [u8]>> } -> bool;

    /// Inserts documents, as `ownership::documents::pack` packs them; answers how many.
    insert_documents => InsertDocuments<'a> { documents: Cow<'a, [u8]> } -> i64;

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
        /// the bounds of the shard's ranges: lo, hi, lo, hi …, of which an empty hi is none
        owned: Vec<Cow<'a, [u8]>>,
        /// how many problems are told
        most: i32,
    } -> String;
}

/// How a range of an index is searched, and what is answered: a record of named fields, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRangeSearch {
    /// the number of a secondary index with a b-tree of all documents but those that have entries
    pub index: i32,
    /// it is read from its end
    pub backward: bool,
    /// documents wanted, the first ones
    pub most: usize,
    /// all are wanted, if there are no more than that
    pub all: bool,
    /// the index is in the order of the sort
    pub in_order: bool,
    /// the answer has the keys, too
    pub keyed: bool,
    /// the sort's text, by whose key they come; None: they come as the index is read, without a key
    pub sort: Option<String>,
    /// the projection's text
    pub projection: Option<String>,
}

impl IndexRangeSearch {
    /// The record as it travels.
    pub fn to_text(&self) -> String {
        let Self { index, backward, most, all, in_order, keyed, sort, projection } = self;
        let mut record = json!({
            "index": index, "backward": backward, "most": most, "all": all, "inOrder": in_order, "keyed": keyed,
        });
        for (name, text) in [("sort", sort), ("projection", projection)] {
            if let Some(text) = text {
                record[name] = text.as_str().into();
            }
        }
        record.to_string()
    }

    /// Reads such a record. What is missing without being optional, of another type, or unknown is an error: a shard must not pass
    /// over what a later router asks for.
    ///
    /// # Errors
    /// `BadValue`, naming the field.
    pub fn parse(text: &str) -> Result<Self> {
        const NAMES: [&str; 8] = ["index", "backward", "most", "all", "inOrder", "keyed", "sort", "projection"];
        let wrong =
            |name: &str| Error::new(Kind::BadValue, format!("find_by_index_range: the field \"{name}\" is wrong"));
        let record = json::parse(text)?;
        let fields = record.as_object().ok_or_else(|| wrong(""))?;
        if let Some(unknown) = fields.keys().find(|name| !NAMES.contains(&name.as_str())) {
            return Err(wrong(unknown));
        }
        let flag = |name: &str| fields.get(name).and_then(Json::as_bool).ok_or_else(|| wrong(name));
        let number = |name: &str| fields.get(name).and_then(Json::as_i64).ok_or_else(|| wrong(name));
        let optional = |name: &str| {
            let text = |value: &Json| value.as_str().map(str::to_owned).ok_or_else(|| wrong(name));
            fields.get(name).map(text).transpose()
        };
        Ok(Self {
            index: i32::try_from(number("index")?).map_err(|_| wrong("index"))?,
            backward: flag("backward")?,
            most: usize::try_from(number("most")?).map_err(|_| wrong("most"))?,
            all: flag("all")?,
            in_order: flag("inOrder")?,
            keyed: flag("keyed")?,
            sort: optional("sort")?,
            projection: optional("projection")?,
        })
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test]
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
