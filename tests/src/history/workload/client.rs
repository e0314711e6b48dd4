//! One client: its session, what it knows of its keys, and what it does next.

use super::prepared::Prepared;
use super::{APPLICATION, NAMESPACES, Size, Workload};
use crate::history::{Action, Document, Key, Observed, Outcome, Range, Tick};
use fastrand::Rng;
use postgres::{Client, NoTls, SimpleQueryMessage};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Why a statement did not succeed.
#[derive(Debug)]
pub(super) enum StatementError {
    /// It had no effect; its SQLSTATE.
    Failed(String),
    /// It may have had its effect.
    Unknown,
}

/// SQLSTATEs that a client must expect while servers fail and chunks move: connections, conflicts, timeouts.
const EXPECTED: [&str; 13] = [
    "08000", "08001", "08003", "08006", "08007", "40000", "40001", "40P01", "53300", "55P03", "57014", "57P01", "57P03",
];

/// What its owner knows about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyState {
    /// There is no document.
    Absent,
    /// The document with this number of a life exists.
    Present(u32),
    Unknown,
}

/// A client.
pub(super) struct Worker {
    pub(super) workload: Arc<Workload>,
    pub(super) number: u32,
    pub(super) port: u16,
    pub(super) rng: Rng,
    pub(super) key_states: BTreeMap<Key, KeyState>,
    pub(super) next_life: BTreeMap<Key, u32>,
    /// The server warned that the transaction is committed but not yet on every shard.
    pub(super) warned: Arc<AtomicBool>,
    pub(super) prepared: Vec<Prepared>,
    /// Names of prepared transactions that did not exist when they were to end. As the client does not know whether PREPARE
    /// arrived, they may still be prepared later.
    pub(super) maybe_prepared: Vec<String>,
}

pub(super) type Answer<T> = Result<T, StatementError>;

impl Worker {
    pub(super) fn new(workload: Arc<Workload>, number: u32, port: u16) -> Self {
        let rng = Rng::with_seed(workload.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        let (key_states, next_life) = Default::default();
        let (prepared, maybe_prepared) = Default::default();
        Self { workload, number, port, rng, key_states, next_life, warned: Arc::default(), prepared, maybe_prepared }
    }

    pub(super) fn run(mut self) {
        let mut client = None;
        while !self.workload.stop.load(Ordering::SeqCst) {
            // Counted before the pause is checked, so that `Workload::is_idle` does not miss a client that is about to work.
            self.workload.working.fetch_add(1, Ordering::SeqCst);
            if self.workload.pause.load(Ordering::SeqCst) {
                // A paused client has no prepared transactions.
                drop(client.take());
                while !self.workload.stop.load(Ordering::SeqCst) && !self.end_all_prepared() {
                    thread::sleep(Duration::from_millis(50));
                }
                self.workload.working.fetch_sub(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            if client.as_ref().is_none_or(Client::is_closed) {
                client = self.connect();
            }
            match &mut client {
                Some(client) => {
                    self.end_prepared(client);
                    drop(self.step(client));
                }
                None => thread::sleep(Duration::from_millis(50)),
            }
            let pause = self.rng.u64(1..8);
            thread::sleep(Duration::from_millis(pause));
            self.workload.working.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn connect(&mut self) -> Option<Client> {
        let mut config = postgres::Config::new();
        config.host("127.0.0.1").port(self.port).user("postgres").dbname("postgres");
        config.application_name(APPLICATION).connect_timeout(Duration::from_secs(5));
        config.options("-c statement_timeout=4s -c idle_in_transaction_session_timeout=10s");
        let warned = Arc::clone(&self.warned);
        config.notice_callback(move |notice| {
            if notice.severity() == "WARNING" && notice.message().contains("is committed") {
                warned.store(true, Ordering::SeqCst);
            }
        });
        config.connect(NoTls).inspect_err(|_| self.workload.note("connection refused")).ok()
    }

    /// Runs one statement; returns the first column of its first row.
    pub(super) fn first_value(&mut self, client: &mut Client, sql: &str) -> Answer<Option<String>> {
        self.query(client, sql).map(|rows| rows.into_iter().next())
    }

    /// Runs one statement; returns the first column of its rows.
    pub(super) fn query(&mut self, client: &mut Client, sql: &str) -> Answer<Vec<String>> {
        self.warned.store(false, Ordering::SeqCst);
        match client.simple_query(sql) {
            Ok(messages) => Ok(messages
                .into_iter()
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
                    _ => None,
                })
                .collect()),
            Err(error) => Err(self.statement_error(sql, &error)),
        }
    }

    /// Decides whether the statement had no effect: after an error it had none, unless the session ended or the outcome of its
    /// commit is unknown (08007).
    pub(super) fn statement_error(&self, sql: &str, error: &postgres::Error) -> StatementError {
        let Some(db) = error.as_db_error() else {
            self.workload.note("connection lost");
            return StatementError::Unknown;
        };
        let code = db.code().code();
        self.workload.note(&format!("error {code}"));
        if !EXPECTED.contains(&code) && code != "23505" {
            self.workload.anomaly(format!("client {}: {sql}: {error:?}", self.number));
        }
        if matches!(db.severity(), "FATAL" | "PANIC") || code == "08007" {
            return StatementError::Unknown;
        }
        StatementError::Failed(code.to_owned())
    }

    pub(super) fn query_json(&mut self, client: &mut Client, sql: &str) -> Answer<Value> {
        let text = self.first_value(client, sql)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null))
    }

    /// The outcome of a write that the server has acknowledged.
    pub(super) fn acknowledged(&self) -> Outcome {
        if self.warned.load(Ordering::SeqCst) {
            self.workload.note("committed, not yet on every shard");
            return Outcome::Decided;
        }
        Outcome::Done
    }

    pub(super) fn record_outcome(&self, place: usize, outcome: Outcome, actions: Option<Vec<Action>>) {
        if matches!(outcome, Outcome::Done | Outcome::Decided) {
            self.workload.writes.fetch_add(1, Ordering::SeqCst);
        }
        self.workload.note(match outcome {
            Outcome::Done | Outcome::Decided => "write",
            Outcome::Failed => "write failed",
            Outcome::Maybe => "write unknown",
        });
        self.workload.recorder.end(place, outcome, actions);
    }

    pub(super) fn observe(&self, began: Tick, observed: Observed) {
        self.workload.note("observation");
        self.workload.recorder.observe(self.number, began, observed);
    }

    pub(super) fn any_key(&mut self) -> Key {
        Key { collection: self.rng.u8(0..NAMESPACES.len() as u8), k: self.rng.u32(0..self.workload.size.keys) }
    }

    pub(super) fn own_key(&mut self) -> Key {
        let Size { clients, keys, .. } = self.workload.size;
        let mine = self.rng.u32(0..keys / clients);
        Key { k: mine * clients + self.number, ..self.any_key() }
    }

    pub(super) fn any_range(&mut self, width: u32) -> Range {
        let Key { collection, k } = self.any_key();
        Range { collection, from: k, to: (k + width).min(self.workload.size.keys) }
    }

    /// True if a transaction that the client has prepared holds a lock on the key: a write would wait for it.
    pub(super) fn has_prepared(&self, key: Key) -> bool {
        self.prepared.iter().any(|prepared| prepared.keys.contains(&key))
    }

    /// A random document that exists, according to its owner.
    pub(super) fn any_document(&mut self) -> Option<Document> {
        for _ in 0..20 {
            let key = self.any_key();
            let life = self.workload.life(key).load(Ordering::SeqCst);
            if life > 0 && !self.has_prepared(key) {
                return Some(Document { key, life });
            }
        }
        None
    }

    /// Runs a random step.
    pub(super) fn step(&mut self, client: &mut Client) -> Answer<()> {
        match self.rng.u32(0..100) {
            0..24 => {
                let key = self.any_key();
                self.read(client, key).map(drop)
            }
            24..29 => self.count(client, None),
            29..32 => {
                let range = self.any_range(60);
                self.count(client, Some(range))
            }
            32..35 => {
                let range = self.any_range(80);
                self.scan(client, range)
            }
            35..36 => self.scan_by_cursor(client),
            36..38 => self.read_twice(client),
            38..41 => {
                let range = self.any_range(100);
                self.group(client, range)
            }
            41..64 => self.append(client),
            64..66 => self.append_many(client),
            66..86 => {
                let key = self.own_key();
                self.change_own_key(client, key)
            }
            _ => self.transact(client),
        }
    }
}
