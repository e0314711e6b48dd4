//! Scans the b-tree and the entries of a secondary index separately. This helps finds with a limit or a sort.
//!
//! One condition that joins both parts by OR would need a bitmap scan, which collects all matches before it returns the first
//! one. A separate scan of the b-tree returns rows in the b-tree's order and stops at the limit; if the sort continues the fields
//! that the filter gives by equality, it needs no sorting. The entries have no order and are sorted. Each document is in one of
//! the two parts.
//!
//! With a sort both scans return rows in its order ([`OrderedScans`]): the b-tree by its columns, the entries by equal keys, so
//! that PostgreSQL's planner merges the two.

use super::conditions::{Conditions, index_expression};
use super::covered::{self, Restored};
use super::index_choice::index_for;
use super::index_restriction::IndexRestriction;
use super::search::Search;
use crate::query::index::Wanted;
use crate::query::sort::Sort;
use crate::routing::model::Index;

/// The WHERE clauses of two scans, which return rows in different orders.
#[derive(Debug)]
pub struct DividedScan {
    /// the index's id
    pub index: i32,
    pub btree: String,
    /// ORDER BY for the b-tree; None: any order
    pub order: Option<String>,
    /// None: a hashed index has no entries
    pub entries: Option<String>,
}

/// The WHERE clauses of two scans that return rows in one order.
#[derive(Debug)]
pub struct OrderedScans {
    /// the index's id
    pub index: i32,
    pub btree: String,
    /// Some if documents are rebuilt from the b-tree instead of read
    pub restored: Option<Restored>,
    pub entries: String,
    /// the fields of the sort, by which the two scans are merged
    pub keys: Vec<MergeKey>,
}

/// A field of a sort, with the index's expression for it.
#[derive(Debug)]
pub struct MergeKey {
    /// the position in the sort
    pub field: usize,
    pub expression: String,
    pub descending: bool,
}

impl MergeKey {
    /// The term of an ORDER BY.
    pub fn order_of(&self, column: &str) -> String {
        format!("{column}{}", if self.descending { " DESC" } else { "" })
    }
}

/// Plans two searches; None if no index serves, or none has the order of the sort.
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
    let mut conditions = Conditions::checked(search);
    let (btree, entries) = searches(&mut conditions, search, (index, &wanted), &[]);
    Some((conditions, DividedScan { index: index.id, btree, order, entries }))
}

/// Plans two searches in the order of a sort; None if no index has that order or its parts cannot be merged. `paths`:
/// the paths that the projection needs, if known.
pub fn ordered(search: &Search<'_>, sort: &Sort, paths: Option<&[String]>) -> Option<(Conditions, OrderedScans)> {
    let (index, wanted) = chosen(search, Some(sort))?;
    // The scans are also merged by fields that the filter gives by equality: a document among the entries may have more values in such a
    // field, and sort by another one of them.
    let fields = order(index, &wanted, sort)?;
    if fields.iter().any(|field| field.turned != fields[0].turned) {
        return None;
    }
    let pinned: Vec<usize> = fields.iter().filter(|field| field.fixed).map(|field| field.column).collect();
    let keys = fields.iter().map(|field| field.key(index)).collect();
    let mut conditions = Conditions::checked(search);
    conditions.narrower_than(&wanted, search);
    let of_index = (index, &wanted);
    let covers = paths.and_then(|paths| covered::coverage(index, &wanted, search.filter(), paths));
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

/// Returns the WHERE clauses for b-tree and entries, both with the `conditions` so far; `pinned` as in
/// [`Conditions::in_tree`].
fn searches(
    conditions: &mut Conditions,
    search: &Search<'_>,
    (index, wanted): (&Index, &Wanted),
    pinned: &[usize],
) -> (String, Option<String>) {
    conditions.held_by(index);
    conditions.obey(&search.restriction);
    let both = conditions.sql();
    // If the key conditions are equivalent to the filter, the filter is not evaluated on documents of the b-tree.
    let exact = search.query.bounds.is_none() && covered::is_exact(index, wanted, search.filter());
    conditions.matches(search.query);
    let filtered = conditions.sql();
    let asked = if exact { &both } else { &filtered };
    let btree = conditions.in_tree(index, wanted, pinned);
    let btree = btree.map_or_else(|| asked.clone(), |btree| format!("{btree} AND {asked}"));
    let entries = index.keys.has_entries();
    let entries = entries
        .then(|| format!("{} AND {}", conditions.among_entries(index, wanted), conditions.in_other_part(&filtered)));
    (btree, entries)
}

/// True if the b-tree must be read backward for the order of a sort, false if forward; None if the index does not have that order for the
/// wanted keys.
pub fn is_turned(index: &Index, wanted: &Wanted, sort: &Sort) -> Option<bool> {
    order(index, wanted, sort)?.iter().find(|field| !field.fixed).map(|field| field.turned)
}

/// A field of a sort, and the column of an index that has it.
struct Field {
    field: usize,
    column: usize,
    descending: bool,
    /// true if the filter gives it by equality
    fixed: bool,
    /// true if the index has it in the opposite direction
    turned: bool,
}

impl Field {
    fn key(&self, index: &Index) -> MergeKey {
        let expression = index_expression("t.doc", index, self.column);
        MergeKey { field: self.field, expression, descending: self.descending }
    }
}

/// Maps the fields of a sort to an index's columns; None if the index does not have that order. Columns that the filter gives by
/// equality may be skipped. At least one field of the sort must not be given by equality, and all such fields must need the same
/// scan direction.
fn order(index: &Index, wanted: &Wanted, sort: &Sort) -> Option<Vec<Field>> {
    // A hash has no order, and the other columns of a hashed index are truncated. Keys under another collation have another
    // order.
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
