//! What is sent to a shard: SQL text with typed parameters, in PostgreSQL's binary format.
//!
//! Byte strings and texts are sent from where they are; numbers and arrays are encoded into an [`Encoded`] buffer that
//! its owner uses again and again.

pub use crate::pg::spi::param::Param;
use pgrx::pg_sys::{self, Oid};
use std::ffi::{c_char, c_int};
use std::ptr::null;

/// SQL text with `$n` parameters. It is prepared once a connection and found again by its text, so texts should repeat.
#[derive(Debug, Clone, Copy)]
pub struct Sql<'a> {
    /// one statement, without NUL
    pub sql: &'a str,
    /// the values of `$1`, `$2` …
    pub params: &'a [Param<'a>],
}

/// One statement for one shard.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// the foreign server
    pub server: Oid,
    /// whose privileges count at the shard
    pub role: Role,
    /// executed before the statement in the same round trip and the same transaction; its rows are thrown away
    pub preamble: Option<Sql<'a>>,
    /// the statement whose rows are streamed
    pub statement: Sql<'a>,
    /// true opens the remote transaction that follows the local one, and makes the server a participant of its commit
    pub write: bool,
    /// what it is to the local transaction
    pub share: Share,
    /// its rows are so few that they may be in memory together, which is cheaper than one by one
    pub few_rows: bool,
}

/// Whose privileges count for a statement at a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// the service role's, as which the router logs in: for docshard's own statements, and those of superusers
    Service,
    /// an application role's, which has the same name there
    Application(Oid),
}

/// What a request is to the local transaction, as far as the caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// one of any number
    Part,
    /// the statement that it belongs to concerns no other server: its commit will most often be the only one
    Alone,
    /// as `Alone`, and if it succeeds the local transaction does nothing more but commit: it may do so first
    Whole,
}

/// Parameters in the form that libpq takes. The pointers are good while the encoded parameters' referents are.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    /// numbers and arrays
    bytes: Vec<u8>,
    /// where each parameter lies in `bytes`, or None where its pointer is already in `values`
    inside: Vec<Option<usize>>,
    pub(super) types: Vec<pq_sys::Oid>,
    pub(super) values: Vec<*const c_char>,
    pub(super) lengths: Vec<c_int>,
    pub(super) formats: Vec<c_int>,
}

impl Encoded {
    /// Replaces what was encoded by `params`; returns false if one is too long for a message.
    pub(super) fn encode(&mut self, params: &[Param<'_>]) -> bool {
        self.bytes.clear();
        self.inside.clear();
        self.types.clear();
        self.values.clear();
        self.lengths.clear();
        self.formats.clear();
        for param in params {
            self.types.push(param.type_oid().to_u32());
            self.formats.push(1);
            let start = self.bytes.len();
            match param {
                Param::OptBytea(None) | Param::OptText(None) => {
                    self.point(null(), 0);
                    continue;
                }
                Param::Bytea(bytes) | Param::OptBytea(Some(bytes)) => {
                    if !self.point_to(bytes) {
                        return false;
                    }
                    continue;
                }
                Param::Text(text) | Param::OptText(Some(text)) => {
                    if !self.point_to(text.as_bytes()) {
                        return false;
                    }
                    continue;
                }
                Param::OwnedByteaArray(items) => self.array(pg_sys::BYTEAOID, items.iter()),
                Param::OwnedTextArray(items) => self.array(pg_sys::TEXTOID, items.iter().map(String::as_bytes)),
                Param::ByteaArray(items) => self.array(pg_sys::BYTEAOID, items.iter().copied()),
                Param::TextArray(items) => self.array(pg_sys::TEXTOID, items.iter().map(|s| s.as_bytes())),
                Param::Int4Array(items) => self.array(pg_sys::INT4OID, items.iter().map(|i| i.to_be_bytes())),
                Param::Int8Array(items) => self.array(pg_sys::INT8OID, items.iter().map(|i| i.to_be_bytes())),
                Param::Int4(value) => self.bytes.extend_from_slice(&value.to_be_bytes()),
                Param::Int8(value) => self.bytes.extend_from_slice(&value.to_be_bytes()),
                Param::Bool(value) => self.bytes.push(u8::from(*value)),
            }
            let Ok(length) = c_int::try_from(self.bytes.len() - start) else { return false };
            self.inside.push(Some(start));
            self.values.push(null());
            self.lengths.push(length);
        }
        for (value, inside) in self.values.iter_mut().zip(&self.inside) {
            if let Some(at) = inside {
                *value = self.bytes[*at..].as_ptr().cast();
            }
        }
        true
    }

    /// How many parameters there are.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    fn point(&mut self, value: *const c_char, length: c_int) {
        self.inside.push(None);
        self.values.push(value);
        self.lengths.push(length);
    }

    fn point_to(&mut self, bytes: &[u8]) -> bool {
        let Ok(length) = c_int::try_from(bytes.len()) else { return false };
        self.point(bytes.as_ptr().cast(), length);
        true
    }

    /// `array_send`'s format, one dimension.
    fn array<B: AsRef<[u8]>>(&mut self, element: Oid, items: impl ExactSizeIterator<Item = B>) {
        let mut int = |value: u32| self.bytes.extend_from_slice(&value.to_be_bytes());
        int(u32::from(items.len() > 0));
        int(0);
        int(element.to_u32());
        if items.len() > 0 {
            int(items.len() as u32);
            int(1);
        }
        for item in items {
            let item = item.as_ref();
            self.bytes.extend_from_slice(&(item.len() as u32).to_be_bytes());
            self.bytes.extend_from_slice(item);
        }
    }
}
