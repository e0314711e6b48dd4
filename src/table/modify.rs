//! Writes of a foreign table: inserts, and updates and deletes of one document each.
//!
//! A row is found again by its [`origin`](super::origin). Between the scan and the write another transaction may have changed the document.
//! So a write requires that the values which the statement has read are unchanged; otherwise it fails with 40001, as under REPEATABLE READ.
//! A row that was deleted meanwhile is skipped, and so is a row that the statement has already written.

use super::column::{Column, Layout, Read};
use super::document::{self, Nulls};
use super::origin::Found;
use super::scan;
use crate::catalog::cache;
use crate::operation::reading;
use crate::operation::request_parts::{Shared, Specification};
use crate::operation::writing::{DocumentWrite, storable};
use crate::pg::error::{Error, Result};
use crate::pg::fdw::value::SqlValue;
use crate::pg::fdw::{Modify, RowValues};
use crate::router::writes::insert::{self, Storable};
use docshard_core::error::sqlstate::NOT_NULL_VIOLATION;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::update::Style;
use docshard_core::routing::request::modification::WriteResult;
use docshard_core::values::document::raw;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::LazyLock;

/// COPY, and an INSERT of several rows, collect rows, and insert them when there are this many.
const COLLECTED_ROWS: usize = 2000;
/// The collected rows are also inserted when they have this many bytes.
const COLLECTED_BYTES: usize = 4 * 1024 * 1024;

pub struct CollectionModify {
    layout: Rc<Layout>,
    /// the columns that RETURNING names
    returned: Vec<i16>,
    collected: Vec<Storable>,
    collected_bytes: usize,
    /// hashes of the keys of rows that the statement has written. Deleted rows are included only if the collection may have several
    /// documents with the same `_id`
    written: HashSet<u128>,
}

/// The update in MongoDB's form that sets columns to these values; a field is removed for None. If one column's path is a prefix
/// of another's, the inner value is set within the outer one, because an update of both paths is a conflict in MongoDB.
pub fn changes<'r>(columns: impl Iterator<Item = (&'r Column, Option<&'r SqlValue>)>) -> Result<Json> {
    let columns: Vec<_> = columns.collect();
    let mut places = HashMap::new();
    for (at, (column, value)) in columns.iter().enumerate() {
        // EXPLAIN does not know this value, so no other value can be set within it.
        if !matches!(value, Some(SqlValue::Unknown(_))) {
            places.entry(&column.path[..]).or_insert(at);
        }
    }
    let mut groups: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for (at, (column, value)) in columns.iter().enumerate() {
        let path = &column.path;
        let mut ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
        let first = ends.find_map(|end| places.get(&path[..end])).copied().unwrap_or(at);
        groups.entry(first).or_default().push((*column, *value));
    }
    let (mut set, mut unset) = (Map::new(), Map::new());
    for (first, group) in groups {
        let path = &columns[first].0.path;
        match document::take(document::of_row(&group, Nulls::Removed)?, path) {
            Some(value) => set.insert(path.clone(), value),
            None => unset.insert(path.clone(), json!("")),
        };
    }
    let mut update = Map::new();
    if !set.is_empty() {
        update.insert("$set".to_owned(), set.into());
    }
    if !unset.is_empty() {
        update.insert("$unset".to_owned(), unset.into());
    }
    Ok(update.into())
}

/// Options that make a write compare strings bytewise, as SQL does, even if the collection has a collation.
pub fn shared(namespace: &str) -> Result<Shared<'static>> {
    static SIMPLE: LazyLock<Json> = LazyLock::new(|| json!({"locale": "simple"}));
    let collated = cache::find(namespace)?.is_some_and(|collection| collection.collation.is_some());
    Ok(Shared { collation: collated.then_some(&*SIMPLE), ..Shared::default() })
}

/// Writes a document. As in SQL, an UPDATE also locks one that already has the new values, so that no other transaction changes it until this
/// one ends. Few statements find such documents, so a second request locks it. `is_read`: the result has the old and the new form of the
/// document.
fn run(write: DocumentWrite<'_>, namespace: &str, is_read: bool) -> Result<WriteResult> {
    let query = write.shared.query(namespace, write.filter)?;
    let mut result = write.run_on(namespace, &query, is_read)?;
    // A write that returns a document has locked it.
    if write.update.is_some() && !is_read && result.matched > result.modified {
        result = DocumentWrite { locks: true, ..write }.run_on(namespace, &query, false)?;
    }
    Ok(result)
}

/// Deletes all documents.
pub fn truncate(layout: &Layout) -> Result<()> {
    scan::require_existing(layout)?;
    let write = DocumentWrite { many: true, ..DocumentWrite::default() };
    write.run(&layout.options.namespace).map(drop)
}

/// For each numeric step of a path, returns the condition that the value at the steps before it is an array. If it is, MongoDB's update
/// would change an element of the array, whereas a column's path means the field of that name.
pub fn arrays_on_the_way(path: &str) -> impl Iterator<Item = Json> + '_ {
    let numbers = path.match_indices('.').filter(|(at, _)| {
        let step = path[at + 1..].split('.').next().unwrap_or_default();
        step.bytes().all(|byte| byte.is_ascii_digit())
    });
    numbers.map(|(at, _)| json!({"$isArray": [format!("${}", &path[..at])]}))
}

impl CollectionModify {
    pub fn new(layout: Rc<Layout>, returned: Vec<i16>) -> Self {
        Self { layout, returned, collected: Vec::new(), collected_bytes: 0, written: HashSet::new() }
    }

    /// The columns of a row, with their values. A column with an invalid definition is skipped if its value is NULL and the table does not
    /// store NULLs; otherwise it is an error.
    fn columns<'r>(&'r self, row: &'r RowValues) -> Result<Vec<(&'r Column, Option<&'r SqlValue>)>> {
        let is_written = |(number, value): &&(i16, Option<SqlValue>)| {
            value.is_some() || self.layout.options.null_as_null || self.layout.column(*number).is_some()
        };
        let column =
            |(number, value): &'r (i16, Option<SqlValue>)| Ok((self.layout.valid_column(*number)?, value.as_ref()));
        row.iter().filter(is_written).map(column).collect()
    }

    /// Inserts documents; returns those that were inserted.
    fn insert_all(&self, mut documents: Vec<Storable>, skips_conflicts: bool) -> Result<Vec<Storable>> {
        let namespace = &self.layout.options.namespace;
        if !skips_conflicts {
            return insert::insert_all(namespace, documents);
        }
        let taken = insert::insert_free(namespace, &documents)?;
        let mut at = 0..;
        documents.retain(|_| at.next().is_some_and(|at| !taken.contains(&at)));
        Ok(documents)
    }

    fn storable(&self, row: &RowValues) -> Result<Storable> {
        let nulls = if self.layout.options.null_as_null { Nulls::Stored } else { Nulls::Ignored };
        storable(&Json::Object(document::of_row(&self.columns(row)?, nulls)?))
    }

    /// The values of all columns in a stored document. A value that does not fit is an error if `is_strict` and RETURNING names its column,
    /// otherwise NULL.
    fn read(&self, bytes: &[u8], is_strict: bool) -> Result<RowValues> {
        let Some(object) = raw::document(bytes) else { bail!(Kind::InternalError, "a document is not an object") };
        let value = |column: &Column| {
            let value = match column.read(object) {
                Read::Value(value) => Some(value),
                Read::Misfit(type_name) if is_strict && self.returned.contains(&column.number) => {
                    return Err(self.layout.misfit(column, type_name, ""));
                }
                Read::Null | Read::Misfit(_) => None,
            };
            Ok((column.number, value))
        };
        self.layout.valid().map(value).collect()
    }

    /// Updates or deletes the document of a row. None if it no longer exists, or was written already. `arrays`: if one of these conditions
    /// is true, the document must not be written. `is_read`: the values are returned.
    fn write(
        &mut self,
        origin: &[u8],
        update: Option<(Json, Style)>,
        arrays: &[Json],
        is_read: bool,
    ) -> Result<Option<RowValues>> {
        let Found { key, mut unchanged } = Found::of(origin)?;
        unchanged.extend(arrays.iter().map(|condition| json!({"$not": [condition]})));
        let text = Json::Object(key.clone()).to_string();
        let hash = u128::from(xxhash_rust::xxh64::xxh64(text.as_bytes(), 0)) << 64
            | u128::from(xxhash_rust::xxh64::xxh64(text.as_bytes(), 1));
        if self.written.contains(&hash) {
            return Ok(None);
        }
        let mut filter = key.clone();
        if !unchanged.is_empty() {
            filter.insert("$expr".to_owned(), json!({"$and": unchanged}));
        }
        let filter = Json::Object(filter);
        let namespace = &self.layout.options.namespace;
        let shared = shared(namespace)?;
        let is_update = update.is_some();
        let write = DocumentWrite {
            filter: Specification::Value(&filter),
            update: update.as_ref().map(|(update, style)| (Specification::Value(update), *style)),
            shared,
            ..DocumentWrite::default()
        };
        let result = run(write, namespace, is_read)?;
        if result.matched > 0 {
            if is_update || key.len() > 1 {
                self.written.insert(hash);
            }
            let image = if is_update { result.after } else { result.before };
            return Ok(Some(
                image
                    .filter(|_| is_read)
                    .map(|bytes| self.read(&bytes, self.layout.is_strict()))
                    .transpose()?
                    .unwrap_or_default(),
            ));
        }
        self.refused(&key, arrays, shared)
    }

    /// Returns the error that tells why the document with this key was not written; None if it no longer exists.
    fn refused(&self, key: &Map<String, Json>, arrays: &[Json], shared: Shared<'_>) -> Result<Option<RowValues>> {
        let namespace = &self.layout.options.namespace;
        let exists = |filter: &Json| {
            let count = reading::Count { filter: Specification::Value(filter), skip: 0, limit: Some(1), shared };
            Ok::<bool, Error>(count.run(namespace)? > 0)
        };
        if !arrays.is_empty() {
            let mut filter = key.clone();
            filter.insert("$expr".to_owned(), json!({"$or": arrays}));
            if exists(&filter.into())? {
                let name = &self.layout.name;
                let message = format!("a path of a column of the foreign table \"{name}\" leads into an array");
                return Err(error!(Kind::PathNotViable, "{message}, whose elements are not written")
                    .with_hint("Write a column of type jsonb with the whole array."));
            }
        }
        // The filter omits the shard key, because another transaction may have changed it.
        if !exists(&json!({"_id": key.get("_id")}))? {
            return Ok(None);
        }
        Err(error!(
            Kind::WriteConflict,
            "a row of the foreign table \"{}\" was changed by another transaction", self.layout.name
        )
        .with_hint("The statement can be run again."))
    }
}

impl Modify for CollectionModify {
    fn insert(&mut self, row: RowValues, skips_conflicts: bool, is_read: bool) -> Result<Option<RowValues>> {
        let inserted = self.insert_all(vec![self.storable(&row)?], skips_conflicts)?;
        let Some(document) = inserted.first() else { return Ok(None) };
        // A generated `_id` may not fit its column, and is NULL then.
        if is_read { self.read(&document.bytes, false).map(Some) } else { Ok(Some(Vec::new())) }
    }

    fn collect(&mut self, row: RowValues, skips_conflicts: bool) -> Result<usize> {
        let document = self.storable(&row)?;
        self.collected_bytes += document.bytes.len();
        self.collected.push(document);
        if self.collected.len() >= COLLECTED_ROWS || self.collected_bytes >= COLLECTED_BYTES {
            self.finish(skips_conflicts)
        } else {
            Ok(0)
        }
    }

    fn finish(&mut self, skips_conflicts: bool) -> Result<usize> {
        let documents = std::mem::take(&mut self.collected);
        self.collected_bytes = 0;
        Ok(if documents.is_empty() { 0 } else { self.insert_all(documents, skips_conflicts)?.len() })
    }

    fn update(&mut self, origin: &[u8], new: RowValues, is_read: bool) -> Result<Option<RowValues>> {
        let columns = self.columns(&new)?;
        if let Some((whole, value)) = columns.iter().find(|(column, _)| column.path.is_empty()) {
            // An update of the whole document to NULL would leave no document.
            if value.is_none() {
                return Err(error!(
                    Kind::BadValue,
                    "null value in the column \"{}\", which is the whole document", whole.name
                )
                .with_sqlstate(NOT_NULL_VIOLATION)
                .with_hint("DELETE deletes rows."));
            }
            let document = document::of_row(&columns, Nulls::Removed)?;
            return self.write(origin, Some((Json::Object(document), Style::Replacement)), &[], is_read);
        }
        let arrays: Vec<Json> = columns.iter().flat_map(|(column, _)| arrays_on_the_way(&column.path)).collect();
        let update = changes(columns.into_iter())?;
        self.write(origin, Some((update, Style::Operators)), &arrays, is_read)
    }

    fn delete(&mut self, origin: &[u8], is_read: bool) -> Result<Option<RowValues>> {
        self.write(origin, None, &[], is_read)
    }
}
