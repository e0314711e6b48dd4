//! Errors of writes as elements of `writeErrors`.

use crate::pg::error::Error;
use crate::router::writes::insert::WriteError;
use docshard_core::error::Kind;
use docshard_core::error::sqlstate::{self, class};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;

/// True if one document or operation of a batch caused the error, so that others may succeed. Errors of a connection, a
/// privilege, a lock, the transaction, the server's resources, or of a node that is no router fail the batch.
pub fn is_of_one_operation(error: &Error) -> bool {
    let of_all = [
        class::CONNECTION,
        class::TRANSACTION_STATE,
        class::ROLLBACK,
        class::RESOURCES,
        class::INTERVENTION,
        class::SYSTEM,
        class::INTERNAL,
    ];
    !of_all.iter().any(|class| error.is_of_class(class))
        && error.sqlstate != sqlstate::INSUFFICIENT_PRIVILEGE
        && error.sqlstate != sqlstate::LOCK_NOT_AVAILABLE
        && error.kind != Kind::IllegalOperation
}

/// Returns the fields of an element of `writeErrors`.
pub fn write_error(failed: &WriteError) -> Vec<(String, Value)> {
    let number = |n| Value::Number(Number::Int(n));
    let mut fields = vec![
        ("index".to_owned(), number(failed.index as i64)),
        ("code".to_owned(), number(failed.error.kind.code().into())),
        ("errmsg".to_owned(), Value::String(failed.error.message.clone())),
    ];
    fields.extend(duplicate_fields(&failed.error));
    fields
}

/// MongoDB's fields `keyPattern` and `keyValue`.
pub fn duplicate_fields(error: &Error) -> Vec<(String, Value)> {
    let Some(duplicate) = &error.duplicate else { return Vec::new() };
    let paths = || duplicate.fields.iter().map(|(path, _)| path.clone());
    let directions =
        duplicate.fields.iter().map(|(_, descending)| Value::Number(Number::Int(if *descending { -1 } else { 1 })));
    let pattern = ("keyPattern".to_owned(), Value::fixed_object(paths().zip(directions).collect()));
    let values = duplicate.values.iter().flatten().map(ext_json::from_json).collect::<Result<Vec<_>, _>>().ok();
    let value = values
        .filter(|_| duplicate.values.is_some())
        .map(|values| ("keyValue".to_owned(), Value::fixed_object(paths().zip(values).collect())));
    std::iter::once(pattern).chain(value).collect()
}
