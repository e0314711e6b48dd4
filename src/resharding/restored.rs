//! Completes a change of layout that a lost router has decided. The present router does not have the decision: it was restored from an
//! older backup, or is a standby that lacks it.
//!
//! INVARIANT: shards commit their parts of the decision after the router, each at its own time. So the change was decided if one shard
//! shows it: a recipient has a newer version of the copy than the catalog, or the donors have no table of the collection any more. Only the
//! copy has the documents then, with all of them, because the recipients had stored them before. A donor may also lack its table because it
//! was restored from before the collection: if no recipient has a newer version, an administrator decides. The change was not decided if
//! *all* shards show that: while one of them does not answer, nothing is aborted and no copy is dropped.
//!
//! The router's own part of the copy gets the version of each attempt to decide after that attempt's documents. So it has all documents if it
//! has the version that the shards got. If they show another one, or none, it may be older: then an administrator says whether it is
//! taken. Shards may have moved chunks of the copy since, so that their versions do not tell which chunks they have: [`follow`](crate::migration::follow)
//! finds that out.

use crate::catalog::cluster::behind;
use crate::catalog::cluster::nodes::read_call_on;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::layout;
use crate::catalog::{cache, change};
use crate::migration::shard::{RECOVERY, ShardSession};
use crate::pg::error::{Error, Result};
use crate::store::resharding::{self, Resharding};
use crate::store::{collections, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::LOCAL;
use docshard_core::cluster::resharding::State;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{HoldPlacement, ReadPlacements};
use serde_json::json;
use std::rc::Rc;

/// What the shards show of a change: names of shards.
#[derive(Default)]
struct Evidence {
    /// recipients whose version of the copy is newer than the catalog's, with these versions
    newer: Vec<(String, i64)>,
    /// recipients whose version is not newer: they have lost the decision, or their parts of it were rolled back
    older: Vec<String>,
    /// recipients without the copy
    without_copy: Vec<Rc<Shard>>,
    /// the number of recipients besides the router that have it
    copies: usize,
    /// the router's own part may lack documents
    is_own_doubtful: bool,
    /// the router's own database has the copy, and no other recipient is asked
    is_own_alone: bool,
    /// donors that have dropped the collection's table
    without_table: Vec<String>,
    /// those that have it, the router among them
    with_table: Vec<String>,
    /// donors and recipients that do not answer
    silent: Vec<String>,
    /// donors and recipients at which a prepared transaction may decide the change
    held: Vec<String>,
}

/// What an administrator has confirmed of a change that may be decided.
#[derive(Clone, Copy)]
pub(super) enum Confirmed<'a> {
    No,
    /// what this error says
    Question(&'a str),
    /// it is completed, whatever the shards show
    Any,
    /// it is aborted, unless a shard shows that it is decided
    Aborted,
}

/// What a shard shows of one of its collections.
enum Shown {
    Nothing,
    Version(i64),
    /// a transaction that has not ended is changing it
    Held,
    Silent,
}

impl Evidence {
    /// True if the change was decided, and the copy is still there. If no shard has it, the lost router has dropped it later.
    fn shows_decision(&self) -> bool {
        !self.newer.is_empty() || !self.without_table.is_empty() && self.has_copy()
    }

    /// True if a part of the copy is left.
    fn has_copy(&self) -> bool {
        self.copies > 0 || self.is_own_alone
    }

    /// True if a lost shard may have been the only one that showed the decision: no other shard still has the former table, which would show that
    /// nothing is decided. Then the rest of the copy may have the only documents.
    fn is_open_without(&self, lost: &[ShardId]) -> bool {
        !lost.is_empty() && self.has_copy() && self.remote_with_table().next().is_none()
    }

    /// The shards that have the former table. The router's own table is dropped by the decision, which may be lost.
    fn remote_with_table(&self) -> impl Iterator<Item = &str> {
        self.with_table.iter().map(String::as_str).filter(|name| *name != LOCAL)
    }

    /// Refuses while a shard may still show that the change was decided.
    fn require_answers(&self, row: &Resharding) -> Result<()> {
        if let Some(shard) = self.held.first() {
            return Err(may_be_decided(shard));
        }
        if self.silent.is_empty() {
            return Ok(());
        }
        Err(error!(
            Kind::HostUnreachable,
            "{} of {} is not ended, because shards {} do not answer: another router may have decided it",
            row.command,
            row.namespace,
            self.silent.join(", ")
        )
        .with_hint(
            "It ends when they answer, or have been removed as lost shards: if there are several, with the tokens of the others in the option \
             alsoLost.",
        ))
    }

    /// What an administrator must confirm before a decided change is completed, all of it: the error that says so. None: what the shards show
    /// is enough.
    fn question(&self, row: &Resharding) -> Option<Error> {
        let mut doubts = Vec::new();
        if !self.without_copy.is_empty() {
            let names: Vec<&str> = self.without_copy.iter().map(|shard| shard.name.as_str()).collect();
            doubts.push(format!("shards {} lack documents of the copy", names.join(", ")));
        }
        if self.is_own_doubtful {
            doubts.push("the last documents of the router's own part may be missing".to_owned());
        }
        // No version shows which change it was: it may have been another one, or a donor was restored from before the collection.
        if self.newer.is_empty() {
            if !self.with_table.is_empty() {
                doubts.push(format!("shards {} have it", self.with_table.join(", ")));
            } else if doubts.is_empty() {
                doubts.push("no shard has another version of the copy, which may lack documents".to_owned());
            }
        } else {
            // They may have lost what they had committed, and documents with it.
            if !self.older.is_empty() {
                doubts.push(format!(
                    "shards {} have an older version of it, and may lack documents",
                    self.older.join(", ")
                ));
            }
            let with_table: Vec<&str> = self.remote_with_table().collect();
            if !with_table.is_empty() {
                doubts.push(format!("shards {} have the former table", with_table.join(", ")));
            }
        }
        (!doubts.is_empty()).then(|| {
            error!(
                Kind::OperationFailed,
                "{} of {} may be decided: {}, but {}",
                row.command,
                row.namespace,
                self.describe(),
                doubts.join(", and ")
            )
            .with_hint(
                "Nothing is dropped. If shards, or the router itself, were restored or promoted from a standby, restore them to a later time. \
                 If that cannot be done, and the former router has decided the change, docshard.commit_reshard_collection() completes it with \
                 the copy as it is, and drops the former tables. If a shard of it is lost: remove_shard() with the option completeChanges; false aborts the change.",
            )
        })
    }

    fn describe(&self) -> String {
        let newer: Vec<_> = self.newer.iter().map(|(name, _)| name.as_str()).collect();
        match (&*newer, &*self.without_table) {
            ([], []) => "no shard shows the decision".to_owned(),
            ([], without) => format!("shards {} have dropped the former table", without.join(", ")),
            (newer, _) => format!("shards {} have the new layout", newer.join(", ")),
        }
    }
}

/// Completes the catalog's part of a change if shards show that it is decided. False if they show that it is not. Runs in the caller's
/// transaction; afterwards the catalog must follow the shards in what they have moved since. The session holds the coordinator's lock. The
/// shards `lost` are being removed, and are not asked. A shard that lacks its part is then behind the
/// catalog.
///
/// # Errors
/// `HostUnreachable` if a shard does not answer; `OperationFailed` for what an administrator must confirm; `ReshardCollectionAborted` if the
/// change was aborted meanwhile; those of [`change::lock`].
pub(super) fn complete(row: &Resharding, lost: &[ShardId], confirmed: Confirmed<'_>) -> Result<bool> {
    if row.state != State::Running || row.is_of_this_server()? {
        return Ok(false);
    }
    let Some(evidence) = gather(row, lost)? else { return Ok(false) };
    evidence.require_answers(row)?;
    let may_abort = !evidence.is_open_without(lost) || matches!(confirmed, Confirmed::Aborted);
    if !evidence.shows_decision() && may_abort {
        return Ok(false);
    }
    if evidence.newer.is_empty() {
        behind::check_may_be_last(row.collection, &row.namespace, lost)?;
    }
    if let Some(question) = evidence.question(row) {
        let is_confirmed = match confirmed {
            Confirmed::No | Confirmed::Aborted => false,
            Confirmed::Question(asked) => question.text_without_values() == asked,
            Confirmed::Any => true,
        };
        if !is_confirmed {
            return Err(question);
        }
    }
    change::lock(&row.namespace)?;
    let mut absent: Vec<ShardId> = evidence.without_copy.iter().map(|shard| shard.id).collect();
    absent.extend(lost);
    layout::take_name(row.collection, row.copy_id, &row.namespace, row.keeps_key, &absent)?;
    if !resharding::advance(row.id, State::Running, State::Committed)? {
        return Err(error!(
            Kind::ReshardCollectionAborted,
            "{} of {} was aborted meanwhile", row.command, row.namespace
        ));
    }
    let details = json!({"resharding": row.id, "decidedBy": "a former router"});
    change::log(&format!("{}.end", row.command), Some(&row.namespace), &details)?;
    Ok(true)
}

/// Refuses to drop a copy if it may have become the collection. Returns false if the router's own table of the copy must stay: the lost router
/// has decided the change and then another one, so this table may have the only copy of some documents. Runs in the caller's transaction.
///
/// # Errors
/// `OperationFailed` if a shard shows that it has; `HostUnreachable` if a shard does not answer.
pub(super) fn check_droppable(row: &Resharding) -> Result<bool> {
    if row.is_of_this_server()? {
        return Ok(true);
    }
    let Some(evidence) = gather(row, &[])? else { return Ok(true) };
    evidence.require_answers(row)?;
    if evidence.shows_decision() {
        return Err(error!(
            Kind::OperationFailed,
            "{} of {} is aborted, but another router has decided it: {}; only the copy has the documents",
            row.command,
            row.namespace,
            evidence.describe()
        )
        .with_hint(
            "Nothing is dropped. Restore the router to another time, or copy the documents from the shards' tables.",
        ));
    }
    Ok(evidence.without_table.is_empty())
}

/// Locks the copy's row, and asks all donors and recipients; None if there is no copy.
fn gather(row: &Resharding, lost: &[ShardId]) -> Result<Option<Evidence>> {
    let Some(known) = collections::lock_id(row.copy_id)? else { return Ok(None) };
    let mut evidence = Evidence::default();
    let mut own = None;
    let recipients = placements::shards(row.copy_id)?;
    for id in recipients.iter().copied().filter(|id| !lost.contains(id)) {
        let shard = cache::shard(id)?;
        if shard.is_local() {
            own = own_version(&shard, row.copy_id, known.token)?;
            evidence.is_own_alone =
                own.is_some() && recipients.iter().all(|other| *other == id || lost.contains(other));
            continue;
        }
        match look(&shard, row.copy_id, known.token)? {
            Shown::Silent => evidence.silent.push(shard.name.clone()),
            Shown::Held => evidence.held.push(shard.name.clone()),
            Shown::Nothing => evidence.without_copy.push(shard),
            Shown::Version(version) => {
                evidence.copies += 1;
                match Some(version) > placements::version(row.copy_id, id)? {
                    true => evidence.newer.push((shard.name.clone(), version)),
                    false => evidence.older.push(shard.name.clone()),
                }
            }
        }
    }
    if let Some(collection) = collections::lock_id(row.collection)? {
        for id in placements::shards(row.collection)? {
            let shard = cache::shard(id)?;
            if lost.contains(&id) {
                continue;
            }
            // The router's own table is dropped by the decision that was lost.
            if shard.is_local() {
                evidence.with_table.push(shard.name.clone());
                continue;
            }
            match look(&shard, row.collection, collection.token)? {
                Shown::Silent => evidence.silent.push(shard.name.clone()),
                Shown::Held => evidence.held.push(shard.name.clone()),
                Shown::Nothing => evidence.without_table.push(shard.name.clone()),
                Shown::Version(_) => evidence.with_table.push(shard.name.clone()),
            }
        }
    }
    evidence.silent.sort_unstable();
    evidence.silent.dedup();
    evidence.is_own_doubtful =
        own.is_some_and(|own| evidence.newer.is_empty() || evidence.newer.iter().any(|(_, version)| *version != own));
    Ok(Some(evidence))
}

/// Looks at a shard's version of a collection.
fn look(shard: &Shard, collection: i32, token: i64) -> Result<Shown> {
    let mut session = match ShardSession::open(shard, RECOVERY) {
        Ok(session) => session,
        Err(error) if error.is_out_of_reach() => return Ok(Shown::Silent),
        Err(error) => return Err(error),
    };
    let rows = ReadPlacements { collection: Some(collection) }.call(&mut session)?;
    let Some(version) = rows.into_iter().find(|row| row.token == token).map(|row| row.version) else {
        return Ok(Shown::Nothing);
    };
    let free = HoldPlacement { collection, token, version }.call(&mut session)?;
    Ok(if free.is_empty() { Shown::Held } else { Shown::Version(version) })
}

/// The router's own version of a collection.
fn own_version(local: &Shard, collection: i32, token: i64) -> Result<Option<i64>> {
    let rows = read_call_on(local, &ReadPlacements { collection: Some(collection) })?;
    Ok(rows.into_iter().find(|row| row.token == token).map(|row| row.version))
}

/// The error of a change that a transaction at a shard may decide.
pub(super) fn may_be_decided(shard: &str) -> Error {
    error!(
        Kind::OperationFailed,
        "a transaction at shard \"{shard}\" that has not ended may decide the change of the collection's layout"
    )
    .with_hint("If the router's former server has prepared it, an administrator ends it: docs/operations.md, \"Prepared transactions of a replaced router\".")
}
