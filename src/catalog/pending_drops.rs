//! Drops that are still to be done at shards which could not be reached: the rows of `docshard_catalog.pending_drops`.
//!
//! Whoever connects to such a shard does them before anything else there (see `remote::handshake`); the worker does so, too, and
//! then deletes the rows. Doing them twice is no harm. A collection, or an index, that is made under the same name meanwhile
//! has another number, so nothing is mixed.

use super::cache;
use super::nodes::{call_on_all, read_on};
use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, spi, transaction};
use crate::protocol::table::{DropIndex, DropTable, ExcludeWriters};
use crate::remote::Session;
use docshard_core::cluster::chunk_map::ShardId;

/// What is dropped at shards, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// a collection's table
    Collection(i32),
    /// a secondary index
    Index(i32),
}

impl Dropped {
    fn kind(self) -> &'static str {
        match self {
            Dropped::Collection(_) => "collection",
            Dropped::Index(_) => "index",
        }
    }

    fn number(self) -> i32 {
        match self {
            Dropped::Collection(number) | Dropped::Index(number) => number,
        }
    }

    fn from_row(kind: &str, number: i32) -> Self {
        if kind == "index" { Dropped::Index(number) } else { Dropped::Collection(number) }
    }

    /// The statement that does it at a shard, without harm if it is done.
    fn statement(self) -> String {
        match self {
            Dropped::Collection(collection) => DropTable { collection }.text(),
            Dropped::Index(index) => DropIndex { index }.text(),
        }
    }
}

/// True for the errors of a shard that is not there.
fn is_unreachable(error: &Error) -> bool {
    error.sqlstate.starts_with(b"08") || error.sqlstate.starts_with(b"57P")
}

/// Drops something at the shards that can be reached, in the caller's transaction, and notes it for the others, whose names are
/// the answer.
///
/// # Errors
/// Those of the shards that answer.
pub fn drop_everywhere(shards: &[ShardId], dropped: Dropped, namespace: &str) -> Result<Vec<String>> {
    let (mut reached, mut late) = (Vec::with_capacity(shards.len()), Vec::new());
    for id in shards {
        let shard = cache::shard(*id)?;
        match read_on(&shard, "SELECT 1", &[], 1) {
            Ok(_) => reached.push(*id),
            Err(error) if is_unreachable(&error) => late.push(shard),
            Err(error) => return Err(error),
        }
    }
    match dropped {
        Dropped::Collection(collection) => {
            call_on_all(&reached, &ExcludeWriters { collection })?;
            call_on_all(&reached, &DropTable { collection })?;
        }
        Dropped::Index(index) => call_on_all(&reached, &DropIndex { index })?,
    }
    for shard in &late {
        spi::execute(
            "INSERT INTO docshard_catalog.pending_drops (shard_id, kind, number, namespace) VALUES ($1, $2, $3, $4) \
             ON CONFLICT DO NOTHING",
            &[
                Param::Int4(shard.id),
                Param::Text(dropped.kind()),
                Param::Int4(dropped.number()),
                Param::Text(namespace),
            ],
        )?;
        pgrx::notice!("shard \"{}\" cannot be reached: there {namespace} is dropped when it is back", shard.name);
    }
    Ok(late.iter().map(|shard| shard.name.clone()).collect())
}

/// What is to be done at a server's shard before anything else, as statements. Whoever connects may not read the catalog, or
/// reads it as it was when a transaction began.
///
/// # Errors
/// Internal ones.
pub fn statements(server: &str) -> Result<Vec<String>> {
    let rows = user::as_extension_owner(|| {
        let _snapshot = ActiveSnapshot::latest();
        spi::read(
            "SELECT p.kind, p.number FROM docshard_catalog.pending_drops p JOIN docshard_catalog.shards s ON s.id = p.shard_id \
             WHERE s.server = $1::pg_catalog.name ORDER BY p.kind, p.number",
            &[Param::Text(server)],
        )
    })?;
    Ok(rows.iter().map(|row| Dropped::from_row(row.text(0), row.i32(1)).statement()).collect())
}

/// Does what is left at shards that can be reached again, each in a transaction of its own; called outside of any.
///
/// # Errors
/// The first one of a shard that answers; the others are done all the same.
pub fn finish() -> Result<()> {
    let rows = transaction::run(|| {
        spi::query(
            "SELECT shard_id, kind, number FROM docshard_catalog.pending_drops ORDER BY shard_id, kind, number",
            &[],
        )
    })?;
    let mut shards: Vec<ShardId> = rows.iter().map(|row| row.i32(0)).collect();
    shards.dedup();
    let mut outcome = Ok(());
    for shard in shards {
        let due: Vec<Dropped> = rows
            .iter()
            .filter(|row| row.i32(0) == shard)
            .map(|row| Dropped::from_row(row.text(1), row.i32(2)))
            .collect();
        match transaction::run(|| finish_at(shard, &due)) {
            Err(error) if !is_unreachable(&error) && outcome.is_ok() => outcome = Err(error),
            _ => {}
        }
    }
    outcome
}

fn finish_at(shard: ShardId, due: &[Dropped]) -> Result<()> {
    let shard = cache::shard(shard)?;
    let Some(server) = shard.place.server() else { return Ok(()) };
    let mut session = Session::open(server)?;
    session.execute("SET lock_timeout = '2s'")?;
    for dropped in due {
        session.query(&dropped.statement(), &[]).map_err(|e| e.with_context(format!("shard \"{}\"", shard.name)))?;
        spi::execute(
            "DELETE FROM docshard_catalog.pending_drops WHERE shard_id = $1 AND kind = $2 AND number = $3",
            &[Param::Int4(shard.id), Param::Text(dropped.kind()), Param::Int4(dropped.number())],
        )?;
    }
    Ok(())
}
