//! A model of the router's own part of a change of a collection's layout: the router's database is a recipient, and a standby of it is
//! promoted that has any beginning of its WAL. The shards show which version was decided; the standby must find out whether it has all
//! documents of that moment. See `src/resharding/restored.rs`.
//!
//! Writers are counted, not modelled: each adds a change that the own part must have. What shards do is in [`crate::resharding`].

#![expect(missing_docs, reason = "fields of variants, which the comments of the variants name")]

use stateright::{Model, Property};

/// A mechanism that the protocol depends on; a test can switch it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// each attempt to decide has a version of its own
    OwnVersion,
    /// the own part gets the version after the last change
    VersionLast,
}

/// The configuration of a check.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// the largest number of changes
    pub changes: u8,
    /// the largest number of attempts to decide
    pub attempts: u8,
    /// the mechanisms that are switched off
    pub off: Vec<Mechanism>,
}

/// A commit of the router's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Commit {
    /// the own part has so many changes
    Copied(u8),
    /// the own part has the version of an attempt
    Version(u8),
}

/// A step of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pc {
    /// copies while clients write
    CatchUp,
    /// has excluded the writers; so many of the two commits before the decision are made
    Attempt(u8),
    /// the change is decided
    Decided,
}

/// The state of everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub pc: Pc,
    /// so many changes are committed at the donors
    pub changes: u8,
    /// so many of them are copied
    pub copied: u8,
    /// the number of the present attempt
    pub attempt: u8,
    /// the router's commits, without the decision, which no standby has here
    pub wal: Vec<Commit>,
    /// the version that the shards got by the decision
    pub decided: Option<u8>,
    /// a standby with so many of the commits was promoted
    pub promoted: Option<usize>,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// a client writes
    Write,
    /// the coordinator copies
    Copy,
    /// the coordinator excludes the writers
    Exclude,
    /// the coordinator takes the next step of an attempt
    Step,
    /// the coordinator lets writers go on, and tries again later
    PutOff,
    /// a standby with so many of the router's commits becomes the router
    Promote(usize),
}

impl Protocol {
    fn is_off(&self, mechanism: Mechanism) -> bool {
        self.off.contains(&mechanism)
    }

    /// The version of an attempt.
    fn version(&self, attempt: u8) -> u8 {
        if self.is_off(Mechanism::OwnVersion) { 1 } else { attempt }
    }
}

impl World {
    fn copy(&mut self) {
        self.copied = self.changes;
        self.wal.push(Commit::Copied(self.copied));
    }

    /// What the promoted standby has: so many changes, and a version.
    fn own_part(&self, commits: usize) -> (u8, Option<u8>) {
        self.wal.iter().take(commits).fold((0, None), |(copied, version), commit| match commit {
            Commit::Copied(changes) => (*changes, version),
            Commit::Version(version) => (copied, Some(*version)),
        })
    }

    /// True if the promoted router completes the change.
    fn is_completed(&self) -> bool {
        self.promoted.is_some_and(|commits| self.decided.is_some() && self.own_part(commits).1 == self.decided)
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            pc: Pc::CatchUp,
            changes: 0,
            copied: 0,
            attempt: 0,
            wal: Vec::new(),
            decided: None,
            promoted: None,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.promoted.is_some() {
            return;
        }
        events.extend((0..=world.wal.len()).map(Event::Promote));
        match world.pc {
            Pc::CatchUp => {
                if world.changes < self.changes {
                    events.push(Event::Write);
                }
                if world.copied < world.changes {
                    events.push(Event::Copy);
                }
                if world.attempt < self.attempts {
                    events.push(Event::Exclude);
                }
            }
            Pc::Attempt(_) => events.extend([Event::Step, Event::PutOff]),
            Pc::Decided => {}
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        match event {
            Event::Write => next.changes += 1,
            Event::Copy => next.copy(),
            Event::Exclude => {
                next.attempt += 1;
                next.pc = Pc::Attempt(0);
            }
            Event::Step => {
                let Pc::Attempt(made) = world.pc else { return None };
                let version = self.version(world.attempt);
                match (made, self.is_off(Mechanism::VersionLast)) {
                    (0, false) | (1, true) => next.copy(),
                    (0, true) | (1, false) => next.wal.push(Commit::Version(version)),
                    _ => next.decided = Some(version),
                }
                next.pc = if made < 2 { Pc::Attempt(made + 1) } else { Pc::Decided };
            }
            Event::PutOff => next.pc = Pc::CatchUp,
            Event::Promote(commits) => next.promoted = Some(commits),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no change is lost", |_, world: &World| {
                !world.is_completed()
                    || world.promoted.is_some_and(|commits| world.own_part(commits).0 == world.changes)
            }),
            Property::sometimes("a change of layout is completed", |_, world: &World| world.is_completed()),
            Property::sometimes("one is left to the administrator", |_, world: &World| {
                world.promoted.is_some() && world.decided.is_some() && !world.is_completed()
            }),
        ]
    }
}
