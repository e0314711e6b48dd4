//! Ends transactions that a client has prepared itself: `COMMIT PREPARED` and `ROLLBACK PREPARED` on the router.
//!
//! INVARIANT: nothing here decides. The command's change of `docshard_catalog.transactions` is durable before a shard is called,
//! so after a failure [`super::resolve_all`] can complete the work.

use super::decision::decisions;
use crate::catalog::cache;
use crate::catalog::cluster::identity;
use crate::catalog::cluster::shard::{Server, Shard};
use crate::pg::error::{Error, Raise as _, Result};
use crate::pg::transaction::prepared::{self, Ended, Watch};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, spi, transaction::durability, transaction::subtransaction};
use crate::remote::{self, Session};
use crate::store;
use docshard_core::cluster::prepared_name::PREFIX;
use docshard_core::error::Kind;
use docshard_core::error::sqlstate::RESERVED_NAME;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::ReadPrepared;
use docshard_core::sql::param::Param;

/// Called from `_PG_init`.
pub(super) fn init() {
    prepared::watch(Watch { prepares, before, after });
}

/// Called before PREPARE TRANSACTION. Raises an error if a transaction with parts at shards is to have the name of such a part: `before` would
/// not recognise it.
fn prepares(gid: &str) {
    if gid.starts_with(PREFIX) && remote::is_used() {
        let message = format!("names of prepared transactions that begin with \"{PREFIX}\" are reserved for routers");
        Error::new(Kind::BadValue, message).with_sqlstate(RESERVED_NAME).raise();
    }
}

/// Called before COMMIT PREPARED or ROLLBACK PREPARED. Returns the local id of a transaction that a client has prepared in this database,
/// if this is a router; else None. The command decides the transaction, so its commit is made durable.
fn before(gid: &str) -> Option<u32> {
    // Names with this prefix are of transactions that a router has prepared; this database is its shard.
    if gid.starts_with(PREFIX) {
        return None;
    }
    store::relation(c"transactions")?;
    let _snapshot = ActiveSnapshot::latest();
    let rows = spi::read(
        "SELECT transaction::text::int8 FROM pg_catalog.pg_prepared_xacts \
         WHERE gid = $1 AND database = pg_catalog.current_database()",
        &[Param::Text(gid)],
    );
    let transaction = rows.ok()?.first().and_then(|row| u32::try_from(row.i64(0)).ok())?;
    // A copy of the router must not end the router's transactions.
    user::as_extension_owner(identity::require_router).unwrap_or_else(|error| error.raise());
    durability::require();
    Some(transaction)
}

/// Ends the transaction at the shards. Where a shard cannot be reached, the worker ends it later; a warning says so.
fn after(transaction: u32, ended: Ended) {
    let ended_at_all = subtransaction::attempt(|| {
        let _snapshot = ActiveSnapshot::latest();
        user::as_extension_owner(|| end_at_all(transaction, ended))
    });
    let late = match ended_at_all {
        Ok(late) if late.is_empty() => return,
        Ok(late) => format!("shard \"{}\" cannot be reached", late.join("\", \"")),
        Err(error) => format!("its shards cannot be reached: {}", error.message),
    };
    match ended {
        Ended::Committed => {
            pgrx::warning!("the transaction is committed, but {late}: its writes there become visible later");
        }
        Ended::RolledBack => {
            pgrx::warning!("the transaction is rolled back, but {late}: its rows there stay locked until then");
        }
    }
}

/// Ends the transaction at every shard. Returns the names of the shards where that has failed.
fn end_at_all(transaction: u32, ended: Ended) -> Result<Vec<String>> {
    let prefix = identity::coordinator()?.prefix(transaction);
    let mut late = Vec::new();
    for shard in cache::shards()?.values() {
        if end_at(shard, &prefix, ended).is_err() {
            late.push(shard.name.clone());
        }
    }
    late.sort();
    Ok(late)
}

fn end_at(shard: &Shard, prefix: &str, ended: Ended) -> Result<()> {
    let Some(Server { name, oid }) = &shard.server else { return Ok(()) };
    let commits = ended == Ended::Committed;
    let mut decided = if commits { decisions(name)? } else { Vec::new() };
    decided.retain(|gid| gid.starts_with(prefix));
    if commits && decided.is_empty() {
        return Ok(());
    }
    let mut session = Session::open(*oid)?;
    // A rollback has removed the rows, so all transactions with the prefix are ended. The worker may have committed some of those that have
    // rows, so only those are committed that are still prepared.
    let mut gids = ReadPrepared { prefixes: &[prefix] }.call(&mut session)?;
    gids.retain(|gid| !commits || decided.contains(gid));
    gids.iter().try_for_each(|gid| session.end_prepared(gid, commits))
}
