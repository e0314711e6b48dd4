//! Parsed updates, and the description of a write.

use super::options;
use super::query::Query;
use crate::pg::error::Result;
use crate::pg::memory::small_cache::SmallCache;
use docshard_core::query::sort::Sort;
use docshard_core::query::update::{Compiled, Instruction, Style, Update};
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// A parsed update, with the text that is sent to shards.
#[derive(Debug)]
pub struct Modification {
    pub update: Update,
    /// the input of `update::read`
    pub text: String,
}

/// Programs send the same updates again and again; this many are cached.
const MOST_KEPT: usize = 8;
/// Longer updates, in bytes, are not cached.
const LONGEST_KEPT: usize = 1024;

thread_local! {
    /// By style and text.
    static KEPT: RefCell<SmallCache<(Style, String), Rc<Modification>, MOST_KEPT>> = const { RefCell::new(SmallCache::NONE) };
}

impl Modification {
    /// Returns the cached form of an update that has no array filters, collation and variables.
    pub fn kept(update: &str, style: Style) -> Option<Rc<Self>> {
        KEPT.with_borrow(|kept| kept.find(|(known, text)| *known == style && text == update))
    }

    /// Parses an update of the documents that `query` finds, or returns its cached form. `update` parses the text, and returns an
    /// equal text if fields are given twice. The present time, which `$currentDate` uses, is the same on all shards and in all
    /// attempts.
    pub fn parse<'u>(
        text: &str,
        update: impl FnOnce() -> Result<(Cow<'u, Json>, Option<String>)>,
        style: Style,
        array_filters: Option<&Json>,
        query: &Query,
    ) -> Result<Rc<Self>> {
        let environment = query.environment.as_ref();
        let may_be_kept = array_filters.is_none() && environment.is_none() && text.len() <= LONGEST_KEPT;
        if may_be_kept && let Some(known) = Self::kept(text, style) {
            return Ok(known);
        }
        let (update, replaced) = update()?;
        let given = text;
        let text = replaced.as_deref().unwrap_or(given);
        let mut environment = environment.cloned();
        if update.is_array() {
            options::complete(&mut environment, std::iter::once(text))?;
        }
        let environment = environment.as_ref();
        let (filter, now) = (query.text.as_str(), options::now());
        let instruction =
            Instruction { update: &update, text, style, array_filters, filter, now, keeps_key: false, environment };
        let Compiled { update: parsed, text: compiled, is_lasting } = instruction.compile()?;
        let modification = Rc::new(Self { update: parsed, text: compiled });
        if may_be_kept && is_lasting {
            KEPT.with_borrow_mut(|kept| kept.insert((style, given.to_owned()), Rc::clone(&modification)));
        }
        Ok(modification)
    }

    /// Parses an update of one document whose shard key must not change, in an environment of its own.
    pub fn keeping_key(text: &str, update: &Json, style: Style, environment: Option<&Json>) -> Result<Self> {
        let now = options::now();
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
    /// insert a document if none matches
    pub upsert: bool,
    /// for a write of one document: write the first one in this order; the second field is the sort's text
    pub sort: Option<(Sort, String)>,
    /// for a write of one document: return its old and new form
    pub images: bool,
    /// for a write of one document without `upsert`: skip documents that other transactions have locked
    pub skip_locked: bool,
}

impl<'a> Write<'a> {
    /// A write of the first document that matches, with nothing else.
    pub fn of_one(query: &'a Query, modification: Option<&'a Modification>) -> Self {
        Self { query, modification, many: false, upsert: false, sort: None, images: false, skip_locked: false }
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
