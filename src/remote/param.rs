//! Requests to shards: SQL text with typed parameters, in PostgreSQL's binary format.
//!
//! Byte strings and texts are sent from where they are; numbers and arrays are encoded into a reusable [`Encoded`] buffer.

use crate::pg::error::{Error, Result};
pub use crate::pg::spi::param::Param;
use docshard_core::error::Kind;
use pgrx::pg_sys::{self, Oid};
use std::ffi::{CString, c_char, c_int};
use std::ptr::null;

/// One statement, without NUL. A connection prepares it once and finds it again by its text, so texts should repeat.
#[derive(Debug, Clone, Copy)]
pub struct Sql<'a> {
    pub sql: &'a str,
    pub params: &'a [Param<'a>],
}

/// One statement for one shard.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub server: Oid,
    pub role: Role,
    /// executed before the statement in the same round trip and transaction; its rows are discarded
    pub preamble: Option<Sql<'a>>,
    pub statement: Sql<'a>,
    /// opens the remote transaction, and makes the server a participant of the commit
    pub write: bool,
    pub scope: RequestScope,
}

/// The role whose privileges apply to a statement at a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// the service role, as which the router logs in: for docshard's own statements, and those of superusers
    Service,
    /// an application role, which has the same name at the shard
    Application(Oid),
}

/// How much of the local transaction a request is, as far as the caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestScope {
    /// one of several requests that a statement sends
    OneOfSeveral,
    /// the only request of a statement; the transaction may contain other statements
    WholeStatement,
    /// the only request of the transaction: after a success only the commit follows, so the shard may commit first
    WholeTransaction,
}

/// A statement's text for libpq.
pub(super) fn c_string(sql: &str) -> Result<CString> {
    CString::new(sql).map_err(|_| Error::new(Kind::BadValue, "a statement contains NUL"))
}

/// Parameters in the form that libpq takes. The pointers are valid while the parameters are.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    /// numbers and arrays
    bytes: Vec<u8>,
    /// the position of each parameter in `bytes`; None if its pointer is in `values` already
    inside: Vec<Option<usize>>,
    pub(super) types: Vec<pq_sys::Oid>,
    pub(super) values: Vec<*const c_char>,
    pub(super) lengths: Vec<c_int>,
    pub(super) formats: Vec<c_int>,
}

impl Encoded {
    /// Replaces the encoded parameters by these.
    ///
    /// # Errors
    /// `BSONObjectTooLarge` for a parameter that is too long for a message.
    pub(super) fn encode(&mut self, params: &[Param<'_>]) -> Result<()> {
        let encoded = self.try_encode(params);
        encoded.ok_or_else(|| Error::new(Kind::BSONObjectTooLarge, "a parameter is too long for a message"))
    }

    fn try_encode(&mut self, params: &[Param<'_>]) -> Option<()> {
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
                Param::OptBytea(None) | Param::OptText(None) | Param::OptInt4(None) | Param::OptInt8(None) => {
                    self.point(null(), 0);
                    continue;
                }
                Param::Bytea(bytes) | Param::OptBytea(Some(bytes)) => {
                    self.point_to(bytes)?;
                    continue;
                }
                Param::Text(text) | Param::OptText(Some(text)) => {
                    self.point_to(text.as_bytes())?;
                    continue;
                }
                Param::OwnedByteaArray(items) => self.array(pg_sys::BYTEAOID, items.iter()),
                Param::OwnedTextArray(items) => self.array(pg_sys::TEXTOID, items.iter().map(String::as_bytes)),
                Param::ByteaArray(items) => self.array(pg_sys::BYTEAOID, items.iter().copied()),
                Param::TextArray(items) => self.array(pg_sys::TEXTOID, items.iter().map(|s| s.as_bytes())),
                Param::Int4Array(items) => self.array(pg_sys::INT4OID, items.iter().map(|i| i.to_be_bytes())),
                Param::Int8Array(items) => self.array(pg_sys::INT8OID, items.iter().map(|i| i.to_be_bytes())),
                Param::Int4(value) | Param::OptInt4(Some(value)) => self.bytes.extend_from_slice(&value.to_be_bytes()),
                Param::Int8(value) | Param::OptInt8(Some(value)) => self.bytes.extend_from_slice(&value.to_be_bytes()),
                Param::Bool(value) => self.bytes.push(u8::from(*value)),
            }
            let length = c_int::try_from(self.bytes.len() - start).ok()?;
            self.inside.push(Some(start));
            self.values.push(null());
            self.lengths.push(length);
        }
        for (value, inside) in self.values.iter_mut().zip(&self.inside) {
            if let Some(at) = inside {
                *value = self.bytes[*at..].as_ptr().cast();
            }
        }
        Some(())
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    fn point(&mut self, value: *const c_char, length: c_int) {
        self.inside.push(None);
        self.values.push(value);
        self.lengths.push(length);
    }

    fn point_to(&mut self, bytes: &[u8]) -> Option<()> {
        self.point(bytes.as_ptr().cast(), c_int::try_from(bytes.len()).ok()?);
        Some(())
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
