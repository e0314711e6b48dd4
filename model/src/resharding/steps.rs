//! The steps of the coordinator and of recovery, as in `src/resharding`, and what crashes do.

use super::{DONOR, Logged, Mechanism, Pc, Protocol, RECIPIENT, Reader, World, Writer};
use docshard_core::cluster::resharding::{Action, State, next_action};

/// Largest number of rounds of copying changes before the writers are excluded.
const ROUNDS: u8 = 2;

impl Protocol {
    fn advance(&self, world: &mut World, from: State, to: State) -> bool {
        assert!(from.may_become(to), "{from} to {to}: core does not allow that");
        if world.state != from && !self.is_off(Mechanism::CompareAndSet) {
            return false;
        }
        world.state = to;
        true
    }

    /// The coordinator's next step; None if it has to wait.
    pub(super) fn step(&self, world: &World) -> Option<World> {
        let mut next = world.clone();
        match world.pc {
            Pc::Capture(shard) => {
                if !world.shards[shard].session {
                    return self.give_up(world);
                }
                next.shards[shard].capture = true;
                next.pc = if shard == 0 { Pc::Capture(1) } else { Pc::AwaitWriters };
                if shard == 1 {
                    next.awaited = (0..world.writers.len()).filter(|number| self.holds(world, *number)).collect();
                }
            }
            Pc::AwaitWriters => {
                let stays = |number: &usize| self.holds(world, *number);
                if world.awaited.iter().any(stays) && !self.is_off(Mechanism::AwaitWriters) {
                    return None;
                }
                next.awaited.clear();
                next.pc = Pc::Read(0);
            }
            Pc::Read(donor) => {
                let old = world.shards[donor].old?;
                next.staged = (0..DONOR.len()).filter(|d| DONOR[*d] == donor).map(|d| (d, old[d])).collect();
                next.pc = Pc::Load(donor);
            }
            Pc::Load(donor) => {
                store(&mut next);
                next.pc = if donor == 0 { Pc::Read(1) } else { Pc::Numbers };
            }
            Pc::Numbers | Pc::Pull | Pc::Apply | Pc::DeleteLog => return self.round(world),
            Pc::Gate => {
                next.gate = true;
                if world.gate && (0..world.writers.len()).any(|number| self.holds(world, number)) {
                    return None;
                }
                if world.gate {
                    next.pc = Pc::Exclude(0);
                }
            }
            Pc::Exclude(shard) => {
                let is_held = (0..world.writers.len()).any(|number| self.holds_at(world, number, shard));
                if is_held && !self.is_off(Mechanism::ExcludeWriters) {
                    return None;
                }
                next.shards[shard].txn = true;
                next.pc = match shard {
                    0 => Pc::Exclude(1),
                    _ if self.is_off(Mechanism::LastRound) => Pc::Flush,
                    _ => Pc::Numbers,
                };
            }
            _ => return self.decide(world),
        }
        Some(next)
    }

    /// A step of a round of copying changes.
    fn round(&self, world: &World) -> Option<World> {
        let mut next = world.clone();
        let is_last = world.gate;
        match world.pc {
            Pc::Numbers => {
                next.chosen = [0, 1].map(|shard| world.shards[shard].log.clone());
                let is_empty = next.chosen.iter().all(Vec::is_empty);
                next.pc = match (is_empty, is_last) {
                    (true, true) => Pc::Flush,
                    (true, false) => Pc::Gate,
                    (false, false) if world.rounds >= ROUNDS => Pc::Gate,
                    (false, _) => Pc::Pull,
                };
                next.rounds += u8::from(next.pc == Pc::Pull && !is_last);
            }
            Pc::Pull => {
                for Logged { document, .. } in world.chosen.iter().flatten() {
                    let old = world.shards[DONOR[*document]].old?;
                    next.staged.push((*document, old[*document]));
                }
                next.pc = Pc::Apply;
            }
            Pc::Apply => {
                if world.shards.iter().any(|shard| !shard.session) {
                    return self.give_up(world);
                }
                store(&mut next);
                next.pc = Pc::DeleteLog;
            }
            _ => {
                for (shard, chosen) in next.shards.iter_mut().zip(&world.chosen) {
                    let last = chosen.iter().map(|row| row.seq).max();
                    match self.is_off(Mechanism::ExactLog) {
                        true => shard.log.retain(|row| Some(row.seq) > last),
                        false => shard.log.retain(|row| !chosen.contains(row)),
                    }
                }
                next.chosen = [Vec::new(), Vec::new()];
                next.pc = Pc::Numbers;
            }
        }
        Some(next)
    }

    /// A step of the decision, while writers are excluded.
    fn decide(&self, world: &World) -> Option<World> {
        let mut next = world.clone();
        match world.pc {
            Pc::Flush => {
                if !self.is_off(Mechanism::Flush) {
                    if world.shards.iter().any(|shard| !shard.session) {
                        return self.give_up(world);
                    }
                    next.shards.iter_mut().for_each(|shard| shard.is_durable = true);
                }
                next.pc = Pc::Prepare(0);
            }
            Pc::Prepare(shard) => {
                let is_held = (0..world.writers.len()).any(|number| self.holds_at(world, number, shard));
                if is_held {
                    return None;
                }
                // A crash has ended the transaction, or the capture.
                if !world.shards[shard].txn || !world.shards[shard].capture {
                    return self.give_up(world);
                }
                next.shards[shard].txn = false;
                next.shards[shard].prepared = true;
                if self.is_off(Mechanism::PrepareFirst) {
                    commit(&mut next, shard);
                }
                next.pc = if shard == 0 { Pc::Prepare(1) } else { Pc::Decide };
            }
            Pc::Decide => {
                if !self.advance(&mut next, State::Running, State::Committed) {
                    return self.give_up(world);
                }
                next.map = true;
                next.gate = false;
                next.pc = Pc::Commit(0);
            }
            Pc::Commit(shard) => {
                if world.shards[shard].prepared {
                    commit(&mut next, shard);
                }
                next.pc = if shard == 0 { Pc::Commit(1) } else { Pc::Settle };
            }
            _ => return None,
        }
        Some(next)
    }

    /// The coordinator lets writers go on; None if it does not exclude them.
    pub(super) fn put_off(&self, world: &World) -> Option<World> {
        let may = world.gate
            && matches!(world.pc, Pc::Gate | Pc::Exclude(_) | Pc::Numbers | Pc::Pull | Pc::Apply | Pc::Flush)
            && world.rounds < ROUNDS;
        may.then(|| {
            let mut next = world.clone();
            next.gate = false;
            next.shards.iter_mut().for_each(|shard| shard.txn = false);
            next.chosen = [Vec::new(), Vec::new()];
            next.staged.clear();
            next.rounds += 1;
            next.pc = Pc::Numbers;
            next
        })
    }

    /// The coordinator aborts; None if it is too late.
    pub(super) fn give_up(&self, world: &World) -> Option<World> {
        if matches!(world.pc, Pc::Commit(_) | Pc::Settle | Pc::Dead) {
            return None;
        }
        let mut next = world.clone();
        end_coordinator(&mut next);
        for shard in &mut next.shards {
            // Its own transaction rolls back what is prepared.
            shard.prepared = false;
        }
        if world.state == State::Running {
            self.advance(&mut next, State::Running, State::Aborted);
        }
        next.pc = Pc::Settle;
        Some(next)
    }

    /// A user aborts the change, unless a lost router may have decided it.
    pub(super) fn abort(&self, world: &World) -> Option<World> {
        if world.is_undecided() {
            return None;
        }
        let mut next = world.clone();
        let aborted = world.state == State::Running && self.advance(&mut next, State::Running, State::Aborted);
        next.told_aborted |= aborted;
        aborted.then_some(next)
    }

    pub(super) fn crash_router(&self, world: &World) -> World {
        let mut next = world.clone();
        next.crashes -= 1;
        if let Pc::Capture(shard) = world.pc {
            next.shards[shard].capture_in_flight = world.shards[shard].session;
        }
        end_coordinator(&mut next);
        next.pc = Pc::Dead;
        for writer in &mut next.writers {
            if !matches!(writer, Writer::Committing { .. } | Writer::Acknowledged) {
                *writer = Writer::Failed;
            }
        }
        next.reader = Reader::Done;
        next
    }

    pub(super) fn crash_shard(&self, world: &World, at: usize) -> World {
        let mut next = world.clone();
        next.crashes -= 1;
        let shard = &mut next.shards[at];
        shard.session = false;
        shard.txn = false;
        shard.capture_in_flight = false;
        if !shard.is_durable && !shard.decided {
            shard.copy = shard.copy.map(|_| [None; RECIPIENT.len()]);
        }
        for (number, writer) in next.writers.iter_mut().enumerate() {
            let is_open = matches!(writer, Writer::Locked { .. } | Writer::Written { .. });
            if is_open && self.touches(world, number, at) {
                *writer = Writer::Failed;
            }
        }
        next
    }

    /// A request of a dead coordinator arrives.
    pub(super) fn capture_arrives(&self, world: &World, at: usize) -> Option<World> {
        world.shards[at].capture_in_flight.then(|| {
            let mut next = world.clone();
            next.shards[at].capture_in_flight = false;
            next.shards[at].capture = true;
            next
        })
    }

    /// An administrator commits what a lost router has decided and prepared, unless a part was rolled back.
    pub(super) fn commit_prepared(&self, world: &World, at: usize) -> Option<World> {
        let may = world.restored && !world.map && world.shards[at].prepared && !world.rolled_back;
        may.then(|| {
            let mut next = world.clone();
            commit(&mut next, at);
            next
        })
    }

    /// An administrator rolls back what a lost router has prepared, whether it was decided or not.
    pub(super) fn roll_back_prepared(&self, world: &World, at: usize) -> Option<World> {
        (world.is_undecided() && world.shards[at].prepared).then(|| {
            let mut next = world.clone();
            roll_back(&mut next, at);
            next.confirmed = true;
            next
        })
    }

    /// A prepared part without a coordinator ends as the catalog says.
    pub(super) fn resolve(&self, world: &World, at: usize) -> Option<World> {
        let is_left = world.is_undecided() && !self.is_off(Mechanism::LeaveParts);
        if !world.shards[at].prepared || is_left || !matches!(world.pc, Pc::Settle | Pc::Dead) {
            return None;
        }
        let mut next = world.clone();
        if world.map {
            commit(&mut next, at);
        } else {
            roll_back(&mut next, at);
        }
        Some(next)
    }

    /// The holder of the coordinator's lock cleans up.
    pub(super) fn recover(&self, world: &World) -> Option<World> {
        if !matches!(world.pc, Pc::Settle | Pc::Dead) {
            return None;
        }
        let mut next = world.clone();
        let mut decided = world.shards.iter().map(|shard| shard.decided);
        let shows = if self.is_off(Mechanism::OneShardShows) { decided.all(|is| is) } else { decided.any(|is| is) };
        let shows = shows && !self.is_off(Mechanism::ShardsShowDecision);
        let prepared = world.shards.iter().position(|shard| shard.prepared);
        match next_action(world.state) {
            // The parts end one after the other.
            Action::Abort if world.restored && prepared.is_some() => {
                let at = prepared?;
                if shows {
                    commit(&mut next, at);
                } else {
                    roll_back(&mut next, at);
                }
            }
            Action::Abort if shows => {
                if world.shards.iter().any(|shard| !shard.decided) && !world.confirmed {
                    next.wrong = Some("a part of a decided change is missing");
                }
                self.advance(&mut next, State::Running, State::Committed);
                next.map = true;
                for shard in &mut next.shards {
                    // A part that was rolled back is as complete as the others.
                    shard.old = None;
                    shard.decided = true;
                }
            }
            Action::Abort => {
                self.advance(&mut next, State::Running, State::Aborted);
            }
            // An administrator has to look at it: the abort was requested when the coordinator was already gone.
            Action::RemoveCopy if shows => return None,
            action @ (Action::RemoveCopy | Action::RemoveTables) => {
                // A prepared part holds the locks.
                if world.shards.iter().any(|shard| shard.prepared) {
                    return None;
                }
                for shard in &mut next.shards {
                    if !self.is_off(Mechanism::EndSessions) {
                        shard.capture_in_flight = false;
                    }
                    shard.capture = false;
                    shard.log.clear();
                    if action == Action::RemoveCopy {
                        shard.copy = None;
                    }
                }
                self.advance(&mut next, world.state, State::Done);
            }
            Action::Nothing => return None,
        }
        Some(next)
    }

    /// The router is restored from a backup of the time when the change ran, and has been decided since; its parts may still be prepared.
    pub(super) fn restore(&self, world: &World) -> Option<World> {
        if !world.map {
            return None;
        }
        let mut next = world.clone();
        next.restored = true;
        next.state = State::Running;
        next.map = false;
        next.pc = Pc::Dead;
        for writer in &mut next.writers {
            if !matches!(writer, Writer::Idle | Writer::Acknowledged) {
                *writer = Writer::Failed;
            }
        }
        next.reader = Reader::Done;
        (!world.writers.iter().any(|writer| matches!(writer, Writer::Committing { .. }))).then_some(next)
    }
}

/// The recipients store what was read.
fn store(world: &mut World) {
    for (document, value) in std::mem::take(&mut world.staged) {
        let shard = &mut world.shards[RECIPIENT[document]];
        shard.is_durable = false;
        if let Some(copy) = &mut shard.copy {
            copy[document] = Some(value);
        }
    }
}

/// A shard commits its part of the decision.
fn commit(world: &mut World, at: usize) {
    let shard = &mut world.shards[at];
    shard.prepared = false;
    shard.decided = true;
    shard.is_durable = true;
    shard.old = None;
    shard.capture = false;
    shard.log.clear();
}

/// A shard rolls back its part of the decision.
fn roll_back(world: &mut World, at: usize) {
    world.shards[at].prepared = false;
    world.rolled_back = true;
}

/// The coordinator's sessions and open transactions end.
fn end_coordinator(world: &mut World) {
    world.gate = false;
    world.awaited.clear();
    world.chosen = [Vec::new(), Vec::new()];
    world.staged.clear();
    for shard in &mut world.shards {
        shard.txn = false;
        shard.session = false;
    }
}
