//! Who may do an operation that no statement calls: whoever may execute its SQL function, with the function's rights.

use super::table::Operation;
use crate::pg::error::Result;
use crate::pg::security::function::Executable;

/// Refuses a role that may not execute the operation's function. The operation then runs as the caller, whose privileges on
/// the collection count.
///
/// # Errors
/// Internal ones. A lack of privileges is PostgreSQL's own ERROR (42501), as of a statement that calls the function.
pub fn check(operation: &Operation) -> Result<()> {
    Executable::find(operation.function).map(|_| ())
}

/// Runs `work` with the rights that the operation's function gives to who may execute it: administration runs as the
/// extension's owner.
///
/// # Errors
/// As [`check`]; what `work` answers.
pub fn with_rights_of<T>(operation: &Operation, work: impl FnOnce() -> Result<T>) -> Result<T> {
    Executable::find(operation.function)?.run(work)
}
