//! Clusters: a router and shards, each a PostgreSQL server of its own.
//!
//! Everything of a cluster is in one folder, which a watchdog process removes when the test's process is gone.

mod authority;
mod copies;
mod data_directory;
mod login;
mod node;
mod pg_upgrade;
mod session;

pub use self::authority::Authority;
pub use self::copies::{Backup, DiskClone, FrozenReceiver, Standby};
pub use self::node::Node;
pub use self::session::Started;

use self::data_directory::scratch_folder;
use crate::installation::Installation;
use crate::process::Watchdog;
use crate::release::Release;
use serde_json::Value;
use std::fs;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The time within which a server must start or stop. It usually takes far less, but machines may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A router and its shards. They are stopped, and their data deleted, when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The node to which clients connect.
    pub router: Node,
    /// The nodes `shard0`, `shard1` ….
    pub shards: Vec<Node>,
    folder: PathBuf,
    _watchdog: Watchdog,
}

impl Cluster {
    /// Starts a router and that many shards, creates the extension, and adds the shards under their names. The router's own
    /// database stays a shard too, named `local`.
    pub fn start(shards: usize) -> Self {
        Self::servers(shards).connect()
    }

    /// Like [`Cluster::start`], with these installations: the router's, and one for each shard.
    pub fn start_on(router: &'static Installation, shards: &[&'static Installation]) -> Self {
        Self::create(&[&[router], shards].concat(), &Release::present()).connect()
    }

    /// Creates the extension, and adds the shards.
    fn connect(self) -> Self {
        let mut client = self.router.client();
        client.batch_execute("CREATE EXTENSION docshard CASCADE").expect("the extension can be created");
        for shard in &self.shards {
            let options = serde_json::json!({"name": shard.name}).to_string();
            client
                .execute("SELECT docshard.add_shard($1::text, $2::text::json)", &[&shard.url(), &options])
                .unwrap_or_else(|e| panic!("add_shard of {}: {e:?}", shard.name));
        }
        self
    }

    /// For each shard, whether the router's keeper holds the router's lock there, or another session does; None if nobody does.
    pub fn lock_holders(&self) -> Vec<Option<bool>> {
        let holder = "SELECT a.application_name = 'docshard keeper' FROM pg_locks l JOIN pg_stat_activity a USING (pid)
           WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid::int8 & 65535 = x'D0CD'::int";
        let of = |node: &Node| node.client().query_opt(holder, &[]).expect("at most one").map(|row| row.get(0));
        self.shards.iter().map(of).collect()
    }

    /// Starts a router and two shards with a collection of the database `test` on all three nodes: keys `k` below 100 are on
    /// `local`, from 100 on `shard0`, from 200 on `shard1`. The balancer is off.
    pub fn spread(namespace: &str) -> Self {
        let cluster = Self::start(2);
        let mut client = cluster.router.client();
        let mut run = |sql: String| client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        run("SELECT docshard.stop_balancer()".to_owned());
        run("SELECT docshard.enable_sharding('test', 'local')".to_owned());
        run(format!("SELECT docshard.shard_collection('{namespace}', '{{\"k\": 1}}')"));
        for (k, shard) in [(100, "shard0"), (200, "shard1")] {
            run(format!("SELECT docshard.split_at('{namespace}', '{{\"k\": {k}}}')"));
            run(format!("SELECT docshard.move_chunk('{namespace}', '{{\"k\": {k}}}', '{shard}')"));
        }
        cluster
    }

    /// Moves chunks, each given by its namespace, a key and the shard that it goes to, and repeats a check until the last of them has
    /// been moved; the check runs at least once.
    ///
    /// # Panics
    /// If a move fails, or the check panics.
    pub fn while_chunks_move(&self, moves: &[(&str, Value, &str)], mut check: impl FnMut()) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut mover = self.router.client();
                for (namespace, key, shard) in moves {
                    let sql = format!("SELECT docshard.move_chunk('{namespace}', '{key}', '{shard}')");
                    mover.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
                }
                done.store(true, Ordering::Relaxed);
            });
            check();
            while !done.load(Ordering::Relaxed) {
                check();
            }
        });
    }

    /// Like [`Cluster::start`], with servers that require passwords: see [`Node::require_passwords`].
    pub fn with_passwords(shards: usize) -> Self {
        let cluster = Self::servers_with_passwords(shards);
        for shard in &cluster.shards {
            cluster.router.add_shard(shard);
        }
        cluster
    }

    /// Starts servers that require passwords, with the extension on the router. The shards are not added.
    pub fn servers_with_passwords(shards: usize) -> Self {
        let mut cluster = Self::servers(shards);
        for node in std::iter::once(&mut cluster.router).chain(&mut cluster.shards) {
            node.require_passwords();
        }
        cluster.router.psql("CREATE EXTENSION docshard CASCADE");
        cluster
    }

    /// Starts servers as docs/operations.md recommends: passwords for all, TLS for TCP, with the extension on the router. The
    /// shards are not added.
    pub fn secure_servers(shards: usize) -> Self {
        let mut cluster = Self::servers(shards);
        let authority = Authority::new(&cluster.folder);
        for node in std::iter::once(&mut cluster.router).chain(&mut cluster.shards) {
            node.require_tls(&authority);
        }
        cluster.router.psql("CREATE EXTENSION docshard CASCADE");
        cluster
    }

    /// Starts the servers, with docshard preloaded but not created.
    pub fn servers(shards: usize) -> Self {
        Self::servers_of_release(shards, &Release::present())
    }

    /// Like [`Cluster::servers`], with the library of an earlier release.
    pub fn servers_of_release(shards: usize, release: &Release) -> Self {
        Self::create(&vec![Installation::private(); shards + 1], release)
    }

    /// Starts the servers, the router first, each from an installation of its own.
    fn create(installations: &[&'static Installation], release: &Release) -> Self {
        let folder = scratch_folder();
        let watchdog = Watchdog::new(&folder);
        let names = std::iter::once("router".to_owned()).chain((0..).map(|i| format!("shard{i}")));
        let mut nodes = thread::scope(|scope| {
            let folder = &folder;
            let create = |(name, &installation)| scope.spawn(move || Node::create(folder, name, installation, release));
            let starting: Vec<_> = names.zip(installations).map(create).collect();
            let nodes = starting.into_iter().map(|node| node.join().unwrap_or_else(|panic| resume_unwind(panic)));
            nodes.collect::<Vec<_>>().into_iter()
        });
        let router = nodes.next().expect("there is a router");
        Self { router, shards: nodes.collect(), folder, _watchdog: watchdog }
    }

    /// Starts another server, which is no shard yet, as the last one of `shards`.
    pub fn add_server(&mut self, installation: &'static Installation) {
        let name = format!("shard{}", self.shards.len());
        self.shards.push(Node::create(&self.folder, name, installation, &Release::present()));
    }

    /// The node of that name.
    ///
    /// # Panics
    /// If there is none.
    pub fn node(&mut self, name: &str) -> &mut Node {
        std::iter::once(&mut self.router)
            .chain(&mut self.shards)
            .find(|node| node.name == name)
            .unwrap_or_else(|| panic!("no node {name}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            for node in std::iter::once(&self.router).chain(&self.shards) {
                eprintln!("---- the end of the log of {}:\n{}", node.name, node.log_tail(30));
            }
        }
        for node in std::iter::once(&mut self.router).chain(&mut self.shards) {
            node.stop_immediately();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
