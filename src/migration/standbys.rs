//! A move waits for the streaming standbys of both shards: it decides only when they have what its shards have prepared.
//!
//! A move deletes the donor's copy of the documents, which may be old. So the moved documents must survive a failover of the recipient to
//! an asynchronous standby. (An acknowledged write survives that only if the standby was fast enough.) If the standby has the recipient's
//! part, the decision completes the move after the promotion. The donor's part is awaited, too: without it, a promoted donor would be at an
//! older version than the catalog, and would refuse the collection's statements until an administrator adopts it.
//!
//! The move waits for every server that streams at this moment and could be promoted. A synchronous standby has the part already. A standby
//! that is not connected is not waited for, so it blocks no move. If a standby does not keep up, the move gives up: before writers are
//! excluded after `move_wait_ms`, afterwards within `docshard.max_write_stall`.

use super::attempt::Attempt;
use super::shard::ShardSession;
use crate::catalog::cluster::settings;
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::transaction;
use docshard_core::error::Kind;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::NodeHealth;
use docshard_core::sql::record::{malformed, parse_json};
use std::time::{Duration, Instant};

/// The setting that switches the wait off.
pub const SETTING: &str = "move_waits_for_standbys";

/// The first and the longest pause between two looks at the standbys, in milliseconds.
const PAUSES: (i64, i64) = (2, 20);

/// The most bytes of a shard's report.
const MAX_REPORT: usize = 1 << 20;

/// The standby that is furthest behind.
pub struct Lagging {
    shard: String,
    standby: String,
    bytes: i64,
}

impl Lagging {
    /// The error of a move that gives up because of this standby.
    pub fn gave_way(&self) -> Error {
        let Self { shard, standby, bytes } = self;
        let message = format!(
            "gave up waiting for the standby \"{standby}\" of shard \"{shard}\", which is {bytes} bytes behind: in a failover to \
             it the moved documents would be lost"
        );
        Error::new(Kind::LockTimeout, message).with_hint(format!(
            "See docshard.health. Move the chunk again when the standby has caught up, or stop its replication; the setting {SETTING} \
             lets moves not wait."
        ))
    }
}

/// What a shard reports of its WAL.
struct Report {
    flushed: i64,
    /// standbys that stream now, and what they have flushed
    streaming: Vec<(String, i64)>,
}

impl Report {
    /// Asks a shard. None for a shard of an earlier release, which does not report its WAL.
    fn of(shard: &mut ShardSession) -> Result<Option<Self>> {
        let text = NodeHealth {}.call(shard)?;
        if text.len() > MAX_REPORT {
            return Err(malformed("node_health", &format!("{} bytes", text.len())));
        }
        let report = parse_json("node_health", text.as_bytes())?;
        let (Some(flushed), Some(streaming)) = (report["flushed"].as_i64(), report["streaming"].as_array()) else {
            return Ok(None);
        };
        let standby = |one: &serde_json::Value| {
            let name = one["name"].as_str().unwrap_or_default().to_owned();
            let flushed =
                one["flushed"].as_i64().ok_or_else(|| malformed("node_health", "a standby without a position"))?;
            Ok((name, flushed))
        };
        Ok(Some(Self { flushed, streaming: streaming.iter().map(standby).collect::<Result<_>>()? }))
    }

    /// Returns the standby that is furthest behind a position; None if none is behind it.
    fn lagging(&self, shard: &str, position: i64) -> Option<Lagging> {
        let (standby, flushed) = self.streaming.iter().min_by_key(|(_, flushed)| *flushed)?;
        let bytes = position.saturating_sub(*flushed);
        (bytes > 0).then(|| Lagging { shard: shard.to_owned(), standby: standby.clone(), bytes })
    }
}

/// What a wait for standbys has found.
pub enum Standbys {
    /// none streams from the two shards, or moves do not wait
    None,
    /// they have flushed what the shards had
    FollowClosely,
    Lag(Lagging),
}

/// Waits until the shard's streaming standbys have flushed what the shard has now.
pub fn await_shard(shard: &mut ShardSession, deadline: Instant) -> Result<Standbys> {
    let Some(mut report) = Report::of(shard)? else { return Ok(Standbys::None) };
    let position = report.flushed;
    let mut pause = PAUSES.0;
    while let Some(lagging) = report.lagging(&shard.name, position) {
        if Instant::now() >= deadline {
            return Ok(Standbys::Lag(lagging));
        }
        sleep_ms(pause);
        pause = (pause * 2).min(PAUSES.1);
        let Some(next) = Report::of(shard)? else { break };
        report = next;
    }
    Ok(if report.streaming.is_empty() { Standbys::None } else { Standbys::FollowClosely })
}

impl Attempt {
    /// Waits until the streaming standbys have flushed what the two shards have flushed by now.
    ///
    /// The load session may be in a transaction, so the recipient is asked in the pull session. The donor session must be in none.
    pub(super) fn await_standbys(&mut self, deadline: Instant) -> Result<Standbys> {
        if !transaction::run(|| settings::boolean(SETTING))? {
            return Ok(Standbys::None);
        }
        Ok(match (await_shard(&mut self.puller, deadline)?, await_shard(&mut self.donor, deadline)?) {
            (Standbys::Lag(lagging), _) | (_, Standbys::Lag(lagging)) => Standbys::Lag(lagging),
            (Standbys::None, Standbys::None) => Standbys::None,
            _ => Standbys::FollowClosely,
        })
    }
}

/// Returns the share of a time limit that standbys get to catch up: once before writers are excluded, and once more
/// after the hand-over.
pub(super) fn share(limit: Duration) -> Duration {
    limit / 4
}
