//! The shard protocol: every function of the schema `docshard_internal` that a node's statements name.
//!
//! A *call* is one request to a node, and one type: its arguments as named fields, the function's name and signature, the statement
//! that calls it, and the decoding of its answer. The caller sends it over a [`Connection`]; the function at the other end builds the
//! same type of its arguments. A *fragment* ([`sql`]) is a function that is part of a larger statement. A *declared statement*
//! ([`shard_tables`]) is a request, too, for what a shard stores about itself and no function serves.
//!
//! Each is declared once, by `calls!`, `fragments!` or `shard_statements!`. The functions are listed in [`signatures`], which a test
//! compares with the extension.
//! How a call is added or changed: docs/architecture/connections.md, "The shard protocol".

mod signature;

mod answer;

mod call;
pub mod checked;

#[macro_use]
mod declare;

pub mod access;
pub mod documents;
pub mod measure;
pub mod migration;
pub mod node;
pub mod once;
pub mod pipeline;
pub mod resharding;
pub mod shard_tables;
pub mod sql;
pub mod table;

pub use self::answer::Answer;
pub use self::call::{Call, Connection};
pub use self::signature::{Shape, Signature, qualified};

/// All functions of the protocol.
pub fn signatures() -> Vec<Signature> {
    [
        access::SIGNATURES,
        documents::SIGNATURES,
        measure::SIGNATURES,
        migration::SIGNATURES,
        node::SIGNATURES,
        once::SIGNATURES,
        pipeline::SIGNATURES,
        resharding::SIGNATURES,
        sql::SIGNATURES,
        table::SIGNATURES,
    ]
    .concat()
}
