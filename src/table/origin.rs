//! The origin of a row that is updated or deleted: which document it is, and what the statement has read of it.
//!
//! It is the document with the fields that the scan has asked for, and the names of those that matter. It does not depend on the types of columns, nor on
//! whether values fit them, and it is data in the plan's rows: nothing is remembered between the scan and the write.

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
    /// those that identify a document: `_id`, and the fields of the shard key
    key: Vec<String>,
    /// those that the statement reads; the empty one is the whole document
    read: Vec<String>,
}

/// The origins of a scan's rows.
pub struct Origin {
    paths: Paths,
    /// the paths as text, after its length
    header: Vec<u8>,
}

impl Origin {
    /// The part that all origins of a scan have, if the statement reads these columns.
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

    /// The fields that identify a document.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.paths.key.iter().map(|path| path.split('.').next().unwrap_or_default())
    }

    /// The origin of a row of this document.
    pub fn of_document(&self, document: &[u8]) -> Vec<u8> {
        [&self.header, document].concat()
    }
}

fn malformed() -> docshard_core::error::Error {
    error!(Kind::InternalError, "a row of a foreign table has a malformed origin")
}

/// Filters of the document that a row was.
pub struct Found {
    /// the document with this key
    pub key: Map<String, Json>,
    /// what the statement has read of it is unchanged
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
            // The filter of a key is exact, but for null and a missing field.
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

/// The condition that a path has the same value as in this document.
fn is_as_in(document: RawObject<'_>, path: &str) -> Json {
    match at(document, path) {
        Ok(Some(value)) => equal(&format!("${path}"), value),
        Ok(None) => json!({"$eq": [{"$type": format!("${path}")}, "missing"]}),
        Err((way, array)) => equal(&format!("${way}"), array),
    }
}

/// The condition that an expression has this value, of this type.
fn equal(expression: &str, value: RawValue<'_>) -> Json {
    json!({"$eq": [expression, {"$literal": json_of(value)}]})
}

fn json_of(value: RawValue<'_>) -> Json {
    ext_json::to_json(&Value::from_raw(value))
}

/// The value at a dotted path, through objects only.
/// Errors: the path and the value of an array on the way, in which a filter's path has several values.
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
