//! Projections: which fields of a document are returned.

use crate::document::raw::RawObject;
use crate::error::Result;

/// A parsed projection.
#[derive(Debug)]
pub struct Projection {}

impl Projection {
    /// Parses `{"a": 1, "b.c": 1}` or `{"a": 0}`.
    ///
    /// # Errors
    /// 31253 and 31254 in MongoDB for mixtures (here `BadValue`), path collisions.
    pub fn parse(_json: &serde_json::Value) -> Result<Projection> {
        todo!()
    }
    /// True if it returns documents whole.
    pub fn is_identity(&self) -> bool {
        todo!()
    }
    /// The projected document's jsonb.
    pub fn apply(&self, _document: RawObject<'_>) -> Vec<u8> {
        todo!()
    }
}
