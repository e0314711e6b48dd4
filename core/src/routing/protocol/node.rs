//! Calls about the node itself: the handshake, its identity and health, the router's lock.

use crate::cluster::handshake::{Hello, Member, Position, Welcome};
use crate::cluster::standing;

rows! {
    /// The answer to [`SayHello`].
    Greeted { timeline: i64, counter: i64, recovery: bool, protocol: i32 }

    /// The properties of a database before it becomes a shard.
    NodeProbe {
        system: i64,
        database: i64,
        /// the extension's version that is installed there; None if its files are missing
        default_version: Option<String>,
        /// the extension's version in the database; None without the extension
        version: Option<String>,
        encoding: String,
        prepared_transactions: bool,
        /// true if the login role is a superuser there
        superuser: bool,
    }
}

/// The rows of this database's transactions that routers have prepared. Other roles may use the same names, but have no right to write a
/// shard's own tables. A role that was dropped, or is named as routers' roles are, is taken for a router's. Prepared transactions
/// outlive the extension: without its tables, every role is taken for a router's.
pub const PREPARED_BY_ROUTERS: &str = "FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() \
     AND pg_catalog.starts_with(gid, 'docshard_') AND coalesce(pg_catalog.starts_with(owner, 'docshard_') \
       OR pg_catalog.has_table_privilege(owner, pg_catalog.to_regclass('docshard_data.placement')::pg_catalog.oid, 'INSERT'), true)";

calls! {
    /// The handshake, in front of a connection's first statement. INVARIANT: neither signature nor answer ever changes, as nodes of
    /// all versions begin with it; `oldest` and `newest` are the versions of the protocol that the router speaks.
    hello => SayHello<'a> {
        cluster: i64,
        shard: &'a str,
        router: &'a str,
        epoch: i64,
        /// negative: not compared
        known_timeline: i64,
        known_counter: i64,
        writes: bool,
        refuse_lost_writes: bool,
        oldest: i32,
        newest: i32,
    } -> Greeted;

    /// The shard's identity and position: the text of a `crate::cluster::handshake::Donor`.
    identity => Identity {} -> String;

    /// Takes the router's lock for the session; returns None if it has the lock, or else the holder.
    hold_router_lock => HoldRouterLock {
        /// a holder that has been silent for this time is terminated
        silence_ms: i64,
    } -> Option<String>;

    /// The node's report of its health, as JSON.
    node_health => NodeHealth {} -> String;
}

shard_statements! {
    /// The properties of the database, which need not have docshard.
    ProbeNode {} -> NodeProbe {
        "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), d.oid::int8, \
           (SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'docshard'), \
           (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'docshard'), \
           pg_encoding_to_char(d.encoding)::text, current_setting('max_prepared_transactions') <> '0', \
           current_setting('is_superuser') = 'on' \
         FROM pg_catalog.pg_database d WHERE datname = current_database()"
    }

    /// The version of the extension.
    ReadRelease {} -> Option<String> {
        "SELECT pg_catalog.max(extversion) FROM pg_catalog.pg_extension WHERE extname = 'docshard'"
    }

    /// Answers if the shard can be reached.
    Ping {} -> Vec<i32> { "SELECT 1" }

    /// The prepared transactions of the database whose names have this prefix, by name, of all roles. The router deletes its record of a decision
    /// only when none of them has the decision's name.
    ReadAllPrepared<'a> { prefix: &'a str } -> Vec<String> {
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() \
         AND pg_catalog.starts_with(gid, $1) ORDER BY gid"
    }

    /// The prepared transactions of routers whose names have one of these prefixes, by name.
    ReadPrepared<'a> { prefixes: &'a [&'a str] } -> Vec<String> {
        format!(
            "SELECT gid {PREPARED_BY_ROUTERS} \
             AND EXISTS (SELECT FROM pg_catalog.unnest($1) AS prefix WHERE pg_catalog.starts_with(gid, prefix)) ORDER BY gid"
        )
    }
}

impl NodeProbe {
    /// The database and its server.
    pub fn identity(&self) -> standing::Identity {
        // PostgreSQL shows the unsigned number as a signed one.
        standing::Identity { system: self.system.cast_unsigned(), database: u32::try_from(self.database).unwrap_or(0) }
    }
}

impl<'a> SayHello<'a> {
    /// The handshake before statements; `writes`: true if they write.
    pub fn of(hello: &'a Hello, writes: bool) -> Self {
        let known = hello.known.unwrap_or(Position { timeline: -1, counter: -1 });
        Self {
            cluster: hello.to.cluster,
            shard: &hello.to.shard,
            router: &hello.router,
            epoch: hello.epoch,
            known_timeline: known.timeline,
            known_counter: known.counter,
            writes,
            refuse_lost_writes: hello.refuse_lost_writes,
            oldest: hello.oldest,
            newest: hello.newest,
        }
    }

    /// The handshake as the shard receives it.
    pub fn hello(&self) -> Hello {
        let known = Position { timeline: self.known_timeline, counter: self.known_counter };
        Hello {
            to: Member { cluster: self.cluster, shard: self.shard.to_owned() },
            router: self.router.to_owned(),
            epoch: self.epoch,
            known: (known.timeline >= 0).then_some(known),
            refuse_lost_writes: self.refuse_lost_writes,
            oldest: self.oldest,
            newest: self.newest,
        }
    }
}

impl From<Greeted> for Welcome {
    fn from(answer: Greeted) -> Self {
        let Greeted { timeline, counter, recovery, protocol } = answer;
        Self { position: Position { timeline, counter }, recovery, protocol }
    }
}

impl From<Welcome> for Greeted {
    fn from(Welcome { position, recovery, protocol }: Welcome) -> Self {
        Self { timeline: position.timeline, counter: position.counter, recovery, protocol }
    }
}
