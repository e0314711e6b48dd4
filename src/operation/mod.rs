//! Operations: what the SQL functions of schema `docshard` and MongoDB's commands do, as typed requests.
//!
//! * [`table`]: every operation as data: its SQL function, its options, and what excludes what.
//! * [`arguments`]: option documents and commands' fields, checked against that table.
//! * [`source`]: what requests are made of.
//! * [`reading`], [`writing`], [`find_and_modify`], [`bulk_write`]: documents.
//! * [`collections`], [`chunks`], [`shards`], [`balancer`]: administration.
//! * [`rights`]: who may do an operation, where it is not PostgreSQL that looks because a statement calls the function.
//! * [`errors`]: errors in MongoDB's terms.
//!
//! A new operation has an entry in the table, a request with a function that runs it, and an SQL function in `api` that parses
//! its arguments and prints its answer; a command, if there is one, has an entry in `command::table` and does the same. A
//! request holds values, not JSON text: nothing is printed in order to be parsed again.

pub mod arguments;
pub mod balancer;
pub mod bulk_write;
pub mod chunks;
pub mod cluster;
pub mod collections;
pub mod errors;
pub mod find_and_modify;
pub mod inspect;
pub mod reading;
pub mod rights;
pub mod shards;
pub mod source;
pub mod table;
pub mod writing;
