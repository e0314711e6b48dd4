//! `docshard-gateway`: MongoDB's clients connect to it as to a mongos, and it runs their commands at a router of docshard.
//!
//! It is a process of its own: a parser that faces the network, with threads, does not belong into a PostgreSQL server.
//! It knows framing, logins, pools and cursors, and no more: what a command means is `docshard.run_command_bson`.
//!
//! * [`options`], [`gateway`], [`server`], [`tls`]: arguments; accepting clients within limits.
//! * [`wire`], [`connection`], [`command`], [`reply`]: MongoDB's protocol.
//! * [`hello`], [`sasl`], [`local`]: handshake, login, and the few commands about the connection itself.
//! * [`executor`], [`pool`], [`cursors`]: which session runs a command.
//! * [`shares`], [`memory`], [`log`]: limits of what clients use together.
//! * [`router`], [`login`], [`backend`]: PostgreSQL's protocol.

mod backend;
mod command;
mod connection;
mod cursors;
mod executor;
mod gateway;
mod hello;
mod local;
mod log;
mod login;
mod memory;
mod options;
mod password;
mod pool;
mod reply;
mod router;
mod sasl;
mod server;
mod shares;
mod tls;
mod wire;

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
        Ok(Wanted::Serve(options)) => serve(&options).await,
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

async fn serve(options: &Options) -> Result<(), String> {
    let gateway = Gateway::new(options)?;
    let listener = TcpListener::bind(&options.listen).await.map_err(|error| format!("{}: {error}", options.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    eprintln!("docshard-gateway: listening on {address}");
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    tokio::select! {
        served = server::serve(gateway, listener) => served.map_err(|error| error.to_string()),
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
