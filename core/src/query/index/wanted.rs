//! Finds the keys of an index that a search for a filter's documents has to visit.
//!
//! RULE: every document that the filter matches has such a key, in the b-tree or among the entries.

use super::bounds::Span;
use super::columns::hash_of;
use super::composed::{Composed, cut};
use super::entries::Tag;
use super::keys::IndexKeys;
use crate::query::filter::{Filter, Part};
use crate::values::key::encode::prefix_successor;
use crate::values::key::{KeyRange, KeyRanges};
use crate::values::path;

/// The most conditions of a filter that are compared to find the one that narrows a search most. Each comparison analyses the whole filter.
pub(super) const MAX_CANDIDATES: usize = 100;

/// The keys that a search visits in an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// the keys in the b-tree's leading columns. All but the last must be single values; the last may be ranges. Empty: all keys
    pub columns: Vec<KeyRanges>,
    /// the keys among the entries
    pub entries: KeyRanges,
    /// the number of columns with single values, and the number of columns with any condition; None if there is a b-tree
    pub inverted: Option<(usize, usize)>,
    /// bounds of several columns that are compared as a row; None if there are none
    pub row: Option<RowBounds>,
}

/// Bounds of the columns from `first` on, compared as a row, both included; None: no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowBounds {
    /// the position of the first column
    pub first: usize,
    /// the least keys
    pub least: Option<Vec<Vec<u8>>>,
    /// the greatest keys
    pub greatest: Option<Vec<Vec<u8>>>,
}

impl Wanted {
    /// True if the search visits all keys: the filter does not narrow the search in this index.
    pub fn is_all(&self) -> bool {
        if self.inverted.is_some() { self.entries.is_all() } else { self.columns.is_empty() }
    }

    /// True if the search visits a single key of a column of the b-tree.
    pub fn is_fixed(&self, column: usize) -> bool {
        self.columns.get(column).is_some_and(|ranges| ranges.as_point().is_some())
    }

    /// The number of leading columns with equalities, and the number of columns with any condition.
    pub fn score(&self) -> (usize, usize) {
        let of_columns = || (self.columns.iter().filter(|ranges| ranges.are_points()).count(), self.columns.len());
        self.inverted.unwrap_or_else(of_columns)
    }
}

impl IndexKeys {
    /// The keys to visit for a filter.
    pub fn wanted(&self, filter: &Filter) -> Wanted {
        self.wanted_by(filter.part())
    }

    /// The keys to visit for a part of a filter.
    pub fn wanted_by(&self, filter: Part<'_>) -> Wanted {
        self.of_part(filter, &[])
    }

    /// The keys to visit for a filter; a wildcard index ignores conditions on the paths in `given`.
    pub fn wanted_beside(&self, filter: &Filter, given: &[&str]) -> Wanted {
        self.of_part(filter.part(), given)
    }

    fn of_part(&self, filter: Part<'_>, given: &[&str]) -> Wanted {
        if let Some(wildcard) = &self.wildcard {
            let composed = wildcard.wanted(self, filter, given);
            let inverted = Some((composed.equal, composed.depth));
            return Wanted { entries: composed.ranges(self), inverted, ..Wanted::default() };
        }
        let mut columns = Vec::new();
        for (column, (field, _)) in self.fields.iter().enumerate() {
            let ranges = self.stored(column, self.without_array(filter, field));
            if ranges.is_all() {
                break;
            }
            let points = ranges.are_points();
            columns.push(ranges);
            if !points {
                break;
            }
        }
        let entries = if self.hashed.is_some() { KeyRanges::none() } else { self.wanted_entries(filter) };
        Wanted { columns, entries, ..Wanted::default() }
    }

    /// The keys to visit for a range of the index's keys: the leading columns with the same value at both ends are equal to it, and the
    /// next column is bounded as a row with those that follow in the same direction.
    pub fn wanted_within(&self, span: &Span) -> Wanted {
        let fixed = span.fixed();
        let one = |column: usize| span.min.iter().flatten().nth(column).map(|key| KeyRange::point(key));
        let mut columns: Vec<KeyRanges> = (0..fixed).filter_map(one).map(|point| KeyRanges::new(vec![point])).collect();
        let mut row = None;
        if let Some((_, descending)) = self.fields.get(fixed) {
            let together = self.fields[fixed..].iter().take_while(|(_, other)| other == descending).count();
            let ends = if *descending { (&span.max, &span.min) } else { (&span.min, &span.max) };
            let part = |end: &Option<Vec<Vec<u8>>>| end.as_ref().map(|keys| keys[fixed..fixed + together].to_vec());
            let (least, greatest) = (part(ends.0), part(ends.1));
            let lo = least.as_ref().map_or_else(Vec::new, |keys| keys[0].clone());
            let hi = greatest.as_ref().and_then(|keys| prefix_successor(&keys[0]));
            columns.push(KeyRanges::new(vec![KeyRange { lo, hi }]));
            row = (together > 1).then_some(RowBounds { first: fixed, least, greatest });
        }
        let demanded = |field: &str| {
            let column = self.fields.iter().position(|(path, _)| path == field)?;
            columns.get(column).map(|of| Demand { of: of.clone(), meets_alone: false })
        };
        let composed = self.composed(demanded);
        let heads =
            self.fields.iter().enumerate().filter(|(at, (field, _))| self.first_with_head(path::split(field).0) == *at);
        let tags = [Tag::NoArray].into_iter().chain(heads.map(|(at, _)| Tag::ArrayAt(at)));
        let tagged = tags.flat_map(|tag| {
            let prefix = [tag.byte()];
            composed.ranges(self).as_slice().iter().map(move |range| tagged(&prefix, range)).collect::<Vec<_>>()
        });
        Wanted { entries: KeyRanges::new(tagged.collect()), columns, row, ..Wanted::default() }
    }

    /// The keys that a column stores for values in the ranges: a hashed index stores unordered hashes and truncated values.
    fn stored(&self, column: usize, ranges: KeyRanges) -> KeyRanges {
        let Some(hashed) = self.hashed else { return ranges };
        if hashed != column {
            let limit = self.column_limit();
            return KeyRanges::new(ranges.as_slice().iter().map(|range| cut(range, limit)).collect());
        }
        let points: Option<Vec<_>> = ranges.as_slice().iter().map(KeyRange::as_point).collect();
        points.map_or_else(KeyRanges::all, |points| {
            KeyRanges::new(points.into_iter().map(|point| KeyRange::point(&hash_of(point))).collect())
        })
    }

    /// The keys of a field to visit in documents without an array on its path: none for a filter that demands an array.
    pub(super) fn without_array(&self, filter: Part<'_>, field: &str) -> KeyRanges {
        if filter.demands_array(field) {
            return KeyRanges::none();
        }
        filter.ranges_under(field, self.collation.as_deref())
    }

    /// The entries to visit for a filter: for each name that paths begin with, those of documents with an array there, and those of documents
    /// without an array.
    fn wanted_entries(&self, filter: Part<'_>) -> KeyRanges {
        let mut all =
            vec![self.composed(|field| Some(Demand { of: self.without_array(filter, field), meets_alone: false }))];
        let mut tags = vec![Tag::NoArray];
        for (at, (field, _)) in self.fields.iter().enumerate() {
            let head = path::split(field).0;
            if self.first_with_head(head) != at {
                continue;
            }
            all.push(self.composed_through(head, filter));
            tags.push(Tag::ArrayAt(at));
        }
        if all.iter().all(|composed| composed.depth == 0) {
            return KeyRanges::all();
        }
        let tagged = tags.iter().zip(&all).flat_map(|(tag, composed)| {
            let prefix = [tag.byte()];
            composed.ranges(self).as_slice().iter().map(move |range| tagged(&prefix, range)).collect::<Vec<_>>()
        });
        KeyRanges::new(tagged.collect())
    }

    /// The keys to visit in documents with an array on the paths that begin with `head`.
    fn composed_through(&self, head: &str, filter: Part<'_>) -> Composed {
        let demand = |field: &str| Demand { of: self.without_array(filter, field), meets_alone: false };
        let goes_through = |field: &str| path::split(field).0 == head;
        // Different elements may satisfy the conditions on different fields, so only one of these demands is used.
        let mut best = self.composed(|field| {
            let one = || Demand { of: filter.ranges_of_one(field, self.collation.as_deref()), meets_alone: true };
            Some(if goes_through(field) { one() } else { demand(field) })
        });
        let parts = filter.element_parts().into_iter().filter(|(prefix, _)| goes_through(prefix));
        for (prefix, part) in parts.take(MAX_CANDIDATES) {
            let mut seen: Vec<&str> = Vec::new();
            let composed = self.composed(|field| {
                if !goes_through(field) {
                    return Some(demand(field));
                }
                // One element satisfies all conditions of the `$elemMatch`, so they are combined, except on fields below a common name:
                // there may be another array.
                let below = field.strip_prefix(prefix)?.strip_prefix('.')?;
                // `$elemMatch` treats an element that is an array as a document whose names are positions. Entries do not, so paths that
                // name positions are not used.
                let named = below.split('.').any(|component| path::array_index(component).is_some());
                let inner = path::split(below).0;
                if named || seen.contains(&inner) {
                    return None;
                }
                seen.push(inner);
                Some(Demand { of: part.ranges_of_one(below, self.collation.as_deref()), meets_alone: false })
            });
            if composed.depth > best.depth {
                best = composed;
            }
        }
        best
    }

    /// Composes keys from the demands on the fields, up to the first field without a demand.
    fn composed<'a>(&'a self, mut demand: impl FnMut(&'a str) -> Option<Demand>) -> Composed {
        let mut composed = Composed::of_all();
        let mut met = false;
        for (field, _) in &self.fields {
            let Some(demanded) = demand(field).filter(|demanded| !(met && demanded.meets_alone)) else { break };
            met |= demanded.meets_alone;
            if !composed.demand(self, &demanded.of) {
                break;
            }
        }
        composed
    }
}

/// A demand on a field.
struct Demand {
    of: KeyRanges,
    /// true if another element may satisfy another such demand, so that only one of them is used
    meets_alone: bool,
}

/// A range of entries with a tag.
fn tagged(tag: &[u8], range: &KeyRange) -> KeyRange {
    let hi = range.hi.as_ref().map_or_else(|| prefix_successor(tag), |hi| Some([tag, hi].concat()));
    KeyRange { lo: [tag, &range.lo].concat(), hi }
}
