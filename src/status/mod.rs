//! The cluster as text, in the spirit of MongoDB's `sh.status()`.
//!
//! Documents and bytes are measured at the shards: counted up to a gigabyte, estimated beyond. A shard that does
//! not answer is said to be unreachable, and the rest is shown all the same.

use crate::balancer::control;
use crate::catalog::cache;
use crate::catalog::cluster;
use crate::catalog::contacts;
use crate::catalog::model::Shard;
use crate::catalog::namespace;
use crate::catalog::shards::cluster_id;
use crate::catalog::sizes::{self, COUNTED_ONCE_MB, Collection};
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::worker;
use docshard_core::chunk_map::ShardId;
use docshard_core::error::Kind;
use docshard_core::standing::Standing;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

/// Chunks of a collection that are shown unless all are wanted: MongoDB's number.
const SHOWN_CHUNKS: usize = 20;

/// A collection's part on a shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// the shard
    pub shard: String,
    /// how many chunks
    pub chunks: i64,
    /// documents
    pub documents: i64,
    /// their bytes
    pub bytes: i64,
    /// of the collection's bytes
    pub percent: f64,
}

/// How a collection is spread, by shard.
///
/// # Errors
/// `NamespaceNotFound`, and what a shard answers.
pub fn distribution(ns: &str) -> Result<Vec<Part>> {
    namespace::split(ns)?;
    let mut collections = sizes::collections(false)?;
    collections.retain(|collection| collection.namespace == ns);
    let mut collection =
        collections.pop().ok_or_else(|| Error::new(Kind::NamespaceNotFound, format!("ns not found: {ns}")))?;
    let shards = shards()?;
    for shard in shards.values() {
        sizes::measure(shard, &mut collection, COUNTED_ONCE_MB)?;
    }
    Ok(parts(&collection, &shards))
}

/// The whole text.
///
/// # Errors
/// Internal ones.
pub fn text(verbose: bool) -> Result<String> {
    let shards = shards()?;
    let mut collections = sizes::collections(false)?;
    let mut unreachable: BTreeMap<ShardId, String> = BTreeMap::new();
    for shard in shards.values() {
        for collection in &mut collections {
            if let Err(error) = sizes::measure(shard, collection, COUNTED_ONCE_MB) {
                unreachable.insert(shard.id, error.message);
                break;
            }
        }
    }
    let mut out = String::new();
    write_head(&mut out, &shards, &unreachable)?;
    write_databases(&mut out, &shards, &collections, verbose)?;
    Ok(out)
}

fn shards() -> Result<BTreeMap<ShardId, Rc<Shard>>> {
    Ok(cache::shards()?.iter().map(|(&id, shard)| (id, Rc::clone(shard))).collect())
}

/// Writing into a String cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { writeln!($out, $($arg)*).unwrap_or_default() };
}

fn write_head(
    out: &mut String,
    shards: &BTreeMap<ShardId, Rc<Shard>>,
    unreachable: &BTreeMap<ShardId, String>,
) -> Result<()> {
    line!(out, "cluster {:016x}", cluster_id()?);
    if let Standing::Copy(reason) = cluster::standing()? {
        line!(out, "this is a copy of the cluster's router, and changes nothing: {reason}");
    }
    line!(out, "shards");
    let hosts = spi::query("SELECT id, host FROM docshard.shards", &[])?;
    for shard in shards.values() {
        let host = hosts.iter().find(|row| row.i32(0) == shard.id).map_or("", |row| row.text(1));
        let mut notes = String::new();
        if shard.draining {
            notes.push_str("  draining");
        }
        if let Some(max) = shard.max_size_mb {
            let _ = write!(notes, "  at most {max} MiB");
        }
        if let Some(error) = unreachable.get(&shard.id) {
            let _ = write!(notes, "  unreachable: {}", error.trim());
        } else if let Some(note) = contacts::notes(shard.id)? {
            let _ = write!(notes, "  {note}");
        }
        line!(out, "  {}  {host}{notes}", shard.name);
    }
    let state = control::state()?;
    line!(out, "balancer");
    line!(out, "  enabled: {}", yes_no(state.enabled));
    match (&state.action, worker::is_preloaded()) {
        (_, false) => line!(out, "  running: no: docshard is not in shared_preload_libraries"),
        (Some(action), true) => line!(out, "  running: {action}"),
        (None, true) => line!(out, "  running: no"),
    }
    if let (Some(error), Some(at)) = (&state.last_error, &state.last_error_at) {
        line!(out, "  last error: {error} ({at})");
    }
    Ok(())
}

fn write_databases(
    out: &mut String,
    shards: &BTreeMap<ShardId, Rc<Shard>>,
    collections: &[Collection],
    verbose: bool,
) -> Result<()> {
    line!(out, "databases");
    let databases = spi::query("SELECT name, primary_shard FROM docshard_catalog.databases ORDER BY name", &[])?;
    for database in &databases {
        let name = database.text(0);
        let primary = shards.get(&database.i32(1)).map_or("?", |shard| shard.name.as_str());
        line!(out, "  {name}  primary: {primary}");
        let inside = |collection: &&Collection| {
            collection.namespace.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        };
        for collection in collections.iter().filter(inside) {
            write_collection(out, shards, collection, verbose);
        }
    }
    Ok(())
}

fn write_collection(out: &mut String, shards: &BTreeMap<ShardId, Rc<Shard>>, collection: &Collection, verbose: bool) {
    line!(out, "    {}", collection.namespace);
    if collection.key.is_unsharded() {
        line!(out, "      not sharded");
    } else {
        let unique = if collection.unique { "  unique" } else { "" };
        let balancing = if collection.balance { "" } else { "  balancing: no" };
        let size = collection.chunk_size_mb.map_or_else(String::new, |mb| format!("  chunk size: {mb} MiB"));
        line!(out, "      shard key: {}{unique}{balancing}{size}", collection.key.to_json());
    }
    let parts = parts(collection, shards);
    let width = parts.iter().map(|part| part.shard.len()).max().unwrap_or(0);
    for part in &parts {
        line!(
            out,
            "      {:width$}  {:>4} {}  {:>10} documents  {:>10}  {:>5.1} %",
            part.shard,
            part.chunks,
            if part.chunks == 1 { "chunk " } else { "chunks" },
            part.documents,
            readable(part.bytes),
            part.percent
        );
    }
    if collection.key.is_unsharded() {
        return;
    }
    let shown = if verbose { collection.chunks.len() } else { SHOWN_CHUNKS };
    for chunk in collection.chunks.iter().take(shown) {
        let shard = shards.get(&chunk.shard).map_or("?", |shard| shard.name.as_str());
        let (min, max) = (collection.key.bound_to_json(&chunk.min), collection.key.bound_to_json(&chunk.max));
        line!(out, "      {min} -->> {max} on {shard}{}", if chunk.jumbo { "  jumbo" } else { "" });
    }
    if collection.chunks.len() > shown {
        line!(
            out,
            "      … {} more chunks: docshard.status(verbose => true) shows all",
            collection.chunks.len() - shown
        );
    }
}

fn parts(collection: &Collection, shards: &BTreeMap<ShardId, Rc<Shard>>) -> Vec<Part> {
    let mut parts: BTreeMap<ShardId, Part> = BTreeMap::new();
    for chunk in &collection.chunks {
        let part = parts.entry(chunk.shard).or_default();
        part.chunks += 1;
        part.documents += chunk.documents.cast_signed();
        part.bytes += chunk.bytes.cast_signed();
    }
    let total: i64 = parts.values().map(|part| part.bytes).sum();
    parts
        .into_iter()
        .map(|(id, part)| Part {
            shard: shards.get(&id).map_or_else(|| format!("shard number {id}"), |shard| shard.name.clone()),
            percent: if total == 0 { 0.0 } else { part.bytes as f64 * 100.0 / total as f64 },
            ..part
        })
        .collect()
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Bytes in the unit that a person would use.
fn readable(bytes: i64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 || unit == "TiB" {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    unreachable!("the last unit returns")
}
