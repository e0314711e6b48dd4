//! The executor of statements on shards, over libpq. It knows PostgreSQL servers and transactions, and no collections.
//!
//! A request names a foreign server of postgres_fdw; the server's options and user mapping say how to connect. [`start`] sends
//! requests to any number of shards before it awaits any answer; each answer is a [`Stream`] of rows in PostgreSQL's binary
//! format. Remote transactions follow the local one (`transaction`). A [`Session`] is a connection outside the local
//! transaction. Only `ffi` calls C.
//!
//! A file uses only files that stand before it here: `param`, `ffi`, `libpq_message`, `serializable`, `row`, `options`,
//! `hung`, `settings`, `probe`, `wire`, `handshake`, `login`, `survey`, `session`, `prepared`, `coordinator`, `connection`, `cache`,
//! `transaction`, `stream`.
//!
//! Errors of shards keep SQLSTATE, message, detail and hint, and name the shard in their context. A lost connection is 08006, as is
//! a shard that does not respond (NetworkTimeout); a failed connection attempt is 08001. No message contains a connection option.

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
mod row;
pub mod serializable;
mod session;
mod settings;
mod stream;
mod survey;
mod transaction;
mod wire;

pub use connection::grants_changed;
pub use coordinator::{Coordinator, set_coordinator};
pub use handshake::{Cluster, set_cluster};
pub use login::{RefusedHost, refused_hosts};
pub use options::{APPLICATION, alternatives, mapping_options, parse_conninfo, server_options};
pub use param::{Request, RequestScope, Role, Sql};
pub use row::RemoteRow;
pub use session::Session;
pub use settings::{ON_LOST_WRITES, OnLostWrites, init_gucs};
pub use stream::{Feed, Stream, await_all, start};
pub use survey::survey;
pub use transaction::{can_retry, has_failed, is_used, undo};
