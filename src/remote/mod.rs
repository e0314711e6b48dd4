//! The executor of statements on shards, over libpq: the whole folder, which knows PostgreSQL servers and transactions, and no
//! collections. In the table, a file uses only files above its own.
//!
//! A request names a foreign server of postgres_fdw, whose options and user mapping tell how to connect. [`start`] sends
//! requests to any number of shards before it awaits any answer; each answer is a [`Stream`] of rows, which stay in
//! PostgreSQL's binary format. Remote transactions follow the local one: see [`transaction`].
//! A [`Session`] is a connection outside of all that.
//!
//! | file | role |
//! |---|---|
//! | `param`, `refusal` | parameters out; the errors by which a shard refuses |
//! | `ffi` | the only one that calls C: libpq, waiting, files, catalog lookups, callbacks |
//! | `libpq_message` | what libpq's messages say about a login |
//! | `serializable` | SERIALIZABLE transactions stay on one node |
//! | `row` | rows in, the spool |
//! | `options` | from server and user mapping to connection options, and postgres_fdw's rules |
//! | `hung` | how long a shard may say nothing; in a worker, the shards that are left alone as they do not answer |
//! | `settings` | the folder's settings |
//! | `probe` | asking a shard that says nothing whether it still answers, over another connection |
//! | `wire` | one connection: connecting, waiting, interrupts, error reports |
//! | `login` | connecting as the service role |
//! | `survey` | one question to many servers at once, within a bound |
//! | `handshake` | what a connection says first, and the shard's answer |
//! | `session` | a connection outside the transaction |
//! | `prepared` | a connection's prepared statements |
//! | `coordinator` | who decides transactions over several shards: a layer above sets it |
//! | `connection` | a cached connection: batches, their answers, savepoints; in its folder, how transactions end, and what waits |
//! | `cache` | all cached connections, their invalidation |
//! | `transaction` | commit, two-phase commit, abort, subtransactions |
//! | `stream` | requests and their rows |
//!
//! Errors of shards keep SQLSTATE, message, detail and hint and name the shard in their context; a lost connection is
//! 08006, as is a shard that does not answer (NetworkTimeout); a connection that could not be made is 08001. No message
//! contains a connection option.

mod cache;
mod connection;
mod coordinator;
mod ffi;
mod handshake;
pub mod hung;
mod libpq_message;
mod login;
mod options;
mod param;
mod prepared;
mod probe;
pub mod refusal;
mod row;
pub mod serializable;
mod session;
mod settings;
mod stream;
mod survey;
mod transaction;
mod wire;

pub use coordinator::{Coordinator, set_coordinator};
pub use handshake::{Cluster, set_cluster};
pub use options::{APPLICATION, mapping_options, parse_conninfo, server_options};
pub use param::{Request, Role, Share, Sql};
pub use row::Row;
pub use session::Session;
pub use settings::{ON_LOST_WRITES, OnLostWrites, init_gucs};
pub use stream::{Feed, Stream, await_all, start};
pub use survey::survey;
pub use transaction::{can_retry, has_failed, undo};
