//! Parameters of SQL statements, for SPI and libpq.

use pgrx::{IntoDatum, pg_sys};

#[derive(Clone, Copy, Debug)]
pub enum Param<'a> {
    Bytea(&'a [u8]),
    OptBytea(Option<&'a [u8]>),
    ByteaArray(&'a [&'a [u8]]),
    OwnedByteaArray(&'a [Vec<u8>]),
    Int4(i32),
    OptInt4(Option<i32>),
    Int4Array(&'a [i32]),
    Int8(i64),
    OptInt8(Option<i64>),
    Int8Array(&'a [i64]),
    Text(&'a str),
    OptText(Option<&'a str>),
    TextArray(&'a [&'a str]),
    OwnedTextArray(&'a [String]),
    Bool(bool),
}

impl Param<'_> {
    pub fn type_oid(&self) -> pg_sys::Oid {
        match self {
            Param::Text(_) | Param::OptText(_) => pg_sys::TEXTOID,
            Param::Bytea(_) | Param::OptBytea(_) => pg_sys::BYTEAOID,
            Param::ByteaArray(_) | Param::OwnedByteaArray(_) => pg_sys::BYTEAARRAYOID,
            Param::Int4(_) | Param::OptInt4(_) => pg_sys::INT4OID,
            Param::Int4Array(_) => pg_sys::INT4ARRAYOID,
            Param::Int8(_) | Param::OptInt8(_) => pg_sys::INT8OID,
            Param::Int8Array(_) => pg_sys::INT8ARRAYOID,
            Param::TextArray(_) | Param::OwnedTextArray(_) => pg_sys::TEXTARRAYOID,
            Param::Bool(_) => pg_sys::BOOLOID,
        }
    }

    /// A datum in the current memory context; None for null.
    pub fn datum(&self) -> Option<pg_sys::Datum> {
        match *self {
            Param::Bytea(bytes) => bytes.into_datum(),
            Param::OptBytea(bytes) => bytes.and_then(IntoDatum::into_datum),
            Param::ByteaArray(items) => items.to_vec().into_datum(),
            Param::OwnedByteaArray(items) => items.iter().map(Vec::as_slice).collect::<Vec<_>>().into_datum(),
            Param::Int4(n) => n.into_datum(),
            Param::OptInt4(n) => n.and_then(IntoDatum::into_datum),
            Param::Int4Array(items) => items.to_vec().into_datum(),
            Param::Int8(n) => n.into_datum(),
            Param::OptInt8(n) => n.and_then(IntoDatum::into_datum),
            Param::Int8Array(items) => items.to_vec().into_datum(),
            Param::Text(text) => text.into_datum(),
            Param::OptText(text) => text.and_then(IntoDatum::into_datum),
            Param::TextArray(items) => items.to_vec().into_datum(),
            Param::OwnedTextArray(items) => items.iter().map(String::as_str).collect::<Vec<_>>().into_datum(),
            Param::Bool(b) => b.into_datum(),
        }
    }
}
