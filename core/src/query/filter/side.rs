//! The ordering operators.

use std::cmp::Ordering;

/// An ordering operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// `$lt`
    Less,
    /// `$lte`
    LessOrEqual,
    /// `$gt`
    Greater,
    /// `$gte`
    GreaterOrEqual,
}

impl Side {
    /// True if a value passes whose comparison with the bound has this result.
    pub fn accepts(self, ordering: Ordering) -> bool {
        match self {
            Side::Less => ordering.is_lt(),
            Side::LessOrEqual => ordering.is_le(),
            Side::Greater => ordering.is_gt(),
            Side::GreaterOrEqual => ordering.is_ge(),
        }
    }

    /// True for `$lte` and `$gte`.
    pub fn is_inclusive(self) -> bool {
        matches!(self, Side::LessOrEqual | Side::GreaterOrEqual)
    }

    /// True for `$lt` and `$lte`.
    pub fn is_upper(self) -> bool {
        matches!(self, Side::Less | Side::LessOrEqual)
    }
}
