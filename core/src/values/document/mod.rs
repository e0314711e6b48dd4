//! Documents: jsonb's on-disk form, Extended JSON, owned values.
//!
//! * [`raw`] reads jsonb's on-disk form in place, without allocations; `numeric` reads and writes PostgreSQL's numbers.
//! * [`element`] classifies values: an object such as `{"$oid": …}` is one value of an extended type.
//! * [`value`] is an owned value, whose children [`nested`] keeps with their depth; [`ext_json`] converts it from and to JSON.
//! * [`number`] is arithmetic and comparison of int, long, double and decimal.
//! * [`write`] writes jsonb's on-disk form.
//! * [`bson`] reads commands and writes replies of MongoDB's protocol.
//! * [`normalise`] converts a client's documents into the form that is stored.
//! * [`field_order`] keeps the order in which a client has given fields, behind the fields; [`detached`] separates that order from a
//!   document that is sent as text.
//! * [`print`] writes jsonb as text.
//! * [`packed`] is the form in which a shard sends documents to the router.

pub mod field_order;
pub mod number;
pub mod raw;
pub(crate) mod text;

pub mod element;
mod numeric;
pub mod packed;
pub mod print;

pub mod nested;
pub mod value;

pub mod ext_json;

pub mod bson;

pub mod write;

pub mod detached;

pub mod normalise;

/// The largest document, in bytes of jsonb: MongoDB's limit.
pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// The deepest nesting of a document: MongoDB's limit.
pub const MAX_DEPTH: usize = 100;

/// The deepest nesting of a value that an expression makes: MongoDB's limit. Values that are stored are less deep.
pub const MAX_VALUE_DEPTH: usize = 200;

/// The deepest recursion into a value: more than [`MAX_DEPTH`], which values of extended types exceed by their own nesting, and
/// little enough for any stack.
pub const MAX_RECURSION: usize = 256;
