//! Servers that require passwords and TLS.

use super::PATIENCE;
use super::authority::Authority;
use super::node::Node;
use crate::process::hand_over;
use crate::wait_until;
use postgres::Client;
use std::fs::{self, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::PermissionsExt;

/// Settings of a server that logs everything it can.
const LOG_EVERYTHING: &[(&str, &str)] = &[
    ("log_statement", "all"),
    ("log_min_messages", "debug1"),
    ("log_min_error_statement", "debug5"),
    ("log_parameter_max_length", "-1"),
    ("log_parameter_max_length_on_error", "-1"),
    ("log_connections", "on"),
];

/// What an administrator runs before a statement that contains a password.
const LOG_NOTHING: &str =
    "SET log_statement = 'none'; SET log_min_error_statement = 'panic'; SET log_parameter_max_length_on_error = 0";

impl Node {
    /// Makes it require passwords (SCRAM-SHA-256), and log every statement with its parameters and every error with its
    /// statement. The superuser gets a password, which the functions here use.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn require_passwords(&mut self) {
        let password = format!("superuser-{:016x}", RandomState::new().hash_one(&self.data));
        self.psql(&format!("ALTER ROLE postgres PASSWORD '{password}'"));
        for (setting, value) in LOG_EVERYTHING {
            self.psql(&format!("ALTER SYSTEM SET {setting} = '{value}'"));
        }
        let everybody = "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n\
                         host replication all 127.0.0.1/32 scram-sha-256\n";
        fs::write(self.data.join("pg_hba.conf"), everybody).expect("pg_hba.conf can be written");
        self.psql("SELECT pg_reload_conf()");
        wait_until("passwords are required", PATIENCE, || self.try_client_with("postgres", "no password").is_err());
        self.password = Some(password);
        wait_until("statements are logged", PATIENCE, || self.psql("SHOW log_statement").trim() == "all");
    }

    /// The superuser's password, where the server requires one.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Adds a server that requires passwords to this router's cluster, by its superuser's login, which is kept out of the logs
    /// as docs/operations.md says.
    ///
    /// # Panics
    /// If add_shard fails.
    pub fn add_shard(&self, shard: &Node) {
        let conn = format!("host=127.0.0.1 port={} dbname=postgres", shard.port);
        let options =
            serde_json::json!({"name": shard.name, "user": "postgres", "password": shard.password}).to_string();
        self.unlogged_client()
            .execute("SELECT docshard.add_shard($1::text, $2::text::json)", &[&conn, &options])
            .unwrap_or_else(|e| panic!("add_shard of {}: {e:?}", shard.name));
    }

    /// Makes it require passwords, and TLS over TCP, as docs/operations.md says.
    pub(super) fn require_tls(&mut self, authority: &Authority) {
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
        wait_until("passwords are required", PATIENCE, || self.try_client().is_err());
        (self.password, self.authority) = (Some(password), Some(authority.root.clone()));
    }

    /// Its address in a libpq connection string with which a client verifies its certificate.
    ///
    /// # Panics
    /// If it does not require TLS.
    pub fn verified_address(&self) -> String {
        let root = self.authority.as_ref().expect("it has a certificate").display();
        format!("host=127.0.0.1 port={} sslmode=verify-full sslrootcert={root}", self.port)
    }

    /// Runs statements by psql as an application role, with a password over TLS, and returns the unaligned output with errors.
    ///
    /// # Panics
    /// If psql cannot be run.
    pub fn as_application(&self, role: &str, password: &str, sql: &str) -> String {
        let mut psql = self.installation.program("psql");
        let address = format!("{} dbname=postgres user={role}", self.verified_address());
        psql.env("PGPASSWORD", password).args(["-X", "-q", "-A", "-t", "-d", &address, "-c", sql]);
        let output = psql.output().expect("psql runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
            .trim()
            .to_owned()
    }

    /// A new connection as superuser whose statements are not logged: for those that contain passwords.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn unlogged_client(&self) -> Client {
        let mut client = self.client();
        client.batch_execute(LOG_NOTHING).expect("settings of a superuser");
        client
    }
}
