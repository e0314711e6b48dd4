//! How each shard is, also while some hang: all are asked at once, within a bound.

use crate::catalog::{contacts, survey};
use crate::pg::error::Result;
use crate::protocol::node::NodeHealth;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::datum::datetime_support::clock_timestamp;
use serde_json::Value as Json;
use std::time::Duration;

/// A shard's health.
#[derive(Debug, Default)]
pub struct Health {
    /// its name
    pub shard: String,
    /// how long it took to answer, over a connection that was ready
    pub latency_ms: Option<f64>,
    /// what it tells of itself
    pub node: Option<Node>,
    /// when the router last heard of it
    pub last_contact: Option<TimestampWithTimeZone>,
    /// why it cannot be reached
    pub error: Option<String>,
}

/// What a node tells of itself; None is what it does not know.
#[derive(Debug, Default)]
pub struct Node {
    /// docshard's version
    pub version: Option<String>,
    /// PostgreSQL's version
    pub postgresql: Option<String>,
    /// of what it writes now
    pub timeline: Option<i32>,
    /// standbys that are connected
    pub standbys: Option<i64>,
    /// those for which commits wait
    pub sync_standbys: Option<i64>,
    /// how far the last of them is behind
    pub lag_bytes: Option<i64>,
    /// each of them, as JSON
    pub replication: Option<String>,
    /// the age of the oldest transaction that is prepared
    pub oldest_in_doubt_s: Option<f64>,
    /// how many more clients may connect
    pub free_connections: Option<i64>,
}

impl Node {
    fn of(text: &str) -> Self {
        let json: Json = serde_json::from_str(text).unwrap_or_default();
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        let number = |name: &str| json[name].as_i64();
        Self {
            version: text("version"),
            postgresql: text("postgresql"),
            timeline: number("timeline").and_then(|timeline| timeline.try_into().ok()),
            standbys: number("standbys"),
            sync_standbys: number("syncStandbys"),
            lag_bytes: number("lagBytes"),
            replication: json["replication"].is_array().then(|| json["replication"].to_string()),
            oldest_in_doubt_s: json["oldestInDoubt"].as_f64(),
            free_connections: number("freeConnections"),
        }
    }
}

/// Every shard's health.
pub fn of_shards(limit: Duration) -> Result<Vec<Health>> {
    let answers = survey::call(&NodeHealth {}, limit)?;
    let mut contacts = contacts::last()?;
    let health = |answer: survey::Called<String>| {
        let last = contacts.remove(&answer.shard.id);
        let mut health = Health { shard: answer.shard.name.clone(), ..Health::default() };
        match answer.answer {
            Ok(text) => {
                health.latency_ms = answer.latency.map(|latency| (latency.as_secs_f64() * 1e5).round() / 100.0);
                health.node = Some(Node::of(&text));
                health.last_contact = Some(clock_timestamp());
            }
            Err(error) => (health.error, health.last_contact) = (Some(error.message.trim().to_owned()), last),
        }
        health
    };
    Ok(answers.into_iter().map(health).collect())
}
