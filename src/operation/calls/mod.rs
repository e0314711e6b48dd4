//! Implements the SQL functions for documents: checks options, turns the arguments into requests, and turns the results into the documents
//! that MongoDB's drivers return.
//!
//! * [`reads`], [`writes`]: the functions for documents. `api` declares them; each of them calls the function of the same name here.
//!
//! `find_one`, `update_one` and `delete_one` take the fast path of [`crate::router::by_key`] if their options are empty and the filter is a
//! document's key. `sole` says that the call is the client's whole transaction ([`crate::pg::client::sole_call`]).

pub mod reads;
pub mod writes;

use super::arguments::{Arguments, Form};
use super::rights;
use super::table::Operation;
use crate::pg::datum::json::Json;
use crate::pg::error::Result;
use docshard_core::query::specification::Role;

/// Calls `work` with the checked options of an operation.
pub fn with_options<T>(
    options: &Json,
    operation: &'static Operation,
    work: impl FnOnce(&Arguments<'_>) -> Result<T>,
) -> Result<T> {
    let json = options.parse(Role::Request)?;
    let options = Arguments::parse(&json, Form::Options(operation.function), operation.options)?;
    options.check_conflicts(operation.conflicts)?;
    rights::with_bypass(&options, || work(&options))
}
