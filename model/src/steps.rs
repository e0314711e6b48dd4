//! The steps of the coordinator and of recovery, as in `src/migration`.

use crate::world::{A, B, Pc, Recovery, Side, Txn, World, found};
use crate::{Mechanism, Protocol};
use docshard_core::cluster::migration::{
    Action, Part, State, action_after_failover, action_after_take_over, next_action,
};

/// Largest number of rounds of copying changes.
const ROUNDS: u8 = 2;

impl Protocol {
    /// Changes the state of the catalog's row; false if it does not have the old state.
    fn advance(&self, world: &mut World, from: State, to: State) -> bool {
        assert!(from.may_become(to), "{from} to {to}: core does not allow that");
        if world.state != from && !self.is_off(Mechanism::CompareAndSet) {
            return false;
        }
        world.state = to;
        true
    }

    /// The coordinator aborts its attempt.
    pub(crate) fn give_up(&self, world: &mut World) {
        // Its own sessions are closed, and their open transactions rolled back.
        for side in [Side::Donor, Side::Recipient] {
            world.roll_back(side, false);
            world.shard_mut(side).session = false;
        }
        // A row in another state is decided, or recovery completes it.
        if world.state == State::Running {
            self.advance(world, State::Running, State::Aborted);
        }
        world.pc = Pc::Settle;
    }

    /// The coordinator unblocks the writers because the hand-over takes too long: T rolls back, and changes are copied again. The log
    /// stays, and so do the changes that R has applied. None if that is not possible in this state.
    pub(crate) fn resume(&self, world: &World) -> Option<World> {
        let frozen = matches!(world.pc, Pc::Delete | Pc::LastPull | Pc::LastApply | Pc::PrepareRecipient);
        if !frozen || !world.donor.session || !world.recipient.session || world.rounds >= ROUNDS {
            return None;
        }
        let mut next = world.clone();
        next.roll_back(Side::Donor, false);
        next.staged.clear();
        next.pc = Pc::Pull;
        Some(next)
    }

    /// The coordinator's next step; None if it has to wait.
    pub(crate) fn step(&self, world: &World) -> Option<World> {
        let mut next = world.clone();
        let sessions = world.donor.session && world.recipient.session;
        let needs_sessions =
            !matches!(world.pc, Pc::Decide | Pc::CommitDonor | Pc::CommitRecipient | Pc::Flip | Pc::Settle | Pc::Dead);
        if needs_sessions && !sessions {
            self.give_up(&mut next);
            return Some(next);
        }
        match world.pc {
            Pc::Capture => {
                next.capture = true;
                next.pc = if self.is_off(Mechanism::AwaitWriters) { Pc::Clone(A) } else { Pc::ListWriters };
            }
            Pc::ListWriters => {
                let holders = (0_u8..).zip(&world.writers).filter(|(_, writer)| writer.locks_at() == Some(false));
                next.pc = Pc::AwaitWriters(holders.fold(0, |set, (number, _)| set | 1 << number));
            }
            Pc::AwaitWriters(set) => {
                let stay = (0_u8..)
                    .zip(&world.writers)
                    .any(|(number, writer)| set & (1 << number) != 0 && writer.locks_at() == Some(false));
                if stay {
                    return None;
                }
                next.pc = Pc::Clone(A);
            }
            Pc::Clone(key) => {
                next.recipient.txn = Txn::Open;
                next.loaded[key] = world.donor.rows[key];
                next.pc = if key == A { Pc::Clone(B) } else { Pc::Pull };
            }
            Pc::Pull | Pc::LastPull => {
                next.staged = world.log.iter().map(|&row| (row, world.donor.rows[row.key])).collect();
                next.pc = if world.pc == Pc::Pull { Pc::Apply } else { Pc::LastApply };
            }
            Pc::Apply | Pc::LastApply => {
                for (row, value) in &world.staged {
                    next.loaded[row.key] = *value;
                }
                if world.pc == Pc::Apply {
                    next.rounds += 1;
                    next.pc = Pc::Forget;
                } else {
                    next.staged.clear();
                    next.pc = Pc::PrepareRecipient;
                }
            }
            Pc::Forget => {
                if self.is_off(Mechanism::ExactLog) {
                    let highest = world.staged.iter().map(|(row, _)| row.seq).max();
                    next.log.retain(|row| highest.is_none_or(|highest| row.seq > highest));
                } else {
                    next.log.retain(|row| !world.staged.iter().any(|(staged, _)| staged == row));
                }
                next.staged.clear();
                next.pc = Pc::Freeze;
            }
            Pc::Freeze => {
                if world.writers.iter().any(|writer| writer.shares_moves_lock()) && !self.is_off(Mechanism::WritersLock)
                {
                    // It does not wait for the lock any longer, but copies the latest changes.
                    if world.rounds >= ROUNDS {
                        return None;
                    }
                    next.pc = Pc::Pull;
                } else {
                    next.donor.txn = Txn::Open;
                    next.pc = Pc::Delete;
                }
            }
            Pc::Delete => {
                // It waits for uncommitted writes to rows of the range.
                if world.writers.iter().any(|w| matches!(w, crate::world::Writer::Written { new: false, .. })) {
                    return None;
                }
                next.deleted = world.donor.rows.map(|row| row.is_some());
                next.deleting = true;
                next.pc = Pc::LastPull;
            }
            Pc::PrepareRecipient => {
                next.recipient.txn = Txn::Prepared;
                next.pc = Pc::PrepareDonor;
            }
            Pc::PrepareDonor => {
                let (gone, come) =
                    (world.deleted.iter().filter(|d| **d).count(), world.loaded.iter().filter(|r| r.is_some()).count());
                if gone != come && !self.is_off(Mechanism::Count) {
                    self.give_up(&mut next);
                } else {
                    next.donor.txn = Txn::Prepared;
                    next.pc = if self.is_off(Mechanism::AwaitStandbys) { Pc::Decide } else { Pc::AwaitStandbys };
                }
            }
            Pc::AwaitStandbys => {
                next.donor.replicated = true;
                next.recipient.replicated = true;
                next.pc = Pc::Decide;
            }
            Pc::Decide => {
                if self.advance(&mut next, State::Running, State::Committed) {
                    next.pc = if self.is_off(Mechanism::DonorFirst) { Pc::CommitRecipient } else { Pc::CommitDonor };
                } else {
                    self.give_up(&mut next);
                }
            }
            Pc::CommitDonor => {
                next.commit(Side::Donor);
                next.pc = if self.is_off(Mechanism::DonorFirst) { Pc::Flip } else { Pc::CommitRecipient };
            }
            Pc::CommitRecipient => {
                next.commit(Side::Recipient);
                next.pc = if self.is_off(Mechanism::DonorFirst) { Pc::CommitDonor } else { Pc::Flip };
                if self.is_off(Mechanism::FlipLast) {
                    next.map = true;
                }
            }
            Pc::Flip => {
                if self.advance(&mut next, State::Committed, State::Moved) {
                    next.map = true;
                }
                next.pc = Pc::Settle;
            }
            Pc::Settle | Pc::Dead => return None,
        }
        Some(next)
    }

    /// True if recovery may work on the attempt.
    pub(crate) fn may_recover(&self, world: &World) -> bool {
        world.state != State::Done && (matches!(world.pc, Pc::Settle | Pc::Dead) || world.taken_over) && !world.lost
    }

    /// The next step of recovery.
    pub(crate) fn recover(&self, world: &World) -> World {
        let mut next = world.clone();
        next.recovery = Recovery::Idle;
        match world.recovery {
            Recovery::Idle => {
                next.recovery = Recovery::Loaded {
                    state: world.state,
                    donor: world.part(Side::Donor),
                    recipient: world.part(Side::Recipient),
                };
            }
            Recovery::Loaded { state, donor, recipient } => match self.action(world, state, donor, recipient) {
                Action::Abort => {
                    self.advance(&mut next, State::Running, State::Aborted);
                }
                Action::RollBackDonor => self.clean(&mut next, Side::Donor, State::Aborted),
                Action::CommitDonor => next.commit(Side::Donor),
                Action::CommitRecipient => next.commit(Side::Recipient),
                Action::Flip => {
                    if self.advance(&mut next, State::Committed, State::Moved) {
                        next.map = true;
                    }
                }
                Action::Clean => {
                    self.clean(&mut next, Side::Donor, state);
                    next.recovery = Recovery::DonorClean { state };
                }
                Action::Follow => {
                    self.advance(&mut next, State::Running, State::Committed);
                }
                Action::Lost | Action::GiveUp => next.lost = true,
                Action::InDoubt | Action::Nothing => {}
            },
            Recovery::DonorClean { state } => {
                self.clean(&mut next, Side::Recipient, state);
                next.recovery = Recovery::BothClean { state };
            }
            Recovery::BothClean { state } => {
                self.advance(&mut next, state, State::Done);
            }
        }
        next
    }

    /// The action of recovery.
    fn action(&self, world: &World, state: State, donor: Part, recipient: Part) -> Action {
        if world.replaced && state == State::Running && !self.is_off(Mechanism::LookAfterTakeOver) {
            return action_after_take_over(found(donor), found(recipient));
        }
        if world.promoted && state == State::Running && !self.is_off(Mechanism::LookAfterTakeOver) {
            return action_after_failover(found(donor), found(recipient));
        }
        next_action(state, donor, recipient)
    }

    /// Ends the attempt's sessions on a shard, rolls back their prepared transactions if it was aborted, and removes leftovers.
    fn clean(&self, world: &mut World, side: Side, state: State) {
        if !self.is_off(Mechanism::EndSessions) {
            world.roll_back(side, false);
            let shard = world.shard_mut(side);
            shard.session = false;
            shard.prepare_in_flight = false;
        }
        if state == State::Aborted {
            world.roll_back(side, true);
        }
        match side {
            Side::Donor => {
                world.capture = false;
                world.log.clear();
            }
            Side::Recipient => world.staged.clear(),
        }
    }
}
