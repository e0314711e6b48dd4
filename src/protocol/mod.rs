//! The shard protocol: every function of the schema `docshard_internal` that a node's statements name.
//!
//! A *call* is one request to a node, and one type: its arguments as named fields, the function's name and signature, the statement
//! that calls it, and the decoding of its answer. The caller sends it over a [`Connection`]; the function at the other end builds the
//! same type of its arguments. A *fragment* ([`sql`]) is a function that is part of a larger statement.
//!
//! Each is declared once, by `calls!` or `fragments!`, and is listed in [`signatures`], which a test compares with the extension.
//! How a call is added or changed: docs/architecture/connections.md, "The shard protocol".

#[macro_use]
mod declare;
mod answer;
mod call;
mod signature;

pub mod access;
pub mod checked;
pub mod documents;
pub mod measure;
pub mod migration;
pub mod node;
pub mod pipeline;
pub mod sql;
pub mod table;

pub use self::answer::Answer;
pub use self::call::{Call, Connection};
pub use self::signature::{Column, Shape, Signature, qualified};
pub use crate::pg::spi::record::Row;

/// All functions of the protocol.
#[cfg(any(test, feature = "pg_test"))]
pub fn signatures() -> Vec<Signature> {
    [
        access::SIGNATURES,
        documents::SIGNATURES,
        measure::SIGNATURES,
        migration::SIGNATURES,
        node::SIGNATURES,
        pipeline::SIGNATURES,
        sql::SIGNATURES,
        table::SIGNATURES,
    ]
    .concat()
}
