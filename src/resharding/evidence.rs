//! What the shards show of a change of layout that another server has begun: whether it is decided, and whether documents may be missing.

use crate::catalog::cache;
use crate::catalog::cluster::nodes::read_call_on;
use crate::catalog::cluster::shard::Shard;
use crate::migration::shard::{RECOVERY, ShardSession};
use crate::pg::error::{Error, Result};
use crate::store::resharding::Resharding;
use crate::store::{collections, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::LOCAL;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{HoldPlacement, ReadPlacements};
use std::rc::Rc;

/// What the shards show of a change, grouped by what a shard shows.
#[derive(Default)]
pub(super) struct Evidence {
    /// recipients whose version of the copy is newer than the catalog's, with these versions
    pub(super) newer: Vec<(String, i64)>,
    /// recipients whose version is not newer: they have lost the decision, or their parts of it were rolled back
    pub(super) older: Vec<Rc<Shard>>,
    /// recipients without the copy
    pub(super) without_copy: Vec<Rc<Shard>>,
    /// the number of recipients other than the router's own database that have the copy, at any version
    copies: usize,
    /// the router's own part may lack documents
    is_own_doubtful: bool,
    /// the router's own database has the copy, and every other recipient is lost
    is_own_alone: bool,
    /// donors that have dropped the collection's table
    pub(super) without_table: Vec<String>,
    /// donors that have the collection's table; the router's own database counts as one of them
    with_table: Vec<String>,
    /// donors and recipients that do not answer
    pub(super) silent: Vec<String>,
    /// donors and recipients at which a prepared transaction may decide the change
    pub(super) held: Vec<Rc<Shard>>,
    /// one of these is a recipient
    is_copy_held: bool,
    /// those of them that are donors, which have the collection's table until the transaction commits
    held_tables: Vec<String>,
    /// a donor is lost
    is_donor_lost: bool,
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
    /// True if the shards show that the change was decided, and a part of one of the layouts is left. If no shard has the copy or its former
    /// table, the lost router has dropped the collection after the decision.
    pub(super) fn shows_decision(&self) -> bool {
        let is_left = || self.has_copy() || self.has_former_table();
        !self.newer.is_empty() || !self.without_table.is_empty() && is_left()
    }

    /// True if a donor has its table, other than the router, whose own table proves nothing: the decision that dropped it may be lost.
    fn has_former_table(&self) -> bool {
        !self.held_tables.is_empty() || self.remote_with_table().next().is_some()
    }

    /// True if a part of the copy is left.
    pub(super) fn has_copy(&self) -> bool {
        self.copies > 0 || self.is_own_alone
    }

    /// True if only a lost shard may have shown the decision, so that an administrator must decide. A part of the copy must be left. Besides,
    /// one of these must hold, because then that part may have the only documents:
    ///
    /// * No donor that answers has its table.
    /// * A donor is lost, and a transaction that decides the change is prepared: then the copy is complete, and has that donor's documents.
    pub(super) fn is_open_without(&self, lost: &[ShardId]) -> bool {
        !lost.is_empty() && self.has_copy() && (!self.has_former_table() || self.is_donor_lost && !self.held.is_empty())
    }

    /// True if a donor is lost, and the copy has documents of it, perhaps.
    pub(super) fn lacks_donor(&self) -> bool {
        self.is_donor_lost && self.has_copy()
    }

    /// True if an administrator may say that the change is not decided: no recipient shows a newer version, and a donor has its table, or a lost
    /// shard is removed with what it had.
    pub(super) fn is_deniable(&self, lost: &[ShardId]) -> bool {
        let has_table = !self.held_tables.is_empty() || !self.with_table.is_empty();
        self.newer.is_empty() && (has_table || !lost.is_empty())
    }

    /// The other shards that have the former table.
    fn remote_with_table(&self) -> impl Iterator<Item = &str> {
        self.with_table.iter().map(String::as_str).filter(|name| *name != LOCAL)
    }

    /// Refuses while a shard that does not answer may show that the change was decided.
    pub(super) fn require_answers(&self, row: &Resharding) -> Result<()> {
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

    /// Refuses while a prepared transaction may still decide the change.
    pub(super) fn require_ended(&self) -> Result<()> {
        self.held.first().map_or(Ok(()), |shard| Err(may_be_decided(&shard.name)))
    }

    /// What an administrator must confirm before a change is completed, all of it: the error that says so. None: what the shards show is enough.
    /// Prepared transactions count as committed, because completing the change commits them.
    pub(super) fn question(&self, row: &Resharding) -> Option<Error> {
        let mut doubts = Vec::new();
        if !self.without_copy.is_empty() {
            doubts.push(format!("shards {} lack documents of the copy", names(&self.without_copy)));
        }
        if self.is_own_doubtful {
            doubts.push("the last documents of the router's own part may be missing".to_owned());
        }
        // No version shows which change it was: it may have been another one, or a donor was restored from before the collection.
        if self.newer.is_empty() && !self.is_copy_held {
            if !self.with_table.is_empty() {
                doubts.push(format!("shards {} have it", self.with_table.join(", ")));
            } else if doubts.is_empty() {
                doubts.push("no shard has another version of the copy, which may lack documents".to_owned());
            }
        } else {
            // Shards at an older version may have lost commits, and documents with them.
            if !self.older.is_empty() {
                let older = names(&self.older);
                doubts.push(format!("shards {older} have an older version of it, and may lack documents"));
            }
            let with_table: Vec<&str> = self.remote_with_table().collect();
            if !with_table.is_empty() {
                doubts.push(format!("shards {} have the former table", with_table.join(", ")));
            }
        }
        if !self.shows_decision() {
            doubts.push("a lost shard may have been the only one that has committed it".to_owned());
        }
        if doubts.is_empty() {
            return None;
        }
        if self.is_donor_lost {
            doubts.push("the documents of the lost shards are only in the copy".to_owned());
        }
        if !self.held_tables.is_empty() {
            doubts.push(format!("shards {} have prepared the drop of the former table", self.held_tables.join(", ")));
        }
        let (found, doubts) = (self.describe(), doubts.join(", and "));
        let error =
            error!(Kind::OperationFailed, "{} of {} may be decided: {found}, but {doubts}", row.command, row.namespace);
        let mut hint = "Nothing is dropped. If shards, or the router itself, were restored or promoted from a standby, restore them to a later \
            time."
            .to_owned();
        if self.has_copy() {
            hint.push_str(
                " If that cannot be done, and the former router has decided the change, docshard.commit_reshard_collection() completes it with the \
                 copy as it is, and drops the former tables, also those whose drop is prepared.",
            );
        }
        if self.is_deniable(&[]) {
            hint.push_str(
                " If the change is not decided, or cannot be completed, docshard.abort_reshard_collection() keeps the former tables, and leaves those of the copy, which \
                 docshard.list_orphaned_relations() then shows.",
            );
        }
        hint.push_str(
            " If a shard of it is lost, the option completeChanges of remove_shard() decides: true completes it; false keeps the former tables that \
             are left, and leaves those of the copy as orphaned relations.",
        );
        Some(error.with_hint(hint))
    }

    pub(super) fn describe(&self) -> String {
        let newer: Vec<_> = self.newer.iter().map(|(name, _)| name.as_str()).collect();
        match (&*newer, &*self.without_table) {
            ([], []) => "no shard shows the decision".to_owned(),
            ([], without) => format!("shards {} have dropped the former table", without.join(", ")),
            (newer, _) => format!("shards {} have the new layout", newer.join(", ")),
        }
    }
}

fn names(shards: &[Rc<Shard>]) -> String {
    shards.iter().map(|shard| shard.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Locks the copy's row, and asks all donors and recipients; None if there is no copy.
pub(super) fn gather(row: &Resharding, lost: &[ShardId]) -> Result<Option<Evidence>> {
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
            Shown::Held => {
                evidence.copies += 1;
                evidence.is_copy_held = true;
                evidence.held.push(shard);
            }
            Shown::Nothing => evidence.without_copy.push(shard),
            Shown::Version(version) => {
                evidence.copies += 1;
                match Some(version) > placements::version(row.copy_id, id)? {
                    true => evidence.newer.push((shard.name.clone(), version)),
                    false => evidence.older.push(shard),
                }
            }
        }
    }
    if let Some(collection) = collections::lock_id(row.collection)? {
        for id in placements::shards(row.collection)? {
            let shard = cache::shard(id)?;
            if lost.contains(&id) {
                evidence.is_donor_lost = true;
                continue;
            }
            // The router's own database always counts as having the table, because the decision that dropped it may be
            // lost.
            if shard.is_local() {
                evidence.with_table.push(shard.name.clone());
                continue;
            }
            match look(&shard, row.collection, collection.token)? {
                Shown::Silent => evidence.silent.push(shard.name.clone()),
                Shown::Held => {
                    evidence.held_tables.push(shard.name.clone());
                    if !evidence.held.iter().any(|held| held.id == shard.id) {
                        evidence.held.push(shard);
                    }
                }
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
    .with_hint(
        "If the router's former server has prepared it, an administrator ends it: docs/operations.md, \"Prepared transactions of a replaced \
         router\".",
    )
}
