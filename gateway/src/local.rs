//! Commands that the gateway answers itself, because they are about the connection, or can have only one answer here.

use crate::reply::{self, COMMAND_NOT_FOUND, Failure, Reply};
use bson::{Bson, RawDocument, doc};
use std::net::SocketAddr;

/// Commands that may run before a login.
pub fn is_public(name: &str) -> bool {
    matches!(name, "ping" | "whatsmyuri" | "connectionStatus" | "endSessions")
}

/// True if a command has no field that a router would have to check. MongoDB does not check the fields of `whatsmyuri`. Drivers
/// add a read preference to any command.
pub fn is_plain(name: &str, command: &RawDocument) -> bool {
    let is_known = |field: &str| field == name || field == "$readPreference";
    matches!(name, "endSessions" | "whatsmyuri")
        || command.iter().all(|field| field.is_ok_and(|(field, _)| is_known(field.as_str())))
}

/// The answer; None if the router must give it.
pub fn answer(name: &str, client: SocketAddr, is_unknown: bool) -> Option<Result<Reply, Failure>> {
    Some(Ok(match name {
        "ping" => reply::ok(doc! {}),
        // Without a user there are no sessions.
        "endSessions" if is_unknown => reply::ok(doc! {}),
        "whatsmyuri" => reply::ok(doc! { "you": client.to_string() }),
        "connectionStatus" if is_unknown => {
            let none = Vec::<Bson>::new();
            reply::ok(doc! { "authInfo": { "authenticatedUsers": &none, "authenticatedUserRoles": &none } })
        }
        // The router's answer would be about another client's command that ran in the same session.
        "getLastError" | "getlasterror" => {
            return Some(Err(Failure::new(COMMAND_NOT_FOUND, format!("no such command: '{name}'"))));
        }
        _ => return None,
    }))
}
