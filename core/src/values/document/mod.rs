//! Documents: jsonb's on-disk bytes read and written directly, Extended JSON, owned values.
//!
//! * [`raw`] reads jsonb's on-disk form in place: no allocation, keys by binary search.
//!   `numeric` reads and builds PostgreSQL's numbers.
//! * [`element`] classifies what was read: an object such as `{"$oid": …}` is one value of an extended type.
//! * [`value`] is an owned value; [`ext_json`] turns JSON into it and back.
//! * [`number`] is arithmetic and comparison over int, long, double and decimal.
//! * [`write`] produces jsonb's on-disk form.
//! * [`normalise`] makes what a client sent into what is stored.
//! * [`print`] is jsonb's text.
//! * [`packed`] is documents on their way from a shard to the router.

pub mod number;
pub mod raw;
pub(crate) mod text;

pub mod element;
mod numeric;
pub mod packed;
pub mod print;

pub mod value;

pub mod ext_json;

pub mod write;

pub mod normalise;

/// The largest document, in bytes of jsonb: MongoDB's limit.
pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// The deepest nesting of a document: MongoDB's limit.
pub const MAX_DEPTH: usize = 100;

/// How deep anything here recurses into a value: well beyond [`MAX_DEPTH`], which values of extended types exceed by
/// their own nesting, and well within any stack.
pub const MAX_RECURSION: usize = 256;
