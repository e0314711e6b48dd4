//! What can be answered from an index's b-tree alone, so that no document is looked at.
//!
//! The keys and types that the b-tree stores are the values at the index's paths (`docshard_core::index`). Where a filter asks
//! for no others, it is run on a document restored from them, or not at all, if the wanted keys are all that it says; a
//! projection is as content with that document. Documents that stand apart in the b-tree are searched by their entries, as ever.

use super::choice::best_of;
use super::condition::{Conditions, has_few_ranges, index_expression};
use super::hint::Means;
use super::read::Query;
use super::statement::Statement;
use crate::catalog::model::{Collection, Index};
use crate::pg::planning;
use crate::pg::sql::quote_literal;
use docshard_core::filter::Filter;
use docshard_core::index::Wanted;

/// A search by an index that has, in its b-tree, all that is asked for.
pub struct Covered<'a> {
    index: &'a Index,
    wanted: Wanted,
    /// the filter is all said by the wanted keys
    exact: bool,
}

/// What a filter is to be run on, of a row `t`.
const STORED: &str = "t.doc";

/// Some if an index tells all that a filter asks for, and the values at these paths; true if what it is searched by is all that
/// the filter says.
fn exactly(index: &Index, wanted: &Wanted, filter: &Filter, told: &[String]) -> Option<bool> {
    let keys = &index.keys;
    if wanted.is_all() || !keys.has_tree() || keys.hashed.is_some() || keys.collation.is_some() {
        return None;
    }
    let given: Vec<&str> = index.fields().iter().take(wanted.columns.len()).map(|(path, _)| path.as_str()).collect();
    let exact = filter.is_ranges_of(&given) && wanted.columns.iter().all(has_few_ranges);
    let tells = keys.has_types(index.unique);
    let enough = exact || tells && filter.looks_only_at(|path| keys.covers(path));
    (enough && (told.is_empty() || tells) && told.iter().all(|path| keys.covers(path))).then_some(exact)
}

impl<'a> Covered<'a> {
    /// By an index that tells all that the filter asks for, and the values at the paths in `told`; None if there is none
    /// such, or one that serves the filter better.
    pub fn of_query(collection: &'a Collection, query: &Query, means: &Means<'a>, told: &[String]) -> Option<Self> {
        let filter = &query.filter;
        let covers = |index: &Index, wanted: &Wanted| exactly(index, wanted, filter, told).is_some();
        let (index, wanted) = match means {
            Means::Index(index) => (*index, index.keys.wanted(filter)),
            Means::Free | Means::Indexed => best_of(collection, filter, covers)?,
            Means::Natural | Means::Id => return None,
        };
        let exact = exactly(index, &wanted, filter, told)?;
        Some(Self { index, wanted, exact })
    }

    fn columns(&self) -> impl Iterator<Item = String> {
        (0..self.index.fields().len()).map(|column| index_expression(STORED, self.index, column))
    }

    fn types(&self) -> String {
        format!("docshard_internal.index_types({STORED}, {}::text)", quote_literal(&self.index.definition))
    }

    /// The document that types and columns were made of, as far as they tell.
    fn restored(&self, types: &str, columns: impl Iterator<Item = String>) -> String {
        let columns: Vec<String> = columns.collect();
        let keys = quote_literal(&self.index.definition);
        format!("docshard_internal.restored({keys}::text, {types}, {})", columns.join(", "))
    }

    /// The WHERE clauses of b-tree and entries.
    fn searches(&self, conditions: &mut Conditions, query: &Query, means: &Means<'_>) -> (String, Option<String>) {
        conditions.held_by(self.index);
        conditions.and(means.term().unwrap_or_else(planning::loads));
        let both = conditions.sql();
        let and = |more: &[&str]| [&[both.as_str()], more].concat().join(" AND ");
        let keys = conditions.in_tree(self.index, &self.wanted);
        let filter = (!self.exact).then(|| conditions.matched(&self.restored(&self.types(), self.columns()), query));
        let tree = and(&keys.iter().chain(&filter).map(String::as_str).collect::<Vec<_>>());
        let entries = conditions.among_entries(self.index, &self.wanted).map(|keys| {
            let filter = conditions.matched(STORED, query);
            and(&[&keys, &filter])
        });
        (tree, entries)
    }

    /// The SELECT of a count.
    pub fn count(&self, collection: &Collection, query: &Query, means: &Means<'_>) -> Statement {
        let mut conditions = Conditions::new(collection);
        let (tree, entries) = self.searches(&mut conditions, query, means);
        let part = |conditions: &str| format!("SELECT count(*) AS n FROM {} t WHERE {conditions}", collection.table());
        let sql = match entries {
            None => part(&tree),
            Some(entries) => {
                format!("SELECT sum(n)::int8 FROM ({} UNION ALL {}) AS parts", part(&tree), part(&entries))
            }
        };
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
        let (tree, entries) = self.searches(&mut conditions, query, means);
        let table = collection.table();
        // So that the planner takes each search for itself: see `pg::covering`.
        let end = most.map_or_else(|| "OFFSET 0".to_owned(), |most| format!("LIMIT {most}"));
        let columns: Vec<String> =
            self.columns().enumerate().map(|(column, key)| format!(", {key} AS k{column}")).collect();
        let columns = format!("{} AS types{}", self.types(), columns.concat());
        let names = (0..self.index.fields().len()).map(|column| format!("s.k{column}"));
        let restored = self.restored("s.types", names);
        let mut found =
            format!("SELECT {restored} AS doc FROM (SELECT {columns} FROM {table} t WHERE {tree} {end}) AS s");
        if let Some(entries) = entries {
            found += &format!(" UNION ALL (SELECT {STORED}::jsonb FROM {table} t WHERE {entries} {end})");
        }
        (conditions, found)
    }
}
