//! Fragments: the functions that are part of a larger statement, as SQL text around the SQL of their arguments.

use super::signature::Shape::{Table, Value, Void};
use super::signature::qualified;

fragments! {
    /// True at this version; otherwise an ERROR that the router understands as *stale*.
    at_version(collection: "integer", token: "bigint", version: "bigint") -> Value("boolean");

    /// Like [`at_version`]; the shard also counts the statement as a read of these shard keys, one in each chunk that it reads. Without
    /// keys it reads most of the collection.
    at_keys(collection: "integer", token: "bigint", version: "bigint", keys: "bytea[]") -> Value("boolean");

    /// True. Its argument names the indexes that the planner may use: see `storage::planning`.
    by_index(_index: "text") -> Value("boolean");

    /// True. The planner evaluates it as a constant, so a backend that plans a statement with it has loaded this library.
    load_library() -> Value("boolean");

    /// True if the document matches the filter.
    matches(doc: "jsonb", filter: "text") -> Value("boolean");

    /// The document with the projected fields.
    project(doc: "jsonb", projection: "text") -> Value("jsonb");

    /// The key by which the document is sorted.
    sort_key(doc: "jsonb", sort: "text") -> Value("bytea");

    /// One field of that key, as an index stores it.
    sort_field_key(doc: "jsonb", sort: "text", field: "integer") -> Value("bytea");

    /// The document's shard key.
    shard_key(doc: "jsonb", pattern: "text") -> Value("bytea");

    /// The updated document; NULL if nothing changes.
    apply_update(doc: "jsonb", update: "text", fixed: "text[]") -> Value("jsonb");

    /// True if the two documents differ at one of the paths, the shard key's.
    changes_key(before: "jsonb", after: "jsonb", paths: "text[]") -> Value("boolean");

    /// The values that a field of the document has, each with a key that equal values share.
    distinct_values(doc: "jsonb", field: "text", setting: "text") -> Table(&[("key", "bytea"), ("value", "bytea")]);

    /// jsonb as its own bytes.
    pack(doc: "jsonb") -> Value("bytea");

    /// jsonb from its own bytes, which are checked.
    unpack(bytes: "bytea") -> Value("jsonb");

    /// The order of a document's fields and the marks of its long integers, which its text does not have; NULL if there is
    /// neither.
    detach_order(doc: "jsonb") -> Value("bytea");

    /// The document with what `detach_order` has returned.
    attach_order(doc: "jsonb", detached: "bytea") -> Value("jsonb");

    /// What one column of an index stores of the document.
    index_key(doc: "jsonb", keys: "text", position: "integer") -> Value("bytea");

    /// Nothing; an ERROR if the index does not take the document.
    check_index_key(doc: "jsonb", keys: "text") -> Value("bytea");

    /// The document's keys in a unique index, packed.
    unique_keys(doc: "jsonb", keys: "text") -> Value("bytea");

    /// The types of the document's values that its keys in an index do not show.
    index_types(doc: "jsonb", keys: "text") -> Value("bytea");

    /// Restores a document with the fields of an index from the types and columns of its b-tree.
    restore_document(keys: "text", types: "bytea", columns: "bytea[]") -> Value("jsonb");

    /// True if the document's keys in an index are entries.
    has_index_entries(doc: "jsonb", keys: "text") -> Value("boolean");

    /// The document's entries in an index.
    index_entries(doc: "jsonb", keys: "text") -> Value("bytea[]");

    /// The first of the document's keys in an index that lies in `[lo, hi)`; NULL if none does.
    key_within(doc: "jsonb", keys: "text", lo: "bytea", hi: "bytea") -> Value("bytea");

    /// A field of that key.
    key_field_within(doc: "jsonb", keys: "text", lo: "bytea", hi: "bytea", field: "integer") -> Value("bytea");

    /// Serialises the upserts of a collection that share a number, until the transaction ends.
    lock_upsert(collection: "integer", number: "bigint") -> Void;

    /// The unique index in which another document has a key of this one, and that key.
    find_conflict(collection: "integer", skey: "bytea", id: "bytea", document: "bytea") -> Table(&[("relation", "text"), ("key", "bytea")]);

    /// Replaces the document of a row that the statement has found and locked.
    replace_document(collection: "integer", place: "tid", skey: "bytea", id: "bytea", doc: "jsonb", after: "jsonb") -> Void;

    /// True; an ERROR if the caller may not update documents of the collection.
    may_update(collection: "integer") -> Value("boolean");

    /// Aggregate: updates the rows that the statement finds; returns how many matched, and how many changed.
    update_found(
        collection: "integer", place: "tid", skey: "bytea", id: "bytea", doc: "jsonb", filter: "text", update: "text", fixed: "text[]",
    ) -> Value("bigint[]");

    /// How many documents of a collection the shard has.
    count_all(collection: "integer") -> Value("bigint");

    /// How many documents of a collection match a filter, by a scan of the table.
    count_matching(collection: "integer", filter: "text") -> Value("bigint");

    /// True if a donor says that it is the one that is expected; otherwise an ERROR.
    check_donor(found: "text", expected: "text") -> Value("boolean");

    /// A part that a recipient has pulled, decoded.
    decode_part(packed: "text") -> Value("bytea");

    /// A collection's UUID.
    collection_uuid(id: "integer", token: "bigint") -> Value("jsonb");
}

/// True if one of the entries lies in one of the ranges.
pub fn entries_meet(entries: &str, ranges: &str) -> String {
    format!("{entries} OPERATOR(docshard_internal.@~) {ranges}")
}

/// The number of pages of the table whose row of `pg_class` is `class`; 0 if it was dropped since the snapshot.
pub fn table_pages(class: &str) -> String {
    format!(
        "(coalesce(pg_catalog.pg_relation_size({class}.oid), 0) / pg_catalog.current_setting('block_size')::pg_catalog.int8)"
    )
}

/// The number of documents in that table: PostgreSQL's statistics, scaled to the size that the table has now. NULL without
/// statistics.
pub fn estimated_documents(class: &str) -> String {
    format!(
        "CASE WHEN {class}.reltuples >= 0 AND {class}.relpages > 0 \
         THEN ({class}.reltuples / {class}.relpages * {})::pg_catalog.int8 END",
        table_pages(class)
    )
}

/// The view that is a collection of the virtual database `config`.
pub fn config_view(collection: &str) -> String {
    qualified(&format!("config_{collection}"))
}

/// Returns a text constant as PostgreSQL writes it in an expression's tree: each byte as a signed number.
pub fn constant_in_tree(text: &str) -> String {
    let bytes: Vec<String> = text.bytes().map(|byte| byte.cast_signed().to_string()).collect();
    format!(" {} ]", bytes.join(" "))
}
