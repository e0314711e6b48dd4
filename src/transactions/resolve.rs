//! Finishing transactions whose originator is gone.

use super::{cluster_token, decisions, originator};
use crate::catalog::cache;
use crate::catalog::model::{Place, Shard};
use crate::catalog::nodes::read_on;
use crate::pg::error::{Error, Result};
use crate::pg::lock::{self, Mode, Tag};
use crate::pg::param::Param;
use crate::pg::{spi, transaction};
use crate::remote::Session;
use std::rc::Rc;

/// Finishes what is left at every shard, each in a transaction of its own; called outside of any. Returns how many
/// prepared transactions it finished.
///
/// # Errors
/// The first shard's that failed; the others are done all the same.
pub fn resolve_all() -> Result<u64> {
    let shards = transaction::run(|| {
        spi::execute(
            "DELETE FROM docshard_catalog.transactions AS t WHERE decided_at < pg_catalog.now() - interval '1 hour' \
             AND NOT EXISTS (SELECT FROM docshard_catalog.shards AS s WHERE s.server = t.server)",
            &[],
        )?;
        let mut shards: Vec<_> = cache::shards()?.values().cloned().collect();
        shards.sort_by_key(|shard| shard.id);
        Ok(shards)
    })?;
    let mut outcome = Ok(0);
    for shard in shards.into_iter().filter(|shard| shard.place != Place::Local) {
        match transaction::run(|| resolve(&shard)) {
            Ok(done) => outcome = outcome.map(|sum: u64| sum + done),
            Err(error) if outcome.is_ok() => outcome = Err(named(&shard, error)),
            Err(_) => {}
        }
    }
    outcome
}

fn named(shard: &Rc<Shard>, mut error: Error) -> Error {
    error.message = format!("resolving transactions at shard \"{}\": {}", shard.name, error.message);
    error
}

fn resolve(shard: &Shard) -> Result<u64> {
    let (Place::Remote(server), Some(server_name)) = (shard.place, &shard.server) else { return Ok(0) };
    let cluster = cluster_token()?;
    // First the decisions, then what the shard has: see the module's invariants.
    let decided = decisions(server_name)?;
    let pattern = format!("docshard\\_{cluster}%");
    let rows = read_on(
        shard,
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() AND gid LIKE $1",
        &[Param::Text(&pattern)],
        1,
    )?;
    let mut prepared: Vec<String> = rows.iter().map(|row| row.text(0).to_owned()).collect();
    let over: Vec<&str> = decided.iter().filter(|gid| !prepared.contains(gid)).map(String::as_str).collect();
    if !over.is_empty() {
        spi::execute("DELETE FROM docshard_catalog.transactions WHERE gid = ANY ($1)", &[Param::TextArray(&over)])?;
    }
    prepared.retain(|gid| {
        originator(gid, &cluster).is_some_and(|xid| lock::try_acquire(Tag::Transaction(xid.into()), Mode::Exclusive))
    });
    let mut done = 0;
    if !prepared.is_empty() {
        let decided = decisions(server_name)?;
        let mut session = Session::open(server)?;
        for gid in &prepared {
            let verb = if decided.contains(gid) { "COMMIT" } else { "ROLLBACK" };
            session.execute(&format!("{verb} PREPARED '{}'", gid.replace('\'', "''")))?;
            pgrx::log!(
                "docshard: {} prepared transaction {gid} at shard \"{}\"",
                if verb == "COMMIT" { "committed" } else { "rolled back" },
                shard.name
            );
            done += 1;
        }
    }
    Ok(done)
}
