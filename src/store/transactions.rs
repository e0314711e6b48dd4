//! `docshard_catalog.transactions`: prepared transactions at shards that this router has decided to commit.

statements! {
    /// The names of the prepared transactions at a server that must be committed, in the active snapshot.
    pub fn read_of_server(server: &str) -> Vec<String> {
        run_active "SELECT gid FROM docshard_catalog.transactions WHERE server = $1::pg_catalog.name"
    }

    /// True if there is any decision.
    pub fn exist() -> bool { run "SELECT FROM docshard_catalog.transactions LIMIT 1" }

    /// Like [`exist`], in the active snapshot.
    pub fn read_exist() -> bool { run_active "SELECT FROM docshard_catalog.transactions LIMIT 1" }

    /// Inserts decisions to commit: names of prepared transactions, each with its server.
    pub fn insert(gids: &[&str], servers: &[&str]) {
        run "INSERT INTO docshard_catalog.transactions (gid, server) \
             SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2::pg_catalog.name[]))"
    }

    /// Deletes decisions that have been carried out.
    pub fn delete(gids: &[&str]) { run "DELETE FROM docshard_catalog.transactions WHERE gid = ANY ($1)" }

    /// Deletes the decisions of a server.
    pub fn delete_of_server(server: &str) {
        run "DELETE FROM docshard_catalog.transactions WHERE server = $1::pg_catalog.name"
    }

    /// Deletes decisions that are older than an hour, of servers that no longer belong to a shard.
    pub fn delete_of_removed_shards() {
        run "DELETE FROM docshard_catalog.transactions AS t WHERE decided_at < pg_catalog.now() - interval '1 hour' \
             AND NOT EXISTS (SELECT FROM docshard_catalog.shards AS s WHERE s.server = t.server)"
    }
}
