//! Logging in at a shard, as the service role.
//!
//! The service role's password may change while sessions connect: the shard has the new one a moment before the user
//! mapping here, or after it. So a password that a shard refuses is read again from the mapping, and tried again.
//!
//! Of several hosts the first that lets the router in need not be the shard's primary: one that was replaced may have come back.
//! A host whose handshake has refused is passed over for a while, so that the next connection goes to another one.

use super::ffi;
use super::libpq_message::INVALID_PASSWORD;
use super::options::{self, Route};
use super::wire::Wire;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How long a password that is refused is tried again.
const CHANGING: Duration = Duration::from_secs(10);

/// How long to wait before it is, in milliseconds.
const PAUSE_MS: i64 = 100;

/// How long a host is passed over.
const PASS_OVER: Duration = Duration::from_secs(60);

thread_local! {
    /// Hosts that are passed over, by their places among the server's, and since when.
    static PASSED_OVER: RefCell<Vec<(Oid, usize, Instant)>> = const { RefCell::new(Vec::new()) };
}

fn passed_over(server: Oid) -> Vec<usize> {
    PASSED_OVER.with_borrow_mut(|hosts| {
        hosts.retain(|(_, _, since)| since.elapsed() < PASS_OVER);
        hosts.iter().filter(|(of, ..)| *of == server).map(|(_, host, _)| *host).collect()
    })
}

/// The handshake was refused at a host. True if there is another one to be tried.
pub(super) fn pass_over(server: Oid, host: usize) -> bool {
    let hosts = options::route(server).map_or(1, |route| options::alternatives(&route.options).len());
    let mut passed = passed_over(server);
    if passed.contains(&host) {
        return false;
    }
    passed.push(host);
    PASSED_OVER.with_borrow_mut(|all| all.push((server, host, Instant::now())));
    passed.len() < hosts
}

/// Connects to a server with its options and the extension owner's user mapping, which `complete` makes the connection's
/// options of.
pub(super) fn connect(server: Oid, complete: impl Fn(&Route) -> Vec<(String, String)>) -> Result<(Route, Wire)> {
    let began = Instant::now();
    loop {
        let route = options::route(server)?;
        let passed_over = passed_over(server);
        match Wire::connect(&route.server_name, &complete(&route), route.needs_password, &passed_over) {
            Ok(wire) => return Ok((route, wire)),
            Err(error) if error.sqlstate == INVALID_PASSWORD && began.elapsed() < CHANGING => {
                sleep_ms(PAUSE_MS);
                ffi::accept_invalidations();
            }
            Err(error) => return Err(error),
        }
    }
}
