//! Writes that a client numbers (`lsid`, `txnNumber`), so that it can send them again after a network error. They are executed once, and
//! answered with the same reply each time. `router::numbered` describes how.

use super::reply::{Reply, integer};
use super::request::{Request, TXN_NUMBER};
use crate::operation::arguments::number as number_of;
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::transaction::snapshot;
use crate::pg::transaction::subtransaction::{attempt, in_transaction_block};
use crate::router::numbered::Numbered;
use crate::router::writes::once;
use docshard_core::error::sqlstate::UNDEFINED_FUNCTION;
use docshard_core::error::{Kind, Retry, bail, ensure, error};
use docshard_core::routing::protocol::once::{ClaimOutcome, Number};
use docshard_core::values::document::bson::{read as bson, write::Item, write::Writer};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;

/// How often a command is tried that fails because a chunk is being moved.
const ATTEMPTS: u32 = 20;

/// BSON's binary subtype for UUIDs.
const UUID: u8 = 4;

/// The commands that may be numbered, and the fields that have their operations; None: the command is one operation.
const WRITES: &[(&str, Option<&str>)] = &[
    ("insert", Some("documents")),
    ("update", Some("updates")),
    ("delete", Some("deletes")),
    ("bulkWrite", Some("ops")),
    ("findAndModify", None),
];

/// The number of a command, if it has one.
///
/// # Errors
/// `InvalidOptions` without a session, for a negative number, and for a write of many documents; `TypeMismatch` for a session
/// whose id is not a UUID; `Location50768` for another command.
pub fn of(request: &Request<'_>) -> Result<Option<Number>> {
    let Some(number) = request.generic.get(TXN_NUMBER) else { return Ok(None) };
    let number = number_of(number).and_then(|number| number.as_i64()).filter(|number| *number >= 0);
    let number = number.ok_or_else(|| error!(Kind::InvalidOptions, "Transaction number cannot be negative"))?;
    let Some(lsid) = request.generic.get("lsid") else {
        bail!(Kind::InvalidOptions, "Transaction number requires a session ID to also be specified");
    };
    let name = request.spec.name;
    let Some((_, field)) = WRITES.iter().find(|(known, _)| *known == name) else {
        bail!(
            Kind::Location(50768),
            "txnNumber may only be provided for writes that can be sent again, not for {name}"
        );
    };
    let operations = field.map_or(&[][..], |field| request.fields.array(field));
    let is_multi = |operation: &Json| match name {
        "update" | "bulkWrite" => operation["multi"] == true,
        "delete" => operation.get("limit").and_then(number_of).is_some_and(|limit| limit.as_i64() == Some(0)),
        _ => false,
    };
    ensure!(
        !operations.iter().any(is_multi),
        Kind::InvalidOptions,
        "Cannot use (or request) retryable writes with multi=true"
    );
    let (session, command) =
        (once::session_of(uuid(lsid)?), format!("{name} {}.{}", request.db, request.target_text()));
    Ok(Some(Number { session, number, command }))
}

fn uuid(lsid: &Json) -> Result<[u8; 16]> {
    match lsid.get("id").map(ext_json::from_json) {
        Some(Ok(Value::Binary(UUID, bytes))) => bytes.try_into().map_err(|_| wrong_session()),
        _ => Err(wrong_session()),
    }
}

fn wrong_session() -> Error {
    error!(Kind::TypeMismatch, "a session is a document {{id: UUID}}")
}

/// Returns the number of operations of a command.
fn count(request: &Request<'_>) -> usize {
    let field = WRITES.iter().find(|(known, _)| *known == request.spec.name).and_then(|(_, field)| *field);
    field.map_or(1, |field| request.documents.map_or_else(|| request.fields.array(field).len(), <[_]>::len))
}

/// Runs a numbered command with `run`, unless it was executed before.
pub fn run(
    request: &Request<'_>,
    number: &Number,
    run: impl Fn() -> Result<(Reply, Vec<u8>)>,
) -> Result<(Reply, Vec<u8>)> {
    // A bulkWrite always stores its whole reply: the reply of a single write is not enough to make its cursor.
    let is_single = count(request) == 1 && request.spec.name != "bulkWrite";
    let mut attempts = 1;
    loop {
        let numbered = Numbered::begin(number, is_single);
        let done = attempt(|| {
            let (reply, bytes) = run()?;
            once::remember(&numbered, &bytes)?;
            Ok((reply, bytes))
        });
        let executed = numbered.executed();
        drop(numbered);
        let error = match (done, executed) {
            (_, Some(outcome)) => return replied(request, outcome),
            (Ok(done), None) => return Ok(done),
            (Err(error), None) => error,
        };
        // A shard of an earlier release has no functions for claims. Then the command runs as if it had no number.
        if error.sqlstate == UNDEFINED_FUNCTION && !error.is_ours {
            return attempt(run);
        }
        // The router retries only the first statement of a transaction, and that was the claim. So the whole command is retried
        // here.
        let is_whole = snapshot::per_statement() && !in_transaction_block();
        if !is_whole || error.retry != Retry::Transaction || attempts == ATTEMPTS {
            return Err(error);
        }
        sleep_ms((5 * i64::from(attempts)).min(50));
        attempts += 1;
    }
}

/// Returns the reply to a command that was executed before.
fn replied(request: &Request<'_>, outcome: ClaimOutcome) -> Result<(Reply, Vec<u8>)> {
    let bytes = match outcome {
        ClaimOutcome::Replied(bytes) => bytes,
        ClaimOutcome::Written(answer) => {
            let reply = Reply::ok();
            let reply = match request.spec.name {
                "update" => reply.with("n", integer(answer.min(1))).with("nModified", integer((answer - 1).max(0))),
                _ => reply.with("n", integer(answer)),
            };
            reply.bson()?
        }
    };
    let reply = Reply::ok().with("n", integer(0));
    Ok((reply, with_statements(request, bytes)?))
}

/// Adds MongoDB's field that names the operations which were executed before: `retriedStmtIds`, or `retriedStmtId` of findAndModify.
fn with_statements(request: &Request<'_>, mut reply: Vec<u8>) -> Result<Vec<u8>> {
    let mut writer = Writer::new();
    if request.spec.name == "findAndModify" {
        writer.field("retriedStmtId", Item::Value(&integer(0)))?;
    } else {
        let failed = failed(&reply);
        let is_ordered = request.fields.flag("ordered");
        let last = failed.iter().min().filter(|_| is_ordered).map_or(count(request), |first| *first);
        let executed = (0..last).filter(|position| !failed.contains(position));
        let executed = Value::fixed_array(executed.map(|position| integer(position as i64)).collect());
        writer.field("retriedStmtIds", Item::Value(&executed))?;
    }
    let added = writer.finish()?;
    // A BSON document is its length in four bytes, its fields, and a zero byte.
    reply.pop();
    reply.extend_from_slice(added.get(4..).unwrap_or_default());
    let length = i32::try_from(reply.len()).unwrap_or(i32::MAX).to_le_bytes();
    reply.get_mut(..4).ok_or_else(malformed)?.copy_from_slice(&length);
    Ok(reply)
}

fn malformed() -> Error {
    Error::protocol_violation("a stored reply is no document")
}

/// Returns the positions of the operations that failed according to a reply.
fn failed(reply: &[u8]) -> Vec<usize> {
    let Ok(reply) = bson::parse(reply) else { return Vec::new() };
    let position =
        |error: &Json, name: &str| error.get(name).and_then(Json::as_u64).and_then(|at| usize::try_from(at).ok());
    let of_batch = reply["writeErrors"].as_array().into_iter().flatten().filter_map(|error| position(error, "index"));
    let of_bulk = reply["cursor"]["firstBatch"].as_array().into_iter().flatten();
    let of_bulk = of_bulk.filter(|done| done.get("code").is_some()).filter_map(|error| position(error, "idx"));
    of_batch.chain(of_bulk).collect()
}

/// Claims the number of a command whose operations cannot claim by themselves, before the first one. Does nothing for a command
/// without a number. `creates`: an operation creates the collection if there is none.
pub fn claim(namespace: &str, creates: bool) -> Result<()> {
    if once::may_claim_by_itself() { Ok(()) } else { once::claim_for_all(namespace, creates) }
}
