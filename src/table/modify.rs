//! Writes of a foreign table: inserts, and updates and deletes of one document each.
//!
//! A row is found again by `_id` and the shard key. Between the scan and the write another transaction may have changed the document. So a write
//! also requires that the columns that the statement has read are unchanged; otherwise it fails with 40001, as under REPEATABLE READ. A row that
//! was deleted meanwhile is skipped, and so is one that the statement has updated already.

use super::column::{Column, Layout, Read};
use super::condition::has_value;
use super::document::{self, json};
use super::scan;
use crate::catalog::cache;
use crate::operation::reading;
use crate::operation::request_parts::{Shared, Specification};
use crate::operation::writing::{DocumentWrite, storable};
use crate::pg::error::Result;
use crate::pg::fdw::value::{Scalar, SqlValue};
use crate::pg::fdw::{Modify, RowValues};
use crate::router::insert::{self, Storable};
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::update::Style;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::raw::{self, RawValue};
use docshard_core::values::document::value::Value;
use serde_json::{Map, Value as Json, json};
use std::collections::HashSet;

/// Rows that COPY collects, and their bytes.
const COLLECTED_ROWS: usize = 2000;
const COLLECTED_BYTES: usize = 4 * 1024 * 1024;

pub struct CollectionModify {
    layout: Layout,
    columns: Vec<Column>,
    /// the paths that identify a document: `_id`, and the fields of the shard key
    key: Vec<String>,
    collected: Vec<Storable>,
    collected_bytes: usize,
    /// the rows that were updated, by a hash of their keys
    updated: HashSet<u128>,
}

/// `_id`, and the fields of the shard key.
fn key_paths(namespace: &str) -> Result<Vec<String>> {
    let mut paths = vec!["_id".to_owned()];
    if let Some(collection) = cache::find(namespace)? {
        paths.extend(collection.key.fields.iter().map(|(path, _)| path.clone()).filter(|path| path != "_id"));
    }
    Ok(paths)
}

/// The columns that identify a row: those of the key, or else the whole document.
/// Errors: `NotImplemented` if the table has neither.
pub fn identity(layout: &Layout) -> Result<Vec<i16>> {
    let columns = layout.all()?;
    let of_path = |path: &String| {
        let found = columns.iter().find(|column| column.path == *path && document::is_lossless(column));
        found.map(|column| column.number)
    };
    let key: Option<Vec<i16>> = key_paths(&layout.options.namespace)?.iter().map(of_path).collect();
    let whole = || {
        columns
            .iter()
            .find(|column| column.path.is_empty() && column.kind.scalar == Scalar::Jsonb)
            .map(|column| vec![column.number])
    };
    key.or_else(whole).ok_or_else(|| {
        let error = error!(
            Kind::NotImplemented,
            "the foreign table \"{}\" has no columns that identify a document", layout.name
        );
        error
            .with_hint("It needs columns for _id and the fields of the shard key, or a column jsonb OPTIONS (path '').")
    })
}

/// Deletes all documents.
pub fn truncate(layout: &Layout) -> Result<()> {
    scan::require_existing(layout)?;
    let write = DocumentWrite {
        filter: Specification::EMPTY,
        update: None,
        many: true,
        upsert: false,
        array_filters: None,
        sort: None,
        skip_locked: false,
        shared: Shared::default(),
    };
    write.run(&layout.options.namespace).map(drop)
}

impl CollectionModify {
    pub fn new(layout: Layout) -> Result<Self> {
        let columns = layout.all()?;
        let key = key_paths(&layout.options.namespace)?;
        Ok(Self { layout, columns, key, collected: Vec::new(), collected_bytes: 0, updated: HashSet::new() })
    }

    fn column(&self, number: i16) -> Result<&Column> {
        let found = self.columns.iter().find(|column| column.number == number);
        found.ok_or_else(|| error!(Kind::InternalError, "a column of a foreign table is missing"))
    }

    fn storable(&self, row: &RowValues) -> Result<Storable> {
        let columns =
            row.iter().map(|(number, value)| Ok((self.column(*number)?, value))).collect::<Result<Vec<_>>>()?;
        let document = document::of_row(columns.into_iter(), self.layout.options.null_as_null)?;
        storable(&Json::Object(document))
    }

    /// The values of all columns in a stored document. One that does not fit is NULL: it is there now, and the statement has not asked for it.
    fn read(&self, bytes: &[u8]) -> Result<RowValues> {
        let Some(object) = raw::document(bytes) else { bail!(Kind::InternalError, "a document is not an object") };
        let value = |column: &Column| match column.read(object) {
            Read::Value(value) => Some(value),
            Read::Null | Read::Misfit(_) => None,
        };
        Ok(self.columns.iter().map(|column| (column.number, value(column))).collect())
    }

    /// The filter of the document that a row was.
    fn key_filter(&self, old: &RowValues) -> Result<Map<String, Json>> {
        let mut filter = Map::new();
        let mut whole = None;
        for (number, value) in old {
            let column = self.column(*number)?;
            if column.path.is_empty() {
                whole = value.as_ref();
            } else if self.key.contains(&column.path) && document::is_lossless(column) {
                let value = value.as_ref().map_or(Ok(Json::Null), |value| json(column, value))?;
                filter.insert(column.path.clone(), json!({"$eq": value}));
            }
        }
        if filter.len() < self.key.len() {
            let Some(SqlValue::Jsonb(bytes)) = whole else {
                bail!(Kind::InternalError, "a row of a foreign table has no key");
            };
            for path in &self.key {
                let value =
                    at(raw::root(bytes), path).map_or(Json::Null, |value| ext_json::to_json(&Value::from_raw(value)));
                filter.insert(path.clone(), json!({"$eq": value}));
            }
        }
        Ok(filter)
    }

    /// Conditions that the columns that were read are unchanged.
    fn unchanged(&self, old: &RowValues) -> Result<Vec<Json>> {
        let mut filters = Vec::new();
        for (number, value) in old {
            let column = self.column(*number)?;
            match value {
                Some(value) if column.path.is_empty() => {
                    filters.push(json!({"$expr": {"$eq": ["$$ROOT", {"$literal": json(column, value)?}]}}));
                }
                Some(value) if column.is_scalar() => filters.extend(has_value(column, value)),
                Some(value) if column.kind.scalar != Scalar::Bytea => {
                    let value = json(column, value)?;
                    filters.push(json!({column.path.clone(): {"$eq": value}}));
                }
                None if !column.path.is_empty() && self.layout.is_strict() => {
                    filters.push(json!({column.path.clone(): null}))
                }
                _ => {}
            }
        }
        Ok(filters)
    }

    /// Writes the document that a row was. None if it is gone.
    fn write(&mut self, old: &RowValues, update: Option<(Json, Style)>, is_read: bool) -> Result<Option<RowValues>> {
        let key = self.key_filter(old)?;
        let text = Json::Object(key.clone()).to_string();
        let hash = u128::from(xxhash_rust::xxh64::xxh64(text.as_bytes(), 0)) << 64
            | u128::from(xxhash_rust::xxh64::xxh64(text.as_bytes(), 1));
        if self.updated.contains(&hash) {
            return Ok(None);
        }
        let mut filter = key.clone();
        let unchanged = self.unchanged(old)?;
        if !unchanged.is_empty() {
            filter.insert("$and".to_owned(), unchanged.into());
        }
        let filter = Json::Object(filter);
        let namespace = &self.layout.options.namespace;
        let simple = json!({"locale": "simple"});
        let collated = cache::find(namespace)?.is_some_and(|collection| collection.collation.is_some());
        let shared = Shared { collation: collated.then_some(&simple), ..Shared::default() };
        let is_update = update.is_some();
        let write = DocumentWrite {
            filter: Specification::Value(&filter),
            update: update.as_ref().map(|(update, style)| (Specification::Value(update), *style)),
            many: false,
            upsert: false,
            array_filters: None,
            sort: None,
            skip_locked: false,
            shared,
        };
        let result = write.run_on(namespace, &shared.query(namespace, write.filter, None)?, is_read)?;
        if result.matched > 0 {
            if is_update {
                self.updated.insert(hash);
            }
            let image = if is_update { result.after } else { result.before };
            return Ok(Some(image.filter(|_| is_read).map(|bytes| self.read(&bytes)).transpose()?.unwrap_or_default()));
        }
        let key = Json::Object(key);
        let count = reading::Count { filter: Specification::Value(&key), skip: 0, limit: Some(1), shared };
        if count.run(namespace)? == 0 {
            return Ok(None);
        }
        Err(error!(
            Kind::WriteConflict,
            "a row of the foreign table \"{}\" was changed by another transaction", self.layout.name
        )
        .with_hint("The statement can be run again."))
    }
}

/// The value at a dotted path, through objects only.
fn at<'a>(value: RawValue<'a>, path: &str) -> Option<RawValue<'a>> {
    path.split('.').try_fold(value, |value, step| match value {
        RawValue::Object(object) => object.get(step),
        _ => None,
    })
}

impl Modify for CollectionModify {
    fn insert(&mut self, rows: Vec<RowValues>, skips_conflicts: bool, is_read: bool) -> Result<Vec<Option<RowValues>>> {
        let documents = rows.iter().map(|row| self.storable(row)).collect::<Result<Vec<_>>>()?;
        let namespace = &self.layout.options.namespace;
        let (documents, taken) = if skips_conflicts {
            let taken = insert::insert_free(namespace, &documents)?;
            (documents, taken)
        } else {
            (insert::insert_all(namespace, documents)?, Vec::new())
        };
        let stored = |(at, document): (usize, &Storable)| {
            if taken.contains(&at) {
                return Ok(None);
            }
            if is_read { self.read(&document.bytes).map(Some) } else { Ok(Some(Vec::new())) }
        };
        documents.iter().enumerate().map(stored).collect()
    }

    fn collect(&mut self, row: RowValues) -> Result<()> {
        let document = self.storable(&row)?;
        self.collected_bytes += document.bytes.len();
        self.collected.push(document);
        if self.collected.len() >= COLLECTED_ROWS || self.collected_bytes >= COLLECTED_BYTES {
            self.finish()
        } else {
            Ok(())
        }
    }

    fn finish(&mut self) -> Result<()> {
        let documents = std::mem::take(&mut self.collected);
        self.collected_bytes = 0;
        if documents.is_empty() {
            return Ok(());
        }
        insert::insert_all(&self.layout.options.namespace, documents).map(|_| ())
    }

    fn update(&mut self, old: RowValues, new: RowValues, is_read: bool) -> Result<Option<RowValues>> {
        let is_whole = |number: &i16| self.column(*number).is_ok_and(|column| column.path.is_empty());
        let columns =
            new.iter().map(|(number, value)| Ok((self.column(*number)?, value))).collect::<Result<Vec<_>>>()?;
        if new.iter().any(|(number, _)| is_whole(number)) {
            let document = document::of_row(columns.into_iter(), false)?;
            return self.write(&old, Some((Json::Object(document), Style::Replacement)), is_read);
        }
        let (mut set, mut unset) = (Map::new(), Map::new());
        for (column, value) in columns {
            match value {
                Some(value) => set.insert(column.path.clone(), json(column, value)?),
                None => unset.insert(column.path.clone(), json!("")),
            };
        }
        let mut update = Map::new();
        if !set.is_empty() {
            update.insert("$set".to_owned(), set.into());
        }
        if !unset.is_empty() {
            update.insert("$unset".to_owned(), unset.into());
        }
        self.write(&old, Some((Json::Object(update), Style::Operators)), is_read)
    }

    fn delete(&mut self, old: RowValues, is_read: bool) -> Result<Option<RowValues>> {
        self.write(&old, None, is_read)
    }
}
