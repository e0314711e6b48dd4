//! Shows the cluster as text, like MongoDB's `sh.status()`, and the distribution of a collection.
//!
//! Documents and bytes are estimated from PostgreSQL's statistics, or counted on request. All shards are queried at once. For a
//! shard that does not answer, documents and bytes are shown as unknown; the chunks come from the catalog.

pub mod consistency;
pub mod health;
pub mod load;

use crate::balancer::control;
use crate::catalog::cache;
use crate::catalog::cluster::behind;
use crate::catalog::cluster::contacts;
use crate::catalog::cluster::identity;
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shard_state::{self, Orphan};
use crate::catalog::collections::namespace;
use crate::catalog::collections::sizes::{self, Amount, Collection, Estimates};
use crate::pg::error::Result;
use crate::store;
use crate::worker;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::standing::Standing;
use docshard_core::error::{Kind, bail};
use docshard_core::sql::quote::quote_literal;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

/// The largest number of a collection's chunks that are shown by default; the same as MongoDB's.
const SHOWN_CHUNKS: usize = 20;

/// The time limit for a shard's answer.
const PATIENCE: Duration = Duration::from_millis(2500);

/// A collection's share on one shard; documents and bytes are None if the shard did not answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    pub shard: String,
    pub chunks: i64,
    pub documents: Option<i64>,
    pub bytes: Option<i64>,
    /// percentage of the collection's bytes; None if a shard did not answer
    pub percent: Option<f64>,
}

/// The sizes of collections, as shards report them.
struct Reported {
    amounts: HashMap<(ShardId, i32), Amount>,
    /// the error of each shard that did not answer
    unreachable: BTreeMap<ShardId, String>,
    counted: bool,
}

impl Reported {
    /// Queries every shard; with `count`, shards that have answered then count their documents.
    fn of(collections: &mut [Collection], count: bool) -> Result<Self> {
        let ids: Vec<i32> = collections.iter().map(|collection| collection.id).collect();
        let answers: Vec<Estimates> = sizes::estimate(&ids, PATIENCE)?;
        let mut reported = Self { amounts: HashMap::new(), unreachable: BTreeMap::new(), counted: count };
        let mut reachable = Vec::new();
        for (shard, answer) in answers {
            match answer {
                Ok(amounts) => {
                    reported
                        .amounts
                        .extend(amounts.into_iter().map(|(collection, amount)| ((shard.id, collection), amount)));
                    reachable.push(shard);
                }
                Err(error) => {
                    // A shard's message must not look like other lines of the status.
                    let error = error.message.trim().lines().next().unwrap_or_default().to_owned();
                    reported.unreachable.insert(shard.id, error);
                }
            }
        }
        if count {
            reported.amounts.clear();
            for collection in collections {
                sizes::measure_at_once(&reachable, collection, i32::MAX)?;
                for chunk in &collection.chunks {
                    if reported.unreachable.contains_key(&chunk.shard) {
                        continue;
                    }
                    let none = Amount { documents: Some(0), bytes: 0 };
                    let amount = reported.amounts.entry((chunk.shard, collection.id)).or_insert(none);
                    amount.documents = amount.documents.map(|documents| documents + chunk.documents.cast_signed());
                    amount.bytes += chunk.bytes.cast_signed();
                }
            }
        }
        Ok(reported)
    }

    /// Returns documents and bytes of a collection on a shard; None if the shard did not answer. Documents are also None without
    /// statistics.
    fn amount(&self, shard: ShardId, collection: i32) -> (Option<i64>, Option<i64>) {
        if self.unreachable.contains_key(&shard) {
            return (None, None);
        }
        let amount = self.amounts.get(&(shard, collection));
        // A shard reports nothing for a table that does not exist.
        (amount.map_or(Some(0), |amount| amount.documents), Some(amount.map_or(0, |amount| amount.bytes)))
    }
}

/// Lists the orphaned relations of shards, with a warning for each shard that does not answer.
pub fn orphans() -> Result<Vec<Orphan>> {
    let (orphans, silent) = shard_state::orphans(PATIENCE)?;
    for (shard, error) in silent {
        pgrx::warning!("shard \"{shard}\" is not included: {}", error.trim());
    }
    Ok(orphans)
}

pub fn distribution(ns: &str, count: bool) -> Result<Vec<Part>> {
    namespace::split(ns)?;
    let mut collections = sizes::collections(false)?;
    collections.retain(|collection| collection.namespace == ns);
    if collections.is_empty() {
        bail!(Kind::NamespaceNotFound, "ns not found: {ns}");
    }
    let reported = Reported::of(&mut collections, count)?;
    let shards = shards()?;
    Ok(collections.first().map(|collection| parts(collection, &shards, &reported)).unwrap_or_default())
}

pub fn text(verbose: bool, count: bool) -> Result<String> {
    let shards = shards()?;
    let mut collections = sizes::collections(false)?;
    let reported = Reported::of(&mut collections, count)?;
    let mut out = String::new();
    // If a shard has not answered, these queries are left out: they would wait for it again.
    let orphans = match reported.unreachable.is_empty() {
        true => shard_state::orphans(PATIENCE)?.0,
        false => Vec::new(),
    };
    let unguarded = match reported.unreachable.is_empty() {
        true => health::unguarded_shards(PATIENCE)?,
        false => HashMap::new(),
    };
    write_head(&mut out, &shards, &reported.unreachable, &orphans, &unguarded)?;
    write_databases(&mut out, &shards, &collections, &reported, verbose)?;
    Ok(out)
}

fn shards() -> Result<BTreeMap<ShardId, Rc<Shard>>> {
    Ok(cache::shards()?.iter().map(|(&id, shard)| (id, Rc::clone(shard))).collect())
}

/// Writing into a String cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { writeln!($out, $($arg)*).unwrap_or_default() };
}

/// The notes on a shard that follow its name and host.
fn shard_notes(
    shard: &Shard,
    expected: &behind::Expected,
    unreachable: Option<&String>,
    orphaned: usize,
    unguarded: Option<&str>,
) -> Result<String> {
    let mut notes = String::new();
    if shard.draining {
        notes.push_str("  draining");
        notes.push_str(&left_to_move(shard)?);
    }
    if let Some(max) = shard.max_size_mb {
        let _ = write!(notes, "  at most {max} MiB");
    }
    let difference = if unreachable.is_none() { expected.find(shard)? } else { None };
    if let Some(error) = unreachable {
        let _ = write!(notes, "  unreachable: {error}");
    } else if let Some(difference) = difference {
        let _ = write!(notes, "  {difference}");
    } else if let Some(note) = contacts::notes(shard.id)? {
        let _ = write!(notes, "  {note}");
    }
    match orphaned {
        0 => {}
        count => {
            let _ = write!(notes, "  {count} orphaned: docshard.list_orphaned_relations()");
        }
    }
    if let Some(note) = unguarded {
        let _ = write!(notes, "  {note}");
    }
    Ok(notes)
}

/// What the administrator must move off a shard that is being drained, with the statements.
fn left_to_move(shard: &Shard) -> Result<String> {
    let mut notes = String::new();
    for (what, function, names) in [
        ("collections", "move_collection", store::collections::unsharded_away(shard.id)?),
        ("databases", "move_primary", store::databases::of_primary(shard.id)?),
    ] {
        if let Some(first) = names.first() {
            let _ =
                write!(notes, "  {what} to move: {}, docshard.{function}({}, …)", names.len(), quote_literal(first));
        }
    }
    Ok(notes)
}

fn write_head(
    out: &mut String,
    shards: &BTreeMap<ShardId, Rc<Shard>>,
    unreachable: &BTreeMap<ShardId, String>,
    orphans: &[Orphan],
    unguarded: &HashMap<String, String>,
) -> Result<()> {
    line!(out, "cluster {:016x}", cluster_id()?);
    match identity::standing()? {
        Standing::Router => {}
        Standing::LockedOut(reason) => line!(out, "this router writes nothing, as {reason}"),
        Standing::Copy(reason) => {
            line!(out, "this is a copy of the cluster's router and cannot change the cluster: {reason}");
        }
    }
    if let Some(problem) = identity::lacks_keeper()? {
        line!(out, "{problem}");
    }
    for problem in health::problems_here()? {
        line!(out, "{problem}");
    }
    line!(out, "shards");
    let expected = behind::Expected::read()?;
    let locations = store::shards::locations()?;
    for shard in shards.values() {
        let host = locations.iter().find(|found| found.id == shard.id).map_or("", |found| found.host.as_str());
        let note = unguarded.get(&shard.name).map(String::as_str);
        let (why, orphaned) =
            (unreachable.get(&shard.id), orphans.iter().filter(|orphan| orphan.shard == shard.name).count());
        let notes = shard_notes(shard, &expected, why, orphaned, note)?;
        line!(out, "  {}  {host}{notes}", shard.name);
    }
    let state = control::state()?;
    line!(out, "balancer");
    line!(out, "  enabled: {}", yes_no(state.enabled));
    match (&state.stored.action, worker::is_preloaded()) {
        (_, false) => line!(out, "  running: no: docshard is not in shared_preload_libraries"),
        (Some(action), true) => line!(out, "  running: {action}"),
        (None, true) => line!(out, "  running: no"),
    }
    if let (Some(error), Some(at)) = (&state.stored.last_error, &state.stored.last_error_at) {
        line!(out, "  last error: {error} ({at})");
    }
    Ok(())
}

fn write_databases(
    out: &mut String,
    shards: &BTreeMap<ShardId, Rc<Shard>>,
    collections: &[Collection],
    reported: &Reported,
    verbose: bool,
) -> Result<()> {
    let note = if reported.counted || collections.is_empty() { "" } else { "  (~: estimated from statistics)" };
    line!(out, "databases{note}");
    let changes = store::resharding::running()?;
    for database in &store::databases::all()? {
        let name = database.name.as_str();
        let primary = shards.get(&database.primary).map_or("?", |shard| shard.name.as_str());
        line!(out, "  {name}  primary: {primary}");
        let inside = |collection: &&Collection| {
            collection.namespace.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        };
        for collection in collections.iter().filter(inside) {
            write_collection(out, shards, collection, reported, verbose);
            for change in changes.iter().filter(|change| change.namespace == collection.namespace) {
                let store::resharding::Running { command, step, documents, estimated, .. } = change;
                let left = change.time_left().map_or_else(String::new, |seconds| format!(", about {seconds} s left"));
                line!(out, "      {command}: {step}, {documents} of about {estimated} documents copied{left}");
            }
        }
    }
    Ok(())
}

fn write_collection(
    out: &mut String,
    shards: &BTreeMap<ShardId, Rc<Shard>>,
    collection: &Collection,
    reported: &Reported,
    verbose: bool,
) {
    line!(out, "    {}", collection.namespace);
    if collection.key.is_unsharded() {
        line!(out, "      not sharded");
    } else {
        let unique = if collection.unique { "  unique" } else { "" };
        let balancing = if collection.balance { "" } else { "  balancing: no" };
        let size = collection.chunk_size_mb.map_or_else(String::new, |mb| format!("  chunk size: {mb} MiB"));
        line!(out, "      shard key: {}{unique}{balancing}{size}", collection.key.to_json());
    }
    let parts = parts(collection, shards, reported);
    let width = parts.iter().map(|part| part.shard.len()).max().unwrap_or(0);
    let about = if reported.counted { "" } else { "~" };
    let shown = |value: Option<String>| value.map_or_else(|| "unknown".to_owned(), |value| format!("{about}{value}"));
    for part in &parts {
        line!(
            out,
            "      {:width$}  {:>4} {}  {:>10} documents  {:>10}{}",
            part.shard,
            part.chunks,
            if part.chunks == 1 { "chunk " } else { "chunks" },
            shown(part.documents.map(|documents| documents.to_string())),
            shown(part.bytes.map(readable)),
            part.percent.map_or_else(String::new, |percent| format!("  {percent:>5.1} %"))
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

fn parts(collection: &Collection, shards: &BTreeMap<ShardId, Rc<Shard>>, reported: &Reported) -> Vec<Part> {
    let mut chunks: BTreeMap<ShardId, i64> = BTreeMap::new();
    for chunk in &collection.chunks {
        *chunks.entry(chunk.shard).or_default() += 1;
    }
    let part = |(id, chunks): (ShardId, i64)| {
        let (documents, bytes) = reported.amount(id, collection.id);
        let shard = shards.get(&id).map_or_else(|| format!("shard number {id}"), |shard| shard.name.clone());
        Part { shard, chunks, documents, bytes, percent: None }
    };
    let mut parts: Vec<Part> = chunks.into_iter().map(part).collect();
    if let Some(total) = parts.iter().map(|part| part.bytes).sum::<Option<i64>>() {
        for part in &mut parts {
            let percent = |bytes: i64| if total == 0 { 0.0 } else { bytes as f64 * 100.0 / total as f64 };
            part.percent = part.bytes.map(percent);
        }
    }
    parts
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

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
