//! Changing or deleting one document and answering with it.

use super::modification::Modification;
use super::options::parsed_setting;
use super::query::Query;
use super::single_write::{self, OneWrite};
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use docshard_core::query::envelope;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::values::document::raw;
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;

/// The projection of the documents that `query` finds; None if it is none, or keeps everything.
pub fn projection(json: Option<&Json>, query: &Query) -> Result<Option<Projection>> {
    let Some(json) = json else { return Ok(None) };
    let parsed = Projection::parse_in(json, &parsed_setting(query.setting.as_ref())?)?;
    if parsed.is_identity() {
        return Ok(None);
    }
    if !parsed.is_positional() {
        return Ok(Some(parsed));
    }
    let text = envelope::wrap(&json.to_string(), query.setting.as_ref(), Some(&query.text));
    Ok(Some(Projection::read(&crate::pg::datum::json::parse(&text)?)?))
}

/// A change, or the deletion, of the first document that matches.
#[derive(Debug)]
pub struct FindAndModify<'a> {
    /// which document
    pub query: &'a Query,
    /// what is done to it; None: it is deleted
    pub modification: Option<&'a Modification>,
    /// the first in this order, and its text; None: any
    pub sort: Option<(Sort, String)>,
    /// which fields are answered; None: all
    pub projection: Option<Projection>,
    /// a changed document is answered as it has become, not as it was
    pub new: bool,
    /// insert a document if none matched
    pub upsert: bool,
}

/// What it found and did.
#[derive(Debug, Default)]
pub struct Found {
    /// jsonb of the document, as asked for; None if nothing matched, and for an upsert that asked for the state before
    pub document: Option<Vec<u8>>,
    /// a document matched
    pub matched: bool,
    /// the `_id` of the inserted document
    pub upserted: Option<Value>,
}

/// Finds and modifies. Concurrent calls on one document come one after the other; none is lost.
pub fn find_and_modify(namespace: &str, operation: &FindAndModify<'_>) -> Result<Found> {
    let after = operation.new && operation.modification.is_some();
    // Changed, the document may no longer have the element by which it was found.
    if after && operation.projection.as_ref().is_some_and(Projection::is_positional) {
        let message = "cannot use a positional projection and return the new document";
        return Err(Error::new(Kind::BadValue, message));
    }
    let write = OneWrite {
        query: operation.query,
        sort: operation.sort.as_ref(),
        modification: operation.modification,
        upsert: operation.upsert && operation.modification.is_some(),
        images: true,
    };
    let written = single_write::write(namespace, &write)?;
    let document = if after { written.after } else { written.before };
    let document = match (document, &operation.projection) {
        (Some(document), Some(projection)) => Some(project(&document, projection)?),
        (document, _) => document,
    };
    Ok(Found { document, matched: written.matched, upserted: written.upserted })
}

fn project(document: &[u8], projection: &Projection) -> Result<Vec<u8>> {
    let object =
        raw::document(document).ok_or_else(|| Error::new(Kind::InternalError, "a shard sent something other"))?;
    Ok(projection.apply(object)?)
}
