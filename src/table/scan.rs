//! A scan of a foreign table: a find, whose documents become rows.

use super::bound::{Bound, all};
use super::column::{Column, Layout, Read, id_text};
use super::condition::Condition;
use super::origin::Origin;
use super::sorting;
use crate::catalog::cache;
use crate::operation::arguments::{Arguments, Form};
use crate::operation::reading::{self, Found};
use crate::operation::request_parts::Specification;
use crate::operation::table::FIND;
use crate::pg::error::{Error, Result};
use crate::pg::fdw::value::SqlValue;
use crate::pg::fdw::{Misfit, ORIGIN, RemotePart, Scan, ScanPlan};
use crate::pg::transaction::writes;
use crate::router::execute::Part;
use crate::router::explain::statement;
use crate::router::reads::aggregate::Results;
use crate::router::reads::find;
use docshard_core::error::{Kind, bail, error};
use docshard_core::values::document::raw;
use serde::Deserialize as _;
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

pub struct CollectionScan {
    layout: Rc<Layout>,
    columns: Vec<Column>,
    conditions: Rc<Conditions>,
    order: Option<Json>,
    /// the fields that are read; None: whole documents
    fields: Option<Vec<String>>,
    /// makes the origins of rows; None: the rows are not written
    origin: Option<Origin>,
    /// the statement needs all columns of the rows that it writes, for example for triggers
    shows_rows: bool,
    /// the table is read with another user's privileges than the current user's
    is_of_other_user: bool,
    /// rows with a value that does not fit one of these columns are hidden from the current user; empty unless `is_of_other_user`
    hiding: Vec<i16>,
    /// the error of the last row, see [`Scan::take_misfit`]
    misfit: Option<Misfit>,
    found: Option<Found>,
    /// the measurements since the last start; None: nothing is measured
    observed: Option<Vec<Part>>,
    /// the measurements of earlier starts
    parts: Vec<RemotePart>,
}

/// Conditions with the numbers of their first operands.
type Conditions = Vec<(Condition, usize)>;

/// The find that a scan makes: its filter and options.
pub struct Request {
    pub filter: Json,
    pub options: Json,
}

impl CollectionScan {
    /// Reads these columns.
    pub fn new(layout: Rc<Layout>, plan: &ScanPlan, columns: &[i16], is_of_other_user: bool) -> Result<Self> {
        let columns = layout.chosen(columns)?;
        let origin = plan.is_target.then(|| Origin::of(&layout, &columns)).transpose()?;
        let fields = fields(&columns, origin.as_ref());
        Ok(Self {
            layout,
            columns,
            conditions: conditions(plan)?,
            order: plan.order.clone(),
            fields,
            origin,
            shows_rows: plan.shows_rows,
            is_of_other_user,
            hiding: if is_of_other_user { plan.hiding.clone() } else { Vec::new() },
            misfit: None,
            found: None,
            observed: None,
            parts: Vec::new(),
        })
    }

    /// Makes the scan read these results of a pipeline.
    pub fn read(&mut self, results: Results) {
        self.found = Some(Found::View(Box::new(results)));
    }

    pub fn fields(&self) -> Option<&[String]> {
        self.fields.as_deref()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// True if rows with a value that does not fit this column are omitted.
    pub fn hides(&self, column: &Column) -> bool {
        self.hiding.contains(&column.number)
    }

    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.conditions.iter().map(|(condition, _)| condition)
    }

    /// Returns the find with these operands; None if no row can match.
    /// Errors: `NamespaceNotFound`.
    pub fn request(&self, operands: &[Option<SqlValue>], limit: Option<u64>) -> Result<Option<Request>> {
        require_existing(&self.layout)?;
        let bind = |(condition, first): &(Condition, usize)| condition.bind(operands.get(*first..).unwrap_or_default());
        let filter = match all(self.conditions.iter().map(bind)) {
            Bound::Never => return Ok(None),
            Bound::Always => json!({}),
            Bound::Filter(filter) => filter,
        };
        if limit == Some(0) {
            return Ok(None);
        }
        let mut options = Map::new();
        if let Some(order) = &self.order {
            options.insert("sort".to_owned(), order.clone());
        }
        if let Some(limit) = self.limit_at_shards(limit).and_then(|limit| i64::try_from(limit).ok()) {
            options.insert("limit".to_owned(), limit.into());
        }
        if let Some(fields) = &self.fields {
            let mut projection: Map<String, Json> = fields.iter().map(|field| (field.clone(), 1.into())).collect();
            if !projection.contains_key("_id") {
                projection.insert("_id".to_owned(), 1.into());
            }
            options.insert("projection".to_owned(), Json::Object(projection));
        }
        // SQL compares strings by their bytes, whatever the collection's collation. `reading::over_collated_view` does this for views.
        if cache::find(&self.layout.options.namespace)?.is_some_and(|collection| collection.collation.is_some()) {
            options.insert("collation".to_owned(), json!({"locale": "simple"}));
        }
        Ok(Some(Request { filter, options: Json::Object(options) }))
    }

    /// The limit that shards apply; None if this scan may omit rows, which would count towards a limit at the shards.
    fn limit_at_shards(&self, limit: Option<u64>) -> Option<u64> {
        limit.filter(|_| self.hiding.is_empty())
    }

    /// Starts the find of a request.
    pub fn find(&mut self, Request { filter, options }: &Request) -> Result<()> {
        let namespace = &self.layout.options.namespace;
        let arguments = Arguments::parse(options, Form::Options(FIND.function), FIND.options)?;
        let filter = Specification::Value(filter);
        if let Some(results) = reading::over_collated_view(namespace, || reading::find_stages(filter, &arguments))? {
            self.found = Some(Found::View(Box::new(results)));
            return Ok(());
        }
        self.found = Some(match &mut self.observed {
            None => reading::find(namespace, filter, &arguments)?,
            Some(observed) => {
                let (found, parts) = reading::find_observed(namespace, filter, &arguments)?;
                *observed = parts;
                found
            }
        });
        Ok(())
    }

    /// The place where conditions are evaluated, for EXPLAIN.
    pub fn place(&self) -> Result<&'static str> {
        Ok(if reading::is_collated_view(&self.layout.options.namespace)? { "Router" } else { "Shards" })
    }

    /// The error of a row with a value of this type in a column that cannot have it.
    pub fn misfit(&self, column: &Column, type_name: &str, id: &str) -> Error {
        // The reader of a view may not be allowed to know which rows the view omits.
        let which = if self.is_of_other_user { String::new() } else { format!(" of the document with the _id {id}") };
        self.layout.misfit(column, type_name, &which)
    }
}

/// The conditions of a plan, which are parsed once.
fn conditions(plan: &ScanPlan) -> Result<Rc<Conditions>> {
    if let Some(Ok(known)) = plan.prepared.get().map(|known| Rc::clone(known).downcast()) {
        return Ok(known);
    }
    let parse = |(condition, first): &(Json, usize)| match Condition::deserialize(condition) {
        Ok(condition) => Ok((condition, *first)),
        Err(_) => Err(error!(Kind::InternalError, "malformed condition of a foreign scan")),
    };
    let parsed: Rc<Conditions> = Rc::new(plan.conditions.iter().map(parse).collect::<Result<_>>()?);
    let _ = plan.prepared.set(Rc::<Conditions>::clone(&parsed));
    Ok(parsed)
}

/// The hint for a reader whose snapshot is older than a write.
const OLDER_SNAPSHOT: &str = "A statement that has written, and a cursor, loop or stable function from before, sees what was there before the write. \
     Read the table in a statement before or after this one.";

/// Returns an error if the collection or view does not exist: either the table's option is wrong, or the collection was dropped.
pub fn require_existing(layout: &Layout) -> Result<()> {
    find::require_existing(&layout.options.namespace).map_err(|error| {
        error.with_hint(format!(
            "The foreign table \"{}\" names it. INSERT creates a collection that does not exist, and so does docshard.create_collection().",
            layout.name
        ))
    })
}

/// The type of a value that the table refuses because it does not fit its column; None if it is a value of the column, or NULL.
fn refused(layout: &Layout, shows_rows: bool, column: &Column, read: &Read) -> Option<&'static str> {
    match read {
        // If PostgreSQL makes a new row of this one, NOT NULL must hold.
        Read::Null if column.not_null && (layout.is_strict() || shows_rows) => Some("null"),
        Read::Misfit(type_name) if layout.is_strict() || column.not_null && shows_rows => Some(type_name),
        _ => None,
    }
}

/// The first fields of the columns' paths, and of the paths that identify a document; None if a column is the whole document.
fn fields(columns: &[Column], origin: Option<&Origin>) -> Option<Vec<String>> {
    let mut fields: Vec<String> = Vec::new();
    for column in columns {
        if column.path.is_empty() {
            return None;
        }
        if !fields.iter().any(|known| known == column.field()) {
            fields.push(column.field().to_owned());
        }
    }
    for field in origin.iter().flat_map(|origin| origin.fields()) {
        if !fields.iter().any(|known| known == field) {
            fields.push(field.to_owned());
        }
    }
    Some(fields)
}

impl Scan for CollectionScan {
    fn start(&mut self, operands: Vec<Option<SqlValue>>, limit: Option<u64>) -> Result<()> {
        match self.request(&operands, limit)? {
            Some(request) => self.find(&request),
            // No row can match, so no shard is asked. The privileges must be checked nevertheless.
            None => find::check(&self.layout.options.namespace),
        }
    }

    fn next_row(&mut self, put: &mut dyn FnMut(i16, SqlValue) -> Result<()>) -> Result<bool> {
        let Some(found) = &mut self.found else { return Ok(false) };
        let document = loop {
            let Some(document) = found.next_document()? else {
                self.found = None;
                return Ok(false);
            };
            let misfits = |object| {
                let mut hiding = self.columns.iter().filter(|column| self.hiding.contains(&column.number));
                hiding.any(|column| refused(&self.layout, self.shows_rows, column, &column.read(object)).is_some())
            };
            if self.hiding.is_empty() || !raw::document(document.bytes()).is_some_and(misfits) {
                break document;
            }
            pgrx::check_for_interrupts!();
        };
        let Some(object) = raw::document(document.bytes()) else {
            bail!(Kind::InternalError, "a document is not an object");
        };
        let (layout, shows_rows) = (&self.layout, self.shows_rows);
        let mut misfits = Vec::new();
        for column in &self.columns {
            let read = column.read(object);
            misfits.extend(refused(layout, shows_rows, column, &read).map(|type_name| (column, type_name)));
            if let Read::Value(value) = read {
                put(column.number, value)?;
            }
        }
        if let Some(origin) = &self.origin {
            put(ORIGIN, SqlValue::Bytes(origin.of_document(document.bytes())))?;
        }
        if let Some((column, type_name)) = misfits.last() {
            let error = self.misfit(column, type_name, &id_text(object));
            // The reader of a view may not learn anything about rows that the view omits.
            if !self.is_of_other_user {
                return Err(error);
            }
            self.misfit = Some(Misfit { error, columns: misfits.iter().map(|(column, _)| column.number).collect() });
        }
        Ok(true)
    }

    fn take_misfit(&mut self) -> Option<Misfit> {
        self.misfit.take()
    }

    fn observe(&mut self) {
        // EXPLAIN ANALYZE shows the numbers of rows that shards returned. With hidden rows among them, they would tell the reader
        // for how many of those rows its own condition is true.
        if self.hiding.is_empty() {
            self.observed.get_or_insert_default();
        }
    }

    fn parts(&self) -> Vec<RemotePart> {
        let mut parts = self.parts.clone();
        for (shard, observed) in self.observed.iter().flatten() {
            let observed = observed.borrow();
            let name = cache::shard(*shard).map_or_else(|_| format!("{shard:?}"), |shard| shard.name.clone());
            let at = parts.iter().position(|part| part.name == name).unwrap_or_else(|| {
                parts.push(RemotePart { name, ..RemotePart::default() });
                parts.len() - 1
            });
            parts[at].rows += observed.read;
            parts[at].took_ms += observed.took_ms;
        }
        parts
    }

    fn refuse_newer(&self, command: u32) -> Result<()> {
        let own = &self.layout.options.namespace;
        let database = |namespace: &str| namespace.split('.').next().map(str::to_owned);
        // A view may read any collection of its database, so it may show a write to any of them.
        let may_see = |written: &str| {
            own == written || database(own) == database(written) && !matches!(cache::view(own), Ok(None))
        };
        if !writes::since(command).iter().any(|written| may_see(written)) {
            return Ok(());
        }
        let table = &self.layout.name;
        let message =
            format!("the foreign table \"{table}\" cannot be read as it was before a write of the transaction");
        Err(Error::new(Kind::NotImplemented, message).with_hint(OLDER_SNAPSHOT))
    }

    fn stop(&mut self) {
        if self.observed.is_some() {
            self.parts = self.parts();
            self.observed = Some(Vec::new());
        }
        self.found = None;
    }

    fn explain(
        &self,
        operands: Vec<Option<SqlValue>>,
        limit: Option<u64>,
        verbose: bool,
    ) -> Result<Vec<(String, String)>> {
        let namespace = &self.layout.options.namespace;
        find::check(namespace)?;
        let mut shown = vec![("Collection".to_owned(), namespace.clone())];
        let Some(Request { filter, options }) = self.request(&operands, limit)? else {
            shown.push(("Shards".to_owned(), "none, as no row can match".to_owned()));
            return Ok(shown);
        };
        let is_known = !operands.iter().any(|operand| matches!(operand, Some(SqlValue::Unknown(_))));
        if is_known {
            let arguments = Arguments::parse(&options, Form::Options(FIND.function), FIND.options)?;
            let find = reading::find_options(namespace, &arguments)?;
            let query = reading::find_query(Specification::Value(&filter), &find)?;
            if let Some(targets) = statement::targets_of_find(namespace, &query, &find)? {
                let number = |name: &str| targets.get(name).and_then(Json::as_u64).unwrap_or(0);
                let part = |one: &str, all: &str| format!("{} of {}", number(one), number(all));
                shown.push(("Shards".to_owned(), part("targetedShards", "totalShards")));
                shown.push(("Chunks".to_owned(), part("targetedChunks", "totalChunks")));
                let text = |name: &str| targets.get(name).and_then(Json::as_str).unwrap_or_default().to_owned();
                if verbose {
                    shown.push(("Access Path".to_owned(), text("accessPath")));
                    shown.push(("Reason".to_owned(), text("reason")));
                }
            }
        }
        let is_empty = filter.as_object().is_some_and(Map::is_empty);
        let place = self.place()?;
        shown.extend((!is_empty).then(|| (format!("Filter at {place}"), sorting::readable(&filter))));
        shown.extend(self.order.as_ref().map(|order| (format!("Sort at {place}"), sorting::readable(order))));
        let limit = self.limit_at_shards(limit);
        shown.extend(limit.map(|limit| (format!("Limit at {place}"), limit.to_string())));
        if verbose && let Some(fields) = &self.fields {
            shown.push(("Fields".to_owned(), fields.join(", ")));
        }
        Ok(shown)
    }
}
