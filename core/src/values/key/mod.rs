//! Keys: the order-preserving encoding, hashing, the shard-key pattern and bounds.

pub mod encode;
pub mod hashed_index;
pub mod pattern;
pub mod range;

pub use encode::MAX_KEY_BYTES;
pub use pattern::KeyPattern;
pub use range::{KeyRange, KeyRanges};
