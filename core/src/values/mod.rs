//! What documents and keys are: jsonb's bytes, the order of values, the order-preserving encoding of keys.

pub mod collation;
pub mod document;
pub mod key;
pub(crate) mod path;
