//! Reports the health of every shard. All shards are queried at once, within a time limit, as some may not respond.

use crate::catalog::behind::{self, Seen};
use crate::catalog::shards::names::LOCAL;
use crate::catalog::{cluster, contacts, survey};
use crate::ownership::health;
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use crate::pg::spi::record::{malformed, parse_json, record};
use crate::protocol::Call;
use crate::protocol::node::NodeHealth;
use crate::store;
use crate::worker::activity::{self, Activity};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::datum::datetime_support::clock_timestamp;
use serde_json::Value as Json;
use std::time::Duration;

/// The most bytes of a shard's report. The report of one shard must not prevent those of others.
const MAX_REPORT: usize = 1 << 20;

/// The name of the router's row if its own database is no shard; no shard can have it.
const ROUTER: &str = "(router)";

/// The health of a shard.
#[derive(Debug)]
pub struct Health {
    pub shard: String,
    /// the round trip of the query on an established connection
    pub latency_ms: Option<f64>,
    pub reachable: bool,
    /// the result of `node_health`; null if the shard cannot be reached
    pub node: Json,
    pub last_contact: Option<TimestampWithTimeZone>,
    pub error: Option<String>,
}

/// What a shard answers.
struct Reports {
    report: Vec<u8>,
    seen: Vec<u8>,
}

record! { Reports { report: Vec<u8>, seen: Vec<u8> } }

pub fn of_shards(limit: Duration) -> Result<Vec<Health>> {
    let expected = behind::Expected::read()?;
    let from =
        format!("(SELECT {} AS report, {} AS seen) AS reports", NodeHealth::SIGNATURE.invocation(), behind::SEEN);
    let answers = survey::ask(&from, &[Param::OptInt4(None)], limit)?;
    let mut contacts = contacts::last()?;
    let held_up = activity::current()?.filter(Activity::is_long);
    let held_up = |shard: &str| {
        let activity = held_up.as_ref().filter(|activity| activity.shard.as_deref() == Some(shard))?;
        Some(format!("the background worker has waited for it for {} s: {}", activity.seconds, activity.what))
    };
    let of_shard = |survey::ShardAnswer { shard, rows, latency }| {
        let (last_contact, name) = (contacts.remove(&shard.id), shard.name.clone());
        match rows.and_then(|rows| read(&rows)) {
            Ok((node, seen)) => {
                let behind = expected.behind(&shard, &seen)?;
                let error = (!behind.is_empty())
                    .then(|| format!("{}; {}", behind::describe(&shard.name, &behind), behind::hint(&shard.name)))
                    .or_else(|| held_up(&shard.name));
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
        all.insert(0, Health { shard, latency_ms: None, reachable: true, node, last_contact, error: None });
    }
    // The router's own row, which has no other error.
    if let Some(own) = all.iter_mut().find(|one| one.shard == LOCAL || one.shard == ROUTER) {
        own.error = own.error.take().or(cluster::lacks_keeper()?);
    }
    Ok(all)
}

/// The report of a node, and what it has of collections.
fn read(reports: &[Reports]) -> Result<(Json, Seen)> {
    let [Reports { report, seen }] = reports else { return Err(malformed("node_health", "no report")) };
    let report = match report.len() {
        ..=MAX_REPORT => parse_json("node_health", report)?,
        length => return Err(malformed("node_health", &format!("{length} bytes"))),
    };
    Ok((report, Seen::read(seen)?))
}
