//! Filters: parsed once, matched against jsonb's bytes, analysed for the keys they allow.

use crate::document::raw::RawObject;
use crate::document::value::Value;
use crate::error::Result;
use crate::key::KeyRanges;

/// A parsed filter.
#[derive(Debug)]
pub struct Filter {}

impl Filter {
    /// Parses a filter such as `{"from": "ann", "likes": {"$gt": 5}}`.
    ///
    /// # Errors
    /// `BadValue` for an unknown operator or a wrong argument, with MongoDB's codes.
    pub fn parse(_json: &serde_json::Value) -> Result<Filter> {
        todo!()
    }
    /// True if the filter is `{}`.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// True if the document matches.
    pub fn matches(&self, _document: RawObject<'_>) -> bool {
        todo!()
    }
    /// The encodings of one field's value (a field that holds no array anywhere on its path) that a matching document
    /// can have; everything where the analysis does not know better. A missing field is the encoding of null.
    pub fn ranges_of(&self, _path: &str) -> KeyRanges {
        todo!()
    }
    /// The fields and values that an upsert takes from the filter's equalities, in order.
    ///
    /// # Errors
    /// `NotSingleValueField` if a path has two equalities.
    pub fn upsert_fields(&self) -> Result<Vec<(String, Value)>> {
        todo!()
    }
}
