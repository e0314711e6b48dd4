//! Converts the parameters of statements to datums.

use docshard_core::sql::param::Param;
use pgrx::{IntoDatum, pg_sys};

/// The type of a parameter's datum.
pub fn type_oid(param: &Param<'_>) -> pg_sys::Oid {
    match param {
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

/// Makes a parameter's datum in the current memory context; None for null.
pub fn datum(param: &Param<'_>) -> Option<pg_sys::Datum> {
    match *param {
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
