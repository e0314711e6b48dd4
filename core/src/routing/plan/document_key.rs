//! Recognises searches that a shard can answer with one document by its key. Such a search needs no choice of an index.

use super::index_choice::beside_keys;
use super::search::Search;
use crate::cluster::targeting;
use crate::routing::model::Collection;
use crate::routing::protocol::documents::{DeleteDocument, FindDocument, UpdateDocument};
use crate::routing::request::options::FindOptions;

/// The encoded key by which a shard finds one document: the first one that has the shard key, and the `_id` if that is given.
#[derive(Debug)]
pub struct DocumentKey {
    pub skey: Vec<u8>,
    pub id: Option<Vec<u8>>,
    /// a filter that the document must also match; None if the key is equivalent to the filter
    pub filter: Option<String>,
}

impl DocumentKey {
    /// Returns the key by which a shard finds the first document of a search; None if the filter does not give the whole key, or
    /// if an index must or should be used.
    pub fn of_search(search: &Search<'_>) -> Option<Self> {
        let (collection, query) = (search.collection, search.query);
        if query.hint.is_some() {
            return None;
        }
        let id = only_id(search);
        let skey = if collection.key.is_unsharded() {
            id.as_ref()?;
            &[]
        } else {
            search.keys.as_point()?
        };
        let is_exact = targeting::key_decides(&collection.key, &query.filter, id.is_some());
        if !is_exact && id.is_none() && beside_keys(search).is_some() {
            return None;
        }
        Some(Self { skey: skey.to_vec(), id, filter: (!is_exact).then(|| query.text()) })
    }

    /// Like [`of_search`](Self::of_search), for a find; None if its result is not one whole document.
    pub fn of_find(search: &Search<'_>, options: &FindOptions) -> Option<Self> {
        if search.query.bounds.is_some() || options.skip > 0 || options.projection.is_some() {
            return None;
        }
        // With an `_id` there is at most one document, so a sort changes nothing. But a sort by several fields can fail, for a document
        // with parallel arrays.
        if options.sort.as_ref().is_some_and(|(sort, _)| sort.fields.len() > 1) {
            return None;
        }
        let is_first = options.limit == Some(1) && options.sort.is_none();
        (is_first || only_id(search).is_some()).then(|| Self::of_search(search)).flatten()
    }

    pub fn find(self, collection: &Collection) -> FindDocument<'static> {
        let (skey, id, filter) = (self.skey.into(), self.id.map(Into::into), self.filter.map(Into::into));
        FindDocument { collection: collection.id, token: collection.token, version: 0, skey, id, filter }
    }

    pub fn update(self, collection: &Collection, update: String, fixed: Vec<String>) -> UpdateDocument<'static> {
        let FindDocument { collection, token, version, skey, id, filter } = self.find(collection);
        UpdateDocument { collection, token, version, skey, id, filter, update: update.into(), fixed }
    }

    pub fn delete(self, collection: &Collection) -> DeleteDocument<'static> {
        let FindDocument { collection, token, version, skey, id, filter } = self.find(collection);
        DeleteDocument { collection, token, version, skey, id, filter }
    }
}

fn only_id(search: &Search<'_>) -> Option<Vec<u8>> {
    search.filter().ranges_of("_id").as_point().map(<[u8]>::to_vec)
}
