//! Who may do an operation that no statement calls: whoever may execute its SQL function, with the function's rights.

use super::table::Operation;
use crate::pg::error::Result;
use crate::pg::security::function::Executable;

/// Refuses a role that may not execute the operation's SQL function. The operation itself then runs as the caller,
/// whose privileges on the collection count.
pub fn check(operation: &Operation) -> Result<()> {
    Executable::find(operation.function).map(|_| ())
}

/// Runs `work` as the operation's SQL function would: functions for administration run as the extension's owner.
pub fn with_rights_of<T>(operation: &Operation, work: impl FnOnce() -> Result<T>) -> Result<T> {
    Executable::find(operation.function)?.run(work)
}
