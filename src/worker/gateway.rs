//! The worker that runs `docshard-gateway`, where `docshard.gateway_listen` is set: it starts the program, starts it again when it has
//! ended, and stops it when a setting changes. The launcher starts the worker.
//!
//! All settings are the server's: only its operator sets them, in `postgresql.conf` or by `ALTER SYSTEM`, and only superusers see
//! them. Nothing that an application's role can write reaches the program's arguments. It runs as the server's operating system user,
//! without the server's environment, files or rights in a database: it logs in over the network as any client.
//!
//! INVARIANT: the program ends with the worker, and the worker with the postmaster.

use crate::pg::process::child::Program;
use crate::pg::process::{self, settings};
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::time::Duration;

pub(super) const KIND: &str = "docshard gateway";

/// The time between two looks at the program.
const BEAT: Duration = Duration::from_secs(1);

/// The time from the end of the program until it is started again.
const PAUSE: Duration = Duration::from_secs(5);

static LISTEN: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
static DATABASE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"postgres"));
static BINARY: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
static ARGUMENTS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

pub(super) fn init() {
    let define = |name, short, long, setting| {
        GucRegistry::define_string_guc(name, short, long, setting, GucContext::Sighup, GucFlags::SUPERUSER_ONLY);
    };
    define(
        c"docshard.gateway_listen",
        c"Sets the address and port at which docshard-gateway serves MongoDB's clients.",
        c"If it is empty, the server runs no gateway.",
        &LISTEN,
    );
    define(c"docshard.gateway_database", c"Sets the database, a router, that the gateway serves.", c"", &DATABASE);
    define(
        c"docshard.gateway_binary",
        c"Sets the path of docshard-gateway.",
        c"If it is empty, it is the program beside the server's own.",
        &BINARY,
    );
    define(
        c"docshard.gateway_arguments",
        c"Sets further arguments of docshard-gateway, divided by spaces.",
        c"Such as --certificate and --key.",
        &ARGUMENTS,
    );
}

fn value(setting: &GucSetting<Option<CString>>) -> String {
    setting.get().map(|value| value.to_string_lossy().trim().to_owned()).unwrap_or_default()
}

/// True if the server should run a gateway.
pub(super) fn is_wanted() -> bool {
    !value(&LISTEN).is_empty()
}

/// Returns the program and its arguments, by the present settings.
fn configured() -> (PathBuf, Vec<String>) {
    let binary = match value(&BINARY) {
        // `current_exe` returns an absolute path even if the server was started by a relative one.
        own if own.is_empty() => std::env::current_exe().unwrap_or_default().with_file_name("docshard-gateway"),
        other => PathBuf::from(other),
    };
    let given: Vec<String> = value(&ARGUMENTS).split_whitespace().map(str::to_owned).collect();
    let mut arguments =
        vec!["--until-eof".to_owned(), "--extension-version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()];
    arguments.extend(["--listen".to_owned(), value(&LISTEN)]);
    if !given.iter().any(|argument| argument == "--router") {
        arguments.extend(["--router".to_owned(), own_address()]);
    }
    arguments.extend(given);
    (binary, arguments)
}

/// Returns a connection string for this server. It uses TCP if the server listens at a local address: `pg_hba.conf` often demands no
/// password from connections over a socket.
fn own_address() -> String {
    let setting = |name: &CStr| settings::current(name).unwrap_or_default();
    let local = ["*", "0.0.0.0", "localhost", "127.0.0.1"];
    let listens = setting(c"listen_addresses");
    let host = match listens.split(',').map(str::trim).any(|address| local.contains(&address)) {
        true => "127.0.0.1".to_owned(),
        false => setting(c"unix_socket_directories").split(',').next().unwrap_or_default().trim().to_owned(),
    };
    let quoted = |value: &str| format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
    format!("host={} port={} dbname={}", quoted(&host), setting(c"port"), quoted(&value(&DATABASE)))
}

/// Runs while a gateway is wanted.
pub(super) fn run() {
    while is_wanted() {
        let (binary, arguments) = configured();
        let mut program = match Program::start(&binary, &arguments) {
            Ok(program) => program,
            Err(error) => {
                pgrx::log!("docshard gateway: {}: {error}", binary.display());
                pause(&(binary, arguments));
                continue;
            }
        };
        loop {
            process::sleep(BEAT);
            if !is_wanted() || configured() != (binary.clone(), arguments.clone()) {
                program.stop();
                break;
            }
            match program.ended() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    pgrx::log!("docshard gateway: the program has ended: {status}");
                    pause(&(binary.clone(), arguments.clone()));
                    break;
                }
                Err(error) => {
                    pgrx::log!("docshard gateway: {error}");
                    program.stop();
                    break;
                }
            }
        }
    }
}

/// Waits before another attempt, unless the settings change.
fn pause(with: &(PathBuf, Vec<String>)) {
    let until = std::time::Instant::now() + PAUSE;
    while std::time::Instant::now() < until && is_wanted() && configured() == *with {
        process::sleep(BEAT);
    }
}
