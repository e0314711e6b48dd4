//! docshard: shards collections of jsonb documents over PostgreSQL nodes.

pub mod pg;
pub mod remote;

::pgrx::pg_module_magic!(name, version);
