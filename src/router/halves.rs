//! A find by a secondary index, with a limit or a sort above all: its b-tree and its entries are searched each on its own.
//!
//! Together, joined by OR, they would be a bitmap, for which all that is found is collected first. Apart, the b-tree is read
//! in its own order: so a sort by the fields that follow those given by equality reads no more than what is asked for, and no
//! more is read without a sort either. The entries are in no order, and are sorted; a document is in one of the two.
//!
//! Without either they are searched apart if the b-tree's keys are all that the filter says, which then is not asked of the
//! b-tree's documents ([`exact`]).
//!
//! With a sort the halves are [`merged`]: each comes by the fields of the sort, the b-tree's by its columns, the entries' by
//! equal keys, so that PostgreSQL's planner knows that reading them by turns is the order of both together.

use super::choice::best_of;
use super::condition::{Conditions, index_expression};
use super::covered::{self, Restored};
use super::hint::Means;
use super::read::Query;
use crate::catalog::model::{Collection, Index};
use docshard_core::query::index::Wanted;
use docshard_core::query::sort::Sort;

/// The WHERE clauses of the two searches.
#[derive(Debug)]
pub struct Halves {
    /// of the b-tree
    pub tree: String,
    /// what the b-tree is read in the order of; None: it is any
    pub order: Option<String>,
    /// of the entries; None: the index is a hashed one, which has none
    pub entries: Option<String>,
}

/// The WHERE clauses of two searches that come in one order.
#[derive(Debug)]
pub struct Merged {
    /// of the b-tree
    pub tree: String,
    /// how the b-tree tells all that is asked for; None: it does not
    pub told: Option<Restored>,
    /// of the entries
    pub entries: String,
    /// the fields of the sort that tell documents apart
    pub keys: Vec<Key>,
}

/// A field of a sort that an index has.
#[derive(Debug)]
pub struct Key {
    /// its position in the sort
    pub field: usize,
    /// what the index's b-tree has of it
    pub expression: String,
    /// the greatest first
    pub descending: bool,
}

impl Key {
    /// In an ORDER BY, of the column of that name or the expression.
    pub fn order_of(&self, column: &str) -> String {
        format!("{column}{}", if self.descending { " DESC" } else { "" })
    }
}

/// The searches, and all conditions' parameters; None if there is no such index, or its order is not the sort's.
pub fn of_query(
    collection: &Collection,
    query: &Query,
    means: &Means<'_>,
    sort: Option<&Sort>,
) -> Option<(Conditions, Halves)> {
    let (index, wanted) = chosen(collection, query, means, sort)?;
    let order = match sort {
        None if wanted.is_all() => return None,
        None => None,
        Some(sort) => {
            let free = order(index, &wanted, sort)?.into_iter().filter(|field| !field.fixed);
            let keys = free.map(|field| field.key(index));
            Some(keys.map(|key| key.order_of(&key.expression)).collect::<Vec<_>>().join(", "))
        }
    };
    let mut conditions = Conditions::new(collection);
    let (tree, entries) = searches(&mut conditions, query, means, (index, &wanted), &[]);
    Some((conditions, Halves { tree, order, entries }))
}

/// The searches, and all conditions' parameters; None if there is no index that has the order of the sort, or none whose
/// halves can be merged.
/// `told` are the paths that are asked for, if they are known.
pub fn merged(
    collection: &Collection,
    query: &Query,
    means: &Means<'_>,
    sort: &Sort,
    told: Option<&[String]>,
) -> Option<(Conditions, Merged)> {
    let (index, wanted) = chosen(collection, query, means, Some(sort))?;
    // Also those that are given by equality: among the entries a document may have other values beside the one that is
    // given, and sort by those.
    let fields = order(index, &wanted, sort)?;
    if fields.iter().any(|field| field.turned != fields[0].turned) {
        return None;
    }
    let pinned: Vec<usize> = fields.iter().filter(|field| field.fixed).map(|field| field.column).collect();
    let keys = fields.iter().map(|field| field.key(index)).collect();
    let mut conditions = Conditions::new(collection);
    if matches!(means, Means::Free) {
        conditions.narrower_than(&wanted, collection, &query.filter);
    }
    let of_index = (index, &wanted);
    let tells = told.and_then(|told| covered::exactly(index, &wanted, &query.filter, told));
    let Some(exact) = tells else {
        let (tree, entries) = searches(&mut conditions, query, means, of_index, &pinned);
        return Some((conditions, Merged { tree, told: None, entries: entries?, keys }));
    };
    let (tree, entries) = covered::searches(&mut conditions, query, means, of_index, exact, &pinned);
    Some((conditions, Merged { tree, told: Some(Restored::of(index)), entries, keys }))
}

/// The searches of b-tree and entries, in no order, and all conditions' parameters, if the keys of an index's b-tree are all
/// that the filter says; None if there is no such index.
///
/// Apart, they ask the filter of the documents that have entries only; joined by OR it would be asked of all.
pub fn exact(collection: &Collection, query: &Query, means: &Means<'_>) -> Option<(Conditions, [String; 2])> {
    if query.filter.is_empty() || query.bounds.is_some() {
        return None;
    }
    let (index, wanted) = match means {
        Means::Index(index) => (*index, index.keys.wanted(&query.filter)),
        Means::Free | Means::Indexed => best_of(collection, &query.filter, |_, _| false)?,
        Means::Natural | Means::Id | Means::Within { .. } => return None,
    };
    if !index.keys.has_tree() || wanted.is_all() || !covered::is_exact(index, &wanted, &query.filter) {
        return None;
    }
    let mut conditions = Conditions::new(collection);
    let (tree, entries) = searches(&mut conditions, query, means, (index, &wanted), &[]);
    Some((conditions, [tree, entries?]))
}

fn chosen<'a>(
    collection: &'a Collection,
    query: &Query,
    means: &Means<'a>,
    sort: Option<&Sort>,
) -> Option<(&'a Index, Wanted)> {
    let found = match means {
        Means::Index(index) => Some((*index, index.keys.wanted(&query.filter))),
        Means::Within { index, span } => index.map(|index| (index, index.keys.wanted_within(span))),
        Means::Free => best_of(collection, &query.filter, |index, wanted| {
            sort.is_some_and(|sort| order(index, wanted, sort).is_some())
        }),
        Means::Natural | Means::Id | Means::Indexed => None,
    };
    found.filter(|(index, _)| index.keys.has_tree())
}

/// The WHERE clauses of b-tree and entries, which have the `conditions` so far, too; see [`Conditions::in_tree`] for `pinned`.
fn searches(
    conditions: &mut Conditions,
    query: &Query,
    means: &Means<'_>,
    (index, wanted): (&Index, &Wanted),
    pinned: &[usize],
) -> (String, Option<String>) {
    conditions.held_by(index);
    conditions.obey(means);
    let both = conditions.sql();
    // Of the b-tree's keys the filter need not be asked, if they are all that it says.
    let exact = query.bounds.is_none() && covered::is_exact(index, wanted, &query.filter);
    conditions.matches(query);
    let filtered = conditions.sql();
    let asked = if exact { &both } else { &filtered };
    let tree = conditions.in_tree(index, wanted, pinned);
    let tree = tree.map_or_else(|| asked.clone(), |tree| format!("{tree} AND {asked}"));
    let entries = index.keys.has_entries();
    let entries = entries.then(|| format!("{} AND {filtered}", conditions.among_entries(index, wanted)));
    (tree, entries)
}

/// Whether an index has the order of a sort, among the wanted keys: true if its b-tree is read backward for it.
pub fn is_turned(index: &Index, wanted: &Wanted, sort: &Sort) -> Option<bool> {
    order(index, wanted, sort)?.iter().find(|field| !field.fixed).map(|field| field.turned)
}

/// A field of a sort, and the column of an index that has it.
struct Field {
    field: usize,
    column: usize,
    descending: bool,
    /// the filter gives it by equality
    fixed: bool,
    /// the index has it in the other direction
    turned: bool,
}

impl Field {
    fn key(&self, index: &Index) -> Key {
        let expression = index_expression("t.doc", index, self.column);
        Key { field: self.field, expression, descending: self.descending }
    }
}

/// The fields of a sort, if it is the order of an index's columns: of those that follow, or are, the ones that the filter
/// gives by equality. Those that it does not give, one at least, are all turned or none.
fn order(index: &Index, wanted: &Wanted, sort: &Sort) -> Option<Vec<Field>> {
    // A hash has no order, and cut values are not in theirs.
    if index.keys.hashed.is_some() || sort.collator != index.keys.collation {
        return None;
    }
    let mut left = sort.fields.iter().enumerate().peekable();
    let mut fields = Vec::new();
    for (column, (path, down)) in index.fields().iter().enumerate() {
        let Some((field, (_, descending))) = left.peek().copied() else { break };
        let fixed = wanted.is_fixed(column);
        if left.next_if(|(_, (next, _))| next == path).is_some() {
            fields.push(Field { field, column, descending: *descending, fixed, turned: descending != down });
        } else if !fixed {
            return None;
        }
    }
    let mut free = fields.iter().filter(|field| !field.fixed).map(|field| field.turned);
    let turned = free.next()?;
    (left.peek().is_none() && free.all(|next| next == turned)).then_some(fields)
}
