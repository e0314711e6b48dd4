//! Objects of PostgreSQL's catalogs: lookups and their invalidation, the extension, drops.

pub(in crate::pg) mod catalog;
pub mod drop_guard;
pub mod extension;
pub mod invalidation;
pub mod lookup_cache;
