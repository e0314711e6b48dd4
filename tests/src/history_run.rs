//! A run: a cluster behind proxies, clients at work, chunks that split, merge and move, and accidents; and what must be
//! true once everything is well again.

use crate::cluster::{Cluster, Node, Standby};
use crate::history::Key;
use crate::history_check::{Violation, check};
use crate::nemesis::{Accident, Step, Strike, Victim};
use crate::process;
use crate::proxy::{Proxy, Weather};
use crate::workload::{APPLICATION, NAMESPACES, PATTERNS, Size, Workload};
use fastrand::Rng;
use postgres::{Client, NoTls, SimpleQueryMessage};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long anything may take that must come to its end by itself: far longer than it does, as machines may be busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// The application name of who asks for moves.
const MOVER: &str = "docshard-mover";
/// How long a move's sessions take for everything while a step is waited for, each way.
const SLOW: Duration = Duration::from_millis(6);

/// A cluster under test.
pub struct Run {
    /// the clients
    pub workload: Arc<Workload>,
    /// what struck at which step, and how often
    pub hits: BTreeMap<Strike, u32>,
    cluster: Cluster,
    /// before each shard, by name; `local` is what other nodes reach the router's database through
    proxies: BTreeMap<String, Proxy>,
    /// through which clients reach the router
    entrance: Proxy,
    rng: Rng,
    clients: Vec<JoinHandle<()>>,
    shuffler: Arc<Shuffler>,
    shuffling: Option<JoinHandle<()>>,
    began: Instant,
    log: String,
}

/// A node that is to fail over, in its part of a move, and its standby.
struct Reserve {
    part: Victim,
    node: String,
    standby: Standby,
}

/// Changes chunks at random.
#[derive(Debug)]
struct Shuffler {
    port: u16,
    seed: u64,
    keys: u32,
    /// the collection that it does not move chunks of
    reserved: AtomicU8,
    pause: AtomicBool,
    busy: AtomicBool,
    stop: AtomicBool,
}

/// A move that is struck.
struct Target {
    id: i64,
    collection: u8,
    donor: String,
    recipient: String,
    /// a key in the chunk
    k: u32,
}

impl Run {
    /// Starts a cluster of a router and three shards, and clients.
    ///
    /// # Panics
    /// If something doesn't start.
    pub fn start(seed: u64, size: Size) -> Self {
        let began = Instant::now();
        let cluster = Cluster::servers(3);
        let mut proxies: BTreeMap<String, Proxy> =
            cluster.shards.iter().map(|shard| (shard.name.clone(), Proxy::before(shard.port))).collect();
        proxies.insert("local".to_owned(), Proxy::before(cluster.router.port));
        let entrance = Proxy::before(cluster.router.port);
        let mut client = cluster.router.client();
        let run = |client: &mut Client, sql: &str| client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        run(&mut client, "CREATE EXTENSION docshard CASCADE");
        run(&mut client, "SELECT docshard.stop_balancer()");
        for shard in &cluster.shards {
            let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", proxies[&shard.name].port);
            run(&mut client, &format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"{}\"}}')", shard.name));
        }
        // The way to the router's own database leads through a proxy too.
        let local = proxies["local"].port;
        for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
            run(
                &mut node.client(),
                &format!("ALTER SERVER docshard_local OPTIONS (SET host '127.0.0.1', SET port '{local}')"),
            );
        }
        for (setting, value) in [("balancer_interval_ms", "500"), ("move_wait_ms", "3000")] {
            run(&mut client, &format!("SELECT docshard.set_setting('{setting}', '{value}')"));
        }
        let workload = Arc::new(Workload::new(size, seed));
        for (namespace, pattern) in NAMESPACES.iter().zip(PATTERNS) {
            run(&mut client, &format!("SELECT docshard.shard_collection('{namespace}', '{pattern}')"));
        }
        workload.fill(&mut client);
        for (part, shard) in cluster.shards.iter().enumerate() {
            let k = size.keys / 4 * (part as u32 + 1);
            run(&mut client, &format!("SELECT docshard.split_at('{}', '{{\"k\": {k}}}')", NAMESPACES[0]));
            let sql = format!("SELECT docshard.move_chunk('{}', '{{\"k\": {k}}}', '{}')", NAMESPACES[0], shard.name);
            run(&mut client, &sql);
        }
        run(&mut client, "SELECT docshard.start_balancer()");
        let shuffler = Arc::new(Shuffler {
            port: cluster.router.port,
            seed,
            keys: size.keys,
            reserved: AtomicU8::new(u8::MAX),
            pause: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let shuffling = Some(thread::spawn({
            let shuffler = Arc::clone(&shuffler);
            move || shuffler.run()
        }));
        let clients = workload.start(entrance.port);
        Self {
            workload,
            hits: BTreeMap::new(),
            cluster,
            proxies,
            entrance,
            rng: Rng::with_seed(seed ^ 0x5eed),
            clients,
            shuffler,
            shuffling,
            began,
            log: String::new(),
        }
    }

    /// What has been done so far, a line each.
    pub fn log(&self) -> &str {
        &self.log
    }

    fn note(&mut self, text: &str) {
        let line = format!("{:6.1} s  {text}\n", self.began.elapsed().as_secs_f64());
        if std::env::var_os("HISTORY_VERBOSE").is_some() {
            eprint!("{line}");
        }
        self.log.push_str(&line);
    }

    /// A new session on the router, not through a proxy.
    fn session(&self) -> Option<Client> {
        connect(self.cluster.router.port, "docshard-nemesis").ok()
    }

    /// A session on the router; waits until there is one.
    fn patient_session(&self) -> Client {
        let began = Instant::now();
        loop {
            if let Some(client) = self.session() {
                return client;
            }
            assert!(began.elapsed() < PATIENCE, "the router does not come back");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn node(&mut self, shard: &str) -> &mut Node {
        self.cluster.node(if shard == "local" { "router" } else { shard })
    }

    fn victim(target: &Target, victim: Victim) -> &str {
        match victim {
            Victim::Donor => &target.donor,
            Victim::Recipient => &target.recipient,
            Victim::Router => "local",
        }
    }

    fn proxy(&self, target: &Target, victim: Victim) -> &Proxy {
        match victim {
            Victim::Router => &self.entrance,
            _ => &self.proxies[Self::victim(target, victim)],
        }
    }

    /// Moves a chunk, lets something happen at a step of it, and waits until the move has come to its end.
    ///
    /// # Panics
    /// If it doesn't, within a long time.
    pub fn strike(&mut self, strike: Strike) {
        let collection = self.rng.u8(0..NAMESPACES.len() as u8);
        self.shuffler.reserved.store(collection, Ordering::SeqCst);
        let mut reserve = self.reserve(strike.accident);
        for attempt in 0..4 {
            let Some((target, mover)) = self.begin_move(collection, strike.step, reserve.as_ref()) else {
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let reached = self.wait_for(&target, strike.step);
            let slow = if strike.step == Step::Recovery { Duration::ZERO } else { SLOW };
            self.slow(&target, slow);
            if let Some(step) = reached {
                let strike = Strike { step, ..strike };
                self.note(&format!(
                    "{strike}: migration {} of {} from {} to {}",
                    target.id,
                    NAMESPACES[usize::from(collection)],
                    target.donor,
                    target.recipient
                ));
                match reserve.take() {
                    Some(Reserve { node, standby, .. }) => self.node(&node).fail_over(standby),
                    None => self.happen(strike.accident, &target),
                }
                *self.hits.entry(strike).or_default() += 1;
            }
            self.heal();
            self.wait_for_end(&target);
            let answer = mover.join().expect("who asks for a move does not panic");
            self.note(&format!("migration {} ended: {answer}", target.id));
            // There is one standby.
            let spent = matches!(strike.accident, Accident::FailOver(_)) && reserve.is_none();
            if reached == Some(strike.step) || spent || attempt == 3 {
                break;
            }
        }
        if let Some(Reserve { node, standby, .. }) = reserve {
            self.note("no move came to where it was to be struck");
            self.node(&node).dismiss(standby);
        }
        self.shuffler.reserved.store(u8::MAX, Ordering::SeqCst);
    }

    /// A standby for a server that is to fail over: it must be there before the move begins.
    fn reserve(&mut self, accident: Accident) -> Option<Reserve> {
        let Accident::FailOver(part) = accident else { return None };
        let names: Vec<String> = self.proxies.keys().filter(|name| *name != "local").cloned().collect();
        let node =
            if part == Victim::Router { "local".to_owned() } else { names[self.rng.usize(0..names.len())].clone() };
        let standby = self.node(&node).standby();
        Some(Reserve { part, node, standby })
    }

    /// Slows down what the sides of a move are told.
    fn slow(&self, target: &Target, delay: Duration) {
        for side in [&target.donor, &target.recipient] {
            self.proxies[side].set(Weather { delay, ..Weather::default() });
        }
    }

    fn heal(&self) {
        for proxy in self.proxies.values().chain([&self.entrance]) {
            proxy.set(Weather::default());
        }
    }

    /// Asks for a move of some chunk, and waits until it is registered.
    fn begin_move(
        &mut self,
        collection: u8,
        step: Step,
        reserve: Option<&Reserve>,
    ) -> Option<(Target, JoinHandle<String>)> {
        let ns = NAMESPACES[usize::from(collection)];
        let mut client = self.patient_session();
        let mut k = self.rng.u32(0..self.workload.size().keys);
        // A donor or recipient that is named must be it.
        let donor_wanted = reserve.filter(|reserve| reserve.part == Victim::Donor).map(|reserve| reserve.node.clone());
        let recipient_wanted =
            reserve.filter(|reserve| reserve.part == Victim::Recipient).map(|reserve| reserve.node.clone());
        if let Some(donor) = &donor_wanted {
            k = self.key_on(&mut client, collection, donor)?;
        }
        let key = format!("docshard_internal.shard_key('{{\"k\": {k}}}', '{}')", PATTERNS[usize::from(collection)]);
        let donor: String = client
            .query_opt(
                &format!("SELECT shard FROM docshard.chunks WHERE namespace = '{ns}' AND min_key <= {key} ORDER BY min_key DESC LIMIT 1"),
                &[],
            )
            .ok()??
            .get(0);
        let names: Vec<&String> = self.proxies.keys().filter(|name| **name != donor).collect();
        let recipient = recipient_wanted.clone().unwrap_or_else(|| names[self.rng.usize(0..names.len())].clone());
        if recipient == donor {
            return None;
        }
        let last: i64 =
            client.query_one("SELECT coalesce(max(id), 0) FROM docshard_catalog.migrations", &[]).ok()?.get(0);
        // A move of somebody else's will do.
        let running = client.query_opt(
            &format!(
                "SELECT id, donor, recipient FROM docshard.migrations WHERE namespace = '{ns}' AND state = 'running' LIMIT 1"
            ),
            &[],
        );
        if let Some(row) = running.ok()? {
            let has = |column: usize, wanted: &Option<String>| {
                wanted.as_ref().is_none_or(|name| *name == row.get::<_, String>(column))
            };
            if !has(1, &donor_wanted) || !has(2, &recipient_wanted) {
                return None;
            }
            let target = Target { id: row.get(0), collection, donor: row.get(1), recipient: row.get(2), k };
            self.slow(&target, SLOW);
            return Some((target, thread::spawn(|| "somebody else's".to_owned())));
        }
        // Each of its round trips takes so long that a step can be seen.
        let target = Target { id: 0, collection, donor, recipient, k };
        self.slow(&target, SLOW);
        let sql = format!("SELECT docshard.move_chunk('{ns}', '{{\"k\": {k}}}', '{}')", target.recipient);
        let port = self.cluster.router.port;
        let mover = thread::spawn(move || match connect(port, MOVER) {
            Ok(mut client) => match client.query_one(&sql, &[]) {
                Ok(row) => row.get::<_, serde_json::Value>(0).to_string(),
                Err(error) => said(&error),
            },
            Err(error) => said(&error),
        });
        let began = Instant::now();
        let sql = format!(
            "SELECT id FROM docshard_catalog.migrations WHERE id > {last} AND namespace = '{ns}' AND reason = 'manual'"
        );
        while began.elapsed() < Duration::from_secs(10) {
            if let Ok(Some(row)) = client.query_opt(&sql, &[]) {
                return Some((Target { id: row.get(0), ..target }, mover));
            }
            if mover.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.heal();
        let answer = mover.join().expect("who asks for a move does not panic");
        self.note(&format!("no move to strike at {step:?}: {answer}"));
        None
    }

    /// A key whose document, if there is one, is on that shard.
    fn key_on(&mut self, client: &mut Client, collection: u8, shard: &str) -> Option<u32> {
        let (ns, pattern) = (NAMESPACES[usize::from(collection)], PATTERNS[usize::from(collection)]);
        let sql = format!(
            "SELECT k::int8 FROM generate_series(0, {}) k, docshard_internal.shard_key(jsonb_build_object('k', k), \
             '{pattern}') key JOIN docshard.chunks c ON c.namespace = '{ns}' AND c.shard = '{shard}' \
             AND key >= c.min_key AND key < c.max_key ORDER BY k",
            self.workload.size().keys - 1
        );
        let rows = client.query(&sql, &[]).inspect_err(|error| self.note(&format!("{sql}: {}", said(error)))).ok()?;
        let keys: Vec<u32> = rows.iter().map(|row| row.get::<_, i64>(0) as u32).collect();
        self.rng.choice(&keys).copied()
    }

    /// Waits until a move is at a step, or after it; returns where it is, None if it is over.
    fn wait_for(&mut self, target: &Target, step: Step) -> Option<Step> {
        let mut client = self.patient_session();
        if step == Step::Recovery {
            // Its coordinator goes, at any moment.
            thread::sleep(Duration::from_millis(self.rng.u64(1..250)));
            self.signal_session(target, Victim::Router, "KILL or TERM");
            thread::sleep(Duration::from_millis(self.rng.u64(1..60)));
            client = self.patient_session();
        }
        let sql = format!("SELECT state, step FROM docshard_catalog.migrations WHERE id = {}", target.id);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match client.simple_query(&sql) {
                Ok(rows) => {
                    let now = rows.iter().find_map(|message| match message {
                        SimpleQueryMessage::Row(row) => Some((row.get(0)?.to_owned(), row.get(1)?.to_owned())),
                        _ => None,
                    });
                    let (state, name) = now?;
                    if state == "done" {
                        return None;
                    }
                    if step == Step::Recovery {
                        return Some(Step::Recovery);
                    }
                    if let Some(now) = Step::of(&state, &name).filter(|now| *now >= step) {
                        return Some(now);
                    }
                }
                Err(_) => client = self.patient_session(),
            }
            thread::sleep(Duration::from_micros(700));
        }
        None
    }

    /// Waits until nothing is left to do for a move.
    fn wait_for_end(&mut self, target: &Target) {
        let sql = format!(
            "SELECT state, step, coalesce(error, '') FROM docshard_catalog.migrations WHERE id = {}",
            target.id
        );
        let began = Instant::now();
        let mut last = String::new();
        loop {
            let row = self.session().and_then(|mut client| client.query_opt(&sql, &[]).ok());
            match row {
                Some(Some(row)) if row.get::<_, String>(0) == "done" => return,
                // It is removed with its collection only.
                Some(None) => return,
                Some(Some(row)) => {
                    last = format!("{}, {}: {}", row.get::<_, &str>(0), row.get::<_, &str>(1), row.get::<_, &str>(2));
                }
                None => {}
            }
            assert!(began.elapsed() < PATIENCE, "migration {} does not come to its end: {last}", target.id);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The processes of a move on a side.
    fn sessions(&mut self, target: &Target, victim: Victim) -> Vec<i32> {
        let sql = match victim {
            Victim::Router => "SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard job'".to_owned(),
            _ => format!(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'docshard m %{}' \
                 OR application_name = 'docshard recovery'",
                target.id
            ),
        };
        self.query_on(Self::victim(target, victim).to_owned(), &sql)
    }

    fn query_on(&mut self, shard: String, sql: &str) -> Vec<i32> {
        let rows = self.node(&shard).try_client().and_then(|mut client| client.query(sql, &[]));
        rows.map(|rows| rows.iter().map(|row| row.get(0)).collect()).unwrap_or_default()
    }

    fn signal_session(&mut self, target: &Target, victim: Victim, signal: &str) {
        let pids = self.sessions(target, victim);
        let Some(&pid) = self.rng.choice(&pids) else {
            self.note("nobody is there to be hit");
            return;
        };
        let signal = if signal != "KILL or TERM" {
            signal
        } else if self.rng.bool() {
            "KILL"
        } else {
            "TERM"
        };
        process::signal(pid as u32, signal);
        if signal == "STOP" {
            thread::sleep(Duration::from_millis(self.rng.u64(200..1500)));
            process::signal(pid as u32, "CONT");
        }
    }

    fn run_on(&mut self, shard: &str, sql: &str) {
        let done = self.node(shard).try_client().and_then(|mut client| client.batch_execute(sql));
        if let Err(error) = done {
            self.note(&format!("{sql}: {}", said(&error)));
        }
    }

    /// Runs SQL on the router, where it may fail for good reasons.
    fn try_sql(&mut self, sql: &str) {
        if let Some(mut client) = self.session()
            && let Err(error) = client.batch_execute(sql)
        {
            let text = said(&error);
            let expected = ["08", "40", "55", "57", "42P07", "42710", "42704"];
            let code = error.code().map_or("", |code| code.code());
            if !code.is_empty() && !expected.iter().any(|prefix| code.starts_with(prefix)) && !is_refusal(code) {
                self.workload.surprise(format!("{sql}: {error:?}"));
            }
            self.note(&format!("{sql}: {text}"));
        }
    }

    fn a_while(&mut self) {
        thread::sleep(Duration::from_millis(self.rng.u64(50..900)));
    }

    fn happen(&mut self, accident: Accident, target: &Target) {
        let name = |victim| Self::victim(target, victim).to_owned();
        match accident {
            Accident::KillSession(victim) => self.signal_session(target, victim, "KILL"),
            Accident::EndSession(victim) => self.signal_session(target, victim, "TERM"),
            Accident::CancelSession(victim) => self.signal_session(target, victim, "INT"),
            Accident::Pause(victim) => self.signal_session(target, victim, "STOP"),
            Accident::KillPostmaster(victim) => {
                self.node(&name(victim)).kill9();
                self.node(&name(victim)).start();
            }
            Accident::Crash(victim) => {
                self.node(&name(victim)).crash();
                self.node(&name(victim)).start();
            }
            // Strikes with its standby: see `Run::reserve`.
            Accident::FailOver(_) => {}
            Accident::Restart(victim) => {
                self.node(&name(victim)).stop();
                self.node(&name(victim)).start();
            }
            Accident::RestartAtOnce(victim) => {
                self.node(&name(victim)).stop_at_once();
                self.node(&name(victim)).start();
            }
            Accident::Cut(victim) => self.proxy(target, victim).cut(),
            Accident::CutOff(victim) => {
                self.proxy(target, victim).set(Weather { refuse: true, ..Weather::default() });
                self.proxy(target, victim).cut();
                self.a_while();
            }
            Accident::Delay(victim) => {
                let delay = Duration::from_millis(self.rng.u64(20..120));
                self.proxy(target, victim).set(Weather { delay, ..Weather::default() });
                self.a_while();
                self.a_while();
            }
            Accident::HoldRequests(victim) => {
                self.proxy(target, victim).set(Weather { hold_requests: true, ..Weather::default() });
                self.a_while();
            }
            Accident::LoseAnswers(victim) => {
                self.proxy(target, victim).set(Weather { hold_answers: true, ..Weather::default() });
                self.a_while();
                self.proxy(target, victim).cut();
            }
            Accident::CancelStatements(victim) | Accident::EndSessions(victim) => {
                let function = if matches!(accident, Accident::EndSessions(_)) {
                    "pg_terminate_backend"
                } else {
                    "pg_cancel_backend"
                };
                let application = if victim == Victim::Router { APPLICATION } else { "docshard" };
                for _ in 0..3 {
                    let sql = format!(
                        "SELECT {function}(pid) FROM pg_stat_activity WHERE application_name = '{application}'"
                    );
                    self.run_on(&name(victim), &sql);
                    thread::sleep(Duration::from_millis(self.rng.u64(5..100)));
                }
            }
            Accident::CancelCaller | Accident::EndCaller => {
                let function =
                    if accident == Accident::EndCaller { "pg_terminate_backend" } else { "pg_cancel_backend" };
                let sql = format!("SELECT {function}(pid) FROM pg_stat_activity WHERE application_name = '{MOVER}'");
                self.run_on("local", &sql);
            }
            Accident::Abort => {
                let sql = format!("SELECT docshard.abort_migration({})", target.id);
                let there = "SELECT 1 WHERE to_regprocedure('docshard.abort_migration(bigint)') IS NOT NULL";
                if self.query_on("local".to_owned(), there).is_empty() {
                    self.run_on(
                        "local",
                        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'docshard job'",
                    );
                } else {
                    self.try_sql(&sql);
                }
            }
            Accident::SecondMove => {
                let ns = NAMESPACES[usize::from(target.collection)];
                let names: Vec<&String> = self.proxies.keys().collect();
                let to = names[self.rng.usize(0..names.len())].clone();
                self.try_sql(&format!("SELECT docshard.move_chunk('{ns}', '{{\"k\": {}}}', '{to}')", target.k));
            }
            Accident::SplitAndMerge => {
                for _ in 0..6 {
                    let sql = split_or_merge(&mut self.rng, self.workload.size().keys, target.collection);
                    self.try_sql(&sql);
                }
            }
            Accident::Index => {
                let ns = NAMESPACES[usize::from(target.collection)];
                self.try_sql(&format!(
                    "SET statement_timeout = '10s'; SELECT docshard.create_index('{ns}', '{{\"k\": 1, \"life\": -1}}', \
                     '{{\"name\": \"kl\"}}')"
                ));
                self.a_while();
                self.try_sql(&format!("SET statement_timeout = '10s'; SELECT docshard.drop_index('{ns}', 'kl')"));
            }
            Accident::OtherCollection => {
                for sql in [
                    "SELECT docshard.shard_collection('history.other', '{\"o\": \"hashed\"}')",
                    "SELECT docshard.insert_many('history.other', array_agg(jsonb_build_object('o', n))) \
                     FROM generate_series(1, 200) n",
                    "SELECT docshard.drop_collection('history.other')",
                ] {
                    self.try_sql(&format!("SET statement_timeout = '20s'; {sql}"));
                }
            }
            Accident::Balancer => {
                self.try_sql("SELECT docshard.stop_balancer(500)");
                self.a_while();
                self.try_sql("SELECT docshard.start_balancer()");
            }
            Accident::Drain => {
                let shard = if target.recipient == "local" { &target.donor } else { &target.recipient };
                self.try_sql(&format!("SELECT docshard.remove_shard('{shard}')"));
                self.a_while();
                self.keep_shards();
            }
            Accident::LongWriter => self.long_writer(target),
            Accident::LongReader => {
                let ns = NAMESPACES[usize::from(target.collection)];
                let Some(mut client) = self.session() else { return };
                let fillers = self.workload.size().keys;
                let sql = format!("SELECT docshard.count_documents('{ns}', '{{\"k\": {{\"$gte\": {fillers}}}}}')");
                let counts: Result<Vec<i64>, _> =
                    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").and_then(|()| {
                        (0..2)
                            .map(|_| {
                                let count = client.query_one(&sql, &[])?.get(0);
                                thread::sleep(Duration::from_millis(600));
                                Ok(count)
                            })
                            .collect()
                    });
                match counts {
                    Ok(counts) if counts.iter().any(|&n| n != i64::from(self.workload.size().fillers)) => {
                        self.workload
                            .surprise(format!("a long reader counted {counts:?} documents that nobody changes"));
                    }
                    Ok(_) => {}
                    Err(error) => self.note(&format!("a long reader: {}", said(&error))),
                }
            }
            Accident::Maintenance => {
                for shard in [&target.donor, &target.recipient] {
                    for sql in ["CHECKPOINT", "VACUUM", "ANALYZE"] {
                        self.run_on(shard, sql);
                    }
                }
            }
        }
    }

    /// A transaction that changes a document that nobody else changes, and then takes its time.
    fn long_writer(&mut self, target: &Target) {
        let ns = NAMESPACES[usize::from(target.collection)];
        let Some(mut client) = self.session() else { return };
        let filler = self.workload.size().keys + self.rng.u32(0..self.workload.size().fillers);
        let run = client
            .batch_execute(&format!(
                "SET statement_timeout = '8s'; BEGIN; SELECT docshard.update_one('{ns}', \
                 '{{\"k\": {filler}, \"_id\": {filler}}}', '{{\"$inc\": {{\"touched\": 1}}}}'); \
                 SELECT docshard.update_many('{ns}', '{{\"k\": {{\"$gte\": {filler}, \"$lt\": {}}}}}', \
                 '{{\"$set\": {{\"by\": 1}}}}')",
                filler + 200
            ))
            .and_then(|()| {
                thread::sleep(Duration::from_millis(800));
                client.batch_execute("COMMIT")
            });
        if let Err(error) = run {
            self.note(&format!("a long writer: {}", said(&error)));
        }
    }

    /// No shard is to be removed any more.
    fn keep_shards(&mut self) {
        let shards: Vec<(String, u16)> =
            self.cluster.shards.iter().map(|shard| (shard.name.clone(), self.proxies[&shard.name].port)).collect();
        for (name, port) in shards {
            self.try_sql(&format!(
                "SELECT docshard.add_shard('postgresql://postgres@127.0.0.1:{port}/postgres', '{{\"name\": \"{name}\"}}')"
            ));
        }
    }

    /// Checks what has happened so far, while it goes on.
    pub fn check_now(&self) -> Vec<Violation> {
        check(&self.workload.recorder.history())
    }

    /// Switches a mechanism off, on all nodes; see [`crate::faults`].
    ///
    /// # Panics
    /// If there is no such mechanism.
    pub fn switch_off(&self, mechanism: &str) {
        for node in std::iter::once(&self.cluster.router).chain(&self.cluster.shards) {
            node.switch_off(mechanism);
        }
    }

    /// Lets everything come to rest, checks that nothing is left behind and that every document is where it belongs, and
    /// checks the history. Then a new one begins.
    ///
    /// # Panics
    /// If it doesn't come to rest, or is not as it must be.
    pub fn check_at_rest(&mut self) -> Vec<Violation> {
        self.note("comes to rest");
        self.heal();
        self.workload.pause(true);
        self.shuffler.pause.store(true, Ordering::SeqCst);
        let began = Instant::now();
        while !self.workload.rests() || self.shuffler.busy.load(Ordering::SeqCst) {
            assert!(began.elapsed() < PATIENCE, "clients do not come to rest");
            thread::sleep(Duration::from_millis(20));
        }
        let mut client = self.patient_session();
        self.keep_shards();
        client.batch_execute("SELECT docshard.stop_balancer()").expect("the balancer stops");
        let began = Instant::now();
        loop {
            let left = self.left_behind();
            if left.is_empty() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "left behind:\n{left}");
            thread::sleep(Duration::from_millis(100));
        }
        self.workload.recorder.settle();
        let documents = self.workload.read_all(&mut client);
        let mut violations = check(&self.workload.recorder.history());
        if violations.is_empty() {
            self.check_tables(&mut client, &documents.iter().map(|(key, found)| (*key, found.life)).collect());
            self.check_moves(&mut client);
            let again = self.workload.read_all(&mut client);
            violations = check(&self.workload.recorder.history());
            assert_eq!(documents.len(), again.len());
            self.workload.recorder.restart(again);
        }
        client.batch_execute("SELECT docshard.start_balancer()").expect("the balancer starts");
        self.shuffler.pause.store(false, Ordering::SeqCst);
        self.workload.pause(false);
        self.note("is well");
        violations
    }

    /// What of accidents and moves is still there; empty when all is quiet.
    fn left_behind(&mut self) -> String {
        let mut left = String::new();
        let names: Vec<String> = self.proxies.keys().cloned().collect();
        for name in names {
            let node = self.node(&name);
            let Ok(mut client) = node.try_client() else {
                let _ = writeln!(left, "{name} is down");
                continue;
            };
            let mut checks = vec![
                ("prepared transactions", "SELECT gid FROM pg_prepared_xacts".to_owned()),
                ("captures", "SELECT migration_id::text FROM docshard_data.capture".to_owned()),
                ("captured changes", "SELECT DISTINCT migration_id::text FROM docshard_data.capture_log".to_owned()),
                ("parts", "SELECT DISTINCT migration_id::text FROM docshard_data.capture_parts".to_owned()),
                (
                    "staging tables",
                    "SELECT relname::text FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace \
                     AND relname ~ '^m[0-9]'"
                        .to_owned(),
                ),
                (
                    "sessions",
                    format!(
                        "SELECT application_name || ': ' || query FROM pg_stat_activity \
                         WHERE application_name IN ('{APPLICATION}', '{MOVER}') \
                         OR backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
                    ),
                ),
            ];
            if name == "local" {
                checks.push((
                    "migrations",
                    "SELECT format('%s %s %s %s', id, state, step, error) FROM docshard_catalog.migrations \
                     WHERE state <> 'done'"
                        .to_owned(),
                ));
                checks.push(("decisions", "SELECT gid FROM docshard_catalog.transactions".to_owned()));
            }
            for (what, sql) in checks {
                match client.query(&sql, &[]) {
                    Ok(rows) => {
                        for row in rows {
                            let _ = writeln!(left, "{name}: {what}: {}", row.get::<_, &str>(0));
                        }
                    }
                    Err(error) => {
                        let _ = writeln!(left, "{name}: {what}: {}", said(&error));
                    }
                }
            }
        }
        left
    }

    /// Every document lies on the shard that owns its chunk, on no other, and once.
    fn check_tables(&mut self, client: &mut Client, documents: &BTreeMap<Key, u32>) {
        let Size { keys, fillers, .. } = self.workload.size();
        for (collection, namespace) in (0..).zip(NAMESPACES) {
            let chunks: Vec<(Vec<u8>, Vec<u8>, String)> = client
                .query(
                    "SELECT c.min, c.max, s.name FROM docshard_catalog.chunks c \
                     JOIN docshard_catalog.shards s ON s.id = c.shard_id \
                     JOIN docshard_catalog.collections o ON o.id = c.collection_id WHERE o.namespace = $1 ORDER BY 1",
                    &[&namespace],
                )
                .expect("chunks")
                .iter()
                .map(|row| (row.get(0), row.get(1), row.get(2)))
                .collect();
            for pair in chunks.windows(2) {
                assert_eq!(pair[0].1, pair[1].0, "{namespace}: chunks without gap or overlap");
            }
            let owner = |key: &[u8]| {
                let place = chunks.partition_point(|(min, ..)| min.as_slice() <= key);
                chunks[place - 1].2.clone()
            };
            let id: i32 = client
                .query_one("SELECT id FROM docshard_catalog.collections WHERE namespace = $1", &[&namespace])
                .expect("a collection")
                .get(0);
            let placed: BTreeMap<String, i64> = client
                .query(
                    "SELECT s.name, p.version FROM docshard_catalog.placements p \
                     JOIN docshard_catalog.shards s ON s.id = p.shard_id WHERE p.collection_id = $1",
                    &[&id],
                )
                .expect("placements")
                .iter()
                .map(|row| (row.get(0), row.get(1)))
                .collect();
            let mut there: BTreeMap<Key, u32> = BTreeMap::new();
            let mut filling = 0;
            let names: Vec<String> = self.proxies.keys().cloned().collect();
            for name in names {
                let mut shard = self.node(&name).client();
                let table: bool = shard
                    .query_one(&format!("SELECT to_regclass('docshard_data.c{id}') IS NOT NULL"), &[])
                    .expect("a query")
                    .get(0);
                let version: Option<i64> = shard
                    .query_opt("SELECT version FROM docshard_data.placement WHERE collection_id = $1", &[&id])
                    .expect("a query")
                    .map(|row| row.get(0));
                assert_eq!(version, placed.get(&name).copied(), "{namespace}: the version of {name}");
                assert_eq!(table, placed.contains_key(&name), "{namespace}: a table on {name}");
                if !table {
                    continue;
                }
                let sql = format!("SELECT skey, (doc->>'k')::int8, (doc->>'life')::int8 FROM docshard_data.c{id}");
                for row in shard.query(&sql, &[]).expect("documents") {
                    let (skey, k, life): (Vec<u8>, i64, Option<i64>) = (row.get(0), row.get(1), row.get(2));
                    assert_eq!(owner(&skey), name, "{namespace}: the document {k} is an orphan on {name}");
                    let Some(life) = life else {
                        filling += 1;
                        continue;
                    };
                    let key = Key { collection, k: k as u32 };
                    assert!(k < i64::from(keys), "{namespace}: a document {k}");
                    assert!(there.insert(key, life as u32).is_none(), "{namespace}: {k} is there twice");
                }
            }
            assert_eq!(filling, fillers, "{namespace}: documents that nobody changes");
            let wanted: BTreeMap<Key, u32> =
                documents.iter().filter(|(key, _)| key.collection == collection).map(|(k, l)| (*k, *l)).collect();
            assert_eq!(there, wanted, "{namespace}: the tables have what clients find");
        }
    }

    /// After all that, moves simply succeed.
    fn check_moves(&mut self, client: &mut Client) {
        for namespace in NAMESPACES {
            for _ in 0..2 {
                let k = self.rng.u32(0..self.workload.size().keys);
                let names: Vec<&String> = self.proxies.keys().collect();
                let to = names[self.rng.usize(0..names.len())];
                let sql = format!("SELECT docshard.move_chunk('{namespace}', '{{\"k\": {k}}}', '{to}')");
                client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            }
        }
    }

    /// A report of a failure: what was done, what is wrong, and what led to it.
    pub fn explain(&self, violations: &[Violation]) -> String {
        let history = self.workload.recorder.history();
        let mut text = format!("{}\n{}\n", self.workload.stats(), self.log);
        if let Some(mut client) = self.session() {
            let sql = "SELECT format('%s %s %s>%s %s %s %s ms %s: %s', id, namespace, donor, recipient, reason, state, \
                       (extract(epoch FROM updated_at - started_at) * 1000)::int, durations, error) \
                       FROM docshard.migrations ORDER BY id";
            for row in client.query(sql, &[]).unwrap_or_default() {
                let _ = writeln!(text, "migration {}", row.get::<_, &str>(0));
            }
        }
        for violation in violations.iter().take(10) {
            let _ = writeln!(text, "{:?}: {}", violation.kind, violation.message);
        }
        if let Some(key) = violations.iter().find_map(|violation| violation.key) {
            let _ = writeln!(text, "\nthe history of {key:?}:\n{}", history.tail(120, Some(key)));
        } else if !violations.is_empty() {
            let _ = writeln!(text, "\nthe end of the history:\n{}", history.tail(120, None));
        }
        text
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.shuffler.stop.store(true, Ordering::SeqCst);
        self.workload.stop();
        // Whoever waits for a server is told that there is none.
        for proxy in self.proxies.values().chain([&self.entrance]) {
            proxy.set(Weather { refuse: true, ..Weather::default() });
            proxy.cut();
        }
        for thread in self.clients.drain(..).chain(self.shuffling.take()) {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Shuffler {
    fn run(&self) {
        let mut rng = Rng::with_seed(self.seed ^ 0x0005_4aff_1e00);
        let mut client: Option<Client> = None;
        while !self.stop.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(rng.u64(50..300)));
            self.busy.store(true, Ordering::SeqCst);
            if self.pause.load(Ordering::SeqCst) {
                client = None;
                self.busy.store(false, Ordering::SeqCst);
                continue;
            }
            if client.as_ref().is_none_or(Client::is_closed) {
                client = connect(self.port, MOVER).ok();
            }
            if let Some(client) = &mut client {
                let collection = rng.u8(0..NAMESPACES.len() as u8);
                let sql = if rng.u32(0..5) < 2 || (collection == self.reserved.load(Ordering::SeqCst) && rng.bool()) {
                    split_or_merge(&mut rng, self.keys, collection)
                } else {
                    let to = ["local", "shard0", "shard1", "shard2"][rng.usize(0..4)];
                    let (ns, k) = (NAMESPACES[usize::from(collection)], rng.u32(0..self.keys));
                    format!("SELECT docshard.move_chunk('{ns}', '{{\"k\": {k}}}', '{to}')")
                };
                // Whether it can be done just now does not matter.
                let _ = client.batch_execute(&sql);
            }
            self.busy.store(false, Ordering::SeqCst);
        }
    }
}

/// SQL that splits a chunk, or merges all that a shard has side by side.
fn split_or_merge(rng: &mut Rng, keys: u32, collection: u8) -> String {
    let (ns, k) = (NAMESPACES[usize::from(collection)], rng.u32(0..keys));
    if rng.u32(0..3) > 0 {
        return if collection == 0 && rng.bool() {
            format!("SELECT docshard.split_at('{ns}', '{{\"k\": {k}}}')")
        } else {
            format!("SELECT docshard.split_find('{ns}', '{{\"k\": {k}}}')")
        };
    }
    format!(
        "SELECT docshard.merge_chunks('{ns}', json_build_array(a.min, b.max)) FROM docshard.chunks a \
         JOIN docshard.chunks b ON b.namespace = a.namespace AND b.min_key = a.max_key AND b.shard = a.shard \
         WHERE a.namespace = '{ns}' ORDER BY a.min_key OFFSET {} LIMIT 1",
        k % 3
    )
}

/// SQLSTATEs of what MongoDB's users would call a refusal: a chunk that is split there already, or cannot be.
fn is_refusal(code: &str) -> bool {
    matches!(code, "22023" | "55000" | "55006" | "54000")
}

fn said(error: &postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db| format!("{}: {}", db.code().code(), db.message()))
}

fn connect(port: u16, application: &str) -> Result<Client, postgres::Error> {
    let mut config = postgres::Config::new();
    config.host("127.0.0.1").port(port).user("postgres").dbname("postgres").application_name(application);
    config.connect_timeout(Duration::from_secs(5)).options("-c statement_timeout=60s").connect(NoTls)
}
