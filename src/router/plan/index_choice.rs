//! Chooses the index that a search is given a condition for, beside or instead of those on shard key and `_id`.
//!
//! The router chooses by the form of the filter alone, what PostgreSQL on the shard may match to what; the shard's planner,
//! which knows how many rows come into question, chooses among the conditions that it is given.

use super::index_restriction::IndexRestriction;
use super::search::Search;
use crate::catalog::model::{Collection, Index};
use docshard_core::query::filter::{Filter, Part};
use docshard_core::query::index::Wanted;
use docshard_core::values::key::KeyRanges;
use docshard_core::values::key::pattern::FieldKind;
use std::cmp::Reverse;

/// More ranges than this on one column are searched as the one range that covers them.
pub const MAX_RANGES: usize = 16;

/// True if ranges stand in a statement as they are.
pub fn has_few_ranges(ranges: &KeyRanges) -> bool {
    ranges.are_points() || ranges.as_slice().len() <= MAX_RANGES
}

/// What the filter says of shard key and `_id`.
struct ByKeys<'a> {
    /// the paths that conditions on them constrain
    paths: Vec<&'a str>,
    /// the first of them is given by equality
    begins_exactly: bool,
    /// so is the whole shard key
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

/// The shard key's first fields that the filter says something of, and how many ranges of keys that makes.
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

/// True if what the filter says is what the conditions on shard key and `_id` say, of which there is one.
pub fn says_keys_alone(search: &Search<'_>) -> bool {
    let (collection, filter) = (search.collection, search.filter());
    let (mut paths, keys) = leading(collection, filter);
    let ids = filter.ranges_of("_id");
    if !ids.is_all() && has_few_ranges(&ids) {
        paths.push("_id");
    }
    !paths.is_empty() && keys <= MAX_RANGES && filter.is_ranges_of(&paths)
}

/// The indexes that hold every document which the filter matches, and may be used.
fn usable<'a>(collection: &'a Collection, filter: &Filter) -> impl Iterator<Item = &'a Index> {
    let holds_all = |index: &Index| index.partial.as_deref().is_none_or(|partial| filter.implies(&partial.filter));
    collection.indexes.iter().filter(move |index| !index.hidden && holds_all(index))
}

/// How well an index serves: the greatest is best.
fn rank(index: &Index, wanted: &Wanted, ordered: bool) -> impl Ord + use<> {
    let (equal, given) = wanted.score();
    (equal, ordered, given, wanted.inverted.is_none(), index.partial.is_some(), index.unique, Reverse(index.id))
}

/// The paths of an index's columns of which keys are wanted.
fn constrained<'a>(index: &'a Index, wanted: &Wanted) -> impl Iterator<Item = &'a str> {
    index.fields().iter().take(wanted.columns.len()).map(|(path, _)| path.as_str())
}

/// True if the filter constrains all these paths by the index's columns.
fn narrows(index: &Index, wanted: &Wanted, paths: &[&str]) -> bool {
    paths.iter().all(|path| constrained(index, wanted).any(|column| column == *path))
}

/// True if the filter constrains another path than these by the index's columns.
fn goes_further(index: &Index, wanted: &Wanted, paths: &[&str]) -> bool {
    constrained(index, wanted).any(|column| !paths.contains(&column))
}

/// The index that the filter constrains most, of those that it constrains as much one that is `ordered`; also an ordered one
/// that it does not constrain, and a partial one that holds all that it matches. If the filter says something of shard key or
/// `_id`, only one that narrows the search as they do, and further or in order.
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

/// The index that a search is to go by, and the keys that are wanted of it: the only one that may serve or, of several, the
/// best, as [`best`] has it.
pub fn index_for<'a>(search: &Search<'a>, ordered: impl Fn(&Index, &Wanted) -> bool) -> Option<(&'a Index, Wanted)> {
    match &search.restriction {
        IndexRestriction::Index(index) => Some((*index, index.keys.wanted(search.filter()))),
        IndexRestriction::Part { index, span } => index.map(|index| (index, index.keys.wanted_within(span))),
        IndexRestriction::None | IndexRestriction::AnyIndex => best(search, ordered),
        IndexRestriction::NoIndex | IndexRestriction::KeyIndexes => None,
    }
}

/// True if what matches is found by a value of a secondary index or, unless the order is the shard key's, by one of the shard
/// key: that is taken to be few documents, better sorted than looked for among all in their order.
pub fn finds_few(search: &Search<'_>, by_shard_key: bool) -> bool {
    let filter = search.filter();
    !by_shard_key && by_keys(search).begins_exactly
        || usable(search.collection, filter).any(|index| index.keys.wanted(filter).score().0 > 0)
}

/// The index that a part of a filter constrains most, of those that hold all documents.
pub fn best_of_part<'a>(collection: &'a Collection, part: Part<'_>) -> Option<(&'a Index, Wanted)> {
    let whole = collection.indexes.iter().filter(|index| !index.hidden && index.partial.is_none());
    let rated = whole.map(|index| (index, index.keys.wanted_by(part))).filter(|(_, wanted)| !wanted.is_all());
    rated.max_by_key(|(index, wanted)| rank(index, wanted, false))
}

/// The index that the filter constrains most by what it says beside shard key and `_id`, of which it says something; None if
/// those single out few documents.
///
/// Of a prefix of the shard key that is given by equality, the planner cannot tell how many documents have it: the bounds are
/// parameters. It would take it for 1 in 200. So beside such a prefix only an index comes into question that has its fields,
/// too, whereas of whole keys, and of ranges, which stand in the statement's text, there are statistics. And where the text is
/// the same for all keys, so it stays: such an index must not be given a range alone.
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
