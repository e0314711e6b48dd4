//! Commands about this server's identity and version, and about the session's last command: hello, buildInfo, listCommands, getLastError.

use super::reply::{Reply, ReplyNode};
use super::request::Request;
use super::stable_api;
use crate::operation::writing::MAX_BATCH;
use crate::pg::error::{Error, Result};
use crate::pg::{server, spi};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{MAX_DEPTH, MAX_DOCUMENT_BYTES};
use serde_json::{Map, Value as Json, json};
use std::cell::RefCell;

/// The version of MongoDB that commands and answers follow.
pub const VERSION: &str = "8.0.0";
const VERSION_ARRAY: [i32; 4] = [8, 0, 0, 0];
/// The wire protocol version of that release.
const WIRE_VERSION: i32 = 25;

/// The result of this session's last command, for getLastError.
#[derive(Debug, Default)]
struct Last {
    /// the role that ran it: others must not see its error
    owner: u32,
    n: i64,
    error: Option<(i64, String, String)>,
    updated_existing: Option<bool>,
    upserted: Option<Value>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last::default());
}

pub fn note_outcome(request: &Request<'_>, outcome: std::result::Result<&Reply, &Error>) {
    if request.spec.name == "getLastError" {
        return;
    }
    let mut last = Last { owner: server::current_user().to_u32(), ..Last::default() };
    let fail = |error: &Error| {
        let (code, name) = (error.kind.code().into(), error.kind.name());
        Some((code, name.into_owned(), error.message.clone()))
    };
    match outcome {
        Err(error) => last.error = fail(error),
        Ok(reply) => {
            let number = |node: Option<&ReplyNode>| match node {
                Some(ReplyNode::Value(Value::Number(number))) => number.as_i64(),
                _ => None,
            };
            if request.spec.writes {
                // As in MongoDB, `n` is 0 after an insert.
                last.n = if request.spec.name == "insert" { 0 } else { number(reply.get("n")).unwrap_or(0) };
            }
            if request.spec.name == "update" {
                if let Some(ReplyNode::Value(Value::Array(upserted))) = reply.get("upserted")
                    && let Some(Value::Object(fields)) = upserted.first()
                {
                    last.upserted = fields.iter().find(|(name, _)| name == "_id").map(|(_, id)| id.clone());
                }
                last.updated_existing = Some(last.n > 0 && last.upserted.is_none());
            }
            if let Some(ReplyNode::Value(Value::Array(errors))) = reply.get("writeErrors")
                && let Some(Value::Object(fields)) = errors.last()
            {
                let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value);
                let text = |name: &str| match field(name) {
                    Some(Value::String(text)) => text.clone(),
                    _ => String::new(),
                };
                let code = match field("code") {
                    Some(Value::Number(number)) => number.as_i64().unwrap_or(0),
                    _ => 0,
                };
                last.error = Some((code, text("codeName"), text("errmsg")));
            }
        }
    }
    LAST.set(last);
}

/// Returns the result of the last command to the role that ran it, and an empty result to other roles.
pub fn get_last_error(_request: &Request<'_>) -> Result<Reply> {
    let (connection, none) = (std::process::id(), Last::default());
    Ok(LAST.with_borrow(|last| {
        let last = if last.owner == server::current_user().to_u32() { last } else { &none };
        let mut answer =
            json!({"connectionId": connection, "n": last.n, "syncMillis": 0, "writtenTo": null, "err": null});
        if let Some(updated) = last.updated_existing {
            answer["updatedExisting"] = updated.into();
        }
        if let Some((code, name, message)) = &last.error {
            answer["err"] = message.as_str().into();
            answer["code"] = (*code).into();
            answer["codeName"] = name.as_str().into();
        }
        let reply = Reply::of(answer);
        match &last.upserted {
            Some(id) => reply.with("upserted", id.clone()),
            None => reply,
        }
    }))
}

pub fn hello(request: &Request<'_>) -> Result<Reply> {
    let rows = spi::query(
        "SELECT pg_catalog.to_char(pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
                pg_catalog.current_setting('transaction_read_only') = 'on', pg_catalog.pg_is_in_recovery()",
        &[],
    )?;
    let (now, read_only, standby) =
        rows.first().map_or((String::new(), false, false), |row| (row.text(0).to_owned(), row.bool(1), row.bool(2)));
    let mut answer = json!({
        "helloOk": true,
        "msg": "isdbgrid",
        "maxBsonObjectSize": MAX_DOCUMENT_BYTES,
        "maxMessageSizeBytes": 48_000_000,
        "maxWriteBatchSize": MAX_BATCH,
        "localTime": {"$date": now},
        "connectionId": std::process::id(),
        "minWireVersion": 0,
        "maxWireVersion": WIRE_VERSION,
        "readOnly": read_only || standby,
    });
    let name = if request.name == "hello" { "isWritablePrimary" } else { "ismaster" };
    answer[name] = (!standby).into();
    Ok(Reply::of(answer))
}

pub fn build_info(_request: &Request<'_>) -> Result<Reply> {
    let rows = spi::query("SELECT pg_catalog.current_setting('server_version')", &[])?;
    let postgresql = rows.first().map_or("", |row| row.text(0));
    Ok(Reply::of(json!({
        "version": VERSION,
        "versionArray": VERSION_ARRAY,
        "docshard": env!("CARGO_PKG_VERSION"),
        "postgresql": postgresql,
        "bits": usize::BITS,
        "debug": cfg!(debug_assertions),
        "maxBsonObjectSize": MAX_DOCUMENT_BYTES,
        "maxDocumentDepth": MAX_DEPTH,
        "javascriptEngine": "none",
        "storageEngines": ["postgresql"],
        "modules": [],
    })))
}

pub fn server() -> Result<Json> {
    let rows = spi::query(
        "SELECT coalesce(pg_catalog.host(pg_catalog.inet_server_addr()), 'localhost'), \
                pg_catalog.current_setting('port')::pg_catalog.int4",
        &[],
    )?;
    let (host, port) = rows.first().map_or(("localhost", 0), |row| (row.text(0), row.i32(1)));
    Ok(json!({"host": host, "port": port, "version": VERSION}))
}

pub fn list_commands(request: &Request<'_>) -> Result<Reply> {
    let commands: Map<String, Json> = request
        .commands
        .iter()
        .map(|command| {
            let shown = json!({
                "help": command.help,
                "adminOnly": command.admin_only,
                "secondaryOk": !command.writes,
                "requiresAuth": true,
                "apiVersions": stable_api::versions(command.name),
                "deprecatedApiVersions": [],
                "aliases": command.aliases,
                "fields": command.fields.iter().flat_map(|group| group.iter()).map(|field| field.name).collect::<Vec<_>>(),
                "functions": command.operations.iter().map(|operation| operation.function).collect::<Vec<_>>(),
            });
            (command.name.to_owned(), shown)
        })
        .collect();
    Ok(Reply::of(json!({"commands": commands})))
}
