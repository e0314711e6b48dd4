//! Administration of shards and databases.

use super::{answer, required, run, with_options};
use crate::catalog::cluster::{check_may_change, check_router};
use crate::catalog::dismantle::{self, Scope};
use crate::catalog::grants::EVERYTHING;
use crate::catalog::shards::names::LOCAL;
use crate::catalog::{access, addresses, contacts, rotation, takeover};
use crate::operation::arguments::Arguments;
use crate::operation::{shards, table};
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};
use crate::pg::server;
use crate::worker;
use docshard_core::error::Kind;
use pgrx::prelude::*;
use serde_json::json;

/// Adds a shard: `conn` is a libpq connection string or URI, or MongoDB's `name/host:port,host:port`.
/// Options: name, maxSize (MiB), user, password.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn add_shard(conn: &str, options: default!(Json, "'{}'")) -> Json {
    answer(|| with_options(&options, &table::ADD_SHARD, |options| shards::add(conn, options)))
}

/// Makes this database the router of its cluster: a restored one, a copy of its server, or one whose server was upgraded by
/// pg_upgrade. The database that was the router is listened to by no shard any more. Answers the shards that could not be told yet,
/// and what another router has left prepared at shards.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn take_over_cluster() -> Json {
    answer(|| {
        let taken = takeover::take_over()?;
        worker::wake_at_commit();
        let pairs = |pairs: Vec<(String, String)>, what: &str| -> serde_json::Value {
            pairs.into_iter().map(|(shard, value)| json!({"shard": shard, what: value})).collect()
        };
        let mut answer = json!({"epoch": taken.epoch});
        if !taken.unreachable.is_empty() {
            answer["unreachable"] = pairs(taken.unreachable, "error");
        }
        if !taken.left.is_empty() {
            answer["preparedTransactions"] = pairs(taken.left, "gid");
        }
        answer["ok"] = 1.into();
        Ok(answer)
    })
}

/// Removes a shard in steps: started, then ongoing while the balancer drains it, then completed. Options: lost, for one that
/// cannot be drained because it is gone for good: tells what would be lost, and a token; token, which confirms that.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn remove_shard(name: &str, options: default!(Json, "'{}'")) -> Json {
    answer(|| with_options(&options, &table::REMOVE_SHARD, |options| shards::remove(name, options)))
}

/// Takes a cluster apart, with all its documents: at its router, or at a shard whose router is gone. Without `confirm` it tells
/// what would be lost, and what to confirm with. Options: shards (false leaves the other databases as they are, of which this
/// is a copy perhaps), skipUnreachable. For superusers.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn dismantle(confirm: default!(Option<&str>, "NULL"), options: default!(Option<Json>, "'{}'")) -> Json {
    answer(|| {
        with_options(&required(options, "options")?, &table::DISMANTLE, |options| {
            let scope = Scope { shards: options.flag("shards"), skip_unreachable: options.flag("skipUnreachable") };
            dismantle::dismantle(confirm, scope)
        })
    })
}

/// Goes on with a shard that is refused, or was promoted without all acknowledged writes, as it is.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn accept_shard(name: &str) -> Json {
    answer(|| {
        check_router()?;
        let accepted = contacts::accept(name)?;
        worker::wake_at_commit();
        let mut said = json!({"shardAccepted": name, "ok": 1});
        for field in ["lostFrom", "lostTo"] {
            if let Some(value) = accepted.get(field) {
                said[field] = value.clone();
            }
        }
        Ok(said)
    })
}

/// Enables sharding of a database, with a primary shard of your choice.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn enable_sharding(db: Option<&str>, primary: default!(Option<&str>, "NULL")) -> Json {
    answer(|| shards::enable_sharding(required(db, "db")?, primary))
}

/// Drops a database with all its collections, everywhere.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_database(db: &str) -> Json {
    answer(|| shards::drop_database(db))
}

/// Moves the unsharded collections of a database to another shard, which becomes its primary. Each collection moves as
/// a chunk does; if one cannot be moved, those before it stay moved, and the same call again goes on.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn move_primary(db: &str, to: &str) -> Json {
    answer(|| shards::move_primary(db, to))
}

/// The resources that an option of `grant_access` or `revoke_access` names: one, or an array of them.
fn resources<'a>(options: &Arguments<'a>, name: &str) -> Result<Vec<&'a str>> {
    let wrong = || Error::new(Kind::TypeMismatch, format!("{name} must be a name, or an array of names"));
    match options.get(name) {
        None => Ok(Vec::new()),
        Some(serde_json::Value::String(one)) => Ok(vec![one]),
        Some(serde_json::Value::Array(several)) => several.iter().map(|one| one.as_str().ok_or_else(wrong)).collect(),
        Some(_) => Err(wrong()),
    }
}

/// Lets an application's role read and write collections, here and at every shard. Options: read, write; each a database, a
/// collection, `"*"` for all, or an array of these. Without options, all may be written.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn grant_access(role: &str, options: default!(Json, "'{}'")) -> Json {
    answer(|| {
        check_may_change()?;
        with_options(&options, &table::GRANT_ACCESS, |options| {
            let (read, mut write) = (resources(options, "read")?, resources(options, "write")?);
            if options.get("read").is_none() && options.get("write").is_none() {
                write.push(EVERYTHING);
            }
            access::grant(role, &read, &write)?;
            Ok(json!({"ok": 1}))
        })
    })
}

/// Takes back what was granted. Options: read, write, as of `grant_access`; what may be written stays readable after
/// `write`. Without options, everything: the role can then be dropped.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn revoke_access(role: &str, options: default!(Json, "'{}'")) -> Json {
    answer(|| {
        check_may_change()?;
        with_options(&options, &table::REVOKE_ACCESS, |options| {
            access::revoke(role, &resources(options, "read")?, &resources(options, "write")?)?;
            Ok(json!({"ok": 1}))
        })
    })
}

/// Gives the role as which this router logs in at shards a new password, everywhere; statements go on meanwhile. Answers the
/// shards that could not be told yet: the same call again tells them.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn rotate_service_password() -> Json {
    answer(|| {
        check_may_change()?;
        if server::in_transaction_block() {
            let message = "the service role's password cannot be changed inside a transaction block";
            return Err(Error::new(Kind::OperationNotSupportedInTransaction, message));
        }
        let late = rotation::rotate_and_wait()?;
        let late: Vec<_> =
            late.as_array().into_iter().flatten().map(|one| json!({"server": one[0], "error": one[1]})).collect();
        Ok(if late.is_empty() { json!({"ok": 1}) } else { json!({"pending": late, "ok": 1}) })
    })
}

/// Changes an address, which other nodes are told outside of this transaction.
fn change_address(name: &str, change: impl FnOnce() -> Result<addresses::Changed>) -> Result<serde_json::Value> {
    check_router()?;
    if server::in_transaction_block() {
        let message = "an address cannot be changed inside a transaction block";
        return Err(Error::new(Kind::OperationNotSupportedInTransaction, message));
    }
    let changed = change()?;
    worker::wake_at_commit();
    let pending = changed.pending.iter().map(|(shard, error)| json!({"shard": shard, "error": error.trim()}));
    let pending: Vec<_> = pending.collect();
    Ok(if pending.is_empty() {
        json!({"shard": name, "host": changed.host, "ok": 1})
    } else {
        json!({"shard": name, "host": changed.host, "pending": pending, "ok": 1})
    })
}

/// Gives a shard another address, at the router and at every other shard, once it is sure that the address leads to that very
/// shard and that all reach it. Answers the shards that were out of reach: the same call again tells them.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn set_shard_address(name: &str, conn: &str) -> Json {
    answer(|| change_address(name, || addresses::set_shard(name, conn)))
}

/// Says how shards, and this router itself, reach the router's own database, which each of them tries.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn set_local_address(conn: &str) -> Json {
    answer(|| change_address(LOCAL, || addresses::set_local(conn)))
}

/// A row a shard.
#[pg_extern(stable, parallel_unsafe, requires = ["catalog"])]
#[allow(clippy::type_complexity, reason = "the columns of the SQL function")]
fn list_shards() -> TableIterator<
    'static,
    (
        name!(name, String),
        name!(server, Option<String>),
        name!(state, String),
        name!(max_size_mb, Option<i32>),
        name!(chunks, i64),
        name!(databases, i64),
    ),
> {
    let shards = run(crate::store::shards::listed);
    let rows = shards.into_iter().map(|shard| {
        let state = if shard.draining { "draining" } else { "active" };
        (shard.name, shard.server, state.to_owned(), shard.max_size_mb, shard.chunks, shard.databases)
    });
    TableIterator::new(rows)
}
