//! Operations: the common implementation of the SQL functions of schema `docshard` and of MongoDB's commands, as typed requests.
//!
//! * [`table`]: all operations as data: the SQL function, its options, and which options exclude one another.
//! * [`arguments`]: option documents and commands' fields, checked against that table.
//! * [`concerns`]: read and write concerns, which are checked and have no effect.
//! * [`request_parts`]: specifications and other parts of requests.
//! * [`sink`]: writes the results of a pipeline into a collection.
//! * [`reading`], [`writing`], [`find_and_modify`], [`bulk_write`]: documents.
//! * [`explaining`]: how reads and writes find their documents.
//! * [`query_analyzer`], [`shard_key`]: advice on shard keys. [`inspect`], [`consistency`]: checks.
//! * [`collections`], [`chunks`], [`resharding`], [`shards`], [`balancer`], [`cluster`]: administration.
//! * [`users`]: users and roles, which are PostgreSQL's.
//! * [`calls`]: the SQL functions for documents, whose arguments are texts.
//! * [`rights`]: checks the caller's rights where an operation runs without a call of its SQL function, as by a command. PostgreSQL checks
//!   only such calls.
//! * [`errors`]: errors in MongoDB's terms.
//!
//! A new operation has an entry in the table, a request with a function that runs it, and an SQL function in `api` that parses
//! its arguments and prints its answer. If it is also a command, an entry in `command::table` parses and prints for the command. A
//! request holds values, not JSON text, so nothing is printed and then parsed again.

pub mod arguments;
pub mod balancer;
pub mod bulk_write;
pub mod calls;
pub mod chunks;
pub mod cluster;
pub mod collections;
pub mod concerns;
pub mod consistency;
pub mod errors;
pub mod explaining;
pub mod find_and_modify;
pub mod inspect;
pub mod query_analyzer;
pub mod reading;
pub mod request_parts;
pub mod resharding;
pub mod rights;
pub mod shard_key;
pub mod shards;
pub mod sink;
pub mod table;
pub mod users;
pub mod writing;
