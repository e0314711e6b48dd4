//! Updates: a replacement, or operators applied to jsonb's bytes.

use crate::document::raw::RawObject;
use crate::error::Result;
use crate::filter::Filter;

/// A parsed update.
#[derive(Debug)]
pub struct Update {}

impl Update {
    /// Parses `{"$set": …, "$inc": …}` (an update).
    ///
    /// # Errors
    /// `FailedToParse` for an unknown operator or a document without operators, `ConflictingUpdateOperators` …
    pub fn parse(_json: &serde_json::Value) -> Result<Update> {
        todo!()
    }
    /// Parses a replacement document.
    ///
    /// # Errors
    /// `FailedToParse` if it holds operators.
    pub fn parse_replacement(_json: &serde_json::Value) -> Result<Update> {
        todo!()
    }
    /// True if it replaces the document.
    pub fn is_replacement(&self) -> bool {
        todo!()
    }
    /// The new document's jsonb, or None if nothing changes. `_id` is kept.
    ///
    /// # Errors
    /// `ImmutableField` if `_id` or one of `immutable` (dotted paths: the shard key's fields) would change,
    /// `TypeMismatch`, `PathNotViable`, `Overflow` …
    pub fn apply(&self, _document: RawObject<'_>, _immutable: &[String]) -> Result<Option<Vec<u8>>> {
        todo!()
    }
    /// The document that an upsert inserts when nothing matched; without `_id` if neither filter nor update gives one.
    ///
    /// # Errors
    /// As [`Update::apply`].
    pub fn upsert(&self, _filter: &Filter) -> Result<Vec<u8>> {
        todo!()
    }
}
