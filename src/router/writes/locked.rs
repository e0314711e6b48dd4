//! Writes one document after locking it, and returns its old and new form.
//!
//! The shard locks the document, applies the update, and stores the result in one statement. A document whose shard key changes
//! is not stored there: the shard returns its new form, still locked; the router inserts that on the shard which owns the new
//! key, and then deletes the old document, all in the caller's transaction. The transaction holds locks on the old key from its
//! first statement and on the new key from the insert, so neither range can be handed over meanwhile. The insert comes first: it
//! notices a stale map before anything has been written, so that the whole write can run again.

use crate::catalog::collections::duplicate;
use crate::pg::error::{Error, Result};
use crate::router::dispatch::writing;
use crate::router::rows::ShardRow;
use crate::router::writes::insert::{self, Storable};
use crate::router::writes::target::WriteTarget;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::divided_scan;
use docshard_core::routing::plan::order::column_order;
use docshard_core::routing::plan::select::order_by;
use docshard_core::routing::plan::statement::{Statement, first_params};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::sql;
use docshard_core::routing::request::modification::{Modification, Write, WriteResult};
use docshard_core::sql::column::Column;

/// Writes the document; the result is empty if there is none.
pub fn write(write: &Write<'_>, target: &WriteTarget<'_>) -> Result<WriteResult> {
    let collection = target.search.collection;
    let (matched, conditions) = matched(write, target)?;
    let statement = statement(collection, write, &matched, conditions, "NULL::bytea");
    let written = writing::write(collection, &target.destinations, &target.lock_range(), |_| &statement)?;
    for (written, destination) in written.iter().zip(&target.destinations) {
        if let Some(row) = written.rows.first() {
            return finish(collection, row, destination, write);
        }
    }
    Ok(WriteResult::default())
}

/// Columns of the statement's result.
const SKEY: usize = 0;
const ID: usize = 1;
const BEFORE: usize = 2;
const AFTER: usize = 3;
const MODIFIED: usize = 4;
const MOVES: usize = 5;
/// The argument `beyond` of [`statement`].
pub const BEYOND: usize = 6;

const UPDATED: &[Column] = &{
    let bytes = Column::BYTES.or_null();
    [bytes, bytes, bytes, bytes, Column::INT8, Column::INT8, bytes, bytes]
};
const DELETED: &[Column] = UPDATED.split_at(UPDATED.len() - 1).0;

/// Returns the SQL of the common table `matched`, which finds and locks the document and has at most one row, and its
/// conditions.
fn matched(write: &Write<'_>, target: &WriteTarget<'_>) -> Result<(String, Conditions)> {
    if let Some(found) = matched_in_order(write, target) {
        return Ok(found);
    }
    let collection = target.search.collection;
    let mut conditions = target.conditions()?;
    let order = match write.sort.as_ref().filter(|_| target.is_by_filter()) {
        Some(sort) => order_by(collection, &write.query.filter, sort, &mut conditions),
        None => String::new(),
    };
    let sql = format!(
        "matched AS MATERIALIZED (SELECT t.ctid AS place, t.skey, t.id, t.doc FROM {} t WHERE {}{order} LIMIT 1 FOR UPDATE)",
        collection.table(),
        conditions.sql()
    );
    Ok((sql, conditions))
}

/// Like [`matched`], with an index whose b-tree has the order of the sort; None if there is none. The SQL locks the first
/// document of the b-tree and the first of the entries (see [`divided_scan`]), and returns the first of the two. In the b-tree it
/// reads only that document; the entries have no order, and are sorted.
fn matched_in_order(write: &Write<'_>, target: &WriteTarget<'_>) -> Option<(String, Conditions)> {
    let (sort, text) = write.sort.as_ref().filter(|_| target.is_by_filter())?;
    let collection = target.search.collection;
    if column_order(collection, target.search.filter(), sort).is_some() {
        return None;
    }
    let (mut conditions, scan) = divided_scan::of_search(&target.search, Some(sort))?;
    let text = conditions.param(Parameter::Text(text.clone()));
    let first = |part: &str, order: &str| {
        format!(
            "SELECT * FROM (SELECT t.ctid AS place, t.skey, t.id, t.doc, {} AS key FROM {} t \
             WHERE {part} ORDER BY {order} LIMIT 1 FOR UPDATE) AS h",
            sql::sort_key("t.doc", &text),
            collection.table()
        )
    };
    let btree = first(&scan.btree, scan.order.as_deref().unwrap_or("key"));
    let Some(entries) = &scan.entries else {
        let sql = format!("matched AS MATERIALIZED (SELECT f.place, f.skey, f.id, f.doc FROM ({btree}) AS f)");
        return Some((sql, conditions));
    };
    // While the statement waits for a document's lock, the document may leave one part for the other one, which has been
    // searched already. If both searches return nothing, a third one searches both parts together.
    let either = format!("(({}) OR ({entries}))", scan.btree);
    let sql = format!(
        "first AS MATERIALIZED (SELECT f.place, f.skey, f.id, f.doc FROM ({btree} UNION ALL {}) AS f ORDER BY f.key LIMIT 1), \
         matched AS MATERIALIZED (SELECT * FROM first UNION ALL SELECT * FROM (\
           SELECT t.ctid, t.skey, t.id, t.doc FROM {} t WHERE {either} AND NOT EXISTS (SELECT FROM first) \
           ORDER BY {} LIMIT 1 FOR UPDATE) AS h LIMIT 1)",
        first(entries, "key"),
        collection.table(),
        sql::sort_key("t.doc", &text)
    );
    Some((sql, conditions))
}

/// Returns the statement that changes the document which the common table `matched` finds and locks. Its result has at most one row.
/// `beyond`: a column of `matched`, or an expression; it becomes the result's column [`BEYOND`]. A row of `matched` without a document is
/// returned, too.
pub fn statement(
    collection: &Collection,
    write: &Write<'_>,
    matched: &str,
    mut conditions: Conditions,
    beyond: &str,
) -> Statement {
    let table = collection.table();
    let before = if write.images { sql::pack("w.doc") } else { "NULL::bytea".to_owned() };
    let (sql, columns) = match write.modification {
        None => (
            format!(
                "WITH {matched}, \
             deleted AS (DELETE FROM {table} t USING matched w WHERE t.skey = w.skey AND t.id = w.id RETURNING 1) \
             SELECT w.skey, w.id, {before}, NULL::bytea, 0::int8, 0::int8, {beyond} FROM matched w"
            ),
            DELETED,
        ),
        Some(modification) => {
            let update = conditions.param(Parameter::Text(modification.text.clone()));
            let fixed = conditions.param(Parameter::TextArray(Vec::new()));
            let moves = changes_key(collection, modification, &mut conditions);
            let after = if write.images { "true" } else { "w.moves" };
            let sql = format!(
                "WITH {matched}, \
                 applied AS MATERIALIZED (\
                   SELECT m.*, {} AS after FROM matched m), \
                 weighed AS MATERIALIZED (SELECT a.*, {moves} AS moves FROM applied a) \
                 SELECT w.skey, w.id, {before}, CASE WHEN {after} THEN {} END, \
                   (w.after IS NOT NULL)::int4::int8, w.moves::int4::int8, {beyond}, CASE WHEN w.after IS NOT NULL AND NOT w.moves \
                     THEN {} END \
                 FROM weighed w",
                sql::apply_update("m.doc", update, fixed),
                sql::pack("w.after"),
                sql::replace_document(collection.id, "w.place", "w.skey", "w.id", "w.doc", "w.after")
            );
            (sql, UPDATED)
        }
    };
    conditions.into_statement(sql, columns)
}

/// Returns the SQL condition that the update changes the document's shard key.
fn changes_key(collection: &Collection, modification: &Modification, conditions: &mut Conditions) -> String {
    let paths: Vec<String> = collection.key.fields.iter().map(|(path, _)| path.clone()).collect();
    if !paths.iter().any(|path| modification.update.touches(path)) {
        return "false".to_owned();
    }
    let paths = conditions.param(Parameter::TextArray(paths));
    format!("(a.after IS NOT NULL AND {})", sql::changes_key("a.doc", "a.after", paths))
}

/// Turns the shard's row into a result, and relocates the document if its shard key has changed.
pub fn finish(
    collection: &Collection,
    row: &ShardRow,
    destination: &Destination,
    write: &Write<'_>,
) -> Result<WriteResult> {
    let image = |column| Ok::<_, Error>(row.document(column)?.map(<[u8]>::to_vec));
    let (before, after) = (image(BEFORE)?, image(AFTER)?);
    if row.i64(MOVES) != 0 {
        let after = after
            .as_deref()
            .ok_or_else(|| Error::protocol_violation("the shard did not return the document to be relocated"))?;
        relocate(collection, destination, row.bytes(SKEY).to_vec(), row.bytes(ID).to_vec(), after)?;
    }
    let images = write.images;
    let unchanged = after.is_none() && write.modification.is_some();
    Ok(WriteResult {
        matched: 1,
        modified: row.i64(MODIFIED).clamp(0, 1),
        after: if unchanged { before.clone() } else { after }.filter(|_| images),
        before,
        upserted: None,
    })
}

/// Inserts a document, which this transaction has locked, under its new shard key and deletes it under the old one.
fn relocate(collection: &Collection, old: &Destination, skey: Vec<u8>, id: Vec<u8>, document: &[u8]) -> Result<()> {
    let document = Storable::of_stored(document)?;
    if !insert::insert_if_absent(collection, &document)? {
        return Err(duplicate::of_id(&collection.namespace, &document.id));
    }
    let sql = format!("DELETE FROM {} t WHERE t.skey = $3 AND t.id = $4", collection.table());
    let mut params = first_params(collection);
    params.extend([Parameter::Bytes(skey), Parameter::Bytes(id)]);
    let statement = Statement { sql, params, columns: &[] };
    match writing::write_locked(collection, old, &statement)?.affected {
        1 => Ok(()),
        n => Err(error!(Kind::InternalError, "{n} documents were deleted under the old shard key instead of one")),
    }
}
