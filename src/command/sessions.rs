//! Commands about logical sessions, as far as a router has a part in them.
//!
//! The gateway keeps the sessions; a router has none. The router checks these commands like all others, and then the gateway
//! acts. A client of SQL gets the same answers, without any effect.

use super::reply::Reply;
use super::request::{MAX_NAMED, Request};
use crate::operation::arguments::{Arguments, Fields, Form, Type, may, must};
use crate::operation::users;
use crate::pg::error::Result;
use crate::pg::server;
use docshard_core::error::{Kind, bail};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use serde_json::{Value as Json, json};

/// Minutes for which the gateway remembers a session after its last use.
const TIMEOUT: i32 = 30;

const SESSION: Fields = &[&[must("id", Type::Uuid), may("uid", Type::Any)]];
const USER: Fields = &[&[must("user", Type::String), must("db", Type::String)]];
const PATTERN: Fields = &[&[
    may("lsid", Type::Object),
    may("uid", Type::Any).refused(),
    may("users", Type::Array).refused(),
    may("roles", Type::Array).refused(),
]];

pub fn start(_request: &Request<'_>) -> Result<Reply> {
    let id = ext_json::to_json(&Value::Binary(4, bson::Uuid::new().bytes().to_vec()));
    Ok(Reply::of(json!({"id": {"id": id}, "timeoutMinutes": TIMEOUT})))
}

/// Checks a command that names sessions.
pub fn named(request: &Request<'_>) -> Result<Reply> {
    for entry in entries(request)? {
        check_session(entry, request.name)?;
    }
    Ok(Reply::ok())
}

/// Checks a command that names users. An entry for another existing user is an error: a user ends only sessions of its own.
pub fn of_users(request: &Request<'_>) -> Result<Reply> {
    let own = server::user_name(server::current_user());
    for entry in entries(request)? {
        let user = Arguments::parse(entry, Form::Command(request.name), USER)?;
        if let Some(name) = user.text("user").filter(|name| *name != own)
            && users::exists(name)?.is_some()
        {
            bail!(Kind::Unauthorized, "{}: a user can only kill sessions of its own", request.name);
        }
    }
    Ok(Reply::ok())
}

/// Checks patterns. A pattern is empty, or names one session.
pub fn by_pattern(request: &Request<'_>) -> Result<Reply> {
    for entry in entries(request)? {
        let pattern = Arguments::parse(entry, Form::Command(request.name), PATTERN)?;
        pattern.check_conflicts(&[])?;
        if let Some(session) = pattern.get("lsid") {
            check_session(session, request.name)?;
        }
    }
    Ok(Reply::ok())
}

/// Returns the entries of the command's list. MongoDB skips those that are null.
fn entries<'a>(request: &Request<'a>) -> Result<impl Iterator<Item = &'a Json>> {
    let list = request.target.as_array().map_or(&[][..], Vec::as_slice);
    if list.len() > MAX_NAMED {
        bail!(Kind::BadValue, "{} names at most {MAX_NAMED} of them", request.name);
    }
    Ok(list.iter().filter(|entry| !entry.is_null()))
}

fn check_session(entry: &Json, command: &str) -> Result<()> {
    let session = Arguments::parse(entry, Form::Command(command), SESSION)?;
    match session.get("id").map(ext_json::from_json).transpose()? {
        Some(Value::Binary(_, bytes)) if bytes.len() != 16 => {
            bail!(Kind::InvalidUUID, "{command}.id has {} bytes, and a UUID has 16", bytes.len())
        }
        _ => Ok(()),
    }
}
