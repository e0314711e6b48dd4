//! Finding one document by its whole key, as most finds of an application do: of the filter's text nothing is made but the
//! key. What it answers is what [`super::read`] would.

use super::aim::OneKey;
use super::call::Call;
use super::dispatch;
use super::fresh::with_fresh_map;
use crate::catalog::cache;
use crate::pg::error::Result;
use crate::pg::jsonb::RawJsonb;
use docshard_core::document::raw;
use docshard_core::targeting::point;

/// The document of which the filter says the key, or that there is none; None if the filter is not seen to say just a key.
///
/// # Errors
/// As [`super::read::find`].
pub fn find_one(namespace: &str, filter: &str) -> Result<Option<Option<RawJsonb>>> {
    if cache::find(namespace)?.is_none() {
        return Ok(None);
    }
    with_fresh_map(namespace, |collection| {
        // Under a collation equal strings are not the same.
        let Some(collection) = collection.filter(|collection| collection.collation.is_none()) else { return Ok(None) };
        let Some(key) = point::of_text(&collection.key, filter) else { return Ok(None) };
        let destination = dispatch::destination_of(&collection, &key.skey)?;
        let key = OneKey { skey: key.skey, id: key.id, filter: None };
        let call = key.arguments_of(Call::of("find_document", &collection));
        let streams = dispatch::read_at_most(&collection, &[destination], &call.statement(), Some(1))?;
        let Some(mut stream) = streams.into_iter().next() else { return Ok(None) };
        let row = stream.next_row()?;
        let Some((row, bytes)) = row.as_ref().and_then(|row| Some((row, row.get(0)?))) else { return Ok(Some(None)) };
        if row.is_foreign() {
            raw::validate(bytes)?;
        }
        Ok(Some(Some(RawJsonb::from_bytes(bytes))))
    })
}
