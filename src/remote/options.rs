//! Connection options of a foreign server and a user mapping, under postgres_fdw's rules.
//!
//! Options that libpq knows are passed on. The encoding is always the database's. [`SETTINGS`] make answers independent of the shard's
//! and the role's defaults; [`DEFAULTS`] concern speed only.

use super::ffi;
use crate::pg::error::{Error, Result};
use crate::pg::security::user;
use crate::pg::server;
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, error};
use pgrx::pg_sys::Oid;
use std::time::Duration;

/// These settings follow the administrator's `options`, and so override them. With a `gin_fuzzy_search_limit`, a search in a GIN index would
/// return only some of the documents. `client_connection_check_interval` ends the statements of a router that has died.
const SETTINGS: &str = "-c search_path=pg_catalog,pg_temp -c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres \
                        -c extra_float_digits=3 -c bytea_output=hex -c standard_conforming_strings=on \
                        -c gin_fuzzy_search_limit=0 -c client_connection_check_interval=2s";

/// The administrator's `options` override these settings. JIT compilation takes longer than most statements, and does not speed up
/// docshard's functions, in which conditions spend their time.
const DEFAULTS: &str = "-c jit=off";

/// Options by which the loss of a host is detected; the server's options override them. `tcp_user_timeout` is long, because it also applies
/// while a shard reads nothing, as when its statement waits for a lock.
const LOST_HOSTS: [(&str, &str); 4] = [
    ("keepalives_idle", "30"),
    ("keepalives_interval", "10"),
    ("keepalives_count", "3"),
    ("tcp_user_timeout", "120000"),
];

/// The time for connecting to a host if `connect_timeout` is not given, in seconds.
const CONNECT_TIMEOUT: u64 = 10;

#[derive(Debug)]
pub(super) struct Route {
    pub(super) server_name: String,
    pub(super) server_hash: u32,
    pub(super) mapping_hash: u32,
    pub(super) options: Vec<(String, String)>,
    /// the shard must ask for the password, as the mapping's owner must not use other credentials of this server
    pub(super) needs_password: bool,
}

impl Route {
    pub(super) fn password(&self) -> Option<&str> {
        value(&self.options, "password")
    }

    pub(super) fn with_password(&self, password: String) -> Self {
        let mut options = self.options.clone();
        set(&mut options, "password", password);
        Self { server_name: self.server_name.clone(), options, ..*self }
    }
}

/// The libpq options of a server; `ShardNotFound` if there is no such server.
pub fn server_options(server: Oid) -> Result<Vec<(String, String)>> {
    let server = find(server)?;
    Ok(server.options.into_iter().filter(|(keyword, _)| ffi::libpq_keywords().contains(keyword)).collect())
}

/// The options of the extension owner's user mapping at a server; empty without a mapping.
pub fn mapping_options(server: Oid) -> Result<Vec<(String, String)>> {
    Ok(ffi::mapping(server, user::extension_owner()?).map(|mapping| mapping.options).unwrap_or_default())
}

fn find(server: Oid) -> Result<ffi::Server> {
    ffi::server(server).ok_or_else(|| error!(Kind::ShardNotFound, "foreign server {} does not exist", server.to_u32()))
}

pub fn parse_conninfo(conninfo: &str) -> Result<Vec<(String, String)>> {
    ffi::parse_conninfo(conninfo).ok_or_else(|| {
        error!(Kind::BadValue, "invalid connection string")
            .with_hint("Give a libpq connection string, such as \"host=db1 port=5432 dbname=docs\", or a URI.")
    })
}

/// The options of a server and of the extension owner's user mapping there.
///
/// # Errors
/// `ShardNotFound`, `UserNotFound`, and 2F003 if the owner is no superuser and the mapping has no password.
pub(super) fn route(server: Oid) -> Result<Route> {
    let owner = user::extension_owner()?;
    let (oid, server) = (server, find(server)?);
    let Some(mapping) = ffi::mapping(oid, owner) else {
        let owner = server::user_name(owner);
        return Err(error!(
            Kind::UserNotFound,
            "user mapping not found for user \"{owner}\", server \"{}\"", server.name
        )
        .with_hint(format!(
            "CREATE USER MAPPING FOR \"{owner}\" SERVER \"{}\" tells how the router logs in there.",
            server.name
        )));
    };
    let required = !mapping.options.iter().any(|(k, v)| k == "password_required" && is_false(v));
    let needs_password = required && !ffi::is_superuser(owner);
    if needs_password && !mapping.options.iter().any(|(k, v)| k == "password" && !v.is_empty()) {
        return Err(password_error(&server.name, "Non-superusers must provide a password in the user mapping."));
    }
    let mut options = Vec::new();
    for (keyword, value) in server.options.into_iter().chain(mapping.options) {
        if ffi::libpq_keywords().contains(&keyword) {
            set(&mut options, &keyword, value);
        }
    }
    finish(&mut options);
    Ok(Route {
        server_name: server.name,
        server_hash: server.hash,
        mapping_hash: mapping.hash,
        options,
        needs_password,
    })
}

/// postgres_fdw's error for a non-superuser that connects without a password.
pub(super) fn password_error(server_name: &str, detail: &str) -> Error {
    let message = format!("password is required to connect to shard \"{server_name}\"");
    Error::of_sqlstate(sqlstate::PROHIBITED_SQL_STATEMENT, message)
        .with_detail(detail)
        .with_hint("Set a password in the user mapping, or let a superuser set its option password_required to false.")
}

/// The default `application_name` is this, followed by the id of the router's session as `%c` shows it in the log.
pub const APPLICATION: &str = "docshard";

/// Adds the options of every connection.
pub(super) fn finish(options: &mut Vec<(String, String)>) {
    if value(options, "application_name").is_none() {
        set(options, "application_name", format!("{APPLICATION} {}", ffi::session_id()));
    }
    for (keyword, default) in LOST_HOSTS {
        if value(options, keyword).is_none() {
            set(options, keyword, default.to_owned());
        }
    }
    if value(options, "gssencmode").is_none() {
        // A connection with GSS encryption could not be taken over from libpq.
        set(options, "gssencmode", "disable".to_owned());
    }
    set(options, "client_encoding", ffi::database_encoding());
    let theirs = value(options, "options").unwrap_or_default();
    let all = format!("{DEFAULTS} {theirs} {SETTINGS}");
    set(options, "options", all);
}

/// Adds a setting of the session, `name=value`.
pub(super) fn with_setting(options: &[(String, String)], setting: &str) -> Vec<(String, String)> {
    let mut options = options.to_vec();
    let all = value(&options, "options").map_or_else(String::new, |theirs| format!("{theirs} "));
    set(&mut options, "options", format!("{all}-c {setting}"));
    options
}

/// Limits the time for connecting to each host.
pub(super) fn with_connect_timeout(options: &[(String, String)], seconds: u32) -> Vec<(String, String)> {
    let mut options = options.to_vec();
    let seconds = connect_timeout(&options).0.as_secs().min(seconds.into());
    set(&mut options, "connect_timeout", seconds.to_string());
    options
}

/// True if every host is this machine, and the administrator's `options` do not configure parallel plans.
pub(super) fn shares_processors(options: &[(String, String)]) -> bool {
    let is_here = |host: &str| {
        let host = host.trim();
        host.is_empty()
            || host.starts_with(['/', '@'])
            || host == "localhost"
            || host == "::1"
            || host.starts_with("127.")
    };
    let hosts = value(options, "hostaddr").or_else(|| value(options, "host")).unwrap_or_default();
    let decided = value(options, "options").is_some_and(|all| all.contains("max_parallel_workers_per_gather"));
    hosts.split(',').all(is_here) && !decided
}

/// How long an attempt to connect to one host may take, and true if the administrator has set that.
pub(super) fn connect_timeout(options: &[(String, String)]) -> (Duration, bool) {
    let given = value(options, "connect_timeout").and_then(|t| t.trim().parse::<i64>().ok());
    let seconds = match given {
        Some(seconds) if seconds > 0 => seconds.unsigned_abs().max(2),
        Some(_) => 3600,
        None => CONNECT_TIMEOUT,
    };
    (Duration::from_secs(seconds), given.is_some())
}

/// For each host of a route, the options that choose the server, the database and the user. Sorted, because a move of a chunk may
/// change the order of the hosts.
pub(super) fn destination(options: &[(String, String)]) -> Vec<Vec<(String, String)>> {
    let mut hosts = alternatives(options);
    for host in &mut hosts {
        host.retain(|(keyword, _)| ["host", "hostaddr", "port", "dbname", "user"].contains(&keyword.as_str()));
        host.sort();
    }
    hosts.sort();
    hosts
}

/// Splits the options of several hosts into those of each host. When libpq connects asynchronously, it applies no timeout to a host, so a
/// host that does not respond would block the others. The hosts stay together for `prefer-standby`, which needs all of them, and if the
/// lists have different lengths, which libpq then reports.
pub fn alternatives(options: &[(String, String)]) -> Vec<Vec<(String, String)>> {
    let list = |keyword| value(options, keyword).map(|v| v.split(',').collect::<Vec<_>>()).unwrap_or_default();
    let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = hosts.len().max(addresses.len());
    let fits = |list: &[&str], one: bool| list.is_empty() || list.len() == count || (one && list.len() == 1);
    let fit = fits(&hosts, false) && fits(&addresses, false) && fits(&ports, true);
    if count < 2 || !fit || value(options, "target_session_attrs") == Some("prefer-standby") {
        return vec![options.to_vec()];
    }
    let one = |at: usize| {
        let mut one = options.to_vec();
        for (keyword, list) in [("host", &hosts), ("hostaddr", &addresses), ("port", &ports)] {
            if let Some(item) = list.get(at).or(list.first()) {
                set(&mut one, keyword, (*item).into());
            }
        }
        one
    };
    (0..count).map(one).collect()
}

/// The options with the given host moved to the front of the list of hosts; None if there is only one host.
pub(super) fn with_host_first(options: &[(String, String)], host: usize) -> Option<Vec<(String, String)>> {
    let count = alternatives(options).len();
    if count < 2 || host >= count {
        return None;
    }
    let mut options = options.to_vec();
    for (keyword, value) in &mut options {
        let mut list: Vec<&str> = value.split(',').collect();
        if ["host", "hostaddr", "port"].contains(&keyword.as_str()) && list.len() == count {
            list[..=host].rotate_right(1);
            *value = list.join(",");
        }
    }
    Some(options)
}

/// Host and port, for display.
pub(super) fn address(options: &[(String, String)]) -> String {
    let host = value(options, "host").or_else(|| value(options, "hostaddr")).unwrap_or("[local]");
    format!("{host}:{}", value(options, "port").unwrap_or("5432"))
}

fn value<'a>(options: &'a [(String, String)], keyword: &str) -> Option<&'a str> {
    options.iter().rev().find(|(k, _)| k == keyword).map(|(_, v)| v.as_str())
}

fn set(options: &mut Vec<(String, String)>, keyword: &str, value: String) {
    options.retain(|(k, _)| k != keyword);
    options.push((keyword.into(), value));
}

fn is_false(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "false" | "off" | "no" | "0" | "f" | "n")
}
