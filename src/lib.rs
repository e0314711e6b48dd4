//! docshard: shards collections of jsonb documents over PostgreSQL nodes.

pub mod pg;

::pgrx::pg_module_magic!(name, version);
