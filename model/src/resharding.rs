//! A model of a change of a collection's layout (`src/resharding`): two shards that are donors and recipients, a catalog, a coordinator,
//! recovery, writers, a reader, crashes, an abort on request, and a router that is restored from a backup.
//!
//! Documents 0 and 1 are on shard 0 and document 2 is on shard 1; in the new layout document 0 is on shard 1 and the others are on shard 0.
//! Values count the updates. States and the next action of recovery come from `docshard_core::cluster::resharding`.
//!
//! The model omits unique values (documents that are refused), failovers, sizes, and the first exclusion of the writers, in which documents
//! are counted. A router is restored only after the decision: before it, nothing is lost.

#![expect(missing_docs, reason = "fields of variants, which the comments of the variants name")]

mod clients;
mod steps;

use docshard_core::cluster::resharding::State;
use stateright::{Model, Property};

/// The number of documents.
pub(crate) const DOCUMENTS: usize = 3;
/// The shard of each document in the old layout.
pub(crate) const DONOR: [usize; DOCUMENTS] = [0, 0, 1];
/// The shard of each document in the new layout.
pub(crate) const RECIPIENT: [usize; DOCUMENTS] = [1, 0, 0];

/// A mechanism that the protocol depends on; a test can switch it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// changes are logged from the capture on
    Capture,
    /// the clone waits for the writers that began before the captures
    AwaitWriters,
    /// exactly the applied rows of the logs are deleted, not all up to a number
    ExactLog,
    /// the decision excludes the writers before the last round
    ExcludeWriters,
    /// changes are copied once more while writers are excluded
    LastRound,
    /// before the decision the recipients' sessions write everything to their disks
    Flush,
    /// shards only prepare their parts before the catalog's row is committed
    PrepareFirst,
    /// the decision keeps the locks of the dropped tables until a shard has committed it
    LockUntilCommit,
    /// a statement compares its version with the shard's, in its own snapshot
    VersionCheck,
    /// a transition checks that the row still has the old state
    CompareAndSet,
    /// cleaning up ends the coordinator's sessions first
    EndSessions,
    /// recovery completes a change that the shards have, instead of dropping the copy
    ShardsShowDecision,
    /// one shard is enough to show it
    OneShardShows,
    /// what a lost router has prepared is not ended before it is known what it has decided
    LeaveParts,
    /// statements wait until it is known what a lost router has decided
    AwaitDecision,
}

/// What a writer updates, in one transaction.
pub type Documents = &'static [usize];

/// How a client reads all documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reading {
    /// each shard answers in a snapshot of its own
    Statement,
    /// the snapshots are older than the map
    OldSnapshot,
}

/// The configuration of a check.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    /// what each writer updates
    pub writers: Vec<Documents>,
    /// a client reads once
    pub reader: Option<Reading>,
    /// the largest number of crashes
    pub crashes: u8,
    /// a user may abort the change
    pub abort: bool,
    /// the router may be restored from a backup of the time when the change ran
    pub restore: bool,
    /// the mechanisms that are switched off
    pub off: Vec<Mechanism>,
}

/// A step of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pc {
    /// commits the capture of a donor
    Capture(usize),
    /// waits for the writers that hold locks
    AwaitWriters,
    /// reads the documents of a donor
    /// the reader takes a step at a shard
    Read(usize),
    /// stores what it has read
    Load(usize),
    /// reads the logs
    Numbers,
    /// reads the current documents of those rows
    Pull,
    /// stores them
    Apply,
    /// deletes the rows
    DeleteLog,
    /// closes the gate and waits until no writer holds a lock
    Gate,
    /// excludes the writers of a donor
    Exclude(usize),
    /// the recipients write to their disks
    Flush,
    /// a shard prepares its part of the decision
    Prepare(usize),
    /// the catalog decides
    Decide,
    /// a shard commits its part
    Commit(usize),
    /// cleans up, as recovery does
    Settle,
    /// has ended
    Dead,
}

/// A row of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Logged {
    /// its number, in the order of the writes
    pub seq: u8,
    /// whose value has changed
    pub document: usize,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// the documents of the old table; None: it is dropped
    pub old: Option<[u8; DOCUMENTS]>,
    /// the documents of the copy; None: there is no copy
    pub copy: Option<[Option<u8>; DOCUMENTS]>,
    /// a crash does not lose the copy's documents
    pub is_durable: bool,
    /// writers log what they change
    pub capture: bool,
    /// a request to begin a capture is under way from a dead coordinator
    pub capture_in_flight: bool,
    /// the changes that are not yet applied
    pub log: Vec<Logged>,
    /// the coordinator's sessions are there
    pub session: bool,
    /// the decision's transaction is open
    pub txn: bool,
    /// its part of the decision is prepared
    pub prepared: bool,
    /// the copy has the version that makes it the collection
    pub decided: bool,
}

/// A writer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// has not begun
    Idle,
    /// has read the map
    Mapped { new: bool },
    /// has passed the gate
    Passed { new: bool },
    /// has the lock for the next document
    Locked { new: bool, logged: Vec<Option<u8>> },
    /// has written so many documents
    Written { new: bool, logged: Vec<Option<u8>> },
    /// its transaction is decided; so many documents are committed
    Committing { new: bool, logged: Vec<Option<u8>>, committed: usize },
    /// its client knows
    Acknowledged,
    /// its client has an error
    Failed,
}

/// What a shard shows to a reader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// the copy's documents
    pub copy: Option<[Option<u8>; DOCUMENTS]>,
    /// it is the collection
    pub decided: bool,
}

/// The reader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// has not begun
    Idle,
    /// has snapshots of both shards
    Snapped { floor: [u8; DOCUMENTS], seen: [Seen; 2] },
    /// asks the shards
    Reading { new: bool, floor: [u8; DOCUMENTS], seen: Option<[Seen; 2]>, found: [Option<[Option<u8>; DOCUMENTS]>; 2] },
    /// has its answer, or an error
    Done,
}

/// The state of everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// of the catalog's row
    pub state: State,
    /// the copy has the collection's name
    pub map: bool,
    /// the shards
    pub shards: [Shard; 2],
    /// the next number of a row of a log
    pub seq: u8,
    /// the coordinator's next step
    pub pc: Pc,
    /// new writes wait on the router
    pub gate: bool,
    /// the writers that the clone waits for
    pub awaited: Vec<usize>,
    /// the rows of the logs in this round
    pub chosen: [Vec<Logged>; 2],
    /// documents that were read, and are not stored
    pub staged: Vec<(usize, u8)>,
    /// so many rounds
    pub rounds: u8,
    /// the writers
    pub writers: Vec<Writer>,
    /// the reader
    pub reader: Reader,
    /// committed updates of each document
    pub committed: [u8; DOCUMENTS],
    /// updates whose client knows it
    pub acknowledged: [u8; DOCUMENTS],
    /// so many crashes may come
    pub crashes: u8,
    /// the router was restored from a backup
    pub restored: bool,
    /// a prepared part was rolled back
    pub rolled_back: bool,
    /// an administrator has rolled one back, and confirms what recovery asks then
    pub confirmed: bool,
    /// a user was told that the change is aborted
    pub told_aborted: bool,
    /// a wrong answer
    pub wrong: Option<&'static str>,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// the coordinator takes a step
    Step,
    /// the coordinator lets writers go on, and tries again later
    PutOff,
    /// the coordinator aborts: cancelled, timed out, or without a session
    GiveUp,
    /// a user aborts the change
    Abort,
    /// the router or the coordinator crashes
    CrashRouter,
    /// a shard crashes
    CrashShard(usize),
    /// a dead coordinator's request arrives
    CaptureArrives(usize),
    /// a prepared part of the decision ends as the catalog says
    Resolve(usize),
    /// the holder of the coordinator's lock cleans up
    Recover,
    /// the router is restored from a backup
    Restore,
    /// an administrator commits a shard's prepared part
    CommitPrepared(usize),
    /// an administrator rolls a shard's prepared part back
    RollBackPrepared(usize),
    /// a writer takes a step
    Write(usize),
    Read(usize),
}

impl Protocol {
    pub(crate) fn is_off(&self, mechanism: Mechanism) -> bool {
        self.off.contains(&mechanism)
    }
}

impl World {
    /// True while it is not known whether a lost router has decided the change.
    pub(crate) fn is_undecided(&self) -> bool {
        self.restored && self.state == State::Running
    }

    /// The document as clients must find it; None if it is lost.
    pub fn value(&self, document: usize) -> Option<u8> {
        // What the shards have of a decision stays if the router forgets it.
        let new = self.map || self.restored && self.shards.iter().any(|shard| shard.decided);
        match new {
            true => self.shards[RECIPIENT[document]].copy.and_then(|copy| copy[document]),
            false => self.shards[DONOR[document]].old.map(|old| old[document]),
        }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let shard = Shard {
            old: Some([0; DOCUMENTS]),
            copy: Some([None; DOCUMENTS]),
            is_durable: true,
            capture: false,
            capture_in_flight: false,
            log: Vec::new(),
            session: true,
            txn: false,
            prepared: false,
            decided: false,
        };
        vec![World {
            state: State::Running,
            map: false,
            shards: [shard.clone(), shard],
            seq: 0,
            pc: Pc::Capture(0),
            gate: false,
            awaited: Vec::new(),
            chosen: [Vec::new(), Vec::new()],
            staged: Vec::new(),
            rounds: 0,
            writers: vec![Writer::Idle; self.writers.len()],
            reader: if self.reader.is_some() { Reader::Idle } else { Reader::Done },
            committed: [0; DOCUMENTS],
            acknowledged: [0; DOCUMENTS],
            crashes: self.crashes,
            restored: false,
            rolled_back: false,
            confirmed: false,
            told_aborted: false,
            wrong: None,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        events.extend([Event::Step, Event::PutOff, Event::GiveUp, Event::Recover]);
        if self.abort {
            events.push(Event::Abort);
        }
        if self.restore && !world.restored {
            events.push(Event::Restore);
        }
        if world.crashes > 0 {
            events.push(Event::CrashRouter);
        }
        for shard in 0..2 {
            if world.crashes > 0 {
                events.push(Event::CrashShard(shard));
            }
            events.extend([
                Event::CaptureArrives(shard),
                Event::Resolve(shard),
                Event::CommitPrepared(shard),
                Event::RollBackPrepared(shard),
                Event::Read(shard),
            ]);
        }
        events.extend((0..world.writers.len()).map(Event::Write));
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        match event {
            Event::Step => self.step(world),
            Event::PutOff => self.put_off(world),
            Event::GiveUp => self.give_up(world),
            Event::Abort => self.abort(world),
            Event::CrashRouter => Some(self.crash_router(world)),
            Event::CrashShard(shard) => Some(self.crash_shard(world, shard)),
            Event::CaptureArrives(shard) => self.capture_arrives(world, shard),
            Event::Resolve(shard) => self.resolve(world, shard),
            Event::Recover => self.recover(world),
            Event::Restore => self.restore(world),
            Event::CommitPrepared(shard) => self.commit_prepared(world, shard),
            Event::RollBackPrepared(shard) => self.roll_back_prepared(world, shard),
            Event::Write(number) => self.write(world, number),
            Event::Read(shard) => self.read(world, shard),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no committed write is lost or done twice", |_, world: &World| {
                (0..DOCUMENTS).all(|document| world.value(document) == Some(world.committed[document]))
            }),
            Property::always("no client gets a wrong answer", |_, world: &World| world.wrong.is_none()),
            Property::always("an aborted change leaves the old layout", |_, world: &World| {
                !(world.told_aborted && world.map)
            }),
            // Rows that a writer logs after the clean-up are swept later.
            Property::always("no leftovers remain", |_, world: &World| {
                let is_clean = |shard: &Shard| !shard.capture && shard.old.is_some() != shard.copy.is_some();
                world.state != State::Done
                    || world.shards.iter().any(|shard| shard.prepared)
                    || world.shards.iter().all(is_clean)
            }),
            Property::sometimes("a change succeeds", |_, world: &World| world.state == State::Done && world.map),
            Property::sometimes("a change is aborted", |_, world: &World| world.state == State::Done && !world.map),
        ]
    }
}
