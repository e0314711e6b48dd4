//! Which index a search is given a condition for, beside or instead of those on shard key and `_id`.
//!
//! The router chooses by the form of the filter alone, what PostgreSQL on the shard may match to what; the shard's planner,
//! which knows how many rows come into question, chooses among the conditions that it is given.

use crate::catalog::model::{Collection, Index};
use docshard_core::filter::Filter;
use docshard_core::index::Wanted;
use docshard_core::key::{KeyRange, KeyRanges};
use docshard_core::targeting;
use std::cmp::Reverse;

/// What the filter says of shard key and `_id`: the paths that conditions on them constrain.
fn given_by_keys<'a>(collection: &'a Collection, filter: &Filter) -> Vec<&'a str> {
    let mut given = Vec::new();
    if !targeting::key_ranges(&collection.key, filter).is_all() {
        for (path, _) in &collection.key.fields {
            let ranges = filter.ranges_of(path);
            if ranges.is_all() {
                break;
            }
            given.push(path.as_str());
            if !are_points(&ranges) {
                break;
            }
        }
    }
    if !filter.ranges_of("_id").is_all() && !given.contains(&"_id") {
        given.push("_id");
    }
    given
}

/// The paths of an index's columns of which keys are wanted.
fn constrained<'a>(index: &'a Index, wanted: &Wanted) -> impl Iterator<Item = &'a str> {
    index.fields().iter().take(wanted.columns.len()).map(|(path, _)| path.as_str())
}

/// The index that the filter constrains most, of those that it constrains as much one that is `ordered`; also an ordered one
/// that it does not constrain, and a partial one that holds all that it matches. If the filter says something of shard key or
/// `_id`, only one that narrows the search as they do, and further or in order.
pub fn best_of<'a>(
    collection: &'a Collection,
    filter: &Filter,
    ordered: impl Fn(&Index, &Wanted) -> bool,
) -> Option<(&'a Index, Wanted)> {
    if collection.indexes.is_empty() {
        return None;
    }
    let given = given_by_keys(collection, filter);
    let usable = collection.indexes.iter().filter(|index| !index.hidden && holds_all(index, filter));
    let rated = usable.map(|index| {
        let wanted = index.keys.wanted(filter);
        let ordered = ordered(index, &wanted);
        (index, wanted, ordered)
    });
    let best = rated.filter(|(index, wanted, ordered)| match given.as_slice() {
        [] => index.partial.is_some() || !wanted.is_all() || *ordered,
        given => {
            let narrows = given.iter().all(|path| constrained(index, wanted).any(|column| column == *path));
            narrows && (*ordered || constrained(index, wanted).any(|column| !given.contains(&column)))
        }
    });
    let best = best.max_by_key(|(index, wanted, ordered)| {
        let (equal, given) = wanted.score();
        (equal, *ordered, given, !wanted.inverted, index.partial.is_some(), index.unique, Reverse(index.id))
    });
    best.map(|(index, wanted, _)| (index, wanted))
}

/// The index that the filter constrains most by what it says beside shard key and `_id`, which it says something of; None if
/// those single out few documents. Where a prefix of the key is given by equality, so must that of a b-tree be: conditions of
/// ranges stand in the statement's text, and such a search should not need a plan of its own for each of them.
pub fn beside_keys<'a>(collection: &'a Collection, filter: &Filter) -> Option<(&'a Index, Wanted)> {
    if collection.indexes.is_empty() {
        return None;
    }
    let ids = filter.ranges_of("_id");
    if !ids.is_all() && are_points(&ids) {
        return None;
    }
    let given = given_by_keys(collection, filter);
    let is_narrow = given.first().is_some_and(|path| are_points(&filter.ranges_of(path)));
    let usable = collection.indexes.iter().filter(|index| !index.hidden && holds_all(index, filter));
    let rated = usable.map(|index| (index, index.keys.wanted_beside(filter, &given)));
    let best = rated.filter(|(index, wanted)| {
        let further = wanted.inverted || constrained(index, wanted).any(|column| !given.contains(&column));
        !wanted.is_all() && further && (!is_narrow || wanted.inverted || wanted.score().0 > 0)
    });
    best.max_by_key(|(index, wanted)| {
        let (equal, given) = wanted.score();
        (equal, given, !wanted.inverted, index.partial.is_some(), index.unique, Reverse(index.id))
    })
}

/// True if the index holds every document that the filter matches.
fn holds_all(index: &Index, filter: &Filter) -> bool {
    index.partial.as_deref().is_none_or(|partial| filter.implies(&partial.filter))
}

/// True if each range is that of one value.
pub fn are_points(ranges: &KeyRanges) -> bool {
    ranges.as_slice().iter().all(|range: &KeyRange| range.as_point().is_some())
}
