//! Operations on shards, databases and zones.

use super::arguments::Arguments;
use crate::catalog::cluster::identity::{check_may_change, check_router};
use crate::catalog::cluster::shards::add::{self, AddOptions, Added};
use crate::catalog::cluster::shards::remove::{self, Remaining, Removal};
use crate::catalog::collections::{collection, databases, namespace, zones};
use crate::catalog::{cache, change};
use crate::migration::{MOVE_PRIMARY, MoveRequest, jobs, lost};
use crate::pg::error::{Error, Result};
use crate::pg::process;
use crate::pg::server;
use crate::resharding::{self, Answer};
use docshard_core::error::{Kind, bail, ensure, error};
use serde_json::{Value as Json, json};

pub fn add(conn: &str, options: &Arguments<'_>) -> Result<Json> {
    let max_size_mb = match options.integer("maxSize")? {
        None | Some(0) => None,
        Some(n) => Some(
            i32::try_from(n)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| error!(Kind::BadValue, "maxSize must be a positive number of MiB, not {n}"))?,
        ),
    };
    let text = |name| options.text(name).map(str::to_owned);
    let options = AddOptions { name: text("name"), max_size_mb, user: text("user"), password: text("password") };
    let Added { name, pending } = add::add(conn, &options)?;
    process::wake_at_commit();
    if pending.is_empty() {
        return Ok(json!({"shardAdded": name, "ok": 1}));
    }
    let pending: Vec<_> = pending.iter().map(|(shard, error)| json!({"shard": shard, "error": error.trim()})).collect();
    Ok(json!({"shardAdded": name, "pending": pending, "ok": 1}))
}

/// Removes a shard in steps: the first call starts draining, later ones report its progress, the last one completes. A shard
/// that is lost permanently cannot be drained: see [`lost`].
pub fn remove(name: &str, options: &Arguments<'_>) -> Result<Json> {
    if options.flag("lost") {
        let answered = match options.text("token") {
            None => lost::announce(name)?,
            Some(token) => {
                let others = options.get("alsoLost").and_then(Json::as_object).into_iter().flatten();
                let others =
                    others.map(|(name, token)| (name.as_str(), token.as_str().unwrap_or_default())).collect::<Vec<_>>();
                let answer = options.get("completeChanges").map(complete_changes).transpose()?;
                lost::remove(name, token, &others, |gone| resharding::end_without(gone, answer.as_ref()))?
            }
        };
        process::wake_at_commit();
        return Ok(answered);
    }
    let removal = remove::remove(name)?;
    process::wake_at_commit();
    Ok(match removal {
        Removal::Started(remaining) => json!({
            "msg": "draining started successfully", "state": "started", "shard": name, "note": note(&remaining),
            "dbsToMove": remaining.databases, "collectionsToMove": remaining.collections, "ok": 1,
        }),
        Removal::Ongoing(remaining) => json!({
            "msg": "draining ongoing", "state": "ongoing", "remaining": counts(&remaining), "note": note(&remaining),
            "dbsToMove": remaining.databases, "collectionsToMove": remaining.collections, "ok": 1,
        }),
        Removal::Completed => json!({
            "msg": "removeshard completed successfully", "state": "completed", "shard": name, "ok": 1,
        }),
    })
}

/// Parses the option `completeChanges`: true or false, or an object with one of them for each collection.
fn complete_changes(option: &Json) -> Result<Answer> {
    let answer = match option {
        Json::Bool(one) => Some(Answer::One(*one)),
        Json::Object(each) => {
            let each = each.iter().map(|(namespace, answer)| Some((namespace.clone(), answer.as_bool()?)));
            each.collect::<Option<_>>().map(Answer::Each)
        }
        _ => None,
    };
    answer.ok_or_else(|| {
        error!(
            Kind::TypeMismatch,
            "option \"completeChanges\" must be a boolean, or an object with a boolean for each collection, not {option}"
        )
    })
}

/// Returns what the administrator must do, as the balancer does not do it; None: nothing.
fn note(remaining: &Remaining) -> Option<&'static str> {
    match (remaining.collections.is_empty(), remaining.databases.is_empty()) {
        (true, true) => None,
        (true, false) => {
            Some("you need to move or drop these databases: docshard.move_primary(), docshard.drop_database()")
        }
        (false, true) => {
            Some("you need to move or drop these collections: docshard.move_collection(), docshard.drop_collection()")
        }
        (false, false) => Some(
            "you need to move or drop these collections and databases: docshard.move_collection(), docshard.move_primary(), \
             docshard.drop_collection(), docshard.drop_database()",
        ),
    }
}

fn counts(remaining: &Remaining) -> Json {
    json!({
        "chunks": remaining.chunks, "collectionsToMove": remaining.collections.len(), "dbs": remaining.databases.len(),
        "jumboChunks": remaining.jumbo,
    })
}

/// Begins to drain a shard. The shard stays until [`commit_removal`]. Does nothing if the shard is being drained already.
pub fn start_draining(name: &str) -> Result<Json> {
    check_may_change()?;
    if !cache::shard_named(name)?.draining {
        remove::remove(name)?;
        process::wake_at_commit();
    }
    Ok(json!({"ok": 1}))
}

pub fn stop_draining(name: &str) -> Result<Json> {
    remove::stop(name)?;
    process::wake_at_commit();
    Ok(json!({"ok": 1}))
}

/// Returns the progress of draining a shard.
pub fn draining_status(name: &str) -> Result<Json> {
    check_router()?;
    let remaining = remove::remaining(name)?;
    if remaining.is_nothing() {
        return Ok(json!({"msg": "draining completed", "state": "drainingComplete", "ok": 1}));
    }
    Ok(json!({
        "msg": "draining ongoing", "state": "ongoing", "remaining": counts(&remaining), "note": note(&remaining),
        "dbsToMove": remaining.databases, "collectionsToMove": remaining.collections, "ok": 1,
    }))
}

/// Returns the shards that are being drained, each with its progress.
pub fn all_draining() -> Result<Json> {
    check_router()?;
    let mut shards = Vec::new();
    for shard in cache::shards()?.values().filter(|shard| shard.draining) {
        let remaining = remove::remaining(&shard.name)?;
        shards.push(json!({
            "shard": shard.name, "remaining": counts(&remaining), "note": note(&remaining),
            "dbsToMove": remaining.databases, "collectionsToMove": remaining.collections,
        }));
    }
    Ok(json!({"drainingShards": shards, "ok": 1}))
}

/// Removes a shard that has been drained.
pub fn commit_removal(name: &str) -> Result<Json> {
    check_may_change()?;
    ensure!(
        cache::shard_named(name)?.draining,
        Kind::ConflictingOperationInProgress,
        "shard {name} is not currently draining"
    );
    let remaining = remove::remaining(name)?;
    if !remaining.is_nothing() {
        bail!(
            Kind::IllegalOperation,
            "shard {name} is not completely drained: {} chunks and {} databases remain",
            remaining.chunks,
            remaining.databases.len()
        );
    }
    remove::remove(name)?;
    process::wake_at_commit();
    Ok(json!({"ok": 1}))
}

pub fn enable_sharding(db: &str, primary: Option<&str>) -> Result<Json> {
    check_may_change()?;
    databases::enable_sharding(db, primary)?;
    change::announce();
    Ok(json!({"ok": 1}))
}

pub fn drop_database(db: &str) -> Result<Json> {
    let dropped = collection::drop_database(db)?;
    Ok(if dropped { json!({"dropped": db, "ok": 1}) } else { json!({"ok": 1}) })
}

/// Moves the unsharded collections of a database to another shard, which becomes its primary. Each collection moves like a
/// chunk. If one fails, the earlier ones stay moved, and the same call again continues.
pub fn move_primary(db: &str, to: &str) -> Result<Json> {
    check_may_change()?;
    if server::in_transaction_block() {
        let message = "a database cannot be moved inside a transaction block";
        return Err(Error::new(Kind::OperationNotSupportedInTransaction, message));
    }
    namespace::check_database(db)?;
    if namespace::is_reserved(db) || db == namespace::CONFIG {
        bail!(Kind::InvalidOptions, "Can't move primary for {db} database");
    }
    if to.is_empty() {
        bail!(Kind::InvalidOptions, "you have to specify where you want to move it");
    }
    let target = cache::shard_named(to)?;
    target.require_takes_data()?;
    if databases::primary(db)?.is_none() {
        bail!(Kind::NamespaceNotFound, "database {db} not found");
    }
    let mut documents = 0;
    for namespace in databases::unsharded_collections(db)? {
        let chunk = cache::get(&namespace)?.map.find(&[]);
        if chunk.shard == target.id {
            continue;
        }
        let (min, max) = (chunk.min, chunk.max);
        let reason = MOVE_PRIMARY.to_owned();
        let request =
            MoveRequest { namespace, min, max, to: target.id, force_jumbo: true, bytes_per_second: 0, reason };
        documents += jobs::move_and_wait(&request)?.documents;
    }
    databases::set_primary(db, target.id)?;
    Ok(json!({"primary": to, "documents": documents, "ok": 1}))
}

fn zone(change: impl FnOnce() -> Result<()>) -> Result<Json> {
    check_may_change()?;
    change()?;
    process::wake_at_commit();
    Ok(json!({"ok": 1}))
}

pub fn add_to_zone(shard: &str, name: &str) -> Result<Json> {
    zone(|| zones::add_shard(shard, name))
}

pub fn remove_from_zone(shard: &str, name: &str) -> Result<Json> {
    zone(|| zones::remove_shard(shard, name))
}

pub fn update_zone_range(ns: &str, min: &Json, max: &Json, name: Option<&str>) -> Result<Json> {
    zone(|| zones::update_range(ns, min, max, name))
}
