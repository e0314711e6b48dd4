//! MongoDB's command documents.

use crate::command;
use crate::pg::client::sole_call;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Runs a command of MongoDB's in a database, such as `{"find": "inbox", "filter": {"to": "ann"}}`, and answers as its
/// server would, errors included: `{"ok": 0, "code": …, "codeName": …, "errmsg": …}`.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn run_command(db: &str, command: Json, fcinfo: pg_sys::FunctionCallInfo) -> RawJsonb {
    // Other commands are more than what one call of the router's does.
    let _call = command::builds_indexes(&command).then(|| sole_call::Call::of(fcinfo));
    match command::run(db, &command) {
        Ok(answer) => RawJsonb::from_bytes(&answer),
        Err(error) => error.raise(),
    }
}
