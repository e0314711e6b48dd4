//! Reports the health of every shard. All shards are queried at once, within a time limit, as some may not respond.

use crate::catalog::cluster::behind::{self, Seen};
use crate::catalog::cluster::shards::names::LOCAL;
use crate::catalog::cluster::survey::{self, ShardAnswer};
use crate::catalog::cluster::{contacts, identity};
use crate::migration::{self, names};
use crate::pg::error::Result;
use crate::shard::health;
use crate::worker::activity::{self, Activity};
use crate::{storage, store};
use docshard_core::routing::protocol::node::NodeHealth;
use docshard_core::routing::protocol::shard_tables::{HealthReport, ReportHealth};
use docshard_core::sql::record::{malformed, parse_json};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::datum::datetime_support::clock_timestamp;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::ffi::CStr;
use std::time::Duration;

/// The largest report of a shard, in bytes. A larger one becomes that shard's error, and the other rows are shown all the same.
const MAX_REPORT: usize = 1 << 20;

/// The name of the router's row if its own database is no shard; no shard can have it.
const ROUTER: &str = "(router)";

/// The health of a shard.
#[derive(Debug)]
pub struct Health {
    pub shard: String,
    /// the round trip of the query on an established connection; None without an answer, and in the row `(router)`
    pub latency_ms: Option<f64>,
    pub reachable: bool,
    /// the result of `node_health`; null if the shard cannot be reached
    pub node: Json,
    pub last_contact: Option<TimestampWithTimeZone>,
    pub error: Option<String>,
}

pub fn of_shards(limit: Duration) -> Result<Vec<Health>> {
    let expected = behind::Expected::read()?;
    let answers = survey::call(&ReportHealth {}, limit)?;
    let mut contacts = contacts::last()?;
    let held_up = activity::current()?.filter(Activity::is_long);
    let held_up = |shard: &str| {
        let activity = held_up.as_ref().filter(|activity| activity.shard.as_deref() == Some(shard))?;
        Some(format!("the background worker has waited for it for {} s: {}", activity.seconds, activity.what))
    };
    let of_shard = |ShardAnswer { shard, answer, latency }| {
        let (last_contact, name) = (contacts.remove(&shard.id), shard.name.clone());
        match answer.and_then(|report| read(&report)) {
            Ok((node, seen)) => {
                let error = expected
                    .difference(&shard, &seen)?
                    .map(|difference| difference.to_string())
                    .or(left_by_lost_move(&seen)?)
                    .or_else(|| held_up(&shard.name))
                    .or_else(|| unguarded(&node));
                let latency_ms = latency.map(|latency| (latency.as_secs_f64() * 1e5).round() / 100.0);
                let last_contact = Some(clock_timestamp());
                Ok(Health { shard: name, latency_ms, reachable: true, node, last_contact, error })
            }
            Err(error) => {
                let (node, error) = (Json::Null, Some(error.message.trim().to_owned()));
                Ok(Health { shard: name, latency_ms: None, reachable: false, node, last_contact, error })
            }
        }
    };
    let mut all: Vec<Health> = answers.into_iter().map(of_shard).collect::<Result<_>>()?;
    if store::shards::id(LOCAL)?.is_none() {
        let node = parse_json("node_health", health::of_this_node()?.as_bytes())?;
        let (shard, last_contact) = (ROUTER.to_owned(), Some(clock_timestamp()));
        let error = unguarded(&node);
        all.insert(0, Health { shard, latency_ms: None, reachable: true, node, last_contact, error });
    }
    // The router's own row also shows problems of the cluster. The first of these is shown: no keeper, the node's own error, unequal forms
    // of a function, a move that failed.
    if let Some(own) = all.iter_mut().find(|one| one.shard == LOCAL || one.shard == ROUTER) {
        let moves = store::migrations::errors_of_running()?.into_iter().next();
        own.error = identity::lacks_keeper()?.or(own.error.take()).or_else(|| unequal_forms(&own.node)).or(moves);
    }
    Ok(all)
}

/// Names a prepared transaction of a move that the catalog does not have, and says what to do; None if there is none.
fn left_by_lost_move(seen: &Seen) -> Result<Option<String>> {
    let cluster = identity::cluster_id()?;
    for gid in seen.prepared() {
        if let Some(id) = names::move_of(gid, cluster)
            && !migration::is_in_catalog(id)?
        {
            let hint = migration::HOW_TO_END;
            return Ok(Some(format!(
                "the prepared transaction {gid} is of a move that the catalog does not have; {hint}"
            )));
        }
    }
    Ok(None)
}

/// Returns the problems that can be found without asking a shard: disabled triggers, unequal forms of functions, errors
/// of running moves.
pub fn problems_here() -> Result<Vec<String>> {
    let node = parse_json("node_health", health::of_this_node()?.as_bytes())?;
    let moves = store::migrations::errors_of_running()?;
    Ok(unguarded(&node).into_iter().chain(unequal_forms(&node)).chain(moves).collect())
}

/// Asks the other shards which of docshard's triggers and event triggers are disabled. Returns a description of these
/// by the shard's name; shards that do not answer are left out.
pub fn unguarded_shards(limit: Duration) -> Result<HashMap<String, String>> {
    let of = |ShardAnswer { shard, answer, .. }: ShardAnswer<String>| {
        let report = answer.ok().filter(|report| shard.name != LOCAL && report.len() <= MAX_REPORT)?;
        Some((shard.name.clone(), unguarded(&parse_json("node_health", report.as_bytes()).ok()?)?))
    };
    Ok(survey::call(&NodeHealth {}, limit)?.into_iter().filter_map(of).collect())
}

/// The triggers of docshard, and how they are enabled. A shard's report may name others, which are ignored.
const TRIGGERS: [(&str, &str); 4] =
    [("capture", " ALWAYS"), ("refuse_truncate", " ALWAYS"), ("note_membership", " ALWAYS"), ("restore_replaces", "")];
const EVENT_TRIGGERS: [&str; 2] = ["docshard_watch_drops", "docshard_check_changes"];

/// Describes which of docshard's triggers and event triggers are disabled at a node, and how to enable them; None if
/// none is.
fn unguarded(node: &Json) -> Option<String> {
    let schemas = [store::SCHEMA, storage::SCHEMA].map(CStr::to_bytes);
    let is_table = |name: &str| {
        let is_plain = |name: &str| name.len() < 64 && name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
        name.split_once('.').is_some_and(|(schema, name)| schemas.contains(&schema.as_bytes()) && is_plain(name))
    };
    let of = |one: &Json| match (one[0].as_str()?, one[1].as_str()) {
        ("event_triggers", None) => Some("the setting event_triggers is off".to_owned()),
        (name, None) if EVENT_TRIGGERS.contains(&name) => {
            Some(format!("the event trigger {name} is disabled: ALTER EVENT TRIGGER {name} ENABLE ALWAYS"))
        }
        (name, Some(table)) if is_table(table) => {
            let (name, how) = TRIGGERS.iter().find(|(known, _)| *known == name)?;
            Some(format!("the trigger {name} of {table} is disabled: ALTER TABLE {table} ENABLE{how} TRIGGER {name}"))
        }
        _ => None,
    };
    let all: Vec<_> = node["guard"].as_array()?.iter().filter_map(of).collect();
    let (first, more) = (all.first()?, all.len() - 1);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    Some(format!("docshard's objects are not protected: {first}{more}"))
}

/// Describes which functions have two forms with different privileges; None if there are none.
fn unequal_forms(node: &Json) -> Option<String> {
    let names: Vec<_> =
        node["forms"].as_array()?.iter().filter_map(Json::as_str).map(|name| format!("docshard.{name}")).collect();
    let first = names.first()?;
    Some(format!(
        "the forms with json and with jsonb of {} have different privileges. GRANT or REVOKE on both forms; \\df {first} lists them.",
        names.join(", ")
    ))
}

/// Parses a shard's answer: the report of the node, and its versions of collections.
fn read(HealthReport { report, seen }: &HealthReport) -> Result<(Json, Seen)> {
    let report = match report.len() {
        ..=MAX_REPORT => parse_json("node_health", report)?,
        length => return Err(malformed("node_health", &format!("{length} bytes"))),
    };
    Ok((report, Seen::read(seen)?))
}
