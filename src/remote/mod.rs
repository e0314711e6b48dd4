//! The executor of statements on shards, over libpq.
//!
//! A request names a foreign server of postgres_fdw, whose options and user mapping tell how to connect. [`start`] sends
//! requests to any number of shards before it awaits any answer; each answer is a [`Stream`] of rows, which stay in
//! PostgreSQL's binary format. Remote transactions follow the local one: see [`transaction`].
//! A [`Session`] is a connection outside of all that.
//!
//! | file | role |
//! |---|---|
//! | `ffi` | the only one that calls C: libpq, waiting, files, catalog lookups, callbacks |
//! | `options` | from server and user mapping to connection options, and postgres_fdw's rules |
//! | `login` | connecting as the service role |
//! | `handshake` | what a connection says first, and the shard's answer |
//! | `param`, `row` | parameters out, rows in, the spool |
//! | `wire` | one connection: connecting, waiting, interrupts, error reports |
//! | `probe` | asking a shard that says nothing whether it still answers, over another connection |
//! | `hung` | how long a shard may say nothing; in a worker, the shards that are left alone as they do not answer |
//! | `prepared` | a connection's prepared statements |
//! | `connection` | a cached connection: batches, their answers, savepoints; in its folder, how transactions end, and what waits |
//! | `cache` | all cached connections, their invalidation |
//! | `stream` | requests and their rows |
//! | `transaction` | commit, two-phase commit, abort, subtransactions |
//! | `session` | a connection outside the transaction |
//! | `survey` | one question to many servers at once, within a bound |
//!
//! Errors of shards keep SQLSTATE, message, detail and hint and name the shard in their context; a lost connection is
//! 08006, as is a shard that does not answer (NetworkTimeout); a connection that could not be made is 08001. No message
//! contains a connection option.

mod cache;
mod connection;
mod ffi;
mod handshake;
pub mod hung;
mod login;
mod options;
mod param;
mod prepared;
mod probe;
pub mod refusal;
mod row;
pub mod serializable;
mod session;
mod stream;
mod survey;
pub mod transaction;
mod wire;

pub use cache::forget;
pub use handshake::{Cluster, set_cluster};
pub use options::{APPLICATION, mapping_options, parse_conninfo, server_options};
pub use param::{Param, Request, Role, Share, Sql};
pub use row::Row;
pub use session::Session;
pub use stream::{Feed, Stream, await_all, start};
pub use survey::{Surveyed, survey};
pub use transaction::{Coordinator, can_retry, has_failed, in_transaction, init, set_coordinator, undo};

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

/// What becomes of a transaction that wrote on several shards, of which one cannot prepare transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum MultiShardCommit {
    /// It is refused.
    #[name = c"two_phase"]
    TwoPhase,
    /// One shard commits after the other, so a crash in between leaves it half done.
    #[name = c"one_by_one"]
    OneByOne,
}

/// The setting `docshard.multi_shard_commit`.
pub static MULTI_SHARD_COMMIT: GucSetting<MultiShardCommit> =
    GucSetting::<MultiShardCommit>::new(MultiShardCommit::TwoPhase);

/// What becomes of a shard that was promoted without all acknowledged writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum OnLostWrites {
    /// It is used, and what may be lost is reported.
    #[name = c"report"]
    Report,
    /// It is refused until an administrator accepts it.
    #[name = c"refuse"]
    Refuse,
}

/// The setting `docshard.on_lost_writes`.
pub static ON_LOST_WRITES: GucSetting<OnLostWrites> = GucSetting::<OnLostWrites>::new(OnLostWrites::Report);

/// Registers this module's settings; called once, from `_PG_init`.
pub fn init_gucs() {
    GucRegistry::define_enum_guc(
        c"docshard.multi_shard_commit",
        c"How a transaction commits that wrote on several shards of which one allows no prepared transactions.",
        c"two_phase refuses it; one_by_one commits one shard after the other, so a crash can leave it half done.",
        &MULTI_SHARD_COMMIT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"docshard.on_lost_writes",
        c"What happens when a shard was promoted without all acknowledged writes, as after a failover to an asynchronous standby.",
        c"report uses it and names the time range that may be lost; refuse refuses it until docshard.accept_shard().",
        &ON_LOST_WRITES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    hung::init_gucs();
}
