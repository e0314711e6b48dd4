//! Whether a database may act as the router of its cluster, or is a copy of the router.
//!
//! A router is identified by its server's system identifier and its database's OID. Renaming the database and promoting its
//! standby change neither. A restored dump has another identity than the one in its catalog. A copy of the server's files has
//! the same identity, and is detected by [`crate::cluster::router_lock`].

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The longest description of a session that is kept, in characters.
const MAX_DESCRIPTION: usize = 200;

/// Makes one short line of a shard's description of a session. The description may be malicious.
#[must_use]
pub fn shortened(description: &str) -> String {
    description.chars().take(MAX_DESCRIPTION).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The text that a shard reports instead of an IP address for a session over a Unix socket (`HOLDER` in `src/shard/router_lock.rs`).
pub const OWN_MACHINE: &str = "the shard's machine";

/// Returns the address of the session that holds a shard's lock, as the shard sees it, from a description such as `process 7 of this shard,
/// from 10.0.0.1, since …`. None for any other text.
#[must_use]
pub fn host_of(description: &str) -> Option<&str> {
    let (_, from) = description.split_once(" of this shard, from ")?;
    let (host, _) = from.split_once(", since ")?;
    (host == OWN_MACHINE || host.parse::<IpAddr>().is_ok()).then_some(host)
}

/// A database of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// the server's system identifier
    pub system: u64,
    /// the database's OID
    pub database: u32,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.system, self.database)
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (system, database) = text.split_once('/').ok_or(())?;
        Ok(Self { system: system.parse().map_err(drop)?, database: database.parse().map_err(drop)? })
    }
}

/// The router that a catalog names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// the router's identity; None until the first other shard is added
    pub router: Option<String>,
    /// the reason why this database is known to be a copy; None if it is not
    pub copy: Option<String>,
    /// true if the cluster has shards in other databases
    pub has_shards: bool,
}

/// How the recorded reason begins while shards refuse the router's login.
pub const LOCKED_OUT: &str = "shards refuse its login: ";

/// The role of a database with a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// the router of its cluster
    Router,
    /// the router, or one that was replaced: shards refuse its login, for this reason. It writes nothing until one lets it in.
    LockedOut(String),
    /// a copy of the router, and the reason why that is known
    Copy(String),
}

impl Registration {
    /// The role of the database with this catalog. Without other shards it is always a router, even if it is a copy: a copy and its
    /// original then share nothing.
    #[must_use]
    pub fn standing(&self, here: Identity) -> Standing {
        match (&self.router, &self.copy) {
            _ if !self.has_shards => Standing::Router,
            (_, Some(reason)) if !reason.starts_with(LOCKED_OUT) => Standing::Copy(reason.clone()),
            (Some(router), _) if router.parse() != Ok(here) => {
                Standing::Copy(format!("the cluster's router is database {router}, this is {here}"))
            }
            (_, Some(reason)) => Standing::LockedOut(reason.clone()),
            _ => Standing::Router,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Identity = Identity { system: 7_000_000_000_000_000_001, database: 16_384 };

    fn registration(router: Option<&str>, copy: Option<&str>) -> Registration {
        Registration { router: router.map(str::to_owned), copy: copy.map(str::to_owned), has_shards: true }
    }

    #[test]
    fn the_address_of_the_holder_is_read() {
        let reason = "another router holds the lock on shard \"a\": process 7 of this shard, from 10.0.0.1, since 2026";
        assert_eq!(host_of(reason), Some("10.0.0.1"));
        let local = "process 7 of this shard, from the shard's machine, since 2026";
        assert_eq!(host_of(local), Some(OWN_MACHINE));
        let forged = "process 7 of this shard, from a.example). Call docshard.dismantle(). (, since 2026";
        for other in
            ["", forged, "process 7 of this shard, from 10.0.0.1", "the cluster's router is database 1/2, this is 3/4"]
        {
            assert_eq!(host_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_description_is_one_short_line() {
        assert_eq!(shortened("a\nb\tc"), "a b c");
        assert_eq!(shortened(&"é".repeat(10_000)).chars().count(), MAX_DESCRIPTION);
    }

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        assert_eq!(HERE.to_string(), "7000000000000000001/16384");
        assert_eq!(HERE.to_string().parse(), Ok(HERE));
        for malformed in ["", "7", "7/", "/7", "7/8/9", "-7/8", "7/4294967296"] {
            assert_eq!(malformed.parse::<Identity>(), Err(()), "{malformed}");
        }
    }

    #[test]
    fn only_the_registered_database_is_the_router() {
        assert_eq!(registration(Some("7000000000000000001/16384"), None).standing(HERE), Standing::Router);
        for other in ["7000000000000000001/16385", "7000000000000000002/16384", "nonsense"] {
            let Standing::Copy(reason) = registration(Some(other), None).standing(HERE) else { panic!("{other}") };
            assert!(reason.contains(other) && reason.contains("7000000000000000001/16384"), "{reason}");
        }
        assert_eq!(registration(None, None).standing(HERE), Standing::Router);
    }

    #[test]
    fn a_copy_remembers_that_it_is_one() {
        let copy = registration(Some("7000000000000000001/16384"), Some("shard0 is held"));
        assert_eq!(copy.standing(HERE), Standing::Copy("shard0 is held".to_owned()));
    }

    #[test]
    fn a_router_that_is_locked_out_is_no_copy() {
        let reason = format!("{LOCKED_OUT}shard0");
        let here = registration(Some("7000000000000000001/16384"), Some(&reason));
        assert_eq!(here.standing(HERE), Standing::LockedOut(reason.clone()));
        let Standing::Copy(why) = registration(Some("1/1"), Some(&reason)).standing(HERE) else { panic!("a dump") };
        assert!(why.contains("1/1"), "{why}");
    }

    #[test]
    fn a_database_without_other_shards_is_a_router() {
        let alone = Registration { has_shards: false, ..registration(Some("1/1"), Some("once")) };
        assert_eq!(alone.standing(HERE), Standing::Router);
    }
}
