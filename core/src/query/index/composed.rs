//! Composes ranges of whole entries from demands on the columns, one column after the other.

use super::keys::IndexKeys;
use crate::values::key::encode::prefix_successor;
use crate::values::key::{KeyRange, KeyRanges};

/// Largest number of ranges of entries. If there would be more, a column's ranges are replaced by one range around them.
const MAX_RANGES: usize = 1000;

/// The keys that satisfy the demands so far.
#[derive(Clone)]
pub(super) struct Composed {
    /// the beginnings of the keys, as long as all demands are single values
    starts: Vec<Vec<u8>>,
    /// the final ranges, once a demand is not a single value
    ended: Option<KeyRanges>,
    /// the number of columns with a demand of any kind
    pub(super) depth: usize,
    /// the number of columns whose demand is single values
    pub(super) equal: usize,
}

impl Composed {
    /// All keys: no demands.
    pub(super) fn of_all() -> Self {
        Self { starts: vec![Vec::new()], ended: None, depth: 0, equal: 0 }
    }

    /// Demands that the next column's value lies in the ranges. Returns false if no demand on a further column can be added. If the ranges
    /// are everything, or the keys are final, no demand is added, and the result is false.
    pub(super) fn demand(&mut self, index: &IndexKeys, of: &KeyRanges) -> bool {
        if self.ended.is_some() || of.is_all() {
            return false;
        }
        self.depth += 1;
        let limit = index.column_limit();
        let ranges = KeyRanges::new(of.as_slice().iter().map(|range| cut(range, limit)).collect());
        let fits = self.starts.len().saturating_mul(ranges.as_slice().len()) <= MAX_RANGES;
        let is_whole = |point: &&[u8]| point.len() < limit;
        let points: Option<Vec<&[u8]>> = ranges.as_slice().iter().map(KeyRange::as_point).collect();
        if let Some(points) = points.filter(|points| fits && points.iter().all(is_whole)) {
            let extended = |start: &Vec<u8>| points.iter().map(|point| [start, *point].concat()).collect::<Vec<_>>();
            self.starts = self.starts.iter().flat_map(extended).collect();
            self.equal += 1;
            return true;
        }
        let hull = KeyRanges::new(ranges.hull().into_iter().collect());
        let few = if fits { &ranges } else { &hull };
        let is_last = self.depth == index.fields.len();
        let under = |start: &Vec<u8>| {
            let key = |range: &KeyRange| match range.as_point().filter(is_whole) {
                Some(point) if is_last => KeyRange::point(&[start, point].concat()),
                _ => below(index, start, range),
            };
            few.as_slice().iter().map(key).collect::<Vec<_>>()
        };
        self.ended = Some(KeyRanges::new(self.starts.iter().flat_map(under).collect()));
        false
    }

    /// Appends bytes to all keys, before the next column's value.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.starts.iter_mut().for_each(|start| start.extend_from_slice(bytes));
    }

    /// Demands that the next column's keys begin with these bytes.
    pub(super) fn starting(&self, bytes: &[u8]) -> Self {
        let mut next = self.clone();
        next.append(bytes);
        let ranges = KeyRanges::new(next.starts.iter().map(|start| beginning(start)).collect());
        Self { ended: Some(ranges), depth: self.depth + 1, ..next }
    }

    /// The union of both sets of keys. It is final: no more demands can be added.
    pub(super) fn or(&self, other: &Self, index: &IndexKeys) -> Self {
        let (one, two) = (self.ranges(index), other.ranges(index));
        let both = KeyRanges::new([one.as_slice(), two.as_slice()].concat());
        let (depth, equal) = (self.depth.min(other.depth), self.equal.min(other.equal));
        Self { starts: Vec::new(), ended: Some(both), depth, equal }
    }

    /// The keys.
    pub(super) fn ranges(&self, index: &IndexKeys) -> KeyRanges {
        match &self.ended {
            Some(ranges) => ranges.clone(),
            None if self.depth == 0 => KeyRanges::all(),
            None if self.depth == index.fields.len() => {
                KeyRanges::new(self.starts.iter().map(|start| KeyRange::point(start)).collect())
            }
            None => KeyRanges::new(self.starts.iter().map(|start| beginning(start)).collect()),
        }
    }
}

/// The keys that begin with these bytes.
fn beginning(start: &[u8]) -> KeyRange {
    KeyRange { lo: start.to_vec(), hi: prefix_successor(start) }
}

/// The keys that consist of the prefix and an encoding in the range, with or without further columns.
fn below(index: &IndexKeys, prefix: &[u8], range: &KeyRange) -> KeyRange {
    if let Some(point) = range.as_point() {
        return beginning(&[prefix, point].concat());
    }
    if index.collation.is_none() {
        return range.under(prefix);
    }
    // Under a collation, the end of a value in a key cannot be found. An upper bound directly after a value (the value and a zero byte)
    // is replaced by one after all keys that begin with the value.
    let end = |hi: &Vec<u8>| match hi.split_last() {
        Some((0, value)) => prefix_successor(&[prefix, value].concat()),
        _ => Some([prefix, hi].concat()),
    };
    KeyRange { lo: [prefix, &range.lo].concat(), hi: range.hi.as_ref().map_or_else(|| prefix_successor(prefix), end) }
}

/// The range of truncated keys that covers the keys of `range`.
pub(super) fn cut(range: &KeyRange, limit: usize) -> KeyRange {
    if let Some(point) = range.as_point() {
        return KeyRange::point(&point[..point.len().min(limit)]);
    }
    let lo = range.lo[..range.lo.len().min(limit)].to_vec();
    let hi = match &range.hi {
        Some(hi) if hi.len() > limit => {
            let mut above = hi[..limit].to_vec();
            above.push(0);
            Some(above)
        }
        other => other.clone(),
    };
    KeyRange { lo, hi }
}
