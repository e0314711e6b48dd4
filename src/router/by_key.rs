//! Finds, updates or deletes one document whose whole key is in the filter. Most statements of an application do this, so this
//! path parses nothing of the filter but the key. The results are the same as those of [`crate::router::reads::find`] and
//! [`crate::router::writes::modify`].
//!
//! Every function returns None if the filter is more than a key, or if the statement needs something that this path does not
//! offer.

use super::execute;
use super::fresh_map::{read_with_fresh_map, with_fresh_map};
use crate::catalog::cache;
use crate::catalog::collections::duplicate;
use crate::catalog::collections::namespace::check_writable;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use crate::router::sampling;
use crate::router::writes::modification;
use crate::router::writes::modify;
use docshard_core::cluster::targeting::point;
use docshard_core::query::update::Style;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::document_key::DocumentKey;
use docshard_core::routing::plan::select;
use docshard_core::routing::request::modification::WriteResult;
use std::rc::Rc;

/// Returns the outer None if this path does not apply, and the inner None if there is no such document.
pub fn find_one(namespace: &str, filter: &str) -> Result<Option<Option<RawJsonb>>> {
    with_key(namespace, filter, false, |collection, destination, key| {
        sampling::read(collection, "find", || filter.to_owned());
        execute::document(collection, destination, &select::document(collection, key))
    })
}

/// Applies an update by operators that does not touch the shard key and whose parsed form the session has cached. `sole`: see
/// [`Write::sole`](docshard_core::routing::request::modification::Write::sole).
pub fn update_one(namespace: &str, filter: &str, update: &str, sole: bool) -> Result<Option<WriteResult>> {
    let Some(modification) = modification::kept(update, Style::Operators) else { return Ok(None) };
    with_key(namespace, filter, true, |collection, destination, key| {
        if modify::touches_key(collection, &modification) {
            return Ok(None);
        }
        check_writable(namespace)?;
        sampling::keyed_write(collection, || filter.to_owned(), Some(&modification));
        modify::update_by_key(collection, &[destination], &modification, key, sole)
            .map(Some)
            .map_err(|error| duplicate::translate(collection, error))
    })
    .map(Option::flatten)
}

/// Deletes the document and returns how many were deleted.
pub fn delete_one(namespace: &str, filter: &str, sole: bool) -> Result<Option<WriteResult>> {
    with_key(namespace, filter, true, |collection, destination, key| {
        check_writable(namespace)?;
        sampling::keyed_write(collection, || filter.to_owned(), None);
        modify::delete_by_key(collection, &[destination], key, sole)
    })
}

/// Calls `run` with the key in the filter and the shard that owns it. `writes`: whether `run` writes. None if the collection does not exist
/// or has a collation, or if the filter is more than a key.
fn with_key<T>(
    namespace: &str,
    filter: &str,
    writes: bool,
    run: impl Fn(&Collection, Destination, DocumentKey) -> Result<T>,
) -> Result<Option<T>> {
    if cache::find(namespace)?.is_none() {
        return Ok(None);
    }
    let with_map = if writes { with_fresh_map } else { read_with_fresh_map };
    with_map(namespace, |collection: Option<Rc<Collection>>| {
        // Under a collation, strings that compare equal can differ in their keys.
        let Some(collection) = collection.filter(|collection| collection.collation.is_none()) else { return Ok(None) };
        let Some(key) = point::of_text(&collection.key, filter) else { return Ok(None) };
        let destination = destination::destination_of(&collection, &key.skey)?;
        let key = DocumentKey { skey: key.skey, id: key.id, filter: None };
        run(&collection, destination, key).map(Some)
    })
}
