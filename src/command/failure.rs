//! Errors as answers.

use super::reply::{Node, Reply, integer};
use crate::pg::error::Error;
use crate::pg::{server, transaction::snapshot};
use docshard_core::error::Kind;
use docshard_core::values::document::value::Value;

/// True for errors that must not be made an answer of, as the transaction must not go on, or not commit:
///
/// - the statement was cancelled (57014: by a user, by `statement_timeout`) or the server ends it (class 57P);
/// - a serialization failure or a deadlock (class 40) in a transaction block, or in a transaction with one snapshot:
///   only the whole transaction can be run again, by the client. Alone, the command is the transaction, and answers
///   `WriteConflict`, for the client to run it again;
/// - the server's own state is in doubt (class XX, but for docshard's internal errors).
pub fn must_end_transaction(error: &Error) -> bool {
    match &error.sqlstate {
        b"57014" => !is_ours(error),
        [b'5', b'7', b'P', ..] => true,
        [b'4', b'0', ..] => server::in_transaction_block() || !snapshot::per_statement(),
        b"XX001" | b"XX002" => true,
        _ => false,
    }
}

/// True if the error has MongoDB's code.
fn is_ours(error: &Error) -> bool {
    mongodb(error).is_some()
}

/// MongoDB's code and name, which docshard's errors say in their detail.
fn mongodb(error: &Error) -> Option<(i64, &str)> {
    let rest = error.detail.as_deref()?.strip_prefix("MongoDB error ")?;
    let (code, rest) = rest.split_once(" (")?;
    Some((code.parse().ok()?, rest.strip_suffix(").")?))
}

/// What MongoDB would call an error of PostgreSQL's.
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

/// MongoDB's code and name of an error.
pub fn code(error: &Error) -> (i64, &str) {
    mongodb(error).unwrap_or_else(|| {
        let kind = kind_of(&error.sqlstate);
        (kind.code().into(), kind.name())
    })
}

/// True if a document or an operation of a batch is to blame, so that the others may do better. Else the whole command
/// fails: a connection, a privilege, a lock, the transaction, the server's resources, a node that is no router.
pub fn is_of_one_operation(error: &Error) -> bool {
    let state = &error.sqlstate;
    !matches!(&state[..2], b"08" | b"25" | b"40" | b"53" | b"57" | b"58" | b"XX")
        && state != b"42501"
        && state != b"55P03"
        && code(error).0 != i64::from(Kind::IllegalOperation.code())
}

/// The answer `{"ok": 0, "code": …, "codeName": …, "errmsg": …}`.
pub fn shaped(error: &Error) -> Reply {
    let (code, name) = code(error);
    let mut reply = Reply::failed()
        .with("errmsg", Value::String(error.message.clone()))
        .with("code", integer(code))
        .with("codeName", Value::String(name.to_owned()));
    for (name, value) in error.duplicate_fields() {
        reply = reply.with(name, value);
    }
    if &error.sqlstate[..2] == b"40" {
        let label = Value::String("TransientTransactionError".to_owned());
        reply = reply.with("errorLabels", Value::Array(vec![label]));
    }
    if let Some(hint) = &error.hint {
        reply = reply.with("hint", Value::String(hint.clone()));
    }
    reply
}

/// An operation of a batch that failed.
#[derive(Debug)]
pub struct WriteError {
    /// its position in the batch
    pub index: usize,
    /// why
    pub error: Error,
}

/// The field `writeErrors`.
pub fn write_errors(errors: &[WriteError]) -> Node {
    let shown = errors.iter().map(|failed| {
        let (code, name) = code(&failed.error);
        let mut fields = vec![
            ("index".to_owned(), integer(failed.index as i64)),
            ("code".to_owned(), integer(code)),
            ("codeName".to_owned(), Value::String(name.to_owned())),
            ("errmsg".to_owned(), Value::String(failed.error.message.clone())),
        ];
        fields.extend(failed.error.duplicate_fields());
        if let Some(hint) = &failed.error.hint {
            fields.push(("hint".to_owned(), Value::String(hint.clone())));
        }
        Value::Object(fields)
    });
    Node::Value(Value::Array(shown.collect()))
}
