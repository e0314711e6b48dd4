//! The handshake at the start of every connection from a router to a shard. Pure, so that a test can step it.
//!
//! The router sends the cluster and shard that it expects, its own identity, and the shard's position that the catalog has
//! recorded. The shard compares these with its own record and refuses a mismatch. The router's statements follow in the same
//! pipeline, so a refusal makes the shard skip them.
//!
//! A [`Position`] is the shard's timeline, which each promotion raises, and a counter that the router's worker advances. An old
//! copy of a shard is behind in one of them.
//!
//! INVARIANT: the worker commits a counter at the shard before it records it in the catalog. So a shard is never behind the
//! catalog unless it has lost commits, and never more than [`Position::IN_FLIGHT`] ahead unless the catalog has lost commits.

use super::standing::Identity;
use crate::error::{Error, Kind, Result, bail, error};
use std::fmt;
use std::str::FromStr;

/// The oldest version of the protocol between routers and shards that this code speaks.
pub const OLDEST_PROTOCOL: i32 = 1;
/// The newest version of that protocol.
pub const NEWEST_PROTOCOL: i32 = 1;

/// The oldest release whose SQL objects a router may call at a shard. The protocol version decides which of them it calls.
const OLDEST_RELEASE: [u32; 3] = [0, 2, 0];

/// True if a router of this release works with a shard whose extension has that version.
pub fn works_with(version: &str) -> bool {
    is_since(version, OLDEST_RELEASE)
}

/// The first release whose nodes read documents with the order of their fields.
const FIRST_WITH_ORDER: [u32; 3] = [0, 4, 0];

/// True if a shard whose extension has that version reads documents with the order of their fields.
pub fn reads_order(version: &str) -> bool {
    is_since(version, FIRST_WITH_ORDER)
}

fn is_since(version: &str, release: [u32; 3]) -> bool {
    let numbers: Option<Vec<u32>> = version.split('.').map(|number| number.parse().ok()).collect();
    numbers.is_some_and(|numbers| numbers.len() == 3 && numbers[..] >= release[..])
}

/// How many times a statement, or the opening of a session, is retried after a shard has refused the handshake because the shard's
/// position is newer than the one that the router has sent. A few retries suffice, since the worker advances a counter at most once a
/// second.
pub const REFUSED_AHEAD: u32 = 3;

/// A shard of a cluster. The router's own database is the shard [`LOCAL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// the cluster's identity
    pub cluster: i64,
    /// the shard's name
    pub shard: String,
}

/// The name of the router's own database as a shard.
pub const LOCAL: &str = "local";

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shard == LOCAL {
            write!(f, "the router of cluster {:016x}", self.cluster)
        } else {
            write!(f, "shard \"{}\" of cluster {:016x}", self.shard, self.cluster)
        }
    }
}

impl Member {
    /// Compares the server that was reached with the expected one.
    ///
    /// # Errors
    /// `HostUnreachable`, naming both.
    pub fn require(&self, found: &Member) -> Result<()> {
        if self == found {
            return Ok(());
        }
        Err(error!(Kind::HostUnreachable, "expected {self}, but the server that was reached is {found}").with_hint(
            format!(
                "Check the address of the foreign server docshard_{}: ALTER SERVER … OPTIONS (SET host '…', SET port '…').",
                self.shard
            ),
        ))
    }
}

/// The progress of a shard's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// the timeline of WAL insertion
    pub timeline: i64,
    /// advanced by the router's worker
    pub counter: i64,
}

/// How a shard's position compares with the one in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// it has everything that the catalog has recorded
    Current,
    /// it was promoted, and lacks commits that its predecessor had acknowledged
    LostWrites,
    /// an old copy of the same server
    OldCopy,
    /// a server whose successor the router has seen
    Deposed,
    /// the catalog itself is the older copy
    CatalogIsOld,
    /// no router can have advanced the counter so often: the shard is damaged or malicious
    Impossible,
}

impl Position {
    /// How far a shard may be ahead of the catalog: the worker has advanced the counter, and not recorded it yet.
    pub const IN_FLIGHT: i64 = 1;

    /// The highest counter that is believed: a worker that advances it once a second needs 35,000 years.
    const LAST_COUNTER: i64 = 1 << 40;

    /// The most by which a shard's counter can be ahead of a catalog that may still be in use.
    const MAX_ADVANCED: i64 = 1 << 32;

    /// True if no router can have advanced the counter so often.
    #[must_use]
    pub fn is_impossible(self) -> bool {
        self.counter > Self::LAST_COUNTER
    }

    /// Compares a shard's position with this one, which the catalog has recorded.
    #[must_use]
    pub fn progress_of(self, found: Position) -> Progress {
        if found.is_impossible() || found.counter > self.counter.saturating_add(Self::MAX_ADVANCED) {
            Progress::Impossible
        } else if found.timeline < self.timeline {
            Progress::Deposed
        } else if found.counter > self.counter.saturating_add(Self::IN_FLIGHT) {
            Progress::CatalogIsOld
        } else if found.counter >= self.counter {
            Progress::Current
        } else if found.timeline == self.timeline {
            Progress::OldCopy
        } else {
            Progress::LostWrites
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timeline {}, counter {}", self.timeline, self.counter)
    }
}

/// The router's part of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// the shard that it expects
    pub to: Member,
    /// the router's identity: system identifier / database OID
    pub router: String,
    /// the router's epoch at this shard, by the catalog: a take-over raises it at each shard that it reaches
    pub epoch: i64,
    /// the shard's position in the catalog; None: not compared
    pub known: Option<Position>,
    /// true if a promoted shard that lacks commits is refused
    pub refuse_lost_writes: bool,
    /// the oldest protocol version that it speaks
    pub oldest: i32,
    /// the newest protocol version that it speaks
    pub newest: i32,
}

/// A shard's record of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// which shard it is
    pub member: Member,
    /// the epoch of the router that the shard belongs to; a take-over raises it
    pub epoch: i64,
    /// its position
    pub position: Position,
}

impl NodeState {
    /// Returns the protocol version for a connection on which the router writes, or only reads.
    ///
    /// # Errors
    /// `HostUnreachable` for another shard, a router that was replaced, and no common protocol version; those of
    /// [`NodeState::compare`].
    pub fn answer(&self, hello: &Hello, writes: bool) -> Result<i32> {
        hello.to.require(&self.member)?;
        if hello.epoch < self.epoch {
            return Err(refused(format!(
                "{} belongs to the router with epoch {}, and refuses the one with epoch {} ({})",
                self.member, self.epoch, hello.epoch, hello.router
            ))
            .with_hint("Another database has taken over the cluster. Connect to that one."));
        }
        let newest = hello.newest.min(NEWEST_PROTOCOL);
        if newest < hello.oldest.max(OLDEST_PROTOCOL) {
            return Err(refused(format!(
                "{} speaks the protocol versions {OLDEST_PROTOCOL} to {NEWEST_PROTOCOL}, the router {} to {}",
                self.member, hello.oldest, hello.newest
            ))
            .with_hint("Bring both to the same version of docshard."));
        }
        if let Some(known) = hello.known {
            self.compare(known, hello.refuse_lost_writes, writes)?;
        }
        Ok(newest)
    }

    /// Compares the shard's position with the one in the catalog.
    ///
    /// # Errors
    /// `HostUnreachable` for an impossible position, and for a shard that is behind (after a promotion only if `refuse_lost_writes`);
    /// `NotWritablePrimary` for writes if the catalog is behind.
    pub fn compare(&self, known: Position, refuse_lost_writes: bool, writes: bool) -> Result<()> {
        let Self { member, position, .. } = self;
        let accept = format!(
            "To continue with this server without the missing writes, call docshard.accept_shard('{}').",
            member.shard
        );
        match known.progress_of(*position) {
            Progress::Impossible => Err(refused(format!("{member} reports an impossible position: {position}"))
                .with_hint(format!(
                    "Restore this shard from a backup, or remove it as lost: docshard.remove_shard(name, '{{\"lost\": true}}'). If only its \
                     counter is damaged: docshard.accept_shard('{}').", member.shard))),
            Progress::Deposed => Err(refused(format!(
                "expected {member} at {known}, but the server that was reached is at {position}: \
                 it is an old primary, or was restored"
            ))
            .with_hint(format!("Stop this server if it was replaced, or restore a later backup. {accept}"))),
            Progress::OldCopy => Err(refused(format!(
                "expected {member} at {known}, but the server that was reached is at {position}: it is an older copy"
            ))
            .with_hint(format!("Was it restored from a backup? {accept}"))),
            Progress::LostWrites if refuse_lost_writes => Err(refused(format!(
                "expected {member} at {known}, but the server that was reached is at {position}: \
                 it was promoted without all acknowledged writes"
            ))
            .with_hint(format!("docshard.on_lost_writes is set to refuse. {accept}"))),
            Progress::CatalogIsOld if writes => Err(error!(
                Kind::NotWritablePrimary,
                "{member} is at {position}, but this router has recorded {known}: its catalog is an older copy, \
                 and takes no writes"
            )
            .with_hint(
                "Connect to the cluster's newer router, if there is one. Was this one restored from a backup? Restore a later one, or, if \
                 the newer router is lost, call docshard.take_over_cluster().",
            )),
            Progress::Current | Progress::LostWrites | Progress::CatalogIsOld => Ok(()),
        }
    }
}

/// The shard's part of the handshake, as the router reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// the shard's position
    pub position: Position,
    /// true if it is a standby
    pub recovery: bool,
    /// the protocol version to be spoken
    pub protocol: i32,
}

impl Hello {
    /// Checks a shard's answer; true if the shard is not behind, and ahead by no more than a counter that may be in flight, or if positions
    /// are not compared.
    ///
    /// # Errors
    /// `HostUnreachable` for an invalid reply, such as one to a handshake that the shard should have refused.
    pub fn accept(&self, welcome: &Welcome) -> Result<bool> {
        let progress = self.known.map_or(Progress::Current, |known| known.progress_of(welcome.position));
        let refused_by_us = matches!(progress, Progress::Deposed | Progress::OldCopy | Progress::Impossible)
            || (progress == Progress::LostWrites && self.refuse_lost_writes);
        if welcome.recovery || refused_by_us || !(self.oldest..=self.newest).contains(&welcome.protocol) {
            bail!(Kind::HostUnreachable, "{} answered the handshake with an invalid reply: {welcome:?}", self.to);
        }
        Ok(progress == Progress::Current)
    }
}

fn refused(message: String) -> Error {
    Error::new(Kind::HostUnreachable, message)
}

/// A database of a running server. A copy of the server's files, or another database of the server, is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// which database it is
    pub database: Identity,
    /// when the server was started, in microseconds
    pub started: i64,
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.started, self.database)
    }
}

impl FromStr for Running {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let (started, database) = text.split_once('/').ok_or(())?;
        Ok(Self { database: database.parse()?, started: started.parse().map_err(drop)? })
    }
}

/// The identity and position of a shard from which another one pulls documents. A foreign table returns it as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Donor {
    /// which shard it is
    pub member: Member,
    /// its position, as the shard has reported it or the catalog has recorded it
    pub position: Position,
    /// For the router's own database, which has no position: the server that runs it, by which a copy of the router is recognized. None for
    /// other shards.
    pub running: Option<Running>,
}

/// Separates the router's own name as a shard from the server that runs it. No shard's name contains it.
const AT: char = '@';

impl fmt::Display for Donor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { timeline, counter } = self.position;
        write!(f, "{}/{timeline}/{counter}/{}", self.member.cluster, self.member.shard)?;
        self.running.map_or(Ok(()), |running| write!(f, "{AT}{running}"))
    }
}

impl FromStr for Donor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.splitn(4, '/');
        let mut number = || parts.next().and_then(|part| part.parse().ok());
        let numbers = (number(), number(), number());
        match (numbers, parts.next()) {
            ((Some(cluster), Some(timeline), Some(counter)), Some(shard)) => {
                let running = shard.split_once(AT).and_then(|(name, at)| Some((name, at.parse().ok()?)));
                let (shard, running) = running.map_or((shard, None), |(name, running)| (name, Some(running)));
                Ok(Self {
                    member: Member { cluster, shard: shard.to_owned() },
                    position: Position { timeline, counter },
                    running,
                })
            }
            _ => bail!(Kind::BadValue, "a shard's identity is malformed: {text}"),
        }
    }
}

impl Donor {
    /// Compares the shard that was reached with this one, which was expected.
    ///
    /// # Errors
    /// `HostUnreachable`, naming both.
    pub fn require(&self, found: &Donor) -> Result<()> {
        self.member.require(&found.member)?;
        if let Some(running) = self.running
            && found.running != self.running
        {
            let other = found.running.map_or_else(|| "unknown".to_owned(), |other| other.to_string());
            let message = format!(
                "expected {} as it runs at {running}, but the database that was reached is another one ({other}): a former router, or a \
                 copy of this one",
                self.member
            );
            return Err(refused(message).with_hint(
                "docshard.set_local_address() gives this router and the shards the address of this router's own database.",
            ));
        }
        match self.position.progress_of(found.position) {
            Progress::Deposed | Progress::OldCopy => Err(refused(format!(
                "expected {} at {}, but the server that was reached is at {}",
                self.member, self.position, found.position
            ))
            .with_hint("The foreign server leads to an older copy of the shard.")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_since_0_4_0_read_the_order_of_fields() {
        for (version, reads) in
            [("0.3.0", false), ("0.4.0", true), ("0.10.0", true), ("1.0.0", true), ("0.4", false), ("", false)]
        {
            assert_eq!(reads_order(version), reads, "{version}");
        }
    }

    const KNOWN: Position = Position { timeline: 2, counter: 100 };

    fn member(shard: &str) -> Member {
        Member { cluster: 7, shard: shard.to_owned() }
    }

    fn hello() -> Hello {
        Hello {
            to: member("a"),
            router: "1/2".to_owned(),
            epoch: 3,
            known: Some(KNOWN),
            refuse_lost_writes: false,
            oldest: OLDEST_PROTOCOL,
            newest: NEWEST_PROTOCOL,
        }
    }

    fn node(timeline: i64, counter: i64) -> NodeState {
        NodeState { member: member("a"), epoch: 3, position: Position { timeline, counter } }
    }

    fn message(answer: Result<i32>) -> String {
        answer.expect_err("refused").into_message()
    }

    #[test]
    fn releases_before_the_handshake_are_refused() {
        for version in ["0.2.0", "0.2.1", "0.10.0", "1.0.0"] {
            assert!(works_with(version), "{version}");
        }
        for version in ["0.1.0", "0.1.99", "0.2", "0.2.0.1", "0.2.x", "", "1"] {
            assert!(!works_with(version), "{version}");
        }
    }

    #[test]
    fn the_shard_that_is_meant_agrees() {
        assert_eq!(node(2, 100).answer(&hello(), true), Ok(NEWEST_PROTOCOL));
        assert_eq!(node(2, 101).answer(&hello(), true), Ok(NEWEST_PROTOCOL));
        assert_eq!(node(3, 100).answer(&hello(), true), Ok(NEWEST_PROTOCOL));
    }

    #[test]
    fn another_shard_or_cluster_is_refused_and_both_are_named() {
        let other = NodeState { member: member("b"), ..node(2, 100) };
        let said = message(other.answer(&hello(), false));
        assert!(said.contains("\"a\"") && said.contains("\"b\""), "{said}");
        let foreign = NodeState { member: Member { cluster: 8, ..member("a") }, ..node(2, 100) };
        let said = message(foreign.answer(&hello(), false));
        assert!(said.contains("0000000000000007") && said.contains("0000000000000008"), "{said}");
        let router = NodeState { member: member(LOCAL), ..node(2, 100) };
        assert!(message(router.answer(&hello(), false)).contains("the router of cluster"));
    }

    #[test]
    fn a_router_that_was_replaced_is_refused() {
        let later = NodeState { epoch: 4, ..node(2, 100) };
        let said = message(later.answer(&hello(), false));
        assert!(said.contains("epoch 4") && said.contains("epoch 3"), "{said}");
        let earlier = NodeState { epoch: 2, ..node(2, 100) };
        assert!(earlier.answer(&hello(), true).is_ok());
    }

    #[test]
    fn versions_need_one_in_common() {
        for (oldest, newest, fits) in [(1, 1, true), (1, 9, true), (0, 1, true), (2, 9, false), (0, 0, false)] {
            assert_eq!(
                node(2, 100).answer(&Hello { oldest, newest, ..hello() }, true).is_ok(),
                fits,
                "{oldest} {newest}"
            );
        }
    }

    #[test]
    fn positions_are_compared() {
        for (timeline, counter, progress) in [
            (2, 100, Progress::Current),
            (2, 101, Progress::Current),
            (3, 101, Progress::Current),
            (2, 102, Progress::CatalogIsOld),
            (3, 102, Progress::CatalogIsOld),
            (2, 99, Progress::OldCopy),
            (3, 99, Progress::LostWrites),
            (1, 99, Progress::Deposed),
            (1, 200, Progress::Deposed),
            (2, 100 + (1 << 32), Progress::CatalogIsOld),
            (2, 101 + (1 << 32), Progress::Impossible),
        ] {
            assert_eq!(KNOWN.progress_of(Position { timeline, counter }), progress, "{timeline} {counter}");
        }
    }

    #[test]
    fn a_shard_that_is_behind_is_refused_and_lost_writes_on_request() {
        for writes in [false, true] {
            assert!(message(node(1, 100).answer(&hello(), writes)).contains("old primary"));
            assert!(message(node(2, 99).answer(&hello(), writes)).contains("older copy"));
            assert!(node(3, 99).answer(&hello(), writes).is_ok());
            let strict = Hello { refuse_lost_writes: true, ..hello() };
            assert!(message(node(3, 99).answer(&strict, writes)).contains("promoted"));
            let unknowing = Hello { known: None, ..hello() };
            assert!(node(1, 5).answer(&unknowing, writes).is_ok());
        }
    }

    #[test]
    fn an_older_catalog_reads_and_does_not_write() {
        assert!(node(2, 150).answer(&hello(), false).is_ok());
        let error = node(2, 150).answer(&hello(), true).expect_err("refused");
        assert_eq!(error.kind, Kind::NotWritablePrimary);
        let welcome = Welcome { position: node(2, 150).position, recovery: false, protocol: 1 };
        assert_eq!(hello().accept(&welcome), Ok(false));
    }

    #[test]
    fn the_router_compares_the_answer() {
        let welcome = Welcome { position: KNOWN, recovery: false, protocol: 1 };
        assert_eq!(hello().accept(&welcome), Ok(true));
        for wrong in [
            Welcome { recovery: true, ..welcome },
            Welcome { protocol: 2, ..welcome },
            Welcome { position: Position { timeline: 1, ..KNOWN }, ..welcome },
            Welcome { position: Position { counter: 1, ..KNOWN }, ..welcome },
        ] {
            assert!(hello().accept(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_donor_says_who_it_is_as_text() {
        let donor = Donor { member: Member { cluster: -7, shard: "a/b".to_owned() }, position: KNOWN, running: None };
        assert_eq!(donor.to_string().parse(), Ok(donor.clone()));
        for malformed in ["", "7", "7/2/100", "x/2/100/a"] {
            assert!(malformed.parse::<Donor>().is_err(), "{malformed}");
        }
        let other = Donor { member: member("b"), ..donor.clone() };
        assert!(donor.require(&other).is_err());
        assert!(donor.require(&Donor { position: Position { counter: 99, ..KNOWN }, ..donor.clone() }).is_err());
        assert!(donor.require(&Donor { position: Position { counter: 200, ..KNOWN }, ..donor.clone() }).is_ok());
    }

    #[test]
    fn the_routers_own_database_is_known_by_the_server_that_runs_it() {
        let running = Running { database: Identity { system: 12, database: 5 }, started: 1_000 };
        let donor = Donor { member: member(LOCAL), position: Position::default(), running: Some(running) };
        assert_eq!(donor.to_string().parse(), Ok(donor.clone()));
        assert!(donor.require(&donor).is_ok());
        for other in [
            None,
            Some(Running { started: 1_001, ..running }),
            Some(Running { database: Identity { system: 12, database: 6 }, ..running }),
        ] {
            let error = donor.require(&Donor { running: other, ..donor.clone() }).expect_err("another database");
            assert!(error.message.contains("another one"), "{error:?}");
        }
        // Nodes of older versions compare the text, so they also refuse another run of the same server.
        let other = Donor { running: Some(Running { started: 7, ..running }), ..donor.clone() };
        assert_ne!(donor.to_string(), other.to_string());
    }
}
