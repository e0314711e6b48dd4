//! SQL functions for administration: a row for each, with its arguments and the operation whose result it returns as JSON.
//!
//! Null arguments are refused, except for `options`. Functions marked as nullable accept null for some arguments; all their arguments are
//! `Option`s.

use super::{json_functions, required, run};
use crate::catalog::cluster::addresses;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::shards::names::LOCAL;
use crate::catalog::collections::index_removal;
use crate::command;
use crate::migration::jobs;
use crate::operation::arguments::Arguments;
use crate::operation::calls::with_options;
use crate::operation::chunks::{self, ChunkSelector, MoveRange};
use crate::operation::request_parts::Specification::Text;
use crate::operation::{balancer, cluster, collections, inspect, query_analyzer, resharding, shard_key, shards, table};
use crate::pg::client::sole_call;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::datum::nulls::NoNulls;
use crate::pg::error::Raise as _;
use docshard_core::query::specification::Role;
use pgrx::pg_sys;
use pgrx::prelude::*;
use serde_json::json;

json_functions! {
    // Collections and indexes.
    create_collection(ns: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::CREATE_COLLECTION, |options| collections::create(ns, options, false));
    modify_collection(ns: &str, options: Json) =>
        with_options(&options, &table::MODIFY_COLLECTION, |options| collections::modify(ns, options));
    rename_collection(ns: &str, to: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::RENAME_COLLECTION, |options| collections::rename(ns, to, options));
    shard_collection(ns: &str, key: Json, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::SHARD_COLLECTION, |options| collections::shard(ns, &key.parse(Role::Order)?, options));
    reshard_collection(ns: &str, key: Json, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::RESHARD_COLLECTION, |options| resharding::reshard(ns, &key.parse(Role::Order)?, options));
    abort_reshard_collection(ns: &str) => resharding::abort(ns, None);
    commit_reshard_collection(ns: &str) => resharding::commit(ns, None);
    refine_collection_shard_key(ns: &str, key: Json, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::REFINE_COLLECTION_SHARD_KEY, |options| resharding::refine(ns, &key.parse(Role::Order)?, options));
    nullable unshard_collection(ns: Option<&str>, shard: default!(Option<&str>, "NULL"), options: default!(Option<Json>, "'{}'")) =>
        with_options(&options.unwrap_or_default(), &table::UNSHARD_COLLECTION, |options| {
            resharding::unshard(required(ns, "ns")?, shard, options)
        });
    move_collection(ns: &str, shard: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::MOVE_COLLECTION, |options| resharding::move_to(ns, shard, options));
    compact(ns: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::COMPACT, |options| resharding::compact(ns, options));
    configure_query_analyzer(ns: &str, options: Json) =>
        with_options(&options, &table::CONFIGURE_QUERY_ANALYZER, |options| query_analyzer::configure(ns, options));
    analyze_shard_key(ns: &str, key: Json, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::ANALYZE_SHARD_KEY, |options| shard_key::analyze(ns, &key.parse(Role::Order)?, options));
    suggest_shard_key(ns: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::SUGGEST_SHARD_KEY, |options| shard_key::suggest(ns, options));
    drop_index(ns: &str, name: &str) => index_removal::drop(ns, name).map(|()| json!({"ok": 1}));
    drop_indexes(ns: &str, indexes: default!(Json, "'\"*\"'")) => collections::drop_indexes(ns, &indexes.parse(Role::Order)?);
    nullable expire_now(ns: default!(Option<&str>, "NULL")) => collections::expire(ns);
    check_collection(ns: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::CHECK_COLLECTION, |options| inspect::check_collection(ns, options));

    // Chunks.
    split_at(ns: &str, middle: Json) => chunks::split_at(ns, Text(middle.text(Role::Plain)?));
    split_find(ns: &str, find: Json) => chunks::split(ns, ChunkSelector::Find(Text(find.text(Role::Plain)?)));
    clear_jumbo_flag(ns: &str, find: Json) => chunks::clear_jumbo_flag(ns, Text(find.text(Role::Plain)?));
    merge_chunks(ns: &str, bounds: Json) => chunks::merge(ns, Text(bounds.text(Role::Plain)?));
    move_chunk(ns: &str, find: Json, to: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::MOVE_CHUNK, |options| {
            chunks::move_chunk(ns, Text(find.text(Role::Plain)?), to, options.flag("forceJumbo"))
        });
    nullable move_range(
        ns: Option<&str>, min: Option<Json>, max: Option<Json>, to: Option<&str>, options: default!(Option<Json>, "'{}'")
    ) => {
        let (ns, to, options) = (required(ns, "ns")?, required(to, "to")?, options.unwrap_or_default());
        let (min, max) = (min.map(|min| min.parse(Role::Plain)).transpose()?, max.map(|max| max.parse(Role::Plain)).transpose()?);
        with_options(&options, &table::MOVE_RANGE, |options| {
            let force_jumbo = options.flag("forceJumbo");
            MoveRange { min: min.as_ref(), max: max.as_ref(), to, force_jumbo }.run(ns)
        })
    };
    abort_migration(migration: i64) => chunks::abort_migration(migration);

    // Shards and databases.
    add_shard(conn: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::ADD_SHARD, |options| shards::add(conn, options));
    remove_shard(name: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::REMOVE_SHARD, |options| shards::remove(name, options));
    start_shard_draining(shard: &str) => shards::start_draining(shard);
    stop_shard_draining(shard: &str) => shards::stop_draining(shard);
    nullable shard_draining_status(shard: default!(Option<&str>, "NULL")) =>
        shard.map_or_else(shards::all_draining, shards::draining_status);
    commit_shard_removal(shard: &str) => shards::commit_removal(shard);
    accept_shard(name: &str) => cluster::accept_shard(name, false);
    set_shard_address(name: &str, conn: &str) => cluster::set_address(name, || addresses::set_shard(name, conn));
    set_local_address(conn: &str) => cluster::set_address(LOCAL, || addresses::set_local(conn));
    nullable enable_sharding(db: Option<&str>, primary: default!(Option<&str>, "NULL")) =>
        shards::enable_sharding(required(db, "db")?, primary);
    drop_database(db: &str) => shards::drop_database(db);
    move_primary(db: &str, to: &str) => shards::move_primary(db, to);

    // The cluster.
    take_over_cluster() => cluster::take_over(&cluster::TakeOver::default());
    drop_orphaned_relation(shard: &str, relation: &str) => cluster::drop_orphan(shard, relation);
    nullable dismantle(confirm: default!(Option<&str>, "NULL"), options: default!(Option<Json>, "'{}'")) =>
        with_options(&options.unwrap_or_default(), &table::DISMANTLE, |options| cluster::dismantle(confirm, options));
    grant_access(role: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::GRANT_ACCESS, |options| cluster::grant_access(role, options));
    revoke_access(role: &str, options: default!(Json, "'{}'")) =>
        with_options(&options, &table::REVOKE_ACCESS, |options| cluster::revoke_access(role, options));
    rotate_service_password() => cluster::rotate_service_password();
    nullable set_setting(name: Option<&str>, value: Option<&str>) => cluster::set_setting(required(name, "name")?, value);

    // Zones.
    add_shard_to_zone(shard: &str, zone: &str) => shards::add_to_zone(shard, zone);
    remove_shard_from_zone(shard: &str, zone: &str) => shards::remove_from_zone(shard, zone);
    nullable update_zone_key_range(ns: Option<&str>, min: Option<Json>, max: Option<Json>, zone: Option<&str>) => {
        let (min, max) = (required(min, "min"), required(max, "max"));
        shards::update_zone_range(required(ns, "ns")?, &min?.parse(Role::Plain)?, &max?.parse(Role::Plain)?, zone)
    };

    // The balancer.
    start_balancer() => balancer::start();
    stop_balancer(timeout_ms: default!(i64, "60000")) => balancer::stop(timeout_ms);
    balancer_status() => balancer::status();
    balancer_collection_status(ns: &str) => balancer::collection_status(ns);
    enable_balancing(ns: &str) => balancer::set_balancing(ns, true);
    disable_balancing(ns: &str) => balancer::set_balancing(ns, false);
    configure_collection_balancing(ns: &str, options: Json) =>
        with_options(&options, &table::CONFIGURE_COLLECTION_BALANCING, |options| balancer::configure(ns, options));
}

/// A second function of the same name: the one without options stays as it was released.
#[pg_extern(name = "accept_shard", volatile, parallel_unsafe, requires = ["catalog"])]
fn accept_shard_with_options(_nulls: Option<NoNulls>, name: &str, options: Json) -> Json {
    run(|| {
        let accept = |options: &Arguments<'_>| cluster::accept_shard(name, options.flag("adopt"));
        Ok(Json::new(with_options(&options, &table::ACCEPT_SHARD, accept)?.to_string()))
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn drop_collection(_nulls: Option<NoNulls>, ns: &str) -> bool {
    run(|| crate::catalog::collections::collection::drop(ns))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_index(
    _nulls: Option<NoNulls>,
    ns: &str,
    keys: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> String {
    let sole = sole_call::is_whole_transaction(fcinfo);
    run(|| {
        with_options(&options, &table::CREATE_INDEX, |options| {
            let wanted = [(keys.text(Role::Order)?.to_owned(), collections::index_options(ns, options)?)];
            let names = collections::create_indexes(ns, &wanted, collections::concurrently(options), sole)?;
            Ok(names.into_iter().next().unwrap_or_default())
        })
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn create_indexes(_nulls: Option<NoNulls>, ns: &str, indexes: Json, fcinfo: pg_sys::FunctionCallInfo) -> Vec<String> {
    let sole = sole_call::is_whole_transaction(fcinfo);
    run(|| collections::create_indexes_of(ns, &indexes.parse(Role::Request)?, sole))
}

#[pg_extern(name = "abort_migration", volatile, parallel_unsafe, requires = ["catalog"])]
fn abort_migration_of(_nulls: Option<NoNulls>, ns: &str) -> Json {
    Json::new(run(|| chunks::abort_migrations_of(ns)).to_string())
}

#[pg_extern(name = "take_over_cluster", volatile, parallel_unsafe, requires = ["catalog"])]
fn take_over_cluster_with(_nulls: Option<NoNulls>, options: Json) -> Json {
    let take_over = |options: &Arguments<'_>| cluster::take_over(&cluster::take_over_options(options)?);
    Json::new(run(|| with_options(&options, &table::TAKE_OVER, take_over)).to_string())
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn recover_moves() -> i64 {
    run(|| {
        check_may_change()?;
        Ok(jobs::recover_and_wait()? + crate::resharding::jobs::recover_and_wait()?)
    })
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn run_command(_nulls: Option<NoNulls>, db: &str, command: Json, fcinfo: pg_sys::FunctionCallInfo) -> RawJsonb {
    match command::run(db, &command, sole_call::is_whole_transaction(fcinfo)) {
        Ok(answer) => RawJsonb::from_bytes(&answer),
        Err(error) => error.raise(),
    }
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn run_command_bson(_nulls: Option<NoNulls>, db: &str, command: &[u8], fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    run(|| command::run_bson(db, command, sole_call::is_whole_transaction(fcinfo)))
}
