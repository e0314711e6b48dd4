//! Settings of connections to shards.

use super::hung;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub(super) enum MultiShardCommit {
    #[name = c"two_phase"]
    TwoPhase,
    #[name = c"one_by_one"]
    OneByOne,
}

pub(super) static MULTI_SHARD_COMMIT: GucSetting<MultiShardCommit> =
    GucSetting::<MultiShardCommit>::new(MultiShardCommit::TwoPhase);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum OnLostWrites {
    #[name = c"report"]
    Report,
    #[name = c"refuse"]
    Refuse,
}

pub static ON_LOST_WRITES: GucSetting<OnLostWrites> = GucSetting::<OnLostWrites>::new(OnLostWrites::Report);

pub fn init_gucs() {
    GucRegistry::define_enum_guc(
        c"docshard.multi_shard_commit",
        c"Sets how a transaction that wrote on several shards commits if one of them allows no prepared transactions.",
        c"two_phase raises an error; one_by_one commits one shard after the other, so a crash can leave the \
             transaction partly committed.",
        &MULTI_SHARD_COMMIT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"docshard.on_lost_writes",
        c"Sets what happens after a shard was promoted without all acknowledged writes, as in a failover to an \
             asynchronous standby.",
        c"report uses the shard and reports the time range of writes that may be lost; refuse rejects the shard until \
             docshard.accept_shard() is called.",
        &ON_LOST_WRITES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    hung::init_gucs();
}
