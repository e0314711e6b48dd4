//! The access path for small results: one range of one index, which is equivalent to the filter. The index is a secondary one, or the
//! shard key's own.
//!
//! A shard scans the range directly, without PostgreSQL's planner and executor, and returns all documents as one packed value:
//! see `shard::index_range`. The path requires a limit, or an equality for the index's first column, so that the result is
//! probably small. A shard may decline; then this find, and the next ones by that index, are planned without this path.

use super::covered;
use super::divided_scan::is_turned;
use super::index_choice::{index_for, says_one_range};
use super::index_restriction::IndexRestriction;
use super::order::{Order, column_order};
use super::search::Search;
use crate::query::index::{IN_ENTRIES, Wanted};
use crate::routing::model::Index;
use crate::routing::protocol::documents::SHARD_KEY;
use crate::routing::request::options::FindOptions;
use std::cell::RefCell;
use std::collections::HashMap;

/// The largest limit for which this path is used.
const MAX_DOCUMENTS: u64 = 128;
/// After a shard has declined finds by an index, this many of them are planned without this path.
const FINDS_WITHOUT: u32 = 200;

/// Finds that share the decision whether this path is tried: by collection, index, and whether they have a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FindsByIndex {
    pub collection: i32,
    pub index: i32,
    pub unlimited: bool,
}

/// For finds that a shard has declined, how many more are planned without this path.
#[derive(Debug, Default)]
pub struct Declined(RefCell<HashMap<FindsByIndex, u32>>);

impl Declined {
    /// Records that a shard has declined such a find.
    pub fn note(&self, finds: FindsByIndex) {
        self.0.borrow_mut().insert(finds, FINDS_WITHOUT);
    }

    /// True for the next finds after one was declined. `counts`: the find is executed, not only explained.
    fn contains(&self, finds: FindsByIndex, counts: bool) -> bool {
        let mut declined = self.0.borrow_mut();
        let Some(left) = declined.get_mut(&finds) else { return false };
        *left -= u32::from(counts);
        if *left == 0 {
            declined.remove(&finds);
        }
        true
    }
}

#[derive(Debug)]
pub struct IndexRange {
    pub finds: FindsByIndex,
    /// for each leading column of the index, the least key
    pub lo: Vec<Vec<u8>>,
    /// for each leading column, the exclusive upper bound; for an equality, the same key again
    pub hi: Vec<Vec<u8>>,
    /// the largest number of documents that each shard returns
    pub most: u64,
    /// true if the index is scanned backward
    pub backward: bool,
    /// true if the index has the order of the sort, or there is no sort
    pub in_order: bool,
    /// true if the first column is given by equality, which a find without a limit requires
    is_narrow: bool,
}

impl IndexRange {
    /// The range of a find; None if it takes another path. `counts`: the find is executed, not only explained.
    pub fn of_find(search: &Search<'_>, options: &FindOptions, declined: &Declined, counts: bool) -> Option<Self> {
        let most = options.limit.map_or(Some(MAX_DOCUMENTS), |limit| limit.checked_add(options.skip));
        let most = most.filter(|most| *most <= MAX_DOCUMENTS)?;
        if !matches!(search.restriction, IndexRestriction::None) {
            return None;
        }
        let range = by_shard_key(search, options, most).or_else(|| by_index(search, options, most))?;
        let declined = range.finds.unlimited && !range.is_narrow || declined.contains(range.finds, counts);
        (!declined).then_some(range)
    }

    /// The order of each shard's rows, by their keys.
    pub fn order(&self, options: &FindOptions) -> Order {
        match options.sort {
            None => Order::None,
            // In sort keys, descending fields are inverted; in shard keys they are not.
            Some(_) if self.finds.index == SHARD_KEY && self.backward => Order::Descending,
            Some(_) => Order::Ascending,
        }
    }
}

/// The range of the shard key's own index, for a find with a limit whose filter is equivalent to that range, and whose sort the index
/// serves.
fn by_shard_key(search: &Search<'_>, options: &FindOptions, most: u64) -> Option<IndexRange> {
    let (collection, filter) = (search.collection, search.filter());
    let [range] = search.keys.as_slice() else { return None };
    let backward = match options.sort.as_ref().map(|(sort, _)| column_order(collection, filter, sort)) {
        // Without a sort, all documents are read fastest in the order of the table.
        None if search.keys.is_all() => return None,
        None => false,
        Some(Some(("t.skey", backward))) => backward,
        Some(_) => return None,
    };
    if options.limit.is_none() || collection.key.is_unsharded() || !says_one_range(search) {
        return None;
    }
    Some(IndexRange {
        finds: FindsByIndex { collection: collection.id, index: SHARD_KEY, unlimited: false },
        lo: vec![range.lo.clone()],
        hi: vec![range.hi.clone().unwrap_or_default()],
        most,
        backward,
        in_order: true,
        is_narrow: false,
    })
}

/// Chooses a secondary index whose key conditions are equivalent to the filter.
fn by_index(search: &Search<'_>, options: &FindOptions, most: u64) -> Option<IndexRange> {
    let filter = search.filter();
    let sort = options.sort.as_ref().map(|(sort, _)| sort);
    if sort.is_some_and(|sort| column_order(search.collection, filter, sort).is_some()) {
        return None;
    }
    let turned = |index: &Index, wanted: &Wanted| sort.and_then(|sort| is_turned(index, wanted, sort));
    let (mut index, mut wanted) = index_for(search, |index, wanted| turned(index, wanted).is_some())?;
    // The index that has the order of the sort may narrow the search less than another one.
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
    // A covering index is better: PostgreSQL can answer from it alone.
    let included = options.included.as_deref();
    if included.is_some_and(|paths| covered::coverage(index, &wanted, filter, paths).is_some()) {
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
                hi.push(range.hi.clone().unwrap_or_else(|| IN_ENTRIES.to_vec()));
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
