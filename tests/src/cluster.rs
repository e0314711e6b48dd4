//! Servers, and clusters of them.

use crate::authority::Authority;
use crate::process::{self, Watchdog, hand_over, pg_program, run};
use crate::release::Release;
use crate::wait_until;
use postgres::types::FromSqlOwned;
use postgres::{Client, NoTls};
use std::fs::Permissions;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to start or to stop: far longer than it does, as machines may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many seconds a statement may take before it fails.
const LIMIT_S: u32 = 120;

/// A router and its shards. Dropping it stops them and deletes their data.
#[derive(Debug)]
pub struct Cluster {
    /// where clients connect
    pub router: Node,
    /// `shard0`, `shard1` …
    pub shards: Vec<Node>,
    folder: PathBuf,
    _watchdog: Watchdog,
}

impl Cluster {
    /// Starts a router and that many shards, creates the extension, and adds the shards under their names.
    ///
    /// The router's own database stays a shard too, named `local`.
    pub fn start(shards: usize) -> Self {
        let cluster = Self::servers(shards);
        let mut client = cluster.router.client();
        client.batch_execute("CREATE EXTENSION docshard CASCADE").expect("the extension can be created");
        for shard in &cluster.shards {
            let options = serde_json::json!({"name": shard.name}).to_string();
            client
                .execute("SELECT docshard.add_shard($1::text, $2::text::json)", &[&shard.url(), &options])
                .unwrap_or_else(|e| panic!("add_shard of {}: {e:?}", shard.name));
        }
        cluster
    }

    /// Starts a router and two shards, with a collection of the database `test` on all three nodes: keys `k` below 100 are on
    /// `local`, from 100 on `shard0`, from 200 on `shard1`. Nothing moves by itself.
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

    /// As [`Cluster::start`], with servers that ask everybody for a password: see [`Node::ask_for_passwords`].
    pub fn with_passwords(shards: usize) -> Self {
        let cluster = Self::servers_with_passwords(shards);
        for shard in &cluster.shards {
            cluster.router.add_shard(shard);
        }
        cluster
    }

    /// Starts servers that ask everybody for a password, with the extension at the router. The shards are not added.
    pub fn servers_with_passwords(shards: usize) -> Self {
        let mut cluster = Self::servers(shards);
        for node in std::iter::once(&mut cluster.router).chain(&mut cluster.shards) {
            node.ask_for_passwords();
        }
        cluster.router.psql("CREATE EXTENSION docshard CASCADE");
        cluster
    }

    /// Servers as docs/operations.md says: over TCP only with TLS, everybody with a password, the extension at the router. The shards
    /// are not added.
    pub fn secure_servers(shards: usize) -> Self {
        let mut cluster = Self::servers(shards);
        let authority = Authority::new(&cluster.folder);
        for node in std::iter::once(&mut cluster.router).chain(&mut cluster.shards) {
            node.require_tls(&authority);
        }
        cluster.router.psql("CREATE EXTENSION docshard CASCADE");
        cluster
    }

    /// Starts the servers only, with docshard preloaded but not created.
    pub fn servers(shards: usize) -> Self {
        Self::servers_of(shards, &Release::present())
    }

    /// As [`Cluster::servers`], with the library of a release.
    pub fn servers_of(shards: usize, release: &Release) -> Self {
        let folder = scratch_folder();
        let watchdog = Watchdog::new(&folder);
        let names = std::iter::once("router".to_owned()).chain((0..shards).map(|i| format!("shard{i}")));
        let mut nodes = thread::scope(|scope| {
            let starting: Vec<_> = names.map(|name| scope.spawn(|| Node::create(&folder, name, release))).collect();
            let nodes = starting.into_iter().map(|node| node.join().unwrap_or_else(|panic| resume_unwind(panic)));
            nodes.collect::<Vec<_>>().into_iter()
        });
        let router = nodes.next().expect("there is a router");
        Self { router, shards: nodes.collect(), folder, _watchdog: watchdog }
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
        // What the servers said helps to understand a failure.
        if thread::panicking() {
            for node in std::iter::once(&self.router).chain(&self.shards) {
                eprintln!("---- the end of the log of {}:\n{}", node.name, node.log_tail(30));
            }
        }
        for node in std::iter::once(&mut self.router).chain(&mut self.shards) {
            node.stop_now();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// One PostgreSQL server.
#[derive(Debug)]
pub struct Node {
    /// `router`, `shard0` …
    pub name: String,
    /// on which it listens, at 127.0.0.1
    pub port: u16,
    /// the superuser's, where the server asks for one
    password: Option<String>,
    /// the certificate of who signed the server's own, where nobody connects over TCP without TLS
    pub(crate) authority: Option<PathBuf>,
    data: PathBuf,
    process: Option<Child>,
}

impl Node {
    /// Makes a server and starts it on a free port.
    fn create(folder: &Path, name: String, release: &Release) -> Self {
        let home = folder.join(&name);
        fs::create_dir(&home).expect("a new folder");
        hand_over(&home);
        let data = home.join("data");
        init(&data);
        let mut node = Self { name, port: 0, password: None, authority: None, data, process: None };
        node.configure(&format!("unix_socket_directories = '{}'", folder.display()));
        node.use_library(release);
        // Whether a port is free is known only by taking it.
        for _ in 0..8 {
            node.port = random_port();
            if node.try_start() {
                return node;
            }
            let log = node.log_tail(20);
            assert!(log.contains("Address already in use"), "{} does not start:\n{log}", node.name);
        }
        panic!("no free port for {}", node.name);
    }

    /// Makes a standby of it and starts that: from then on no commit here is acknowledged before it is there too.
    ///
    /// # Panics
    /// If that fails.
    pub fn standby(&self) -> Standby {
        let mut node = self.copy("standby", &["--write-recovery-conf"]);
        for _ in 0..8 {
            node.port = random_port();
            if node.try_start() {
                break;
            }
        }
        assert!(node.process.is_some(), "the standby does not start:\n{}", node.log_tail(20));
        self.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.psql("SELECT pg_reload_conf()");
        wait_until("the standby is synchronous", PATIENCE, || {
            self.value::<i64>("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
        });
        Standby(node)
    }

    /// As [`Node::standby`], but nobody waits for it.
    ///
    /// # Panics
    /// If that fails.
    pub fn asynchronous_standby(&self) -> Standby {
        let standby = self.standby();
        self.psql("ALTER SYSTEM RESET synchronous_standby_names");
        self.psql("SELECT pg_reload_conf()");
        standby
    }

    /// A copy of its data as it is now, to be restored later.
    ///
    /// # Panics
    /// If that fails.
    pub fn backup(&self) -> Backup {
        Backup(self.copy("backup", &[]))
    }

    /// A server that runs beside it from a copy of its files, as a cloned disk does: nothing tells the two apart but time.
    ///
    /// # Panics
    /// If that fails.
    pub fn twin(&self) -> Twin {
        let mut node = self.copy("twin", &[]);
        for _ in 0..8 {
            node.port = random_port();
            if node.try_start() {
                break;
            }
        }
        assert!(node.process.is_some(), "the twin does not start:\n{}", node.log_tail(20));
        Twin(node)
    }

    /// A copy of its data directory beside its own.
    fn copy(&self, what: &str, options: &[&str]) -> Self {
        let name = format!("{}-{what}", self.name);
        let folder = self.data.parent().and_then(Path::parent).expect("it is in the cluster's folder");
        let home = (0..)
            .map(|number| folder.join(format!("{name}{number}")))
            .find(|home| !home.exists())
            .expect("there is no end of numbers");
        fs::create_dir(&home).expect("a new folder");
        hand_over(&home);
        let data = home.join("data");
        let path = data.to_str().expect("a path in UTF-8");
        let mut arguments = vec!["-D", path, "--checkpoint=fast", "--no-sync"];
        arguments.extend(options);
        self.program("pg_basebackup", &arguments);
        // What it tells processes to do is not for the copy's.
        let _ = fs::remove_dir_all(data.join("docshard_fault_points"));
        Self {
            name,
            port: self.port,
            password: self.password.clone(),
            authority: self.authority.clone(),
            data,
            process: None,
        }
    }

    /// Lets a standby take its place, under its address, as behind a virtual one: all its sessions are lost.
    ///
    /// # Panics
    /// If that fails.
    pub fn fail_over(&mut self, standby: Standby) {
        self.crash();
        let mut standby = standby;
        standby.0.psql("SELECT pg_promote()");
        standby.0.stop();
        let old = std::mem::replace(&mut self.data, standby.0.data.clone());
        let _ = fs::remove_dir_all(old);
        self.start();
    }

    /// It is lost for good, and a standby takes over under an address of its own.
    ///
    /// # Panics
    /// If that fails.
    pub fn fail_over_to(&mut self, mut standby: Standby) {
        self.crash();
        standby.0.psql("SELECT pg_promote()");
        let _ = fs::remove_dir_all(std::mem::replace(&mut self.data, standby.0.data.clone()));
        self.port = standby.0.port;
        self.process = standby.0.process.take();
    }

    /// Does without a standby again.
    ///
    /// # Panics
    /// If that fails.
    pub fn dismiss(&self, standby: Standby) {
        self.psql("ALTER SYSTEM RESET synchronous_standby_names");
        self.psql("SELECT pg_reload_conf()");
        drop(standby);
    }

    /// Puts an old copy of its data in the place of its present data.
    ///
    /// # Panics
    /// If that fails.
    pub fn restore(&mut self, backup: Backup) {
        self.stop();
        self.data = backup.0.data.clone();
        self.start();
    }

    /// From now on it asks everybody for a password (SCRAM-SHA-256), and writes every statement with its parameters to its log,
    /// and every error with its statement. The superuser gets a password, which is used by whatever connects as superuser here.
    ///
    /// # Panics
    /// If that fails.
    pub fn ask_for_passwords(&mut self) {
        let password = format!("superuser-{:016x}", RandomState::new().hash_one(&self.data));
        self.psql(&format!("ALTER ROLE postgres PASSWORD '{password}'"));
        for (setting, value) in TALKATIVE {
            self.psql(&format!("ALTER SYSTEM SET {setting} = '{value}'"));
        }
        let everybody = "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n";
        fs::write(self.data.join("pg_hba.conf"), everybody).expect("pg_hba.conf can be written");
        self.psql("SELECT pg_reload_conf()");
        wait_until("passwords are asked for", PATIENCE, || self.try_client_with("postgres", "no password").is_err());
        self.password = Some(password);
        wait_until("statements are logged", PATIENCE, || self.psql("SHOW log_statement").trim() == "all");
    }

    /// The superuser's password, where the server asks for one.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Adds a server that asks for passwords to this router's cluster, under its name, with its superuser's login, which is
    /// kept out of the logs as docs/operations.md says.
    ///
    /// # Panics
    /// If that fails.
    pub fn add_shard(&self, shard: &Node) {
        let conn = format!("host=127.0.0.1 port={} dbname=postgres", shard.port);
        let options =
            serde_json::json!({"name": shard.name, "user": "postgres", "password": shard.password}).to_string();
        self.silent_client()
            .execute("SELECT docshard.add_shard($1::text, $2::text::json)", &[&conn, &options])
            .unwrap_or_else(|e| panic!("add_shard of {}: {e:?}", shard.name));
    }

    /// How to connect to it, as superuser. Where TLS is asked for, that is by the socket, as an administrator does on the machine.
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map_or_else(String::new, |password| format!(":{password}"));
        let socket = self.data.parent().and_then(Path::parent).expect("it is in the cluster's folder");
        let host = match self.authority {
            None => "127.0.0.1".to_owned(),
            Some(_) => socket.to_str().expect("a path in UTF-8").replace('/', "%2F"),
        };
        format!("postgresql://postgres{password}@{host}:{}/postgres", self.port)
    }

    /// Makes it ask everybody for a password, and for TLS where the client is not on the machine, as docs/operations.md says.
    pub(crate) fn require_tls(&mut self, authority: &Authority) {
        let password = format!("superuser-{:016x}", RandomState::new().hash_one(&self.data));
        self.psql(&format!("ALTER ROLE postgres PASSWORD '{password}'"));
        for (from, to) in [(&authority.certificate, "server.crt"), (&authority.key, "server.key")] {
            let to = self.data.join(to);
            fs::copy(from, &to).expect("a copy");
            fs::set_permissions(&to, Permissions::from_mode(0o600)).expect("its permissions");
            hand_over(&to);
        }
        let everybody = "local all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\n\
                         hostssl replication all 127.0.0.1/32 scram-sha-256\n";
        fs::write(self.data.join("pg_hba.conf"), everybody).expect("pg_hba.conf can be written");
        self.psql("ALTER SYSTEM SET ssl = on");
        self.psql("SELECT pg_reload_conf()");
        wait_until("passwords are asked for", PATIENCE, || self.try_client().is_err());
        (self.password, self.authority) = (Some(password), Some(authority.root.clone()));
    }

    /// Its address in a libpq connection string, with what a client needs to be sure of it.
    ///
    /// # Panics
    /// If it does not ask for TLS.
    pub fn verified_address(&self) -> String {
        let root = self.authority.as_ref().expect("it has a certificate").display();
        format!("host=127.0.0.1 port={} sslmode=verify-full sslrootcert={root}", self.port)
    }

    /// What psql prints, unaligned, of statements of an application: a role that is no superuser, with a password, over TCP and TLS. An
    /// error is printed, too.
    ///
    /// # Panics
    /// If psql cannot be run.
    pub fn as_application(&self, role: &str, password: &str, sql: &str) -> String {
        let mut psql = pg_program("psql");
        let address = format!("{} dbname=postgres user={role}", self.verified_address());
        psql.env("PGPASSWORD", password).args(["-X", "-q", "-A", "-t", "-d", &address, "-c", sql]);
        let output = psql.output().expect("psql runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
            .trim()
            .to_owned()
    }

    /// A new connection, as superuser.
    ///
    /// # Panics
    /// If that fails.
    pub fn client(&self) -> Client {
        self.try_client().unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// A new connection, as superuser, whose statements are not logged: for those that contain passwords.
    ///
    /// # Panics
    /// If that fails.
    pub fn silent_client(&self) -> Client {
        let mut client = self.client();
        client.batch_execute(SILENT).expect("settings of a superuser");
        client
    }

    /// A new connection, as superuser.
    pub fn try_client(&self) -> Result<Client, postgres::Error> {
        Client::connect(&self.limited_url("docshard-tests"), NoTls)
    }

    /// A new connection as somebody else, to another database.
    pub fn try_client_as(&self, user: &str, database: &str) -> Result<Client, postgres::Error> {
        let mut config: postgres::Config = self.limited_url("docshard-tests").parse()?;
        config.user(user).dbname(database).connect(NoTls)
    }

    /// A new connection as somebody else, with a password.
    pub fn try_client_with(&self, user: &str, password: &str) -> Result<Client, postgres::Error> {
        let mut config: postgres::Config = self.limited_url("docshard-tests").parse()?;
        config.user(user).password(password).connect(NoTls)
    }

    /// How the tests connect: no statement may hang for ever.
    fn limited_url(&self, application: &str) -> String {
        let url = self.url();
        format!("{url}?connect_timeout=20&application_name={application}&options=-c%20statement_timeout%3D{LIMIT_S}s")
    }

    /// Runs a query in a new connection, and returns its only value.
    ///
    /// # Panics
    /// If it fails, or returns something else.
    pub fn value<T: FromSqlOwned>(&self, sql: &str) -> T {
        self.client().query_one(sql, &[]).unwrap_or_else(|e| panic!("{}: {sql}: {e:?}", self.name)).get(0)
    }

    /// The role as which the router logs in at this shard, and to which prepared transactions belong here.
    pub fn service_role(&self) -> String {
        self.value("SELECT role::regrole::text FROM docshard_data.service")
    }

    /// Runs SQL by psql, and returns what it prints: unaligned, tuples only.
    ///
    /// # Panics
    /// If it fails.
    pub fn psql(&self, sql: &str) -> String {
        let url = self.limited_url("psql");
        self.program("psql", &["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &url, "-c", sql])
    }

    /// Runs one of PostgreSQL's programs, which connects to this server by default, or another one by its path, as the server's
    /// user, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn program(&self, name: &str, arguments: &[&str]) -> String {
        let mut program = pg_program(name);
        program.env("PGHOST", "127.0.0.1").env("PGPORT", self.port.to_string());
        program.env("PGUSER", "postgres").env("PGDATABASE", "postgres").args(arguments);
        program.envs(self.password.as_ref().map(|password| ("PGPASSWORD", password)));
        if let Some(root) = &self.authority {
            program.env("PGSSLMODE", "verify-full").env("PGSSLROOTCERT", root);
        }
        run(program)
    }

    /// A path for a file that the server and PostgreSQL's programs can write; it is gone with the cluster.
    pub fn scratch_file(&self, name: &str) -> PathBuf {
        self.data.with_file_name(name)
    }

    /// Runs a script by psql in a database, as a person would who goes on after an error, and returns all that it prints,
    /// errors and notices in their place. `options` are psql's.
    ///
    /// # Panics
    /// If psql cannot be run, or the database not be reached.
    pub fn psql_script(&self, database: &str, options: &[&str], script: &str) -> String {
        let folder = self.data.parent().expect("it is in the node's folder");
        let (input, output) = (folder.join("script.sql"), folder.join("script.out"));
        fs::write(&input, script).expect("a script");
        let printed = File::create(&output).expect("a file for what psql prints");
        let mut psql = pg_program("psql");
        psql.args(["-X", "-q", "-P", "pager=off"]).args(options);
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-d", database]);
        psql.envs(self.password.as_ref().map(|password| ("PGPASSWORD", password)));
        psql.stdin(File::open(&input).expect("a script"));
        psql.stdout(printed.try_clone().expect("a file")).stderr(printed);
        let status = psql.status().expect("psql runs");
        let text = fs::read_to_string(&output).expect("psql prints UTF-8");
        assert!(status.success(), "psql: {status}\n{text}");
        text
    }

    /// A database as SQL, by pg_dump.
    ///
    /// # Panics
    /// If that fails.
    pub fn dump(&self, database: &str) -> String {
        let mut pg_dump = pg_program("pg_dump");
        pg_dump.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", database]);
        run(pg_dump)
    }

    /// Adds lines to its configuration, for the next start.
    pub fn configure(&self, lines: &str) {
        let path = self.data.join("postgresql.conf");
        let configuration = fs::read_to_string(&path).expect("a configuration");
        fs::write(&path, format!("{configuration}{lines}\n")).expect("a configuration");
    }

    /// From its next start it has the library of a release.
    pub fn use_library(&self, release: &Release) {
        let path = release.folder.as_ref().map_or_else(String::new, |folder| format!("$libdir/{folder}:")) + "$libdir";
        self.configure(&format!("dynamic_library_path = '{path}'"));
    }

    /// All of its log.
    ///
    /// # Panics
    /// If there is none.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).expect("a log")).into_owned()
    }

    /// The end of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The process id of its postmaster, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Starts it again, on the same port.
    ///
    /// # Panics
    /// If it doesn't come up.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        // Backends of a killed postmaster take a moment to notice, and until then keep the shared memory in use.
        let began = Instant::now();
        while !self.try_start() {
            assert!(began.elapsed() < PATIENCE, "{} does not start:\n{}", self.name, self.log_tail(20));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops it in an orderly way, ending its sessions.
    ///
    /// # Panics
    /// If it doesn't stop.
    pub fn stop(&mut self) {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        process::signal(process.id(), "INT");
        wait_until(&format!("{} stops", self.name), PATIENCE, || !matches!(process.try_wait(), Ok(None)));
    }

    /// Stops it without writing anything; it recovers when it starts again.
    pub fn stop_at_once(&mut self) {
        self.stop_now();
    }

    /// Kills its postmaster. Its sessions notice, and end; until then they may still do something.
    ///
    /// # Panics
    /// If it doesn't run.
    pub fn kill9(&mut self) {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        process.kill().expect("a process of ours can be killed");
        process.wait().expect("a process of ours can be waited for");
    }

    /// Kills all of its processes at once, as a crash of the machine would: nobody gets to do anything any more.
    ///
    /// # Panics
    /// If it doesn't run.
    pub fn crash(&mut self) {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        // None must see another one die.
        process::signal(process.id(), "STOP");
        let children = process::children(process.id());
        process::signal_all(&children, "STOP");
        process::signal_all(&children, "KILL");
        process.kill().expect("a process of ours can be killed");
        process.wait().expect("a process of ours can be waited for");
    }

    /// Restarts it with another system identifier, as pg_upgrade does.
    ///
    /// # Panics
    /// If that fails.
    pub fn renew(&mut self) {
        self.stop();
        renew_identifier(&self.data);
        self.start();
    }

    /// Stops all of its processes where they are, as a machine that hangs does; [`Node::go_on`] lets them go on.
    ///
    /// # Panics
    /// If it doesn't run.
    pub fn hang(&self) {
        let pid = self.pid().unwrap_or_else(|| panic!("{} does not run", self.name));
        process::signal(pid, "STOP");
        process::signal_all(&process::children(pid), "STOP");
    }

    /// Lets its processes go on.
    ///
    /// # Panics
    /// If it doesn't run.
    pub fn go_on(&self) {
        let pid = self.pid().unwrap_or_else(|| panic!("{} does not run", self.name));
        process::signal_all(&process::children(pid), "CONT");
        process::signal(pid, "CONT");
    }

    /// Stops it without writing anything, if it runs.
    fn stop_now(&mut self) {
        if let Some(mut process) = self.process.take() {
            process::signal(process.id(), "QUIT");
            // It may have been stopped.
            process::signal_all(&process::children(process.id()), "CONT");
            process::signal(process.id(), "CONT");
            let began = Instant::now();
            while matches!(process.try_wait(), Ok(None)) {
                if began.elapsed() > Duration::from_secs(10) {
                    let _ = process.kill();
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Starts the server; false if it ended instead of becoming ready.
    fn try_start(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.log_path()).expect("a log file");
        let mut process = pg_program("postgres")
            .arg("-D")
            .arg(&self.data)
            .arg("-p")
            .arg(self.port.to_string())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            // not to be hit by an interrupt at the terminal
            .process_group(0)
            .spawn()
            .expect("PostgreSQL starts");
        let began = Instant::now();
        loop {
            if process.try_wait().expect("a process of ours can be waited for").is_some() {
                return false;
            }
            if self.is_ready(process.id()) {
                self.process = Some(process);
                return true;
            }
            if began.elapsed() > PATIENCE {
                let _ = process.kill();
                let _ = process.wait();
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The postmaster writes its state into the eighth line of its pid file.
    fn is_ready(&self, pid: u32) -> bool {
        let Ok(file) = fs::read_to_string(self.data.join("postmaster.pid")) else { return false };
        let mut lines = file.lines();
        lines.next() == Some(&pid.to_string()) && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }

    /// Its data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    fn log_path(&self) -> PathBuf {
        self.data.with_file_name("log")
    }
}

/// A standby of a server; stopped when it is dropped.
#[derive(Debug)]
pub struct Standby(Node);

impl Standby {
    /// It gets nothing any more of what its server does.
    ///
    /// # Panics
    /// If that fails.
    pub fn cut_off(&self) {
        self.0.psql("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'");
        self.0.psql("SELECT pg_reload_conf()");
        wait_until("the standby gets nothing", PATIENCE, || {
            self.0.value::<i64>("SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'") == 0
        });
    }

    /// On which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Makes a primary of it, where it is.
    ///
    /// # Panics
    /// If that fails.
    pub fn promote(&self) {
        self.0.psql("SELECT pg_promote()");
    }

    /// Ends the session of the router's keeper, which connects again.
    ///
    /// # Panics
    /// If that fails.
    pub fn forget_keeper(&self) {
        self.0
            .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'docshard keeper'");
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.0.stop_now();
    }
}

/// A server that runs from a copy of another one's files; stopped when it is dropped.
#[derive(Debug)]
pub struct Twin(pub Node);

impl Drop for Twin {
    fn drop(&mut self) {
        self.0.stop_now();
    }
}

/// A copy of a server's data.
#[derive(Debug)]
pub struct Backup(Node);

/// Below the range that the system hands out for outgoing connections: a server that was stopped finds its port free.
fn random_port() -> u16 {
    let random = RandomState::new().hash_one(std::process::id());
    15_000 + u16::try_from(random % 15_000).expect("it is small")
}

/// A new folder that servers can use, and whose path is short enough for a socket's.
fn scratch_folder() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("docshard-tests.{}.{number}", std::process::id()));
    fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    hand_over(&folder);
    folder
}

/// Makes a data directory: a copy of one that initdb has made, which takes a fifth of the time; but for its system identifier,
/// by which docshard tells whether two names lead to the same database.
fn init(data: &Path) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(template()).arg(data);
    run(copy);
    renew_identifier(data);
}

/// Gives a server that does not run another system identifier.
fn renew_identifier(data: &Path) {
    // The file begins with it, and ends with a checksum that pg_resetwal makes anew, together with WAL of that identifier.
    let mut control = File::options().write(true).open(data.join("global/pg_control")).expect("initdb made it");
    let identifier = RandomState::new().hash_one(data).to_ne_bytes();
    control.write_all(&identifier).expect("it can be written");
    let mut reset = pg_program("pg_resetwal");
    reset.args(["--force", "--pgdata"]).arg(data);
    run(reset);
}

/// A data directory of a server that was never started. It goes with this process.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<(PathBuf, Watchdog)> = OnceLock::new();
    let (data, _) = TEMPLATE.get_or_init(|| {
        let folder = scratch_folder();
        let (watchdog, data) = (Watchdog::new(&folder), folder.join("data"));
        let mut initdb = pg_program("initdb");
        let arguments = ["-U", "postgres", "-A", "trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-D"];
        initdb.args(arguments).arg(&data);
        run(initdb);
        let path = data.join("postgresql.conf");
        let configuration = fs::read_to_string(&path).expect("initdb wrote it");
        fs::write(&path, configuration + CONFIGURATION).expect("a configuration");
        // Each copy gets its own.
        for segment in fs::read_dir(data.join("pg_wal")).expect("there is one").flatten() {
            if segment.file_type().is_ok_and(|kind| kind.is_file()) {
                fs::remove_file(segment.path()).expect("it can be removed");
            }
        }
        (data, watchdog)
    });
    data
}

/// Settings of a server that keeps nothing out of its log.
const TALKATIVE: &[(&str, &str)] = &[
    ("log_statement", "all"),
    ("log_min_messages", "debug1"),
    ("log_min_error_statement", "debug5"),
    ("log_parameter_max_length", "-1"),
    ("log_parameter_max_length_on_error", "-1"),
    ("log_connections", "on"),
];

/// What an administrator says before a statement that contains a password.
const SILENT: &str =
    "SET log_statement = 'none'; SET log_min_error_statement = 'panic'; SET log_parameter_max_length_on_error = 0";

/// Tests need no protection from a crash of the machine, and share its memory.
const CONFIGURATION: &str = "
listen_addresses = '127.0.0.1'
shared_preload_libraries = 'docshard'
fsync = off
shared_buffers = 32MB
log_line_prefix = '%m [%p] %q%a '
timezone = 'UTC'
docshard.max_write_stall = '1min'
";
