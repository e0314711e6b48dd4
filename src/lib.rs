//! docshard: shards collections of jsonb documents over PostgreSQL nodes.
//!
//! Layers, from the lowest to the highest; each uses only the ones before it: `docshard_core` (pure logic, and what a router decides) ·
//! [`pg`], [`storage`], [`remote`] (interfaces to PostgreSQL and libpq, with all `unsafe` code) · [`store`],
//! [`shard`], [`catalog`], [`router`], … (the cluster) · [`operation`] · [`command`], [`api`], [`table`] (the interfaces for users).

mod api;
mod balancer;
mod catalog;
mod command;
mod indexing;
mod migration;
mod operation;
mod pg;
mod remote;
mod resharding;
mod router;
mod shard;
mod status;
mod storage;
mod store;
mod table;
mod transactions;
mod worker;

::pgrx::pg_module_magic!(name, version);

/// Called when PostgreSQL loads the library.
#[pgrx::pg_guard]
#[allow(non_snake_case)]
pub extern "C-unwind" fn _PG_init() {
    pg::error::init();
    pg::spi::instrumentation::init();
    pg::memory::budget::init();
    pg::fault::init();
    pg::fdw::init();
    pg::security::bypass::init();
    // A shard raises this error whenever a router's chunk map is stale, and the router repeats the statement.
    pg::error::server_log::hide(docshard_core::error::sqlstate::STALE);
    remote::init_gucs();
    storage::planning::init();
    storage::covering::init();
    router::session::init();
    migration::init();
    resharding::init();
    indexing::init();
    catalog::cluster::contacts::init();
    catalog::cluster::rotation::init();
    catalog::cluster::protection::init();
    transactions::init();
    worker::init();
}

#[global_allocator]
static ALLOCATOR: pg::memory::budget::Counting = pg::memory::budget::Counting;

/// The SQL schema of the functions that routers call at shards; the functions themselves are in [`api`].
#[pgrx::pg_schema]
mod docshard_internal {}

::pgrx::extension_sql_file!("../sql/schemas.sql", name = "schemas", bootstrap);
::pgrx::extension_sql_file!("../sql/any_json.sql", name = "any_json", requires = ["schemas"]);
::pgrx::extension_sql_file!("../sql/catalog.sql", name = "catalog", requires = ["schemas"]);
::pgrx::extension_sql_file!("../sql/protection.sql", name = "protection", requires = ["catalog"]);
::pgrx::extension_sql_file!("../sql/privileges.sql", name = "privileges", finalize);

#[cfg(any(test, feature = "pg_test"))]
mod in_backend;

/// `cargo pgrx test` calls these functions before it starts its server.
#[cfg(test)]
mod pg_test {
    /// Nothing to prepare.
    pub fn setup(_options: Vec<&str>) {}

    /// The test server's settings.
    #[must_use]
    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec!["shared_preload_libraries = 'docshard'"]
    }
}
