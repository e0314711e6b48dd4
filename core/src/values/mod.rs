//! Documents and keys: jsonb's bytes, the order of values, the order-preserving encoding of keys.
//!
//! * [`document`] reads and writes documents, [`path`] finds values in them.
//! * [`collation`] compares strings; [`order`] is the order of all types; [`view`] is the common form of stored and owned values.
//! * [`key`] encodes values into bytes that compare in this order.

pub mod document;
pub(crate) mod path;

pub mod collation;

pub(crate) mod view;

pub mod order;

pub mod key;
