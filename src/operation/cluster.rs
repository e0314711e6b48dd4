//! Operations on the router and its shards: take-over, access of roles, passwords, addresses, dismantling.

use super::arguments::{Arguments, Form};
use super::table::{LOGIN_OPTIONS, NO_USER};
use crate::catalog::cache;
use crate::catalog::cluster::dismantle::{self, Scope};
use crate::catalog::cluster::identity::{check_may_change, check_router};
use crate::catalog::cluster::shards::Login;
pub use crate::catalog::cluster::takeover::TakeOver;
use crate::catalog::cluster::{access, addresses, behind, contacts, rotation, settings, shard_state, takeover};
use crate::catalog::collections::grants::{EVERYTHING, Level};
use crate::migration::jobs;
use crate::pg::error::Result;
use crate::pg::process;
use crate::pg::server;
use docshard_core::error::{Kind, bail, error};
use serde_json::{Value as Json, json};

/// The largest number of collections that an answer lists as refused.
const MAX_REFUSED: usize = 100;

fn login(options: &Arguments<'_>) -> Option<Login> {
    let password = options.text("password").map(str::to_owned);
    options.text("user").map(|user| Login { user: user.to_owned(), password })
}

/// The options of a take-over.
pub fn take_over_options(options: &Arguments<'_>) -> Result<TakeOver> {
    let of_shards = match options.get("logins") {
        None => None,
        Some(Json::Object(of_shards)) => Some(of_shards),
        // The message does not contain the value, as it may be a password.
        Some(_) => bail!(Kind::TypeMismatch, "option \"logins\" must be an object"),
    };
    let logins = of_shards.into_iter().flatten().map(|(shard, given)| {
        let given = Arguments::parse(given, Form::Options("logins"), LOGIN_OPTIONS)?;
        given.check_conflicts(&[NO_USER])?;
        Ok((shard.clone(), login(&given)))
    });
    Ok(TakeOver {
        force: options.flag("force"),
        login: login(options),
        logins: logins
            .filter_map(|one| one.map(|(shard, login)| Some((shard, login?))).transpose())
            .collect::<Result<_>>()?,
    })
}

/// Makes this database the router of its cluster; shards then refuse the previous router. Returns its new epoch and, where there
/// are any: the unreachable shards; those at which the router's login was repaired; the new address of this database; transactions of
/// another router that are prepared on shards; metadata on shards that is newer than this catalog.
pub fn take_over(options: &TakeOver) -> Result<Json> {
    let taken = takeover::take_over(options)?;
    process::wake_at_commit();
    let mut answer = json!({"epoch": taken.epoch});
    if !taken.repaired.is_empty() {
        answer["loginsRepaired"] = taken.repaired.into();
    }
    if let Some(address) = taken.local_address {
        answer["localAddress"] = address.into();
    }
    let lists = [
        ("unreachable", "error", taken.unreachable),
        ("preparedTransactions", "gid", taken.left),
        ("newerAtShards", "difference", taken.newer),
    ];
    for (name, field, pairs) in lists {
        if !pairs.is_empty() {
            answer[name] = pairs.into_iter().map(|(shard, value)| json!({"shard": shard, field: value})).collect();
        }
    }
    answer["ok"] = 1.into();
    Ok(answer)
}

/// Drops an orphaned table or index of a shard.
pub fn drop_orphan(shard: &str, relation: &str) -> Result<Json> {
    shard_state::drop_orphan(shard, relation)?;
    Ok(json!({"shard": shard, "dropped": relation, "ok": 1}))
}

/// Dismantles the cluster. Without `confirm`, only returns what would be deleted, and the value to confirm with.
pub fn dismantle(confirm: Option<&str>, options: &Arguments<'_>) -> Result<Json> {
    let scope = Scope { shards: options.flag("shards"), skip_unreachable: options.flag("skipUnreachable") };
    dismantle::dismantle(confirm, scope)
}

/// Accepts the current state of a shard that is refused, or that was promoted without all acknowledged writes. With `adopt`, brings its
/// collections and the catalog to the same versions.
pub fn accept_shard(name: &str, adopt: bool) -> Result<Json> {
    check_router()?;
    let accepted = if adopt {
        refuse_in_block("a shard's collections")?;
        jobs::adopt_and_wait(name)?
    } else {
        contacts::accept(name)?
    };
    process::wake_at_commit();
    let mut answer = json!({"shardAccepted": name});
    for field in ["lostFrom", "lostTo", "adopted", "more"] {
        if let Some(value) = accepted.get(field) {
            answer[field] = value.clone();
        }
    }
    if !adopt {
        still_refused(name, &mut answer)?;
    }
    answer["ok"] = 1.into();
    Ok(answer)
}

/// Adds the collections whose statements an accepted shard still refuses, because its versions differ from the catalog's, and what to do.
fn still_refused(shard: &str, answer: &mut Json) -> Result<()> {
    let Some(difference) = behind::Expected::read()?.find(&*cache::shard_named(shard)?)? else { return Ok(()) };
    let more = difference.collections.len().saturating_sub(MAX_REFUSED);
    answer["refused"] = difference.collections.into_iter().take(MAX_REFUSED).collect();
    if more > 0 {
        answer["more"] = more.into();
    }
    answer["hint"] = difference.hint.into();
    Ok(())
}

/// The databases and collections that an option names, as a string or an array of strings.
fn resources<'a>(options: &Arguments<'a>, name: &str) -> Result<Vec<&'a str>> {
    let wrong = || error!(Kind::TypeMismatch, "{name} must be a name, or an array of names");
    match options.get(name) {
        None => Ok(Vec::new()),
        Some(Json::String(one)) => Ok(vec![one]),
        Some(Json::Array(several)) => several.iter().map(|one| one.as_str().ok_or_else(wrong)).collect(),
        Some(_) => Err(wrong()),
    }
}

/// The levels that options name, the lowest first, with their resources.
fn leveled<'a>(options: &Arguments<'a>) -> Result<Vec<(Level, Vec<&'a str>)>> {
    Level::ALL.into_iter().map(|level| Ok((level, resources(options, level.name())?))).collect()
}

/// Grants access to a role; without options, to write everything.
pub fn grant_access(role: &str, options: &Arguments<'_>) -> Result<Json> {
    check_may_change()?;
    let mut granted = leveled(options)?;
    if Level::ALL.into_iter().all(|level| options.get(level.name()).is_none()) {
        granted = vec![(Level::Write, vec![EVERYTHING])];
    }
    access::grant(role, &granted)?;
    Ok(json!({"ok": 1}))
}

/// Revokes access from a role; the next lower level stays. Without options everything is revoked, and the role
/// can be dropped.
pub fn revoke_access(role: &str, options: &Arguments<'_>) -> Result<Json> {
    check_may_change()?;
    access::revoke(role, &leveled(options)?)?;
    Ok(json!({"ok": 1}))
}

fn refuse_in_block(what: &str) -> Result<()> {
    if server::in_transaction_block() {
        bail!(Kind::OperationNotSupportedInTransaction, "{what} cannot be changed inside a transaction block");
    }
    Ok(())
}

/// Sets a new password for the role that this router uses to log in on shards. If some servers cannot be reached, repeat the call
/// later.
pub fn rotate_service_password() -> Result<Json> {
    check_may_change()?;
    refuse_in_block("the service role's password")?;
    let pending = rotation::rotate_and_wait()?;
    let pending: Vec<_> =
        pending.as_array().into_iter().flatten().map(|one| json!({"server": one[0], "error": one[1]})).collect();
    Ok(if pending.is_empty() { json!({"ok": 1}) } else { json!({"pending": pending, "ok": 1}) })
}

/// Changes a shard's address on all nodes; refused inside a transaction block. If some nodes cannot be reached, repeat the call later.
pub fn set_address(name: &str, change: impl FnOnce() -> Result<addresses::Changed>) -> Result<Json> {
    check_router()?;
    refuse_in_block("an address")?;
    let changed = change()?;
    process::wake_at_commit();
    let pending = changed.pending.iter().map(|(shard, error)| json!({"shard": shard, "error": error.trim()}));
    let mut answer = json!({"shard": name, "host": changed.host});
    if !changed.pending.is_empty() {
        answer["pending"] = pending.collect();
    }
    answer["ok"] = 1.into();
    Ok(answer)
}

/// Changes a setting; None resets it to the default.
pub fn set_setting(name: &str, value: Option<&str>) -> Result<Json> {
    check_may_change()?;
    settings::set(name, value)?;
    process::wake_at_commit();
    Ok(json!({"name": name, "value": value, "ok": 1}))
}
