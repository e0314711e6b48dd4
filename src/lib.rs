//! docshard: shards collections of jsonb documents over PostgreSQL nodes.
//!
//! Layers, each using only what stands above it: `docshard_core` (pure) · [`pg`], [`remote`] (the edges, the only ones
//! with `unsafe`) · [`ownership`], [`catalog`], [`router`], … (the cluster) · [`api`] (the face).

pub mod api;
pub mod catalog;
pub mod ownership;
pub mod pg;
pub mod remote;
pub mod router;

::pgrx::pg_module_magic!(name, version);

::pgrx::extension_sql_file!("../sql/schemas.sql", name = "schemas", bootstrap);
::pgrx::extension_sql_file!("../sql/catalog.sql", name = "catalog", requires = ["schemas"]);
