//! Translates errors of operations into MongoDB's codes and names.

use crate::pg::error::Error;
use crate::router::insert::WriteError;
use docshard_core::error::Kind;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use std::borrow::Cow;

/// Returns MongoDB's code and name, which are in the DETAIL of docshard's errors.
fn mongodb(error: &Error) -> Option<(i64, Cow<'_, str>)> {
    let rest = error.detail.as_deref()?.strip_prefix("MongoDB error ")?;
    let (code, rest) = rest.split_once(" (")?;
    Some((code.parse().ok()?, rest.strip_suffix(").")?.into()))
}

/// True if docshard raised the error, and not PostgreSQL.
pub fn is_ours(error: &Error) -> bool {
    mongodb(error).is_some()
}

/// Returns MongoDB's equivalent of a PostgreSQL error.
fn kind_of(sqlstate: &[u8; 5]) -> Kind {
    match sqlstate {
        b"23505" => Kind::DuplicateKey,
        b"42501" => Kind::Unauthorized,
        b"55P03" => Kind::LockTimeout,
        b"25006" => Kind::NotWritablePrimary,
        b"0A000" => Kind::NotImplemented,
        b"54001" => Kind::DocumentTooDeep,
        b"XX000" => Kind::InternalError,
        [b'0', b'8', ..] => Kind::HostUnreachable,
        [b'4', b'0', ..] => Kind::WriteConflict,
        [b'5', b'3', ..] => Kind::ExceededMemoryLimit,
        _ => Kind::UnknownError,
    }
}

pub fn code(error: &Error) -> (i64, Cow<'_, str>) {
    mongodb(error).unwrap_or_else(|| {
        let kind = kind_of(&error.sqlstate);
        (kind.code().into(), kind.name())
    })
}

/// True if one document or operation of a batch caused the error, so that others may succeed. Errors of a connection, a
/// privilege, a lock, the transaction, the server's resources, or of a node that is no router fail the batch.
pub fn is_of_one_operation(error: &Error) -> bool {
    let state = &error.sqlstate;
    !matches!(&state[..2], b"08" | b"25" | b"40" | b"53" | b"57" | b"58" | b"XX")
        && state != b"42501"
        && state != b"55P03"
        && code(error).0 != i64::from(Kind::IllegalOperation.code())
}

/// Returns the fields of an element of `writeErrors`.
pub fn write_error(failed: &WriteError) -> Vec<(String, Value)> {
    let number = |n| Value::Number(Number::Int(n));
    let mut fields = vec![
        ("index".to_owned(), number(failed.index as i64)),
        ("code".to_owned(), number(code(&failed.error).0)),
        ("errmsg".to_owned(), Value::String(failed.error.message.clone())),
    ];
    fields.extend(failed.error.duplicate_fields());
    fields
}
