//! Plans a read: the target shards, the statements sent to them, and how the router combines their rows.
//!
//! Each attempt of a statement makes a new [`Plan`] with the current map of the collection; `execute` runs it, `explain` shows
//! it. This module decides which indexes a search may use ([`index_restriction`], [`index_choice`]) and which [`AccessPath`] it
//! takes; only [`select`] writes the SQL. The shard's planner chooses among the conditions that the statement contains.

pub mod destination;
pub mod order;
pub mod statement;

pub mod index_restriction;
pub mod search;

pub mod index_choice;

pub mod conditions;

pub mod covered;
pub mod divided_scan;
pub mod document_key;
pub mod index_range;

pub mod select;

pub mod pipeline;

use super::request::options::{CountOptions, FindOptions};
use crate::error::Result;
use crate::routing::model::Index;
use crate::values::document::field_order::keeps_order;
use conditions::Conditions;
use covered::Covered;
use destination::Destination;
use document_key::DocumentKey;
use index_range::{Declined, FindsByIndex, IndexRange};
use index_restriction::IndexRestriction;
use order::{Order, column_order};
use search::Search;
use select::{Find, MergedBy};
use statement::Statement;

/// How a shard finds the documents. Indexes are given by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPath {
    Nothing,
    /// one document by its key, without PostgreSQL's planner
    Key,
    /// a range of an index, without PostgreSQL's planner; the shard may decline
    IndexRange {
        finds: FindsByIndex,
        backward: bool,
        /// true if documents are sorted after the scan
        sorted: bool,
    },
    /// all values come from a secondary index
    Covered(i32),
    /// b-tree and entries of a secondary index, each up to the limit
    DividedScan(i32),
    /// b-tree and entries of a secondary index, both in the order of the sort
    OrderedScans(i32),
    /// the plan that PostgreSQL's planner chooses
    Conditions,
    /// the first `most` documents of a sort, by a sequential scan without PostgreSQL's executor, which would copy each document before it
    /// compares it
    BoundedSort {
        most: u64,
    },
    /// all matching documents by a sequential scan, without PostgreSQL's executor; for the stages of a pipeline
    Scan,
    /// stages of a pipeline, over documents that another path finds
    Pipeline,
    /// counts all documents, without PostgreSQL's executor
    CountAll,
    /// counts matching documents by a sequential scan, without PostgreSQL's executor
    CountMatching,
}

impl AccessPath {
    /// The name that `explain` shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "NOTHING",
            Self::Key => "KEY",
            Self::IndexRange { .. } => "INDEX_RANGE",
            Self::Covered(_) => "COVERED",
            Self::DividedScan(_) => "DIVIDED_SCAN",
            Self::OrderedScans(_) => "ORDERED_SCANS",
            Self::Conditions => "CONDITIONS",
            Self::BoundedSort { .. } => "BOUNDED_SORT",
            Self::Scan => "SCAN",
            Self::Pipeline => "PIPELINE",
            Self::CountAll => "COUNT_ALL",
            Self::CountMatching => "COUNT_MATCHING",
        }
    }

    /// True if each shard's row is a number of documents, and PostgreSQL's planner is not used.
    pub fn counts(self) -> bool {
        matches!(self, Self::CountAll | Self::CountMatching)
    }

    /// True if PostgreSQL's planner is not used on the shards.
    pub fn is_direct(self) -> bool {
        use AccessPath::{BoundedSort, CountAll, CountMatching, IndexRange, Key, Nothing, Scan};
        matches!(self, Nothing | Key | IndexRange { .. } | BoundedSort { .. } | Scan | CountAll | CountMatching)
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub destinations: Vec<Destination>,
    pub path: AccessPath,
    pub statement: Statement,
    /// the order of each shard's rows, by which the router merges them
    pub order: Order,
    /// rows that the router skips
    pub skip: u64,
    /// the most rows that it returns after these; None: all
    pub limit: Option<u64>,
    /// true if shards that cannot be reached are left out
    pub allow_partial: bool,
}

impl Plan {
    fn unordered(destinations: Vec<Destination>, path: AccessPath, statement: Statement) -> Self {
        Self { destinations, path, statement, order: Order::None, skip: 0, limit: None, allow_partial: false }
    }
}

/// The access paths that a plan may have.
#[derive(Clone, Copy, Debug)]
pub enum Allowed<'a> {
    /// all but those that shards have declined
    All(&'a Declined),
    /// like [`All`](Self::All), for a find that is only explained, which [`Declined`] does not count
    AllToExplain(&'a Declined),
    /// those that use PostgreSQL's planner; their rows have a merge key
    Planned,
}

/// A read of a query's documents.
#[derive(Clone, Copy, Debug)]
pub enum Read<'a> {
    Find(&'a FindOptions),
    Count(&'a CountOptions),
    /// the distinct values of a field
    Distinct(&'a str),
}

impl Read<'_> {
    pub fn plan(self, search: &Search<'_>, allowed: Allowed<'_>) -> Result<Plan> {
        match self {
            Read::Find(options) => find(search, options, allowed),
            Read::Count(options) => count(search, options),
            Read::Distinct(field) => distinct(search, field),
        }
    }
}

pub fn find(search: &Search<'_>, options: &FindOptions, allowed: Allowed<'_>) -> Result<Plan> {
    if let Some(plan) = unplanned_find(search, options, allowed)? {
        return Ok(plan);
    }
    let destinations = search.destinations()?;
    let single_target = destinations.len() == 1;
    let (path, statement, order) = planned_find(search, options, single_target)?;
    let skip = if single_target { 0 } else { options.skip };
    let &FindOptions { limit, allow_partial, .. } = options;
    Ok(Plan { destinations, path, statement, order, skip, limit, allow_partial })
}

/// Plans a find that needs no planner of PostgreSQL's: one without target shards, one of a single document by its key, or one of few
/// documents by an index. None for other finds.
fn unplanned_find(search: &Search<'_>, options: &FindOptions, allowed: Allowed<'_>) -> Result<Option<Plan>> {
    let destinations = search.destinations()?;
    if destinations.is_empty() {
        return Ok(Some(Plan::unordered(destinations, AccessPath::Nothing, Statement::none())));
    }
    let (Allowed::All(declined) | Allowed::AllToExplain(declined)) = allowed else { return Ok(None) };
    let single_target = destinations.len() == 1;
    let &FindOptions { skip, limit, allow_partial, .. } = options;
    if single_target && let Some(key) = DocumentKey::of_find(search, options) {
        let statement = select::document(search.collection, key);
        let plan = Plan::unordered(destinations, AccessPath::Key, statement);
        return Ok(Some(Plan { limit, allow_partial, ..plan }));
    }
    let range = IndexRange::of_find(search, options, declined, matches!(allowed, Allowed::All(_)));
    Ok(range.map(|range| {
        let (finds, backward, sorted) = (range.finds, range.backward, !range.in_order);
        let path = AccessPath::IndexRange { finds, backward, sorted };
        let order = range.order(options);
        let statement = Find { search, options, single_target }.index_range(range);
        Plan { destinations, path, statement, order, skip, limit, allow_partial }
    }))
}

fn planned_find(
    search: &Search<'_>,
    given: &FindOptions,
    single_target: bool,
) -> Result<(AccessPath, Statement, Order)> {
    // With `min` and `max` the result has the order of the index.
    let in_order;
    let (options, part) = match &search.restriction {
        IndexRestriction::Part { index, keys, span } if given.sort.is_none() => {
            in_order = FindOptions { sort: Some(keys.order()), ..given.clone() };
            (&in_order, index.map(|index| (index, span)))
        }
        _ => (given, None),
    };
    let select = Find { search, options, single_target };
    // An index stores neither the order of a document's fields nor whether an integer is a 64-bit one.
    let (sort, included) = (options.sort.as_ref(), options.included.as_deref().filter(|_| !keeps_order()));
    if let Some(paths) = included.filter(|_| sort.is_none() && !search.filter().is_empty())
        && let Some(covered) = Covered::of_search(search, paths)
    {
        return Ok((AccessPath::Covered(covered.index.id), select.covered(&covered), Order::None));
    }
    let column = sort.and_then(|(sort, _)| column_order(search.collection, search.filter(), sort));
    if column.is_none() || matches!(search.restriction, IndexRestriction::Part { index: Some(_), .. }) {
        // The whole document is needed to decide whether it has a key in the span.
        let paths = included.filter(|_| search.query.bounds.is_none());
        if let Some((sort, text)) = sort
            && let Some((conditions, scans)) = divided_scan::ordered(search, sort, paths)
        {
            let by = part.map_or(MergedBy::Sort(text), |(index, span): (&Index, _)| MergedBy::Part(index, span));
            let statement = select.ordered_scans(conditions, &scans, &by);
            return Ok((AccessPath::OrderedScans(scans.index), statement, Order::Ascending));
        }
        if options.limit.is_some()
            && let Some((conditions, scan)) = divided_scan::of_search(search, sort.map(|(sort, _)| sort))
        {
            let order = if sort.is_some() { Order::Ascending } else { Order::None };
            return Ok((AccessPath::DividedScan(scan.index), select.divided_scan(conditions, &scan), order));
        }
    }
    // For a limited result in the order of the keys, conditions on the keys alone are cheaper than reading documents, whatever
    // the planner estimates.
    let by_keys_alone = options.limit.and(column).and_then(|_| Conditions::of_keys_alone(search));
    let conditions = by_keys_alone.map_or_else(|| Conditions::of_search(search), Ok)?;
    if let (Some((sort, _)), Some(most), None) = (sort, select.most(), column)
        && let Some(filter) = conditions.filter_of_scan(search)
    {
        return Ok((AccessPath::BoundedSort { most }, select.bounded_sort(sort, most, filter), Order::Ascending));
    }
    let (statement, order) = select.conditions(conditions, column);
    Ok((AccessPath::Conditions, statement, order))
}

/// Plans a count: each shard returns one row with its number of documents, at most skip + limit.
pub fn count(search: &Search<'_>, options: &CountOptions) -> Result<Plan> {
    let (path, statement) = count_at_shard(search, options)?;
    Ok(Plan::unordered(search.destinations()?, path, statement))
}

fn count_at_shard(search: &Search<'_>, options: &CountOptions) -> Result<(AccessPath, Statement)> {
    let collection = search.collection;
    if let Some(limit) = options.limit {
        let most = limit.saturating_add(options.skip).min(i64::MAX as u64);
        return Ok((AccessPath::Conditions, select::count(collection, Conditions::of_search(search)?, Some(most))));
    }
    if let Some(conditions) = Conditions::of_keys_alone(search) {
        return Ok((AccessPath::Conditions, select::count(collection, conditions, None)));
    }
    if let Some(covered) = Covered::of_search(search, &[]) {
        return Ok((AccessPath::Covered(covered.index.id), select::covered_count(search, &covered)));
    }
    if search.filter().is_empty() && search.query.hint.is_none() {
        return Ok((AccessPath::CountAll, select::count_all(search)));
    }
    let conditions = Conditions::of_search(search)?;
    if let Some(statement) = select::count_matching(collection, &conditions) {
        return Ok((AccessPath::CountMatching, statement));
    }
    Ok((AccessPath::Conditions, select::count(collection, conditions, None)))
}

/// Plans `distinct`: each row is a value and its key, in the order of the keys.
pub fn distinct(search: &Search<'_>, field: &str) -> Result<Plan> {
    let statement = select::distinct(search, Conditions::of_search(search)?, field);
    let plan = Plan::unordered(search.destinations()?, AccessPath::Conditions, statement);
    Ok(Plan { order: Order::Ascending, ..plan })
}

/// Plans the search for one matching document on each shard; rows are its shard key and `_id`.
pub fn candidate(search: &Search<'_>) -> Result<Plan> {
    let statement = select::candidate(search.collection, Conditions::of_search(search)?);
    Ok(Plan::unordered(search.destinations()?, AccessPath::Conditions, statement))
}
