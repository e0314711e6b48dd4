//! Inspects a collection's table on this shard and all documents in it: whether each is valid, is stored under its own keys, and
//! belongs to this shard.
//!
//! The executor reads the table row by row, so memory does not grow with the table, and the inspection can be
//! cancelled.

use super::placement::{Placement, check_read};
use super::recipient_load::read_key;
use super::table_shape;
use crate::pg::error::Result;
use crate::pg::spi;
use docshard_core::routing::names;
use docshard_core::routing::protocol::documents::InspectDocuments;
use docshard_core::values::document::element::Element;
use docshard_core::values::document::ext_json::to_json;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{normalise, raw};
use docshard_core::values::key::encode::{decode, encode};
use docshard_core::values::key::{KeyPattern, KeyRange, KeyRanges};
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::fmt::Write;

struct Problem {
    name: &'static str,
    details: String,
}

/// Checks the version in the statement's snapshot, and reads every document that this snapshot shows. Returns the
/// number of documents, the number of problems of documents and of the table, and the first `most` problems.
pub fn inspect(call: &InspectDocuments<'_>) -> Result<Json> {
    let &InspectDocuments { collection, token, version, ref key, ref owned, most } = call;
    let (key, owned, most) = (&read_key(key)?, &ranges(owned), usize::try_from(most).unwrap_or(0));
    check_read(collection, Placement { token, version })?;
    let damages = table_shape::check(collection)?;
    let sql = format!("SELECT t.skey, t.id, t.doc::pg_catalog.jsonb FROM {} t", names::table(collection));
    let mut rows = spi::cursor::Cursor::open(&sql, &[])?;
    let (mut documents, mut problems, mut found) = (0_i64, 0_i64, Vec::new());
    for (problem, details) in damages {
        problems += 1;
        if found.len() < most {
            found.push(json!({"problem": problem, "details": details}));
        }
    }
    while let Some(row) = rows.next_row()? {
        let column = |column| row.get(column).unwrap_or_default();
        let (skey, id, doc) = (column(0), column(1), column(2));
        documents += 1;
        let Some(problem) = problem(skey, id, doc, key, owned) else { continue };
        problems += 1;
        if found.len() < most {
            found.push(json!({
                "problem": problem.name,
                "_id": shown_id(id, doc),
                "details": problem.details,
                "skey": hex(skey),
                "id": hex(id),
            }));
        }
    }
    Ok(json!({"documents": documents, "problems": problems, "found": found}))
}

/// Makes ranges from pairs of bounds; an empty upper bound stands for no bound.
fn ranges(bounds: &[Cow<'_, [u8]>]) -> KeyRanges {
    let range = |pair: &[Cow<'_, [u8]>]| KeyRange {
        lo: pair[0].to_vec(),
        hi: Some(pair[1].to_vec()).filter(|hi| !hi.is_empty()),
    };
    KeyRanges::new(bounds.chunks_exact(2).map(range).collect())
}

/// Returns the first problem of a row; others may be consequences of the first one.
fn problem(skey: &[u8], id: &[u8], doc: &[u8], key: &KeyPattern, owned: &KeyRanges) -> Option<Problem> {
    let problem = |name, details: String| Some(Problem { name, details });
    if let Err(error) = raw::validate(doc) {
        return problem("malformedDocument", error.into_message());
    }
    let Some(document) = raw::document(doc) else {
        return problem("invalidDocument", "a document must be a JSON object".to_owned());
    };
    if let Err(error) = normalise::check_stored(doc) {
        return problem("invalidDocument", error.into_message());
    }
    let Some(own_id) = document.get("_id") else {
        return problem("missingId", "the document has no _id".to_owned());
    };
    let mut encoded = Vec::with_capacity(id.len());
    encode(&Element::of(own_id), &mut encoded);
    if encoded != id {
        return problem("wrongIdKey", format!("column id should be {}", hex(&encoded)));
    }
    match key.key_of(document) {
        Err(error) => return problem("wrongShardKey", error.into_message()),
        Ok(own) if own != skey => return problem("wrongShardKey", format!("column skey should be {}", hex(&own))),
        Ok(_) => {}
    }
    if owned.contains(skey) {
        return None;
    }
    problem("outsideOwnedRanges", "no chunk of this shard has the document's shard key".to_owned())
}

/// Returns the document's `_id`; if that cannot be read, the one that is encoded in the column `id`.
fn shown_id(id: &[u8], doc: &[u8]) -> Json {
    let of_document = || {
        raw::validate(doc).ok()?;
        Some(Value::from_raw(raw::document(doc)?.get("_id")?))
    };
    of_document().or_else(|| Some(decode(id).ok()?.0)).map_or(Json::Null, |id| to_json(&id))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("\\x".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
