//! The key of the one document that a search can find: the access path without an index's choice.

use super::index_choice::beside_keys;
use super::search::Search;
use crate::catalog::model::Collection;
use crate::protocol::documents::{DeleteDocument, FindDocument, UpdateDocument};
use crate::router::options::FindOptions;
use docshard_core::cluster::targeting;

/// What a shard finds a document by without looking for an index.
#[derive(Debug)]
pub struct DocumentKey {
    /// the shard key, encoded
    pub skey: Vec<u8>,
    /// the `_id`, encoded, if it is given
    pub id: Option<Vec<u8>>,
    /// the text of the filter that a document with these must match; None: it does
    pub filter: Option<String>,
}

impl DocumentKey {
    /// The one shard key, and the one `_id`, if the filter says it, that matching documents can have. None if that is not one,
    /// or an index is to be used, or serves the search for the document.
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
        let is_exact = targeting::key_tells_all(&collection.key, &query.filter, id.is_some());
        if !is_exact && id.is_none() && beside_keys(search).is_some() {
            return None;
        }
        Some(Self { skey: skey.to_vec(), id, filter: (!is_exact).then(|| query.text.clone()) })
    }

    /// That of a find for one whole document; None: the find asks for something else.
    pub fn of_find(search: &Search<'_>, options: &FindOptions) -> Option<Self> {
        if search.query.bounds.is_some() || options.skip > 0 || options.projection.is_some() {
            return None;
        }
        // Of one `_id` there is one document at most, whichever comes first.
        let is_first = options.limit == Some(1) && options.sort.is_none();
        (is_first || only_id(search).is_some()).then(|| Self::of_search(search)).flatten()
    }

    /// The call that finds the document.
    pub fn find(self, collection: &Collection) -> FindDocument<'static> {
        let (skey, id, filter) = (self.skey.into(), self.id.map(Into::into), self.filter.map(Into::into));
        FindDocument { collection: collection.id, token: collection.token, version: 0, skey, id, filter }
    }

    /// The call that updates it.
    pub fn update(self, collection: &Collection, update: String, fixed: Vec<String>) -> UpdateDocument<'static> {
        let FindDocument { collection, token, version, skey, id, filter } = self.find(collection);
        UpdateDocument { collection, token, version, skey, id, filter, update: update.into(), fixed }
    }

    /// The call that deletes it.
    pub fn delete(self, collection: &Collection) -> DeleteDocument<'static> {
        let FindDocument { collection, token, version, skey, id, filter } = self.find(collection);
        DeleteDocument { collection, token, version, skey, id, filter }
    }
}

/// The one `_id` that matching documents can have, encoded.
fn only_id(search: &Search<'_>) -> Option<Vec<u8>> {
    search.filter().ranges_of("_id").as_point().map(<[u8]>::to_vec)
}
