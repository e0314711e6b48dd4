//! The states of a change of a collection's layout (its shard key, chunks and shards), and the next action in each. Pure, so that a
//! test can stop it at every step.
//!
//! The documents are copied into a second collection, the *copy*, which nobody reads. The decision gives the copy the
//! collection's name, in the same transaction.
//!
//! ```text
//! running ──► committed ──► done
//!    └──────► aborted ────► done
//! ```
//!
//! * *running*: the collection has its old layout. A process that finds such a row without its coordinator aborts the change.
//! * *committed*: the collection has its new layout; only the coordinator's own tables remain to be removed.
//! * *aborted*: the collection keeps its old layout; the copy, the captures and the tables remain to be removed.
//!
//! INVARIANT: a row becomes *committed* in the transaction that drops the old tables and renames the copy, and an abort compares
//! the state before it removes anything. So a copy is removed only if it never becomes the collection.

use std::fmt;

/// The state of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// nothing is decided
    Running,
    /// the collection has its new layout
    Committed,
    /// the collection keeps its old layout
    Aborted,
    /// decided, and cleaned up
    Done,
}

/// The allowed transitions.
const TRANSITIONS: &[(State, State)] = &[
    (State::Running, State::Committed),
    (State::Running, State::Aborted),
    (State::Committed, State::Done),
    (State::Aborted, State::Done),
];

/// The states by their names in the catalog.
const NAMES: &[(State, &str)] =
    &[(State::Running, "running"), (State::Committed, "committed"), (State::Aborted, "aborted"), (State::Done, "done")];

impl State {
    /// True if the catalog's row may go from this state to that.
    pub fn may_become(self, next: State) -> bool {
        TRANSITIONS.contains(&(self, next))
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<State> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(state, _)| *state)
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

/// An action towards the end of a change without a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// compare-and-set to *aborted*
    Abort,
    /// end the change's sessions, drop the copy, delete the captures and drop the coordinator's tables; then set to *done*
    RemoveCopy,
    /// end the change's sessions and drop the coordinator's tables; then set to *done*
    RemoveTables,
    /// the change is over
    Nothing,
}

/// The next action towards the end of a change without a coordinator.
pub fn next_action(state: State) -> Action {
    match state {
        State::Running => Action::Abort,
        State::Committed => Action::RemoveTables,
        State::Aborted => Action::RemoveCopy,
        State::Done => Action::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 4] = [State::Running, State::Committed, State::Aborted, State::Done];

    #[test]
    fn a_decision_is_never_taken_back() {
        for (from, to) in ALL.iter().flat_map(|from| ALL.map(|to| (*from, to))) {
            let allowed = matches!(
                (from, to),
                (State::Running, State::Committed | State::Aborted) | (State::Committed | State::Aborted, State::Done)
            );
            assert_eq!(from.may_become(to), allowed, "{from} to {to}");
            assert_eq!(State::parse(from.name()), Some(from));
        }
        assert_eq!(State::parse("moved"), None);
    }

    /// The state that a process may leave behind when it dies: the change's state, and whether the copy, the old collection and the
    /// coordinator's own tables exist.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        state: State,
        copy: bool,
        old: bool,
        tables: bool,
    }

    fn act(world: &World) -> Vec<World> {
        let set = |state| World { state, ..world.clone() };
        match next_action(world.state) {
            Action::Abort => vec![set(State::Aborted)],
            // A crash may come between any two removals, or before the state is set.
            Action::RemoveCopy => {
                let copy = World { copy: false, ..world.clone() };
                let tables = World { tables: false, ..world.clone() };
                let all = World { state: State::Done, copy: false, tables: false, ..world.clone() };
                vec![copy, tables, all]
            }
            Action::RemoveTables => {
                let tables = World { tables: false, ..world.clone() };
                vec![tables, World { state: State::Done, tables: false, ..world.clone() }]
            }
            Action::Nothing => Vec::new(),
        }
    }

    #[test]
    fn whatever_is_left_ends_with_one_collection_and_no_tables() {
        let running = World { state: State::Running, copy: true, old: true, tables: true };
        // The decision drops the old tables and sets the state at once.
        let committed = World { state: State::Committed, old: false, ..running.clone() };
        let mut pending = vec![running, committed];
        let mut seen = std::collections::HashSet::new();
        while let Some(world) = pending.pop() {
            if seen.insert(world.clone()) {
                pending.extend(act(&world));
            }
        }
        for world in seen {
            assert!(world.old || world.copy, "the documents are gone: {world:?}");
            if world.state == State::Done {
                assert!(world.old != world.copy && !world.tables, "{world:?}");
            }
        }
    }
}
