//! The end of transactions that a client has prepared itself: `COMMIT PREPARED` and `ROLLBACK PREPARED` on the router.
//!
//! INVARIANT: nothing here decides. What the command did to the rows of `docshard_catalog.transactions` is durable before a
//! shard is told, so whoever does not get through leaves it to [`super::resolve_all`].

use super::decision::decisions;
use crate::catalog::cache;
use crate::catalog::cluster;
use crate::catalog::model::{Place, Shard};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use crate::pg::transaction::prepared::{self, Ended, Watch};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, spi, transaction::durability, transaction::subtransaction};
use crate::remote::Session;
use crate::store;
use docshard_core::cluster::prepared_name::PREFIX;

/// SQLSTATE of a prepared transaction that is not there.
const UNDEFINED_OBJECT: [u8; 5] = *b"42704";

/// Called from `_PG_init`.
pub(super) fn init() {
    prepared::watch(Watch { before, after });
}

/// The local id of a prepared transaction of this database, where the database is a router's. Its end is a decision, and made
/// durable as such.
fn before(gid: &str) -> Option<u32> {
    // A router's part of a transaction at this shard: that is told by the router, and has no shards of its own.
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
    // It is the router's, and so are its parts at the shards.
    user::as_extension_owner(cluster::require_router).unwrap_or_else(|error| error.raise());
    durability::require();
    Some(transaction)
}

/// Tells the shards; those that cannot be told are left to the worker, with a warning.
fn after(transaction: u32, ended: Ended) {
    let told = subtransaction::attempt(|| {
        let _snapshot = ActiveSnapshot::latest();
        user::as_extension_owner(|| tell_all(transaction, ended))
    });
    let late = match told {
        Ok(late) if late.is_empty() => return,
        Ok(late) => format!("shard \"{}\" could not be told yet", late.join("\", \"")),
        Err(error) => format!("its shards could not be told yet: {}", error.message),
    };
    match ended {
        Ended::Committed => {
            pgrx::warning!("the transaction is committed, but {late}: what it wrote there is seen once it has been");
        }
        Ended::RolledBack => {
            pgrx::warning!(
                "the transaction is rolled back, but {late}: what it wrote there stays locked until it has been"
            );
        }
    }
}

/// Returns the names of the shards that could not be told.
fn tell_all(transaction: u32, ended: Ended) -> Result<Vec<String>> {
    let prefix = cluster::coordinator()?.prefix(transaction);
    let mut late = Vec::new();
    for shard in cache::shards()?.values() {
        if tell(shard, &prefix, ended).is_err() {
            late.push(shard.name.clone());
        }
    }
    late.sort();
    Ok(late)
}

fn tell(shard: &Shard, prefix: &str, ended: Ended) -> Result<()> {
    let (Place::Remote(server), Some(name)) = (shard.place, &shard.server) else { return Ok(()) };
    let (verb, gids) = match ended {
        Ended::Committed => {
            let decided: Vec<String> = decisions(name)?.into_iter().filter(|gid| gid.starts_with(prefix)).collect();
            if decided.is_empty() {
                return Ok(());
            }
            ("COMMIT", Some(decided))
        }
        Ended::RolledBack => ("ROLLBACK", None),
    };
    let mut session = Session::open(server)?;
    let gids = match gids {
        Some(gids) => gids,
        // What was to be decided is gone with the transaction.
        None => session
            .query(
                "SELECT gid FROM pg_catalog.pg_prepared_xacts \
                 WHERE database = pg_catalog.current_database() AND pg_catalog.starts_with(gid, $1)",
                &[Param::Text(prefix)],
            )?
            .iter()
            .filter_map(|row| row.text(0).map(str::to_owned))
            .collect(),
    };
    for gid in &gids {
        match session.execute(&format!("{verb} PREPARED '{}'", gid.replace('\'', "''"))) {
            // The worker was quicker.
            Err(error) if error.sqlstate == UNDEFINED_OBJECT => {}
            other => other?,
        }
    }
    Ok(())
}
