//! BSON, as MongoDB's drivers send and expect it.
//!
//! * [`read`] turns a command's bytes into the JSON that Extended JSON text of the same document gives, without the text.
//! * [`write`] makes replies: from owned values, and from stored documents without a copy between.
//! * `decimal` is the binary form of decimal128.
//!
//! The bytes come from any client. INVARIANT: no bytes make a function panic, and work and memory are bounded by their length.
//! Source: bsonspec.org, version 1.1.

mod decimal;
pub mod read;
pub mod write;

const DOUBLE: u8 = 0x01;
const STRING: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BINARY: u8 = 0x05;
const UNDEFINED: u8 = 0x06;
const OBJECT_ID: u8 = 0x07;
const BOOL: u8 = 0x08;
const DATE: u8 = 0x09;
const NULL: u8 = 0x0A;
const REGEX: u8 = 0x0B;
const DB_POINTER: u8 = 0x0C;
const CODE: u8 = 0x0D;
const SYMBOL: u8 = 0x0E;
const CODE_WITH_SCOPE: u8 = 0x0F;
const INT32: u8 = 0x10;
const TIMESTAMP: u8 = 0x11;
const INT64: u8 = 0x12;
const DECIMAL: u8 = 0x13;
const MAX_KEY: u8 = 0x7F;
const MIN_KEY: u8 = 0xFF;

/// The subtype of binaries whose bytes begin with their own length.
const OLD_BINARY: u8 = 2;

/// The shortest document: its length and its end.
const SHORTEST: usize = 5;
