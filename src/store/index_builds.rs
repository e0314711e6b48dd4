//! `docshard_catalog.index_builds`: indexes that are being built while writes go on, and failed builds that are not removed yet.

rows! {
    /// A build of an index.
    Build from "index_builds b JOIN docshard_catalog.collections c ON c.id = b.collection_id" {
        /// the number of the future index
        id: i32 = "b.id",
        collection: i32 = "b.collection_id",
        namespace: String = "c.namespace",
        /// the name of the index
        name: String = "b.name",
        /// its keys, as text
        keys: String = "b.keys",
        /// the relations that make up the index on each shard, as the text of an array
        relations: String = "b.relations::pg_catalog.text",
        /// when the build began, in microseconds since 2000
        started_at: i64 = "(extract(epoch FROM b.started_at - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) * 1000000)::pg_catalog.int8",
    }
}

statements! {
    /// All builds, by number.
    pub fn all() -> Vec<Build> { select "ORDER BY b.id" }

    /// The builds of the collection of that name, by number.
    pub fn of_namespace(namespace: &str) -> Vec<Build> { select "WHERE c.namespace = $1 ORDER BY b.id" }

    /// Like [`of_namespace`], by the collection's number.
    pub fn of_collection(collection: i32) -> Vec<Build> { select "WHERE b.collection_id = $1 ORDER BY b.id" }

    /// True if there is a build of that number.
    pub fn exists(id: i32) -> bool { run "SELECT FROM docshard_catalog.index_builds WHERE id = $1" }

    /// True if there is any build.
    pub fn exist() -> bool { run "SELECT FROM docshard_catalog.index_builds LIMIT 1" }

    /// Inserts a build.
    pub fn insert(id: i32, collection: i32, name: &str, keys: &str, relations: &[&str]) {
        run "INSERT INTO docshard_catalog.index_builds (id, collection_id, name, keys, relations) \
             VALUES ($1, $2, $3, $4::text::json, $5)"
    }

    /// Deletes a build; false if there is none of that number.
    pub fn delete(id: i32) -> bool { run "DELETE FROM docshard_catalog.index_builds WHERE id = $1" }
}
