//! Checks the caller's rights where an operation runs without a call of its SQL function, as by a command. The caller must have the right to
//! execute that function, and the operation runs with the function's rights.

use super::arguments::Arguments;
use super::table::{self, Operation};
use crate::catalog::collections::grants;
use crate::pg::error::Result;
use crate::pg::security::bypass;
use crate::pg::security::function::Executable;

/// Checks that the caller may execute the operation's SQL function. For operations that then run as the caller: the caller's privileges on the
/// collection are checked when they run.
pub fn check(operation: &Operation) -> Result<()> {
    Executable::find(operation.function).map(|_| ())
}

/// Runs `work`, without validators if the arguments have `bypassDocumentValidation`. Only roles that may change validators may give it.
/// Errors: `Unauthorized`.
pub fn with_bypass<T>(arguments: &Arguments<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let is_asked = arguments.flag(table::BYPASS.name);
    if is_asked {
        check(&table::MODIFY_COLLECTION)?;
    }
    bypass::during(is_asked, work)
}

/// Runs `work` with the rights of the operation's SQL function: functions for administration run as the extension's owner.
pub fn with_rights_of<T>(operation: &Operation, work: impl FnOnce() -> Result<T>) -> Result<T> {
    Executable::find(operation.function)?.run(work)
}

/// Like [`with_rights_of`], for an operation that changes this collection, view or database alone: its owners (see [`grants`]) need no right to
/// execute the function, which is for all databases.
pub fn with_rights_on<T>(operation: &Operation, resource: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if grants::owns(resource)? {
        return Executable::granted(operation.function)?.run(work);
    }
    with_rights_of(operation, work)
}
