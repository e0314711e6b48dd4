//! Duplicate keys, in MongoDB's words: which index, which keys.

use super::model::Collection;
use crate::pg::error::{DuplicateKey, Error};
use docshard_core::collation::Collator;
use docshard_core::document::ext_json;
use docshard_core::document::number::Number;
use docshard_core::document::value::Value;
use docshard_core::error::Kind;
use docshard_core::index::IndexKeys;
use docshard_core::key::encode::decode;

/// SQLSTATE `unique_violation`.
const UNIQUE_VIOLATION: &[u8; 5] = b"23505";

/// MongoDB's answer to a second document of the same `_id`.
pub fn of_id(namespace: &str, id: &Value) -> Error {
    of_index(namespace, "_id_", &[("_id".to_owned(), false)], Some(vec![id.clone()]))
}

/// MongoDB's answer to a second document of the same keys in a unique index. `fields` are the index's, each with true for
/// descending; `values` are the keys, one a field, where they are known.
pub fn of_index(namespace: &str, index: &str, fields: &[(String, bool)], values: Option<Vec<Value>>) -> Error {
    let mut message = format!("E11000 duplicate key error collection: {namespace} index: {index}");
    let mut duplicate = DuplicateKey { pattern: Vec::with_capacity(fields.len()), value: None };
    for (path, descending) in fields {
        let direction = Value::Number(Number::Int(if *descending { -1 } else { 1 }));
        duplicate.pattern.push((path.clone(), direction));
    }
    if let Some(values) = values.filter(|values| values.len() == fields.len()) {
        let named =
            fields.iter().zip(&values).map(|((path, _), value)| format!("{path}: {}", ext_json::to_json(value)));
        message += &format!(" dup key: {{ {} }}", named.collect::<Vec<_>>().join(", "));
        duplicate.value = Some(fields.iter().map(|(path, _)| path.clone()).zip(values).collect());
    }
    Error { duplicate: Some(Box::new(duplicate)), ..Error::new(Kind::DuplicateKey, message) }
}

/// What MongoDB calls an index by in this error.
pub fn title(index: &str, collation: Option<&Collator>) -> String {
    match collation {
        None => index.to_owned(),
        Some(collator) => format!("{index} collation: {}", collator.definition()),
    }
}

/// A violated unique index, which PostgreSQL names by its relation, in MongoDB's words; any other error as it is.
pub fn translate(collection: &Collection, error: Error) -> Error {
    if &error.sqlstate != UNIQUE_VIOLATION || error.message.starts_with("E11000") {
        return error;
    }
    let relation = error.message.split('"').nth(1).unwrap_or_default();
    let translated = match collection.index_of(relation) {
        Some(index) => {
            let collation = index.collation();
            let title = title(&index.name, collation.map(AsRef::as_ref));
            of_index(&collection.namespace, &title, index.fields(), keys_of(&error, collation.is_some()))
        }
        None => {
            let id = keys_of(&error, false).and_then(|mut keys| keys.pop()).map(|id| vec![id]);
            of_index(&collection.namespace, "_id_", &[("_id".to_owned(), false)], id)
        }
    };
    Error { context: error.context, ..translated }
}

/// A unique index that could not be built, in MongoDB's words; any other error as it is.
pub fn translate_build(namespace: &str, index: &str, keys: &IndexKeys, error: Error) -> Error {
    if &error.sqlstate != UNIQUE_VIOLATION {
        return error;
    }
    let (title, collated) = (title(index, keys.collation.as_deref()), keys.collation.is_some());
    let values = keys_of(&error, collated);
    Error { context: error.context.clone(), ..of_index(namespace, &title, &keys.fields, values) }
}

/// True if the violated index is the primary key of the collection's table, that of shard key and `_id`.
pub fn is_of_primary_key(collection: &Collection, error: &Error) -> bool {
    &error.sqlstate == UNIQUE_VIOLATION && error.message.contains(&format!("\"c{}_pkey\"", collection.id))
}

/// The last of the encoded keys that PostgreSQL's DETAIL shows; in the primary key it is that of `_id`.
pub fn last_encoded(error: &Error) -> Option<Vec<u8>> {
    encoded_keys(error)?.pop()
}

/// The keys that PostgreSQL's DETAIL tells of. It tells nothing to who may not read them. Sort keys, which stand for
/// strings in an index with a collation, cannot be read; MongoDB shows them so, too.
fn keys_of(error: &Error, collated: bool) -> Option<Vec<Value>> {
    let readable =
        |key: &[u8]| decode(key).ok().map(|(value, _)| value).filter(|value| !(collated && value.has_strings()));
    let hexadecimal = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let keys = encoded_keys(error)?;
    keys.iter()
        .map(|key| match readable(key) {
            Some(value) => Some(value),
            None => collated.then(|| Value::String(format!("0x{}", hexadecimal(key)))),
        })
        .collect()
}

/// The encoded keys of `Key (…)=(\x…, \x…) already exists.`
fn encoded_keys(error: &Error) -> Option<Vec<Vec<u8>>> {
    let (_, keys) = error.detail.as_deref()?.rsplit_once(")=(")?;
    let (keys, _) = keys.split_once(')')?;
    keys.split(", ").map(|key| decode_hex(key.strip_prefix("\\x")?)).collect()
}

fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
