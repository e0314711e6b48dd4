//! Errors for duplicate keys, with MongoDB's message, which names the index and the keys.

use crate::pg::error::{DuplicateKey, Error};
use docshard_core::error::Kind;
use docshard_core::error::sqlstate::UNIQUE_VIOLATION;
use docshard_core::query::index::IndexKeys;
use docshard_core::routing::model::{Collection, Index};
use docshard_core::routing::names;
use docshard_core::values::collation::Collator;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use docshard_core::values::key::encode::decode;

/// MongoDB's error for a second document with the same `_id`.
pub fn of_id(namespace: &str, id: &Value) -> Error {
    of_index(namespace, "_id_", None, &[("_id".to_owned(), false)], Some(vec![id.clone()]))
}

/// MongoDB's error for a second document with the same keys in a unique index. `fields` are the index's fields, each with true for
/// descending. `values` are the duplicate keys, one for each field, if they are known.
fn of_index(
    namespace: &str,
    index: &str,
    collation: Option<&Collator>,
    fields: &[(String, bool)],
    values: Option<Vec<Value>>,
) -> Error {
    let mut message = format!("E11000 duplicate key error collection: {namespace} index: {}", title(index, collation));
    let (schema, table) = namespace.split_once('.').unwrap_or((namespace, ""));
    let mut duplicate = DuplicateKey {
        schema: schema.to_owned(),
        table: table.to_owned(),
        index: index.to_owned(),
        fields: fields.to_vec(),
        values: None,
    };
    if let Some(values) = values.filter(|values| values.len() == fields.len()) {
        let values: Vec<_> = values.iter().map(ext_json::to_json).collect();
        let named = fields.iter().zip(&values).map(|((path, _), value)| format!("{path}: {value}"));
        message += &format!(" dup key: {{ {} }}", named.collect::<Vec<_>>().join(", "));
        duplicate.values = Some(values);
    }
    let mut error = Error::new(Kind::DuplicateKey, message);
    error.duplicate = Some(Box::new(duplicate));
    error
}

/// Like [`of_index`], for a secondary index, with the duplicate key if it is known.
pub fn of_unique(namespace: &str, index: &Index, key: Option<&[u8]>) -> Error {
    let collation = index.keys.collation.as_deref();
    of_index(
        namespace,
        &index.name,
        collation,
        index.fields(),
        key.and_then(|key| index.keys.values_of_unique_key(key)),
    )
}

/// Like [`of_index`], for a relation that a shard names and that is not in the catalog yet.
pub fn of_unknown(namespace: &str, relation: &str) -> Error {
    of_index(namespace, relation, None, &[], None).with_hint(
        "A unique index is being built, and writes are already checked against it: see docshard.list_index_builds().",
    )
}

/// The index's name in MongoDB's message.
fn title(index: &str, collation: Option<&Collator>) -> String {
    match collation {
        None => index.to_owned(),
        Some(collator) => format!("{index} collation: {}", collator.definition()),
    }
}

/// Translates PostgreSQL's error for a violated unique index, which names a relation, into MongoDB's. Adds the collection's name to an
/// error of its validator. Other errors are unchanged.
pub fn translate(collection: &Collection, mut error: Error) -> Error {
    if error.kind == Kind::DocumentValidationFailure {
        let (database, name) = collection.namespace.split_once('.').unwrap_or((&collection.namespace, ""));
        error.validated = Some(Box::new((database.to_owned(), name.to_owned())));
        return error;
    }
    if error.sqlstate != UNIQUE_VIOLATION || error.is_ours {
        return error;
    }
    let relation = violated_relation(collection.id, &error.message);
    let translated = match collection.index_of(relation) {
        Some(index) => {
            let key = last_encoded(&error);
            of_unique(&collection.namespace, index, key.as_deref())
        }
        None if collection.described(relation).is_none() => of_unknown(&collection.namespace, relation),
        None => {
            let id = last_encoded(&error).and_then(|id| decode(&id).ok().map(|(id, _)| vec![id]));
            of_index(&collection.namespace, "_id_", None, &[("_id".to_owned(), false)], id)
        }
    };
    translated.at_place_of(&error)
}

/// Translates the error of a unique index that could not be built into MongoDB's. Other errors are unchanged.
pub fn translate_build(namespace: &str, index: &str, keys: &IndexKeys, error: Error) -> Error {
    if error.sqlstate != UNIQUE_VIOLATION {
        return error;
    }
    let values = last_encoded(&error).and_then(|key| keys.values_of_unique_key(&key));
    of_index(namespace, index, keys.collation.as_deref(), &keys.fields, values).at_place_of(&error)
}

/// True if the violated index is the primary key of the collection's table, on shard key and `_id`.
pub fn is_of_primary_key(collection: &Collection, error: &Error) -> bool {
    error.sqlstate == UNIQUE_VIOLATION
        && violated_relation(collection.id, &error.message) == names::primary_key(collection.id)
}

/// Returns the relation of the collection that a message of PostgreSQL names. The language of messages, and so the words and quotes
/// around the name, depends on the node's `lc_messages`.
fn violated_relation(collection: i32, message: &str) -> &str {
    let own = format!("c{collection}_");
    let words = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let known = words.into_iter().find(|word| word.starts_with(&own) || names::index_of(word).is_some());
    known.or_else(|| message.split('"').nth(1)).unwrap_or_default()
}

/// Reads the last encoded key in PostgreSQL's DETAIL. For the primary key, which is on shard key and `_id`, this is `_id`; a unique secondary
/// index has only one column. None if DETAIL has no keys: PostgreSQL omits them if the user may not read the columns.
pub fn last_encoded(error: &Error) -> Option<Vec<u8>> {
    // `Key (…)=(\x…, \x…) already exists.`
    let (_, keys) = error.detail.as_deref()?.rsplit_once(")=(")?;
    let (keys, _) = keys.split_once(')')?;
    decode_hex(keys.rsplit(", ").next()?.strip_prefix("\\x")?)
}

fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test]
    fn the_violated_index_is_found_in_every_language() {
        for (message, expected) in [
            ("duplicate key value violates unique constraint \"c12_pkey\"", "c12_pkey"),
            ("doppelter Schlüsselwert verletzt Unique-Constraint »c12_pkey«", "c12_pkey"),
            ("la valeur d'une clé dupliquée rompt la contrainte unique « i7_unique »", "i7_unique"),
            ("重複したキー値は一意性制約\"c12_id\"違反となります", "c12_id"),
            ("duplicate key value violates unique constraint \"c1_pkey\"", "c1_pkey"),
            ("duplicate key value violates unique constraint \"mine\"", "mine"),
        ] {
            assert_eq!(violated_relation(12, message), expected, "{message}");
        }
    }
}
