//! Operations that change a collection's layout: its shard key, chunks and shards.

use super::arguments::Arguments;
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::nodes::query_on;
use crate::catalog::collections::{layout, namespace, views};
use crate::pg::error::{Error, Result};
use crate::pg::server;
use crate::resharding::{self, Range, Request, Resharded, Target, jobs};
use crate::router::reads::foreign_ranges::{self, Foreign};
use crate::store;
use docshard_core::cluster::resharding::State;
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::routing::model::Collection;
use docshard_core::values::collation::Collator;
use docshard_core::values::key::KeyPattern;
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use std::rc::Rc;

/// The default of the option `commitTimeoutMS`.
const COMMIT_TIMEOUT_MS: u64 = 300_000;

/// Returns the collection of a request that changes its layout, and checks that the caller may do so here.
fn collection(ns: &str) -> Result<Rc<Collection>> {
    check_may_change()?;
    namespace::split(ns)?;
    namespace::check_writable(ns)?;
    views::refuse(ns)?;
    let collection = cache::get(ns)?;
    if server::in_transaction_block() {
        return Err(error!(
            Kind::OperationNotSupportedInTransaction,
            "a collection's layout cannot be changed inside a transaction block"
        )
        .with_hint("Call it outside a transaction block: it commits transactions of its own."));
    }
    Ok(collection)
}

fn sharded(ns: &str, what: &str) -> Result<Rc<Collection>> {
    let collection = collection(ns)?;
    ensure!(
        !collection.key.is_unsharded(),
        Kind::NamespaceNotSharded,
        "{what} can only be called on a sharded collection: {ns}"
    );
    Ok(collection)
}

/// Returns how long a change may try to find a moment in which writers wait only briefly, in milliseconds.
fn commit_timeout(options: &Arguments<'_>) -> Result<u64> {
    match options.integer("commitTimeoutMS")? {
        None => Ok(COMMIT_TIMEOUT_MS),
        Some(given) => u64::try_from(given)
            .map_err(|_| error!(Kind::BadValue, "commitTimeoutMS must not be negative, but is {given}")),
    }
}

/// Changes the layout, and waits for it. The caller's checks depend on the collection's number and shard key only: the change is refused if
/// these are different when it begins.
fn change(of: &Collection, command: &str, target: Target, options: &Arguments<'_>) -> Result<Json> {
    if !matches!(target, Target::Same) {
        refuse_foreign_documents(&of.namespace)?;
    }
    let (namespace, command) = (of.namespace.clone(), command.to_owned());
    let seen = (of.id, of.key.to_json().to_string());
    let (commit_timeout_ms, check_space) = (commit_timeout(options)?, options.flag("checkSpace"));
    let request = Request { namespace, command, target, seen, commit_timeout_ms, check_space };
    let Resharded { documents, bytes, stall_ms, millis } = jobs::change_and_wait(&request)?;
    Ok(json!({"ok": 1, "documents": documents, "bytes": bytes, "stallMillis": stall_ms, "millis": millis}))
}

/// Refuses a change while a shard has documents that it does not own. No statement sees them, but a change copies all documents of the
/// shards' tables, so they would be seen afterwards.
fn refuse_foreign_documents(ns: &str) -> Result<()> {
    let found = foreign_ranges::find(ns, &HashSet::new())?;
    let Some(Foreign { shard, .. }) = found.first() else { return Ok(()) };
    Err(error!(
        Kind::OperationFailed,
        "shard \"{shard}\" has documents of {ns} outside of its ranges, which no statement sees"
    )
    .with_hint("docshard.check_metadata_consistency() shows them, and docshard.compact() moves them to their shards."))
}

/// The answer if the layout is already the wanted one. The options must be valid nevertheless.
fn nothing_to_do(note: String, options: &Arguments<'_>) -> Result<Json> {
    commit_timeout(options)?;
    Ok(json!({"ok": 1, "documents": 0, "bytes": 0, "stallMillis": 0, "millis": 0, "note": note}))
}

/// Gives a sharded collection another shard key.
pub fn reshard(ns: &str, key: &Json, options: &Arguments<'_>) -> Result<Json> {
    let of = sharded(ns, "reshardCollection")?;
    let key = KeyPattern::parse(key)?;
    if let Some(other) = options.get("collation").map(Collator::parse).transpose()?.flatten() {
        bail!(
            Kind::BadValue,
            "The collation for reshardCollection must be {{locale: 'simple'}}, but found: {}",
            other.definition()
        );
    }
    let zones = options.get("zones").map(|zones| zones_of(&key, zones)).transpose()?;
    if of.key == key && !options.flag("forceRedistribution") {
        let note = "the collection has this shard key already; {\"forceRedistribution\": true} distributes it anew";
        return nothing_to_do(note.to_owned(), options);
    }
    // If the key stays the same, it stays unique, too.
    let unique = options.flag("unique") || of.key == key && of.unique;
    let key = key.to_json().to_string();
    let needs_index = !options.flag("implicitlyCreateIndex");
    let target = Target::Key { key, unique, needs_index, chunks: options.integer("numInitialChunks")?, zones };
    change(&of, "reshardCollection", target, options)
}

fn zones_of(key: &KeyPattern, given: &Json) -> Result<Vec<Range>> {
    let Json::Array(given) = given else {
        bail!(Kind::TypeMismatch, "zones must be an array of {{min, max, zone}}, not {given}")
    };
    let range = |given: &Json| {
        let (Some(min), Some(max), Some(zone)) = (given.get("min"), given.get("max"), given["zone"].as_str()) else {
            bail!(Kind::BadValue, "a range of a zone must be {{min, max, zone}}, not {given}");
        };
        let range = layout::zone_range(key, min, max, zone)?;
        Ok((range.min, range.max, range.zone))
    };
    given.iter().map(range).collect()
}

/// Adds fields to a collection's shard key.
pub fn refine(ns: &str, key: &Json, options: &Arguments<'_>) -> Result<Json> {
    let of = sharded(ns, "refineCollectionShardKey")?;
    let key = KeyPattern::parse(key)?;
    if of.key == key {
        return nothing_to_do("the collection has this shard key already".to_owned(), options);
    }
    ensure!(
        key.fields.starts_with(&of.key.fields),
        Kind::InvalidOptions,
        "refineCollectionShardKey shard key {} must extend the current shard key {}",
        key.to_json(),
        of.key.to_json()
    );
    let target = Target::Refined(key.to_json().to_string());
    change(&of, "refineCollectionShardKey", target, options).map_err(|error| match error.kind {
        // A document with an array in an added field.
        Kind::ShardKeyNotFound => error.with_kind(Kind::InvalidOptions),
        _ => error,
    })
}

/// Makes a sharded collection unsharded, on a shard; None: on the one with the least data.
pub fn unshard(ns: &str, to: Option<&str>, options: &Arguments<'_>) -> Result<Json> {
    let of = sharded(ns, "unshardCollection")?;
    let to = match to {
        Some(name) => recipient(name)?,
        None => store::shards::emptiest()?.ok_or_else(|| error!(Kind::ShardNotFound, "no shard can take data"))?,
    };
    change(&of, "unshardCollection", Target::Shard(to), options)
}

fn recipient(name: &str) -> Result<i32> {
    let shard = cache::shard_named(name)?;
    shard.require_takes_data()?;
    Ok(shard.id)
}

/// Moves an unsharded collection to a shard.
pub fn move_to(ns: &str, to: &str, options: &Arguments<'_>) -> Result<Json> {
    let of = collection(ns)?;
    if !of.key.is_unsharded() {
        return Err(Error::new(
            Kind::NamespaceNotFound,
            format!("moveCollection can only be called on an unsharded collection: {ns}"),
        )
        .with_hint("docshard.move_chunk() moves the chunks of a sharded one."));
    }
    let shard = recipient(to)?;
    if of.map.owner(&[]) == shard {
        return nothing_to_do(format!("the collection is on shard {to} already"), options);
    }
    change(&of, "moveCollection", Target::Shard(shard), options)
}

/// About this many pages of a table are read to estimate the size of its documents.
const SAMPLED_PAGES: i64 = 500;

/// Copies a collection in place, which gives back the space of documents that have moved away or were deleted. With `dryRun`, only
/// estimates that space.
pub fn compact(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    let of = collection(ns)?;
    if !options.flag("dryRun") {
        return change(&of, "compact", Target::Same, options);
    }
    let (mut total, mut shards) = (0, Vec::new());
    for id in of.map.shards() {
        let shard = cache::shard(id)?;
        let table = of.table();
        let size = format!(
            "SELECT coalesce(pg_catalog.pg_table_size(t), 0), coalesce(pg_catalog.pg_relation_size(t), 0) \
                    / pg_catalog.current_setting('block_size')::pg_catalog.int8 FROM pg_catalog.to_regclass('{table}') AS t"
        );
        let (bytes, pages) = query_on::<(i64, i64)>(&shard, &size, &[])?.first().copied().unwrap_or_default();
        let percent = (100.0 * SAMPLED_PAGES as f64 / pages.max(1) as f64).min(100.0);
        // 28 bytes: the tuple header and the line pointer.
        let used = format!(
            "SELECT (coalesce(pg_catalog.sum(pg_catalog.pg_column_size(t.skey) + pg_catalog.pg_column_size(t.id) \
                    + pg_catalog.pg_column_size(t.doc) + 28), 0) * 100 / {percent})::pg_catalog.int8 \
             FROM {table} AS t TABLESAMPLE SYSTEM ({percent})"
        );
        // Without pages, the table is empty, or another change has dropped it.
        let used = if pages == 0 { Vec::new() } else { query_on::<i64>(&shard, &used, &[])? };
        let used = used.first().copied().unwrap_or_default();
        let freed = (bytes - used).max(0);
        total += freed;
        shards.push(json!({"shard": shard.name, "bytes": bytes, "estimatedBytesFreed": freed}));
    }
    Ok(json!({"ok": 1, "estimatedBytesFreed": total, "shards": shards}))
}

/// Returns the running change of a collection's layout. `command` is the command of MongoDB's that it must have begun with; None: any.
///
/// # Errors
/// `NoSuchReshardCollection`; `IllegalOperation` if it has begun with another command; `ReshardCollectionCommitted` if it is decided.
fn running(ns: &str, command: Option<&str>) -> Result<store::resharding::Resharding> {
    check_may_change()?;
    namespace::split(ns)?;
    let none = |message: String| {
        Error::new(Kind::NoSuchReshardCollection, message)
            .with_hint("The view docshard.resharding shows running and ended changes.")
    };
    match store::resharding::last_of(ns)? {
        Some(found) if ![State::Running, State::Committed].contains(&found.state) => {
            Err(none(format!("the layout of {ns} is not being changed")))
        }
        Some(found) => match command {
            Some(other) if other != found.command => {
                Err(error!(Kind::IllegalOperation, "{other} is not in progress for {ns}, but {} is", found.command)
                    .with_hint(
                        "docshard.abort_reshard_collection() and commit_reshard_collection() serve all changes.",
                    ))
            }
            _ if found.state == State::Running => Ok(found),
            _ => Err(error!(Kind::ReshardCollectionCommitted, "{} of {ns} has been decided", found.command)),
        },
        None => Err(none(format!("the layout of {ns} is not being changed"))),
    }
}

/// Aborts the change of a collection's layout, which then stays as it was. `command`: see [`running`].
pub fn abort(ns: &str, command: Option<&str>) -> Result<Json> {
    let change = running(ns, command)?;
    if jobs::abort_and_wait(change.id)? {
        return Ok(json!({"ok": 1}));
    }
    Err(error!(Kind::ReshardCollectionCommitted, "{} of {ns} has been decided", change.command))
}

/// Lets the change of a collection's layout block writers for as long as the decision takes. If another server has begun the change, and may
/// have decided it, confirms to recovery that the change is to be completed. `command`: see [`running`].
pub fn commit(ns: &str, command: Option<&str>) -> Result<Json> {
    let change = running(ns, command)?;
    if change.is_of_this_server()? {
        let set = store::resharding::set_commit_now(change.id)?;
        ensure!(set, Kind::NoSuchReshardCollection, "{} of {ns} has ended", change.command);
    } else {
        resharding::confirm(change.id)?;
    }
    Ok(json!({"ok": 1}))
}
