//! Replies that the gateway makes itself, and labels of errors.

use bson::{Bson, Document, RawDocument, doc};

/// A reply's BSON.
pub type Reply = Vec<u8>;

/// An error in MongoDB's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: i32,
    pub name: String,
    pub message: String,
    pub labels: Vec<&'static str>,
}

/// The whole transaction may be run again.
pub const TRANSIENT: &str = "TransientTransactionError";
/// A write may be sent again, as it is executed once.
pub const RETRYABLE_WRITE: &str = "RetryableWriteError";
/// A commit may be sent again, which tells its result.
pub const UNKNOWN_RESULT: &str = "UnknownTransactionCommitResult";

pub const BAD_VALUE: (i32, &str) = (2, "BadValue");
pub const HOST_UNREACHABLE: (i32, &str) = (6, "HostUnreachable");
pub const PROTOCOL_ERROR: (i32, &str) = (17, "ProtocolError");
pub const FAILED_TO_PARSE: (i32, &str) = (9, "FailedToParse");
pub const UNAUTHORIZED: (i32, &str) = (13, "Unauthorized");
pub const TYPE_MISMATCH: (i32, &str) = (14, "TypeMismatch");
pub const AUTHENTICATION_FAILED: (i32, &str) = (18, "AuthenticationFailed");
pub const CURSOR_NOT_FOUND: (i32, &str) = (43, "CursorNotFound");
pub const EXCEEDED_TIME: (i32, &str) = (50, "MaxTimeMSExpired");
pub const COMMAND_NOT_FOUND: (i32, &str) = (59, "CommandNotFound");
pub const INVALID_OPTIONS: (i32, &str) = (72, "InvalidOptions");
pub const INVALID_NAMESPACE: (i32, &str) = (73, "InvalidNamespace");
pub const ALREADY_STARTED: (i32, &str) = (117, "ConflictingOperationInProgress");
pub const SHUTDOWN: (i32, &str) = (91, "ShutdownInProgress");
pub const STEPPED_DOWN: (i32, &str) = (189, "PrimarySteppedDown");
pub const COMMAND_FAILED: (i32, &str) = (125, "CommandFailed");
pub const MEMORY_LIMIT: (i32, &str) = (146, "ExceededMemoryLimit");
pub const TRANSACTION_TOO_OLD: (i32, &str) = (225, "TransactionTooOld");
pub const NO_SUCH_TRANSACTION: (i32, &str) = (251, "NoSuchTransaction");
pub const TRANSACTION_COMMITTED: (i32, &str) = (256, "TransactionCommitted");
pub const NOT_IN_TRANSACTION: (i32, &str) = (263, "OperationNotSupportedInTransaction");
pub const MECHANISM_UNAVAILABLE: (i32, &str) = (334, "MechanismUnavailable");
pub const POOL_TIMEOUT: (i32, &str) = (202, "NetworkInterfaceExceededTimeLimit");

impl Failure {
    pub fn new((code, name): (i32, &str), message: impl Into<String>) -> Self {
        Self { code, name: name.to_owned(), message: message.into(), labels: Vec::new() }
    }

    pub fn labelled(mut self, label: &'static str) -> Self {
        self.labels.push(label);
        self
    }

    pub fn reply(&self) -> Reply {
        let mut fields = doc! { "ok": 0.0, "errmsg": &self.message, "code": self.code, "codeName": &self.name };
        if !self.labels.is_empty() {
            fields.insert("errorLabels", self.labels.clone());
        }
        bytes(&fields)
    }
}

/// A reply with these fields and `ok: 1`.
pub fn ok(mut fields: Document) -> Reply {
    fields.insert("ok", 1.0);
    bytes(&fields)
}

/// The reply with a document as its last field.
pub fn with_document(mut reply: Reply, name: &str, value: &Document) -> Reply {
    reply.pop();
    reply.push(3);
    reply.extend(name.as_bytes());
    reply.push(0);
    reply.extend(bytes(value));
    reply.push(0);
    let length = i32::try_from(reply.len()).unwrap_or(i32::MAX).to_le_bytes();
    if let Some(at) = reply.first_chunk_mut::<4>() {
        *at = length;
    }
    reply
}

/// True for a reply of a command that has failed, or some of whose writes have.
pub fn has_failed(reply: &[u8]) -> bool {
    let Ok(document) = RawDocument::from_bytes(reply) else { return true };
    let is_ok = document.get("ok").ok().flatten().and_then(|ok| ok.as_f64()) == Some(1.0);
    !is_ok || matches!(document.get("writeErrors"), Ok(Some(_)) | Err(_))
}

/// The code of a failed command's reply.
pub fn code_of(reply: &[u8]) -> Option<i32> {
    RawDocument::from_bytes(reply).ok()?.get_i32("code").ok()
}

/// The reply with a label among its `errorLabels`, or without it.
pub fn relabelled(reply: &[u8], label: &str, wanted: bool) -> Reply {
    let Ok(mut document) = Document::from_reader(reply) else { return reply.to_vec() };
    let mut labels = document.get_array("errorLabels").cloned().unwrap_or_default();
    labels.retain(|found| found.as_str() != Some(label));
    if wanted {
        labels.push(Bson::String(label.to_owned()));
    }
    document.insert("errorLabels", labels);
    bytes(&document)
}

/// The reply of `connectionStatus` with the database by which the client has logged in: the router knows only its role.
pub fn with_users_of(reply: &[u8], database: &str) -> Reply {
    let Ok(mut document) = Document::from_reader(reply) else { return reply.to_vec() };
    let users = document.get_document_mut("authInfo").and_then(|info| info.get_array_mut("authenticatedUsers"));
    for user in users.into_iter().flatten().filter_map(Bson::as_document_mut) {
        user.insert("db", database);
    }
    bytes(&document)
}

/// The documents are made here, without a name that holds a zero byte, so they can be written.
fn bytes(document: &Document) -> Reply {
    document.to_vec().unwrap_or_default()
}
