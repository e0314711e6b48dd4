//! The face: every SQL function, thin.

pub mod balancer;
pub mod bulk_write;
pub mod chunks;
pub mod cluster;
pub mod collections;
pub mod command;
pub mod documents;
pub mod engine;
pub mod find_and_modify;
pub mod handshake;
pub mod index;
pub mod inspect;
pub mod measure;
pub mod settings;
pub mod shard;
pub mod shard_access;
pub mod status;
pub mod zones;

use crate::operation::arguments::{Arguments, Form};
use crate::operation::table::Operation;
use crate::pg::datum::json::Json;
use crate::pg::error::{Error, Result};

/// What a function answers; an error is raised.
fn run<T>(work: impl FnOnce() -> Result<T>) -> T {
    work().unwrap_or_else(|e| e.raise())
}

/// The JSON that a function answers; an error is raised.
fn answer(work: impl FnOnce() -> Result<serde_json::Value>) -> Json {
    Json(run(work).to_string())
}

/// Calls `work` with the options of an operation.
fn with_options<T>(
    options: &Json,
    operation: &'static Operation,
    work: impl FnOnce(&Arguments<'_>) -> Result<T>,
) -> Result<T> {
    let json = options.parse()?;
    let options = Arguments::parse(&json, Form::Options(operation.function), operation.options)?;
    options.check_conflicts(operation.conflicts)?;
    work(&options)
}

/// The value of an argument that must not be null, in a function that takes null for another argument, so that it is
/// called with nulls at all. (PostgreSQL answers null for every other function that is given a null.)
fn required<T>(argument: Option<T>, name: &str) -> Result<T> {
    argument.ok_or_else(|| Error::null(format!("argument \"{name}\" must not be null")))
}

/// The values of arguments that must not be null, in such a function, as variables of the same names.
macro_rules! given {
    ($($argument:ident),+) => {
        $(let $argument = $crate::api::required($argument, stringify!($argument)).unwrap_or_else(|e| e.raise());)+
    };
}
use given;
