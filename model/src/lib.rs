//! A model of a chunk's migration, small enough to check every order of events: a donor and a recipient, a catalog, a coordinator,
//! recovery, writers and a reader, and crashes between any two steps.
//!
//! The states of a migration and the next action of recovery come from `docshard_core::cluster::migration`. The steps in between are
//! those of `src/migration`, `src/ownership` and `src/router`, divided wherever another process can run in between. A test can
//! switch off a mechanism to show that it is necessary: [`Mechanism`].
//!
//! A second migration of another chunk, between two other shards at the same time, is modelled only by its externally visible steps.
//! Two complete migrations would square the number of states, and only the map and its readers depend on both.
//!
//! The model omits what the database guarantees (durable commits, consistent snapshots), and what does not affect ownership: sizes,
//! indexes, REPEATABLE READ. Nodes restart immediately after a crash, since nothing happens without them.

mod clients;
pub mod own_part;
pub mod resharding;
mod steps;
pub mod world;

use docshard_core::cluster::migration::State;
use stateright::{Model, Property};
use std::collections::HashMap;
use world::{B, Op, Pc, Reader, Recovery, Second, Shard, Side, Txn, World, Writer};

/// A mechanism that the protocol depends on; a test can switch it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// a statement compares its version with the shard's
    VersionCheck,
    /// the version is read in the snapshot of the statement, not before it
    CheckInStatement,
    /// writers to a captured range share the move's lock, and check again under it
    WritersLock,
    /// changes of a captured range are logged
    Capture,
    /// a migration waits for the writers that began before its capture
    AwaitWriters,
    /// exactly the applied rows of the log are deleted, not all up to a number
    ExactLog,
    /// T, the donor's transaction, must have deleted as many documents as R, the recipient's, has loaded
    Count,
    /// T commits before R
    DonorFirst,
    /// the map changes after both have committed
    FlipLast,
    /// a transition checks that the row still has the old state
    CompareAndSet,
    /// the clean-up ends the attempt's sessions
    EndSessions,
    /// a scatter uses its answers only if all are current
    ConfirmFirst,
    /// the decision waits until the standbys have what both shards have prepared
    AwaitStandbys,
    /// what is prepared for a migration that has ended is ended as the migration was
    SweepByOutcome,
    /// a router with an older catalog ends the migration of its predecessor by what the shards show
    LookAfterTakeOver,
}

/// The configuration of a check.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    /// the single operation of each writer
    pub writers: Vec<Op>,
    /// a client reads once
    pub reader: bool,
    /// it reads from both shards instead of a single document
    pub scatter: bool,
    /// the largest number of crashes
    pub crashes: u8,
    /// the largest number of failovers of shards to asynchronous standbys, which may lack every commit that the migration does not wait
    /// for. Without clients: their last writes may be lost, too
    pub failovers: u8,
    /// recovery may start while the coordinator is still alive
    pub take_over: bool,
    /// how often a catalog in which the migration runs may be restored, whatever has become of it, and its router take over
    pub restores: u8,
    /// instead of a restore with a take-over, the router fails over to a standby with the old catalog
    pub promotes: bool,
    /// another chunk moves at the same time, between two other shards, which a scatter reads, too
    pub second: bool,
    /// the document `B` exists initially
    pub present: bool,
    /// the mechanisms that are switched off
    pub off: Vec<Mechanism>,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// the coordinator takes a step
    Step(Pc),
    /// the coordinator aborts: cancelled, timed out, or without a session
    GiveUp,
    /// the router or the coordinator crashes
    CrashRouter,
    /// the coordinator unblocks the writers, and copies their changes
    Resume,
    /// a shard crashes
    CrashShard(Side),
    /// a shard crashes, and its standby is promoted
    FailOver(Side),
    /// the sweep ends what is prepared at a shard for the migration, which has ended
    Sweep(Side),
    /// a session of a dead coordinator ends by itself
    SessionEnds(Side),
    /// a PREPARE of a dead coordinator arrives
    PrepareArrives(Side),
    /// recovery starts although the coordinator is alive
    TakeOver,
    /// the catalog becomes that of a moment at which the migration ran, and the former router's sessions end
    Restore,
    /// an administrator commits the donor's part of a migration in doubt, or rolls it back
    EndDoubt {
        /// commits it
        commit: bool,
    },
    /// recovery takes a step
    Recover,
    /// a writer takes a step
    Write(usize),
    /// the reader takes a step, at that shard
    Read(Side),
    /// the reader takes a step, at that shard of the second migration
    ReadOther(Side),
    /// a writer that has not begun uses the map that results from the decided migration
    ForeseeWrite(usize),
    /// as [`Event::ForeseeWrite`], for the reader and one or both migrations
    ForeseeRead {
        /// the first
        first: bool,
        /// the second
        second: bool,
    },
    /// the second migration takes an externally visible step
    Second,
    /// the second migration aborts
    AbortSecond,
}

impl Protocol {
    fn is_off(&self, mechanism: Mechanism) -> bool {
        self.off.contains(&mechanism)
    }

    /// True if the migration is over and every client has its answer.
    fn is_over(&self, world: &World) -> bool {
        world.state == State::Done
            && matches!(world.pc, Pc::Settle | Pc::Dead)
            && world.writers.iter().all(|writer| writer.has_ended())
            && world.reader == Reader::Done
            && [&world.donor, &world.recipient].iter().all(|shard| shard.txn != Txn::Prepared)
            && world.second.is_none_or(|second| matches!(second, Second::Moved | Second::Aborted))
    }

    /// The number of states, and a state from which no end can be reached; None if there is no such state. Then every migration ends
    /// and no process waits forever, provided that each enabled event eventually happens.
    pub fn stuck(&self) -> (usize, Option<World>) {
        let mut numbers: HashMap<World, usize> = HashMap::new();
        let mut worlds: Vec<World> = Vec::new();
        let mut before: Vec<Vec<u32>> = Vec::new();
        for world in self.init_states() {
            numbers.insert(world.clone(), worlds.len());
            worlds.push(world);
            before.push(Vec::new());
        }
        let mut at = 0;
        while at < worlds.len() {
            let world = worlds[at].clone();
            let mut events = Vec::new();
            self.actions(&world, &mut events);
            for event in events {
                let Some(next) = self.next_state(&world, event) else { continue };
                let number = *numbers.entry(next.clone()).or_insert_with(|| {
                    worlds.push(next);
                    before.push(Vec::new());
                    worlds.len() - 1
                });
                before[number].push(u32::try_from(at).expect("fewer states than that"));
            }
            at += 1;
        }
        let mut ends: Vec<bool> = worlds.iter().map(|world| self.is_over(world)).collect();
        let mut open: Vec<usize> = (0..worlds.len()).filter(|at| ends[*at]).collect();
        while let Some(at) = open.pop() {
            for &earlier in &before[at] {
                let earlier = earlier as usize;
                if !std::mem::replace(&mut ends[earlier], true) {
                    open.push(earlier);
                }
            }
        }
        (worlds.len(), worlds.into_iter().zip(ends).find(|(_, ends)| !ends).map(|(world, _)| world))
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let mut rows = [Some(0), None];
        if self.present {
            rows[B] = Some(0);
        }
        let shard = |rows| Shard {
            rows,
            moved: false,
            txn: Txn::None,
            session: true,
            prepare_in_flight: false,
            replicated: false,
        };
        vec![World {
            state: State::Running,
            map: false,
            second: self.second.then_some(Second::Running),
            donor: shard(rows),
            recipient: shard([None; 2]),
            capture: false,
            log: Vec::new(),
            seq: 0,
            deleted: [false; 2],
            deleting: false,
            loaded: [None; 2],
            staged: Vec::new(),
            pc: Pc::Capture,
            rounds: 0,
            recovery: Recovery::Idle,
            taken_over: false,
            replaced: false,
            promoted: false,
            writers: vec![Writer::Idle; self.writers.len()],
            reader: if self.reader { Reader::Idle } else { Reader::Done },
            increments: 0,
            present: self.present,
            crashes: self.crashes,
            failovers: self.failovers,
            restores: self.restores,
            wrong: None,
            lost: false,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        events.push(Event::Step(world.pc));
        let running = !matches!(world.pc, Pc::CommitDonor | Pc::CommitRecipient | Pc::Flip | Pc::Settle | Pc::Dead);
        if running {
            events.extend([Event::GiveUp, Event::Resume]);
        }
        for side in [Side::Donor, Side::Recipient] {
            let shard = world.shard(side);
            if world.pc == Pc::Dead && shard.txn == Txn::Open {
                events.push(Event::SessionEnds(side));
            }
            if shard.prepare_in_flight && shard.txn == Txn::Open {
                events.push(Event::PrepareArrives(side));
            }
            events.push(Event::Read(side));
            if world.crashes > 0 {
                events.push(Event::CrashShard(side));
            }
            if world.failovers > 0 {
                events.push(Event::FailOver(side));
            }
            if world.state == State::Done && shard.txn == Txn::Prepared {
                events.push(Event::Sweep(side));
            }
        }
        if world.crashes > 0 {
            events.push(Event::CrashRouter);
        }
        if self.take_over && !world.taken_over {
            events.push(Event::TakeOver);
        }
        if world.restores > 0 {
            events.push(Event::Restore);
        }
        if world.is_in_doubt() {
            events.extend([true, false].map(|commit| Event::EndDoubt { commit }));
        }
        if let Some(second) = world.second {
            events.extend([Event::ReadOther(Side::Donor), Event::ReadOther(Side::Recipient)]);
            events.extend(second.next().map(|_| Event::Second));
            if second == Second::Running {
                events.push(Event::AbortSecond);
            }
        }
        if self.may_recover(world) {
            events.push(Event::Recover);
        }
        events.extend((0..world.writers.len()).map(Event::Write));
        events.extend((0..world.writers.len()).map(Event::ForeseeWrite));
        events.extend(
            [(true, false), (false, true), (true, true)].map(|(first, second)| Event::ForeseeRead { first, second }),
        );
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        match event {
            Event::Step(_) => return self.step(world),
            Event::GiveUp => self.give_up(&mut next),
            Event::Resume => return self.resume(world),
            Event::CrashRouter => {
                next.crashes -= 1;
                if world.pc != Pc::Dead {
                    next.kill_coordinator();
                }
                next.recovery = Recovery::Idle;
            }
            Event::CrashShard(side) => {
                next.crashes -= 1;
                next.crash_shard(side);
            }
            Event::FailOver(side) => {
                next.failovers -= 1;
                next.fail_over(side);
            }
            Event::Sweep(side) if world.map && !self.is_off(Mechanism::SweepByOutcome) => next.commit(side),
            Event::Sweep(side) => next.roll_back(side, true),
            Event::SessionEnds(side) => {
                next.roll_back(side, false);
                let shard = next.shard_mut(side);
                shard.session = false;
                shard.prepare_in_flight = false;
            }
            Event::PrepareArrives(side) => {
                // All earlier statements of the session were answered, so the counts were equal.
                let shard = next.shard_mut(side);
                shard.prepare_in_flight = false;
                shard.txn = Txn::Prepared;
            }
            Event::TakeOver => next.taken_over = true,
            Event::Restore if self.promotes => next.promote(),
            Event::Restore => next.restore(),
            Event::EndDoubt { commit: true } => next.commit(Side::Donor),
            Event::EndDoubt { commit: false } => next.roll_back(Side::Donor, true),
            Event::Recover => next = self.recover(world),
            Event::Write(number) => return self.write(world, number),
            Event::Read(side) => return self.read(world, side),
            Event::ReadOther(side) => return self.read_other(world, side),
            Event::ForeseeWrite(number) => return self.foresee_write(world, number),
            Event::ForeseeRead { first, second } => return self.foresee_read(world, first, second),
            Event::Second => next.second = world.second.and_then(Second::next),
            Event::AbortSecond => next.second = Some(Second::Aborted),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("rows and version change together", |_, world: &World| {
                (!world.donor.moved || world.donor.rows == [None; 2])
                    && (world.recipient.moved || world.recipient.rows == [None; 2])
            }),
            // A shard that has lost a commit is at an older version than the map, and refuses statements, until that is committed again.
            Property::always("never do both own the chunk", |protocol, world: &World| {
                world.donor.moved || !world.recipient.moved || protocol.failovers > 0
            }),
            Property::always("the map names the shard with the documents", |protocol, world: &World| {
                !world.map || (world.donor.moved && world.recipient.moved) || protocol.failovers > 0
            }),
            Property::always("no acknowledged write is lost or done twice", |_, world: &World| {
                let documents = world.documents();
                documents[0] == Some(world.increments) && documents[B].is_some() == world.present
            }),
            Property::always("no client gets a wrong answer", |_, world: &World| world.wrong.is_none()),
            Property::always("no decision is lost", |_, world: &World| !world.lost),
            Property::always("an aborted migration leaves the chunk at the donor", |_, world: &World| {
                world.state != State::Aborted || (!world.donor.moved && !world.recipient.moved && !world.map)
            }),
            // After a failover they are swept: `stuck` checks that.
            Property::always("no leftovers remain", |protocol, world: &World| {
                let clean = |shard: &Shard| shard.txn != Txn::Prepared && !shard.prepare_in_flight;
                world.state != State::Done
                    || protocol.failovers > 0
                    || (clean(&world.donor) && clean(&world.recipient) && !world.capture && world.staged.is_empty())
            }),
            Property::sometimes("a move succeeds", |_, world: &World| world.state == State::Done && world.map),
            Property::sometimes("a move is aborted", |_, world: &World| world.state == State::Done && !world.map),
        ]
    }
}
