//! Checks who may run an operation that no statement calls: the roles that may execute its SQL function. It runs with the
//! function's rights.

use super::table::Operation;
use crate::pg::error::Result;
use crate::pg::security::function::Executable;

/// Returns an error for a role that may not execute the operation's SQL function. The operation then runs as the caller, whose
/// privileges on the collection are checked.
pub fn check(operation: &Operation) -> Result<()> {
    Executable::find(operation.function).map(|_| ())
}

/// Runs `work` with the rights of the operation's SQL function: functions for administration run as the extension's owner.
pub fn with_rights_of<T>(operation: &Operation, work: impl FnOnce() -> Result<T>) -> Result<T> {
    Executable::find(operation.function)?.run(work)
}
