//! Clients that read and write at random, and note what they do and see.
//!
//! Each key has an owner among the clients, who alone inserts and deletes it; everybody appends to it. What an owner does
//! next follows from what it knows: after a write whose outcome nobody told it looks first. All filters of writes name the
//! life they mean, so that a write that comes late, from a session whose client is long gone, changes nothing of a later
//! life.
//!
//! What each client does is drawn from the run's seed; when it happens is up to the machine.

use crate::history::{Action, Document, Found, Key, Outcome, Range, Recorder, Seen, Tick};
use fastrand::Rng;
use postgres::{Client, NoTls, SimpleQueryMessage};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The collections; their keys follow.
pub const NAMESPACES: [&str; 2] = ["history.ranged", "history.hashed"];
/// The shard keys of [`NAMESPACES`].
pub const PATTERNS: [&str; 2] = ["{\"k\": 1}", "{\"k\": \"hashed\"}"];
/// The application name of the clients.
pub const APPLICATION: &str = "docshard-history";

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// clients
    pub clients: u32,
    /// keys a collection
    pub keys: u32,
    /// documents beside these, which nobody changes, a collection
    pub fillers: u32,
}

/// What the clients of a run share.
#[derive(Debug)]
pub struct Workload {
    /// where everything is noted
    pub recorder: Recorder,
    size: Size,
    seed: u64,
    /// the life that each key's owner believes in, 0 for none; by collection
    lives: Vec<Vec<AtomicU32>>,
    /// clients that are at work
    working: AtomicU32,
    pause: AtomicBool,
    stop: AtomicBool,
    writes: AtomicU64,
    stats: Mutex<BTreeMap<String, u64>>,
    surprises: Mutex<Vec<String>>,
}

/// Why a statement did not succeed.
#[derive(Debug)]
enum Trouble {
    /// it had no effect
    Failed(String),
    /// nobody knows
    Unknown,
}

/// Errors that a client must expect while servers die and chunks move: connections, conflicts, timeouts.
const EXPECTED: [&str; 13] = [
    "08000", "08001", "08003", "08006", "08007", "40000", "40001", "40P01", "53300", "55P03", "57014", "57P01", "57P03",
];

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
            surprises: Mutex::default(),
        }
    }

    /// The keys that change.
    pub fn keys(&self, collection: u8) -> Range {
        Range { collection, from: 0, to: self.size.keys }
    }

    /// How large it is.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Starts the clients, which connect to a port of 127.0.0.1.
    pub fn start(self: &Arc<Self>, port: u16) -> Vec<thread::JoinHandle<()>> {
        (0..self.size.clients)
            .map(|number| {
                let all = Arc::clone(self);
                thread::spawn(move || Worker::new(all, number, port).run())
            })
            .collect()
    }

    /// Lets the clients finish what they do, and then wait (or go on).
    pub fn pause(&self, pause: bool) {
        self.pause.store(pause, Ordering::SeqCst);
    }

    /// True if no client does anything.
    pub fn rests(&self) -> bool {
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

    /// How often what happened, a line each.
    pub fn stats(&self) -> String {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (what, count) in &*stats {
            let _ = write!(text, "{what} {count}; ");
        }
        text
    }

    /// What should not have happened at all, however servers and networks behave.
    pub fn surprises(&self) -> Vec<String> {
        self.surprises.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the like.
    pub fn surprise(&self, what: String) {
        self.surprises.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn note(&self, what: &str) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner).entry(what.to_owned()).or_default() += 1;
    }

    fn life(&self, key: Key) -> &AtomicU32 {
        &self.lives[usize::from(key.collection)][key.k as usize]
    }

    /// Makes the documents that nobody changes.
    ///
    /// # Panics
    /// If that fails.
    pub fn fill(&self, client: &mut Client) {
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

    /// Reads everything, noting it; returns the documents.
    ///
    /// # Panics
    /// If that fails: it is called when everything is well.
    pub fn read_all(&self, client: &mut Client) -> BTreeMap<Key, Found> {
        let mut all = BTreeMap::new();
        for (collection, namespace) in (0..).zip(NAMESPACES) {
            let began = self.recorder.tick();
            let sql = format!("SELECT docshard.find('{namespace}', '{{\"k\": {{\"$lt\": {}}}}}')", self.size.keys);
            let rows = client.query(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            let mut found = BTreeMap::new();
            for row in rows {
                let document: Value = row.get(0);
                let key = Key { collection, k: number(&document["k"]) };
                if found.insert(key, parse(&document)).is_some() {
                    self.surprise(format!("{key:?} was found twice at the end"));
                }
            }
            for k in 0..self.size.keys {
                let key = Key { collection, k };
                self.recorder.saw(u32::MAX, began, Seen::Read(key, found.get(&key).cloned()));
            }
            let began = self.recorder.tick();
            let sql = format!("SELECT docshard.count_documents('{namespace}')");
            let count: i64 = client.query_one(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).get(0);
            self.recorder.saw(u32::MAX, began, Seen::Count(self.keys(collection), self.without_fillers(count)));
            all.extend(found);
        }
        all
    }

    fn without_fillers(&self, count: i64) -> u64 {
        u64::try_from(count - i64::from(self.size.fillers)).unwrap_or(u64::MAX)
    }
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
}

/// A document as it was read.
fn parse(document: &Value) -> Found {
    let ops = document["ops"].as_array().map(Vec::as_slice).unwrap_or_default();
    Found {
        life: number(&document["life"]),
        ops: ops.iter().map(|id| id.as_u64().unwrap_or(0)).collect(),
        n: document["n"].as_i64().unwrap_or(i64::MIN),
    }
}

/// What an owner knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Absent,
    Alive(u32),
    Unsure,
}

/// A transaction that a client has prepared, to end it later, perhaps in another session.
struct Prepared {
    gid: String,
    place: usize,
    /// which way it is to end
    commits: bool,
    /// somebody told that it is prepared
    surely: bool,
    /// somebody was asked to end it, and did not answer
    asked: bool,
    /// the own key that comes or goes in it, what was known of it before, and what it is to be
    tended: Option<(Key, Belief, Belief)>,
    /// what it has locked
    keys: BTreeSet<Key>,
    /// steps of the client until it ends
    patience: u32,
}

struct Worker {
    all: Arc<Workload>,
    number: u32,
    port: u16,
    rng: Rng,
    beliefs: BTreeMap<Key, Belief>,
    next_life: BTreeMap<Key, u32>,
    /// the server warned that a decision is still under way
    warned: Arc<AtomicBool>,
    prepared: Vec<Prepared>,
    /// names of those that were not there, and nobody had told that they were: they may come late
    late: Vec<String>,
}

type Answer<T> = Result<T, Trouble>;

impl Worker {
    fn new(all: Arc<Workload>, number: u32, port: u16) -> Self {
        let rng = Rng::with_seed(all.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        let (beliefs, next_life) = Default::default();
        let (prepared, late) = Default::default();
        Self { all, number, port, rng, beliefs, next_life, warned: Arc::default(), prepared, late }
    }

    fn run(mut self) {
        let mut client = None;
        while !self.all.stop.load(Ordering::SeqCst) {
            // First said, then looked: see `Workload::rests`.
            self.all.working.fetch_add(1, Ordering::SeqCst);
            if self.all.pause.load(Ordering::SeqCst) {
                // It does not rest before they have ended.
                drop(client.take());
                while !self.all.stop.load(Ordering::SeqCst) && !self.ends_all_prepared() {
                    thread::sleep(Duration::from_millis(50));
                }
                self.all.working.fetch_sub(1, Ordering::SeqCst);
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
            self.all.working.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn connect(&mut self) -> Option<Client> {
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
        config.connect(NoTls).inspect_err(|_| self.all.note("connection refused")).ok()
    }

    /// Runs one statement; returns the first column of its first row.
    fn ask(&mut self, client: &mut Client, sql: &str) -> Answer<Option<String>> {
        self.rows(client, sql).map(|rows| rows.into_iter().next())
    }

    /// Runs one statement; returns the first column of its rows.
    fn rows(&mut self, client: &mut Client, sql: &str) -> Answer<Vec<String>> {
        self.warned.store(false, Ordering::SeqCst);
        match client.simple_query(sql) {
            Ok(messages) => Ok(messages
                .into_iter()
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
                    _ => None,
                })
                .collect()),
            Err(error) => Err(self.trouble(sql, &error)),
        }
    }

    /// An error tells that there was no effect, unless the session ended with it or it says that nobody knows.
    fn trouble(&self, sql: &str, error: &postgres::Error) -> Trouble {
        let Some(db) = error.as_db_error() else {
            self.all.note("connection lost");
            return Trouble::Unknown;
        };
        let code = db.code().code();
        self.all.note(&format!("error {code}"));
        if !EXPECTED.contains(&code) && code != "23505" {
            self.all.surprise(format!("client {}: {sql}: {error:?}", self.number));
        }
        if matches!(db.severity(), "FATAL" | "PANIC") || code == "08007" {
            return Trouble::Unknown;
        }
        Trouble::Failed(code.to_owned())
    }

    fn json(&mut self, client: &mut Client, sql: &str) -> Answer<Value> {
        let text = self.ask(client, sql)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null))
    }

    fn done(&self) -> Outcome {
        if self.warned.load(Ordering::SeqCst) {
            self.all.note("decided, not yet everywhere");
            return Outcome::Decided;
        }
        Outcome::Done
    }

    fn ended(&self, place: usize, outcome: Outcome, actions: Option<Vec<Action>>) {
        if matches!(outcome, Outcome::Done | Outcome::Decided) {
            self.all.writes.fetch_add(1, Ordering::SeqCst);
        }
        self.all.note(match outcome {
            Outcome::Done | Outcome::Decided => "write",
            Outcome::Failed => "write failed",
            Outcome::Maybe => "write unknown",
        });
        self.all.recorder.end(place, outcome, actions);
    }

    fn saw(&self, began: Tick, seen: Seen) {
        self.all.note("observation");
        self.all.recorder.saw(self.number, began, seen);
    }

    fn any_key(&mut self) -> Key {
        Key { collection: self.rng.u8(0..NAMESPACES.len() as u8), k: self.rng.u32(0..self.all.size.keys) }
    }

    fn own_key(&mut self) -> Key {
        let Size { clients, keys, .. } = self.all.size;
        let mine = self.rng.u32(0..keys / clients);
        Key { k: mine * clients + self.number, ..self.any_key() }
    }

    fn any_range(&mut self, width: u32) -> Range {
        let Key { collection, k } = self.any_key();
        Range { collection, from: k, to: (k + width).min(self.all.size.keys) }
    }

    /// True if the client would wait for itself there.
    fn has_prepared(&self, key: Key) -> bool {
        self.prepared.iter().any(|prepared| prepared.keys.contains(&key))
    }

    /// A document that is believed to be there.
    fn any_document(&mut self) -> Option<Document> {
        for _ in 0..20 {
            let key = self.any_key();
            let life = self.all.life(key).load(Ordering::SeqCst);
            if life > 0 && !self.has_prepared(key) {
                return Some(Document { key, life });
            }
        }
        None
    }

    fn step(&mut self, client: &mut Client) -> Answer<()> {
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
            38..64 => self.append(client),
            64..66 => self.append_many(client),
            66..86 => {
                let key = self.own_key();
                self.tend(client, key)
            }
            _ => self.transact(client),
        }
    }

    // Reading.

    fn read_as(&mut self, client: &mut Client, key: Key) -> Answer<Option<Found>> {
        let ns = NAMESPACES[usize::from(key.collection)];
        let k = key.k;
        let sql = match self.rng.u32(0..10) {
            // By the key, or at every shard.
            0..7 => format!("SELECT docshard.find('{ns}', '{{\"k\": {k}}}')"),
            7..9 => format!("SELECT docshard.find_one('{ns}', '{{\"_id\": {k}}}')"),
            _ => format!("SELECT docshard.find('{ns}', '{{\"k\": {{\"$in\": [{k}]}}}}', '{{\"sort\": {{\"k\": 1}}}}')"),
        };
        let rows = self.rows(client, &sql)?;
        if rows.len() > 1 {
            self.all.surprise(format!("{key:?} was found {} times: {sql}", rows.len()));
        }
        let text = rows.into_iter().next().filter(|text| !text.is_empty());
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).map(|document| parse(&document)))
    }

    fn read(&mut self, client: &mut Client, key: Key) -> Answer<Option<Found>> {
        let began = self.all.recorder.tick();
        let found = self.read_as(client, key)?;
        self.saw(began, Seen::Read(key, found.clone()));
        Ok(found)
    }

    fn counted(&mut self, client: &mut Client, range: Option<Range>) -> Answer<(Range, u64)> {
        let whole = range.is_none();
        let range = match range {
            Some(range) => range,
            None => {
                let collection = self.any_key().collection;
                self.all.keys(collection)
            }
        };
        let ns = NAMESPACES[usize::from(range.collection)];
        let filter = if whole { "{}".to_owned() } else { of(&range) };
        let text = self.ask(client, &format!("SELECT docshard.count_documents('{ns}', '{filter}')"))?;
        let count: i64 = text.and_then(|text| text.parse().ok()).unwrap_or(-1);
        let count = if whole { self.all.without_fillers(count) } else { u64::try_from(count).unwrap_or(u64::MAX) };
        Ok((range, count))
    }

    fn count(&mut self, client: &mut Client, range: Option<Range>) -> Answer<()> {
        let began = self.all.recorder.tick();
        let (range, count) = self.counted(client, range)?;
        self.saw(began, Seen::Count(range, count));
        Ok(())
    }

    fn scan(&mut self, client: &mut Client, range: Range) -> Answer<()> {
        let ns = NAMESPACES[usize::from(range.collection)];
        let began = self.all.recorder.tick();
        let sort = if self.rng.bool() { ", \"sort\": {\"k\": 1}" } else { "" };
        let options = format!("{{\"projection\": {{\"k\": 1, \"life\": 1}}{sort}}}");
        let rows = self.rows(client, &format!("SELECT docshard.find('{ns}', '{}', '{options}')", of(&range)))?;
        self.scanned(began, range, &rows);
        Ok(())
    }

    fn scanned(&mut self, began: Tick, range: Range, rows: &[String]) {
        let documents = rows.iter().map(|text| {
            let document: Value = serde_json::from_str(text).unwrap_or_default();
            let key = Key { collection: range.collection, k: number(&document["k"]) };
            Document { key, life: number(&document["life"]) }
        });
        let documents = documents.collect();
        self.saw(began, Seen::Scan(range, documents));
    }

    /// A cursor stays open while chunks move under it.
    fn scan_by_cursor(&mut self, client: &mut Client) -> Answer<()> {
        let range = self.any_range(120);
        let ns = NAMESPACES[usize::from(range.collection)];
        let began = self.all.recorder.tick();
        let mut run = || -> Answer<Vec<String>> {
            let options = "{\"projection\": {\"k\": 1, \"life\": 1}}";
            let open = format!(
                "BEGIN; DECLARE slow NO SCROLL CURSOR FOR SELECT docshard.find('{ns}', '{}', '{options}')",
                of(&range)
            );
            self.rows(client, &open)?;
            let mut all = Vec::new();
            loop {
                let some = self.rows(client, "FETCH 20 FROM slow")?;
                if some.is_empty() {
                    return Ok(all);
                }
                all.extend(some);
                thread::sleep(Duration::from_millis(self.rng.u64(1..60)));
            }
        };
        let rows = run();
        if let Ok(rows) = &rows {
            self.scanned(began, range, rows);
        }
        let end = self.rows(client, "ROLLBACK").map(drop);
        rows.map(drop).and(end)
    }

    /// Under REPEATABLE READ the same answer comes twice.
    fn read_twice(&mut self, client: &mut Client) -> Answer<()> {
        let began = self.all.recorder.tick();
        let key = self.any_key();
        let mut run = || -> Answer<()> {
            self.rows(client, "BEGIN ISOLATION LEVEL REPEATABLE READ")?;
            let whole = self.counted(client, None)?;
            let first = self.read_as(client, key)?;
            thread::sleep(Duration::from_millis(self.rng.u64(1..80)));
            let second = self.read_as(client, key)?;
            if first != second {
                self.all.surprise(format!("{key:?} changed under REPEATABLE READ: {first:?}, {second:?}"));
            }
            self.saw(began, Seen::Read(key, second));
            self.saw(began, Seen::Count(whole.0, whole.1));
            Ok(())
        };
        let result = run();
        let end = self.rows(client, "ROLLBACK").map(drop);
        result.and(end)
    }

    // Writing.

    fn append_sql(&mut self, document: Document, id: u64, delta: i64) -> String {
        let Document { key, life } = document;
        let (ns, k) = (NAMESPACES[usize::from(key.collection)], key.k);
        let filter = match self.rng.u32(0..10) {
            0..5 => format!("{{\"k\": {k}, \"_id\": {k}, \"life\": {life}}}"),
            5..7 => format!("{{\"k\": {k}, \"life\": {life}}}"),
            7 => format!("{{\"_id\": {k}, \"life\": {life}}}"),
            // By less than a key, which is found at one shard or sought at all.
            8 => {
                let before = i64::from(k) - 1;
                format!("{{\"k\": {{\"$gt\": {before}, \"$lt\": {k}.5}}, \"life\": {life}}}")
            }
            _ => format!("{{\"$expr\": {{\"$eq\": [{{\"$add\": [\"$k\", 0]}}, {k}]}}, \"life\": {life}}}"),
        };
        let update = format!("{{\"$push\": {{\"ops\": {id}}}, \"$inc\": {{\"n\": {delta}}}}}");
        let options = if self.rng.u32(0..4) == 0 { ", '{\"sort\": {\"n\": 1}}'" } else { "" };
        format!("SELECT docshard.update_one('{ns}', '{filter}', '{update}'{options})")
    }

    fn found_or_not(&self, began: Tick, document: Document, found: bool) {
        self.saw(began, if found { Seen::Present(document) } else { Seen::Absent(document) });
    }

    /// Runs a write of one statement; `hit` tells what it did from the answer.
    fn write(
        &mut self,
        client: &mut Client,
        id: u64,
        action: Action,
        sql: &str,
        hit: impl Fn(&Value) -> bool,
    ) -> Answer<Value> {
        let place = self.all.recorder.begin(id, self.number, vec![action]);
        let answer = self.json(client, sql);
        match &answer {
            Ok(value) => {
                let actions = if hit(value) { None } else { Some(Vec::new()) };
                self.ended(place, self.done(), actions);
            }
            Err(Trouble::Failed(_)) => self.ended(place, Outcome::Failed, None),
            Err(Trouble::Unknown) => self.ended(place, Outcome::Maybe, None),
        }
        answer
    }

    fn append(&mut self, client: &mut Client) -> Answer<()> {
        let Some(document) = self.any_document() else { return Ok(()) };
        let (id, delta) = (self.all.recorder.number(), self.rng.i64(-9..10));
        let sql = self.append_sql(document, id, delta);
        let began = self.all.recorder.tick();
        let hit = |answer: &Value| answer["matchedCount"] == 1;
        let answer = self.write(client, id, Action::Append(document, delta), &sql, hit)?;
        self.found_or_not(began, document, hit(&answer));
        Ok(())
    }

    fn append_many(&mut self, client: &mut Client) -> Answer<()> {
        let range = self.any_range(24);
        if self.prepared.iter().any(|prepared| prepared.keys.iter().any(|key| range.contains(*key))) {
            return Ok(());
        }
        let (id, delta) = (self.all.recorder.number(), self.rng.i64(-9..10));
        let update = format!("{{\"$push\": {{\"ops\": {id}}}, \"$inc\": {{\"n\": {delta}}}}}");
        let ns = NAMESPACES[usize::from(range.collection)];
        let sql = format!("SELECT docshard.update_many('{ns}', '{}', '{update}')", of(&range));
        let began = self.all.recorder.tick();
        let answer = self.write(client, id, Action::AppendMany(range, delta), &sql, |_| true)?;
        self.saw(began, Seen::Count(range, answer["matchedCount"].as_u64().unwrap_or(u64::MAX)));
        Ok(())
    }

    fn believe(&mut self, key: Key, belief: Belief) {
        let life = if let Belief::Alive(life) = belief { life } else { 0 };
        self.all.life(key).store(life, Ordering::SeqCst);
        self.beliefs.insert(key, belief);
    }

    fn insert_sql(document: Document) -> String {
        let Document { key, life } = document;
        let k = key.k;
        let pad = "p".repeat(40 + (k as usize * 7 + life as usize) % 200);
        let text = json!({"_id": k, "k": k, "life": life, "ops": [], "n": 0, "pad": pad});
        format!("SELECT docshard.insert_one('{}', '{text}')", NAMESPACES[usize::from(key.collection)])
    }

    fn delete_sql(document: Document) -> String {
        let Document { key, life } = document;
        let (ns, k) = (NAMESPACES[usize::from(key.collection)], key.k);
        let filter = match life % 3 {
            0 => format!("{{\"_id\": {k}, \"life\": {life}}}"),
            _ => format!("{{\"k\": {k}, \"_id\": {k}, \"life\": {life}}}"),
        };
        format!("SELECT docshard.delete_one('{ns}', '{filter}')")
    }

    fn new_life(&mut self, key: Key) -> Document {
        let next = self.next_life.entry(key).or_default();
        *next += 1;
        Document { key, life: *next }
    }

    /// Inserts or deletes a key of one's own, or looks what became of it.
    fn tend(&mut self, client: &mut Client, key: Key) -> Answer<()> {
        if self.has_prepared(key) {
            return Ok(());
        }
        let id = self.all.recorder.number();
        match *self.beliefs.entry(key).or_insert(Belief::Absent) {
            Belief::Unsure => {
                let found = self.read(client, key)?;
                self.believe(key, found.map_or(Belief::Absent, |found| Belief::Alive(found.life)));
                Ok(())
            }
            Belief::Absent => {
                let document = self.new_life(key);
                self.believe(key, Belief::Unsure);
                let answer = self.write(client, id, Action::Insert(document), &Self::insert_sql(document), |_| true);
                match answer {
                    Ok(_) => self.believe(key, Belief::Alive(document.life)),
                    // Taken: somebody's late insertion came first, maybe.
                    Err(Trouble::Failed(code)) if code != "23505" => self.believe(key, Belief::Absent),
                    Err(_) => {}
                }
                Ok(())
            }
            // Most stay for a while.
            Belief::Alive(_) if self.rng.u32(0..10) < 6 => Ok(()),
            Belief::Alive(life) => {
                let document = Document { key, life };
                self.believe(key, Belief::Unsure);
                let began = self.all.recorder.tick();
                let hit = |answer: &Value| answer["deletedCount"] == 1;
                let answer = self.write(client, id, Action::Delete(document), &Self::delete_sql(document), hit);
                match answer {
                    Ok(answer) => {
                        self.found_or_not(began, document, hit(&answer));
                        if hit(&answer) {
                            self.believe(key, Belief::Absent);
                        }
                    }
                    Err(Trouble::Failed(_)) => self.believe(key, Belief::Alive(life)),
                    Err(Trouble::Unknown) => {}
                }
                Ok(())
            }
        }
    }

    /// A transaction over several documents, which may be on several shards: what one loses others win.
    fn transact(&mut self, client: &mut Client) -> Answer<()> {
        let mut documents = BTreeSet::new();
        for _ in 0..self.rng.u32(2..5) {
            documents.extend(self.any_document());
        }
        let mut parts: Vec<(Action, String, bool)> = Vec::new();
        let id = self.all.recorder.number();
        let undone = self.all.recorder.number();
        let mut rest = 0;
        for (place, &document) in documents.iter().enumerate() {
            // One of several may be taken back.
            let spare = documents.len() > 2 && place == 1 && self.rng.u32(0..3) == 0;
            let delta = if place + 1 == documents.len() { -rest } else { self.rng.i64(-9..10) };
            if !spare {
                rest += delta;
            }
            let sql = self.append_sql(document, if spare { undone } else { id }, delta);
            parts.push((Action::Append(document, delta), sql, spare));
        }
        // One of the client's own keys may come and go in it.
        let key = self.own_key();
        let belief = *self.beliefs.entry(key).or_insert(Belief::Absent);
        if !self.has_prepared(key) && !documents.iter().any(|document| document.key == key) && self.rng.u32(0..3) == 0 {
            match belief {
                Belief::Absent => {
                    let document = self.new_life(key);
                    parts.push((Action::Insert(document), Self::insert_sql(document), false));
                }
                Belief::Alive(life) => {
                    let document = Document { key, life };
                    parts.push((Action::Delete(document), Self::delete_sql(document), false));
                }
                Belief::Unsure => {}
            }
        }
        let tended = parts.iter().any(|(action, ..)| matches!(action, Action::Insert(_) | Action::Delete(_)));
        if tended {
            self.believe(key, Belief::Unsure);
        }
        let repeatable = self.rng.u32(0..8) == 0;
        let mut actions = Vec::new();
        let mut taken_back = Vec::new();
        let run = self.statements(client, &parts, id, repeatable, &mut actions, &mut taken_back);
        if !taken_back.is_empty() {
            let place = self.all.recorder.begin(undone, self.number, taken_back);
            self.all.recorder.end(place, Outcome::Failed, None);
        }
        let commits = run.is_ok() && self.rng.u32(0..8) > 0;
        let place = self.all.recorder.begin(id, self.number, actions.clone());
        if run.is_ok() && self.prepared.len() < 2 && self.rng.u32(0..8) == 0 {
            let after = match actions.last() {
                Some(Action::Insert(document)) => Belief::Alive(document.life),
                Some(Action::Delete(_)) => Belief::Absent,
                _ => belief,
            };
            let keys = actions.iter().filter_map(Action::key).collect();
            return self.prepare(client, id, place, commits, keys, tended.then_some((key, belief, after)));
        }
        let outcome = if commits {
            match self.rows(client, "COMMIT") {
                Ok(_) => self.done(),
                Err(Trouble::Failed(_)) => Outcome::Failed,
                Err(Trouble::Unknown) => Outcome::Maybe,
            }
        } else {
            drop(self.rows(client, "ROLLBACK"));
            Outcome::Failed
        };
        self.ended(place, outcome, None);
        if tended && outcome == Outcome::Failed {
            self.believe(key, belief);
        } else if tended && matches!(outcome, Outcome::Done | Outcome::Decided) {
            match actions.last() {
                Some(Action::Insert(document)) if outcome == Outcome::Done => {
                    self.believe(key, Belief::Alive(document.life));
                }
                Some(Action::Delete(_)) if outcome == Outcome::Done => self.believe(key, Belief::Absent),
                _ => {}
            }
        }
        run
    }

    /// Prepares the client's transaction, instead of ending it.
    fn prepare(
        &mut self,
        client: &mut Client,
        id: u64,
        place: usize,
        commits: bool,
        keys: BTreeSet<Key>,
        tended: Option<(Key, Belief, Belief)>,
    ) -> Answer<()> {
        let gid = format!("history-{}-{id}", self.number);
        let answer = self.rows(client, &format!("PREPARE TRANSACTION '{gid}'"));
        self.all.note("prepare");
        let patience = if self.rng.u32(0..10) == 0 { 30 } else { self.rng.u32(0..6) };
        let mut prepared = Prepared { gid, place, commits, surely: true, asked: false, tended, keys, patience };
        match &answer {
            Ok(_) => {}
            Err(Trouble::Unknown) => prepared.surely = false,
            Err(Trouble::Failed(_)) => {
                self.prepared_ended(&prepared, Outcome::Failed);
                return answer.map(drop);
            }
        }
        self.prepared.push(prepared);
        answer.map(drop)
    }

    /// Ends a transaction that was prepared some steps ago, in whatever session there is now.
    fn end_prepared(&mut self, client: &mut Client) {
        let Some(mut first) = self.prepared.pop() else { return };
        if first.patience > 0 {
            first.patience -= 1;
            self.prepared.push(first);
        } else if let Some(outcome) = self.try_to_end(client, &mut first) {
            self.prepared_ended(&first, outcome);
        } else {
            self.prepared.insert(0, first);
        }
    }

    /// Asks for the end of a prepared transaction; None if it is not known whether it has ended.
    fn try_to_end(&mut self, client: &mut Client, prepared: &mut Prepared) -> Option<Outcome> {
        self.warned.store(false, Ordering::SeqCst);
        let verb = if prepared.commits { "COMMIT" } else { "ROLLBACK" };
        let answer = client.simple_query(&format!("{verb} PREPARED '{}'", prepared.gid));
        self.all.note("end of a prepared transaction");
        let Err(error) = answer else {
            return Some(if prepared.commits { self.done() } else { Outcome::Failed });
        };
        // Undefined: nobody has it. Everything else, also that it is busy, is no answer.
        if error.code().is_none_or(|code| code.code() != "42704") {
            prepared.asked = true;
            self.all.note("end of a prepared transaction unknown");
            return None;
        }
        match (prepared.surely, prepared.asked) {
            (true, false) => {
                self.all.surprise(format!("{} was prepared, and is gone", prepared.gid));
                Some(Outcome::Maybe)
            }
            // The question that was not answered has ended it; perhaps not all shards have been told.
            (true, true) if prepared.commits => Some(Outcome::Decided),
            (false, true) if prepared.commits => {
                self.late.push(prepared.gid.clone());
                Some(Outcome::Maybe)
            }
            (surely, _) => {
                if !surely {
                    self.late.push(prepared.gid.clone());
                }
                Some(Outcome::Failed)
            }
        }
    }

    fn prepared_ended(&mut self, prepared: &Prepared, outcome: Outcome) {
        self.ended(prepared.place, outcome, None);
        if let Some((key, before, after)) = prepared.tended {
            // What was found out meanwhile may be of a moment before its end.
            self.believe(
                key,
                match outcome {
                    Outcome::Done => after,
                    Outcome::Failed => before,
                    Outcome::Decided | Outcome::Maybe => Belief::Unsure,
                },
            );
        }
    }

    /// Ends all that is prepared, and rolls back what was prepared late; false if that has to be tried again.
    fn ends_all_prepared(&mut self) -> bool {
        if self.prepared.is_empty() && self.late.is_empty() {
            return true;
        }
        let Some(mut client) = self.connect() else { return false };
        for mut prepared in std::mem::take(&mut self.prepared) {
            match self.try_to_end(&mut client, &mut prepared) {
                Some(outcome) => self.prepared_ended(&prepared, outcome),
                None => self.prepared.push(prepared),
            }
        }
        for gid in &self.late {
            // Most often there is none.
            let _ = client.simple_query(&format!("ROLLBACK PREPARED '{gid}'"));
        }
        self.prepared.is_empty()
    }

    /// The statements of a transaction; `actions` are those that were done and not taken back.
    fn statements(
        &mut self,
        client: &mut Client,
        parts: &[(Action, String, bool)],
        id: u64,
        repeatable: bool,
        actions: &mut Vec<Action>,
        taken_back: &mut Vec<Action>,
    ) -> Answer<()> {
        let start = self.all.recorder.tick();
        self.rows(client, if repeatable { "BEGIN ISOLATION LEVEL REPEATABLE READ" } else { "BEGIN" })?;
        for (action, sql, spare) in parts {
            if *spare {
                self.rows(client, "SAVEPOINT spare")?;
                taken_back.push(*action);
            } else {
                actions.push(*action);
            }
            let began = if repeatable { start } else { self.all.recorder.tick() };
            let answer = self.json(client, sql)?;
            let hit = match action {
                Action::Append(document, _) => Some((document, answer["matchedCount"] == 1)),
                Action::Delete(document) => Some((document, answer["deletedCount"] == 1)),
                Action::Insert(_) | Action::AppendMany(..) => None,
            };
            if let Some((document, hit)) = hit {
                self.found_or_not(began, *document, hit);
                if !hit && !spare {
                    actions.pop();
                }
                if hit && !spare && self.rng.u32(0..3) == 0 {
                    self.read_own(client, began, *document, *action, id)?;
                }
            }
            if *spare {
                self.rows(client, "ROLLBACK TO spare")?;
            }
        }
        Ok(())
    }

    /// Reads what the transaction itself has just written. Without that it is what is committed.
    fn read_own(
        &mut self,
        client: &mut Client,
        began: Tick,
        document: Document,
        action: Action,
        id: u64,
    ) -> Answer<()> {
        let found = self.read_as(client, document.key)?;
        match (action, found) {
            (Action::Append(_, delta), Some(mut found)) if found.ops.last() == Some(&id) => {
                found.ops.pop();
                found.n -= delta;
                self.saw(began, Seen::Read(document.key, Some(found)));
            }
            (Action::Delete(_), None) => {}
            (_, found) => self.all.surprise(format!("after {action:?} as {id} the transaction itself read {found:?}")),
        }
        Ok(())
    }
}

/// The filter of a range.
fn of(range: &Range) -> String {
    format!("{{\"k\": {{\"$gte\": {}, \"$lt\": {}}}}}", range.from, range.to)
}
