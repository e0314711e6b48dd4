//! The edge to the PostgreSQL server this code runs in. With `storage` and `remote`, the only place with `unsafe`.
//!
//! Nothing here knows collections, chunks or shards. A folder for each role:
//!
//! * [`error`]: the error type, and which errors the server's log has
//! * [`spi`]: SQL statements of this backend: parameters, results, quoting, cursors
//! * [`datum`]: json and jsonb values as arguments and results
//! * [`memory`]: the allocator and its limit, and state that outlives a call
//! * [`transaction`]: transactions, subtransactions, snapshots, durability
//! * [`process`]: background workers, jobs in them, timeouts
//! * [`object`]: lookups in PostgreSQL's catalogs, their caches and invalidation, drops
//! * [`security`]: search path, users, permissions, credentials
//! * [`client`]: the statement that a client has sent, and its rows
//! * [`server`]: facts about this server, its database and its WAL
//! * [`fault`]: fault points, for tests
#![allow(unsafe_code)]

pub mod client;
pub mod datum;
pub mod error;
pub mod fault;
pub mod memory;
pub mod object;
pub mod process;
pub mod security;
pub mod server;
pub mod spi;
pub mod transaction;
