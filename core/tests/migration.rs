//! Steps the migration protocol through a model of the catalog and two shards, with a crash before every step, also before every step
//! of the recovery.

use docshard_core::cluster::migration::{Action, Part, State, next_action};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transaction {
    None,
    Open,
    Prepared,
    Committed,
}

/// The durable state, and the open transactions, which end with the coordinator.
#[derive(Clone, Debug)]
struct World {
    state: State,
    donor: Transaction,
    recipient: Transaction,
    map_says_recipient: bool,
    captured: bool,
    staged: bool,
}

impl World {
    fn new() -> Self {
        World {
            state: State::Running,
            donor: Transaction::None,
            recipient: Transaction::None,
            map_says_recipient: false,
            captured: false,
            staged: false,
        }
    }

    fn set(&mut self, next: State) {
        assert!(self.state.may_become(next), "{} -> {next}", self.state);
        self.state = next;
    }

    fn crash(&mut self) {
        for part in [&mut self.donor, &mut self.recipient] {
            if *part == Transaction::Open {
                *part = Transaction::None;
            }
        }
    }

    fn part(transaction: Transaction) -> Part {
        match transaction {
            Transaction::None | Transaction::Open => Part::Nothing,
            Transaction::Prepared => Part::Prepared,
            Transaction::Committed => Part::Committed,
        }
    }

    /// INVARIANT: at every moment at most one shard shows the rows, and none only between the two commits. A read with the current map
    /// finds them, or gets a stale version error.
    fn check(&self) {
        let at_donor = self.donor != Transaction::Committed;
        let at_recipient = self.recipient == Transaction::Committed;
        assert!(!(at_donor && at_recipient), "rows twice: {self:?}");
        if self.map_says_recipient {
            assert!(at_recipient, "the map names a shard without the rows: {self:?}");
        }
        if self.state == State::Aborted {
            assert!(at_donor && !at_recipient, "{self:?}");
        }
    }

    fn recover_step(&mut self) -> bool {
        match next_action(self.state, Self::part(self.donor), Self::part(self.recipient)) {
            Action::Abort => self.set(State::Aborted),
            Action::CommitDonor => self.donor = Transaction::Committed,
            Action::CommitRecipient => self.recipient = Transaction::Committed,
            Action::Flip => {
                self.map_says_recipient = true;
                self.set(State::Moved);
            }
            Action::Clean => {
                for part in [&mut self.donor, &mut self.recipient] {
                    if *part != Transaction::Committed {
                        *part = Transaction::None;
                    }
                }
                self.captured = false;
                self.staged = false;
                self.set(State::Done);
            }
            Action::Lost | Action::GiveUp | Action::Follow | Action::RollBackDonor | Action::InDoubt => {
                panic!("lost: {self:?}")
            }
            Action::Nothing => return false,
        }
        true
    }

    fn check_end(&self) {
        assert_eq!(self.state, State::Done);
        assert!(!self.captured && !self.staged);
        let moved = (Transaction::Committed, Transaction::Committed, true);
        let kept = (Transaction::None, Transaction::None, false);
        let end = (self.donor, self.recipient, self.map_says_recipient);
        assert!(end == moved || end == kept, "half moved: {self:?}");
    }
}

/// The coordinator's steps, in order.
const STEPS: &[fn(&mut World)] = &[
    |w| w.captured = true,
    |w| w.donor = Transaction::Open,
    |w| w.staged = true,
    |w| w.recipient = Transaction::Open,
    |w| w.recipient = Transaction::Prepared,
    |w| {
        w.donor = Transaction::Prepared;
        // the donor deletes its capture in the same transaction
    },
    |w| w.set(State::Committed),
    |w| {
        w.donor = Transaction::Committed;
        w.captured = false;
    },
    |w| w.recipient = Transaction::Committed,
    |w| {
        w.map_says_recipient = true;
        w.set(State::Moved);
    },
    |w| {
        w.staged = false;
        w.set(State::Done);
    },
];

/// Recovers, crashing before its `crash_at`th step, and recovers again.
fn recover(mut world: World) {
    for crash_at in 0..8 {
        let mut world = world.clone();
        for _ in 0..crash_at {
            world.recover_step();
            world.check();
        }
        world.crash();
        while world.recover_step() {
            world.check();
        }
        world.check_end();
    }
    while world.recover_step() {}
    world.check_end();
}

#[test]
fn a_crash_before_any_step_leaves_the_chunk_on_one_side() {
    for crash_at in 0..=STEPS.len() {
        let mut world = World::new();
        for step in &STEPS[..crash_at] {
            step(&mut world);
            world.check();
        }
        world.crash();
        recover(world);
    }
}

#[test]
fn a_lost_session_of_one_shard_ends_the_same_way() {
    for crash_at in 0..=STEPS.len() {
        for victim in 0..2 {
            let mut world = World::new();
            for step in &STEPS[..crash_at] {
                step(&mut world);
            }
            let part = if victim == 0 { &mut world.donor } else { &mut world.recipient };
            if *part == Transaction::Open {
                *part = Transaction::None;
            }
            world.check();
            recover(world);
        }
    }
}

#[test]
fn nothing_leaves_a_decision() {
    assert!(!State::Committed.may_become(State::Aborted));
    assert!(!State::Aborted.may_become(State::Committed));
    assert!(!State::Moved.may_become(State::Running));
    for state in [State::Running, State::Committed, State::Moved, State::Aborted, State::Done] {
        assert!(!State::Done.may_become(state));
        assert_eq!(State::parse(state.name()), Some(state));
    }
}

#[test]
fn a_prepared_transaction_that_is_gone_is_told() {
    assert_eq!(next_action(State::Committed, Part::Nothing, Part::Prepared), Action::Lost);
    assert_eq!(next_action(State::Committed, Part::Committed, Part::Nothing), Action::Lost);
}
