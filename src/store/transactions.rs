//! `docshard_catalog.transactions`: prepared transactions at shards that this router has decided to commit.

use super::row;
use crate::pg::error::Result;
use crate::pg::spi::param::Param;

/// The prepared transactions at a server that are to be committed, in the active snapshot.
pub fn read_of_server(server: &str) -> Result<Vec<String>> {
    row::read_values("transactions", "gid", "WHERE server = $1::pg_catalog.name", &[Param::Text(server)])
}

/// True if there is any.
pub fn exist() -> Result<bool> {
    row::exists("SELECT FROM docshard_catalog.transactions LIMIT 1", &[])
}

/// Inserts decisions to commit: names of prepared transactions, each with its server.
pub fn insert(gids: &[&str], servers: &[&str]) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.transactions (gid, server) \
         SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2::pg_catalog.name[]))",
        &[Param::TextArray(gids), Param::TextArray(servers)],
    )
}

/// Deletes decisions that have been carried out.
pub fn delete(gids: &[&str]) -> Result<()> {
    row::execute("DELETE FROM docshard_catalog.transactions WHERE gid = ANY ($1)", &[Param::TextArray(gids)])
}

/// Deletes the decisions of a server.
pub fn delete_of_server(server: &str) -> Result<()> {
    let sql = "DELETE FROM docshard_catalog.transactions WHERE server = $1::pg_catalog.name";
    row::execute(sql, &[Param::Text(server)])
}

/// Deletes decisions older than an hour of servers that lead to no shard any more.
pub fn delete_of_removed_shards() -> Result<()> {
    row::execute(
        "DELETE FROM docshard_catalog.transactions AS t WHERE decided_at < pg_catalog.now() - interval '1 hour' \
         AND NOT EXISTS (SELECT FROM docshard_catalog.shards AS s WHERE s.server = t.server)",
        &[],
    )
}
