//! Drops of collections and indexes that are still to be performed on shards which could not be reached.
//!
//! A session that connects to such a shard performs these drops first (see `remote::handshake`); the worker does the same and then deletes
//! the rows. So a drop may be performed twice, and is idempotent. Drops name objects by number: a collection or index that was created under
//! the same name meanwhile has another number and is not affected.

use crate::catalog::cache;
use crate::catalog::cluster::nodes::{call_on_all, read_call_on};
use crate::pg::error::Result;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, transaction};
use crate::remote::Session;
use crate::store::pending_drops::{self as store, DroppedKind, PendingDrop};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::turns::Turns;
use docshard_core::routing::protocol::node::Ping;
use docshard_core::routing::protocol::table::{DropIndex, DropTable, ExcludeWriters};
use std::cell::RefCell;

thread_local! {
    /// The drops that have failed, by database.
    static FAILED: RefCell<Turns<String>> = RefCell::default();
}

/// What is dropped at shards, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// a collection's table
    Collection(i32),
    /// a secondary index
    Index(i32),
}

impl Dropped {
    fn parts(self) -> (DroppedKind, i32) {
        match self {
            Dropped::Collection(number) => (DroppedKind::Collection, number),
            Dropped::Index(number) => (DroppedKind::Index, number),
        }
    }

    fn of(due: &PendingDrop) -> Self {
        match due.kind {
            DroppedKind::Collection => Dropped::Collection(due.number),
            DroppedKind::Index => Dropped::Index(due.number),
        }
    }

    /// The statement that performs the drop on a shard. It is idempotent.
    fn statement(self) -> String {
        match self {
            Dropped::Collection(collection) => DropTable { collection }.text(),
            Dropped::Index(index) => DropIndex { index }.text(),
        }
    }
}

/// Drops an object on the shards that can be reached, in the caller's transaction, and records the drop for the others, whose names
/// it returns.
pub fn drop_everywhere(shards: &[ShardId], dropped: Dropped, namespace: &str) -> Result<Vec<String>> {
    let (mut reached, mut late) = (Vec::with_capacity(shards.len()), Vec::new());
    for id in shards {
        let shard = cache::shard(*id)?;
        match read_call_on(&shard, &Ping {}) {
            Ok(_) => reached.push(*id),
            Err(error) if error.is_out_of_reach() => late.push(shard),
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
    let (kind, number) = dropped.parts();
    for shard in &late {
        store::insert(shard.id, kind, number, namespace)?;
        pgrx::notice!(
            "shard \"{}\" cannot be reached: {namespace} is dropped there when it is reachable again",
            shard.name
        );
    }
    Ok(late.iter().map(|shard| shard.name.clone()).collect())
}

/// Returns the statements that the router must run on a server's shard before any other. The caller needs no right to read the
/// catalog, and may have an old snapshot.
pub fn statements(server: &str) -> Result<Vec<String>> {
    let due = user::as_extension_owner(|| {
        let _snapshot = ActiveSnapshot::latest();
        store::read_of_server(server)
    })?;
    Ok(due.iter().map(|due| Dropped::of(due).statement()).collect())
}

/// Performs the drops on shards that can be reached again; called outside a transaction. If a drop fails, for example because another
/// transaction holds a lock on the table, the shard's other drops are left to the next call, which begins with them.
/// Errors: the first one of a shard that answers; the other shards are still handled.
pub fn finish() -> Result<()> {
    let mut pending = transaction::run(store::all)?;
    FAILED.with_borrow(|turns| {
        pending.sort_by_cached_key(|due| (due.shard, turns.place(&due.database, due.number)));
    });
    let mut outcome = Ok(());
    for due in pending.chunk_by(|one, next| one.shard == next.shard) {
        match finish_at(due[0].shard, due) {
            Err(error) if !error.is_out_of_reach() && outcome.is_ok() => outcome = Err(error),
            _ => {}
        }
    }
    outcome
}

fn finish_at(shard: ShardId, due: &[PendingDrop]) -> Result<()> {
    let opened = transaction::run(|| {
        let shard = cache::shard(shard)?;
        let Some(server) = shard.oid() else { return Ok(None) };
        let mut session = Session::open(server)?;
        session.execute("SET lock_timeout = '2s'; SET statement_timeout = '5s'")?;
        Ok(Some((session, shard)))
    })?;
    let Some((mut session, shard)) = opened else { return Ok(()) };
    for due in due {
        let dropped = Dropped::of(due);
        let (kind, number) = dropped.parts();
        let done = transaction::run(|| {
            session.run(&dropped.statement(), &[]).map_err(|e| e.at_shard(&shard.name))?;
            store::delete(shard.id, kind, number)
        });
        done.inspect_err(|_| FAILED.with_borrow_mut(|turns| turns.pass(due.database.clone(), number)))?;
    }
    Ok(())
}
