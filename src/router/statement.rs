//! The SELECT that a shard runs for a find or a count.

use super::choice::finds_few;
use super::condition::{Bound, Conditions};
use super::covered::Covered;
use super::halves::{self, Key, Merged};
use super::hint::{self, Means};
use super::options::{CountOptions, FindOptions};
use super::read::Query;
use crate::catalog::model::{Collection, Index};
use crate::pg::error::Result;
use docshard_core::query::envelope;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::{IndexKeys, Span};
use docshard_core::query::sort::Sort;
use docshard_core::values::key::pattern::FieldKind;

/// A statement for every target of an operation; only the version differs from shard to shard.
#[derive(Debug)]
pub struct Statement {
    /// the text
    pub sql: String,
    /// the values of `$1`, `$2`, …
    pub params: Vec<Bound>,
}

/// In which order the rows come from each shard. The second column is the key they come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// none
    None,
    /// by the bytes of the second column
    Ascending,
    /// by its bytes, greatest first
    Descending,
}

/// The SELECT of a find, and the order of its rows. A single target skips by itself; several send what skipping may need.
///
/// # Errors
/// Those of [`Conditions::of_query`].
pub fn find(
    collection: &Collection,
    query: &Query,
    given: &FindOptions,
    single_target: bool,
) -> Result<(Statement, Order)> {
    let (filter, means) = (&query.filter, hint::means(collection, query)?);
    let in_order;
    let options = match &means {
        // A part of an index comes in its order.
        Means::Within { index, .. } if given.sort.is_none() => {
            let sort = index.map_or_else(|| IndexKeys::of_id().order(), |index| index.keys.order());
            in_order = FindOptions { sort: Some(sort), ..given.clone() };
            &in_order
        }
        _ => given,
    };
    if let Some(found) = find_covered(collection, query, &means, options, single_target) {
        return Ok((found, Order::None));
    }
    let is_part = query.bounds.is_some() && given.sort.is_none();
    if let Some(found) = find_by_halves(collection, query, &means, options, single_target, is_part) {
        return Ok(found);
    }
    let by_keys = |(sort, _): &(Sort, String)| column_order(collection, filter, sort);
    let column = options.sort.as_ref().and_then(by_keys);
    let mut halves = None;
    // Few documents in the order of the keys are found by these, whatever it would cost to look into documents.
    let few = options.limit.filter(|_| column.is_some());
    let mut conditions = few
        .and_then(|_| Conditions::of_keys_alone(collection, query, &means))
        .or_else(|| Conditions::of_keys(collection, query, &means))
        .or_else(|| {
            let apart = if column.is_none() { halves::exact(collection, query, &means) } else { None };
            apart.map(|(conditions, found)| {
                halves = Some(found);
                conditions
            })
        })
        .map_or_else(|| Conditions::beyond_keys(collection, query, &means), Ok)?;
    let document = projected("t.doc", query, options, &mut conditions);
    let (key, order) = match &options.sort {
        None => (None, Order::None),
        Some((_, text)) => {
            let (key, descending) = match column {
                Some((column, descending)) => (column.to_owned(), descending),
                None => {
                    let text = conditions.param(Bound::Text(text.clone()));
                    (format!("docshard_internal.sort_key(t.doc, {text})"), false)
                }
            };
            (Some(key), if descending { Order::Descending } else { Order::Ascending })
        }
    };
    if let Some(column) = &key {
        lead_to(column, collection, &mut conditions);
    }
    let mut sql = format!("SELECT docshard_internal.pack({document})");
    if let Some(key) = &key
        && !single_target
    {
        sql += &format!(", {key}");
    }
    let table = collection.table();
    sql += &match halves {
        None => format!(" FROM {table} t WHERE {}", conditions.sql()),
        Some(found) => {
            let [tree, entries] =
                found.map(|conditions| format!("SELECT t.skey, t.id, t.doc FROM {table} t WHERE {conditions}"));
            format!(" FROM ({tree} UNION ALL {entries}) AS t")
        }
    };
    if let Some(key) = &key {
        sql += &format!(" ORDER BY {key}{}", if order == Order::Descending { " DESC" } else { "" });
    }
    if let (Some((column, _)), None) = (column, options.limit)
        && !finds_few(collection, filter, column == "t.skey")
    {
        sql += UNKNOWN_LIMIT;
    }
    sql += &limited(options, single_target);
    Ok((Statement { sql, params: conditions.params }, order))
}

/// No limit, of which PostgreSQL's planner does not know it: it takes the rows for a cursor's, and the way that begins soonest
/// for better than one that ends sooner, unless that is many times as cheap.
const UNKNOWN_LIMIT: &str = " LIMIT (SELECT NULL::int8)";

/// As [`find`], if an index has all that filter and projection ask for, and no order is asked for: see [`covered`](super::covered).
fn find_covered(
    collection: &Collection,
    query: &Query,
    means: &Means<'_>,
    options: &FindOptions,
    single_target: bool,
) -> Option<Statement> {
    let told = options.included.as_ref().filter(|_| options.sort.is_none() && !query.filter.is_empty())?;
    let most = options.limit.map(|limit| limit.saturating_add(options.skip).min(i64::MAX as u64));
    let covered = Covered::of_query(collection, query, means, told)?;
    let (mut conditions, found) = covered.documents(collection, query, means, most);
    let document = projected("d.doc", query, options, &mut conditions);
    let mut sql = format!("SELECT docshard_internal.pack({document}) FROM ({found}) AS d");
    if let Some(limit) = options.limit.filter(|_| single_target).or(most) {
        sql += &format!(" LIMIT {}", limit.min(i64::MAX as u64));
    }
    if single_target && options.skip > 0 {
        sql += &format!(" OFFSET {}", options.skip.min(i64::MAX as u64));
    }
    Some(Statement { sql, params: conditions.params })
}

/// As [`find`], if a secondary index serves the sort, or there is a limit and one serves the filter: see [`halves`].
/// `is_part`: the order is that of the part of an index that is asked for.
fn find_by_halves(
    collection: &Collection,
    query: &Query,
    means: &Means<'_>,
    options: &FindOptions,
    single_target: bool,
    is_part: bool,
) -> Option<(Statement, Order)> {
    let by_keys = |(sort, _): &(Sort, String)| is_order_of_keys(collection, &query.filter, sort);
    if options.sort.as_ref().is_some_and(by_keys) && !matches!(means, Means::Within { index: Some(_), .. }) {
        return None;
    }
    let merged = options.sort.as_ref().and_then(|(sort, text)| {
        // Whether a document has a key in a part of an index is asked of the document itself.
        let told = options.included.as_deref().filter(|_| query.bounds.is_none());
        let (conditions, halves) = halves::merged(collection, query, means, sort, told)?;
        let sorted = match means {
            Means::Within { index: Some(index), span } if is_part => SortedBy::Part(index, span),
            _ => SortedBy::Sort(text),
        };
        Some(find_merged((collection, query), options, single_target, &sorted, conditions, &halves))
    });
    if merged.is_some() || options.limit.is_none() {
        return merged;
    }
    let limit = options.limit?;
    let sort = options.sort.as_ref().map(|(sort, _)| sort);
    let (mut conditions, halves) = halves::of_query(collection, query, means, sort)?;
    let document = projected("d.doc", query, options, &mut conditions);
    let key = options.sort.as_ref().map(|(_, text)| {
        let text = conditions.param(Bound::Text(text.clone()));
        format!("docshard_internal.sort_key(t.doc, {text}) AS key")
    });
    let columns: Vec<String> = ["t.doc".to_owned()].into_iter().chain(key.clone()).collect();
    let (columns, table) = (columns.join(", "), collection.table());
    let most = limit.saturating_add(options.skip).min(i64::MAX as u64);
    let order = halves.order.map(|order| format!(" ORDER BY {order}")).unwrap_or_default();
    let mut found = format!("(SELECT {columns} FROM {table} t WHERE {}{order} LIMIT {most})", halves.tree);
    if let Some(entries) = halves.entries {
        let order = if key.is_some() { " ORDER BY key" } else { "" };
        found += &format!(" UNION ALL (SELECT {columns} FROM {table} t WHERE {entries}{order} LIMIT {most})");
    }
    let (told, order) = match (key, single_target) {
        (None, _) => ("", ""),
        (Some(_), true) => ("", " ORDER BY d.key"),
        (Some(_), false) => (", d.key", " ORDER BY d.key"),
    };
    let sql = format!("SELECT docshard_internal.pack({document}){told} FROM ({found}) AS d{order}");
    let sql = sql + &limited(options, single_target);
    let order = if sort.is_some() { Order::Ascending } else { Order::None };
    Some((Statement { sql, params: conditions.params }, order))
}

/// What the documents of two halves are merged by.
enum SortedBy<'a> {
    /// a sort, as text
    Sort(&'a str),
    /// their first key in a part of an index
    Part(&'a Index, &'a Span),
}

impl SortedBy<'_> {
    /// The SQL of a field's key, and of the whole one, of a document; both have parameters.
    fn keys(&self, conditions: &mut Conditions) -> (impl Fn(&Key) -> String + use<>, String) {
        let (of_field, of_all, arguments) = match self {
            SortedBy::Sort(text) => ("sort_field_key", "sort_key", conditions.param(Bound::Text((*text).to_owned()))),
            SortedBy::Part(index, span) => ("key_field_within", "key_within", conditions.part(index, span)),
        };
        let all = format!(", docshard_internal.{of_all}(d.doc, {arguments})");
        (move |key: &Key| format!("docshard_internal.{of_field}(t.doc, {arguments}, {})", key.field), all)
    }
}

/// The SELECT of a find whose halves come in one order.
fn find_merged(
    (collection, query): (&Collection, &Query),
    options: &FindOptions,
    single_target: bool,
    sorted: &SortedBy<'_>,
    mut conditions: Conditions,
    halves: &Merged,
) -> (Statement, Order) {
    let document = projected("d.doc", query, options, &mut conditions);
    let (key, all) = sorted.keys(&mut conditions);
    let order = |of: &str| {
        let terms = halves.keys.iter().enumerate().map(|(n, key)| key.order_of(&format!("{of}k{n}")));
        terms.collect::<Vec<_>>().join(", ")
    };
    let most = options.limit.map(|limit| limit.saturating_add(options.skip).min(i64::MAX as u64));
    let most = most.map(|most| format!(" LIMIT {most}"));
    let half = |of: &str, terms: &str, key: &dyn Fn(&Key) -> String, limit: &str| {
        let keys: String = halves.keys.iter().enumerate().map(|(n, of)| format!(", {} AS k{n}", key(of))).collect();
        format!("(SELECT {of}{keys} FROM {} t WHERE {terms} ORDER BY {}{limit})", collection.table(), order(""))
    };
    let unlimited = most.as_deref().unwrap_or(UNKNOWN_LIMIT);
    let mut found = match &halves.told {
        None => half("t.doc", &halves.tree, &|key| key.expression.clone(), unlimited),
        Some(told) => {
            let rows = half(&told.columns, &halves.tree, &|key| key.expression.clone(), unlimited);
            let keys: String = (0..halves.keys.len()).map(|n| format!(", s.k{n}")).collect();
            format!("(SELECT {} AS doc{keys} FROM {rows} AS s)", told.document)
        }
    };
    let of = if halves.told.is_some() { "t.doc::jsonb AS doc" } else { "t.doc" };
    found += &format!(" UNION ALL {}", half(of, &halves.entries, &key, most.as_deref().unwrap_or_default()));
    let told = if single_target { String::new() } else { all };
    let sql = format!("SELECT docshard_internal.pack({document}){told} FROM ({found}) AS d ORDER BY {}", order("d."));
    let sql = sql + &limited(options, single_target);
    (Statement { sql, params: conditions.params }, Order::Ascending)
}

/// LIMIT and OFFSET at a shard: a single one skips, several send what skipping may need.
fn limited(options: &FindOptions, single_target: bool) -> String {
    let skip = if single_target { options.skip } else { 0 };
    let limit = options.limit.map(|limit| limit.saturating_add(options.skip - skip).min(i64::MAX as u64));
    let limit = limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
    let offset = if skip > 0 { format!(" OFFSET {}", skip.min(i64::MAX as u64)) } else { String::new() };
    limit + &offset
}

/// The text of a find's projection, if it has one, with the setting it is meant in.
pub fn projection(query: &Query, options: &FindOptions) -> Option<String> {
    let filter = options.positional.then_some(query.text.as_str());
    options.projection.as_ref().map(|projection| envelope::wrap(projection, options.setting.as_ref(), filter))
}

/// What a find answers of a document.
fn projected(document: &str, query: &Query, options: &FindOptions, conditions: &mut Conditions) -> String {
    match projection(query, options) {
        Some(text) => {
            let projection = conditions.param(Bound::Text(text));
            format!("docshard_internal.project({document}, {projection})")
        }
        None => document.to_owned(),
    }
}

/// The SELECT of a count: one row with the number of documents, at most skip + limit of them.
///
/// # Errors
/// Those of [`Conditions::of_query`].
pub fn count(collection: &Collection, query: &Query, options: &CountOptions) -> Result<Statement> {
    let planned = count_planned(collection, query, options)?;
    Ok(planned.around.unwrap_or(planned.statement))
}

/// A count as PostgreSQL would plan and run it, and as a shard does it without an executor, if it can.
#[derive(Debug)]
pub struct Count {
    /// for PostgreSQL's planner
    pub statement: Statement,
    /// for `ownership::table`, instead
    around: Option<Statement>,
}

impl From<Statement> for Count {
    fn from(statement: Statement) -> Self {
        Self { statement, around: None }
    }
}

/// As [`count`], both ways.
///
/// # Errors
/// Those of [`Conditions::of_query`].
pub fn count_planned(collection: &Collection, query: &Query, options: &CountOptions) -> Result<Count> {
    let means = hint::means(collection, query)?;
    if options.limit.is_none() {
        if let Some(conditions) = Conditions::of_keys_alone(collection, query, &means) {
            let sql = format!("SELECT count(*) FROM {} t WHERE {}", collection.table(), conditions.sql());
            return Ok(Statement { sql, params: conditions.params }.into());
        }
        if let Some(covered) = Covered::of_query(collection, query, &means, &[]) {
            return Ok(covered.count(collection, query, &means).into());
        }
    }
    let conditions = Conditions::by_means(collection, query, &means)?;
    let from = format!("FROM {} t WHERE {}", collection.table(), conditions.sql());
    let around = match options.limit {
        Some(_) => None,
        None if query.filter.is_empty() && query.hint.is_none() => {
            Some(format!("SELECT docshard_internal.count_all({}) WHERE {}", collection.id, conditions.sql()))
        }
        None => conditions.of_scan().map(|(check, filter)| {
            format!("SELECT docshard_internal.count_matching({}, {filter}::text) WHERE {check}", collection.id)
        }),
    };
    let sql = match options.limit {
        None => format!("SELECT count(*) {from}"),
        Some(limit) => {
            let most = limit.saturating_add(options.skip).min(i64::MAX as u64);
            format!("SELECT count(*) FROM (SELECT {from} LIMIT {most}) AS few")
        }
    };
    let around = around.map(|sql| Statement { sql, params: conditions.params.clone() });
    Ok(Count { statement: Statement { sql, params: conditions.params }, around })
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
            let text = conditions.param(Bound::Text(text.clone()));
            format!(" ORDER BY docshard_internal.sort_key(t.doc, {text})")
        }
    }
}

/// The `_id`s of an unsharded collection are in order behind its one shard key.
fn lead_to(column: &str, collection: &Collection, conditions: &mut Conditions) {
    if column == "t.id" && collection.key.is_unsharded() {
        conditions.and("t.skey = ''::bytea".to_owned());
    }
}

/// True if the columns of shard key and `_id` are in the order of the sort.
pub fn is_order_of_keys(collection: &Collection, filter: &Filter, sort: &Sort) -> bool {
    column_order(collection, filter, sort).is_some()
}

/// The column whose bytes already order documents as the sort demands, and true for descending.
///
/// `id` orders by `_id`. `skey` orders by the shard key's fields; those that the filter fixes to one value may be left
/// out of the sort, and the sort may end before the key does.
pub fn column_order(collection: &Collection, filter: &Filter, sort: &Sort) -> Option<(&'static str, bool)> {
    let descending = sort.fields.first()?.1;
    if sort.collator.is_some() {
        return None;
    }
    if sort.fields.iter().any(|(_, down)| *down != descending) {
        return None;
    }
    if let [(path, _)] = sort.fields.as_slice()
        && path == "_id"
    {
        // Where the shard key is the `_id`, the primary key is in its order, and there is no index on `id`.
        let by_key = !collection.key.is_unsharded() && collection.key.is_in_order_of_id();
        return Some((if by_key { "t.skey" } else { "t.id" }, descending));
    }
    let mut wanted = sort.fields.iter().peekable();
    for (path, kind) in &collection.key.fields {
        match wanted.peek() {
            None => break,
            Some((next, _)) if next == path && *kind == FieldKind::Ranged => {
                wanted.next();
            }
            Some(_) if filter.ranges_of(path).as_point().is_some() => {}
            Some(_) => return None,
        }
    }
    wanted.peek().is_none().then_some(("t.skey", descending))
}
