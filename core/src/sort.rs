//! Sort specifications, and the key that a document sorts by.

use crate::document::raw::RawObject;
use crate::error::Result;

/// A parsed sort specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort {
    /// dotted path, and true for descending
    pub fields: Vec<(String, bool)>,
}

impl Sort {
    /// Parses `{"sent": -1}`.
    ///
    /// # Errors
    /// `BadValue` for a direction other than 1 and -1, an empty path …
    pub fn parse(_json: &serde_json::Value) -> Result<Sort> {
        todo!()
    }
    /// The document's sort key: comparing two bytewise is comparing the documents. Descending fields are inverted
    /// byte by byte. An array sorts by its least element ascending, by its greatest descending.
    pub fn key_of(&self, _document: RawObject<'_>) -> Vec<u8> {
        todo!()
    }
}
