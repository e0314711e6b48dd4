//! A sample of a collection's documents, in the order in which they were inserted as far as that is known.
//!
//! If the `_id`s of all sampled documents are ObjectIds, these give the order, as they begin with a time. Otherwise the documents are ordered
//! by their relative position in their shard's table, over all shards together. This resembles the order of the inserts until documents
//! are deleted, or moved from shard to shard.

use crate::budget;
use crate::error::Result;
use crate::values::document::element::Element;
use crate::values::document::raw::{self, RawObject};
use crate::values::key::KeyPattern;

/// A document as it was read.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// jsonb
    pub bytes: Vec<u8>,
    /// its relative position among the documents that were read of its shard's table, from 0 to 1
    pub place: f64,
}

/// Documents of a collection, in the order of their insertion.
#[derive(Debug, Default)]
pub struct Sample {
    documents: Vec<Vec<u8>>,
    /// the number of the collection's documents
    pub total: u64,
    /// the size of the collection's documents, in bytes
    pub bytes: u64,
}

impl Sample {
    /// Orders sampled documents. `total` and `bytes` are the number and the size of all documents of the collection.
    pub fn new(mut documents: Vec<Sampled>, total: u64, bytes: u64) -> Self {
        let ids: Option<Vec<[u8; 12]>> = documents.iter().map(object_id).collect();
        let documents = match ids {
            Some(ids) => {
                let mut found: Vec<([u8; 12], Vec<u8>)> =
                    ids.into_iter().zip(documents).map(|(id, document)| (id, document.bytes)).collect();
                found.sort_by(|a, b| counted(a.0.cmp(&b.0)));
                found.into_iter().map(|(_, bytes)| bytes).collect()
            }
            None => {
                documents.sort_by(|a, b| counted(a.place.total_cmp(&b.place)));
                documents.into_iter().map(|document| document.bytes).collect()
            }
        };
        Self { documents, total, bytes }
    }

    /// The number of documents.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// True if the sample has no documents.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// The documents, in order.
    pub fn documents(&self) -> impl Iterator<Item = RawObject<'_>> {
        self.documents.iter().inspect(|_| budget::step()).filter_map(|bytes| raw::document(bytes))
    }

    /// The documents' shard keys, in order.
    ///
    /// # Errors
    /// Those of [`KeyPattern::key_of`].
    pub fn keys(&self, pattern: &KeyPattern) -> Result<Vec<Vec<u8>>> {
        self.documents().map(|document| pattern.key_of(document)).collect()
    }
}

fn counted<T>(compared: T) -> T {
    budget::step();
    compared
}

fn object_id(document: &Sampled) -> Option<[u8; 12]> {
    budget::step();
    match raw::document(&document.bytes)?.get("_id").map(Element::of)? {
        Element::ObjectId(id) => Some(id),
        _ => None,
    }
}
