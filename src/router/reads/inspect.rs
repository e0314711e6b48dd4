//! Checks that a collection is consistent. Every shard that has its table is checked; chunks may move meanwhile.
//!
//! Each shard inspects its own documents (`shard::inspect`). Then all shards return their `_id`s in order, to find an `_id` that
//! several documents have. Such documents have different shard keys.

use crate::catalog::cache;
use crate::pg::error::Result;
use crate::router::dispatch::reading;
use crate::router::fresh_map::with_fresh_map;
use crate::router::merged_rows::MergedRows;
use crate::router::rows::LARGEST_NUMBER;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::order::Order;
use docshard_core::routing::plan::statement::{DOCUMENT_AND_KEY, Statement};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::documents::InspectDocuments;
use docshard_core::sql::record::parse_json;
use docshard_core::values::document::ext_json::to_json;
use docshard_core::values::key::encode::decode;
use serde_json::{Map, Value as Json, json};

/// The fields of a problem that a shard reports.
const FIELDS: [&str; 5] = ["problem", "_id", "details", "skey", "id"];

/// How often `_id`s that several documents seem to have are read again before they are reported. In the test that
/// changes a document's shard key without a pause, one read in about 14 sees it twice.
const DUPLICATE_REREADS: usize = 5;

/// Checks a collection. The report has at most `most` problems of each shard, and at most `most` duplicate `_id`s.
pub fn collection(namespace: &str, most: usize) -> Result<Json> {
    let report = with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else { return Ok(None) };
        report(&collection, most).map(Some)
    })?;
    report.ok_or_else(|| error!(Kind::NamespaceNotFound, "ns not found: {namespace}"))
}

fn report(collection: &Collection, most: usize) -> Result<Json> {
    let destinations = destination::placed(collection)?;
    let statements: Vec<_> = destinations.iter().map(|destination| statement(collection, destination, most)).collect();
    let streams = reading::read_each(collection, &destinations, &statements)?;
    let (mut documents, mut problems) = (0, 0);
    let (mut shards, mut found) = (Vec::new(), Vec::new());
    for (destination, mut stream) in destinations.iter().zip(streams) {
        let shard = &cache::shard(destination.shard)?.name;
        let answer = stream.next_row()?;
        let answer = answer.as_ref().map_or(&[][..], |row| row.bytes(0));
        let answer = parse_json("inspect_documents", answer)
            .map_err(|_| error!(Kind::OperationFailed, "shard \"{shard}\" returned no report"))?;
        while stream.next_row()?.is_some() {}
        let number = |name: &str| answer[name].as_i64().unwrap_or(0).clamp(0, LARGEST_NUMBER);
        documents += number("documents");
        problems += number("problems");
        shards.push(json!({"shard": shard, "documents": number("documents"), "problems": number("problems")}));
        for problem in answer["found"].as_array().into_iter().flatten().take(most) {
            let given = FIELDS.iter().filter(|name| problem.get(**name).is_some());
            let fields = given.map(|name| ((*name).to_owned(), problem[*name].clone()));
            found.push(Json::Object(
                std::iter::once(("shard".to_owned(), shard.as_str().into())).chain(fields).collect::<Map<_, _>>(),
            ));
        }
    }
    Ok(json!({
        "ns": collection.namespace,
        "valid": problems == 0,
        "documents": documents,
        "problems": problems,
        "shards": shards,
        "found": found,
        "duplicateIds": duplicate_ids(collection, &destinations, most)?,
        "ok": 1,
    }))
}

fn statement(collection: &Collection, destination: &Destination, most: usize) -> Statement {
    let mut owned: Vec<Vec<u8>> = Vec::new();
    for chunk in collection.map.chunks().filter(|chunk| chunk.shard == destination.shard) {
        if owned.last() == Some(&chunk.min) {
            owned.pop();
            owned.push(chunk.max);
        } else {
            owned.extend([chunk.min, chunk.max]);
        }
    }
    if let Some(last) = owned.last_mut().filter(|last| **last == collection.key.max_bound()) {
        // An empty upper bound means none: the last chunk includes the greatest key.
        last.clear();
    }
    let &Collection { id, token, ref key, .. } = collection;
    let (key, owned) = (key.to_json().to_string().into(), owned.into_iter().map(Into::into).collect());
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    InspectDocuments { collection: id, token, version: 0, key, owned, most }.into()
}

/// Returns at most `most` `_id`s that several documents have.
fn duplicate_ids(collection: &Collection, destinations: &[Destination], most: usize) -> Result<Vec<Json>> {
    // If the shard key is the `_id` or empty, the primary key guarantees uniqueness.
    if collection.key.fields.iter().all(|(path, _)| path == "_id") {
        return Ok(Vec::new());
    }
    let mut found = twice(collection, destinations, most, None)?;
    // Each shard is read with a snapshot of its own, so a document whose shard key changes meanwhile may be seen at its old and
    // at its new place. A real duplicate is seen every time.
    for _ in 0..DUPLICATE_REREADS {
        if found.is_empty() {
            break;
        }
        found = twice(collection, destinations, most, Some(&found))?;
    }
    let shown = |id: Vec<u8>| decode(&id).map_or(Json::Null, |(id, _)| to_json(&id));
    Ok(found.into_iter().map(shown).collect())
}

fn twice(
    collection: &Collection,
    destinations: &[Destination],
    most: usize,
    among: Option<&[Vec<u8>]>,
) -> Result<Vec<Vec<u8>>> {
    let mut conditions = Conditions::new(collection);
    if let Some(ids) = among {
        let ids = conditions.param(Parameter::BytesArray(ids.to_vec()));
        conditions.and(format!("t.id = ANY ({ids}::bytea[])"));
    }
    let sql = format!("SELECT t.id, t.id FROM {} t WHERE {} ORDER BY t.id", collection.table(), conditions.sql());
    let statement = conditions.into_statement(sql, DOCUMENT_AND_KEY);
    let mut ids = MergedRows::new(reading::read(collection, destinations, &statement)?, Order::Ascending);
    let (mut last, mut found): (Option<Vec<u8>>, Vec<Vec<u8>>) = (None, Vec::new());
    while let Some(row) = ids.next_row()? {
        let id = row.bytes(0);
        if last.as_deref() == Some(id) {
            if found.len() < most && found.last().map(Vec::as_slice) != Some(id) {
                found.push(id.to_vec());
            }
        } else {
            last = Some(id.to_vec());
        }
    }
    Ok(found)
}
