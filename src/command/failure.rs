//! Turns errors into MongoDB's answers.

use super::reply::{Reply, ReplyNode, integer};
use crate::operation::errors::{self, duplicate_fields, validation_field, write_error};
use crate::pg::error::Error;
use crate::pg::{server, transaction::snapshot};
use crate::router::writes::insert::WriteError;
use docshard_core::error::sqlstate::{self, class};
use docshard_core::values::document::value::Value;

/// True for errors that must be raised, because they must end the transaction:
///
/// * The statement was cancelled (57014), or the server shuts the session down (57P).
/// * A serialization failure or deadlock (class 40) in a transaction block, or with one snapshot for the transaction: only the
///   client can repeat the whole transaction. Otherwise the command is the whole transaction and returns `WriteConflict`.
/// * PostgreSQL's data or indexes are corrupted (XX001, XX002).
pub fn must_end_transaction(error: &Error) -> bool {
    match error.sqlstate {
        sqlstate::QUERY_CANCELED => !error.is_ours,
        sqlstate::DATA_CORRUPTED | sqlstate::INDEX_CORRUPTED => true,
        _ if error.is_of_class(class::SHUTDOWN) => true,
        _ if error.is_of_class(class::ROLLBACK) => server::in_transaction_block() || !snapshot::per_statement(),
        _ => false,
    }
}

/// Returns the answer `{"ok": 0, "errmsg": …, "code": …, "codeName": …}`, with further fields for some errors.
pub fn shaped(error: &Error) -> Reply {
    let mut reply = Reply::failed()
        .with("errmsg", Value::String(error.message.clone()))
        .with("code", integer(error.kind.code().into()))
        .with("codeName", Value::String(error.kind.name().into_owned()));
    for (name, value) in duplicate_fields(error).into_iter().chain(validation_field(error)) {
        reply = reply.with(name, value);
    }
    if error.is_of_class(class::ROLLBACK) {
        let label = Value::String("TransientTransactionError".to_owned());
        reply = reply.with("errorLabels", Value::fixed_array(vec![label]));
    }
    if let Some(hint) = &error.hint {
        reply = reply.with("hint", Value::String(hint.clone()));
    }
    reply
}

pub fn write_errors(errors: &[WriteError]) -> ReplyNode {
    ReplyNode::Value(errors::write_errors(errors, write_error_fields))
}

/// The fields of an element of `writeErrors`.
pub fn write_error_fields(failed: &WriteError) -> Vec<(String, Value)> {
    let mut fields = write_error(failed);
    fields.push(("codeName".to_owned(), Value::String(failed.error.kind.name().into_owned())));
    fields.extend(failed.error.hint.clone().map(|hint| ("hint".to_owned(), Value::String(hint))));
    fields
}
