//! Errors of writes as elements of `writeErrors`.

use crate::pg::error::Error;
use crate::router::writes::insert::WriteError;
use docshard_core::error::Kind;
use docshard_core::error::sqlstate::{self, class};
use docshard_core::routing::protocol::documents::MAX_REPORTS;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;

/// True if one document or operation of a batch caused the error, so that others may succeed. Errors of a connection, a
/// privilege, a lock, the transaction, the server or an operator, or of a node that is no router, fail the batch.
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

/// Makes the array `writeErrors`; `fields` returns the fields of an element. Once the fields `errInfo` exceed [`MAX_REPORTS`] bytes, the
/// remaining elements have none.
pub fn write_errors(errors: &[WriteError], fields: impl Fn(&WriteError) -> Vec<(String, Value)>) -> Value {
    let mut left = MAX_REPORTS;
    let element = |failed: &WriteError| {
        let mut fields = fields(failed);
        if let Some(at) = fields.iter().position(|(name, _)| name == ERR_INFO) {
            let size = failed.error.detail.as_ref().map_or(0, String::len);
            match left.checked_sub(size) {
                Some(rest) => left = rest,
                None => {
                    left = 0;
                    fields.remove(at);
                }
            }
        }
        Value::fixed_object(fields)
    };
    Value::fixed_array(errors.iter().map(element).collect())
}

const ERR_INFO: &str = "errInfo";

/// Returns the fields of an element of `writeErrors`.
pub fn write_error(failed: &WriteError) -> Vec<(String, Value)> {
    let number = |n| Value::Number(Number::int(n));
    let mut fields = vec![
        ("index".to_owned(), number(failed.index as i64)),
        ("code".to_owned(), number(failed.error.kind.code().into())),
        ("errmsg".to_owned(), Value::String(failed.error.message.clone())),
    ];
    fields.extend(duplicate_fields(&failed.error));
    fields.extend(validation_field(&failed.error));
    fields
}

/// Returns MongoDB's field `errInfo`, the report of what a document violates of its collection's validator; None for other errors.
pub fn validation_field(error: &Error) -> Option<(String, Value)> {
    let detail = error.detail.as_deref().filter(|_| error.kind == Kind::DocumentValidationFailure)?;
    Some((ERR_INFO.to_owned(), reported(&serde_json::from_str(detail).ok()?)))
}

/// Converts a report from JSON. Values of documents are in Extended JSON; operators of filters are not, and become ordinary fields.
fn reported(json: &Json) -> Value {
    match json {
        Json::Object(fields)
            if fields.keys().any(|name| FILTER_OPERATORS.contains(&name.as_str()))
                || ext_json::from_json(json).is_err() =>
        {
            Value::fixed_object(fields.iter().map(|(name, json)| (name.clone(), reported(json))).collect())
        }
        Json::Object(fields) if ext_json::is_document(fields) => {
            Value::fixed_object(fields.iter().map(|(name, json)| (name.clone(), reported(json))).collect())
        }
        Json::Array(items) => Value::fixed_array(items.iter().map(reported).collect()),
        json => ext_json::from_json(json).unwrap_or(Value::Null),
    }
}

/// Operators that are also names of values in Extended JSON.
const FILTER_OPERATORS: [&str; 2] = ["$regex", "$type"];

/// Returns MongoDB's fields `keyPattern` and `keyValue`; none if the error is not about a duplicate key.
pub fn duplicate_fields(error: &Error) -> Vec<(String, Value)> {
    let Some(duplicate) = &error.duplicate else { return Vec::new() };
    let paths = || duplicate.fields.iter().map(|(path, _)| path.clone());
    let directions =
        duplicate.fields.iter().map(|(_, descending)| Value::Number(Number::int(if *descending { -1 } else { 1 })));
    let pattern = ("keyPattern".to_owned(), Value::fixed_object(paths().zip(directions).collect()));
    let values = duplicate.values.iter().flatten().map(ext_json::from_json).collect::<Result<Vec<_>, _>>().ok();
    let value = values
        .filter(|_| duplicate.values.is_some())
        .map(|values| ("keyValue".to_owned(), Value::fixed_object(paths().zip(values).collect())));
    std::iter::once(pattern).chain(value).collect()
}
