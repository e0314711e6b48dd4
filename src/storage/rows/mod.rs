//! All writes to collections' tables. Every write, except those of a move itself, is captured for moves ([`capture`]): writes of
//! SQL statements by the tables' [`trigger`], all others by the [`Writer`] or by [`bulk`].
//!
//! The trigger and the writer also check new documents by the collection's validator ([`validation`]).
//!
//! A writer executes one statement as PostgreSQL does for logical replication: it maintains indexes, constraints and triggers,
//! and checks privileges, without parser, planner and executor. An update that changes no index entry writes none
//! ([`heap_only`]). The table has the columns `skey bytea, id bytea, doc` (a domain over jsonb), all not null, with a primary
//! key over the first two; other indexes are over functions of the document, which the [`owner`] knows ([`index`]).

pub mod bulk;
pub mod capture;
mod changing;
mod heap_only;
mod index;
mod owner;
mod row;
mod trigger;
mod unique_conflict;
pub mod validation;
mod writer;

pub use changing::{Change, FoundRow};
pub use owner::{DirectFunction, FunctionResult, Owner};
pub use row::{Purpose, TableRow};
pub use unique_conflict::Conflict;
pub use writer::{Writer, check_permission};
