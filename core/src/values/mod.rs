//! What documents and keys are: jsonb's bytes, the order of values, the order-preserving encoding of keys.
//!
//! * [`document`] reads and writes them, [`path`] finds values in them.
//! * [`collation`] compares strings; [`order`] is the comparison order over all types; [`view`] lets it look at stored and owned
//!   values alike.
//! * [`key`] is the encoding whose order as bytes is that order.

pub mod document;
pub(crate) mod path;

pub mod collation;

pub(crate) mod view;

pub mod order;

pub mod key;
