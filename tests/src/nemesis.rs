//! What strikes a cluster while a chunk moves: kinds of accidents, steps of a move, and plans of both.
//!
//! A seed decides what strikes when; at which moment within a step it does, is up to the machine.

use fastrand::Rng;
use std::fmt;

/// Whom an accident hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Victim {
    /// who gives the chunk away
    Donor,
    /// who gets it
    Recipient,
    /// where the catalog is, and who coordinates
    Router,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Accident {
    /// a process of the move is killed by SIGKILL, on which its server restarts all of its processes
    KillSession(Victim),
    /// the postmaster is killed by SIGKILL, and started again
    KillPostmaster(Victim),
    /// all processes of the server are killed at once, as in a power cut, and the server is started again
    Crash(Victim),
    /// an orderly restart, `pg_ctl restart -m fast`
    Restart(Victim),
    /// one without writing anything, `-m immediate`
    RestartAtOnce(Victim),
    /// all processes of the server are killed, and a synchronous standby takes its place and its address
    FailOver(Victim),
    /// a process of the move is ended by pg_terminate_backend
    EndSession(Victim),
    /// its statement is cancelled by pg_cancel_backend
    CancelSession(Victim),
    /// a process of the move stands still for a while
    Pause(Victim),
    /// all connections to the server break (to the router: those of clients)
    Cut(Victim),
    /// the same, and for a while there are no new ones
    CutOff(Victim),
    /// everything said to and by the server takes long
    Delay(Victim),
    /// nothing gets to the server for a while, and then it does
    HoldRequests(Victim),
    /// what the server answers is lost: the connections break before it arrives
    LoseAnswers(Victim),
    /// the clients' statements are cancelled, on the router or on a shard
    CancelStatements(Victim),
    /// the clients' sessions are ended there
    EndSessions(Victim),
    /// who asked for the move is cancelled
    CancelCaller,
    /// who asked for the move is ended
    EndCaller,
    /// the move is aborted by docshard.abort_migration
    Abort,
    /// the same chunk is moved elsewhere
    SecondMove,
    /// chunks of the collection are split and merged
    SplitAndMerge,
    /// an index is made, and dropped
    Index,
    /// another collection is made, sharded, filled and dropped
    OtherCollection,
    /// the balancer is stopped and started
    Balancer,
    /// the recipient is to be removed, and then not
    Drain,
    /// a transaction that wrote to the chunk stays open
    LongWriter,
    /// a snapshot of the donor stays open
    LongReader,
    /// CHECKPOINT, VACUUM and ANALYZE on both sides
    Maintenance,
}

/// Where a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// it has been registered, and the recipient is being prepared
    Register,
    /// writers are told, and those that were there before are waited for
    Capture,
    /// documents are being copied
    Clone,
    /// changes are being copied
    CatchUp,
    /// writers are, or are to be, excluded
    HandOver,
    /// the decision is made, but not yet the map changed
    Decided,
    /// the map is changed, and what is left is being removed
    Settle,
    /// its coordinator is gone, or it is being taken back
    Recovery,
}

impl Step {
    /// All of them, in order.
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
}

impl fmt::Display for Accident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Accident {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for victim in [Victim::Donor, Victim::Recipient, Victim::Router] {
            all.extend([
                Self::KillSession(victim),
                Self::KillPostmaster(victim),
                Self::Crash(victim),
                Self::Restart(victim),
                Self::RestartAtOnce(victim),
                Self::FailOver(victim),
                Self::EndSession(victim),
                Self::CancelSession(victim),
                Self::Pause(victim),
                Self::Cut(victim),
                Self::CutOff(victim),
                Self::Delay(victim),
                Self::HoldRequests(victim),
                Self::LoseAnswers(victim),
                Self::CancelStatements(victim),
                Self::EndSessions(victim),
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

/// One accident at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Strike {
    /// what
    pub accident: Accident,
    /// when
    pub step: Step,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.accident, self.step)
    }
}

/// Strikes without end: every accident once before any comes again, and the steps in turn.
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
    type Item = Strike;

    fn next(&mut self) -> Option<Strike> {
        if self.accidents.is_empty() {
            self.accidents = Accident::all();
            self.rng.shuffle(&mut self.accidents);
        }
        if self.steps.is_empty() {
            self.steps = Step::ALL.to_vec();
            self.rng.shuffle(&mut self.steps);
        }
        Some(Strike { accident: self.accidents.pop()?, step: self.steps.pop()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_is_a_plan() {
        let plan = |seed| Plan::new(seed).take(200).collect::<Vec<_>>();
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
        let some: BTreeSet<_> = Plan::new(3).take(40).collect();
        assert_eq!(some.len(), 40, "nothing comes twice in a short run");
        assert_eq!(some.iter().map(|strike| strike.step).collect::<BTreeSet<_>>().len(), Step::ALL.len());
        let all: BTreeSet<_> = Plan::new(4).take(Accident::all().len()).map(|strike| strike.accident).collect();
        assert_eq!(all.len(), Accident::all().len(), "all accidents come");
    }
}
