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
            let further = || constrained(index, wanted).any(|column| !given.contains(&column));
            narrows(index, wanted, given) && (*ordered || further())
        }
    });
    let best = best.max_by_key(|(index, wanted, ordered)| {
        let (equal, given) = wanted.score();
        (equal, *ordered, given, !wanted.inverted, index.partial.is_some(), index.unique, Reverse(index.id))
    });
    best.map(|(index, wanted, _)| (index, wanted))
}

/// The index that the filter constrains most by what it says beside shard key and `_id`, of which it says something; None if
/// those single out few documents.
///
/// Of a prefix of the shard key that is given by equality, the planner cannot tell how many documents have it: the bounds are
/// parameters. It would take it for 1 in 200. So beside such a prefix only an index comes into question that has its fields,
/// too, whereas of whole keys, and of ranges, which stand in the statement's text, there are statistics. And where the text is
/// the same for all keys, so it stays: such an index must not be given a range alone.
pub fn beside_keys<'a>(collection: &'a Collection, filter: &Filter) -> Option<(&'a Index, Wanted)> {
    if collection.indexes.is_empty() {
        return None;
    }
    let ids = filter.ranges_of("_id");
    if !ids.is_all() && are_points(&ids) {
        return None;
    }
    let given = given_by_keys(collection, filter);
    let starts_with_points = given.first().is_some_and(|path| are_points(&filter.ranges_of(path)));
    let exact = are_points(&targeting::key_ranges(&collection.key, filter));
    let usable = collection.indexes.iter().filter(|index| !index.hidden && holds_all(index, filter));
    let rated = usable.map(|index| (index, index.keys.wanted_beside(filter, &given)));
    let best = rated.filter(|(index, wanted)| {
        let further = wanted.inverted || constrained(index, wanted).any(|column| !given.contains(&column));
        let estimated = wanted.inverted || wanted.score().0 > 0;
        !wanted.is_all() && further && (!starts_with_points || estimated && (exact || narrows(index, wanted, &given)))
    });
    best.max_by_key(|(index, wanted)| {
        let (equal, given) = wanted.score();
        (equal, given, !wanted.inverted, index.partial.is_some(), index.unique, Reverse(index.id))
    })
}

/// True if the filter constrains all these paths by the index's columns.
fn narrows(index: &Index, wanted: &Wanted, given: &[&str]) -> bool {
    given.iter().all(|path| constrained(index, wanted).any(|column| column == *path))
}

/// True if the index holds every document that the filter matches.
fn holds_all(index: &Index, filter: &Filter) -> bool {
    index.partial.as_deref().is_none_or(|partial| filter.implies(&partial.filter))
}

/// True if each range is that of one value.
pub fn are_points(ranges: &KeyRanges) -> bool {
    ranges.as_slice().iter().all(|range: &KeyRange| range.as_point().is_some())
}
