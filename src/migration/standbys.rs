//! A move waits for the streaming standbys of both shards: it decides only when they have what its shards have prepared.
//!
//! A move deletes the donor's copy of the documents, which may be old. So the moved documents must survive a failover of the recipient to
//! an asynchronous standby. (An acknowledged write survives that only if the standby was fast enough.) If the standby has the recipient's
//! part, the decision completes the move after the promotion. The donor's part is awaited, too: without it, a promoted donor would be at an
//! older version than the catalog, and would refuse the collection's statements until an administrator adopts it.
//!
//! The move waits for every server that has been connected since it began and could be promoted. A synchronous standby has the part already. A
//! standby that was not connected is not waited for, so it blocks no move. If a standby does not keep up, the move gives up: before writers are
//! excluded after `move_wait_ms`, afterwards within `docshard.max_write_stall`.
//!
//! INVARIANT: a standby that has been seen counts until the move ends. PostgreSQL disconnects a standby that hangs after `wal_sender_timeout`, by
//! default as long as `move_wait_ms`; nevertheless it can be promoted. A new session of the same server takes the place of the former one.

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
    is_connected: bool,
}

impl Lagging {
    /// The error of a move that gives up because of this standby.
    pub fn gave_way(&self) -> Error {
        let Self { shard, standby, bytes, is_connected } = self;
        let state = match is_connected {
            true => format!("is {bytes} bytes behind"),
            false => format!("has disconnected, {bytes} bytes behind"),
        };
        let message = format!(
            "gave up waiting for the standby \"{standby}\" of shard \"{shard}\", which {state}: in a failover to it the moved documents \
             would be lost"
        );
        Error::new(Kind::LockTimeout, message).with_hint(format!(
            "See docshard.health. Move the chunk again when the standby has caught up, or stop its replication; the setting {SETTING} \
             lets moves not wait."
        ))
    }
}

/// A standby of a shard.
struct Standby {
    name: String,
    /// the same in all of its sessions
    server: String,
    /// empty for a shard of 0.3.0, which does not report it
    session: String,
    /// the last position that it has reported
    flushed: i64,
    is_connected: bool,
}

/// What a shard reports of its WAL.
struct Report {
    flushed: i64,
    standbys: Vec<Standby>,
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
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
            let flushed =
                one["flushed"].as_i64().ok_or_else(|| malformed("node_health", "a standby without a position"))?;
            let (name, server, session) = (text("name"), text("server"), text("session"));
            Ok(Standby { name, server, session, flushed, is_connected: true })
        };
        Ok(Some(Self { flushed, standbys: streaming.iter().map(standby).collect::<Result<_>>()? }))
    }
}

/// The standbys of a shard that have been seen since a move or a change of layout began.
#[derive(Default)]
pub struct Seen(Vec<Standby>);

impl Seen {
    /// Asks the shard for its standbys; returns the position that it has flushed. None for a shard of an earlier release.
    pub fn look(&mut self, shard: &mut ShardSession) -> Result<Option<i64>> {
        let Some(report) = Report::of(shard)? else { return Ok(None) };
        self.add(report.standbys);
        Ok(Some(report.flushed))
    }

    fn add(&mut self, connected: Vec<Standby>) {
        // A shard of 0.3.0 does not report sessions, so its standbys cannot be recognized: only those that are connected now are known.
        self.0.retain(|one| !one.session.is_empty());
        for one in &mut self.0 {
            one.is_connected = false;
        }
        let mut new = Vec::new();
        for found in connected {
            match self.0.iter_mut().find(|one| one.session == found.session) {
                Some(same) if !found.session.is_empty() => *same = found,
                _ => new.push(found),
            }
        }
        for found in new {
            let is_former = |one: &&mut Standby| !one.is_connected && one.server == found.server;
            // Several standbys may have the same name and address. The new session must not hide the one that is furthest behind.
            match self.0.iter_mut().filter(is_former).max_by_key(|one| one.flushed) {
                Some(former) => *former = found,
                None => self.0.push(found),
            }
        }
    }

    /// Returns the standby that is furthest behind a position; None if none is behind it. `must_stay`: a standby that has disconnected counts,
    /// even if it was not behind before, because it will lack what comes.
    fn lagging(&self, shard: &str, position: i64, must_stay: bool) -> Option<Lagging> {
        let is_behind = |one: &&Standby| one.flushed < position || must_stay && !one.is_connected;
        let Standby { name, flushed, is_connected, .. } =
            self.0.iter().filter(is_behind).min_by_key(|one| one.flushed)?;
        let bytes = position.saturating_sub(*flushed).max(0);
        Some(Lagging { shard: shard.to_owned(), standby: name.clone(), bytes, is_connected: *is_connected })
    }

    /// Waits until the shard's standbys have flushed what the shard has now.
    pub fn wait(&mut self, shard: &mut ShardSession, must_stay: bool, deadline: Instant) -> Result<Standbys> {
        let Some(position) = self.look(shard)? else { return Ok(Standbys::None) };
        let mut pause = PAUSES.0;
        while let Some(lagging) = self.lagging(&shard.name, position, must_stay) {
            if Instant::now() >= deadline {
                return Ok(Standbys::Lag(lagging));
            }
            sleep_ms(pause);
            pause = (pause * 2).min(PAUSES.1);
            self.look(shard)?;
        }
        Ok(if self.0.is_empty() { Standbys::None } else { Standbys::FollowClosely })
    }
}

/// The standbys of both shards of a move.
#[derive(Default)]
pub(super) struct Both {
    donor: Seen,
    recipient: Seen,
}

/// What a wait for standbys has found.
pub enum Standbys {
    /// none has been connected to the two shards, or moves do not wait
    None,
    /// they have flushed what the shards had
    FollowClosely,
    Lag(Lagging),
}

impl Both {
    /// Remembers the standbys that are connected at the beginning.
    pub(super) fn look(&mut self, donor: &mut ShardSession, recipient: &mut ShardSession) -> Result<()> {
        if transaction::run(|| settings::boolean(SETTING))? {
            self.recipient.look(recipient)?;
            self.donor.look(donor)?;
        }
        Ok(())
    }

    /// Waits until the standbys have flushed what the two shards have flushed by now. `must_stay`: those that have disconnected must come back
    /// in any case. The sessions must be in no transaction.
    pub(super) fn wait(
        &mut self,
        donor: &mut ShardSession,
        recipient: &mut ShardSession,
        must_stay: bool,
        deadline: Instant,
    ) -> Result<Standbys> {
        if !transaction::run(|| settings::boolean(SETTING))? {
            return Ok(Standbys::None);
        }
        let found = self.recipient.wait(recipient, must_stay, deadline)?;
        Ok(match (found, self.donor.wait(donor, must_stay, deadline)?) {
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
