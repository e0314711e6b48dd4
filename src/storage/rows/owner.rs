//! The interface by which a higher layer computes the functions of index expressions.

use std::ffi::CStr;

pub struct Owner {
    /// the schema of the functions
    pub schema: &'static CStr,
    /// returns an immutable function by name; it takes a document, a text and perhaps a number
    pub function: LookUp,
}

type LookUp = fn(name: &str, text: &str, number: Option<i32>) -> Option<Box<dyn DirectFunction>>;

/// A function that is computed without PostgreSQL's executor.
pub trait DirectFunction {
    /// Returns the result for a document (jsonb's bytes). Raises the errors that the SQL function raises.
    fn answer(&self, doc: &[u8]) -> FunctionResult;

    /// True if the results for both documents are the same. It may be false although they are, if only computing the results
    /// would show it.
    fn sees_same(&self, one: &[u8], other: &[u8]) -> bool;
}

/// A function's result, which is never null.
#[derive(Debug)]
pub enum FunctionResult {
    Bool(bool),
    Bytes(Vec<u8>),
    BytesArray(Vec<Vec<u8>>),
}
