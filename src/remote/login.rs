//! Login at a shard as the service role.
//!
//! While the service role's password changes, the shard's password and the user mapping here may differ for a moment. So if a
//! password is refused, the other passwords in the catalog are tried at once: the mapping's present one, and the one that is being set.
//! If none is left, the error is reported without waiting.
//!
//! If there are several hosts, the first one that accepts the login need not be the shard's primary: it may be an old primary
//! that was replaced. A host whose handshake was refused is passed over for a while, so that the next connection goes to another
//! one.

use super::ffi;
use super::handshake;
use super::options::{self, Route};
use super::wire::{Wire, shard_of};
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use docshard_core::error::sqlstate::{INVALID_PASSWORD, REFUSED_CONNECTION};
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Largest number of logins with different passwords.
const MAX_PASSWORDS: usize = 6;

/// Largest number of refused hosts that are kept. Only the worker reports them; in other processes the list is never emptied.
const MAX_REFUSED: usize = 64;

/// How long a host is passed over after it refused a handshake.
const PASS_OVER: Duration = Duration::from_secs(60);

thread_local! {
    static REFUSED: RefCell<Vec<RefusedHost>> = const { RefCell::new(Vec::new()) };
    /// Server, position of the host, and since when it is passed over.
    static PASSED_OVER: RefCell<Vec<(Oid, usize, Instant)>> = const { RefCell::new(Vec::new()) };
}

fn passed_over(server: Oid) -> Vec<usize> {
    PASSED_OVER.with_borrow_mut(|hosts| {
        hosts.retain(|(_, _, since)| since.elapsed() < PASS_OVER);
        hosts.iter().filter(|(of, ..)| *of == server).map(|(_, host, _)| *host).collect()
    })
}

/// A host of a shard that was passed over.
#[derive(Debug)]
pub struct RefusedHost {
    pub shard: String,
    /// for display
    pub address: String,
    /// the refusal
    pub why: String,
}

/// The hosts that this process has passed over since the last call.
pub fn refused_hosts() -> Vec<RefusedHost> {
    REFUSED.take()
}

fn note_refused(server: Oid, host: usize, why: &str) {
    let Ok(route) = options::route(server) else { return };
    let (shard, address) = (shard_of(&route.server_name).to_owned(), address(server, host));
    REFUSED.with_borrow_mut(|all| {
        if all.len() < MAX_REFUSED {
            all.push(RefusedHost { shard, address, why: why.to_owned() });
        }
    });
}

/// Passes over a host that has refused the handshake, for the reason `why`. True if another host remains; false if none does, or if
/// this host was passed over already.
pub(super) fn pass_over(server: Oid, host: usize, why: &str) -> bool {
    let hosts = options::route(server).map_or(1, |route| options::alternatives(&route.options).len());
    let mut passed = passed_over(server);
    if passed.contains(&host) {
        return false;
    }
    note_refused(server, host, why);
    passed.push(host);
    PASSED_OVER.with_borrow_mut(|all| all.push((server, host, Instant::now())));
    passed.len() < hosts
}

/// The address of one of a server's hosts, for display.
fn address(server: Oid, host: usize) -> String {
    let hosts = options::route(server).map(|route| options::alternatives(&route.options)).unwrap_or_default();
    hosts.get(host).map(|options| options::address(options)).unwrap_or_default()
}

/// The passwords that were tried for a server.
#[derive(Debug, Default)]
pub(super) struct Passwords(Vec<Option<String>>);

impl Passwords {
    /// Called when a login by the route has failed. Returns the route with another password that the catalog knows; None if there is none,
    /// or if the login was not refused for its password.
    pub(super) fn next(&mut self, server: Oid, route: &Route, error: &Error) -> Result<Option<Route>> {
        if error.sqlstate != INVALID_PASSWORD || self.0.len() >= MAX_PASSWORDS {
            return Ok(None);
        }
        self.0.push(route.password().map(str::to_owned));
        ffi::accept_invalidations();
        // One commit ends a password change and writes the new password into the mapping. So the password that is being set is read
        // first: in the other order, a commit between the two reads would hide the new password from both.
        let changing = handshake::next_password(server)?;
        let now = options::route(server)?;
        let is_new = |route: &Route| !self.0.iter().any(|tried| tried.as_deref() == route.password());
        let next = changing.map(|password| now.with_password(password));
        Ok([Some(now), next].into_iter().flatten().find(is_new))
    }
}

/// Explains a login that was refused for its password: the server may be another one, or a restored one.
pub(super) fn explained(server: Oid, route: &Route, error: Error) -> Error {
    if error.sqlstate != INVALID_PASSWORD {
        return error;
    }
    let shard = shard_of(&route.server_name);
    // Each shard has its own service role, so a sibling refuses the login before a handshake could tell its name.
    if let Ok(Some(sibling)) = handshake::same_address(server) {
        let message = format!(
            "expected shard \"{shard}\", but the foreign server {} has the address of shard \"{sibling}\"",
            route.server_name
        );
        let core = Error::new(Kind::HostUnreachable, message);
        return core.with_sqlstate(REFUSED_CONNECTION).with_hint(format!(
            "Check the address of the foreign server {}: ALTER SERVER … OPTIONS (SET host '…', SET port '…').",
            route.server_name
        ));
    }
    error.with_hint(format!(
        "The shard may have been restored from a backup that is older than the password, another database may have taken the cluster \
         over with docshard.take_over_cluster(), or the foreign server {} leads to another shard. docshard.add_shard() with the shard's \
         address and name and a superuser's login there repairs the login, or says which of the last two it is.",
        route.server_name
    ))
}

/// Connects to a server. `complete` returns the route's options with those that this kind of connection adds.
pub(super) fn connect(server: Oid, complete: impl Fn(&Route) -> Vec<(String, String)>) -> Result<(Route, Wire)> {
    let mut route = options::route(server)?;
    let mut passwords = Passwords::default();
    loop {
        let passed_over = passed_over(server);
        match Wire::connect(&route.server_name, &complete(&route), route.needs_password, &passed_over) {
            Ok(wire) => return Ok((route, wire)),
            Err(error) => match passwords.next(server, &route, &error)? {
                Some(next) => route = next,
                None => return Err(explained(server, &route, error)),
            },
        }
    }
}
