//! Samples statements of collections for advice on their shard keys: see `operation::query_analyzer`.
//!
//! If a collection's statements are not sampled, a statement only tests one field. A sampled statement sends its filter to the database's
//! worker, which stores the samples in batches. So statements of read-only transactions and of transactions that are rolled back are
//! sampled, too. Nothing here fails, waits for another statement, or runs SQL.

use crate::pg::process::mailbox;
use crate::router::session;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::Read;
use docshard_core::routing::request::modification::{Modification, Write};
use serde_json::json;

/// The longest filter, and the longest update, of a sample, in bytes.
const MAX_BYTES: usize = 4000;

/// The largest number of statements of a collection that are sampled in a second.
pub const MAX_PER_SECOND: f64 = 1000.0;

/// Samples per second for an interval of `every_us` microseconds. The interval was rounded up, so several rates have it: returns
/// a whole number if one of them is whole.
pub fn per_second(every_us: i64) -> f64 {
    let (least, below) = (1e6 / every_us as f64, 1e6 / (every_us - 1) as f64);
    if least.ceil() < below { least.ceil() } else { (least * 1000.0).round() / 1000.0 }
}

pub(super) fn kind_of(read: &Read<'_>) -> &'static str {
    match read {
        Read::Find(_) => "find",
        Read::Count(_) => "count",
        Read::Distinct(_) => "distinct",
    }
}

/// Samples a read, whose filter has the text that `filter` returns.
pub(super) fn read(collection: &Collection, kind: &'static str, filter: impl FnOnce() -> String) {
    if let Some(every_us) = collection.sampled_every_us {
        sample(collection, every_us, kind, filter, None, true);
    }
}

/// Samples a write.
pub(super) fn write(collection: &Collection, write: &Write<'_>) {
    let Some(every_us) = collection.sampled_every_us else { return };
    let kind = match write.modification {
        _ if write.images => "findAndModify",
        Some(_) => "update",
        None => "delete",
    };
    sample(collection, every_us, kind, || write.query.text(), write.modification, write.many);
}

/// Samples a write of the document whose key is the filter; without a modification, a deletion.
pub(super) fn keyed_write(
    collection: &Collection,
    filter: impl FnOnce() -> String,
    modification: Option<&Modification>,
) {
    if let Some(every_us) = collection.sampled_every_us {
        let kind = if modification.is_some() { "update" } else { "delete" };
        sample(collection, every_us, kind, filter, modification, false);
    }
}

fn sample(
    collection: &Collection,
    every_us: i64,
    kind: &str,
    filter: impl FnOnce() -> String,
    modification: Option<&Modification>,
    many: bool,
) {
    // A statement whose filter is too long takes its turn without being stored. If another one took its place, the samples would not be
    // representative.
    mailbox::send(collection.id, every_us, || {
        let filter = filter();
        let modification = modification.map(|known| known.text.as_str()).filter(|text| text.len() <= MAX_BYTES);
        (filter.len() <= MAX_BYTES).then(|| {
            json!({
                "collection_id": collection.id, "at": session::now(), "kind": kind, "filter": filter,
                "modification": modification, "many": many,
            })
            .to_string()
        })
    });
}
