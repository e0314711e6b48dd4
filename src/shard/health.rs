//! Makes a node's report for `docshard.health`.

use crate::pg::error::Result;
use crate::pg::spi;
use crate::store;
use docshard_core::routing::protocol::node::PREPARED_BY_ROUTERS;
use docshard_core::sql::param::Param;

/// Returns versions, timeline, standbys, transactions in doubt, free connections, and what is wrong with triggers and privileges, as JSON.
/// Runs as the extension's owner.
///
/// `streaming` are the servers that could be promoted: they are connected, and replay what they receive. Other receivers of WAL, such as
/// `pg_receivewal` and subscribers, are not among them: the former replay nothing, and a session of the latter has a database. `server` is the
/// same in all sessions of a standby: its slot, or else its name and address. Positions are numbers of bytes, as a move compares them.
///
/// `oldestSyncWait` is in seconds. PostgreSQL does not record when a commit began to wait for its synchronous standby, so it counts from
/// the start of the statement that commits.
///
/// `guard` names triggers and event triggers that are not enabled as they must be; `forms` names functions with two overloads, one of them with
/// arguments of type `any_json`, that have different privileges.
pub fn of_this_node() -> Result<String> {
    // The timeline is that of the insert position: after a promotion the last checkpoint still has the old one.
    let rows = spi::query(
        &format!(
            "SELECT json_build_object('library', $1, 'maxPrepared', current_setting('max_prepared_transactions')::int4, \
            'version', (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'docshard'), \
            'postgresql', current_setting('server_version'), \
            'timeline', ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int4, \
            'flushed', (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::int8, 'streaming', r.streaming, \
            'oldestSyncWait', (SELECT extract(epoch FROM clock_timestamp() - min(coalesce(state_change, xact_start)))::float8 \
               FROM pg_catalog.pg_stat_activity WHERE wait_event = 'SyncRep'), \
            'standbys', r.standbys, 'syncStandbys', r.sync_standbys, 'lagBytes', r.lag_bytes, 'replication', r.replication, \
            'oldestInDoubt', (SELECT extract(epoch FROM clock_timestamp() - min(prepared))::float8 \
               {PREPARED_BY_ROUTERS}), \
            'guard', (SELECT coalesce(json_agg(json_build_array(o.name, o.relation)), '[]') FROM ( \
               SELECT v.evtname::text AS name, NULL AS relation FROM pg_catalog.pg_event_trigger v \
                 JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_event_trigger'::regclass AND d.objid = v.oid AND d.deptype = 'e' \
                 JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'docshard' WHERE v.evtenabled <> 'A' \
               UNION ALL SELECT 'event_triggers', NULL WHERE current_setting('event_triggers', true) = 'off' \
               UNION ALL SELECT g.tgname::text, s.nspname || '.' || c.relname FROM pg_catalog.pg_trigger g \
                 JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid AND f.pronamespace = 'docshard_internal'::regnamespace \
                 JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace \
                WHERE NOT g.tgisinternal AND s.nspname IN ($2, 'docshard_data') \
                  AND g.tgenabled <> CASE g.tgname WHEN 'restore_replaces' THEN 'O' ELSE 'A' END::\"char\" \
               LIMIT 20) o), \
            'forms', (SELECT coalesce(json_agg(DISTINCT p.proname), '[]') FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_proc o \
                 ON o.proname = p.proname AND o.pronamespace = p.pronamespace AND o.pronargs = p.pronargs AND o.oid <> p.oid \
                WHERE p.pronamespace = 'docshard'::regnamespace AND EXISTS (SELECT FROM pg_catalog.pg_type t \
                    WHERE t.typnamespace = p.pronamespace AND t.typname IN ('any_json', '_any_json') AND t.oid = ANY (o.proargtypes)) \
                  AND ARRAY(SELECT a::text FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a ORDER BY 1) \
                   <> ARRAY(SELECT a::text FROM aclexplode(coalesce(o.proacl, acldefault('f', o.proowner))) a ORDER BY 1)), \
            'freeConnections', greatest(0, current_setting('max_connections')::int8 \
               - current_setting('superuser_reserved_connections')::int8 \
               - (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')))::text \
         FROM (SELECT count(*) AS standbys, count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) AS sync_standbys, \
                 max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn))::int8 AS lag_bytes, \
                 coalesce(json_agg(json_build_object('name', application_name, 'state', state, 'sync', sync_state, \
                   'lagBytes', pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::int8, \
                   'lagSeconds', extract(epoch FROM replay_lag)::float8) ORDER BY application_name), '[]') AS replication, \
                 coalesce(json_agg(json_build_object('name', application_name, 'session', pid || ' ' || backend_start, \
                     'server', coalesce((SELECT 'slot ' || min(l.slot_name) FROM pg_catalog.pg_replication_slots AS l \
                         WHERE l.active_pid = w.pid AND NOT l.temporary), 'name ' || application_name || ' ' || coalesce(client_addr::text, '')), \
                     'flushed', coalesce((flush_lsn - '0/0'::pg_lsn)::int8, 0))) \
                   FILTER (WHERE state IN ('catchup', 'streaming') AND replay_lsn IS NOT NULL AND EXISTS ( \
                     SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = w.pid AND a.datid IS NULL)), '[]') AS streaming \
               FROM pg_catalog.pg_stat_replication AS w WHERE state <> 'backup') AS r"
        ),
        &[Param::Text(env!("CARGO_PKG_VERSION")), Param::Text(&store::SCHEMA.to_string_lossy())],
    )?;
    Ok(rows[0].text(0).to_owned())
}
