//! The access path for small results: one range of one secondary index, which says all that the filter does.
//!
//! A shard reads such a range at once, without PostgreSQL's planner and executor, and answers one value: see `ownership::index_range`.
//! There must be a limit, or an equality for the index's first column, so that the result may be small. A shard may decline;
//! then the find is planned without this path, as are the next ones by that index.

use super::covered;
use super::divided_scan::is_turned;
use super::index_choice::index_for;
use super::index_restriction::IndexRestriction;
use super::search::Search;
use crate::catalog::model::Index;
use crate::router::options::FindOptions;
use crate::router::order::column_order;
use docshard_core::query::index::{APART, Wanted};
use std::cell::RefCell;
use std::collections::HashMap;

/// Largest number of documents that a shard is asked for.
const MAX_DOCUMENTS: u64 = 128;
/// After a shard has declined finds by an index, this many of them are planned without this path.
const FINDS_WITHOUT: u32 = 200;

thread_local! {
    /// How many finds are still to be planned without this path.
    static DECLINED: RefCell<HashMap<FindsByIndex, u32>> = RefCell::default();
}

/// The finds in a collection by an index that have a limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FindsByIndex {
    /// the collection's number
    pub collection: i32,
    /// the index's number
    pub index: i32,
    /// there is no limit
    pub unlimited: bool,
}

impl FindsByIndex {
    /// Notes that a shard has declined one of them.
    pub fn note_declined(self) {
        DECLINED.with_borrow_mut(|declined| declined.insert(self, FINDS_WITHOUT));
    }

    /// True for the next finds after one was declined. `counts`: this is one of them.
    fn are_declined(self, counts: bool) -> bool {
        DECLINED.with_borrow_mut(|declined| {
            let Some(left) = declined.get_mut(&self) else { return false };
            *left -= u32::from(counts);
            if *left == 0 {
                declined.remove(&self);
            }
            true
        })
    }
}

/// A range of an index, and how its documents come.
#[derive(Debug)]
pub struct IndexRange {
    /// what it is one of
    pub finds: FindsByIndex,
    /// of each of the index's first columns the least key
    pub lo: Vec<Vec<u8>>,
    /// of each of these the least key above, or the only one
    pub hi: Vec<Vec<u8>>,
    /// how many documents each shard is asked for
    pub most: u64,
    /// the index is read from its end
    pub backward: bool,
    /// the documents come in the order that is asked for
    pub in_order: bool,
    /// the first column's is one key
    is_narrow: bool,
}

impl IndexRange {
    /// The range of a find; None if it takes another path. `counts`: it is run, and not only explained.
    pub fn of_find(search: &Search<'_>, options: &FindOptions, counts: bool) -> Option<Self> {
        let most = options.limit.map_or(Some(MAX_DOCUMENTS), |limit| limit.checked_add(options.skip));
        let most = most.filter(|most| *most <= MAX_DOCUMENTS)?;
        if !matches!(search.restriction, IndexRestriction::None) {
            return None;
        }
        let range = by_index(search, options, most)?;
        let declined = range.finds.unlimited && !range.is_narrow || range.finds.are_declined(counts);
        (!declined).then_some(range)
    }
}

/// By a secondary index, whose keys are all that the filter says.
fn by_index(search: &Search<'_>, options: &FindOptions, most: u64) -> Option<IndexRange> {
    let filter = search.filter();
    let sort = options.sort.as_ref().map(|(sort, _)| sort);
    if sort.is_some_and(|sort| column_order(search.collection, filter, sort).is_some()) {
        return None;
    }
    let turned = |index: &Index, wanted: &Wanted| sort.and_then(|sort| is_turned(index, wanted, sort));
    let (mut index, mut wanted) = index_for(search, |index, wanted| turned(index, wanted).is_some())?;
    // One that was chosen for its order may narrow the search less than another.
    if turned(index, &wanted).is_some()
        && let Some(narrower) = index_for(search, |_, _| false)
        && narrower.1.score() > wanted.score()
    {
        (index, wanted) = narrower;
    }
    let keys = &index.keys;
    let is_plain = keys.has_tree() && keys.has_entries() && index.partial.is_none() && wanted.row.is_none();
    if !is_plain || !covered::is_exact(index, &wanted, filter) {
        return None;
    }
    // Then PostgreSQL can read the answer from the index.
    let included = options.included.as_deref();
    if included.is_some_and(|paths| covered::exactly(index, &wanted, filter, paths).is_some()) {
        return None;
    }
    let turned = turned(index, &wanted);
    if wanted.is_all() && turned.is_none() {
        return None;
    }
    let (mut lo, mut hi) = (Vec::new(), Vec::new());
    for ranges in &wanted.columns {
        let [range] = ranges.as_slice() else { return None };
        match range.as_point() {
            Some(point) => {
                lo.push(point.to_vec());
                hi.push(point.to_vec());
            }
            None => {
                lo.push(range.lo.clone());
                hi.push(range.hi.clone().unwrap_or_else(|| APART.to_vec()));
            }
        }
    }
    Some(IndexRange {
        finds: FindsByIndex { collection: search.collection.id, index: index.id, unlimited: options.limit.is_none() },
        lo,
        hi,
        most,
        backward: turned == Some(true),
        in_order: sort.is_none() || turned.is_some(),
        is_narrow: wanted.is_fixed(0),
    })
}
