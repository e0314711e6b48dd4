//! The limit of open files, which every connection counts against.
//!
//! INVARIANT: clients' connections leave enough files for connections to the router.

use crate::options::Options;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Files that are neither a client's connection nor one to the router.
const OTHER: usize = 64;

/// The gateway does not start if there are files for fewer clients than this, unless fewer are configured.
const FEWEST: usize = 16;

/// Raises the limit as far as the operating system allows, and returns it.
pub fn raise() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let current = limit.current;
        limit.current = limit.maximum;
        if setrlimit(Resource::Nofile, limit).is_err() {
            limit.current = current;
        }
    }
    limit.current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Lowers the limits of clients in proportion to what this limit of open files allows; returns a warning if that was necessary. An error if
/// there is too little room.
pub fn fit(options: &mut Options, files: usize) -> Result<Option<String>, String> {
    // Cancelling a session's statement takes another connection.
    let own = OTHER + 2 * options.pool_size + 2 * options.max_logins;
    let wanted = options.max_connections;
    let room = files.saturating_sub(own);
    if room >= wanted {
        return Ok(None);
    }
    if room < FEWEST.min(wanted) {
        return Err(format!(
            "the limit of open files is {files}, and {own} are for the router: raise it (ulimit -n, LimitNOFILE)"
        ));
    }
    options.max_unauthenticated = (options.max_unauthenticated.min(wanted) * room / wanted).max(1);
    options.max_connections = room;
    Ok(Some(format!(
        "the limit of open files is {files}, which is enough for {room} clients, not for {wanted}: raise it (ulimit -n, LimitNOFILE), or lower --max-connections"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Wanted, parse};

    #[test]
    fn clients_leave_files_for_the_router() {
        let options = || match parse(["--router", "x"].map(Into::into)) {
            Ok(Wanted::Serve(options)) => options,
            _ => panic!("the options are wrong"),
        };
        let (mut all, own) = (options(), 64 + 80 + 32);
        assert_eq!(fit(&mut all, 10_000 + own), Ok(None));
        assert_eq!((all.max_connections, all.max_unauthenticated), (10_000, 5_000));
        let mut few = options();
        assert!(fit(&mut few, 1024).unwrap().unwrap().contains("enough for 848 clients, not for 10000"));
        assert_eq!((few.max_connections, few.max_unauthenticated), (848, 424));
        assert!(fit(&mut options(), own + 10).unwrap_err().contains("raise it"));
    }

    #[test]
    fn the_limit_is_raised() {
        let files = raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(files as u64, limit.maximum.unwrap_or(u64::MAX));
    }
}
