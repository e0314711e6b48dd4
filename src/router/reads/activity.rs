//! The operations of this database, as MongoDB's `$currentOp` shows them: the statements of its sessions, the changes of collections'
//! layouts, and the sampling of statements. Of other roles' sessions, only those fields are shown that `pg_stat_activity` shows to the
//! caller.

use crate::catalog::cache;
use crate::catalog::collections::grants;
use crate::pg::error::Result;
use crate::pg::security::user::as_extension_owner;
use crate::pg::spi;
use crate::router::sampling::per_second;
use crate::store::collections::{self, Sampled};
use crate::store::resharding::{self, Counts, Running};
use docshard_core::query::specification::parse;
use docshard_core::sql::param::Param;
use serde_json::{Map, Value as Json, json};

/// The operations. `idle`: includes sessions that run no statement. `own_only`: only the caller's sessions.
pub fn operations(idle: bool, own_only: bool) -> Result<Vec<Json>> {
    let mut operations = statements(idle, own_only)?;
    // These run in background workers, so they belong to none of the caller's sessions.
    if !own_only {
        operations.extend(resharding::running()?.iter().map(layout_change));
        operations.extend(query_analyzers()?);
    }
    Ok(operations)
}

/// The collections whose statements are sampled, of those that the caller may read.
pub fn query_analyzers() -> Result<Vec<Json>> {
    let mut analyzers = Vec::new();
    for Sampled { namespace, uuid, every_us } in as_extension_owner(collections::sampled)? {
        if let Some(collection) = cache::find(&namespace)?
            && grants::may_read(&collection)?
        {
            let rate = per_second(every_us);
            analyzers
                .push(json!({"desc": "query analyzer", "ns": namespace, "collUuid": uuid, "samplesPerSecond": rate}));
        }
    }
    Ok(analyzers)
}

/// How many changes of layouts the catalog remembers, by MongoDB's commands.
pub fn layout_changes() -> Result<Json> {
    let (counted, running) = (resharding::counts()?, resharding::running()?);
    let mut statistics = Map::new();
    for (name, command) in [
        ("resharding", "reshardCollection"),
        ("moveCollection", "moveCollection"),
        ("unshardCollection", "unshardCollection"),
    ] {
        let count = |of: fn(&Counts) -> i64| counted.iter().find(|one| one.command == command).map_or(0, of);
        let sum = |of: fn(&Running) -> i64| running.iter().filter(|one| one.command == command).map(of).sum::<i64>();
        let counts = json!({
            "countStarted": count(|one| one.started), "countSucceeded": count(|one| one.committed),
            "countFailed": count(|one| one.aborted),
            "active": {"documentsCopied": sum(|one| one.documents), "bytesCopied": sum(|one| one.bytes)},
        });
        statistics.insert(name.to_owned(), counts);
    }
    Ok(statistics.into())
}

/// A change of a collection's layout. MongoDB runs all of them as reshardCollection, and `provenance` names the command.
fn layout_change(change: &Running) -> Json {
    let key = change.key.as_deref().map_or(Ok(json!({"_id": 1})), parse);
    let mut command = json!({"reshardCollection": change.namespace, "key": key.unwrap_or_default()});
    let provenance = (change.command != "reshardCollection").then_some(&change.command);
    if let Some(provenance) = provenance {
        command["provenance"] = json!(provenance);
    }
    let mut operation = json!({
        "type": "op", "desc": format!("ReshardingMetricsCoordinatorService {}", change.id), "active": true, "op": "command",
        "ns": change.namespace, "originatingCommand": command, "totalOperationTimeElapsedSecs": change.elapsed,
        "approxDocumentsToCopy": change.estimated, "documentsCopied": change.documents, "bytesCopied": change.bytes,
        "coordinatorState": change.step, "opStatus": "running",
    });
    if let Some(provenance) = provenance {
        operation["provenance"] = json!(provenance);
    }
    if let Some(seconds) = change.time_left() {
        operation["remainingOperationTimeEstimatedSecs"] = json!(seconds);
    }
    operation
}

fn statements(idle: bool, own_only: bool) -> Result<Vec<Json>> {
    let rows = spi::query(
        "SELECT pg_catalog.json_strip_nulls(pg_catalog.json_build_object( \
                  'type', 'op', 'desc', a.backend_type, 'connectionId', a.pid, \
                  'client', pg_catalog.host(a.client_addr) || ':' || a.client_port, \
                  'appName', nullif(a.application_name, ''), \
                  'effectiveUsers', pg_catalog.json_build_array(pg_catalog.json_build_object('user', a.usename, 'db', 'admin')), \
                  'active', coalesce(a.state = 'active', false), \
                  'currentOpTime', pg_catalog.to_char(pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"+00:00\"'), \
                  'opid', a.pid, \
                  'secs_running', CASE a.state WHEN 'active' THEN extract(epoch FROM pg_catalog.clock_timestamp() - a.query_start)::pg_catalog.int8 END, \
                  'microsecs_running', CASE a.state WHEN 'active' THEN (extract(epoch FROM pg_catalog.clock_timestamp() - a.query_start) * 1000000)::pg_catalog.int8 END, \
                  'op', CASE a.state WHEN 'active' THEN 'command' ELSE 'none' END, 'ns', '', \
                  'command', pg_catalog.json_build_object('$truncated', coalesce(a.query, '')), \
                  'waitingForLock', a.wait_event_type IS NOT DISTINCT FROM 'Lock'))::pg_catalog.text \
           FROM pg_catalog.pg_stat_activity a \
          WHERE a.datname = pg_catalog.current_database() AND a.backend_type = 'client backend' \
            AND ($1 OR a.state IS NULL OR a.state NOT IN ('idle', 'disabled')) AND (NOT $2 OR a.usename = current_user) ORDER BY a.pid",
        &[Param::Bool(idle), Param::Bool(own_only)],
    )?;
    rows.iter().map(|row| parse(row.text(0))).collect()
}
