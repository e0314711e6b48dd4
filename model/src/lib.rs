//! A model of the move of a chunk, small enough that every order of events can be tried: a donor and a recipient, a
//! catalog, a coordinator, recovery, writers and a reader, and crashes between any two steps.
//!
//! The states of a move, and what recovery does next, are `docshard_core::cluster::migration`'s own; the steps in between are those
//! of `src/migration`, `src/ownership` and `src/router`, each as fine as another process can get in between. A mechanism
//! can be left out, to see what it is good for: [`Mechanism`].
//!
//! A second move at the same time, of another chunk between two other shards, is there in the steps that others see: both in
//! full would be the square of the states, and nothing but the map and who reads with it knows of both.
//!
//! Left out is what the database guarantees (a commit is durable, a snapshot is one), and what has no part in who owns what:
//! sizes, indexes, REPEATABLE READ. A crash is short: nodes are back at once, as without them nothing goes on.

mod clients;
mod steps;
pub mod world;

use docshard_core::cluster::migration::State;
use stateright::{Model, Property};
use std::collections::HashMap;
use world::{B, Op, Pc, Reader, Recovery, Second, Shard, Side, Txn, World, Writer};

/// What keeps the protocol right; a test leaves one out.
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
    /// a move waits for the writers from before its capture
    AwaitWriters,
    /// exactly the applied rows of the log are forgotten, not all up to a number
    ExactLog,
    /// T must have deleted as many documents as R holds
    Count,
    /// T commits before R
    DonorFirst,
    /// the map changes after both have committed
    FlipLast,
    /// a state is left only by who finds the row in it
    CompareAndSet,
    /// who cleans up ends the attempt's sessions
    EndSessions,
    /// no answer of a scatter is used unless all are current
    ConfirmFirst,
}

/// What is to be tried.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    /// what each writer does, once
    pub writers: Vec<Op>,
    /// a client reads once
    pub reader: bool,
    /// it reads from both shards, not just one document
    pub scatter: bool,
    /// how many crashes there may be, of whatever
    pub crashes: u8,
    /// the coordinator may be taken for dead while it lives, and comes back
    pub take_over: bool,
    /// another chunk moves at the same time, between two other shards, which a scatter reads too
    pub second: bool,
    /// the document `B` is there from the start
    pub present: bool,
    /// what is left out
    pub off: Vec<Mechanism>,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// the coordinator takes a step
    Step(Pc),
    /// the coordinator gives up: cancelled, out of patience, or its session to S is gone
    GiveUp,
    /// the router crashes, or just the coordinator
    CrashRouter,
    /// The coordinator lets writers go on, and copies what they change
    Resume,
    /// a shard crashes
    CrashShard(Side),
    /// a session of a dead coordinator ends by itself
    SessionEnds(Side),
    /// a PREPARE of a dead coordinator arrives
    PrepareArrives(Side),
    /// somebody takes the living coordinator for dead
    TakeOver,
    /// recovery takes a step
    Recover,
    /// a writer takes a step
    Write(usize),
    /// the reader takes a step, at that shard
    Read(Side),
    /// the reader takes a step, at that shard of the second move
    ReadOther(Side),
    /// a writer that has not begun goes by the map as the decided move will make it
    ForeseeWrite(usize),
    /// as [`Event::ForeseeWrite`], the reader: by one move or both
    ForeseeRead {
        /// by the first
        first: bool,
        /// by the second
        second: bool,
    },
    /// the second move takes a step that others see
    Second,
    /// the second move is taken back
    AbortSecond,
}

impl Protocol {
    fn is_off(&self, mechanism: Mechanism) -> bool {
        self.off.contains(&mechanism)
    }

    /// True if nobody is at anything any more: the move is over, and every client has its answer.
    fn is_over(&self, world: &World) -> bool {
        world.state == State::Done
            && matches!(world.pc, Pc::Settle | Pc::Dead)
            && world.writers.iter().all(|writer| writer.has_ended())
            && world.reader == Reader::Done
            && world.second.is_none_or(|second| matches!(second, Second::Moved | Second::Aborted))
    }

    /// The number of states, and one from which no way leads to an end; None if there always is one. So no move stays
    /// unfinished, and nobody waits for ever, as long as whatever can go on does so now and then.
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
        let shard = |rows| Shard { rows, moved: false, txn: Txn::None, session: true, prepare_in_flight: false };
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
            writers: vec![Writer::Idle; self.writers.len()],
            reader: if self.reader { Reader::Idle } else { Reader::Done },
            increments: 0,
            present: self.present,
            crashes: self.crashes,
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
        }
        if world.crashes > 0 {
            events.push(Event::CrashRouter);
        }
        if self.take_over && !world.taken_over {
            events.push(Event::TakeOver);
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
            Event::SessionEnds(side) => {
                next.roll_back(side, false);
                let shard = next.shard_mut(side);
                shard.session = false;
                shard.prepare_in_flight = false;
            }
            Event::PrepareArrives(side) => {
                // What stands before it in the session has been answered, so the counts were equal.
                let shard = next.shard_mut(side);
                shard.prepare_in_flight = false;
                shard.txn = Txn::Prepared;
            }
            Event::TakeOver => next.taken_over = true,
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
            Property::always("never do both own the chunk", |_, world: &World| {
                world.donor.moved || !world.recipient.moved
            }),
            Property::always("the map names who has the documents", |_, world: &World| {
                !world.map || (world.donor.moved && world.recipient.moved)
            }),
            Property::always("no acknowledged write is lost or done twice", |_, world: &World| {
                let documents = world.documents();
                documents[0] == Some(world.increments) && documents[B].is_some() == world.present
            }),
            Property::always("no client is told anything wrong", |_, world: &World| world.wrong.is_none()),
            Property::always("no decision is lost", |_, world: &World| !world.lost),
            Property::always("whoever aborts leaves the chunk", |_, world: &World| {
                world.state != State::Aborted || (!world.donor.moved && !world.recipient.moved && !world.map)
            }),
            Property::always("nothing is left", |_, world: &World| {
                let clean = |shard: &Shard| shard.txn != Txn::Prepared && !shard.prepare_in_flight;
                world.state != State::Done
                    || (clean(&world.donor) && clean(&world.recipient) && !world.capture && world.staged.is_empty())
            }),
            Property::sometimes("a move succeeds", |_, world: &World| world.state == State::Done && world.map),
            Property::sometimes("a move is taken back", |_, world: &World| world.state == State::Done && !world.map),
        ]
    }
}
