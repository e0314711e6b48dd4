//! Runs changes of layout as jobs of background workers, for functions that a user calls.

use super::request::{Request, Resharded};
use super::{abort, coordinator, settle};
use crate::pg::error::Result;
use crate::pg::process::job::{self, from_json, to_json};
use serde_json::{Value, json};

const RESHARD: &str = "reshard collection";
const ABORT: &str = "abort resharding";
const RECOVER: &str = "recover resharding";

/// Registers the jobs.
pub(super) fn init() {
    job::register(RESHARD, |request| to_json(coordinator::run(&from_json(request)?)?));
    job::register(ABORT, |id| to_json(abort::abort(from_json(id)?)?));
    job::register(RECOVER, |_| to_json(settle::recover()?));
}

/// Changes a collection's layout in a background worker and waits for it. A cancel aborts the change.
pub fn change_and_wait(request: &Request) -> Result<Resharded> {
    let title = format!("docshard: copying {}", request.namespace);
    from_json(&job::run(RESHARD, &title, &to_json(request)?)?)
}

/// Aborts a change in a background worker; returns whether it is aborted.
pub fn abort_and_wait(id: i64) -> Result<bool> {
    from_json(&job::run(ABORT, "docshard: aborting a change of layout", &json!(id))?)
}

/// Ends changes without a coordinator, in a background worker; returns how many could not be ended.
pub fn recover_and_wait() -> Result<i64> {
    from_json(&job::run(RECOVER, "docshard: recovering changes of layout", &Value::Null)?)
}
