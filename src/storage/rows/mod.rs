//! The sink of all writes to collections' tables. Nothing outside of this folder can write a row without being captured:
//!
//! * SQL statements fire the tables' [`trigger`], which captures;
//! * all else goes through a [`Writer`], which captures wherever that trigger is not fired, or through [`bulk`], which does so
//!   itself.
//!
//! [`capture`] decides what becomes of a change. A move's own writes pass it uncaptured.
//!
//! A writer works the way PostgreSQL's executor does for logical replication: indexes, constraints, privileges and triggers are
//! all served, but nothing is parsed, planned or copied from node to node. And an update that changes nothing that an index
//! holds leaves the indexes alone ([`heap_only`]). The table has the columns `skey bytea, id bytea, doc` (jsonb inside), all not
//! null, and a b-tree over the first two. Its [`owner`] knows what its functions make of a document, over which the indexes are
//! ([`index`]). A statement's worth of work is one [`Writer`]; [`Writer::finish`] fires the other triggers.

pub mod bulk;
pub mod capture;
mod changing;
mod heap_only;
mod index;
mod owner;
mod row;
mod trigger;
mod unique_conflict;
mod writer;

pub use changing::{Change, Found};
pub use owner::{Answer, Function, Owner};
pub use row::{Purpose, Row};
pub use unique_conflict::Taken;
pub use writer::{Writer, check_permission};
