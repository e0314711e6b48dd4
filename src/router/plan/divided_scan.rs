//! Scans of a secondary index, for finds with a limit or a sort above all, that search its b-tree and its entries each by
//! itself.
//!
//! Together, joined by OR, they would be a bitmap, for which all that is found is collected first. Apart, the b-tree is read
//! in its own order: so a sort by the fields that follow those given by equality reads no more than what is asked for, and no
//! more is read without a sort either. The entries are in no order, and are sorted; a document is in one of the two.
//!
//! With a sort both come in its order ([`OrderedScans`]): the b-tree by its columns, the entries by equal keys, so that
//! PostgreSQL's planner knows that reading them by turns is the order of both together.

use super::conditions::{Conditions, index_expression};
use super::covered::{self, Restored};
use super::index_choice::index_for;
use super::index_restriction::IndexRestriction;
use super::search::Search;
use crate::catalog::model::Index;
use docshard_core::query::index::Wanted;
use docshard_core::query::sort::Sort;

/// The WHERE clauses of the two searches.
#[derive(Debug)]
pub struct DividedScan {
    /// the number of the index
    pub index: i32,
    /// of the b-tree
    pub btree: String,
    /// what the b-tree is read in the order of; None: it is any
    pub order: Option<String>,
    /// of the entries; None: the index is a hashed one, which has none
    pub entries: Option<String>,
}

/// The WHERE clauses of two searches that come in one order.
#[derive(Debug)]
pub struct OrderedScans {
    /// the number of the index
    pub index: i32,
    /// of the b-tree
    pub btree: String,
    /// how the documents are restored from the b-tree; None: they are read
    pub restored: Option<Restored>,
    /// of the entries
    pub entries: String,
    /// the fields of the sort that tell documents apart
    pub keys: Vec<MergeKey>,
}

/// A field of a sort, with the index's expression for it.
#[derive(Debug)]
pub struct MergeKey {
    /// its position in the sort
    pub field: usize,
    /// what the index's b-tree has of it
    pub expression: String,
    /// the greatest first
    pub descending: bool,
}

impl MergeKey {
    /// In an ORDER BY, of the column of that name or the expression.
    pub fn order_of(&self, column: &str) -> String {
        format!("{column}{}", if self.descending { " DESC" } else { "" })
    }
}

/// The searches, and all conditions' parameters; None if there is no such index, or its order is not the sort's.
pub fn of_search(search: &Search<'_>, sort: Option<&Sort>) -> Option<(Conditions, DividedScan)> {
    let (index, wanted) = chosen(search, sort)?;
    let order = match sort {
        None if wanted.is_all() => return None,
        None => None,
        Some(sort) => {
            let free = order(index, &wanted, sort)?.into_iter().filter(|field| !field.fixed);
            let keys = free.map(|field| field.key(index));
            Some(keys.map(|key| key.order_of(&key.expression)).collect::<Vec<_>>().join(", "))
        }
    };
    let mut conditions = Conditions::new(search.collection);
    let (btree, entries) = searches(&mut conditions, search, (index, &wanted), &[]);
    Some((conditions, DividedScan { index: index.id, btree, order, entries }))
}

/// The searches, and all conditions' parameters; None if there is no index that has the order of the sort, or none whose
/// parts can be merged. `paths` are those that are asked for, if they are known.
pub fn ordered(search: &Search<'_>, sort: &Sort, paths: Option<&[String]>) -> Option<(Conditions, OrderedScans)> {
    let (index, wanted) = chosen(search, Some(sort))?;
    // Also those that are given by equality: among the entries a document may have other values beside the one that is
    // given, and sort by those.
    let fields = order(index, &wanted, sort)?;
    if fields.iter().any(|field| field.turned != fields[0].turned) {
        return None;
    }
    let pinned: Vec<usize> = fields.iter().filter(|field| field.fixed).map(|field| field.column).collect();
    let keys = fields.iter().map(|field| field.key(index)).collect();
    let mut conditions = Conditions::new(search.collection);
    conditions.narrower_than(&wanted, search);
    let of_index = (index, &wanted);
    let covers = paths.and_then(|paths| covered::exactly(index, &wanted, search.filter(), paths));
    let (btree, entries) = match covers {
        Some(exact) => covered::searches(&mut conditions, search, of_index, exact, &pinned),
        None => {
            let (btree, entries) = searches(&mut conditions, search, of_index, &pinned);
            (btree, entries?)
        }
    };
    let restored = covers.map(|_| Restored::of(index));
    Some((conditions, OrderedScans { index: index.id, btree, restored, entries, keys }))
}

fn chosen<'a>(search: &Search<'a>, sort: Option<&Sort>) -> Option<(&'a Index, Wanted)> {
    if matches!(search.restriction, IndexRestriction::AnyIndex) {
        return None;
    }
    let found = index_for(search, |index, wanted| sort.is_some_and(|sort| order(index, wanted, sort).is_some()));
    found.filter(|(index, _)| index.keys.has_tree())
}

/// The WHERE clauses of b-tree and entries, which have the `conditions` so far, too; see [`Conditions::in_tree`] for `pinned`.
fn searches(
    conditions: &mut Conditions,
    search: &Search<'_>,
    (index, wanted): (&Index, &Wanted),
    pinned: &[usize],
) -> (String, Option<String>) {
    conditions.held_by(index);
    conditions.obey(&search.restriction);
    let both = conditions.sql();
    // Of the b-tree's keys the filter need not be asked, if they are all that it says.
    let exact = search.query.bounds.is_none() && covered::is_exact(index, wanted, search.filter());
    conditions.matches(search.query);
    let filtered = conditions.sql();
    let asked = if exact { &both } else { &filtered };
    let btree = conditions.in_tree(index, wanted, pinned);
    let btree = btree.map_or_else(|| asked.clone(), |btree| format!("{btree} AND {asked}"));
    let entries = index.keys.has_entries();
    let entries = entries.then(|| format!("{} AND {filtered}", conditions.among_entries(index, wanted)));
    (btree, entries)
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
    fn key(&self, index: &Index) -> MergeKey {
        let expression = index_expression("t.doc", index, self.column);
        MergeKey { field: self.field, expression, descending: self.descending }
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
