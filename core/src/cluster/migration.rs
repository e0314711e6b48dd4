//! The states of a chunk's migration and the next action in each. Pure, so that a test can crash it at every step.
//!
//! The state is stored in the catalog's row. Only the row decides the outcome; the shards follow it.
//!
//! ```text
//! running ──► committed ──► moved ──► done
//!    └──────► aborted ──────────────► done
//! ```
//!
//! * *running*: the donor owns the range and accepts writes to it, which block only during the hand-over. A process that finds
//!   such a row without its coordinator aborts the migration, if the coordinator was a process of the same server.
//! * *committed*: both shards have prepared. The migration can no longer be aborted, and any process may complete it.
//! * *moved*: the chunk map names the recipient; only the clean-up remains.
//! * *aborted*: the donor keeps the range; both shards roll back and are cleaned up.
//!
//! INVARIANT: a shard's prepared transaction is committed only in *committed*, and rolled back only in *aborted*. The donor
//! commits before the recipient, so at no moment both own the range. The exceptions are [`action_after_failover`], which rolls
//! the donor's transaction back while the migration is *running*, and [`salvage`], which an administrator asks for after a shard
//! has lost commits.
//!
//! A router's catalog may be older than the decision about a migration, which is then still *running* there: if the router has
//! replaced another one, was promoted without the last commits, or was restored from a copy of its files. Then the shards show
//! what became of the migration: [`Found`], [`action_after_take_over`], [`action_after_failover`].
//!
//! A shard that has lost its last commits may show a prepared transaction of a migration that has ended: the outcome in the row
//! still decides it.

use std::cmp::Ordering;
use std::fmt;

/// Finds a value of a table of names.
fn by_name<T: Copy>(table: &[(T, &str)], name: &str) -> Option<T> {
    table.iter().find(|(_, n)| *n == name).map(|(value, _)| *value)
}

/// The state of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// the donor owns the range
    Running,
    /// decided: the recipient will own the range
    Committed,
    /// the recipient owns the range in the chunk map, too
    Moved,
    /// decided: the donor keeps the range
    Aborted,
    /// completed and cleaned up
    Done,
}

/// The allowed transitions.
const TRANSITIONS: &[(State, State)] = &[
    (State::Running, State::Committed),
    (State::Running, State::Aborted),
    (State::Committed, State::Moved),
    (State::Moved, State::Done),
    (State::Aborted, State::Done),
];

/// The states by their names in the catalog.
const NAMES: &[(State, &str)] = &[
    (State::Running, "running"),
    (State::Committed, "committed"),
    (State::Moved, "moved"),
    (State::Aborted, "aborted"),
    (State::Done, "done"),
];

impl State {
    /// True if the catalog's row may go from this state to that.
    pub fn may_become(self, next: State) -> bool {
        TRANSITIONS.contains(&(self, next))
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<State> {
        by_name(NAMES, name)
    }

    /// Its name in the catalog.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The decision about a migration; it stays when the migration is *done*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// not decided yet
    Running,
    /// the recipient owns the range, or will
    Committed,
    /// the donor keeps the range
    Aborted,
}

/// The outcomes by their names in the catalog.
const OUTCOMES: &[(Outcome, &str)] =
    &[(Outcome::Running, "running"), (Outcome::Committed, "committed"), (Outcome::Aborted, "aborted")];

impl Outcome {
    /// The outcome of that name.
    pub fn parse(name: &str) -> Option<Outcome> {
        by_name(OUTCOMES, name)
    }
}

/// The state of a shard's transaction in the hand-over, as the shard reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// no prepared transaction, and the shard is at an older version than the move's
    Nothing,
    /// prepared
    Prepared,
    /// committed: the shard is at the move's version
    Committed,
}

/// What a shard shows of a migration that another server has begun, or whose other shard is lost. The migration may have ended long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// no prepared transaction, and the shard is at an older version than the move's: it has no part, or has rolled it back
    Before,
    /// prepared
    Prepared,
    /// committed: the shard is at exactly the move's version
    Committed,
    /// no prepared transaction, and the shard is at a later version, which says nothing about this move
    After,
    /// no prepared transaction, and the shard does not have the collection
    Gone,
}

impl Found {
    /// Returns what a shard without a prepared transaction shows. `version` is its version of the collection; None: it does not have the
    /// collection.
    pub fn at(version: Option<i64>, of_move: i64) -> Self {
        match version.map(|version| version.cmp(&of_move)) {
            Some(Ordering::Less) => Found::Before,
            Some(Ordering::Equal) => Found::Committed,
            Some(Ordering::Greater) => Found::After,
            None => Found::Gone,
        }
    }
}

/// An action towards the end of a migration without a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// compare-and-set to *aborted*
    Abort,
    /// commit the donor's prepared transaction
    CommitDonor,
    /// commit the recipient's prepared transaction
    CommitRecipient,
    /// change the chunk map, and set the state to *moved*
    Flip,
    /// on both shards end the sessions, roll back prepared transactions and drop leftovers; then set to *done*
    Clean,
    /// a shard has lost its part, so that carrying out the decision could delete the only copy of the documents: an administrator
    /// calls for [`salvage`]
    Lost,
    /// roll back what is prepared; the donor keeps the range although the migration was decided
    GiveUp,
    /// compare-and-set to *committed*, as another router has decided it
    Follow,
    /// end the migration's sessions at the donor, roll back what it has prepared, and look again
    RollBackDonor,
    /// another router may have decided it: an administrator ends the prepared transactions
    InDoubt,
    /// the migration is over
    Nothing,
}

/// The next action towards the end of a migration without a coordinator. The shards' parts matter only in *committed*.
pub fn next_action(state: State, donor: Part, recipient: Part) -> Action {
    match (state, donor, recipient) {
        (State::Running, ..) => Action::Abort,
        (State::Committed, Part::Prepared, Part::Prepared | Part::Committed) => Action::CommitDonor,
        (State::Committed, Part::Committed, Part::Prepared) => Action::CommitRecipient,
        (State::Committed, Part::Committed, Part::Committed) => Action::Flip,
        (State::Committed, ..) => Action::Lost,
        (State::Moved | State::Aborted, ..) => Action::Clean,
        (State::Done, ..) => Action::Nothing,
    }
}

/// The action for a migration that is *running* in this catalog, and was begun by a router that this one has replaced. The sessions of that
/// router at both shards have ended.
///
/// INVARIANT: a transaction that the other router has prepared is rolled back only if the shards show that the donor has the documents. The
/// donor has them if it is at an older version. It also has them if it has prepared and the recipient is at an older version without a
/// prepared transaction: as the recipient prepares first, it has rolled back or lost its part.
pub fn action_after_take_over(donor: Found, recipient: Found) -> Action {
    match (donor, recipient) {
        // A part is committed only after the decision.
        (Found::Committed, _) | (_, Found::Committed) => Action::Follow,
        (Found::Before, _) | (_, Found::Before) => Action::Abort,
        // The migration may be committed; or it was aborted while one shard was down, and the other shard has taken part in later moves.
        (Found::Prepared, _) | (_, Found::Prepared) => Action::InDoubt,
        (Found::After | Found::Gone, Found::After | Found::Gone) => Action::Abort,
    }
}

/// The action for a migration that is *running* in this catalog, and was begun by this router before its server was restarted, promoted or
/// restored.
///
/// INVARIANT: like that of [`action_after_take_over`]. If both shards have prepared, none has committed, so either outcome is right,
/// whatever was decided. The donor's part is rolled back before the recipient's: if the donor has committed meanwhile, the migration is
/// completed.
pub fn action_after_failover(donor: Found, recipient: Found) -> Action {
    match (donor, recipient) {
        (Found::Prepared, Found::Prepared) => Action::RollBackDonor,
        _ => action_after_take_over(donor, recipient),
    }
}

/// Ends a decided migration after a shard has lost its part, by a failover to a standby without it, or by restoring a backup: the range
/// goes to the shard that has the documents. If no part is lost, the action is that of [`next_action`].
///
/// The donor has them unless it has committed. The recipient has them, and perhaps later writes, once it has committed.
pub fn salvage(donor: Part, recipient: Part) -> Action {
    match (donor, recipient) {
        (Part::Nothing, Part::Committed) | (Part::Committed, Part::Nothing) => Action::Flip,
        (_, Part::Nothing) | (Part::Nothing, _) => Action::GiveUp,
        _ => next_action(State::Committed, donor, recipient),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Part::{Committed, Nothing, Prepared};

    #[test]
    fn a_decision_deletes_no_documents_that_the_recipient_has_lost() {
        for donor in [Nothing, Prepared, Committed] {
            assert_eq!(next_action(State::Committed, donor, Nothing), Action::Lost, "{donor:?}");
        }
        for recipient in [Nothing, Prepared, Committed] {
            assert_eq!(next_action(State::Committed, Nothing, recipient), Action::Lost, "{recipient:?}");
        }
    }

    #[test]
    fn what_another_router_has_prepared_is_rolled_back_only_if_the_donor_has_the_documents() {
        use Action::{Abort, Follow, InDoubt};
        let all = [Found::Before, Found::Prepared, Found::Committed, Found::After, Found::Gone];
        // By row the donor's, by column the recipient's.
        for (donor, actions) in all.into_iter().zip([
            [Abort, Abort, Follow, Abort, Abort],
            [Abort, InDoubt, Follow, InDoubt, InDoubt],
            [Follow, Follow, Follow, Follow, Follow],
            [Abort, InDoubt, Follow, Abort, Abort],
            [Abort, InDoubt, Follow, Abort, Abort],
        ]) {
            for (recipient, action) in all.into_iter().zip(actions) {
                assert_eq!(action_after_take_over(donor, recipient), action, "{donor:?} {recipient:?}");
            }
        }
    }

    #[test]
    fn after_a_failover_only_a_later_shard_leaves_a_doubt() {
        let all = [Found::Before, Found::Prepared, Found::Committed, Found::After, Found::Gone];
        for (donor, recipient) in all.into_iter().flat_map(|donor| all.map(|recipient| (donor, recipient))) {
            let action = action_after_failover(donor, recipient);
            if (donor, recipient) == (Found::Prepared, Found::Prepared) {
                assert_eq!(action, Action::RollBackDonor);
            } else {
                assert_eq!(action, action_after_take_over(donor, recipient), "{donor:?} {recipient:?}");
            }
        }
    }

    #[test]
    fn a_later_version_is_not_the_moves() {
        let found = [None, Some(4), Some(5), Some(6)].map(|version| Found::at(version, 5));
        assert_eq!(found, [Found::Gone, Found::Before, Found::Committed, Found::After]);
    }

    #[test]
    fn a_lost_part_leaves_the_range_where_the_documents_are() {
        for (donor, recipient, action) in [
            (Prepared, Nothing, Action::GiveUp),
            (Nothing, Prepared, Action::GiveUp),
            (Nothing, Nothing, Action::GiveUp),
            (Nothing, Committed, Action::Flip),
            // The donor has deleted the documents and the recipient lost them. The map must agree with the shards' ownership.
            (Committed, Nothing, Action::Flip),
            (Prepared, Prepared, Action::CommitDonor),
            (Prepared, Committed, Action::CommitDonor),
            (Committed, Prepared, Action::CommitRecipient),
            (Committed, Committed, Action::Flip),
        ] {
            assert_eq!(salvage(donor, recipient), action, "{donor:?} {recipient:?}");
        }
    }
}
