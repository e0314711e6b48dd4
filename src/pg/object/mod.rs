//! Objects of PostgreSQL's catalogs: lookups and their invalidation, the extension, drops and other changes of tables.

pub(in crate::pg) mod catalog;
pub mod change_watch;
pub mod drop_guard;
pub mod extension;
pub mod invalidation;
pub mod lookup_cache;
pub(in crate::pg) mod own_statement;
