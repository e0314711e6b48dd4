//! A cache of the results of queries over another collection, by the value that was asked for.
//!
//! Later documents often ask for the same values. The cache counts its memory; the stage that owns the cache clears it when it is too
//! large.

use std::collections::HashMap;

/// Results of queries, by the encoding of the value that was asked for.
#[derive(Debug, Default)]
pub(in crate::query::stage) struct QueryCache<R> {
    results: HashMap<Vec<u8>, R>,
    bytes: usize,
}

impl<R: Default> QueryCache<R> {
    /// The approximate memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The results for a value; None if no query has asked for it.
    pub fn get(&self, encoding: &[u8]) -> Option<&R> {
        self.results.get(encoding)
    }

    /// Like [`get`](Self::get), but mutable, to add results.
    pub fn get_mut(&mut self, encoding: &[u8]) -> Option<&mut R> {
        self.results.get_mut(encoding)
    }

    /// Adds the results for a value, and counts the memory of the entry.
    pub fn insert(&mut self, encoding: Vec<u8>, results: R) {
        self.bytes += encoding.len() + size_of::<(Vec<u8>, R)>();
        self.results.insert(encoding, results);
    }

    /// Counts the memory of documents in the results.
    pub fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Removes all results.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
