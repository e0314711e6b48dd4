//! Parsed updates, and the description of a write.

use super::query::Query;
use crate::error::Result;
use crate::query::environment::{Environment, Session};
use crate::query::sort::Sort;
use crate::query::update::{Compiled, Instruction, Style, Update};
use crate::values::document::value::Value;
use serde_json::Value as Json;

/// A parsed update, with the text that is sent to shards.
#[derive(Debug)]
pub struct Modification {
    pub update: Update,
    /// the input of `update::read`
    pub text: String,
}

impl Modification {
    /// Parses an update of the documents that `query` finds. The present time, which `$currentDate` uses, is the same on all shards and in
    /// all attempts. The second part is true if the text depends on the update alone, so that it can be used again.
    pub fn parse(
        text: &str,
        update: &Json,
        style: Style,
        array_filters: Option<&Json>,
        query: &Query,
        session: &Session,
    ) -> Result<(Self, bool)> {
        let (filter, now, environment) = (&*query.text(), session.now, &query.environment);
        let instruction =
            Instruction { update, text, style, array_filters, filter, now, keeps_key: false, environment };
        let Compiled { update, text, is_lasting } = instruction.compile()?;
        Ok((Self { update, text }, is_lasting))
    }

    /// Parses an update of one document whose shard key must not change, in an environment of its own.
    pub fn keeping_key(text: &str, update: &Json, style: Style, environment: &Environment, now: i64) -> Result<Self> {
        let instruction =
            Instruction { update, text, style, array_filters: None, filter: "{}", now, keeps_key: true, environment };
        let Compiled { update, text, .. } = instruction.compile()?;
        Ok(Self { update, text })
    }
}

/// A write to the documents that a query finds.
#[derive(Debug)]
pub struct Write<'a> {
    pub query: &'a Query,
    /// None: documents are deleted
    pub modification: Option<&'a Modification>,
    /// true: write all matching documents; false: write one
    pub many: bool,
    /// true: insert a document if none matches
    pub upsert: bool,
    /// for a write of one document: write the first one in this order; the second field is the sort's text
    pub sort: Option<(Sort, String)>,
    /// for a write of one document; true: return its old and new form
    pub images: bool,
    /// true: an update also locks the documents that it does not change
    pub locks: bool,
    /// for a write of one document without `upsert`; true: skip documents that other transactions have locked
    pub skip_locked: bool,
    /// true: the call that writes is the client's whole transaction, which may be committed by the shard that writes last
    pub sole: bool,
}

impl<'a> Write<'a> {
    /// A write of one matching document, without sort, upsert and other options.
    pub fn of_one(query: &'a Query, modification: Option<&'a Modification>) -> Self {
        let (many, upsert, images, locks, skip_locked, sole) = (false, false, false, false, false, false);
        Self { query, modification, many, upsert, sort: None, images, locks, skip_locked, sole }
    }
}

#[derive(Debug, Default)]
pub struct WriteResult {
    /// the number of documents that matched; for a deletion, of those deleted
    pub matched: i64,
    pub modified: i64,
    /// jsonb of the old document, if [`Write::images`]
    pub before: Option<Vec<u8>>,
    /// jsonb of the new document, if [`Write::images`] or if it was inserted
    pub after: Option<Vec<u8>>,
    /// the `_id` of the inserted document
    pub upserted: Option<Value>,
}
