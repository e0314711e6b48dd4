//! Chooses the secondary index on which a search gets a condition, in addition to shard key and `_id` or instead of them.
//!
//! The router looks only at the form of the filter, to find conditions that PostgreSQL can match to an index. The shard's
//! planner, which has estimates of the number of rows, chooses among them.

use super::index_restriction::IndexRestriction;
use super::search::Search;
use crate::query::filter::{Filter, Part};
use crate::query::index::Wanted;
use crate::routing::model::{Collection, Index};
use crate::values::key::KeyRanges;
use crate::values::key::pattern::FieldKind;
use std::cmp::Reverse;

/// The most ranges of a column that are searched one by one. If there are more, one range that covers them is searched.
pub const MAX_RANGES: usize = 16;

/// The most branches of an `$or` that are searched by an index each: a statement has at most 65,535 parameters, and the shard's planner
/// considers every index for every branch.
pub const MAX_ALTERNATIVES: usize = 1000;

/// True if the ranges are few enough to be written into a statement one by one.
pub fn has_few_ranges(ranges: &KeyRanges) -> bool {
    ranges.are_points() || ranges.as_slice().len() <= MAX_RANGES
}

/// How the filter constrains shard key and `_id`.
struct ByKeys<'a> {
    paths: Vec<&'a str>,
    /// true if the first of the paths is given by equality
    begins_exactly: bool,
    /// true if the whole shard key is given by equality
    exactly: bool,
}

fn by_keys<'a>(search: &Search<'a>) -> ByKeys<'a> {
    let (collection, filter, keys) = (search.collection, search.filter(), &search.keys);
    let mut by = ByKeys { paths: Vec::new(), begins_exactly: false, exactly: keys.are_points() };
    for (path, _) in collection.key.fields.iter().filter(|_| !keys.is_all()) {
        let ranges = filter.ranges_of(path);
        if ranges.is_all() {
            break;
        }
        let points = ranges.are_points();
        by.begins_exactly |= points;
        by.paths.push(path);
        if !points {
            break;
        }
    }
    if !filter.ranges_of("_id").is_all() && !by.paths.contains(&"_id") {
        by.paths.push("_id");
    }
    by
}

/// The leading fields of the shard key that the filter constrains, and the number of ranges of keys that result.
fn leading<'a>(collection: &'a Collection, filter: &Filter) -> (Vec<&'a str>, usize) {
    let (mut paths, mut keys) = (Vec::new(), 1);
    for (path, kind) in &collection.key.fields {
        let ranges = filter.ranges_of(path);
        if ranges.is_all() || *kind != FieldKind::Ranged {
            break;
        }
        keys *= ranges.as_slice().len();
        paths.push(path.as_str());
        if !ranges.are_points() {
            break;
        }
    }
    (paths, keys)
}

/// True if there are conditions on shard key or `_id`, and they are equivalent to the filter.
pub fn says_keys_alone(search: &Search<'_>) -> bool {
    let (collection, filter) = (search.collection, search.filter());
    let (mut paths, keys) = leading(collection, filter);
    let ids = filter.ranges_of("_id");
    if !ids.is_all() && has_few_ranges(&ids) {
        paths.push("_id");
    }
    !paths.is_empty() && keys <= MAX_RANGES && filter.is_ranges_of(&paths)
}

/// True if one range of shard keys is equivalent to the filter.
pub fn says_one_range(search: &Search<'_>) -> bool {
    let (paths, keys) = leading(search.collection, search.filter());
    keys == 1 && search.filter().is_ranges_of(&paths)
}

/// The visible indexes that contain every document that the filter can match.
fn usable<'a>(collection: &'a Collection, filter: &Filter) -> impl Iterator<Item = &'a Index> {
    let holds_all = |index: &Index| index.partial.as_deref().is_none_or(|partial| filter.implies(&partial.filter));
    collection.indexes.iter().filter(move |index| !index.hidden && holds_all(index))
}

/// Ranks an index; the one with the greatest rank is best.
fn rank(index: &Index, wanted: &Wanted, ordered: bool) -> impl Ord + use<> {
    let (equal, given) = wanted.score();
    (equal, ordered, given, wanted.inverted.is_none(), index.partial.is_some(), index.unique, Reverse(index.id))
}

/// Returns the paths of the columns that the wanted keys constrain.
fn constrained<'a>(index: &'a Index, wanted: &Wanted) -> impl Iterator<Item = &'a str> {
    index.fields().iter().take(wanted.columns.len()).map(|(path, _)| path.as_str())
}

/// True if the index constrains all these paths.
fn narrows(index: &Index, wanted: &Wanted, paths: &[&str]) -> bool {
    paths.iter().all(|path| constrained(index, wanted).any(|column| column == *path))
}

/// True if the index constrains a path other than these.
fn goes_further(index: &Index, wanted: &Wanted, paths: &[&str]) -> bool {
    constrained(index, wanted).any(|column| !paths.contains(&column))
}

/// Returns the index that the filter constrains most; among equals, one that is `ordered`. An ordered index, or a partial index
/// that contains all matching documents, is also considered if the filter does not constrain it. If the filter constrains shard
/// key or `_id`, an index must constrain these and, unless it is ordered, more.
fn best<'a>(search: &Search<'a>, ordered: impl Fn(&Index, &Wanted) -> bool) -> Option<(&'a Index, Wanted)> {
    let (collection, filter) = (search.collection, search.filter());
    if collection.indexes.is_empty() {
        return None;
    }
    let given = by_keys(search).paths;
    let rated = usable(collection, filter).map(|index| {
        let wanted = index.keys.wanted(filter);
        let ordered = ordered(index, &wanted);
        (index, wanted, ordered)
    });
    let best = rated.filter(|(index, wanted, ordered)| match given.as_slice() {
        [] => index.partial.is_some() || !wanted.is_all() || *ordered,
        given => narrows(index, wanted, given) && (*ordered || goes_further(index, wanted, given)),
    });
    let best = best.max_by_key(|(index, wanted, ordered)| rank(index, wanted, *ordered));
    best.map(|(index, wanted, _)| (index, wanted))
}

/// Returns the index to search by and the wanted keys: the only index that is allowed, or the best one.
pub fn index_for<'a>(search: &Search<'a>, ordered: impl Fn(&Index, &Wanted) -> bool) -> Option<(&'a Index, Wanted)> {
    match &search.restriction {
        IndexRestriction::Index(index) => Some((*index, index.keys.wanted(search.filter()))),
        IndexRestriction::Part { index, span, .. } => index.map(|index| (index, index.keys.wanted_within(span))),
        IndexRestriction::None | IndexRestriction::AnyIndex => best(search, ordered),
        IndexRestriction::NoIndex | IndexRestriction::KeyIndexes => None,
    }
}

/// Returns the unique index all of whose fields the filter gives by equality, and that contains all documents.
pub fn unique_index_for<'a>(search: &Search<'a>) -> Option<(&'a Index, Wanted)> {
    let whole = usable(search.collection, search.filter())
        .filter(|index| index.unique && index.partial.is_none() && index.keys.has_tree());
    whole
        .map(|index| (index, index.keys.wanted(search.filter())))
        .find(|(index, wanted)| wanted.score().0 == index.fields().len() && wanted.row.is_none())
}

/// True if few documents are expected, so that sorting them is better than scanning all documents in order: the filter has an
/// equality on the first field of a secondary index or of the shard key. `by_shard_key`: the order is that of the shard key,
/// which then does not count.
pub fn finds_few(search: &Search<'_>, by_shard_key: bool) -> bool {
    let filter = search.filter();
    !by_shard_key && by_keys(search).begins_exactly
        || usable(search.collection, filter).any(|index| index.keys.wanted(filter).score().0 > 0)
}

/// Returns the index that a branch of a filter constrains most, among those that contain all documents.
pub fn best_of_part<'a>(collection: &'a Collection, part: Part<'_>) -> Option<(&'a Index, Wanted)> {
    let whole = collection.indexes.iter().filter(|index| !index.hidden && index.partial.is_none());
    let rated = whole.map(|index| (index, index.keys.wanted_by(part))).filter(|(_, wanted)| !wanted.is_all());
    rated.max_by_key(|(index, wanted)| rank(index, wanted, false))
}

/// Returns the index that the filter constrains most in addition to shard key and `_id`; None if these already leave few
/// documents.
///
/// The shard's planner cannot estimate how many documents have a given prefix of the shard key, as bounds are parameters: it
/// assumes 1 in 200. So if the filter gives a prefix by equality, only an index that also contains the prefix's fields is
/// considered. For whole keys, and for ranges, which are in the statement's text, there are statistics. As the text is the same
/// for all keys, such an index needs an equality of its own, not just a range.
pub fn beside_keys<'a>(search: &Search<'a>) -> Option<(&'a Index, Wanted)> {
    let (collection, filter) = (search.collection, search.filter());
    if collection.indexes.is_empty() || filter.ranges_of("_id").are_points() {
        return None;
    }
    let by = by_keys(search);
    if filter.is_about(&by.paths) {
        return None;
    }
    let rated = usable(collection, filter).map(|index| (index, index.keys.wanted_beside(filter, &by.paths)));
    let best = rated.filter(|(index, wanted)| {
        let equal = wanted.inverted.is_some() || wanted.score().0 > 0;
        let estimated = equal && (by.exactly || narrows(index, wanted, &by.paths));
        !wanted.is_all()
            && (wanted.inverted.is_some() || goes_further(index, wanted, &by.paths))
            && (!by.begins_exactly || estimated)
    });
    best.max_by_key(|(index, wanted)| rank(index, wanted, false))
}
