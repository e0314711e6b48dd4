//! A find with a limit by a secondary index: its b-tree and its entries are searched each on its own, and either hands on
//! no more than the limit.
//!
//! Together, joined by OR, they would be a bitmap, for which all that is found is collected first. Apart, the b-tree is read
//! in its own order: so a sort by the fields that follow those given by equality reads no more than the limit, and no more
//! is read without a sort either. The entries are in no order, and are sorted; a document is in one of the two.

use super::choice::best_of;
use super::condition::Conditions;
use super::hint::Means;
use super::read::Query;
use crate::catalog::model::{Collection, Index};
use docshard_core::index::Wanted;
use docshard_core::sort::Sort;

/// The WHERE clauses of the two searches.
#[derive(Debug)]
pub struct Halves {
    /// of the b-tree
    pub tree: String,
    /// what the b-tree is read in the order of; None: it is any
    pub order: Option<String>,
    /// of the entries; None: there are none
    pub entries: Option<String>,
}

/// The searches, and all conditions' parameters; None if there is no such index, or its order is not the sort's.
pub fn of_query(
    collection: &Collection,
    query: &Query,
    means: &Means<'_>,
    sort: Option<&Sort>,
) -> Option<(Conditions, Halves)> {
    let filter = &query.filter;
    let found = match means {
        Means::Index(index) => Some((*index, index.keys.wanted(filter))),
        Means::Free => best_of(collection, filter, |index, wanted| order(index, wanted, sort).is_some()),
        Means::Natural | Means::Id | Means::Indexed => None,
    };
    let (index, wanted) = found.filter(|(index, _)| index.keys.has_tree())?;
    let order = match sort {
        None if wanted.is_all() => return None,
        None => None,
        Some(_) => Some(order(index, &wanted, sort)?),
    };
    let mut conditions = Conditions::new(collection);
    conditions.held_by(index);
    means.term().into_iter().for_each(|term| conditions.and(term));
    conditions.matches(query);
    let both = conditions.sql();
    let tree = conditions.in_tree(index, &wanted).map_or_else(|| both.clone(), |tree| format!("{tree} AND {both}"));
    let entries = conditions.among_entries(index, &wanted).map(|entries| format!("{entries} AND {both}"));
    Some((conditions, Halves { tree, order, entries }))
}

/// The ORDER BY by which the documents of an index's b-tree come as the sort demands, if it is the order of its columns: of
/// those that follow, or are, the ones that the filter gives by equality.
fn order(index: &Index, wanted: &Wanted, sort: Option<&Sort>) -> Option<String> {
    // A hash has no order, and cut values are not in theirs.
    if index.keys.hashed.is_some() {
        return None;
    }
    let sort = sort.filter(|sort| sort.collator == index.keys.collation)?;
    let mut left = sort.fields.iter().peekable();
    let mut turned = None;
    let mut columns = Vec::new();
    for (column, (path, descending)) in index.fields().iter().enumerate() {
        let Some((next, downwards)) = left.peek() else { break };
        let fixed = wanted.is_fixed(column);
        if next == path {
            left.next();
            if fixed {
                continue;
            }
            if *turned.get_or_insert(downwards != descending) != (downwards != descending) {
                return None;
            }
            let key = super::condition::index_expression("t.doc", index, column);
            columns.push(format!("{key}{}", if *downwards { " DESC" } else { "" }));
        } else if !fixed {
            return None;
        }
    }
    (left.peek().is_none() && !columns.is_empty()).then(|| columns.join(", "))
}
