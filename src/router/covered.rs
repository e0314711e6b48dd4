//! What can be answered from an index's b-tree alone, so that no document is looked at.
//!
//! The keys and types that the b-tree stores are the values at the index's paths (`docshard_core::query::index`). Where a filter asks
//! for no others, it is run on a document restored from them, or not at all, if the wanted keys are all that it says; a
//! projection is as content with that document. Documents that stand apart in the b-tree are searched by their entries, as ever.

use super::choice::best_of;
use super::condition::{Conditions, has_few_ranges, index_expression};
use super::hint::Means;
use super::read::Query;
use super::statement::Statement;
use crate::catalog::model::{Collection, Index};
use crate::pg::spi::quote::quote_literal;
use crate::storage::planning;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::Wanted;

/// A search by an index that has, in its b-tree, all that is asked for.
pub struct Covered<'a> {
    index: &'a Index,
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
pub fn exactly(index: &Index, wanted: &Wanted, filter: &Filter, told: &[String]) -> Option<bool> {
    let keys = &index.keys;
    if !keys.has_tree() || keys.hashed.is_some() || keys.collation.is_some() {
        return None;
    }
    let exact = is_exact(index, wanted, filter);
    let tells = keys.has_types();
    let enough = exact || tells && filter.looks_only_at(|path| keys.covers(path));
    (enough && (told.is_empty() || tells) && told.iter().all(|path| keys.covers(path))).then_some(exact)
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
    format!("docshard_internal.index_types({STORED}, {}::text)", quote_literal(&index.definition))
}

/// The document that types and columns were made of, as far as they tell.
fn restored(index: &Index, types: &str, columns: impl Iterator<Item = String>) -> String {
    let columns: Vec<String> = columns.collect();
    let keys = quote_literal(&index.definition);
    format!("docshard_internal.restored({keys}::text, {types}, {})", columns.join(", "))
}

/// The WHERE clauses of b-tree and entries, which have the `conditions` so far, too; `exact` as [`exactly`] says. See
/// [`Conditions::in_tree`] for `pinned`.
pub fn searches(
    conditions: &mut Conditions,
    query: &Query,
    means: &Means<'_>,
    (index, wanted): (&Index, &Wanted),
    exact: bool,
    pinned: &[usize],
) -> (String, String) {
    conditions.held_by(index);
    conditions.and(means.term().unwrap_or_else(planning::loads));
    let both = conditions.sql();
    let and = |more: &[&str]| [&[both.as_str()], more].concat().join(" AND ");
    let keys = conditions.in_tree(index, wanted, pinned);
    let filter = (!exact).then(|| conditions.matched(&restored(index, &types(index), columns(index)), query));
    let tree = and(&keys.iter().chain(&filter).map(String::as_str).collect::<Vec<_>>());
    let keys = conditions.among_entries(index, wanted);
    let filter = (!query.filter.is_empty()).then(|| conditions.matched(STORED, query));
    let entries = and(&[keys].iter().chain(&filter).map(String::as_str).collect::<Vec<_>>());
    (tree, entries)
}

impl<'a> Covered<'a> {
    /// By an index that tells all that the filter asks for, and the values at the paths in `told`; None if there is none
    /// such, or one that serves the filter better.
    pub fn of_query(collection: &'a Collection, query: &Query, means: &Means<'a>, told: &[String]) -> Option<Self> {
        let filter = &query.filter;
        let covers =
            |index: &Index, wanted: &Wanted| !wanted.is_all() && exactly(index, wanted, filter, told).is_some();
        let (index, wanted) = match means {
            Means::Index(index) => (*index, index.keys.wanted(filter)),
            Means::Free | Means::Indexed => best_of(collection, filter, covers)?,
            Means::Natural | Means::Id | Means::Within { .. } => return None,
        };
        let exact = exactly(index, &wanted, filter, told).filter(|_| !wanted.is_all())?;
        Some(Self { index, wanted, exact })
    }

    /// The SELECT of a count.
    pub fn count(&self, collection: &Collection, query: &Query, means: &Means<'_>) -> Statement {
        let mut conditions = Conditions::new(collection);
        let (tree, entries) = searches(&mut conditions, query, means, (self.index, &self.wanted), self.exact, &[]);
        let part = |conditions: &str| format!("SELECT count(*) AS n FROM {} t WHERE {conditions}", collection.table());
        let sql = format!("SELECT sum(n)::int8 FROM ({} UNION ALL {}) AS parts", part(&tree), part(&entries));
        Statement { sql, params: conditions.params }
    }

    /// The rows of a find in no order, at most so many of them: documents that have what is to be told, as `doc`.
    pub fn documents(
        &self,
        collection: &Collection,
        query: &Query,
        means: &Means<'_>,
        most: Option<u64>,
    ) -> (Conditions, String) {
        let mut conditions = Conditions::new(collection);
        let (tree, entries) = searches(&mut conditions, query, means, (self.index, &self.wanted), self.exact, &[]);
        let table = collection.table();
        // So that the planner takes each search for itself: see `storage::covering`.
        let end = most.map_or_else(|| "OFFSET 0".to_owned(), |most| format!("LIMIT {most}"));
        let restored = Restored::of(self.index);
        let found = format!(
            "SELECT {} AS doc FROM (SELECT {} FROM {table} t WHERE {tree} {end}) AS s \
             UNION ALL (SELECT {STORED}::jsonb FROM {table} t WHERE {entries} {end})",
            restored.document, restored.columns
        );
        (conditions, found)
    }
}
