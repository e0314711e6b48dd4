//! Keys: the order-preserving encoding, hashing, the shard-key pattern and bounds.

pub mod encode;
pub mod hashed_index;
pub mod pattern;
pub mod range;

pub use pattern::KeyPattern;
pub use range::{KeyRange, KeyRanges};

/// The longest `skey` plus `id`, in bytes, that a b-tree page of PostgreSQL surely holds.
pub const MAX_KEY_BYTES: usize = 2600;
