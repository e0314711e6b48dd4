//! The interface by which a higher layer computes the functions of index expressions.

use std::ffi::CStr;

/// The functions of a higher layer that index expressions call.
pub struct Owner {
    /// the schema of the functions
    pub schema: &'static CStr,
    /// finds a function
    pub function: LookUp,
}

/// Returns an immutable function by its name and its constant arguments: a text, and a number if the function has a
/// third argument. None if there is no such function. A function's first argument is the document.
type LookUp = fn(name: &str, text: &str, number: Option<i32>) -> Option<Box<dyn DirectFunction>>;

/// A function that is computed without PostgreSQL's executor.
pub trait DirectFunction {
    /// Returns the result for a document (jsonb's bytes). Raises the errors that the SQL function raises.
    fn answer(&self, doc: &[u8]) -> FunctionResult;

    /// True only if the results for both documents are equal. May be false for equal results, where only computing them would show that
    /// they are equal.
    fn sees_same(&self, one: &[u8], other: &[u8]) -> bool;
}

/// A function's result, which is never null.
#[derive(Debug)]
pub enum FunctionResult {
    Bool(bool),
    Bytes(Vec<u8>),
    BytesArray(Vec<Vec<u8>>),
}
