//! Accidents that are injected while a chunk moves, the steps of a move, and random plans of both.
//!
//! The seed determines which accident is injected at which step; the moment within the step is up to the machine.

use fastrand::Rng;
use std::fmt;

/// The role, in a move, of the node that an accident hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The shard that gives the chunk away.
    Donor,
    /// The shard that gets it.
    Recipient,
    /// The node with the catalog and the coordinator.
    Router,
}

/// An accident, or a request of another client that conflicts with the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Accident {
    /// A process of the move is killed by SIGKILL; its server then restarts all processes.
    KillSession(Role),
    /// The postmaster is killed by SIGKILL, and started again.
    KillPostmaster(Role),
    /// All processes of the server are killed at once, as in a power cut, and the server is started again.
    Crash(Role),
    /// The server is restarted as by `pg_ctl restart -m fast`.
    Restart(Role),
    /// The server is restarted as by `pg_ctl restart -m immediate`.
    RestartAtOnce(Role),
    /// All processes of the server are killed, and a synchronous standby takes over its address.
    FailOver(Role),
    /// A process of the move is ended by pg_terminate_backend.
    EndSession(Role),
    /// Its statement is cancelled by pg_cancel_backend.
    CancelSession(Role),
    /// A process of the move is stopped for a while.
    Pause(Role),
    /// All connections to the server break; to the router, those of clients.
    Cut(Role),
    /// The same, and for a while new connections are refused.
    CutOff(Role),
    /// The network to and from the server is slow.
    Delay(Role),
    /// Requests to the server are held up for a while, and then arrive.
    HoldRequests(Role),
    /// Answers of the server are lost: the connections break before they arrive.
    LoseAnswers(Role),
    /// The clients' statements are cancelled, on the router or on a shard.
    CancelStatements(Role),
    /// The clients' sessions are ended there.
    EndSessions(Role),
    /// The statement that called `move_chunk` is cancelled.
    CancelCaller,
    /// The session that called `move_chunk` is ended.
    EndCaller,
    /// The move is aborted by docshard.abort_migration.
    Abort,
    /// A second move of the same chunk is requested.
    SecondMove,
    /// Chunks of the collection are split and merged.
    SplitAndMerge,
    /// An index is created, and dropped.
    Index,
    /// Another collection is created, sharded, filled and dropped.
    OtherCollection,
    /// The balancer is stopped and started.
    Balancer,
    /// The removal of the recipient begins, and is taken back.
    Drain,
    /// A transaction that has written to the collection stays open.
    LongWriter,
    /// A transaction that has read the collection keeps its snapshot.
    LongReader,
    /// CHECKPOINT, VACUUM and ANALYZE run on donor and recipient.
    Maintenance,
}

/// A step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The move is registered, and the recipient is being prepared.
    Register,
    /// New writers capture their changes; the coordinator waits for older ones.
    Capture,
    /// Documents are being copied.
    Clone,
    /// Captured changes are being copied.
    CatchUp,
    /// Writers are being excluded.
    HandOver,
    /// The move is decided, and the chunk map not yet changed.
    Decided,
    /// The map is changed, and the leftovers are being removed.
    Settle,
    /// The coordinator is gone, or the move is being rolled back.
    Recovery,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 8] = [
        Self::Register,
        Self::Capture,
        Self::Clone,
        Self::CatchUp,
        Self::HandOver,
        Self::Decided,
        Self::Settle,
        Self::Recovery,
    ];

    /// The step of a move that the catalog describes.
    pub fn of(state: &str, step: &str) -> Option<Self> {
        Some(match (state, step) {
            ("committed", _) => Self::Decided,
            ("moved", _) => Self::Settle,
            ("aborted", _) => Self::Recovery,
            ("running", "registered" | "preparing the recipient") => Self::Register,
            ("running", "waiting for writers" | "capturing") => Self::Capture,
            ("running", "cloning") => Self::Clone,
            ("running", "catching up") => Self::CatchUp,
            ("running", "handing over") => Self::HandOver,
            _ => return None,
        })
    }

    /// Like [`Step::of`], for a change of a collection's layout.
    pub fn of_layout(state: &str, step: &str) -> Option<Self> {
        Some(match (state, step) {
            ("committed", _) => Self::Settle,
            ("aborted", _) => Self::Recovery,
            ("running", "registered" | "preparing") => Self::Register,
            ("running", "waiting for writers") => Self::Capture,
            ("running", "cloning") => Self::Clone,
            ("running", "catching up") => Self::CatchUp,
            _ => return None,
        })
    }
}

impl fmt::Display for Accident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Accident {
    /// All accidents, with every role.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for role in [Role::Donor, Role::Recipient, Role::Router] {
            all.extend([
                Self::KillSession(role),
                Self::KillPostmaster(role),
                Self::Crash(role),
                Self::Restart(role),
                Self::RestartAtOnce(role),
                Self::FailOver(role),
                Self::EndSession(role),
                Self::CancelSession(role),
                Self::Pause(role),
                Self::Cut(role),
                Self::CutOff(role),
                Self::Delay(role),
                Self::HoldRequests(role),
                Self::LoseAnswers(role),
                Self::CancelStatements(role),
                Self::EndSessions(role),
            ]);
        }
        all.extend([
            Self::CancelCaller,
            Self::EndCaller,
            Self::Abort,
            Self::SecondMove,
            Self::SplitAndMerge,
            Self::Index,
            Self::OtherCollection,
            Self::Balancer,
            Self::Drain,
            Self::LongWriter,
            Self::LongReader,
            Self::Maintenance,
        ]);
        all
    }
}

/// An accident, and the step at which it is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Injection {
    /// The accident.
    pub accident: Accident,
    /// The step.
    pub step: Step,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.accident, self.step)
    }
}

/// An endless sequence of injections. Every accident is used before any is repeated, and so is every step.
#[derive(Debug)]
pub struct Plan {
    rng: Rng,
    accidents: Vec<Accident>,
    steps: Vec<Step>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), accidents: Vec::new(), steps: Vec::new() }
    }
}

impl Iterator for Plan {
    type Item = Injection;

    fn next(&mut self) -> Option<Injection> {
        if self.accidents.is_empty() {
            self.accidents = Accident::all();
            self.rng.shuffle(&mut self.accidents);
        }
        if self.steps.is_empty() {
            self.steps = Step::ALL.to_vec();
            self.rng.shuffle(&mut self.steps);
        }
        Some(Injection { accident: self.accidents.pop()?, step: self.steps.pop()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_determines_the_plan() {
        let plan = |seed| Plan::new(seed).take(200).collect::<Vec<_>>();
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
        let some: BTreeSet<_> = Plan::new(3).take(40).collect();
        assert_eq!(some.len(), 40, "a short plan repeats nothing");
        assert_eq!(some.iter().map(|injection| injection.step).collect::<BTreeSet<_>>().len(), Step::ALL.len());
        let all: BTreeSet<_> = Plan::new(4).take(Accident::all().len()).map(|injection| injection.accident).collect();
        assert_eq!(all.len(), Accident::all().len(), "all accidents are used");
    }
}
