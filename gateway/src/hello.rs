//! Replies to `hello` and to its old names `isMaster` and `ismaster`. Drivers send it first on a connection, and regularly to monitor the
//! server. No session at the router is needed.

use crate::login::MECHANISM;
use crate::reply::{BAD_VALUE, Failure, TYPE_MISMATCH};
use crate::wire::compression::{ALL, Compressor};
use crate::wire::frame::MAX_MESSAGE;
use bson::{DateTime, Document, RawBsonRef, RawDocument, doc};

/// The newest version of the wire protocol that is served: MongoDB 8.0's.
const WIRE_VERSION: i32 = 25;

const MAX_DOCUMENT: i32 = 16 * 1024 * 1024;
const MAX_BATCH: i32 = 100_000;

pub fn is_hello(name: &str) -> bool {
    matches!(name, "hello" | "isMaster" | "ismaster")
}

/// The time for which a session is remembered after its last use.
pub const SESSION_MINUTES: i32 = 30;

/// The reply's fields.
pub fn reply(name: &str, command: &RawDocument, connection: i32, compressors: &[Compressor]) -> Document {
    let primary = if name == "hello" { "isWritablePrimary" } else { "ismaster" };
    let mut fields = doc! { "helloOk": true };
    fields.insert(primary, true);
    fields.extend(doc! {
        "msg": "isdbgrid",
        "maxBsonObjectSize": MAX_DOCUMENT,
        "maxMessageSizeBytes": i32::try_from(MAX_MESSAGE).unwrap_or(i32::MAX),
        "maxWriteBatchSize": MAX_BATCH,
        "localTime": DateTime::now(),
        "logicalSessionTimeoutMinutes": SESSION_MINUTES,
        "connectionId": connection,
        "minWireVersion": 0,
        "maxWireVersion": WIRE_VERSION,
        "readOnly": false,
    });
    // The list is the same for every user, so that it does not disclose whether a role exists.
    if command.get_str("saslSupportedMechs").is_ok() {
        fields.insert("saslSupportedMechs", vec![MECHANISM]);
    }
    if !compressors.is_empty() {
        let names = ALL.iter().filter(|(_, compressor)| compressors.contains(compressor)).map(|(name, _)| *name);
        fields.insert("compression", names.collect::<Vec<_>>());
    }
    fields
}

/// Refuses a name of a user without a database, as MongoDB does: `database.user`.
pub fn check(command: &RawDocument) -> Result<(), Failure> {
    const FIELD: &str = "saslSupportedMechs";
    match command.get(FIELD) {
        Ok(Some(RawBsonRef::String(name))) if name.contains('.') => Ok(()),
        Ok(Some(RawBsonRef::String(_) | RawBsonRef::Document(_))) => {
            Err(Failure::new(BAD_VALUE, format!("{FIELD} must be a database and a user: 'database.user'")))
        }
        Ok(Some(_)) => Err(Failure::new(TYPE_MISMATCH, format!("{FIELD} must be a string"))),
        _ => Ok(()),
    }
}

/// The compressors that a client offers and the gateway has.
pub fn offered(command: &RawDocument) -> Vec<Compressor> {
    let Ok(offered) = command.get_array("compression") else { return Vec::new() };
    let known = offered.into_iter().take(10).filter_map(|name| Compressor::of_name(name.ok()?.as_str()?));
    known.collect()
}
