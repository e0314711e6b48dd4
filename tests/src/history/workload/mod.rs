//! Clients that read and write at random, and record what they did and saw.
//!
//! Each key has an owner among the clients, who alone inserts and deletes it; all clients append to it. After a write whose
//! outcome is unknown the owner reads the key before it writes again. The filter of every write names the life of the
//! document that it means, so that a write that takes effect late, from a session whose client is gone, changes nothing of a
//! later life.
//!
//! The run's seed determines what each client does; when it happens is up to the machine.

mod client;
mod prepared;
mod reads;
mod transactions;
mod writes;

use self::client::Worker;
use super::{DocumentState, Key, Observed, Range, Recorder};
use postgres::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The collections.
pub const NAMESPACES: [&str; 2] = ["history.ranged", "history.hashed"];

/// The shard keys of [`NAMESPACES`].
pub const PATTERNS: [&str; 2] = ["{\"k\": 1}", "{\"k\": \"hashed\"}"];

/// The application name of the clients.
pub const APPLICATION: &str = "docshard-history";

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many clients there are.
    pub clients: u32,
    /// How many keys of each collection change.
    pub keys: u32,
    /// How many documents of each collection the clients never change.
    pub fillers: u32,
}

/// What the clients of a run share.
#[derive(Debug)]
pub struct Workload {
    /// The history.
    pub recorder: Recorder,
    size: Size,
    seed: u64,
    /// By collection and key, the present life according to the key's owner, 0 for none.
    lives: Vec<Vec<AtomicU32>>,
    /// How many clients are at work.
    working: AtomicU32,
    pause: AtomicBool,
    stop: AtomicBool,
    writes: AtomicU64,
    stats: Mutex<BTreeMap<String, u64>>,
    anomalies: Mutex<Vec<String>>,
}

impl Workload {
    /// A workload without documents.
    pub fn new(size: Size, seed: u64) -> Self {
        let lives = || (0..size.keys).map(|_| AtomicU32::new(0)).collect();
        Self {
            recorder: Recorder::default(),
            size,
            seed,
            lives: NAMESPACES.iter().map(|_| lives()).collect(),
            working: AtomicU32::new(0),
            pause: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            stats: Mutex::default(),
            anomalies: Mutex::default(),
        }
    }

    /// The keys of a collection that change.
    pub fn keys(&self, collection: u8) -> Range {
        Range { collection, from: 0, to: self.size.keys }
    }

    /// The size of the run.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Starts the clients, which connect to a port of 127.0.0.1.
    pub fn start(self: &Arc<Self>, port: u16) -> Vec<thread::JoinHandle<()>> {
        (0..self.size.clients)
            .map(|number| {
                let workload = Arc::clone(self);
                thread::spawn(move || Worker::new(workload, number, port).run())
            })
            .collect()
    }

    /// Makes the clients pause after their present step, or continue.
    pub fn pause(&self, pause: bool) {
        self.pause.store(pause, Ordering::SeqCst);
    }

    /// True if no client is at work.
    pub fn is_idle(&self) -> bool {
        self.working.load(Ordering::SeqCst) == 0
    }

    /// Ends the clients.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// How many writes have been acknowledged.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// How often each event occurred.
    pub fn stats(&self) -> String {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (what, count) in &*stats {
            let _ = write!(text, "{what} {count}; ");
        }
        text
    }

    /// Events that no failure of servers or network explains.
    pub fn anomalies(&self) -> Vec<String> {
        self.anomalies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records an event that no failure of servers or network explains.
    pub fn anomaly(&self, what: String) {
        self.anomalies.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Counts an event for [`Workload::stats`].
    fn note(&self, what: &str) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner).entry(what.to_owned()).or_default() += 1;
    }

    fn life(&self, key: Key) -> &AtomicU32 {
        &self.lives[usize::from(key.collection)][key.k as usize]
    }

    /// Inserts the documents that the clients never change.
    ///
    /// # Panics
    /// If an insert fails.
    pub fn insert_fillers(&self, client: &mut Client) {
        for namespace in NAMESPACES {
            let sql = format!(
                "SELECT docshard.insert_many('{namespace}', array_agg(jsonb_build_object('_id', k, 'k', k, 'pad', \
                 repeat('f', 200)))) FROM generate_series({}, {}) AS k",
                self.size.keys,
                self.size.keys + self.size.fillers - 1
            );
            client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        }
    }

    /// Reads and records all keys and counts, and returns the documents.
    ///
    /// # Panics
    /// If a read fails: it is called when all servers run.
    pub fn read_all(&self, client: &mut Client) -> BTreeMap<Key, DocumentState> {
        let mut all = BTreeMap::new();
        for (collection, namespace) in (0..).zip(NAMESPACES) {
            let began = self.recorder.tick();
            let sql = format!("SELECT docshard.find('{namespace}', '{{\"k\": {{\"$lt\": {}}}}}')", self.size.keys);
            let rows = client.query(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            let mut found = BTreeMap::new();
            for row in rows {
                let document: Value = row.get(0);
                let key = Key { collection, k: as_u32(&document["k"]) };
                if found.insert(key, parse_document(&document)).is_some() {
                    self.anomaly(format!("{key:?} was found twice at the end"));
                }
            }
            for k in 0..self.size.keys {
                let key = Key { collection, k };
                self.recorder.observe(u32::MAX, began, Observed::Read(key, found.get(&key).cloned()));
            }
            let began = self.recorder.tick();
            let sql = format!("SELECT docshard.count_documents('{namespace}')");
            let count: i64 = client.query_one(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0);
            self.recorder.observe(u32::MAX, began, Observed::Count(self.keys(collection), self.without_fillers(count)));
            all.extend(found);
        }
        all
    }

    fn without_fillers(&self, count: i64) -> u64 {
        u64::try_from(count - i64::from(self.size.fillers)).unwrap_or(u64::MAX)
    }
}

fn as_u32(value: &Value) -> u32 {
    value.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
}

fn parse_document(document: &Value) -> DocumentState {
    let ops = document["ops"].as_array().map(Vec::as_slice).unwrap_or_default();
    DocumentState {
        life: as_u32(&document["life"]),
        ops: ops.iter().map(|id| id.as_u64().unwrap_or(0)).collect(),
        n: document["n"].as_i64().unwrap_or(i64::MIN),
    }
}

fn range_filter(range: &Range) -> String {
    format!("{{\"k\": {{\"$gte\": {}, \"$lt\": {}}}}}", range.from, range.to)
}
