//! Logging in at a shard, as the service role.
//!
//! The service role's password may change while sessions connect: the shard has the new one a moment before the user
//! mapping here, or after it. So a password that a shard refuses is read again from the mapping, and tried again.

use super::ffi;
use super::options::{self, Route};
use super::wire::{INVALID_PASSWORD, Wire};
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use pgrx::pg_sys::Oid;
use std::time::{Duration, Instant};

/// How long a password that is refused is tried again.
const CHANGING: Duration = Duration::from_secs(10);

/// How long to wait before it is, in milliseconds.
const PAUSE_MS: i64 = 100;

/// Connects to a server with its options and the extension owner's user mapping, which `complete` makes the connection's
/// options of.
pub(super) fn connect(server: Oid, complete: impl Fn(&Route) -> Vec<(String, String)>) -> Result<(Route, Wire)> {
    let began = Instant::now();
    loop {
        let route = options::route(server)?;
        match Wire::connect(&route.server_name, &complete(&route), route.needs_password) {
            Ok(wire) => return Ok((route, wire)),
            Err(error) if error.sqlstate == INVALID_PASSWORD && began.elapsed() < CHANGING => {
                sleep_ms(PAUSE_MS);
                ffi::accept_invalidations();
            }
            Err(error) => return Err(error),
        }
    }
}
