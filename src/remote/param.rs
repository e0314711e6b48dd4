//! Requests to shards: SQL text with typed parameters, in PostgreSQL's binary format.
//!
//! Parameters are encoded into a reusable buffer, [`Encoded`].

use crate::pg::error::Result;
use crate::pg::spi::param::type_oid;
use docshard_core::error::{Kind, error};
use docshard_core::sql::column::{Column, Columns};
pub use docshard_core::sql::param::Param;
use pgrx::pg_sys::{self, Oid};
use std::borrow::Cow;
use std::ffi::CString;

/// One statement, whose text contains no NUL. A connection finds a prepared statement by its text, so texts should repeat.
#[derive(Debug, Clone)]
pub struct Sql<'a> {
    pub sql: &'a str,
    pub params: Cow<'a, [Param<'a>]>,
    /// the columns of its rows; a row with other columns violates the protocol
    pub columns: &'static [Column],
}

/// One statement for one shard.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// None: this database, in which the caller runs the statement
    pub server: Option<Oid>,
    pub role: Role,
    /// executed before the statement in the same round trip and transaction; its rows are discarded
    pub preamble: Option<Sql<'a>>,
    pub statement: Sql<'a>,
    /// the statement writes: it runs in a remote transaction that takes part in the commit, or commits by itself if it may decide alone
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

/// The part of the local transaction that a request makes up, as far as the caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestScope {
    /// like [`RequestScope::OneOfSeveral`], but the request reads and writes no documents, so it may go to any server in a SERIALIZABLE
    /// transaction
    Metadata,
    /// one of several requests that a statement sends
    OneOfSeveral,
    /// the only request of a statement; the transaction may contain other statements
    WholeStatement,
    /// the only request of the transaction: after a success only the commit follows, so the shard may commit first
    WholeTransaction,
}

impl RequestScope {
    /// True if no other request of the statement follows.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::WholeStatement | Self::WholeTransaction)
    }
}

/// A statement's text with the NUL that ends it in a message.
pub(super) fn c_string(sql: &str) -> Result<CString> {
    CString::new(sql).map_err(|_| error!(Kind::BadValue, "a statement contains NUL"))
}

/// Parameters in the format of a Bind message, their types, and the columns of the statement's rows.
#[derive(Debug)]
pub(super) struct Encoded {
    bytes: Vec<u8>,
    pub(super) types: Vec<u32>,
    pub(super) columns: Columns,
}

/// One format code for all values: binary.
const BINARY: [u8; 4] = [0, 1, 0, 1];

/// The longest message that a server accepts, in bytes.
const MAX_BYTES: usize = 1 << 30;

impl Default for Encoded {
    /// No parameters. The rows are not used, so their columns are not checked.
    fn default() -> Self {
        Self { bytes: [&BINARY[..], &[0, 0], &BINARY[..]].concat(), types: Vec::new(), columns: None }
    }
}

impl Encoded {
    /// Replaces the encoded parameters by these.
    ///
    /// # Errors
    /// `BSONObjectTooLarge` for parameters that are too long for a message.
    pub(super) fn encode(&mut self, params: &[Param<'_>], columns: Columns) -> Result<()> {
        self.columns = columns;
        let encoded = self.try_encode(params);
        encoded.ok_or_else(|| error!(Kind::BSONObjectTooLarge, "a parameter is too long for a message"))
    }

    fn try_encode(&mut self, params: &[Param<'_>]) -> Option<()> {
        self.types.clear();
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
        self.bytes.extend_from_slice(&BINARY);
        self.bytes.extend_from_slice(&u16::try_from(params.len()).ok()?.to_be_bytes());
        for param in params {
            self.types.push(type_oid(param).to_u32());
            let start = self.bytes.len();
            self.bytes.extend_from_slice(&[0xff; 4]);
            match param {
                Param::OptBytea(None) | Param::OptText(None) | Param::OptInt4(None) | Param::OptInt8(None) => continue,
                Param::Bytea(bytes) | Param::OptBytea(Some(bytes)) => self.bytes.extend_from_slice(bytes),
                Param::Text(text) | Param::OptText(Some(text)) => self.bytes.extend_from_slice(text.as_bytes()),
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
            if self.bytes.len() > MAX_BYTES {
                return None;
            }
            let length = u32::try_from(self.bytes.len() - start - 4).ok()?;
            self.bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
        }
        self.bytes.extend_from_slice(&BINARY);
        Some(())
    }

    /// The part of a Bind message that follows its names.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
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
