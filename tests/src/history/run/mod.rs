//! A run: a cluster behind proxies, clients that read and write, chunks that are split, merged and moved, and accidents.
//!
//! [`Run::inject`] injects an accident at a step of a move; [`Run::check_at_rest`] stops everything and checks the result.

mod accidents;
mod at_rest;
mod layouts;
mod moves;
mod shuffler;

use self::shuffler::Shuffler;
use super::check::{Violation, check};
use super::nemesis::Injection;
use super::workload::{NAMESPACES, PATTERNS, Size, Workload};
use crate::cluster::{Cluster, Node};
use crate::proxy::{Conditions, Proxy};
use fastrand::Rng;
use postgres::{Client, NoTls};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Limit for everything that must finish without help. It takes far less, but machines may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// The application name of sessions that call `move_chunk`.
const MOVER: &str = "docshard-mover";

/// A cluster under test.
pub struct Run {
    /// The clients, and what they recorded.
    pub workload: Arc<Workload>,
    /// How often each accident was injected at each step.
    pub injected: BTreeMap<Injection, u32>,
    cluster: Cluster,
    /// One proxy before each shard, by its name; the shards reach the router's database through `local`.
    proxies: BTreeMap<String, Proxy>,
    /// The proxy through which the clients reach the router.
    client_proxy: Proxy,
    rng: Rng,
    clients: Vec<JoinHandle<()>>,
    shuffler: Arc<Shuffler>,
    shuffling: Option<JoinHandle<()>>,
    began: Instant,
    log: String,
}

impl Run {
    /// Starts a cluster of a router and three shards, and clients.
    ///
    /// # Panics
    /// If a server does not start.
    pub fn start(seed: u64, size: Size) -> Self {
        let began = Instant::now();
        let cluster = Cluster::servers(3);
        let mut proxies: BTreeMap<String, Proxy> =
            cluster.shards.iter().map(|shard| (shard.name.clone(), Proxy::before(shard.port))).collect();
        proxies.insert("local".to_owned(), Proxy::before(cluster.router.port));
        let client_proxy = Proxy::before(cluster.router.port);
        let mut client = cluster.router.client();
        let run = |client: &mut Client, sql: &str| client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        run(&mut client, "CREATE EXTENSION docshard CASCADE");
        run(&mut client, "SELECT docshard.stop_balancer()");
        for shard in &cluster.shards {
            let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", proxies[&shard.name].port);
            run(&mut client, &format!("SELECT docshard.add_shard('{url}', '{{\"name\": \"{}\"}}')", shard.name));
        }
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
        workload.insert_fillers(&mut client);
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
        let clients = workload.start(client_proxy.port);
        Self {
            workload,
            injected: BTreeMap::new(),
            cluster,
            proxies,
            client_proxy,
            rng: Rng::with_seed(seed ^ 0x5eed),
            clients,
            shuffler,
            shuffling,
            began,
            log: String::new(),
        }
    }

    /// What has been done so far, one line each.
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

    /// A new session on the router that does not pass through a proxy.
    fn session(&self) -> Option<Client> {
        connect(self.cluster.router.port, "docshard-nemesis").ok()
    }

    /// Retries until the router accepts a session.
    fn await_session(&self) -> Client {
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

    /// Checks the history so far, while the clients go on.
    pub fn check_now(&self) -> Vec<Violation> {
        check(&self.workload.recorder.history())
    }

    /// Switches a mechanism off on all nodes; see [`crate::faults`].
    ///
    /// # Panics
    /// If there is no such mechanism.
    pub fn switch_off(&self, mechanism: &str) {
        for node in std::iter::once(&self.cluster.router).chain(&self.cluster.shards) {
            node.switch_off(mechanism);
        }
    }

    /// Text for a failed test: what was done, the violations, and the history that led to them.
    pub fn report(&self, violations: &[Violation]) -> String {
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
        // Threads that wait for a server get an error.
        for proxy in self.proxies.values().chain([&self.client_proxy]) {
            proxy.set(Conditions { refuse: true, ..Conditions::default() });
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

fn describe(error: &postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db| format!("{}: {}", db.code().code(), db.message()))
}

fn connect(port: u16, application: &str) -> Result<Client, postgres::Error> {
    let mut config = postgres::Config::new();
    config.host("127.0.0.1").port(port).user("postgres").dbname("postgres").application_name(application);
    config.connect_timeout(Duration::from_secs(5)).options("-c statement_timeout=60s").connect(NoTls)
}
