//! One value of a document, classified and borrowed: what [`raw`](super::raw) read, with Extended JSON understood.

use super::number::Number;
use super::raw::{RawArray, RawObject, RawValue};

/// A value in one of MongoDB's types, borrowing from the document.
#[derive(Clone, Debug)]
pub enum Element<'a> {
    /// `{"$minKey": 1}`
    MinKey,
    /// `{"$undefined": true}`
    Undefined,
    /// null
    Null,
    /// int, long, double, decimal
    Number(Number),
    /// a string
    String(&'a str),
    /// an embedded document
    Object(RawObject<'a>),
    /// an array
    Array(RawArray<'a>),
    /// `{"$binary": {"base64": …, "subType": …}}`, decoded
    Binary(u8, Vec<u8>),
    /// `{"$oid": …}`
    ObjectId([u8; 12]),
    /// a boolean
    Bool(bool),
    /// `{"$date": …}`, milliseconds since 1970
    Date(i64),
    /// `{"$timestamp": {"t": …, "i": …}}`
    Timestamp(u32, u32),
    /// `{"$regularExpression": {"pattern": …, "options": …}}`
    Regex(&'a str, &'a str),
    /// `{"$dbPointer": …}`
    DbPointer(&'a str, [u8; 12]),
    /// `{"$code": …}`
    Code(&'a str),
    /// `{"$code": …, "$scope": …}`
    CodeWithScope(&'a str, RawObject<'a>),
    /// `{"$symbol": …}`
    Symbol(&'a str),
    /// `{"$maxKey": 1}`
    MaxKey,
}

impl<'a> Element<'a> {
    /// Classifies a raw value. An object that starts with `$` but is no well-formed extended type stays an object.
    pub fn of(_raw: RawValue<'a>) -> Element<'a> {
        todo!()
    }

    /// MongoDB's alias of the type, as `$type` and messages use it: "double", "string", "object" …
    pub fn type_name(&self) -> &'static str {
        todo!()
    }
}
