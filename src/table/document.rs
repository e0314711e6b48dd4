//! Converts values of columns to values of documents, and rows to documents.

use super::column::{Column, DAY_MS, EPOCH_MS};
use crate::pg::error::Result;
use crate::pg::fdw::value::SqlValue;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::specification::{self, Role};
use docshard_core::values::document::number::{Decimal, Number};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, normalise, raw};
use serde_json::{Map, Value as Json};

/// Converts a column's value to a document's value in Extended JSON. Dates lose their microseconds.
pub fn json(column: &Column, value: &SqlValue) -> Result<Json> {
    Ok(match value {
        SqlValue::Bool(value) => (*value).into(),
        SqlValue::Int(value) => (*value).into(),
        SqlValue::Float(value) => ext_json::to_json(&Value::Number(Number::Double(*value))),
        SqlValue::Numeric(text) => match text.parse::<i64>() {
            Ok(integer) => integer.into(),
            Err(_) => ext_json::to_json(&Value::Number(Number::Decimal(Decimal::parse(text)?))),
        },
        SqlValue::Text(text) if column.is_object_id => {
            let is_hex = text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_hex {
                bail!(
                    Kind::BadValue,
                    "the column \"{}\" holds ObjectIds: 24 hexadecimal digits, not \"{text}\"",
                    column.name
                );
            }
            serde_json::json!({"$oid": text.to_ascii_lowercase()})
        }
        SqlValue::Text(text) => text.clone().into(),
        SqlValue::Date(i32::MIN | i32::MAX) | SqlValue::Timestamp(i64::MIN | i64::MAX) => {
            bail!(Kind::BadValue, "the column \"{}\" has an infinite date, which a document cannot have", column.name);
        }
        SqlValue::Date(days) => ext_json::to_json(&Value::Date(i64::from(*days) * DAY_MS + EPOCH_MS)),
        SqlValue::Timestamp(micros) => ext_json::to_json(&Value::Date(micros.div_euclid(1000) + EPOCH_MS)),
        SqlValue::Uuid(bytes) => ext_json::to_json(&Value::Binary(4, bytes.to_vec())),
        SqlValue::Bytes(bytes) if column.is_object_id => {
            let id: [u8; 12] = bytes.as_slice().try_into().map_err(|_| {
                error!(Kind::BadValue, "the column \"{}\" holds ObjectIds: 12 bytes, not {}", column.name, bytes.len())
            })?;
            ext_json::to_json(&Value::ObjectId(id))
        }
        SqlValue::Bytes(bytes) => ext_json::to_json(&Value::Binary(0, bytes.clone())),
        SqlValue::Jsonb(bytes) => {
            normalise::check_given(bytes)?;
            ext_json::to_json(&Value::from_raw(raw::root(bytes)))
        }
        SqlValue::Json(text) => specification::read(text, Role::Plain)?.0,
        SqlValue::Array(items) => {
            let one = |item: &Option<SqlValue>| item.as_ref().map_or(Ok(Json::Null), |item| json(column, item));
            Json::Array(items.iter().map(one).collect::<Result<_>>()?)
        }
        // Only EXPLAIN has unknown values. It shows them by their numbers.
        SqlValue::Unknown(number) => format!("${number}").into(),
        SqlValue::Quotient(..) => bail!(Kind::InternalError, "a value is not known"),
    })
}

/// What a NULL in a column does to the column's field in the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nulls {
    /// nothing: the field stays as it is in the column of the whole document
    Ignored,
    /// a missing field becomes null; otherwise as `Ignored`
    Stored,
    /// the field is removed
    Removed,
}

/// The document of a row: the value of the column that is the whole document, if there is one, with the values of the other
/// columns set in it. If one column's path is a prefix of another's, the column with the longer path wins.
pub fn of_row(columns: &[(&Column, Option<&SqlValue>)], nulls: Nulls) -> Result<Map<String, Json>> {
    let mut document = Map::new();
    let (whole, mut others): (Vec<_>, Vec<_>) = columns.iter().copied().partition(|(column, _)| column.path.is_empty());
    others.sort_by_key(|(column, _)| column.path.matches('.').count());
    for (column, value) in whole {
        if let Some(value) = value {
            match json(column, value)? {
                Json::Object(fields) if ext_json::is_document(&fields) => document = fields,
                _ => bail!(Kind::TypeMismatch, "the column \"{}\" must be an object", column.name),
            }
        }
    }
    for (column, value) in others {
        match value {
            Some(value) => set(&mut document, column, json(column, value)?)?,
            None if nulls == Nulls::Removed => unset(&mut document, &column.path),
            None if nulls == Nulls::Stored && !has(&document, &column.path) => set(&mut document, column, Json::Null)?,
            None => {}
        }
    }
    Ok(document)
}

/// Takes the value at a path out of a document; None if there is none.
pub fn take(document: Map<String, Json>, path: &str) -> Option<Json> {
    path.split('.').try_fold(Json::Object(document), |value, step| match value {
        Json::Object(mut fields) => fields.remove(step),
        _ => None,
    })
}

/// Removes the value at a path. Does nothing if there is anything else than objects on the path.
fn unset(document: &mut Map<String, Json>, path: &str) {
    let mut fields = document;
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        if steps.peek().is_none() {
            fields.remove(step);
            return;
        }
        match fields.get_mut(step) {
            Some(Json::Object(inner)) if ext_json::is_document(inner) => fields = inner,
            _ => return,
        }
    }
}

fn has(document: &Map<String, Json>, path: &str) -> bool {
    let mut fields = document;
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        match (fields.get(step), steps.peek()) {
            (None, _) => return false,
            (Some(Json::Object(inner)), Some(_)) => fields = inner,
            (Some(_), _) => return true,
        }
    }
    true
}

/// Sets the value at a column's path. Missing objects on the path are created.
///
/// # Errors
/// `PathNotViable` if there is another value than an object on the path.
pub fn set(document: &mut Map<String, Json>, column: &Column, value: Json) -> Result<()> {
    let mut fields = document;
    let mut steps = column.path.split('.').peekable();
    while let Some(step) = steps.next() {
        if steps.peek().is_none() {
            fields.insert(step.to_owned(), value);
            return Ok(());
        }
        let inner = fields.entry(step.to_owned()).or_insert_with(|| Json::Object(Map::new()));
        match inner {
            Json::Object(inner) if ext_json::is_document(inner) => fields = inner,
            _ => bail!(Kind::PathNotViable, "cannot set {} in a document in which {step} is no object", column.path),
        }
    }
    Ok(())
}
