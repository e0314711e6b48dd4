//! The layer above that knows what the functions of index expressions compute.

use std::ffi::CStr;

pub struct Owner {
    /// of the functions
    pub schema: &'static CStr,
    /// finds an immutable function that takes a document, a text and perhaps a number
    pub function: LookUp,
}

type LookUp = fn(name: &str, text: &str, number: Option<i32>) -> Option<Box<dyn Function>>;

/// A function that is computed without PostgreSQL's executor.
pub trait Function {
    /// The result for a document (jsonb's bytes). Raises what the function raises.
    fn answer(&self, doc: &[u8]) -> Answer;

    /// True if the results for both documents are the same; may be false if only the results would tell.
    fn sees_same(&self, one: &[u8], other: &[u8]) -> bool;
}

/// A function's result, which is never null.
#[derive(Debug)]
pub enum Answer {
    Bool(bool),
    Bytes(Vec<u8>),
    BytesArray(Vec<Vec<u8>>),
}
