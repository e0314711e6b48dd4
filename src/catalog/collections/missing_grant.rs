//! Errors and hints for a role that lacks a grant: what it lacks, and how an administrator grants it.

use crate::pg::error::Error;
use crate::pg::server;
use docshard_core::error::Kind;
use docshard_core::sql::quote::quote_literal;
use serde_json::json;

/// How an administrator grants the current user a level on a resource.
pub(super) fn hint(level: &str, resource: &str) -> String {
    hint_of(&server::user_name(server::current_user()), level, resource)
}

/// Like [`hint`], for the role of that name.
pub(super) fn hint_of(role: &str, level: &str, resource: &str) -> String {
    let grant = grant(role, level, resource);
    format!("An administrator can grant it: {grant}; or membership of a role that has it.")
}

/// The call that grants the role of that name a level on a resource.
fn grant(role: &str, level: &str, resource: &str) -> String {
    let options = quote_literal(&json!({level: resource}).to_string());
    format!("docshard.grant_access({}, {options})", quote_literal(role))
}

/// How the current user's write can create a collection.
pub(super) fn hint_to_create(namespace: &str) -> String {
    let grant = grant(&server::user_name(server::current_user()), "own", namespace);
    format!("An administrator can: docshard.create_collection(), or {grant}.")
}

/// The error for a role to which nothing was granted: it may not even read the catalog.
pub(in crate::catalog) fn no_access() -> Error {
    let message = format!("role \"{}\" has no access to docshard", server::user_name(server::current_user()));
    Error::new(Kind::Unauthorized, message).with_hint(hint("write", "database.collection"))
}
