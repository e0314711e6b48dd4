//! The names of a collection's relations on every shard, in the schema `docshard_data`.

use crate::query::index::IndexKeys;
use std::ffi::CStr;
use std::fmt::Display;

/// The schema of these relations, and of a shard's own tables.
pub const SCHEMA: &str = "docshard_data";

/// [`SCHEMA`] as a C string, for PostgreSQL's functions.
pub const C_SCHEMA: &CStr = c"docshard_data";

/// Returns the qualified name of a relation of this schema.
pub fn relation_name(relation: impl Display) -> String {
    format!("{SCHEMA}.{relation}")
}

/// Returns a relation's name without the schema.
pub fn unqualified(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, name)| name)
}

/// Returns the qualified name of a collection's table.
pub fn table(collection: i32) -> String {
    relation_name(format_args!("c{collection}"))
}

/// Returns the name of the relation of the primary key.
pub fn primary_key(collection: i32) -> String {
    format!("c{collection}_pkey")
}

/// Returns the name of the index on `id`, which tables have whose shard key is not in the order of `_id`.
pub fn id_index(collection: i32) -> String {
    format!("c{collection}_id")
}

/// Returns the name of a secondary index's b-tree.
pub fn index(index: i32) -> String {
    format!("i{index}")
}

/// Returns the name of the index of a secondary index's entries: see [`query::index`](crate::query::index).
pub fn entries(index: i32) -> String {
    format!("i{index}_entries")
}

/// Returns the name of the relation that makes a secondary index unique: see [`unique`](crate::query::index::unique).
pub fn unique(index: i32) -> String {
    format!("i{index}_unique")
}

/// Returns the names of all relations that a secondary index may have.
pub fn possible_relations(id: i32) -> [String; 3] {
    [index(id), entries(id), unique(id)]
}

/// Returns the names of the relations of an index with these keys.
pub fn relations(id: i32, keys: &IndexKeys, is_unique: bool) -> Vec<String> {
    let entries = (keys.has_tree() && keys.has_entries()).then(|| entries(id));
    let unique = is_unique.then(|| unique(id));
    std::iter::once(index(id)).chain(entries).chain(unique).collect()
}

/// Returns the number of the collection whose table has this name: see [`table`].
pub fn collection_of(relation: &str) -> Option<i32> {
    relation.strip_prefix('c')?.parse().ok()
}

/// Returns the number of the secondary index that a relation of this name belongs to: see [`possible_relations`].
pub fn index_of(relation: &str) -> Option<i32> {
    let index = relation.strip_prefix('i')?;
    index.split_once('_').map_or(index, |(index, _)| index).parse().ok()
}

/// A *mark* is the argument of [`sql::by_index`](super::protocol::sql::by_index). This one allows every index, but no plan
/// without an index.
pub const ANY_INDEX: &str = "*";
/// The mark that allows no index.
pub const NO_INDEX: &str = "";
/// The mark that allows only the indexes on `_id` and the shard key.
pub const KEY_INDEXES: &str = "_id";

/// True if a mark names this index of a shard. The mark of a secondary index, for its b-tree and its entries, is the name of the b-tree.
pub fn is_marked(mark: &str, relation: &str) -> bool {
    let secondary = || index_of(relation).is_some_and(|id| index(id) == mark);
    mark == KEY_INDEXES && relation.starts_with('c') || secondary()
}
