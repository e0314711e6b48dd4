//! What can be answered from an index's b-tree alone, so that no document is looked at.
//!
//! The keys and types that the b-tree stores are the values at the index's paths (`docshard_core::index`). Where a filter asks
//! for no others, it is run on a document restored from them, or not at all, if the wanted keys are all that it says; a
//! projection is as content with that document. Documents that stand apart in the b-tree are searched by their entries, as ever.

use super::choice::best_of;
use super::condition::{Conditions, has_few_ranges, index_expression};
use super::hint::Means;
use super::read::Query;
use crate::catalog::model::{Collection, Index};
use crate::pg::planning;
use crate::pg::sql::quote_literal;
use docshard_core::filter::Filter;
use docshard_core::index::Wanted;

/// What a b-tree's part of a search has to ask beside the wanted keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residue {
    /// nothing
    None,
    /// the filter, of the restored document
    Filter,
}

/// What is left of a filter for an index's b-tree; None if it asks for values that are not there.
pub fn residue(index: &Index, wanted: &Wanted, filter: &Filter) -> Option<Residue> {
    let keys = &index.keys;
    if !keys.has_tree() || keys.hashed.is_some() || keys.collation.is_some() {
        return None;
    }
    let paths: Vec<&str> = index.fields().iter().take(wanted.columns.len()).map(|(path, _)| path.as_str()).collect();
    if filter.is_ranges_of(&paths) && wanted.columns.iter().all(has_few_ranges) {
        return Some(Residue::None);
    }
    (keys.has_types(index.unique) && filter.looks_only_at(|path| keys.covers(path))).then_some(Residue::Filter)
}

/// The document that the index has of a row `t`, as far as it tells.
pub fn document(index: &Index) -> String {
    let columns: Vec<String> =
        (0..index.fields().len()).map(|column| index_expression("t.doc", index, column)).collect();
    let (keys, columns) = (quote_literal(&index.definition), columns.join(", "));
    format!("docshard_internal.restored({keys}::text, docshard_internal.index_types(t.doc, {keys}::text), {columns})")
}

/// The SELECT of a count by an index that has all that the filter asks for, and its parameters; None if there is none such.
pub fn count(collection: &Collection, query: &Query, means: &Means<'_>) -> Option<(Conditions, String)> {
    let found = match means {
        Means::Index(index) => Some((*index, index.keys.wanted(&query.filter))),
        Means::Free | Means::Indexed => best_of(collection, &query.filter, |_, _| false),
        Means::Natural | Means::Id => None,
    };
    let (index, wanted) = found.filter(|(_, wanted)| !wanted.is_all())?;
    let residue = residue(index, &wanted, &query.filter)?;
    let mut conditions = Conditions::new(collection);
    let check = conditions.sql();
    conditions.clear();
    conditions.held_by(index);
    conditions.and(means.term().unwrap_or_else(planning::loads));
    let both = conditions.sql();
    let table = collection.table();
    let part = |keys: String, filter: Option<String>| {
        let terms: Vec<String> = [Some(keys), Some(both.clone()), filter].into_iter().flatten().collect();
        format!("(SELECT pg_catalog.count(*) FROM {table} t WHERE {})", terms.join(" AND "))
    };
    let tree = conditions.in_tree(index, &wanted)?;
    let left = (residue == Residue::Filter).then(|| conditions.matched(&document(index), query));
    let mut parts = vec![part(tree, left)];
    if let Some(entries) = conditions.among_entries(index, &wanted) {
        let filter = conditions.matched("t.doc", query);
        parts.push(part(entries, Some(filter)));
    }
    Some((conditions, format!("SELECT {} WHERE {check}", parts.join(" + "))))
}
