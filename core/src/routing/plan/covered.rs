//! Answers statements from an index's b-tree alone, without reading documents.
//!
//! The b-tree stores the values at the index's paths, as keys and types (`crate::query::index`). If filter and
//! projection use no other paths, they are evaluated on a document that is rebuilt from these values. The filter need not be
//! evaluated at all if the key conditions are equivalent to it. Documents that the b-tree cannot represent are searched by their
//! entries.

use super::conditions::{Conditions, index_expression};
use super::index_choice::{has_few_ranges, index_for};
use super::index_restriction::IndexRestriction;
use super::search::Search;
use crate::query::filter::Filter;
use crate::query::index::Wanted;
use crate::routing::model::Index;
use crate::routing::protocol::sql;
use crate::sql::quote::quote_literal;

#[derive(Debug)]
pub struct Covered<'a> {
    pub index: &'a Index,
    wanted: Wanted,
    /// true if the wanted keys are equivalent to the filter
    exact: bool,
}

/// SQL for the document that a filter is evaluated on, in a row `t`.
const STORED: &str = "t.doc";

/// True if the wanted keys in the b-tree are equivalent to the filter, for documents that are not among the entries.
pub fn is_exact(index: &Index, wanted: &Wanted, filter: &Filter) -> bool {
    let given: Vec<&str> = index.fields().iter().take(wanted.columns.len()).map(|(path, _)| path.as_str()).collect();
    index.keys.hashed.is_none()
        && index.keys.collation.is_none()
        && filter.is_ranges_of(&given)
        && wanted.columns.iter().all(has_few_ranges)
}

/// Returns the result of [`is_exact`] if an index has all values that the filter and these paths need, else None.
pub fn coverage(index: &Index, wanted: &Wanted, filter: &Filter, paths: &[String]) -> Option<bool> {
    let keys = &index.keys;
    if !keys.has_tree() || keys.hashed.is_some() || keys.collation.is_some() {
        return None;
    }
    let exact = is_exact(index, wanted, filter);
    let has_types = keys.has_types();
    let enough = exact || has_types && filter.looks_only_at(|path| keys.covers(path));
    (enough && (paths.is_empty() || has_types) && paths.iter().all(|path| keys.covers(path))).then_some(exact)
}

/// SQL that rebuilds a document from an index's columns.
#[derive(Debug)]
pub struct Restored {
    /// selected from a row `t`
    pub columns: String,
    /// the document, from a row `s` with these columns
    pub document: String,
}

impl Restored {
    pub fn of(index: &Index) -> Self {
        let columns: Vec<String> =
            columns(index).enumerate().map(|(column, key)| format!(", {key} AS c{column}")).collect();
        let names = (0..index.fields().len()).map(|column| format!("s.c{column}"));
        Self {
            columns: format!("{} AS types{}", types(index), columns.concat()),
            document: restored(index, "s.types", names),
        }
    }
}

fn columns(index: &Index) -> impl Iterator<Item = String> {
    (0..index.fields().len()).map(|column| index_expression(STORED, index, column))
}

fn types(index: &Index) -> String {
    sql::index_types(STORED, format_args!("{}::text", quote_literal(&index.definition)))
}

fn restored(index: &Index, types: &str, columns: impl Iterator<Item = String>) -> String {
    let columns: Vec<String> = columns.collect();
    let keys = quote_literal(&index.definition);
    sql::restore_document(format_args!("{keys}::text"), types, columns.join(", "))
}

/// Returns the WHERE clauses for b-tree and entries, both with the `conditions` so far. `exact` as in [`coverage`],
/// `pinned` as in [`Conditions::in_tree`].
pub fn searches(
    conditions: &mut Conditions,
    search: &Search<'_>,
    (index, wanted): (&Index, &Wanted),
    exact: bool,
    pinned: &[usize],
) -> (String, String) {
    conditions.held_by(index);
    conditions.and(search.restriction.term().unwrap_or_else(sql::load_library));
    let both = conditions.sql();
    let and = |more: &[&str]| [&[both.as_str()], more].concat().join(" AND ");
    let keys = conditions.in_tree(index, wanted, pinned);
    let filter = (!exact).then(|| conditions.matched(&restored(index, &types(index), columns(index)), search.query));
    let tree = and(&keys.iter().chain(&filter).map(String::as_str).collect::<Vec<_>>());
    let keys = conditions.among_entries(index, wanted);
    let filter = (!search.filter().is_empty()).then(|| conditions.matched(STORED, search.query));
    let entries = and(&[keys].iter().chain(&filter).map(String::as_str).collect::<Vec<_>>());
    (tree, conditions.in_other_part(&entries))
}

impl<'a> Covered<'a> {
    /// Chooses an index that has all values that the filter and these paths need, unless another index serves the
    /// filter better.
    pub fn of_search(search: &Search<'a>, paths: &[String]) -> Option<Self> {
        if matches!(search.restriction, IndexRestriction::Part { .. }) {
            return None;
        }
        let filter = search.filter();
        let covers =
            |index: &Index, wanted: &Wanted| !wanted.is_all() && coverage(index, wanted, filter, paths).is_some();
        let (index, wanted) = index_for(search, covers)?;
        let exact = coverage(index, &wanted, filter, paths).filter(|_| !wanted.is_all())?;
        Some(Self { index, wanted, exact })
    }

    /// Returns the WHERE clauses for b-tree and entries, with the parameters.
    pub fn searches(&self, search: &Search<'_>) -> (Conditions, [String; 2]) {
        let mut conditions = Conditions::checked(search);
        let (btree, entries) = searches(&mut conditions, search, (self.index, &self.wanted), self.exact, &[]);
        (conditions, [btree, entries])
    }
}
