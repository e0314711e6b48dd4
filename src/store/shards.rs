//! `docshard_catalog.shards`: names, and the postgres_fdw servers that lead there.

use crate::pg::error::Result;
use crate::pg::spi;
use docshard_core::cluster::chunk_map::ShardId;

rows! {
    /// A shard.
    StoredShard from "shards" {
        id: ShardId,
        name: String,
        /// the postgres_fdw server; None for the router's own database
        server: Option<String>,
        /// the shard is being emptied
        draining: bool,
        /// the largest size of its data, in MiB; None: no limit
        max_size_mb: Option<i32>,
    }

    /// A shard, as `list_shards` shows it.
    ListedShard from "shards s" {
        name: String,
        server: Option<String>,
        draining: bool,
        max_size_mb: Option<i32>,
        /// the number of chunks that it owns
        chunks: i64 = "(SELECT pg_catalog.count(*) FROM docshard_catalog.chunks c WHERE c.shard_id = s.id)",
        /// the number of databases that have this primary shard
        databases: i64 =
            "(SELECT pg_catalog.count(*) FROM docshard_catalog.databases d WHERE d.primary_shard = s.id)",
    }

    /// The address of a shard, for display.
    Location from "shards s" {
        id: ShardId,
        name: String,
        /// host, port and database of its server, or the text "this database"; the same expression as in the view docshard.shards,
        /// which belongs to a higher layer
        host: String = "CASE WHEN s.server IS NULL THEN 'this database' ELSE \
            (SELECT COALESCE(pg_catalog.max(option_value) FILTER (WHERE option_name = 'host'), '') \
                 || COALESCE(':' || pg_catalog.max(option_value) FILTER (WHERE option_name = 'port'), '') \
                 || COALESCE('/' || pg_catalog.max(option_value) FILTER (WHERE option_name = 'dbname'), '') \
               FROM pg_catalog.pg_options_to_table( \
                    (SELECT srvoptions FROM pg_catalog.pg_foreign_server WHERE srvname = s.server))) END",
    }
}

/// The SQL expression for the number of chunks and databases of a shard `s`.
const LOAD: &str = "(SELECT pg_catalog.count(*) FROM docshard_catalog.chunks c WHERE c.shard_id = s.id) + \
                    (SELECT pg_catalog.count(*) FROM docshard_catalog.databases d WHERE d.primary_shard = s.id)";

/// A number for a new shard.
pub fn next_id() -> Result<ShardId> {
    super::next_id("shards")
}

statements! {
    /// All shards, in the active snapshot.
    pub fn read_all() -> Vec<StoredShard> { select_active "" }

    /// All shards by number, as `list_shards` shows them.
    pub fn listed() -> Vec<ListedShard> { select "ORDER BY s.id" }

    /// The addresses of all shards, by number.
    pub fn locations() -> Vec<Location> { select "ORDER BY s.id" }

    /// The number of shards.
    pub fn count() -> i64 { run "SELECT pg_catalog.count(*) FROM docshard_catalog.shards" }

    /// True if there is a shard of that name.
    pub fn exists(name: &str) -> bool { run "SELECT FROM docshard_catalog.shards WHERE name = $1" }

    /// The number of the shard of that name.
    pub fn id(name: &str) -> Option<ShardId> { run "SELECT id FROM docshard_catalog.shards WHERE name = $1" }

    /// The names of the shards on other nodes, by number.
    pub fn remote_names() -> Vec<String> {
        run "SELECT name FROM docshard_catalog.shards WHERE server IS NOT NULL ORDER BY id"
    }

    /// The name of a shard on another node whose displayed identity has this prefix.
    pub fn with_node(prefix: &str) -> Option<String> {
        run "SELECT name FROM docshard_catalog.shards WHERE server IS NOT NULL AND pg_catalog.starts_with(node, $1) ORDER BY id LIMIT 1"
    }

    /// The name of the shard that a server leads to.
    pub fn name_of_server(server: &str) -> Option<String> {
        run "SELECT name FROM docshard_catalog.shards WHERE server = $1::pg_catalog.name"
    }

    /// The first of the names `shard0000`, `shard0001`, … that is free.
    pub fn free_name() -> Option<String> {
        run "SELECT name FROM pg_catalog.generate_series(0, 9999) n, \
                    LATERAL (SELECT 'shard' || pg_catalog.lpad(n::pg_catalog.text, 4, '0') AS name) made \
             WHERE NOT EXISTS (SELECT FROM docshard_catalog.shards s WHERE s.name = made.name) LIMIT 1"
    }

    /// The shard with the fewest chunks and databases that is not draining.
    pub fn emptiest() -> Option<ShardId> {
        run format!("SELECT s.id FROM docshard_catalog.shards s WHERE NOT s.draining ORDER BY {LOAD}, s.id LIMIT 1")
    }

    /// Like [`emptiest`], among these shards, even if they are draining.
    pub fn emptiest_of(shards: &[ShardId]) -> Option<ShardId> {
        run format!("SELECT s.id FROM docshard_catalog.shards s WHERE s.id = ANY ($1) ORDER BY {LOAD}, s.id LIMIT 1")
    }

    /// The number of other shards that are not draining.
    pub fn count_others(shard: ShardId) -> i64 {
        run "SELECT pg_catalog.count(*) FROM docshard_catalog.shards WHERE NOT draining AND id <> $1"
    }

    /// True if a shard is draining; None if it was removed. Its row is locked against changes until the transaction ends.
    pub fn lock_draining(shard: ShardId) -> Option<bool> {
        run "SELECT draining FROM docshard_catalog.shards WHERE id = $1 FOR SHARE"
    }

    /// Locks the rows of all shards until the transaction ends.
    pub fn lock_all() { run "SELECT FROM docshard_catalog.shards FOR UPDATE" }

    /// Inserts a shard on another node.
    pub fn insert(id: ShardId, name: &str, server: &str, node: &str, max_size_mb: Option<i32>) {
        run "INSERT INTO docshard_catalog.shards (id, name, server, node, max_size_mb) \
             VALUES ($1, $2, $3::pg_catalog.text::pg_catalog.name, $4, $5)"
    }

    /// Inserts the router's own database, unless there is a shard of that name.
    pub fn insert_local(name: &str, max_size_mb: Option<i32>) {
        run "INSERT INTO docshard_catalog.shards (name, max_size_mb) SELECT $1, $2 \
             WHERE NOT EXISTS (SELECT FROM docshard_catalog.shards WHERE name = $1)"
    }

    /// Starts or stops draining a shard; false if nothing changes.
    pub fn set_draining(name: &str, draining: bool) -> bool {
        run "UPDATE docshard_catalog.shards SET draining = $2 WHERE name = $1 AND draining <> $2"
    }

    /// Sets the largest size of a shard's data, in MiB.
    pub fn set_max_size(name: &str, max_size_mb: i32) {
        run "UPDATE docshard_catalog.shards SET max_size_mb = $2 WHERE name = $1"
    }

    /// Sets the displayed identity of a shard's database: its server's system identifier, and its OID there.
    pub fn set_node(name: &str, node: &str) {
        run "UPDATE docshard_catalog.shards SET node = $2 WHERE name = $1 AND node IS DISTINCT FROM $2"
    }

    /// Deletes a shard.
    pub fn delete(id: ShardId) { run "DELETE FROM docshard_catalog.shards WHERE id = $1" }
}

/// Locks the list of shards until the transaction ends: other transactions that add or remove a shard wait.
pub fn lock() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.shards IN SHARE ROW EXCLUSIVE MODE")
}
