//! Errors as answers.

use super::reply::{Node, Reply, integer};
use crate::operation::errors::{code, is_ours};
use crate::pg::error::Error;
use crate::pg::{server, transaction::snapshot};
use crate::router::insert::WriteError;
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

/// The answer `{"ok": 0, "code": …, "codeName": …, "errmsg": …}`.
pub fn shaped(error: &Error) -> Reply {
    let (code, name) = code(error);
    let mut reply = Reply::failed()
        .with("errmsg", Value::String(error.message.clone()))
        .with("code", integer(code))
        .with("codeName", Value::String(name.into_owned()));
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

/// The field `writeErrors`.
pub fn write_errors(errors: &[WriteError]) -> Node {
    let shown = errors.iter().map(|failed| {
        let (code, name) = code(&failed.error);
        let mut fields = vec![
            ("index".to_owned(), integer(failed.index as i64)),
            ("code".to_owned(), integer(code)),
            ("codeName".to_owned(), Value::String(name.into_owned())),
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
