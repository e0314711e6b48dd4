//! The statements of all access paths of reads.

use super::conditions::Conditions;
use super::covered::{Covered, Restored};
use super::divided_scan::{DividedScan, MergeKey, OrderedScans};
use super::document_key::DocumentKey;
use super::index_choice::finds_few;
use super::index_range::IndexRange;
use super::search::Search;
use crate::catalog::model::{Collection, Index};
use crate::protocol::documents::{FindByIndexRange, IndexRangeSearch};
use crate::protocol::sql;
use crate::router::options::FindOptions;
use crate::router::order::{Order, column_order};
use crate::router::statement::{Parameter, Statement};
use docshard_core::query::envelope;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::Span;
use docshard_core::query::sort::Sort;
use std::borrow::Cow;

/// No limit, of which PostgreSQL's planner does not know it: it takes the rows for a cursor's, and the way that begins soonest
/// for better than one that ends sooner, unless that is many times as cheap.
const UNKNOWN_LIMIT: &str = " LIMIT (SELECT NULL::int8)";

/// The document of a key: one row, null if there is none. See `ownership::documents`.
pub fn document(collection: &Collection, key: DocumentKey) -> Statement {
    key.find(collection).into()
}

/// The number of documents, without an executor: see `storage::counting`.
pub fn count_all(collection: &Collection) -> Statement {
    let conditions = Conditions::new(collection);
    let sql = format!("SELECT {} WHERE {}", sql::count_all(collection.id), conditions.sql());
    conditions.into_statement(sql)
}

/// The number of documents that match a filter, if nothing narrows the search, without an executor: see `storage::matching`.
pub fn count_matching(collection: &Collection, conditions: &Conditions) -> Option<Statement> {
    let (check, filter) = conditions.of_scan()?;
    let count = sql::count_matching(collection.id, format_args!("{filter}::text"));
    let sql = format!("SELECT {count} WHERE {check}");
    Some(Statement { sql, params: conditions.params.clone() })
}

/// The number of documents that meet conditions, at most so many.
pub fn count(collection: &Collection, conditions: Conditions, most: Option<u64>) -> Statement {
    let from = format!("FROM {} t WHERE {}", collection.table(), conditions.sql());
    let sql = match most {
        None => format!("SELECT count(*) {from}"),
        Some(most) => format!("SELECT count(*) FROM (SELECT {from} LIMIT {most}) AS few"),
    };
    conditions.into_statement(sql)
}

/// The number of documents, by an index that tells all that the filter asks for.
pub fn covered_count(search: &Search<'_>, covered: &Covered<'_>) -> Statement {
    let (conditions, searches) = covered.searches(search);
    let table = search.collection.table();
    let [btree, entries] = searches.map(|of| format!("SELECT count(*) AS n FROM {table} t WHERE {of}"));
    conditions.into_statement(format!("SELECT sum(n)::int8 FROM ({btree} UNION ALL {entries}) AS parts"))
}

/// The values of a field, by their keys, in order.
///
/// Few values of many documents are told apart by hashing before they are sorted. Of those that are equal and look
/// different, such as `2` and a decimal `2.00`, the shortest is taken.
pub fn distinct(search: &Search<'_>, mut conditions: Conditions, field: &str) -> Statement {
    let field = conditions.param(Parameter::Text(field.to_owned()));
    let setting = search.query.setting.as_ref().map(ToString::to_string).unwrap_or_default();
    let setting = conditions.param(Parameter::Text(setting));
    let sql = format!(
        "SELECT DISTINCT ON (d.key) d.value, d.key FROM (\
           SELECT DISTINCT v.key, v.value FROM {} t, {} v WHERE {}\
         ) d ORDER BY d.key, pg_catalog.octet_length(d.value), d.value",
        search.collection.table(),
        sql::distinct_values("t.doc", field, setting),
        conditions.sql()
    );
    conditions.into_statement(sql)
}

/// Shard key and `_id` of one document that meets conditions.
pub fn candidate(collection: &Collection, conditions: Conditions) -> Statement {
    let sql = format!("SELECT t.skey, t.id FROM {} t WHERE {} LIMIT 1", collection.table(), conditions.sql());
    conditions.into_statement(sql)
}

/// The statements of a find. Rows have what is answered of a document and, where several targets' rows are to be merged, the
/// key that they come by.
pub struct Find<'a> {
    /// what is searched for
    pub search: &'a Search<'a>,
    /// what is answered
    pub options: &'a FindOptions,
    /// a single target skips by itself; several send what skipping may need
    pub single_target: bool,
}

impl Find<'_> {
    /// The documents of an index's range, packed in one value, or null from a shard that declines: see `ownership::index_range`.
    pub fn index_range(&self, range: IndexRange) -> Statement {
        let IndexRange { finds, lo, hi, most, backward, in_order, .. } = range;
        // What comes from one shard, or in any order, needs no key to be merged by.
        let keyed = !self.single_target && self.options.sort.is_some();
        let sort = self.options.sort.as_ref().filter(|_| !in_order || keyed).map(|(_, text)| text.clone());
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
        FindByIndexRange { collection, token, version: 0, lo, hi, search }.into()
    }

    /// Documents of an index that tells all that filter and projection ask for, in no order.
    pub fn covered(&self, covered: &Covered<'_>) -> Statement {
        let (mut conditions, [btree, entries]) = covered.searches(self.search);
        let table = self.search.collection.table();
        // So that the planner takes each search for itself: see `storage::covering`.
        let end = self.most().map_or_else(|| "OFFSET 0".to_owned(), |most| format!("LIMIT {most}"));
        let Restored { columns, document } = Restored::of(covered.index);
        let found = format!(
            "SELECT {document} AS doc FROM (SELECT {columns} FROM {table} t WHERE {btree} {end}) AS s \
             UNION ALL (SELECT t.doc::jsonb FROM {table} t WHERE {entries} {end})"
        );
        let document = self.projected("d.doc", &mut conditions);
        let limit = self.limit();
        conditions.into_statement(format!("SELECT {} FROM ({found}) AS d{limit}", sql::pack(document)))
    }

    /// Documents of an index's b-tree and entries, each searched up to the limit.
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
        conditions.into_statement(sql + &self.limit())
    }

    /// Documents of an index's b-tree and entries, which both come in the order that is asked for.
    pub fn ordered_scans(&self, mut conditions: Conditions, scans: &OrderedScans, by: &MergedBy<'_>) -> Statement {
        let document = self.projected("d.doc", &mut conditions);
        let (key, all) = by.keys(&mut conditions);
        let order = |of: &str| {
            let terms = scans.keys.iter().enumerate().map(|(n, key)| key.order_of(&format!("{of}k{n}")));
            terms.collect::<Vec<_>>().join(", ")
        };
        let most = self.most().map(|most| format!(" LIMIT {most}"));
        let table = self.search.collection.table();
        let part = |of: &str, terms: &str, key: &dyn Fn(&MergeKey) -> String, limit: &str| {
            let keys: String = scans.keys.iter().enumerate().map(|(n, of)| format!(", {} AS k{n}", key(of))).collect();
            format!("(SELECT {of}{keys} FROM {table} t WHERE {terms} ORDER BY {}{limit})", order(""))
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
        let all = if self.single_target { String::new() } else { all };
        let sql = format!("SELECT {}{all} FROM ({found}) AS d ORDER BY {}", sql::pack(document), order("d."));
        conditions.into_statement(sql + &self.limit())
    }

    /// Documents that meet conditions, among which the shard's planner chooses. `column`: one that is in the order of the sort,
    /// and true if that is descending.
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
        let mut sql = format!("SELECT {}", sql::pack(document));
        if let Some(key) = key.as_ref().filter(|_| !self.single_target) {
            sql += &format!(", {key}");
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
        (conditions.into_statement(sql + &self.limit()), order)
    }

    /// How many rows a part of the search may have to give.
    fn most(&self) -> Option<u64> {
        self.options.limit.map(|limit| limit.saturating_add(self.options.skip).min(i64::MAX as u64))
    }

    /// LIMIT and OFFSET at a shard.
    fn limit(&self) -> String {
        let FindOptions { limit, skip, .. } = *self.options;
        let limit = if self.single_target { limit.map(|limit| limit.min(i64::MAX as u64)) } else { self.most() };
        let limit = limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
        let skips = self.single_target && skip > 0;
        limit + &if skips { format!(" OFFSET {}", skip.min(i64::MAX as u64)) } else { String::new() }
    }

    /// The text of the projection, if there is one, with the setting it is meant in.
    fn projection(&self) -> Option<String> {
        let options = self.options;
        let filter = options.positional.then_some(self.search.query.text.as_str());
        options.projection.as_ref().map(|projection| envelope::wrap(projection, options.setting.as_ref(), filter))
    }

    /// What is answered of a document.
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

/// What the documents of ordered scans are merged by.
pub enum MergedBy<'a> {
    /// a sort, as text
    Sort(&'a str),
    /// their first key in a part of an index
    Part(&'a Index, &'a Span),
}

impl MergedBy<'_> {
    /// The SQL of a field's key, and of the whole one, of a document; both have parameters.
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

/// The ORDER BY of a statement at one shard.
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

/// The `_id`s of an unsharded collection are in order behind its one shard key.
fn lead_to(column: &str, collection: &Collection, conditions: &mut Conditions) {
    if column == "t.id" && collection.key.is_unsharded() {
        conditions.and("t.skey = ''::bytea".to_owned());
    }
}
