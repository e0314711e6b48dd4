//! Ranges of encoded keys.
//!
//! A filter may have as many ranges as its text has room for, so every loop over ranges counts steps.

use super::encode::{prefix_successor, split_first};
use crate::budget;
use std::cmp::Ordering;

/// A half-open range `[lo, hi)` of byte strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// the lower bound, inclusive
    pub lo: Vec<u8>,
    /// the upper bound, exclusive; None: unbounded
    pub hi: Option<Vec<u8>>,
}

/// Sorted, disjoint ranges that do not touch; without a range, nothing can match.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeyRanges(Vec<KeyRange>);

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        Self { lo: Vec::new(), hi: None }
    }
    /// Exactly one byte string.
    pub fn point(key: &[u8]) -> Self {
        Self::of(key.to_vec())
    }
    /// Like [`point`](Self::point), for owned bytes.
    fn of(key: Vec<u8>) -> Self {
        let hi = [key.as_slice(), &[0]].concat();
        Self { lo: key, hi: Some(hi) }
    }
    /// Some(key) if the range holds exactly one byte string.
    pub fn as_point(&self) -> Option<&[u8]> {
        let (last, front) = self.hi.as_deref()?.split_last()?;
        (*last == 0 && front == self.lo).then_some(&self.lo)
    }
    /// True if the key lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.lo.as_slice() <= key && self.hi.as_deref().is_none_or(|hi| key < hi)
    }
    /// True if no key lies inside.
    pub fn is_empty(&self) -> bool {
        self.hi.as_ref().is_some_and(|hi| *hi <= self.lo)
    }

    /// The keys that consist of the prefix and an encoding in the range, with or without further fields.
    ///
    /// A bound that continues a value's encoding means "after this value". Keys with further fields continue the encoding, too, and would lie on
    /// both sides of the bound. So it is moved after all of them: an upper bound then includes them, and a lower bound excludes them.
    pub(crate) fn under(&self, prefix: &[u8]) -> Self {
        let end = |bytes: &[u8]| [prefix, after_value(bytes).as_deref().unwrap_or(bytes)].concat();
        Self { lo: end(&self.lo), hi: self.hi.as_deref().map_or_else(|| prefix_successor(prefix), |hi| Some(end(hi))) }
    }
}

/// If the bytes continue a value's encoding, returns the least byte string above all that start with that encoding; else None.
fn after_value(bytes: &[u8]) -> Option<Vec<u8>> {
    let (value, rest) = split_first(bytes)?;
    if rest.is_empty() { None } else { prefix_successor(value) }
}

/// Compares upper bounds. None, which is unbounded, is the greatest.
fn compare_ends(a: Option<&[u8]>, b: Option<&[u8]>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}

impl KeyRanges {
    /// Every key.
    pub fn all() -> Self {
        Self(vec![KeyRange::all()])
    }
    /// No key.
    pub fn none() -> Self {
        Self(Vec::new())
    }
    /// Exactly one key.
    pub fn point(key: Vec<u8>) -> Self {
        Self(vec![KeyRange::of(key)])
    }
    /// Sorts, drops empty ranges and merges what overlaps or touches.
    pub fn new(mut ranges: Vec<KeyRange>) -> Self {
        budget::steps(ranges.len());
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by(|a, b| {
            budget::step();
            a.lo.cmp(&b.lo)
        });
        ranges.dedup_by(|next, last| {
            budget::step();
            let touches = last.hi.as_ref().is_none_or(|hi| next.lo <= *hi);
            if touches && compare_ends(last.hi.as_deref(), next.hi.as_deref()) == Ordering::Less {
                last.hi = next.hi.take();
            }
            touches
        });
        Self(ranges)
    }
    /// The ranges.
    pub fn as_slice(&self) -> &[KeyRange] {
        &self.0
    }
    /// The key, if the ranges contain exactly one.
    pub fn as_point(&self) -> Option<&[u8]> {
        match self.0.as_slice() {
            [one] => one.as_point(),
            _ => None,
        }
    }
    /// True if each range is that of one key.
    pub fn are_points(&self) -> bool {
        self.0.iter().inspect(|_| budget::step()).all(|range| range.as_point().is_some())
    }
    /// True if nothing can match.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
    /// True if every key lies inside.
    pub fn is_all(&self) -> bool {
        matches!(self.0.as_slice(), [KeyRange { lo, hi: None }] if lo.is_empty())
    }
    /// The keys in any of the parts. The ranges of all parts are sorted together, once.
    pub fn union(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::new(parts.into_iter().inspect(|_| budget::step()).flat_map(|part| part.0).collect())
    }
    /// The keys in both.
    pub fn intersect(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(one), Some(two)) = (a.peek(), b.peek()) {
            budget::step();
            let a_ends_first = compare_ends(one.hi.as_deref(), two.hi.as_deref()) == Ordering::Less;
            let hi = if a_ends_first { &one.hi } else { &two.hi };
            let range = KeyRange { lo: (&one.lo).max(&two.lo).clone(), hi: hi.clone() };
            if !range.is_empty() {
                both.push(range);
            }
            if a_ends_first {
                a.next()
            } else {
                b.next()
            };
        }
        Self(both)
    }
    /// True if the key lies in one of them.
    pub fn contains(&self, key: &[u8]) -> bool {
        let after = self.0.partition_point(|range| range.lo.as_slice() <= key);
        after.checked_sub(1).and_then(|index| self.0.get(index)).is_some_and(|range| range.contains(key))
    }
    /// One range that covers all; None if empty.
    pub fn hull(&self) -> Option<KeyRange> {
        Some(KeyRange { lo: self.0.first()?.lo.clone(), hi: self.0.last()?.hi.clone() })
    }
}
