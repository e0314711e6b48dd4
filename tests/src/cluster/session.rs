//! Connections to a server, and PostgreSQL's programs that connect to it.

use super::node::Node;
use crate::process::{children, run, signal, signal_all};
use postgres::error::SqlState;
use postgres::types::FromSqlOwned;
use postgres::{Client, NoTls};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

/// statement_timeout of the tests' sessions, in seconds.
const LIMIT_S: u32 = 120;

/// A program that runs beside the test. It is killed when this is dropped.
#[derive(Debug)]
pub struct Started(Child);

impl Started {
    /// Stops the program with SIGSTOP.
    pub fn freeze(&self) {
        signal(self.0.id(), "STOP");
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        signal_all(&children(self.0.id()), "KILL");
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Node {
    /// A connection URL for the superuser; by the Unix socket if the server requires TLS.
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map_or_else(String::new, |password| format!(":{password}"));
        let socket = self.data.parent().and_then(Path::parent).expect("it is in the cluster's folder");
        let host = match self.authority {
            None => "127.0.0.1".to_owned(),
            Some(_) => socket.to_str().expect("a path in UTF-8").replace('/', "%2F"),
        };
        format!("postgresql://postgres{password}@{host}:{}/postgres", self.port)
    }

    /// A new connection as superuser.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn client(&self) -> Client {
        self.try_client().unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// A new connection as superuser.
    pub fn try_client(&self) -> Result<Client, postgres::Error> {
        Client::connect(&self.limited_url("docshard-tests"), NoTls)
    }

    /// Runs a statement this number of times, in a session and a thread of its own. After a conflict (40001) it is run again.
    pub fn repeat(&self, sql: &'static str, times: usize) -> JoinHandle<()> {
        let mut client = self.client();
        thread::spawn(move || {
            for _ in 0..times {
                while let Err(error) = client.batch_execute(sql) {
                    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{sql}: {error:?}");
                }
            }
        })
    }

    /// A new connection as another role, to another database.
    pub fn try_client_as(&self, user: &str, database: &str) -> Result<Client, postgres::Error> {
        let mut config: postgres::Config = self.limited_url("docshard-tests").parse()?;
        config.user(user).dbname(database).connect(NoTls)
    }

    /// A new connection as another role, with a password.
    pub fn try_client_with(&self, user: &str, password: &str) -> Result<Client, postgres::Error> {
        let mut config: postgres::Config = self.limited_url("docshard-tests").parse()?;
        config.user(user).password(password).connect(NoTls)
    }

    /// The URL with a limit for each statement.
    pub(super) fn limited_url(&self, application: &str) -> String {
        let url = self.url();
        format!("{url}?connect_timeout=20&application_name={application}&options=-c%20statement_timeout%3D{LIMIT_S}s")
    }

    /// Runs a query in a new connection, and returns its only value.
    ///
    /// # Panics
    /// If it fails, or returns no row or another type.
    pub fn value<T: FromSqlOwned>(&self, sql: &str) -> T {
        self.client().query_one(sql, &[]).unwrap_or_else(|e| panic!("{}: {sql}: {e:?}", self.name)).get(0)
    }

    /// The role as which the router logs in to this shard.
    pub fn service_role(&self) -> String {
        self.value("SELECT role::regrole::text FROM docshard_data.service")
    }

    /// Lets superusers change docshard's own objects from now on. Any superuser can do the same, and damage the node.
    pub fn unguard(&self) {
        self.psql("ALTER EVENT TRIGGER docshard_check_changes DISABLE");
    }

    /// Runs SQL by psql, and returns its output: unaligned, tuples only.
    ///
    /// # Panics
    /// If a statement fails.
    pub fn psql(&self, sql: &str) -> String {
        let url = self.limited_url("psql");
        self.program("psql", &["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &url, "-c", sql])
    }

    /// Runs one of PostgreSQL's programs, or another one by its path, as the server's user. Its environment names this server.
    /// Returns its output.
    ///
    /// # Panics
    /// If the program fails.
    pub fn program(&self, name: &str, arguments: &[&str]) -> String {
        run(self.command(name, arguments))
    }

    /// Starts one of PostgreSQL's programs, which is killed when this is dropped.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_program(&self, name: &str, arguments: &[&str]) -> Started {
        let mut command = self.command(name, arguments);
        Started(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut program = self.installation.program(name);
        program.env("PGHOST", "127.0.0.1").env("PGPORT", self.port.to_string());
        program.env("PGUSER", "postgres").env("PGDATABASE", "postgres").args(arguments);
        program.envs(self.password.as_ref().map(|password| ("PGPASSWORD", password)));
        if let Some(root) = &self.authority {
            program.env("PGSSLMODE", "verify-full").env("PGSSLROOTCERT", root);
        }
        program
    }

    /// A path for a file that the server and PostgreSQL's programs can write. The file is removed with the cluster.
    pub fn scratch_file(&self, name: &str) -> PathBuf {
        self.data.with_file_name(name)
    }

    /// Runs a script by psql in a database, with these options of psql's, and returns all output with errors and notices in
    /// their place. After an error it continues.
    ///
    /// # Panics
    /// If psql cannot run or connect.
    pub fn psql_script(&self, database: &str, options: &[&str], script: &str) -> String {
        let folder = self.data.parent().expect("it is in the node's folder");
        let (input, output) = (folder.join("script.sql"), folder.join("script.out"));
        fs::write(&input, script).expect("a script");
        let printed = File::create(&output).expect("a file for what psql prints");
        let mut psql = self.installation.program("psql");
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

    /// Dumps a database by pg_dump.
    ///
    /// # Panics
    /// If pg_dump fails.
    pub fn dump(&self, database: &str) -> String {
        let mut pg_dump = self.installation.program("pg_dump");
        pg_dump.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", database]);
        pg_dump.envs(self.password.as_ref().map(|password| ("PGPASSWORD", password)));
        run(pg_dump)
    }
}
