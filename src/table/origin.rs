//! The origin of a row that is updated or deleted: it identifies the row's document, and has the values that the statement has read.
//!
//! It consists of the paths that identify the document, the paths that the statement reads, and the document with the fields that the scan
//! has read. It does not depend on the columns' types, nor on whether values fit them. It is a value in the plan's rows, so nothing needs
//! to be remembered between the scan and the write.

use super::column::{Column, Layout};
use crate::catalog::cache;
use crate::pg::error::Result;
use docshard_core::error::{Kind, error};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::raw::{self, RawObject, RawValue};
use docshard_core::values::document::value::Value;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

/// The paths of a scan's rows.
#[derive(Serialize, Deserialize)]
struct Paths {
    /// the paths that identify a document: `_id`, and the fields of the shard key
    key: Vec<String>,
    /// the paths that the statement reads; the empty path is the whole document
    read: Vec<String>,
}

/// Makes the origins of a scan's rows.
pub struct Origin {
    paths: Paths,
    /// the beginning of each origin: the length of the paths' text, and the text
    header: Vec<u8>,
}

impl Origin {
    /// For a scan whose statement reads these columns.
    pub fn of(layout: &Layout, columns: &[Column]) -> Result<Self> {
        let mut key = vec!["_id".to_owned()];
        if let Some(collection) = cache::find(&layout.options.namespace)? {
            key.extend(collection.key.fields.iter().map(|(path, _)| path.clone()).filter(|path| path != "_id"));
        }
        let mut read: Vec<String> = columns.iter().map(|column| column.path.clone()).collect();
        read.sort_unstable();
        read.dedup();
        let paths = Paths { key, read };
        let text = serde_json::to_vec(&paths).map_err(|_| malformed())?;
        let length = u32::try_from(text.len()).map_err(|_| malformed())?;
        Ok(Self { paths, header: [&length.to_le_bytes(), text.as_slice()].concat() })
    }

    /// The first fields of the paths that identify a document.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.paths.key.iter().map(|path| path.split('.').next().unwrap_or_default())
    }

    /// The origin of the row of this document.
    pub fn of_document(&self, document: &[u8]) -> Vec<u8> {
        [&self.header, document].concat()
    }
}

fn malformed() -> docshard_core::error::Error {
    error!(Kind::InternalError, "a row of a foreign table has a malformed origin")
}

/// The conditions by which a write finds a row's document.
pub struct Found {
    /// the filter for the document with the row's key
    pub key: Map<String, Json>,
    /// expressions that are true if the values which the statement has read are unchanged
    pub unchanged: Vec<Json>,
}

impl Found {
    /// Reads an origin.
    pub fn of(origin: &[u8]) -> Result<Self> {
        let (length, rest) = origin.split_first_chunk::<4>().ok_or_else(malformed)?;
        let (text, bytes) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(malformed)?;
        let paths: Paths = serde_json::from_slice(text).map_err(|_| malformed())?;
        let document = raw::document(bytes).ok_or_else(malformed)?;
        let mut key = Map::new();
        let mut identified = Vec::new();
        for path in &paths.key {
            let value = at(document, path);
            // An equality in the filter proves that the value is unchanged, so no other condition is needed. This does not hold
            // for null, which also finds a missing field.
            if !matches!(value, Ok(None | Some(RawValue::Null)) | Err(_)) {
                identified.push(path);
            }
            let value = value.ok().flatten().map_or(Json::Null, json_of);
            key.insert(path.clone(), json!({"$eq": value}));
        }
        let unchanged = match paths.read.first() {
            Some(first) if first.is_empty() => vec![equal("$$ROOT", RawValue::Object(document))],
            _ => {
                let others = paths.read.iter().filter(|path| !identified.contains(path));
                others.map(|path| is_as_in(document, path)).collect()
            }
        };
        Ok(Self { key, unchanged })
    }
}

/// The expression that is true if a path has the same value as in this document.
fn is_as_in(document: RawObject<'_>, path: &str) -> Json {
    match at(document, path) {
        Ok(Some(value)) => equal(&format!("${path}"), value),
        Ok(None) => json!({"$eq": [{"$type": format!("${path}")}, "missing"]}),
        Err((way, array)) => equal(&format!("${way}"), array),
    }
}

/// The expression that is true if `expression` equals this value.
fn equal(expression: &str, value: RawValue<'_>) -> Json {
    json!({"$eq": [expression, {"$literal": json_of(value)}]})
}

fn json_of(value: RawValue<'_>) -> Json {
    ext_json::to_json(&Value::from_raw(value))
}

/// The value at a dotted path; None if it is missing.
/// Errors: the path and value of an array on the path. Other values may be found in its elements, so the caller compares the
/// whole array.
fn at<'d, 'p>(
    document: RawObject<'d>,
    path: &'p str,
) -> std::result::Result<Option<RawValue<'d>>, (&'p str, RawValue<'d>)> {
    let mut object = document;
    let mut end = 0;
    loop {
        let rest = &path[end..];
        let (step, is_last) = rest.split_once('.').map_or((rest, true), |(step, _)| (step, false));
        end += step.len();
        match object.get(step) {
            found if is_last => return Ok(found),
            Some(RawValue::Object(inner)) => object = inner,
            Some(array @ RawValue::Array(_)) => return Err((&path[..end], array)),
            _ => return Ok(None),
        }
        end += 1;
    }
}
