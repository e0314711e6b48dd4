//! Login at a shard as the service role.
//!
//! While the service role's password changes, the shard's password and the user mapping here may differ for a moment. So if the
//! password is refused, the mapping is read again and the login is repeated.
//!
//! If there are several hosts, the first one that accepts the login need not be the shard's primary: it may be an old primary
//! that was replaced. A host whose handshake was refused is passed over for a while, so that the next connection goes to another
//! one.

use super::ffi;
use super::libpq_message::INVALID_PASSWORD;
use super::options::{self, Route};
use super::wire::Wire;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How long a login with a refused password is repeated, because the password may be changing.
pub(super) const RETRY_PASSWORD: Duration = Duration::from_secs(10);

/// The pause between two such logins, in milliseconds.
pub(super) const PAUSE_MS: i64 = 100;

/// How long a host is passed over after it refused a handshake.
const PASS_OVER: Duration = Duration::from_secs(60);

thread_local! {
    /// Server, position of the host, and since when it is passed over.
    static PASSED_OVER: RefCell<Vec<(Oid, usize, Instant)>> = const { RefCell::new(Vec::new()) };
}

fn passed_over(server: Oid) -> Vec<usize> {
    PASSED_OVER.with_borrow_mut(|hosts| {
        hosts.retain(|(_, _, since)| since.elapsed() < PASS_OVER);
        hosts.iter().filter(|(of, ..)| *of == server).map(|(_, host, _)| *host).collect()
    })
}

/// Called when a host refused the handshake. True if there is another host.
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

/// Connects to a server; `complete` adds the connection's options to those of the route.
pub(super) fn connect(server: Oid, complete: impl Fn(&Route) -> Vec<(String, String)>) -> Result<(Route, Wire)> {
    let began = Instant::now();
    loop {
        let route = options::route(server)?;
        let passed_over = passed_over(server);
        match Wire::connect(&route.server_name, &complete(&route), route.needs_password, &passed_over) {
            Ok(wire) => return Ok((route, wire)),
            Err(error) if error.sqlstate == INVALID_PASSWORD && began.elapsed() < RETRY_PASSWORD => {
                sleep_ms(PAUSE_MS);
                ffi::accept_invalidations();
            }
            Err(error) => return Err(error),
        }
    }
}
