//! Reports the health of every shard. All shards are queried at once, within a time limit, as some may not respond.

use crate::catalog::shards::names::LOCAL;
use crate::catalog::{contacts, survey};
use crate::ownership::health;
use crate::pg::error::Result;
use crate::pg::spi::record::{malformed, parse_json};
use crate::protocol::node::NodeHealth;
use crate::store;
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
    /// the result of `node_health`; null if the shard cannot be reached
    pub node: Json,
    pub last_contact: Option<TimestampWithTimeZone>,
    pub error: Option<String>,
}

pub fn of_shards(limit: Duration) -> Result<Vec<Health>> {
    let answers = survey::call(&NodeHealth {}, limit)?;
    let mut contacts = contacts::last()?;
    let report = |text: String| match text.len() {
        ..=MAX_REPORT => parse_json("node_health", text.as_bytes()),
        length => Err(malformed("node_health", &format!("{length} bytes"))),
    };
    let of_shard = |answer: survey::Called<String>| {
        let last_contact = contacts.remove(&answer.shard.id);
        let shard = answer.shard.name.clone();
        match answer.answer.and_then(report) {
            Ok(node) => Health {
                shard,
                latency_ms: answer.latency.map(|latency| (latency.as_secs_f64() * 1e5).round() / 100.0),
                node,
                last_contact: Some(clock_timestamp()),
                error: None,
            },
            Err(error) => {
                let error = Some(error.message.trim().to_owned());
                Health { shard, latency_ms: None, node: Json::Null, last_contact, error }
            }
        }
    };
    let mut all: Vec<Health> = answers.into_iter().map(of_shard).collect();
    if store::shards::id(LOCAL)?.is_none() {
        let node = report(health::of_this_node()?)?;
        let (shard, last_contact) = (ROUTER.to_owned(), Some(clock_timestamp()));
        all.insert(0, Health { shard, latency_ms: None, node, last_contact, error: None });
    }
    Ok(all)
}
