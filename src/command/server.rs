//! Commands about the server and its sessions. What MongoDB measures is taken from PostgreSQL; versions and defaults are those of the
//! MongoDB that is emulated.

use super::information::{VERSION, server};
use super::reply::{Reply, ReplyNode};
use super::request::Request;
use super::users;
use crate::operation::arguments::{Arguments, Form, Type, mismatch, number, truth};
use crate::operation::{inspect, table};
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::router::reads::activity;
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::query::filter::Filter;
use docshard_core::sql::param::Param;
use docshard_core::values::document::{ext_json, raw, write};
use serde_json::{Value as Json, json};

/// The first row of a statement's result; an error if there is none.
fn row(sql: &str) -> Result<spi::SpiRow> {
    spi::query(sql, &[])?.into_iter().next().ok_or_else(|| error!(Kind::InternalError, "no row"))
}

fn address() -> Result<String> {
    let server = server()?;
    Ok(format!("{}:{}", server["host"].as_str().unwrap_or_default(), server["port"]))
}

fn now() -> Json {
    json!({"$date": {"$numberLong": crate::router::session::now().to_string()}})
}

/// Connections of the whole PostgreSQL server, transactions and deadlocks of this database, and the time since PostgreSQL's start.
/// A section that the command names with 0 or false is left out; other fields are ignored, as in MongoDB.
pub fn server_status(request: &Request<'_>) -> Result<Reply> {
    let row = row(
        "SELECT (extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time()) * 1000)::pg_catalog.int8, \
                pg_catalog.current_setting('max_connections')::pg_catalog.int8, \
                (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'), \
                (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend' AND state = 'active'), \
                coalesce(d.xact_commit, 0), coalesce(d.xact_rollback, 0), coalesce(d.deadlocks, 0) \
           FROM pg_catalog.pg_stat_database d WHERE d.datname = pg_catalog.current_database()",
    )?;
    let (millis, most, current) = (row.i64(0), row.i64(1), row.i64(2));
    let mut status = json!({
        "host": address()?,
        "version": VERSION,
        "process": "mongos",
        "pid": {"$numberLong": std::process::id().to_string()},
        "uptime": millis as f64 / 1000.0,
        "uptimeMillis": {"$numberLong": millis.to_string()},
        "uptimeEstimate": {"$numberLong": (millis / 1000).to_string()},
        "localTime": now(),
        "connections": {"current": current, "available": (most - current).max(0), "active": row.i64(3)},
        "transactions": {
            "totalCommitted": {"$numberLong": row.i64(4).to_string()},
            "totalAborted": {"$numberLong": row.i64(5).to_string()},
        },
        "deadlocks": row.i64(6),
        "shardingStatistics": activity::layout_changes()?,
        "queryAnalyzers": {"activeCollections": activity::query_analyzers()?.len()},
    });
    if let Json::Object(sections) = &mut status {
        let fields = request.fields.others(&request.generic);
        sections.retain(|section, value| !value.is_object() || fields.get(section).and_then(truth) != Some(false));
    }
    Ok(Reply::of(status))
}

pub fn host_info(_request: &Request<'_>) -> Result<Reply> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Reply::of(json!({
        "system": {
            "currentTime": now(),
            "hostname": address()?,
            "cpuAddrSize": usize::BITS,
            "numCores": cores,
            "cpuArch": std::env::consts::ARCH,
        },
        "os": {"type": std::env::consts::OS},
        "extra": {},
    })))
}

/// A router has no options of a command line: its settings are PostgreSQL's.
pub fn get_cmd_line_opts(_request: &Request<'_>) -> Result<Reply> {
    Ok(Reply::of(json!({"argv": ["postgres"], "parsed": {"net": {"port": server()?["port"]}}})))
}

/// The log is PostgreSQL's, which only its operator reads. There are no startup warnings.
pub fn get_log(request: &Request<'_>) -> Result<Reply> {
    match request.target_text() {
        "*" => Ok(Reply::of(json!({"names": ["startupWarnings"]}))),
        "startupWarnings" => Ok(Reply::of(json!({"totalLinesWritten": 0, "log": []}))),
        other => Err(error!(Kind::OperationFailed, "no log named: {other}")),
    }
}

/// The parameters that docshard can answer truthfully. They cannot be set.
pub fn get_parameter(request: &Request<'_>) -> Result<Reply> {
    let known = [
        ("authenticationMechanisms", json!(["SCRAM-SHA-256"])),
        (
            "featureCompatibilityVersion",
            json!({"version": VERSION.rsplit_once('.').map_or(VERSION, |(version, _)| version)}),
        ),
    ];
    let option = |name: &str, kind: Type| match request.target.get(name) {
        Some(given) if !kind.takes(given) => Err(mismatch(&format!("getParameter.{name}"), given, kind)),
        given => Ok(given),
    };
    let is_set = |name: &str| -> Result<bool> { Ok(option(name, Type::StrictBool)?.and_then(truth).unwrap_or(false)) };
    let (asks_for_all, shows_details) = (request.target == "*" || is_set("allParameters")?, is_set("showDetails")?);
    match option("setAt", Type::String)?.and_then(Json::as_str) {
        None | Some("startup" | "runtime") => {}
        Some(other) => {
            bail!(Kind::BadValue, "Enumeration value '{other}' for field 'getParameter.setAt' is not a valid value.")
        }
    }
    let others = request.fields.others(&request.generic);
    let shown = known.into_iter().filter(|(name, _)| asks_for_all || others.contains_key(*name));
    let shown = shown.map(|(name, value)| match shows_details {
        true => (name.to_owned(), json!({"value": value, "settableAtRuntime": false, "settableAtStartup": false})),
        false => (name.to_owned(), value),
    });
    let shown: serde_json::Map<String, Json> = shown.collect();
    if shown.is_empty() {
        return Err(Error::new(Kind::InvalidOptions, "no option found to get"));
    }
    Ok(Reply::of(shown.into()))
}

/// MongoDB's defaults. A commit is durable at the shards before it is acknowledged.
pub fn get_default_rw_concern(_request: &Request<'_>) -> Result<Reply> {
    Ok(Reply::of(json!({
        "defaultReadConcern": {"level": "local"},
        "defaultWriteConcern": {"w": "majority", "wtimeout": 0},
        "defaultReadConcernSource": "implicit",
        "defaultWriteConcernSource": "implicit",
        "localUpdateWallClockTime": now(),
    })))
}

pub fn whats_my_uri(_request: &Request<'_>) -> Result<Reply> {
    let row = row(
        "SELECT coalesce(pg_catalog.host(pg_catalog.inet_client_addr()) || ':' || pg_catalog.inet_client_port(), 'local')",
    )?;
    Ok(Reply::of(json!({"you": row.text(0)})))
}

pub fn connection_status(request: &Request<'_>) -> Result<Reply> {
    let (name, roles, privileges) = users::current()?;
    let user = json!({"user": name, "db": "admin"});
    let mut info = json!({"authenticatedUsers": [user], "authenticatedUserRoles": roles});
    if request.fields.flag("showPrivileges") {
        info["authenticatedUserPrivileges"] = privileges;
    }
    Ok(Reply::of(json!({"authInfo": info})))
}

/// The operations that match the command's other fields.
pub fn current_op(request: &Request<'_>) -> Result<Reply> {
    let own_only = request.fields.flag("$ownOps");
    let filter = Filter::parse(&request.fields.others(&request.generic).into())?;
    let mut operations = Vec::new();
    for operation in activity::operations(request.fields.flag("$all"), own_only)? {
        let stored = write::value(&ext_json::from_json(&operation)?)?;
        let document =
            raw::document(&stored).ok_or_else(|| error!(Kind::InternalError, "an operation is no document"))?;
        if filter.evaluate(document)? {
            operations.push(operation);
        }
    }
    Ok(Reply::ok().with("inprog", ReplyNode::from(Json::from(operations))))
}

/// Cancels the statement of a session, as far as PostgreSQL allows the caller to.
pub fn kill_op(request: &Request<'_>) -> Result<Reply> {
    let Some(given) = request.fields.raw("op") else { bail!(Kind::NoSuchKey, "Missing expected field \"op\"") };
    let pid = match (number(given), given.as_str().map(str::parse::<i64>)) {
        (Some(pid), _) => {
            let is_integral = pid.to_f64().fract() == 0.0;
            ensure!(is_integral, Kind::BadValue, "Expected field \"op\" to have a value that is exactly an integer");
            pid.as_i64()
        }
        (None, Some(Ok(pid))) => Some(pid),
        (None, _) => bail!(Kind::TypeMismatch, "killOp.op must be the opid of an operation, not {given}"),
    };
    let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) else {
        bail!(26823, "invalid op: {given}");
    };
    spi::query(
        "SELECT pg_catalog.pg_cancel_backend(pid) FROM pg_catalog.pg_stat_activity \
          WHERE pid = $1 AND datname = pg_catalog.current_database() AND backend_type = 'client backend'",
        &[Param::Int4(pid)],
    )?;
    Ok(Reply::of(json!({"info": "attempting to kill op"})))
}

/// Checks a collection as `check_collection` does.
pub fn validate(request: &Request<'_>) -> Result<Reply> {
    let is_set = |name: &&&str| request.fields.get(name).is_some_and(|value| truth(value) != Some(false));
    let named = |names: &'static [&'static str]| names.iter().find(is_set);
    if let Some(option) = named(&["repair", "fixMultikey"]) {
        bail!(Kind::NotImplemented, "the option '{option}' is not supported");
    }
    if let (Some(_), Some(other)) =
        (named(&["metadata"]), named(&["full", "background", "checkBSONConformance", "enforceFastCount"]))
    {
        bail!(
            Kind::InvalidOptions,
            "Running the validate command with {{metadata: true}} is not supported with {other}"
        );
    }
    let namespace = request.namespace()?;
    crate::catalog::collections::views::refuse(&namespace)?;
    let report = request.administer(&table::CHECK_COLLECTION, || {
        let options = json!({});
        let known = table::CHECK_COLLECTION.options;
        inspect::check_collection(&namespace, &Arguments::parse(&options, Form::Options("check_collection"), known)?)
    })?;
    let indexes = crate::catalog::cache::get(&namespace)?.count_of_indexes();
    Ok(Reply::of(json!({
        "ns": namespace,
        "nInvalidDocuments": report["problems"],
        "nrecords": report["documents"],
        "nIndexes": indexes,
        "valid": report["valid"],
        "warnings": [],
        "errors": report["found"],
        "shards": report["shards"],
    })))
}
