//! What can be answered from an index's b-tree alone, so that no document is looked at.
//!
//! The keys and types that the b-tree stores are the values at the index's paths (`docshard_core::query::index`). Where a filter asks
//! for no others, it is run on a document restored from them, or not at all, if the wanted keys are all that it says; a
//! projection is as content with that document. Documents that stand apart in the b-tree are searched by their entries, as ever.

use super::conditions::{Conditions, index_expression};
use super::index_choice::{has_few_ranges, index_for};
use super::index_restriction::IndexRestriction;
use super::search::Search;
use crate::catalog::model::Index;
use crate::pg::spi::quote::quote_literal;
use crate::protocol::sql;
use crate::storage::planning;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::Wanted;

/// A search by an index that has, in its b-tree, all that is asked for.
#[derive(Debug)]
pub struct Covered<'a> {
    /// the index
    pub index: &'a Index,
    wanted: Wanted,
    /// the filter is all said by the wanted keys
    exact: bool,
}

/// What a filter is to be run on, of a row `t`.
const STORED: &str = "t.doc";

/// True if the wanted keys of the b-tree are all that the filter says of documents that do not stand apart.
pub fn is_exact(index: &Index, wanted: &Wanted, filter: &Filter) -> bool {
    let given: Vec<&str> = index.fields().iter().take(wanted.columns.len()).map(|(path, _)| path.as_str()).collect();
    index.keys.hashed.is_none()
        && index.keys.collation.is_none()
        && filter.is_ranges_of(&given)
        && wanted.columns.iter().all(has_few_ranges)
}

/// Some if an index tells all that a filter asks for, and the values at these paths; true if what it is searched by is all that
/// the filter says.
pub fn exactly(index: &Index, wanted: &Wanted, filter: &Filter, paths: &[String]) -> Option<bool> {
    let keys = &index.keys;
    if !keys.has_tree() || keys.hashed.is_some() || keys.collation.is_some() {
        return None;
    }
    let exact = is_exact(index, wanted, filter);
    let tells = keys.has_types();
    let enough = exact || tells && filter.looks_only_at(|path| keys.covers(path));
    (enough && (paths.is_empty() || tells) && paths.iter().all(|path| keys.covers(path))).then_some(exact)
}

/// How a document is restored from an index's row.
#[derive(Debug)]
pub struct Restored {
    /// what is selected of a row `t`
    pub columns: String,
    /// the document, as far as they tell, of a row `s` of these
    pub document: String,
}

impl Restored {
    /// Of the rows of this index.
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

/// The document that types and columns were made of, as far as they tell.
fn restored(index: &Index, types: &str, columns: impl Iterator<Item = String>) -> String {
    let columns: Vec<String> = columns.collect();
    let keys = quote_literal(&index.definition);
    sql::restored(format_args!("{keys}::text"), types, columns.join(", "))
}

/// The WHERE clauses of b-tree and entries, which have the `conditions` so far, too; `exact` as [`exactly`] says. See
/// [`Conditions::in_tree`] for `pinned`.
pub fn searches(
    conditions: &mut Conditions,
    search: &Search<'_>,
    (index, wanted): (&Index, &Wanted),
    exact: bool,
    pinned: &[usize],
) -> (String, String) {
    conditions.held_by(index);
    conditions.and(search.restriction.term().unwrap_or_else(planning::loads));
    let both = conditions.sql();
    let and = |more: &[&str]| [&[both.as_str()], more].concat().join(" AND ");
    let keys = conditions.in_tree(index, wanted, pinned);
    let filter = (!exact).then(|| conditions.matched(&restored(index, &types(index), columns(index)), search.query));
    let tree = and(&keys.iter().chain(&filter).map(String::as_str).collect::<Vec<_>>());
    let keys = conditions.among_entries(index, wanted);
    let filter = (!search.filter().is_empty()).then(|| conditions.matched(STORED, search.query));
    let entries = and(&[keys].iter().chain(&filter).map(String::as_str).collect::<Vec<_>>());
    (tree, entries)
}

impl<'a> Covered<'a> {
    /// By an index that tells all that the filter asks for, and the values at the paths in `paths`; None if there is none
    /// such, or one that serves the filter better.
    pub fn of_search(search: &Search<'a>, paths: &[String]) -> Option<Self> {
        if matches!(search.restriction, IndexRestriction::Part { .. }) {
            return None;
        }
        let filter = search.filter();
        let covers =
            |index: &Index, wanted: &Wanted| !wanted.is_all() && exactly(index, wanted, filter, paths).is_some();
        let (index, wanted) = index_for(search, covers)?;
        let exact = exactly(index, &wanted, filter, paths).filter(|_| !wanted.is_all())?;
        Some(Self { index, wanted, exact })
    }

    /// The WHERE clauses of b-tree and entries, and all conditions' parameters.
    pub fn searches(&self, search: &Search<'_>) -> (Conditions, [String; 2]) {
        let mut conditions = Conditions::new(search.collection);
        let (btree, entries) = searches(&mut conditions, search, (self.index, &self.wanted), self.exact, &[]);
        (conditions, [btree, entries])
    }
}
