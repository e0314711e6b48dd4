//! The parsed form of an operation on documents.

pub mod options;
pub mod query;

pub mod modification;
