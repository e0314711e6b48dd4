//! Foreign tables: a collection as a table of PostgreSQL.
//!
//! * [`options`], [`column`]: the definition of a table, and values between documents and columns.
//! * [`condition`], [`matching`], [`bound`], [`sorting`]: conditions and orders of SQL as filters and sorts of MongoDB.
//! * [`scan`]: reads rows; [`grouping`] groups, [`sample`] a sample; [`fitting`]: finds values that do not fit their columns.
//! * [`document`], [`modify`], [`origin`]: insert rows, and update and delete rows that a scan has read; [`direct`]: updates and deletes
//!   without reading rows.
//! * [`import`]: foreign tables for the collections of a database.
//!
//! The callbacks of PostgreSQL's planner and executor are in `pg::fdw`.

mod bound;
mod column;
mod condition;
mod direct;
mod document;
mod fitting;
mod grouping;
mod import;
mod matching;
mod modify;
mod options;
mod origin;
mod sample;
mod scan;
mod sorting;

use crate::catalog::cache;
use crate::catalog::collections::collection;
use crate::catalog::collections::grants::{self, Level};
use crate::catalog::collections::last_sizes;
use crate::operation::reading;
use crate::pg::datum::nulls::NoNulls;
use crate::pg::error::{Raise as _, Result};
use crate::pg::fdw::clause::Clause;
use crate::pg::fdw::{
    self, Access, Definition, Groups, Import, Modify, Owner, Scan, ScanPlan, Setting, SortKey, Table, Translation,
    Wrapper,
};
use crate::pg::spi;
use crate::router::reads::find;
use column::Layout;
use condition::{Condition, Translator};
use pgrx::datum::Internal;
use pgrx::prelude::*;
use serde_json::Value as Json;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long an estimated number of rows is used.
const ESTIMATE_AGE: Duration = Duration::from_secs(60);
/// The largest number of collections whose estimates are kept.
const MAX_ESTIMATES: usize = 1000;
/// The number of rows that ANALYZE assumes for a view.
const DEFAULT_ROWS: f64 = 1000.0;

thread_local! {
    /// The estimated number of rows and its time, by the collection's number; None: nothing is known.
    static ESTIMATES: RefCell<HashMap<i32, (Instant, Option<f64>)>> = RefCell::default();
    /// See [`bytes_by_default`]; None: not determined yet.
    static BYTES_BY_DEFAULT: Cell<Option<bool>> = const { Cell::new(None) };
}

struct Docshard;

static DOCSHARD: Docshard = Docshard;

/// A foreign table over a collection or a view.
struct CollectionTable {
    layout: Rc<Layout>,
}

impl Wrapper for Docshard {
    fn validate(&self, owner: Owner, options: &[Setting]) -> Result<()> {
        options::validate(owner, options)
    }

    fn open(&self, definition: Definition) -> Result<Rc<dyn Table>> {
        Ok(Rc::new(CollectionTable { layout: Rc::new(Layout::of(definition)?) }))
    }

    fn import(&self, import: &Import) -> Result<Vec<String>> {
        import::statements(import)
    }
}

/// True if the database's own collation orders strings by their bytes.
fn bytes_by_default() -> bool {
    BYTES_BY_DEFAULT.get().unwrap_or_else(|| {
        let sql = "SELECT datlocprovider = 'c' AND datcollate IN ('C', 'POSIX') FROM pg_catalog.pg_database \
                   WHERE datname = pg_catalog.current_database()";
        let is = spi::read(sql, &[]).is_ok_and(|rows| rows.first().is_some_and(|row| row.bool(0)));
        BYTES_BY_DEFAULT.set(Some(is));
        is
    })
}

impl Table for CollectionTable {
    fn estimate(&self) -> Result<Option<f64>> {
        let namespace = &self.layout.options.namespace;
        find::check(namespace)?;
        let Some(collection) = cache::find(namespace)? else { return Ok(None) };
        let now = Instant::now();
        let known = ESTIMATES.with_borrow(|known| known.get(&collection.id).copied());
        if let Some((_, rows)) = known.filter(|(at, _)| now.duration_since(*at) < ESTIMATE_AGE) {
            return Ok(rows);
        }
        let rows = last_sizes::documents(&collection)?.map(|documents| documents as f64);
        ESTIMATES.with_borrow_mut(|known| {
            if known.len() >= MAX_ESTIMATES {
                known.clear();
            }
            known.insert(collection.id, (now, rows));
        });
        Ok(rows)
    }

    fn rows(&self) -> Result<f64> {
        let namespace = &self.layout.options.namespace;
        find::check(namespace)?;
        Ok(if cache::find(namespace)?.is_some() { find::estimated_count(namespace)? as f64 } else { DEFAULT_ROWS })
    }

    fn parallelism(&self) -> usize {
        let found = cache::find(&self.layout.options.namespace);
        found.ok().flatten().map_or(1, |collection| collection.map.shards().len().max(1))
    }

    fn sample(&self, most: usize) -> Result<Box<dyn Scan>> {
        Ok(Box::new(sample::SampleScan::new(self.layout.clone(), most)?))
    }

    fn translate(&self, clause: &Clause) -> Option<Translation> {
        Translator { layout: &self.layout, bytes_by_default: &bytes_by_default }.translate(clause)
    }

    fn order(&self, keys: &[SortKey]) -> Option<Json> {
        sorting::specification(&self.layout, keys, &bytes_by_default)
    }

    fn narrows(&self, conditions: &[Json]) -> bool {
        let Ok(Some(collection)) = cache::find(&self.layout.options.namespace) else { return false };
        let conditions: Vec<Condition> =
            conditions.iter().filter_map(|condition| serde_json::from_value(condition.clone()).ok()).collect();
        let mut paths = Vec::new();
        conditions.iter().for_each(|condition| condition.narrowing_paths(&mut paths));
        let key = collection.key.fields.first().map(|(field, _)| field.as_str());
        let indexed = collection.indexes.iter().filter(|index| !index.hidden);
        let mut first: Vec<&str> = indexed.filter_map(|index| Some(index.fields().first()?.0.as_str())).collect();
        first.extend(key);
        first.push("_id");
        paths.iter().any(|path| first.contains(path))
    }

    fn can_group(&self, groups: &Groups) -> bool {
        grouping::can(&self.layout, groups, &bytes_by_default)
    }

    fn can_write(&self, compared: &[i16], set: &[i16]) -> bool {
        let Ok(found) = cache::find(&self.layout.options.namespace) else { return false };
        let key = found.iter().flat_map(|collection| collection.key.fields.iter());
        let key: Vec<&str> = key.map(|(field, _)| field.as_str()).collect();
        direct::can(&self.layout, compared, set, &key)
    }

    fn watched(&self) -> Option<pg_sys::Oid> {
        cache::announced()
    }

    fn scan(&self, plan: &Rc<ScanPlan>, is_of_other_user: bool) -> Result<Box<dyn Scan>> {
        let layout = self.layout.clone();
        Ok(match (&plan.groups, &plan.write) {
            (Some(groups), _) => Box::new(grouping::GroupScan::new(layout, plan, groups, is_of_other_user)?),
            (None, Some(write)) => Box::new(direct::DirectScan::new(layout, plan, write, is_of_other_user)?),
            (None, None) => Box::new(scan::CollectionScan::new(layout, plan, &plan.columns, is_of_other_user)?),
        })
    }

    fn check(&self, access: Access) -> Result<()> {
        let namespace = &self.layout.options.namespace;
        match (access, cache::find(namespace)?) {
            (Access::Write, Some(collection)) => grants::require(&collection, Level::Write).map(drop),
            // INSERT creates the collection.
            (Access::Write, None) if cache::view(namespace)?.is_none() => {
                collection::check_may_create_implicitly(namespace)
            }
            _ => reading::check_may_read(namespace),
        }
    }

    fn modify(&self, returned: Vec<i16>) -> Result<Box<dyn Modify>> {
        Ok(Box::new(modify::CollectionModify::new(self.layout.clone(), returned)))
    }

    fn truncate(&self) -> Result<()> {
        modify::truncate(&self.layout)
    }
}

/// The handler of the foreign-data wrapper; sql/tables.sql declares it, with a type that has no equivalent here.
#[pg_extern(sql = false)]
fn fdw_handler() -> Internal {
    Internal::from(Some(fdw::handler(&DOCSHARD)))
}

/// The validator of the foreign-data wrapper.
#[pg_extern(schema = "docshard_internal", strict, requires = ["catalog"])]
fn fdw_validator(options: Vec<Option<String>>, catalog: pg_sys::Oid) {
    fdw::validate(&DOCSHARD, &options, catalog).unwrap_or_else(|error| error.raise());
}

extension_sql_file!("../../sql/tables.sql", name = "tables", requires = [fdw_validator]);

/// Creates foreign tables for the collections of a database.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn import_database(_nulls: Option<NoNulls>, db: &str, schema: &str) {
    import::database(db, schema).unwrap_or_else(|error| error.raise());
}
