//! Ranges of encoded keys.

/// A half-open range `[lo, hi)` of byte strings; `hi` None means no upper end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// the least key inside
    pub lo: Vec<u8>,
    /// the least key above, or None
    pub hi: Option<Vec<u8>>,
}

/// Sorted, disjoint, non-touching ranges. Empty: nothing can match.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeyRanges(Vec<KeyRange>);

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        Self { lo: Vec::new(), hi: None }
    }
    /// Exactly one byte string.
    pub fn point(key: &[u8]) -> Self {
        let mut hi = key.to_vec();
        hi.push(0);
        Self { lo: key.to_vec(), hi: Some(hi) }
    }
    /// Some(key) if the range holds exactly one byte string.
    pub fn as_point(&self) -> Option<&[u8]> {
        todo!()
    }
    /// True if the key lies inside.
    pub fn contains(&self, _key: &[u8]) -> bool {
        todo!()
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
    /// Sorts, drops empty ranges and merges what overlaps or touches.
    pub fn new(_ranges: Vec<KeyRange>) -> Self {
        todo!()
    }
    /// The ranges.
    pub fn as_slice(&self) -> &[KeyRange] {
        &self.0
    }
    /// True if nothing can match.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
    /// True if nothing is excluded.
    pub fn is_all(&self) -> bool {
        todo!()
    }
    /// What lies in either.
    pub fn union(&self, _other: &Self) -> Self {
        todo!()
    }
    /// What lies in both.
    pub fn intersect(&self, _other: &Self) -> Self {
        todo!()
    }
    /// True if the key lies in one of them.
    pub fn contains(&self, _key: &[u8]) -> bool {
        todo!()
    }
    /// One range that covers all; None if empty.
    pub fn hull(&self) -> Option<KeyRange> {
        todo!()
    }
}
