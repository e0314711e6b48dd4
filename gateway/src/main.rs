//! `docshard-gateway`: MongoDB's clients connect to it as to a mongos, and it runs their commands at a router of docshard.
//!
//! It is a process of its own, because a multi-threaded parser of data from the network does not belong in a PostgreSQL server.
//! It knows framing, logins, pools, cursors and sessions; the router's function `docshard.run_command_bson` executes the commands.
//!
//! * [`options`], [`gateway`], [`server`], [`tls`]: arguments; accepting clients within limits.
//! * [`wire`], [`connection`], [`command`], [`reply`], [`clock`]: MongoDB's protocol.
//! * [`hello`], [`sasl`], [`certificate`], [`local`], [`password`]: handshake, login, the few commands about the connection itself, and
//!   users' passwords.
//! * [`executor`], [`pool`], [`cursors`]: which session runs a command.
//! * [`session`], [`sessions`], [`session_commands`], [`transactions`], [`recovery`]: clients' sessions, and transactions over
//!   several commands.
//! * [`retried`]: writes that drivers send again.
//! * [`shares`], [`memory`], [`work`], [`files`], [`log`]: limits of what clients use together.
//! * [`router`], [`login`], [`backend`]: PostgreSQL's protocol.

mod backend;
mod certificate;
mod clock;
mod command;
mod connection;
mod cursors;
mod executor;
#[cfg(feature = "fault_points")]
mod fail_point;
mod files;
mod gateway;
mod hello;
mod local;
mod log;
mod login;
mod memory;
mod options;
mod password;
mod pool;
mod recovery;
mod reply;
mod retried;
mod router;
mod sasl;
mod server;
mod session;
mod session_commands;
mod sessions;
mod shares;
mod tls;
mod transactions;
mod wire;
mod work;

use gateway::Gateway;
use options::{Options, Wanted};
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let result = match options::parse(std::env::args_os().skip(1)) {
        Ok(Wanted::Text(text)) => {
            print!("{text}");
            Ok(())
        }
        Ok(Wanted::Serve(options)) => serve(*options).await,
        Err(message) => Err(format!("{message}\nTry --help.")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("docshard-gateway: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Gateway and extension are installed together, so different versions are a mistake of the installation. Only the patch numbers
/// may differ.
fn check_version(extension: &str) -> Result<(), String> {
    let own = env!("CARGO_PKG_VERSION");
    let release = |version: &str| version.rsplit_once('.').map(|(release, _)| release.to_owned());
    if release(extension) != release(own) {
        return Err(format!(
            "this is version {own}, and the extension of the server is {extension:?}: install both of one version"
        ));
    }
    Ok(())
}

/// Returns when the standard input ends.
async fn end_of_input() {
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = send.send(());
    });
    let _ = receive.await;
}

async fn serve(mut options: Options) -> Result<(), String> {
    if let Some(version) = &options.extension_version {
        check_version(version)?;
    }
    if let Some(warning) = files::fit(&mut options, files::raise())? {
        eprintln!("docshard-gateway: {warning}");
    }
    let gateway = Gateway::new(&options)?;
    let listener = TcpListener::bind(&options.listen).await.map_err(|error| format!("{}: {error}", options.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    eprintln!("docshard-gateway: listening on {address}");
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    tokio::select! {
        served = server::serve(gateway, listener) => served.map_err(|error| error.to_string()),
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
        () = end_of_input(), if options.until_eof => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_version;

    #[test]
    fn another_version_is_refused() {
        let own = env!("CARGO_PKG_VERSION");
        assert!(check_version(own).is_ok());
        assert!(check_version(&format!("{}.99", own.rsplit_once('.').unwrap().0)).is_ok());
        for other in ["0.1.0", "", "99.0.0", "x"] {
            assert!(check_version(other).is_err(), "{other}");
        }
    }
}
