//! What clients of a cluster did and saw, in the order in which it happened: the input of [`crate::history_check`].
//!
//! All clients are threads of one process and take their times from one counter, so "before" needs no clocks that agree:
//! what ended before something else began has the lower [`Tick`].
//!
//! The model: a *key* names at most one document at a time. A document's *life* goes from its insertion to its deletion; a
//! key may have many lives, each with a number of its own, which the document carries. A document has a list of the
//! numbers of the writes that changed it (each appends its own) and the sum of what they added. So the documents
//! themselves tell which writes took effect, how often, and in which order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A moment: the position of an event among all events of all clients.
pub type Tick = u64;

/// After everything.
pub const NEVER: Tick = Tick::MAX;

/// A shard key and `_id`, in one of the collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// the number of the collection
    pub collection: u8,
    /// the shard key
    pub k: u32,
}

/// One life of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Document {
    /// whose
    pub key: Key,
    /// which
    pub life: u32,
}

/// Some keys of a collection: from the first up to, but not including, the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// the number of the collection
    pub collection: u8,
    /// the first key
    pub from: u32,
    /// the key after the last
    pub to: u32,
}

impl Range {
    /// True if the key is one of them.
    pub fn contains(&self, key: Key) -> bool {
        key.collection == self.collection && self.from <= key.k && key.k < self.to
    }
}

/// What a write does to documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// begins a life
    Insert(Document),
    /// appends the write's number to a document that was found, and adds so much to its sum
    Append(Document, i64),
    /// the same to all documents of a range that were found
    AppendMany(Range, i64),
    /// ends a life that was found
    Delete(Document),
}

/// What a client knows of a write's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// acknowledged
    Done,
    /// acknowledged, with the warning that a shard could not be told yet: some time it takes effect there
    Decided,
    /// refused or rolled back: it never has any effect
    Failed,
    /// nobody told: it has an effect, now or later, or none
    Maybe,
}

/// A write of one statement, or the writes of one transaction.
#[derive(Clone, Debug)]
pub struct Write {
    /// its number, which documents carry
    pub id: u64,
    /// whose
    pub client: u32,
    /// before that moment it has no effect: when its only statement, or its COMMIT, was sent
    pub began: Tick,
    /// when its outcome was known
    pub ended: Tick,
    /// its outcome
    pub outcome: Outcome,
    /// what it does
    pub actions: Vec<Action>,
}

/// A document that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// which of the key's lives
    pub life: u32,
    /// the numbers of the writes that changed it, in order
    pub ops: Vec<u64>,
    /// the sum of what they added
    pub n: i64,
}

/// What a client saw.
#[derive(Clone, Debug)]
pub enum Seen {
    /// the document of a key, or none
    Read(Key, Option<Found>),
    /// a statement found this life
    Present(Document),
    /// a statement did not find this life
    Absent(Document),
    /// the documents of a range, in whatever order
    Scan(Range, Vec<Document>),
    /// how many documents a range has
    Count(Range, u64),
}

/// What a client saw, at some moment between two.
#[derive(Clone, Debug)]
pub struct Observation {
    /// whose
    pub client: u32,
    /// when it asked
    pub began: Tick,
    /// when it was answered
    pub ended: Tick,
    /// the answer
    pub seen: Seen,
}

/// A history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// the documents at its beginning
    pub initial: BTreeMap<Key, Found>,
    /// in the order in which they began
    pub writes: Vec<Write>,
    /// in the order in which they ended
    pub observations: Vec<Observation>,
    /// from this moment on nothing is under way any more: what has had no effect never will
    pub settled: Option<Tick>,
}

/// Where clients note what they do.
#[derive(Debug, Default)]
pub struct Recorder {
    clock: AtomicU64,
    numbers: AtomicU64,
    history: Mutex<History>,
}

impl Recorder {
    /// The next moment.
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

    /// Notes that a write begins, before it is sent; answers its place for [`Recorder::end`]. Until then its outcome is
    /// unknown.
    pub fn begin(&self, id: u64, client: u32, actions: Vec<Action>) -> usize {
        self.with(|history| {
            let began = self.tick();
            history.writes.push(Write { id, client, began, ended: NEVER, outcome: Outcome::Maybe, actions });
            history.writes.len() - 1
        })
    }

    /// Notes a write's outcome, and what its statement turned out to have done.
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

    /// Notes what a client saw since `began`.
    pub fn saw(&self, client: u32, began: Tick, seen: Seen) {
        self.with(|history| {
            let ended = self.tick();
            history.observations.push(Observation { client, began, ended, seen });
        });
    }

    /// Notes that nothing is under way any more.
    pub fn settle(&self) {
        self.with(|history| history.settled = Some(self.tick()));
    }

    /// The history so far.
    pub fn history(&self) -> History {
        self.with(|history| history.clone())
    }

    /// Forgets the history; the next one begins with these documents.
    pub fn restart(&self, initial: BTreeMap<Key, Found>) {
        self.with(|history| *history = History { initial, ..History::default() });
    }

    /// How many writes and observations there are.
    pub fn len(&self) -> (usize, usize) {
        self.with(|history| (history.writes.len(), history.observations.len()))
    }
}

impl History {
    /// The end of it, of one key if it is named, as text: an event a line.
    pub fn tail(&self, lines: usize, only: Option<Key>) -> String {
        let mut events: Vec<(Tick, String)> = Vec::new();
        for write in &self.writes {
            if only.is_none_or(|key| write.actions.iter().any(|action| action.touches(key))) {
                let ended = if write.ended == NEVER { "…".to_owned() } else { write.ended.to_string() };
                let Write { id, client, began, outcome, actions, .. } = write;
                events.push((*began, format!("{began}–{ended} client {client} write {id} {actions:?}: {outcome:?}")));
            }
        }
        for Observation { client, began, ended, seen } in &self.observations {
            if only.is_none_or(|key| seen.touches(key)) {
                let mut text = format!("{seen:?}");
                if let Some((end, _)) = text.char_indices().nth(400) {
                    text.truncate(end);
                    text.push('…');
                }
                events.push((*began, format!("{began}–{ended} client {client} saw {text}")));
            }
        }
        events.sort();
        let skipped = events.len().saturating_sub(lines);
        events.iter().skip(skipped).map(|(_, line)| format!("{line}\n")).collect()
    }
}

impl Action {
    /// The key that it is about, if it is one.
    pub fn key(&self) -> Option<Key> {
        match self {
            Self::Insert(document) | Self::Append(document, _) | Self::Delete(document) => Some(document.key),
            Self::AppendMany(..) => None,
        }
    }

    /// True if it is about the key.
    pub fn touches(&self, key: Key) -> bool {
        match self {
            Self::Insert(document) | Self::Append(document, _) | Self::Delete(document) => document.key == key,
            Self::AppendMany(range, _) => range.contains(key),
        }
    }
}

impl Seen {
    fn touches(&self, key: Key) -> bool {
        match self {
            Self::Read(of, _) => *of == key,
            Self::Present(document) | Self::Absent(document) => document.key == key,
            Self::Scan(range, _) => range.contains(key),
            Self::Count(..) => false,
        }
    }
}
