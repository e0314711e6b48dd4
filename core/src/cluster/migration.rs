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
//!   such a row without its coordinator aborts the migration.
//! * *committed*: both shards have prepared. The migration can no longer be aborted, and any process may complete it.
//! * *moved*: the chunk map names the recipient; only the clean-up remains.
//! * *aborted*: the donor keeps the range; both shards roll back and are cleaned up.
//!
//! INVARIANT: a shard's prepared transaction is committed only in *committed*, and rolled back only in *aborted*. The
//! donor commits before the recipient, so at no moment both own the range.

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
    /// a prepared transaction is gone, which no program can repair
    Lost,
    /// the migration is over
    Nothing,
}

/// The next action towards the end of a migration without a coordinator. The shards' parts matter only in *committed*.
pub fn next_action(state: State, donor: Part, recipient: Part) -> Action {
    match (state, donor, recipient) {
        (State::Running, ..) => Action::Abort,
        (State::Committed, Part::Prepared, _) => Action::CommitDonor,
        (State::Committed, Part::Committed, Part::Prepared) => Action::CommitRecipient,
        (State::Committed, Part::Committed, Part::Committed) => Action::Flip,
        (State::Committed, ..) => Action::Lost,
        (State::Moved | State::Aborted, ..) => Action::Clean,
        (State::Done, ..) => Action::Nothing,
    }
}
