//! Replies that the gateway makes itself.

use bson::{Document, doc};

/// A reply's BSON.
pub type Reply = Vec<u8>;

/// An error in MongoDB's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: i32,
    pub name: String,
    pub message: String,
}

pub const BAD_VALUE: (i32, &str) = (2, "BadValue");
pub const HOST_UNREACHABLE: (i32, &str) = (6, "HostUnreachable");
pub const PROTOCOL_ERROR: (i32, &str) = (17, "ProtocolError");
pub const FAILED_TO_PARSE: (i32, &str) = (9, "FailedToParse");
pub const UNAUTHORIZED: (i32, &str) = (13, "Unauthorized");
pub const AUTHENTICATION_FAILED: (i32, &str) = (18, "AuthenticationFailed");
pub const CURSOR_NOT_FOUND: (i32, &str) = (43, "CursorNotFound");
pub const COMMAND_NOT_FOUND: (i32, &str) = (59, "CommandNotFound");
pub const MEMORY_LIMIT: (i32, &str) = (146, "ExceededMemoryLimit");
pub const MECHANISM_UNAVAILABLE: (i32, &str) = (334, "MechanismUnavailable");
pub const POOL_TIMEOUT: (i32, &str) = (202, "NetworkInterfaceExceededTimeLimit");

impl Failure {
    pub fn new((code, name): (i32, &str), message: impl Into<String>) -> Self {
        Self { code, name: name.to_owned(), message: message.into() }
    }

    pub fn reply(&self) -> Reply {
        bytes(&doc! { "ok": 0.0, "errmsg": &self.message, "code": self.code, "codeName": &self.name })
    }
}

/// A reply with these fields and `ok: 1`.
pub fn ok(mut fields: Document) -> Reply {
    fields.insert("ok", 1.0);
    bytes(&fields)
}

/// The documents are made here, without a name that holds a zero byte, so they can be written.
fn bytes(document: &Document) -> Reply {
    document.to_vec().unwrap_or_default()
}
