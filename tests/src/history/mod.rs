//! What clients of a cluster wrote and read, in order: [`check::check`] decides whether a database could have answered like this.
//!
//! All clients are threads of one process and take their times from one counter, so no clocks need to agree: if one event
//! ended before another began, it has the lower [`Tick`].
//!
//! The model: a *key* has at most one document at a time. A document's *life* is the time from its insertion to its deletion.
//! A key may have many lives, with numbers that the documents carry. Every write to a document appends the write's number to
//! a list in the document, and adds to a sum there. So the documents show which writes took effect, how often, and in which
//! order.

pub mod check;
pub mod nemesis;
pub mod run;
pub mod workload;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A point in time: the position of an event among all events of all clients.
pub type Tick = u64;

/// A time after all events.
pub const NEVER: Tick = Tick::MAX;

/// A shard key, which is the `_id` too, of one of the collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The number of the collection.
    pub collection: u8,
    /// The shard key.
    pub k: u32,
}

/// One life of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Document {
    /// The key.
    pub key: Key,
    /// The number of the life.
    pub life: u32,
}

/// The keys of a collection from `from` up to, but not including, `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The number of the collection.
    pub collection: u8,
    /// The first key.
    pub from: u32,
    /// The key after the last.
    pub to: u32,
}

impl Range {
    /// True if the range contains the key.
    pub fn contains(&self, key: Key) -> bool {
        key.collection == self.collection && self.from <= key.k && key.k < self.to
    }
}

/// What a write does to documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begins a life.
    Insert(Document),
    /// Appends the write's number to a document, and adds a number to its sum.
    Append(Document, i64),
    /// Does the same to all documents of a range.
    AppendMany(Range, i64),
    /// Ends a life.
    Delete(Document),
}

/// What a client knows of a write's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was acknowledged.
    Done,
    /// It was acknowledged, with the warning that it takes effect later on some shard.
    Decided,
    /// It was refused or rolled back: it never has an effect.
    Failed,
    /// Unknown: it takes effect now, later or never.
    Maybe,
}

/// A write of one statement, or the writes of one transaction.
#[derive(Clone, Debug)]
pub struct Write {
    /// The number that documents carry.
    pub id: u64,
    /// The client that wrote.
    pub client: u32,
    /// When its only statement, or its COMMIT, was sent: before, it had no effect.
    pub began: Tick,
    /// When its outcome was known.
    pub ended: Tick,
    /// Its outcome.
    pub outcome: Outcome,
    /// What it does.
    pub actions: Vec<Action>,
}

/// The contents of a document that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentState {
    /// The number of its life.
    pub life: u32,
    /// The numbers of the writes that changed it, in order.
    pub ops: Vec<u64>,
    /// The sum of what they added.
    pub n: i64,
}

/// What a client read.
#[derive(Clone, Debug)]
pub enum Observed {
    /// The document of a key, or none.
    Read(Key, Option<DocumentState>),
    /// A write found this document.
    Present(Document),
    /// A write did not find this document.
    Absent(Document),
    /// The documents of a range, in any order.
    Scan(Range, Vec<Document>),
    /// The number of documents of a range.
    Count(Range, u64),
}

/// What a client read, at some time between `began` and `ended`.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The client that read.
    pub client: u32,
    /// When the statement was sent.
    pub began: Tick,
    /// When its answer arrived.
    pub ended: Tick,
    /// The answer.
    pub observed: Observed,
}

/// What all clients wrote and read.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The documents at its beginning.
    pub initial: BTreeMap<Key, DocumentState>,
    /// All writes, in the order in which they began.
    pub writes: Vec<Write>,
    /// All observations, in the order in which they ended.
    pub observations: Vec<Observation>,
    /// From this time on nothing is in progress: a write without effect will never have one.
    pub settled: Option<Tick>,
}

/// Records a history.
#[derive(Debug, Default)]
pub struct Recorder {
    clock: AtomicU64,
    numbers: AtomicU64,
    history: Mutex<History>,
}

impl Recorder {
    /// The next point in time.
    pub fn tick(&self) -> Tick {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A number for a new write.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn with<T>(&self, work: impl FnOnce(&mut History) -> T) -> T {
        work(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a write before it is sent, with an unknown outcome, and returns its place for [`Recorder::end`].
    pub fn begin(&self, id: u64, client: u32, actions: Vec<Action>) -> usize {
        self.with(|history| {
            let began = self.tick();
            history.writes.push(Write { id, client, began, ended: NEVER, outcome: Outcome::Maybe, actions });
            history.writes.len() - 1
        })
    }

    /// Records a write's outcome, and its actions if they differ from those planned.
    pub fn end(&self, place: usize, outcome: Outcome, actions: Option<Vec<Action>>) {
        self.with(|history| {
            let ended = self.tick();
            let write = &mut history.writes[place];
            (write.ended, write.outcome) = (ended, outcome);
            if let Some(actions) = actions {
                write.actions = actions;
            }
        });
    }

    /// Records what a client has read since `began`.
    pub fn observe(&self, client: u32, began: Tick, observed: Observed) {
        self.with(|history| {
            let ended = self.tick();
            history.observations.push(Observation { client, began, ended, observed });
        });
    }

    /// Records that nothing is in progress any more.
    pub fn settle(&self) {
        self.with(|history| history.settled = Some(self.tick()));
    }

    /// The history so far.
    pub fn history(&self) -> History {
        self.with(|history| history.clone())
    }

    /// Begins a new history with these documents.
    pub fn restart(&self, initial: BTreeMap<Key, DocumentState>) {
        self.with(|history| *history = History { initial, ..History::default() });
    }
}

impl History {
    /// The last events, or those of one key, one line each.
    pub fn tail(&self, lines: usize, only: Option<Key>) -> String {
        let mut events: Vec<(Tick, String)> = Vec::new();
        for write in &self.writes {
            if only.is_none_or(|key| write.actions.iter().any(|action| action.touches(key))) {
                let ended = if write.ended == NEVER { "…".to_owned() } else { write.ended.to_string() };
                let Write { id, client, began, outcome, actions, .. } = write;
                events.push((*began, format!("{began}–{ended} client {client} write {id} {actions:?}: {outcome:?}")));
            }
        }
        for Observation { client, began, ended, observed } in &self.observations {
            if only.is_none_or(|key| observed.touches(key)) {
                let mut text = format!("{observed:?}");
                if let Some((end, _)) = text.char_indices().nth(400) {
                    text.truncate(end);
                    text.push('…');
                }
                events.push((*began, format!("{began}–{ended} client {client} read {text}")));
            }
        }
        events.sort();
        let skipped = events.len().saturating_sub(lines);
        events.iter().skip(skipped).map(|(_, line)| format!("{line}\n")).collect()
    }
}

impl Action {
    /// The key, if there is only one.
    pub fn key(&self) -> Option<Key> {
        match self {
            Self::Insert(document) | Self::Append(document, _) | Self::Delete(document) => Some(document.key),
            Self::AppendMany(..) => None,
        }
    }

    /// True if the key is concerned.
    pub fn touches(&self, key: Key) -> bool {
        match self {
            Self::Insert(document) | Self::Append(document, _) | Self::Delete(document) => document.key == key,
            Self::AppendMany(range, _) => range.contains(key),
        }
    }
}

impl Observed {
    fn touches(&self, key: Key) -> bool {
        match self {
            Self::Read(of, _) => *of == key,
            Self::Present(document) | Self::Absent(document) => document.key == key,
            Self::Scan(range, _) => range.contains(key),
            Self::Count(..) => false,
        }
    }
}
