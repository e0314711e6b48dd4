//! `docshard_catalog.shards`: names, and the postgres_fdw servers that lead there.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;

row! {
    /// A shard.
    pub struct StoredShard from "shards" {
        /// its number
        pub id: ShardId,
        /// its name
        pub name: String,
        /// the postgres_fdw server; None for the router's own database
        pub server: Option<String>,
        /// it is being emptied
        pub draining: bool,
        /// how much it may hold, in MiB
        pub max_size_mb: Option<i32>,
    }
}

row! {
    /// A shard, as it is listed for people.
    pub struct ListedShard from "shards s" {
        /// its number
        pub id: ShardId,
        /// its name
        pub name: String,
        /// the postgres_fdw server
        pub server: Option<String>,
        /// host, port and database of its server, or that it is this database
        pub host: String = "CASE WHEN s.server IS NULL THEN 'this database' ELSE \
            (SELECT COALESCE(pg_catalog.max(option_value) FILTER (WHERE option_name = 'host'), '') \
                 || COALESCE(':' || pg_catalog.max(option_value) FILTER (WHERE option_name = 'port'), '') \
                 || COALESCE('/' || pg_catalog.max(option_value) FILTER (WHERE option_name = 'dbname'), '') \
               FROM pg_catalog.pg_options_to_table( \
                    (SELECT srvoptions FROM pg_catalog.pg_foreign_server WHERE srvname = s.server))) END",
        /// it is being emptied
        pub draining: bool,
        /// how much it may hold, in MiB
        pub max_size_mb: Option<i32>,
        /// how many chunks it owns
        pub chunks: i64 = "(SELECT pg_catalog.count(*) FROM docshard_catalog.chunks c WHERE c.shard_id = s.id)",
        /// of how many databases it is the primary shard
        pub databases: i64 =
            "(SELECT pg_catalog.count(*) FROM docshard_catalog.databases d WHERE d.primary_shard = s.id)",
    }
}

/// In SQL, how many chunks and databases a shard `s` has.
const LOAD: &str = "(SELECT pg_catalog.count(*) FROM docshard_catalog.chunks c WHERE c.shard_id = s.id) + \
                    (SELECT pg_catalog.count(*) FROM docshard_catalog.databases d WHERE d.primary_shard = s.id)";

/// All shards, in the active snapshot.
pub fn read_all() -> Result<Vec<StoredShard>> {
    row::read("", &[])
}

/// All shards by number, as they are listed for people.
pub fn listed() -> Result<Vec<ListedShard>> {
    row::query("ORDER BY s.id", &[])
}

/// How many shards there are.
pub fn count() -> Result<i64> {
    row::count("shards", "", &[])
}

/// True if there is a shard of that name.
pub fn exists(name: &str) -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.shards WHERE name = $1", &[Param::Text(name)])
}

/// The number of the shard of that name.
pub fn id(name: &str) -> Result<Option<ShardId>> {
    row::value("shards", "id", "WHERE name = $1", &[Param::Text(name)])
}

/// The names of the shards on other nodes, by number.
pub fn remote_names() -> Result<Vec<String>> {
    row::values("shards", "name", "WHERE server IS NOT NULL ORDER BY id", &[])
}

/// The name of the shard that a server leads to.
pub fn name_of_server(server: &str) -> Result<Option<String>> {
    row::value("shards", "name", "WHERE server = $1::pg_catalog.name", &[Param::Text(server)])
}

/// The names `shard0000`, `shard0001`, … begin so; returns the first that is free.
pub fn free_name() -> Result<Option<String>> {
    row::optional_scalar(
        "SELECT name FROM pg_catalog.generate_series(0, 9999) n, \
                LATERAL (SELECT 'shard' || pg_catalog.lpad(n::pg_catalog.text, 4, '0') AS name) made \
         WHERE NOT EXISTS (SELECT FROM docshard_catalog.shards s WHERE s.name = made.name) LIMIT 1",
        &[],
    )
}

/// The shard with the fewest chunks and databases that is not draining.
pub fn emptiest() -> Result<Option<ShardId>> {
    row::value("shards s", "s.id", &format!("WHERE NOT s.draining ORDER BY {LOAD}, s.id LIMIT 1"), &[])
}

/// As [`emptiest`], among these.
pub fn emptiest_of(shards: &[ShardId]) -> Result<Option<ShardId>> {
    let rest = format!("WHERE s.id = ANY ($1) ORDER BY {LOAD}, s.id LIMIT 1");
    row::value("shards s", "s.id", &rest, &[Param::Int4Array(shards)])
}

/// How many shards beside this one are not draining.
pub fn count_others(shard: ShardId) -> Result<i64> {
    row::count("shards", "WHERE NOT draining AND id <> $1", &[Param::Int4(shard)])
}

/// True if a shard is draining; None if it is gone. Its row is locked against changes until the transaction ends.
pub fn lock_draining(shard: ShardId) -> Result<Option<bool>> {
    row::value("shards", "draining", "WHERE id = $1 FOR SHARE", &[Param::Int4(shard)])
}

/// Locks the rows of all shards until the transaction ends.
pub fn lock_all() -> Result<()> {
    row::execute("SELECT FROM docshard_catalog.shards FOR UPDATE", &[])
}

/// A number for a new shard.
pub fn next_id() -> Result<ShardId> {
    super::next_id("shards")
}

/// Inserts a shard on another node.
pub fn insert(id: ShardId, name: &str, server: &str, node: &str, max_size_mb: Option<i32>) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.shards (id, name, server, node, max_size_mb) \
         VALUES ($1, $2, $3::pg_catalog.text::pg_catalog.name, $4, $5::pg_catalog.int4)",
        &[
            Param::Int4(id),
            Param::Text(name),
            Param::Text(server),
            Param::Text(node),
            Param::OptText(max_size_mb.map(|mb| mb.to_string()).as_deref()),
        ],
    )
}

/// Inserts the router's own database, unless there is a shard of that name.
pub fn insert_local(name: &str, max_size_mb: Option<i32>) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.shards (name, max_size_mb) SELECT $1, $2::pg_catalog.int4 \
         WHERE NOT EXISTS (SELECT FROM docshard_catalog.shards WHERE name = $1)",
        &[Param::Text(name), Param::OptText(max_size_mb.map(|mb| mb.to_string()).as_deref())],
    )
}

/// Makes a shard drain, or not; false if it does so already.
pub fn set_draining(name: &str, draining: bool) -> Result<bool> {
    let sql = "UPDATE docshard_catalog.shards SET draining = $2 WHERE name = $1 AND draining <> $2";
    Ok(row::count_changed(sql, &[Param::Text(name), Param::Bool(draining)])? > 0)
}

/// Sets what people see of a shard's database: its server's system identifier, and its number there.
pub fn set_node(name: &str, node: &str) -> Result<()> {
    let sql = "UPDATE docshard_catalog.shards SET node = $2 WHERE name = $1 AND node IS DISTINCT FROM $2";
    row::execute(sql, &[Param::Text(name), Param::Text(node)])
}

/// Deletes a shard.
pub fn delete(id: ShardId) -> Result<()> {
    row::execute("DELETE FROM docshard_catalog.shards WHERE id = $1", &[Param::Int4(id)])
}
