//! `docshard.run_command(db, command)`: runs MongoDB's command documents and answers as MongoDB's server would.
//! `docshard.run_command_bson` does the same for MongoDB's protocol: the command and the answer are BSON, without JSON text between.
//!
//! * [`table`]: all commands as data: name, fields with their types, the database where each may run, and its function.
//! * [`request`]: the form of an entry, and the check of a command document against it; [`stable_api`] is a part of that check.
//! * [`reply`], [`failure`]: answers and errors in MongoDB's form, and the errors that must be raised instead.
//! * [`documents`], [`write`], [`bulk_write`], [`find`], [`aggregate`], [`cursors`], [`explain`]: the commands for documents.
//! * [`numbered`]: writes that clients number; they are executed once.
//! * [`config`]: updates of the database `config`, and the order of its fields.
//! * [`collections`], [`cluster`], [`users`], [`sessions`], [`server`], [`information`]: the other commands.
//!
//! A command runs an operation (`crate::operation`), as an SQL function of schema `docshard` does. A role may run the command if
//! and only if it may execute that function. The entries of [`table`] name the functions.
//!
//! INVARIANT: a command runs in a subtransaction. A command that answers `ok: 0` has changed nothing; an error that must end the
//! whole transaction (a cancel, a serialization failure in a transaction block) is raised as PostgreSQL's ERROR.

pub mod aggregate;
pub mod bulk_write;
pub mod cluster;
pub mod collections;
pub mod config;
pub mod cursors;
pub mod documents;
pub mod explain;
pub mod failure;
pub mod find;
pub mod information;
pub mod numbered;
pub mod reply;
pub mod request;
pub mod server;
pub mod sessions;
pub mod stable_api;
pub mod table;
pub mod users;
pub mod write;

use crate::catalog::cluster::field_order;
use crate::catalog::cluster::identity::check_router;
use crate::catalog::collections::namespace;
use crate::operation::rights;
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};
use crate::pg::process::timeout::Deadline;
use crate::pg::server::wal;
use crate::pg::transaction::subtransaction::{attempt, in_transaction_block};
use docshard_core::error::Kind;
use docshard_core::query::specification::{self, Role};
use docshard_core::values::document::bson::read as bson;
use docshard_core::values::document::field_order::Keeping;
use reply::Reply;
use request::Request;

/// The command whose documents are not parsed as JSON, and the field that has them.
const INSERT: &str = "insert";
const DOCUMENTS: &str = "documents";

/// Runs a command and returns the answer as jsonb. Returns only errors that must end the transaction. `sole`: the call is the client's
/// whole transaction.
pub fn run(db: &str, command: &Json, sole: bool) -> Result<Vec<u8>> {
    answer(db, document(command).map(|json| (json, None)), Form::Json, sole)
}

/// Like [`run`]; the command and the answer are BSON.
pub fn run_bson(db: &str, command: &[u8], sole: bool) -> Result<Vec<u8>> {
    // If the catalog cannot be read, `execute` meets the error again and answers it.
    let _keeping = Keeping::order_if(field_order::is_kept().unwrap_or(false));
    // Documents to be inserted need not become JSON first.
    let left = (bson::first_name(command) == Some(INSERT)).then_some(DOCUMENTS);
    let answer = answer(db, specification::read_bson(command, Role::Request, left), Form::Bson, sole);
    // The gateway tells its client the transaction's id. By this id the client may later ask whether the transaction was committed.
    if in_transaction_block() {
        wal::flush_transaction_id();
    }
    answer
}

/// Parses a command document. Its first field is the command's name.
fn document(command: &Json) -> Result<serde_json::Value> {
    let json = command.parse(Role::Request)?;
    if command.is_unordered() { request::name_first(json, table::COMMANDS) } else { Ok(json) }
}

/// The form of a command and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Bson,
}

impl Form {
    fn encode(self, reply: &Reply) -> Result<Vec<u8>> {
        match self {
            Form::Json => reply.bytes(),
            Form::Bson => reply.bson(),
        }
    }
}

fn answer(db: &str, command: Result<bson::Split<'_>>, form: Form, sole: bool) -> Result<Vec<u8>> {
    match command.and_then(|command| execute(db, &command, form, sole)) {
        Ok(bytes) => Ok(bytes),
        Err(error) if failure::must_end_transaction(&error) => Err(error),
        Err(error) => form.encode(&failure::shaped(&error)),
    }
}

fn execute(db: &str, (json, documents): &bson::Split<'_>, form: Form, sole: bool) -> Result<Vec<u8>> {
    // The replies to numbered writes are stored as BSON, so only a command in BSON may have a number.
    let mut request = Request::parse(db, json, table::COMMANDS, form == Form::Bson)?;
    (request.documents, request.sole) = (documents.as_deref(), sole);
    let deadline = request.max_time_ms()?.map(Deadline::after);
    let run = || -> Result<(Reply, Vec<u8>)> {
        check_router()?;
        namespace::check_database(db)?;
        if request.spec.admin_only && db != "admin" {
            let message = format!("{} may only be run against the admin database.", request.name);
            return Err(Error::new(Kind::Unauthorized, message)
                .with_hint("The first argument is the database: run_command('admin', …)."));
        }
        let reply = rights::with_bypass(&request.fields, || request.run())?;
        // A command whose answer is too large is rolled back.
        let bytes = form.encode(&reply)?;
        Ok((reply, bytes))
    };
    let outcome = match numbered::of(&request)? {
        None => attempt(run),
        Some(number) => numbered::run(&request, &number, run),
    };
    let outcome = outcome.map_err(|error| match &deadline {
        Some(deadline) => deadline.explain(error),
        None => error,
    });
    information::note_outcome(&request, outcome.as_ref().map(|(reply, _)| reply));
    outcome.map(|(_, bytes)| bytes)
}
