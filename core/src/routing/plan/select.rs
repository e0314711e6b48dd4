//! Writes the SQL statements of all access paths of reads.

use super::conditions::Conditions;
use super::covered::{Covered, Restored};
use super::divided_scan::{DividedScan, MergeKey, OrderedScans};
use super::document_key::DocumentKey;
use super::index_choice::finds_few;
use super::index_range::IndexRange;
use super::order::{Order, column_order};
use super::search::Search;
use super::statement::{DOCUMENT, DOCUMENT_AND_KEY, NUMBER, Statement};
use crate::query::envelope;
use crate::query::filter::Filter;
use crate::query::index::Span;
use crate::query::sort::Sort;
use crate::routing::model::{Collection, Index};
use crate::routing::protocol::checked::Parameter;
use crate::routing::protocol::documents::{FindByIndexRange, FindInIndexRange, IndexRangeSearch, SHARD_KEY};
use crate::routing::protocol::pipeline::{PipelineRequest, PipelineSource, RunPipeline};
use crate::routing::protocol::sql;
use crate::routing::request::options::FindOptions;
use crate::values::document::field_order::keeps_order;
use serde_json::{Value as Json, json};
use std::borrow::Cow;

/// A null LIMIT that is computed at run time. PostgreSQL's planner then plans as for a cursor: it prefers a plan that returns its first
/// rows early, unless that costs many times as much in total.
pub const UNKNOWN_LIMIT: &str = " LIMIT (SELECT NULL::int8)";

/// One row: the document of a key, or null. See `shard::documents`.
pub fn document(collection: &Collection, key: DocumentKey) -> Statement {
    key.find(collection).into()
}

/// Counts without the executor: see `storage::counting`.
pub fn count_all(search: &Search<'_>) -> Statement {
    let conditions = Conditions::checked(search);
    let sql = format!("SELECT {} WHERE {}", sql::count_all(search.collection.id), conditions.sql());
    conditions.into_statement(sql, NUMBER)
}

/// Counts without the executor, if no index narrows the search: see `storage::matching`.
pub fn count_matching(collection: &Collection, conditions: &Conditions) -> Option<Statement> {
    let (check, filter) = conditions.of_scan()?;
    let count = sql::count_matching(collection.id, format_args!("{filter}::text"));
    let sql = format!("SELECT {count} WHERE {check}");
    Some(Statement { sql, params: conditions.params.clone(), columns: NUMBER })
}

pub fn count(collection: &Collection, conditions: Conditions, most: Option<u64>) -> Statement {
    let from = format!("FROM {} t WHERE {}", collection.table(), conditions.sql());
    let sql = match most {
        None => format!("SELECT count(*) {from}"),
        Some(most) => format!("SELECT count(*) FROM (SELECT {from} LIMIT {most}) AS few"),
    };
    conditions.into_statement(sql, NUMBER)
}

/// Counts by an index that has all values that the filter needs.
pub fn covered_count(search: &Search<'_>, covered: &Covered<'_>) -> Statement {
    let (conditions, searches) = covered.searches(search);
    let table = search.collection.table();
    let [btree, entries] = searches.map(|of| format!("SELECT count(*) AS n FROM {table} t WHERE {of}"));
    conditions.into_statement(format!("SELECT sum(n)::int8 FROM ({btree} UNION ALL {entries}) AS parts"), NUMBER)
}

/// Selects the distinct values of a field and their keys, in the order of the keys.
///
/// PostgreSQL hashes the values before it sorts, so few values of many documents are cheap. Of values that compare equal but
/// differ, such as `2` and a decimal `2.00`, the shortest is returned.
pub fn distinct(search: &Search<'_>, mut conditions: Conditions, field: &str) -> Statement {
    let field = conditions.param(Parameter::Text(field.to_owned()));
    let environment = search.query.environment.json().map(|json| json.to_string()).unwrap_or_default();
    let environment = conditions.param(Parameter::Text(environment));
    let sql = format!(
        "SELECT DISTINCT ON (d.key) d.value, d.key FROM (\
           SELECT DISTINCT v.key, v.value FROM {} t, {} v WHERE {}\
         ) d ORDER BY d.key, pg_catalog.octet_length(d.value), d.value",
        search.collection.table(),
        sql::distinct_values("t.doc", field, environment),
        conditions.sql()
    );
    conditions.into_statement(sql, DOCUMENT_AND_KEY)
}

pub fn candidate(collection: &Collection, conditions: Conditions) -> Statement {
    let sql = format!("SELECT t.skey, t.id FROM {} t WHERE {} LIMIT 1", collection.table(), conditions.sql());
    conditions.into_statement(sql, DOCUMENT_AND_KEY)
}

/// The statements of a find. A row is the projected document; if the router must merge rows of several shards, also the merge
/// key.
pub struct Find<'a> {
    pub search: &'a Search<'a>,
    pub options: &'a FindOptions,
    /// true: the only shard applies skip and limit itself; false: each shard returns enough rows for the router to do so
    pub single_target: bool,
}

impl Find<'_> {
    /// Returns the documents of a range as one packed value, or null if the shard declines: see
    /// `shard::index_range`.
    pub fn index_range(&self, range: IndexRange) -> Statement {
        let IndexRange { finds, lo, hi, most, backward, in_order, .. } = range;
        // Rows of a single shard, and rows without a sort, need no merge key.
        let keyed = !self.single_target && self.options.sort.is_some();
        let by_sort = !in_order || keyed && finds.index != SHARD_KEY;
        let sort = self.options.sort.as_ref().filter(|_| by_sort).map(|(_, text)| text.clone());
        let search = IndexRangeSearch {
            index: finds.index,
            backward,
            most: usize::try_from(most).unwrap_or(usize::MAX),
            all: finds.unlimited,
            in_order,
            keyed,
            sort,
            projection: self.projection(),
        };
        let &Collection { id: collection, token, .. } = self.search.collection;
        let keys = |keys: Vec<Vec<u8>>| keys.into_iter().map(Cow::Owned).collect();
        let (lo, hi, search) = (keys(lo), keys(hi), search.to_text().into());
        match &self.search.counted_at {
            None => FindByIndexRange { collection, token, version: 0, lo, hi, search }.into(),
            Some(at) => {
                let keys_read = keys(at.clone());
                FindInIndexRange { collection, token, version: 0, lo, hi, search, keys_read }.into()
            }
        }
    }

    /// Scans an index that has all values that filter and projection need, in any order.
    pub fn covered(&self, covered: &Covered<'_>) -> Statement {
        let (mut conditions, [btree, entries]) = covered.searches(self.search);
        let table = self.search.collection.table();
        // Makes the planner plan each search by itself: see `storage::covering`.
        let end = self.most().map_or_else(|| "OFFSET 0".to_owned(), |most| format!("LIMIT {most}"));
        let Restored { columns, document } = Restored::of(covered.index);
        let found = format!(
            "SELECT {document} AS doc FROM (SELECT {columns} FROM {table} t WHERE {btree} {end}) AS s \
             UNION ALL (SELECT t.doc::jsonb FROM {table} t WHERE {entries} {end})"
        );
        let document = self.projected("d.doc", &mut conditions);
        let limit = self.limit();
        conditions.into_statement(format!("SELECT {} FROM ({found}) AS d{limit}", sql::pack(document)), DOCUMENT)
    }

    /// Scans b-tree and entries of an index, each up to the limit.
    pub fn divided_scan(&self, mut conditions: Conditions, scan: &DividedScan) -> Statement {
        let document = self.projected("d.doc", &mut conditions);
        let key = self.options.sort.as_ref().map(|(_, text)| {
            let text = conditions.param(Parameter::Text(text.clone()));
            format!(", {} AS key", sql::sort_key("t.doc", text))
        });
        let columns = format!("t.doc{}", key.as_deref().unwrap_or_default());
        let table = self.search.collection.table();
        let most = self.most().map(|most| format!(" LIMIT {most}")).unwrap_or_default();
        let order = scan.order.as_ref().map(|order| format!(" ORDER BY {order}")).unwrap_or_default();
        let mut found = format!("(SELECT {columns} FROM {table} t WHERE {}{order}{most})", scan.btree);
        if let Some(entries) = &scan.entries {
            let order = if key.is_some() { " ORDER BY key" } else { "" };
            found += &format!(" UNION ALL (SELECT {columns} FROM {table} t WHERE {entries}{order}{most})");
        }
        let (key, order) = match (key, self.single_target) {
            (None, _) => ("", ""),
            (Some(_), true) => ("", " ORDER BY d.key"),
            (Some(_), false) => (", d.key", " ORDER BY d.key"),
        };
        let sql = format!("SELECT {}{key} FROM ({found}) AS d{order}", sql::pack(document));
        conditions.into_statement(sql + &self.limit(), if key.is_empty() { DOCUMENT } else { DOCUMENT_AND_KEY })
    }

    /// Scans b-tree and entries of an index in the order of the sort and merges them.
    pub fn ordered_scans(&self, mut conditions: Conditions, scans: &OrderedScans, by: &MergedBy<'_>) -> Statement {
        let document = self.projected("d.doc", &mut conditions);
        let (key, all) = by.keys(&mut conditions);
        let order = |of: &str| order_of(scans, of);
        let most = self.most().map(|most| format!(" LIMIT {most}"));
        let part = |of: &str, terms: &str, key: &dyn Fn(&MergeKey) -> String, limit: &str| {
            ordered_scan(self.search.collection, scans, (of, terms), key, limit)
        };
        let unlimited = most.as_deref().unwrap_or(UNKNOWN_LIMIT);
        let mut found = match &scans.restored {
            None => part("t.doc", &scans.btree, &|key| key.expression.clone(), unlimited),
            Some(restored) => {
                let rows = part(&restored.columns, &scans.btree, &|key| key.expression.clone(), unlimited);
                let keys: String = (0..scans.keys.len()).map(|n| format!(", s.k{n}")).collect();
                format!("(SELECT {} AS doc{keys} FROM {rows} AS s)", restored.document)
            }
        };
        let of = if scans.restored.is_some() { "t.doc::jsonb AS doc" } else { "t.doc" };
        found += &format!(" UNION ALL {}", part(of, &scans.entries, &key, most.as_deref().unwrap_or_default()));
        let (all, columns) = if self.single_target { (String::new(), DOCUMENT) } else { (all, DOCUMENT_AND_KEY) };
        let sql = format!("SELECT {}{all} FROM ({found}) AS d ORDER BY {}", sql::pack(document), order("d."));
        conditions.into_statement(sql + &self.limit(), columns)
    }

    /// Leaves the choice of the index to the shard's planner. `column`: a column with the order of the sort, and true
    /// if it is descending.
    pub fn conditions(&self, mut conditions: Conditions, column: Option<(&'static str, bool)>) -> (Statement, Order) {
        let (search, options) = (self.search, self.options);
        let document = self.projected("t.doc", &mut conditions);
        let (key, order) = match &options.sort {
            None => (None, Order::None),
            Some((_, text)) => {
                let (key, descending) = match column {
                    Some((column, descending)) => (column.to_owned(), descending),
                    None => {
                        let text = conditions.param(Parameter::Text(text.clone()));
                        (sql::sort_key("t.doc", text), false)
                    }
                };
                (Some(key), if descending { Order::Descending } else { Order::Ascending })
            }
        };
        if let Some(column) = &key {
            lead_to(column, search.collection, &mut conditions);
        }
        let (mut sql, mut columns) = (format!("SELECT {}", sql::pack(document)), DOCUMENT);
        if let Some(key) = key.as_ref().filter(|_| !self.single_target) {
            sql += &format!(", {key}");
            columns = DOCUMENT_AND_KEY;
        }
        sql += &format!(" FROM {} t WHERE {}", search.collection.table(), conditions.sql());
        if let Some(key) = &key {
            sql += &format!(" ORDER BY {key}{}", if order == Order::Descending { " DESC" } else { "" });
        }
        if let (Some((column, _)), None) = (column, options.limit)
            && !finds_few(search, column == "t.skey")
        {
            sql += UNKNOWN_LIMIT;
        }
        (conditions.into_statement(sql + &self.limit(), columns), order)
    }

    /// Sorts in the function that scans the table; rows are packed parts of the result. `most`: what [`most`](Self::most)
    /// returns; `filter`: None for all documents.
    pub fn bounded_sort(&self, sort: &Sort, most: u64, filter: Option<String>) -> Statement {
        let options = self.options;
        let skip = if self.single_target { options.skip } else { 0 };
        let work = PipelineRequest {
            stages: bounded_sort(sort, most, skip),
            environment: options.environment.json(),
            keyed: !self.single_target,
            projection: self.projection(),
            on_disk: true,
            measured: false,
            explained: false,
            ordered: keeps_order(),
            source: PipelineSource::Scan { filter },
        };
        run_pipeline(self.search.collection, &work)
    }

    /// Returns the most rows that each shard must return for the result; None without a limit.
    pub fn most(&self) -> Option<u64> {
        self.options.limit.map(|limit| limit.saturating_add(self.options.skip).min(i64::MAX as u64))
    }

    fn limit(&self) -> String {
        let FindOptions { limit, skip, .. } = *self.options;
        let limit = if self.single_target { limit.map(|limit| limit.min(i64::MAX as u64)) } else { self.most() };
        let limit = limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
        let skips = self.single_target && skip > 0;
        limit + &if skips { format!(" OFFSET {}", skip.min(i64::MAX as u64)) } else { String::new() }
    }

    fn projection(&self) -> Option<String> {
        let options = self.options;
        let filter = options.positional.then(|| self.search.query.text());
        options
            .projection
            .as_ref()
            .map(|projection| envelope::wrap(projection, options.environment.json().as_ref(), filter.as_deref()))
            .map(|projection| if keeps_order() { envelope::ordered(&projection) } else { projection })
    }

    fn projected(&self, document: &str, conditions: &mut Conditions) -> String {
        match self.projection() {
            Some(text) => {
                let projection = conditions.param(Parameter::Text(text));
                sql::project(document, projection)
            }
            None => document.to_owned(),
        }
    }
}

/// The ORDER BY of scans whose keys are the columns `k0`, `k1`, … of `of`.
fn order_of(scans: &OrderedScans, of: &str) -> String {
    let terms = scans.keys.iter().enumerate().map(|(n, key)| key.order_of(&format!("{of}k{n}")));
    terms.collect::<Vec<_>>().join(", ")
}

/// One of the scans: its columns, the WHERE clause, and the SQL of its keys.
fn ordered_scan(
    collection: &Collection,
    scans: &OrderedScans,
    (columns, terms): (&str, &str),
    key: &dyn Fn(&MergeKey) -> String,
    limit: &str,
) -> String {
    let keys: String = scans.keys.iter().enumerate().map(|(n, of)| format!(", {} AS k{n}", key(of))).collect();
    let (table, order) = (collection.table(), order_of(scans, ""));
    format!("(SELECT {columns}{keys} FROM {table} t WHERE {terms} ORDER BY {order}{limit})")
}

/// The columns and the sort key, as `place`, of all documents that both scans find, in the order of the sort. `text`: the sort's `$n`.
pub fn in_order(collection: &Collection, scans: &OrderedScans, columns: &str, text: &str) -> String {
    let part = |terms: &str, key: &dyn Fn(&MergeKey) -> String| {
        let columns = format!("{columns}, {} AS place", sql::sort_key("t.doc", text));
        ordered_scan(collection, scans, (&columns, terms), key, UNKNOWN_LIMIT)
    };
    let btree = part(&scans.btree, &|key| key.expression.clone());
    let entries = part(&scans.entries, &|key| sql::sort_field_key("t.doc", text, key.field));
    format!("SELECT * FROM ({btree} UNION ALL {entries}) AS d ORDER BY {}{UNKNOWN_LIMIT}", order_of(scans, "d."))
}

/// The stages that sort documents and return the first `most` without the first `skip`.
pub fn bounded_sort(sort: &Sort, most: u64, skip: u64) -> Vec<Json> {
    let mut stages = vec![json!({"$sort": sort.to_json()}), json!({"$limit": most})];
    stages.extend((skip > 0).then(|| json!({"$skip": skip.min(i64::MAX as u64)})));
    stages
}

/// Runs stages at a shard.
pub fn run_pipeline(collection: &Collection, work: &PipelineRequest) -> Statement {
    let &Collection { id: collection, token, .. } = collection;
    RunPipeline { collection, token, version: 0, work: work.to_text().into() }.into()
}

/// The merge key of [`Find::ordered_scans`].
pub enum MergedBy<'a> {
    /// the text of a sort
    Sort(&'a str),
    /// the first key in a span of an index
    Part(&'a Index, &'a Span),
}

impl MergedBy<'_> {
    /// Returns the SQL for one field of the key, and for the whole key.
    fn keys(&self, conditions: &mut Conditions) -> (impl Fn(&MergeKey) -> String + use<>, String) {
        let (text, part) = match self {
            MergedBy::Sort(text) => (conditions.param(Parameter::Text((*text).to_owned())), None),
            MergedBy::Part(index, span) => (String::new(), Some(conditions.part(index, span))),
        };
        let all = match &part {
            None => sql::sort_key("d.doc", &text),
            Some([keys, lo, hi]) => sql::key_within("d.doc", keys, lo, hi),
        };
        let of_field = move |key: &MergeKey| match &part {
            None => sql::sort_field_key("t.doc", &text, key.field),
            Some([keys, lo, hi]) => sql::key_field_within("t.doc", keys, lo, hi, key.field),
        };
        (of_field, format!(", {all}"))
    }
}

/// The ORDER BY of a statement that only one shard executes.
pub fn order_by(
    collection: &Collection,
    filter: &Filter,
    (sort, text): &(Sort, String),
    conditions: &mut Conditions,
) -> String {
    match column_order(collection, filter, sort) {
        Some((column, descending)) => {
            lead_to(column, collection, conditions);
            format!(" ORDER BY {column}{}", if descending { " DESC" } else { "" })
        }
        None => {
            let text = conditions.param(Parameter::Text(text.clone()));
            format!(" ORDER BY {}", sql::sort_key("t.doc", text))
        }
    }
}

/// In an unsharded collection `id` is the second column of the primary key, so the statement must also give the first one.
fn lead_to(column: &str, collection: &Collection, conditions: &mut Conditions) {
    if column == "t.id" && collection.key.is_unsharded() {
        conditions.and("t.skey = ''::bytea".to_owned());
    }
}
