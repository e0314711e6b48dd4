//! The states of a chunk's move, and what is to be done next: pure, so that a test can crash it at every step.
//!
//! The catalog's row holds the state. It is the only decision: what the shards hold is made to follow it.
//!
//! ```text
//! running ──► committed ──► moved ──► done
//!    └──────► aborted ──────────────► done
//! ```
//!
//! * *running*: the donor owns the range, and takes writes to it until the hand-over, in which they wait. Whoever finds
//!   such a row without its coordinator aborts it.
//! * *committed*: both shards have prepared; nothing can stop the move any more, and anybody may complete it.
//! * *moved*: the map says so; what is left is cleaning.
//! * *aborted*: the donor keeps the range; both shards roll back, and are cleaned.
//!
//! INVARIANT: a shard's prepared transaction is committed only in *committed*, and rolled back only in *aborted*. The
//! donor commits before the recipient, so at no moment both own the range.

use std::fmt;

/// Finds a value of a table of names.
fn by_name<T: Copy>(table: &[(T, &str)], name: &str) -> Option<T> {
    table.iter().find(|(_, n)| *n == name).map(|(value, _)| *value)
}

/// Finds the name of a value in a table of names.
fn name_of<T: PartialEq>(table: &[(T, &'static str)], value: &T) -> &'static str {
    table.iter().find(|(of, _)| of == value).map_or("", |(_, name)| name)
}

/// Where a move stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// the donor owns the range
    Running,
    /// decided: the recipient will own the range
    Committed,
    /// the recipient owns the range in the map too
    Moved,
    /// decided: the donor keeps the range
    Aborted,
    /// nothing is left to do
    Done,
}

/// Every step that a state may take.
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
        name_of(NAMES, &self)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was decided about a move; it stays when the move is *done*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// nothing yet
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

/// What a shard's part of the hand-over is, as the shard itself tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// no prepared transaction, and the shard is at an older version than the move's
    Nothing,
    /// prepared
    Prepared,
    /// committed: the shard is at the move's version
    Committed,
}

/// What brings an attempt without a coordinator to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// compare-and-set to *aborted*
    Abort,
    /// commit what the donor has prepared
    CommitDonor,
    /// commit what the recipient has prepared
    CommitRecipient,
    /// change the map, and set to *moved*
    Flip,
    /// on both shards end the sessions, roll back what is prepared, drop what is left; then set to *done*
    Clean,
    /// somebody took a prepared transaction away: nothing that a program could mend
    Lost,
    /// it is over
    Nothing,
}

/// The next step to the end of an attempt that nobody works on. What the shards hold matters only in *committed*.
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
