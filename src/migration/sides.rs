//! Sessions on both shards of a move, and what they have prepared.

use super::record::Record;
use super::shard::{self, Remote};
use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::quote_literal;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::Part;
use docshard_core::error::Kind;

/// SQLSTATE of a prepared transaction that is not there.
const UNDEFINED_OBJECT: [u8; 5] = *b"42704";

/// Sessions on both shards, opened when they are needed.
#[derive(Default)]
pub(super) struct Sides {
    pub(super) donor: Option<Remote>,
    pub(super) recipient: Option<Remote>,
    /// S, which has read at the donor
    pub(super) puller: Option<Remote>,
}

impl Sides {
    /// The session on the donor.
    pub(super) fn donor(&mut self, record: &Record) -> Result<&mut Remote> {
        session(&mut self.donor, record.donor)
    }

    /// R's session on the recipient.
    pub(super) fn recipient(&mut self, record: &Record) -> Result<&mut Remote> {
        session(&mut self.recipient, record.recipient)
    }
}

fn session(side: &mut Option<Remote>, shard: ShardId) -> Result<&mut Remote> {
    match side {
        Some(session) => Ok(session),
        // Not the application name of the move's own sessions: the cleaning ends those, but for the one that it uses.
        None => Ok(side.insert(shard::connect(shard, "docshard recovery")?)),
    }
}

/// Prepares the session's transaction, and makes sure that it is: a failed one is rolled back by PREPARE, without error.
pub(super) fn prepare(shard: &mut Remote, gid: &str) -> Result<()> {
    shard.execute(&format!("PREPARE TRANSACTION {}", quote_literal(gid)))?;
    if is_prepared(shard, gid)? {
        return Ok(());
    }
    Err(Error::new(Kind::OperationFailed, format!("shard \"{}\" did not prepare its part of the move", shard.name)))
}

/// True if the shard has a prepared transaction of this name.
pub(super) fn is_prepared(shard: &mut Remote, gid: &str) -> Result<bool> {
    let rows = shard.query(
        "SELECT 1 FROM pg_catalog.pg_prepared_xacts WHERE gid = $1 AND database = current_database()",
        &[Param::Text(gid)],
    )?;
    Ok(!rows.is_empty())
}

/// Commits what is prepared; being told that it is not there is no error, as somebody may have committed it before.
pub(super) fn commit_prepared(shard: &mut Remote, gid: &str) -> Result<()> {
    match shard.execute(&format!("COMMIT PREPARED {}", quote_literal(gid))) {
        Err(error) if error.sqlstate == UNDEFINED_OBJECT => Ok(()),
        other => other,
    }
}

/// What a shard has of a committed move.
pub(super) fn part(shard: &mut Remote, record: &Record, gid: &str) -> Result<Part> {
    if is_prepared(shard, gid)? {
        return Ok(Part::Prepared);
    }
    let version = shard.number(
        "SELECT version FROM docshard_data.placement WHERE collection_id = $1 AND token = $2",
        &[Param::Int4(record.collection), Param::Int8(record.token)],
    )?;
    Ok(if version.is_some_and(|v| v >= record.version) { Part::Committed } else { Part::Nothing })
}

/// Rolls back what is prepared.
pub(super) fn rollback_prepared(shard: &mut Remote, gid: &str) -> Result<()> {
    shard.execute(&format!("ROLLBACK PREPARED {}", quote_literal(gid)))
}
