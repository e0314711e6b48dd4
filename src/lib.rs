//! docshard: shards collections of jsonb documents over PostgreSQL nodes.
use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);
