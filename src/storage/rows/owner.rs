//! What the owner of a table knows of it beyond what PostgreSQL does.

use std::ffi::CStr;

/// The owner of the tables that rows are written to. There is one.
pub struct Owner {
    /// the schema of its functions
    pub schema: &'static CStr,
    /// its immutable functions, which are called with a document, a text and perhaps a number; None for any that it does not
    /// know
    pub function: LookUp,
}

/// Finds a function by its name and by what it is called with beside the document.
type LookUp = fn(name: &str, text: &str, number: Option<i32>) -> Option<Box<dyn Function>>;

/// What a function does, without PostgreSQL's executor.
pub trait Function {
    /// What it answers for a document: jsonb's bytes. Raises what it raises.
    fn answer(&self, doc: &[u8]) -> Answer;

    /// True if that is the same for both documents. False also if only the answers could tell.
    fn sees_same(&self, one: &[u8], other: &[u8]) -> bool;
}

/// A function's answer; none is null.
#[derive(Debug)]
pub enum Answer {
    /// boolean
    Bool(bool),
    /// bytea
    Bytes(Vec<u8>),
    /// bytea[]
    BytesArray(Vec<Vec<u8>>),
}
