//! The router: turns a document operation into statements for the shards that it concerns, and the shards' rows into the operation's
//! result.
//!
//! Core's `routing` parses a read into a query with options, and makes a plan of it. [`execute`] runs the plan, [`explain`] shows it. Each
//! module imports only modules that come before it in this list:
//!
//! * [`session`]: what requests and plans take from the session.
//! * [`sampling`]: samples statements for advice on shard keys.
//! * [`lost_shards`], [`rows`]: results. [`merged_rows`]: the rows of several shards as one ordered stream.
//! * `gate`: makes writers wait before a change of their collection's layout. [`fresh_map`]: runs an operation again with a newer map when
//!   a shard answered that the map was stale.
//! * [`numbered`]: the number of a write that its client may send again, and that is executed once.
//! * [`dispatch`]: sends statements, takes locks, checks versions. [`execute`]: runs a plan.
//! * [`config`]: the catalog as a database. [`source`]: what a namespace names, and the answer to each read of it.
//! * [`writes`], [`reads`]: the operations. [`by_key`]: the fast path for one document whose key is the whole filter.
//! * [`explain`]: says how reads are executed, in MongoDB's terms.
//!
//! INVARIANTS (see `shard`): every statement carries the version that its map has for the shard; if one target reports a stale map, the
//! answers of all targets are discarded; no row is returned before every target has confirmed its version; a write takes its locks and
//! checks the version before it writes.

pub mod by_key;
mod config;
pub mod dispatch;
pub mod execute;
pub mod explain;
pub mod fresh_map;
mod gate;
pub mod lost_shards;
pub mod merged_rows;
pub mod numbered;
pub mod reads;
pub mod rows;
pub mod sampling;
pub mod session;
pub mod source;
pub mod writes;
