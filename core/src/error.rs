//! Errors: the type of all of them, and one table that maps each kind to MongoDB's code and name and PostgreSQL's SQLSTATE.
//!
//! An error is a value until it is raised; only then its texts are made. Texts are read only where an error of another server, or one that
//! PostgreSQL has raised, is received ([`report`]): no other code looks for a meaning in a text.

pub mod sqlstate;

pub mod report;

use serde_json::Value as Json;
use sqlstate::SqlState;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The result of fallible functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of docshard's, or of PostgreSQL's, here or on another node. It is as large as a pointer, because frequently called functions
/// return it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Parts>);

/// The parts of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The class of the error, as in MongoDB; for an error of PostgreSQL's, the nearest.
    pub kind: Kind,
    /// True if docshard has raised it, here or on another node: it is then reported with its kind's code and name.
    pub is_ours: bool,
    /// PostgreSQL's code: mostly that of the kind.
    pub sqlstate: SqlState,
    /// The message.
    pub message: String,
    /// Details of the error. The DETAIL that is reported also has the kind's code and name.
    pub detail: Option<String>,
    /// A suggestion how to fix the problem, where that is not obvious.
    pub hint: Option<String>,
    /// Where or when the error has happened, besides the shards.
    pub context: Option<String>,
    /// The shards that have passed the error on. This node received it from the last one.
    pub shards: Vec<String>,
    /// The violated unique index, in an error of docshard's.
    pub duplicate: Option<Box<DuplicateKey>>,
    /// The database and the collection whose validator has refused a document, in an error of docshard's.
    pub validated: Option<Box<(String, String)>>,
    /// Whether the statement can run again at once, as it has done nothing.
    pub retry: Retry,
}

/// Whether and how a statement that was refused, and has done nothing, can run again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retry {
    /// It cannot run again.
    #[default]
    None,
    /// It can run again with a newer chunk map.
    NewMap,
    /// It can run again over a new connection, which goes to another host of the server.
    OtherHost,
    /// It can run again after a new handshake, with a newer position of the shard.
    NewHandshake,
    /// It can run again only with its whole transaction, and with a newer chunk map.
    Transaction,
}

/// The unique index that an insert or an update violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuplicateKey {
    /// The database of the namespace.
    pub schema: String,
    /// The rest of the namespace.
    pub table: String,
    /// The index's name.
    pub index: String,
    /// The index's paths, each with true for descending.
    pub fields: Vec<(String, bool)>,
    /// The key of each path, as Extended JSON, if known.
    pub values: Option<Vec<Json>>,
}

impl Error {
    /// An error of docshard's.
    pub fn new(kind: impl Into<Kind>, message: impl Into<String>) -> Self {
        let kind = kind.into();
        Self(Box::new(Parts { is_ours: true, kind, ..Self::parts_of(kind.sqlstate(), shown(message.into())) }))
    }

    /// An error that is reported without a code of MongoDB's, as PostgreSQL's own are.
    pub fn of_sqlstate(sqlstate: SqlState, message: impl Into<String>) -> Self {
        Self(Box::new(Self::parts_of(sqlstate, message.into())))
    }

    fn parts_of(sqlstate: SqlState, message: String) -> Parts {
        Parts {
            kind: Kind::nearest(sqlstate),
            is_ours: false,
            sqlstate,
            message,
            detail: None,
            hint: None,
            context: None,
            shards: Vec::new(),
            duplicate: None,
            validated: None,
            retry: if sqlstate == sqlstate::STALE { Retry::NewMap } else { Retry::None },
        }
    }

    /// The error of an answer from another node that violates the protocol.
    pub fn protocol_violation(message: impl Into<String>) -> Self {
        Self::new(Kind::InternalError, message).with_sqlstate(sqlstate::PROTOCOL_VIOLATION)
    }

    /// The error of an unexpected SQL null.
    pub fn null(message: impl Into<String>) -> Self {
        Self::new(Kind::TypeMismatch, message).with_sqlstate(sqlstate::NULL_VALUE_NOT_ALLOWED)
    }

    /// The error of a null argument.
    pub fn null_argument(name: &str) -> Self {
        Self::null(format!("argument \"{name}\" must not be null"))
    }

    /// The same error of another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: impl Into<Kind>) -> Self {
        self.kind = kind.into();
        self.sqlstate = self.kind.sqlstate();
        self
    }

    /// The same error with an SQLSTATE that is not its kind's.
    #[must_use]
    pub fn with_sqlstate(mut self, sqlstate: SqlState) -> Self {
        self.sqlstate = sqlstate;
        if sqlstate == sqlstate::STALE {
            self.retry = Retry::NewMap;
        }
        self
    }

    /// The same error with another message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// The same error with a detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(shown(hint.into()));
        self
    }

    /// The same error with this context alone.
    #[must_use]
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self.shards.clear();
        self
    }

    /// True if a shard has raised it, or is the reason, and no other place is named.
    pub fn is_of_shard(&self, name: &str) -> bool {
        self.context.is_none() && self.shards == [name]
    }

    /// True if it says where it has happened.
    pub fn has_place(&self) -> bool {
        self.context.is_some() || !self.shards.is_empty()
    }

    /// The same error with the place of another one.
    #[must_use]
    pub fn at_place_of(mut self, other: &Self) -> Self {
        self.context.clone_from(&other.context);
        self.shards.clone_from(&other.shards);
        self
    }

    /// The same error with a shard as its only context.
    #[must_use]
    pub fn at_shard(mut self, name: impl Into<String>) -> Self {
        self.context = None;
        self.shards = vec![name.into()];
        self
    }

    /// Returns the error's parts.
    pub fn into_parts(self) -> Parts {
        *self.0
    }

    /// Returns the error's message alone.
    pub fn into_message(self) -> String {
        self.0.message
    }

    /// Its message without values of documents. Stored errors are shown also to roles that may not read the collection.
    ///
    /// RULE: docshard's own errors about documents that are copied have values only in DETAIL. Errors of PostgreSQL about data, and those
    /// that a function of a user raises, may quote values in their message: these are left out.
    pub fn message_without_values(&self) -> Cow<'_, str> {
        let quotes =
            [sqlstate::class::DATA_EXCEPTION, sqlstate::class::RAISED].iter().any(|class| self.is_of_class(class));
        if self.is_ours || !quotes {
            return Cow::Borrowed(&self.message);
        }
        format!("an error with values of documents, SQLSTATE {}", String::from_utf8_lossy(&self.sqlstate)).into()
    }

    /// Like [`Self::message_without_values`], with the place of the error.
    pub fn text_without_values(&self) -> String {
        let message = self.message_without_values();
        match self.context_text() {
            Some(context) if matches!(message, Cow::Borrowed(_)) => format!("{message} ({context})"),
            // The context may have values, too.
            _ => message.into_owned(),
        }
    }

    /// True if the router's map is stale: the statement should run again with a newer map.
    pub fn is_stale(&self) -> bool {
        self.retry == Retry::NewMap
    }

    /// True if the shard could not be reached, or its connection was lost. False for a server that refuses the handshake, as one
    /// that is not the shard does, and for a malformed answer: these are mistakes to be corrected, not outages.
    pub fn is_out_of_reach(&self) -> bool {
        let is_answer = [sqlstate::REFUSED_CONNECTION, sqlstate::PROTOCOL_VIOLATION].contains(&self.sqlstate);
        (self.is_of_class(sqlstate::class::CONNECTION) || self.is_of_class(sqlstate::class::SHUTDOWN)) && !is_answer
    }

    /// True if the SQLSTATE begins with these characters.
    pub fn is_of_class(&self, class: &[u8]) -> bool {
        self.sqlstate.starts_with(class)
    }

    /// Marks the refusal of a handshake: the statement should run again at the next host if there is one, or with a newer handshake
    /// if the shard refused writes as its counter is ahead. Either the catalog is then an older copy, or the worker has advanced the
    /// counter since the handshake was read, and the next one is accepted.
    #[must_use]
    pub fn of_handshake(mut self, other_host: bool) -> Self {
        if other_host {
            self.retry = Retry::OtherHost;
        } else if self.sqlstate == sqlstate::READ_ONLY {
            self.retry = Retry::NewHandshake;
        }
        self
    }
}

impl Deref for Error {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut Parts {
        &mut self.0
    }
}

/// Makes an [`Error`] of a kind, or of MongoDB's code, and a format: `error!(Kind::BadValue, "unknown operator: {name}")`.
#[doc(hidden)]
#[macro_export]
macro_rules! __error {
    ($kind:expr, $($message:tt)+) => { $crate::error::Error::new($kind, ::std::fmt::format(format_args!($($message)+))) };
}

/// Returns an [`Error`] of a kind and a format from the function around it.
#[doc(hidden)]
#[macro_export]
macro_rules! __bail {
    ($($error:tt)+) => { return Err($crate::error::error!($($error)+)) };
}

/// Returns an [`Error`] from the function around it unless a condition holds.
#[doc(hidden)]
#[macro_export]
macro_rules! __ensure {
    ($condition:expr, $($error:tt)+) => { if !$condition { $crate::error::bail!($($error)+) } };
}

pub use {__bail as bail, __ensure as ensure, __error as error};

/// How many bytes of the beginning and of the end of a longer message or hint are shown. Between them is the client's input that it quotes.
const SHOWN_BYTES: [usize; 2] = [1024, 256];

/// Makes a text that quotes a client's input fit for PostgreSQL's messages and jsonb, which cannot hold zero bytes: escapes these,
/// and leaves out the middle of a long one.
fn shown(mut text: String) -> String {
    if text.len() > SHOWN_BYTES.iter().sum::<usize>() {
        let (end, rest) =
            (text.floor_char_boundary(SHOWN_BYTES[0]), text.ceil_char_boundary(text.len() - SHOWN_BYTES[1]));
        let left_out = format!("… ({} more bytes) …", rest - end);
        text.replace_range(end..rest, &left_out);
    }
    if text.contains('\0') { text.replace('\0', "\\u0000") } else { text }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

macro_rules! kinds {
    ($($kind:ident = $code:literal, $sqlstate:ident;)*) => {
        /// The class of an error: one of MongoDB's codes, with an SQLSTATE that fits.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            /// One of MongoDB's codes that have no name of their own: `Location(40324)` is called `Location40324`.
            Location(i32),
            $(
                #[doc = concat!("MongoDB's code ", stringify!($code), ", SQLSTATE ", stringify!($sqlstate), ".")]
                $kind,
            )*
        }

        impl From<i32> for Kind {
            fn from(code: i32) -> Kind {
                match code { $($code => Kind::$kind,)* _ => Kind::Location(code) }
            }
        }

        impl Kind {
            /// MongoDB's error code.
            pub const fn code(self) -> i32 {
                match self { Kind::Location(code) => code, $(Kind::$kind => $code,)* }
            }

            /// MongoDB's name of the code.
            pub fn name(self) -> Cow<'static, str> {
                match self {
                    Kind::Location(code) => format!("Location{code}").into(),
                    $(Kind::$kind => stringify!($kind).into(),)*
                }
            }

            /// PostgreSQL's SQLSTATE.
            pub const fn sqlstate(self) -> SqlState {
                match self {
                    // A regular expression that backtracks too often.
                    Kind::Location(51156) => sqlstate::STATEMENT_TOO_COMPLEX,
                    // Definitions of indexes.
                    Kind::Location(16764 | 31303 | 7246201 | 7246204) => sqlstate::INVALID_OBJECT_DEFINITION,
                    Kind::Location(_) => sqlstate::INVALID_PARAMETER_VALUE,
                    $(Kind::$kind => sqlstate::$sqlstate,)*
                }
            }
        }
    };
}

kinds! {
    InternalError = 1, INTERNAL_ERROR;
    BadValue = 2, INVALID_PARAMETER_VALUE;
    GraphContainsCycle = 5, INVALID_PARAMETER_VALUE;
    HostUnreachable = 6, UNABLE_TO_CONNECT;
    UnknownError = 8, INTERNAL_ERROR;
    UserNotFound = 11, UNDEFINED_OBJECT;
    Unauthorized = 13, INSUFFICIENT_PRIVILEGE;
    RoleNotFound = 31, UNDEFINED_OBJECT;
    PrivilegeNotFound = 33, UNDEFINED_OBJECT;
    TypeMismatch = 14, DATATYPE_MISMATCH;
    Overflow = 15, NUMERIC_VALUE_OUT_OF_RANGE;
    InvalidLength = 16, INVALID_PARAMETER_VALUE;
    IllegalOperation = 20, OBJECT_NOT_IN_PREREQUISITE_STATE;
    CannotDropShardKeyIndex = 370, OBJECT_NOT_IN_PREREQUISITE_STATE;
    NoSuchKey = 4, INVALID_PARAMETER_VALUE;
    LockTimeout = 24, LOCK_NOT_AVAILABLE;
    NamespaceNotFound = 26, UNDEFINED_TABLE;
    IndexNotFound = 27, UNDEFINED_OBJECT;
    PathNotViable = 28, INVALID_PARAMETER_VALUE;
    CannotCreateIndex = 67, INVALID_OBJECT_DEFINITION;
    NetworkTimeout = 89, CONNECTION_FAILURE;
    AmbiguousIndexKeyPattern = 181, AMBIGUOUS_FUNCTION;
    NoQueryExecutionPlans = 291, OBJECT_NOT_IN_PREREQUISITE_STATE;
    InvalidBSON = 22, INVALID_PARAMETER_VALUE;
    AlreadyInitialized = 23, DUPLICATE_OBJECT;
    NotYetInitialized = 94, OBJECT_NOT_IN_PREREQUISITE_STATE;
    CannotBackfillArray = 34, INVALID_PARAMETER_VALUE;
    ConflictingUpdateOperators = 40, INVALID_PARAMETER_VALUE;
    NoMatchingDocument = 47, UNDEFINED_OBJECT;
    CursorNotFound = 43, INVALID_CURSOR_NAME;
    MaxTimeMSExpired = 50, QUERY_CANCELED;
    APIVersionError = 322, INVALID_PARAMETER_VALUE;
    APIStrictError = 323, INVALID_PARAMETER_VALUE;
    CommandFailed = 125, FEATURE_NOT_SUPPORTED;
    NotWritablePrimary = 10107, READ_ONLY;
    NotPrimaryOrSecondary = 13436, CANNOT_CONNECT_NOW;
    NamespaceExists = 48, DUPLICATE_TABLE;
    DollarPrefixedFieldName = 52, INVALID_PARAMETER_VALUE;
    InvalidIdField = 53, INVALID_PARAMETER_VALUE;
    NotSingleValueField = 54, INVALID_PARAMETER_VALUE;
    EmptyFieldName = 56, INVALID_PARAMETER_VALUE;
    DottedFieldName = 57, INVALID_PARAMETER_VALUE;
    CommandNotFound = 59, UNDEFINED_FUNCTION;
    ShardKeyNotFound = 61, INVALID_PARAMETER_VALUE;
    StaleShardVersion = 63, SERIALIZATION_FAILURE;
    ImmutableField = 66, INVALID_PARAMETER_VALUE;
    IndexAlreadyExists = 68, DUPLICATE_OBJECT;
    ShardNotFound = 70, UNDEFINED_OBJECT;
    InvalidOptions = 72, INVALID_PARAMETER_VALUE;
    InvalidNamespace = 73, INVALID_NAME;
    IndexOptionsConflict = 85, DUPLICATE_OBJECT;
    InvalidIndexSpecificationOption = 197, INVALID_PARAMETER_VALUE;
    IndexKeySpecsConflict = 86, DUPLICATE_OBJECT;
    OperationFailed = 96, OBJECT_NOT_IN_PREREQUISITE_STATE;
    FailedToSatisfyReadPreference = 133, UNABLE_TO_CONNECT;
    CannotImplicitlyCreateCollection = 227, UNDEFINED_TABLE;
    ConflictingOperationInProgress = 117, OBJECT_IN_USE;
    NamespaceNotSharded = 118, OBJECT_NOT_IN_PREREQUISITE_STATE;
    IncompatibleCollationVersion = 161, INVALID_PARAMETER_VALUE;
    QueryFeatureNotAllowed = 224, INVALID_PARAMETER_VALUE;
    InvalidUUID = 207, INVALID_PARAMETER_VALUE;
    QueryPlanKilled = 175, QUERY_CANCELED;
    CannotIndexParallelArrays = 171, INVALID_PARAMETER_VALUE;
    ZoneNotFound = 177, UNDEFINED_OBJECT;
    ZoneStillInUse = 163, OBJECT_IN_USE;
    RangeOverlapConflict = 178, EXCLUSION_VIOLATION;
    ChunkTooBig = 153, PROGRAM_LIMIT_EXCEEDED;
    NotExactValueField = 111, INVALID_PARAMETER_VALUE;
    NotImplemented = 238, FEATURE_NOT_SUPPORTED;
    ExceededMemoryLimit = 146, OUT_OF_MEMORY;
    OutOfDiskSpace = 14031, DISK_FULL;
    QueryExceededMemoryLimitNoDiskUseAllowed = 292, OUT_OF_MEMORY;
    FailedToParse = 9, INVALID_PARAMETER_VALUE;
    UnknownOption = 40415, INVALID_PARAMETER_VALUE;
    ShardKeyTooBig = 13334, PROGRAM_LIMIT_EXCEEDED;
    KeyTooLong = 17280, PROGRAM_LIMIT_EXCEEDED;
    BSONObjectTooLarge = 10334, PROGRAM_LIMIT_EXCEEDED;
    Interrupted = 11601, QUERY_CANCELED;
    DocumentTooDeep = 15994, PROGRAM_LIMIT_EXCEEDED;
    DuplicateKey = 11000, UNIQUE_VIOLATION;
    DocumentValidationFailure = 121, CHECK_VIOLATION;
    WriteConflict = 112, SERIALIZATION_FAILURE;
    TransactionTooLarge = 257, PROGRAM_LIMIT_EXCEEDED;
    IncompleteTransactionHistory = 217, INVALID_TRANSACTION_STATE;
    TransactionTooOld = 225, INVALID_TRANSACTION_STATE;
    NoSuchTransaction = 251, INVALID_TRANSACTION_STATE;
    OperationNotSupportedInTransaction = 263, ACTIVE_TRANSACTION;
    ReshardCollectionInProgress = 338, OBJECT_IN_USE;
    NoSuchReshardCollection = 339, UNDEFINED_OBJECT;
    ReshardCollectionCommitted = 340, OBJECT_NOT_IN_PREREQUISITE_STATE;
    ReshardCollectionAborted = 341, QUERY_CANCELED;
    ReshardingCriticalSectionTimeout = 342, LOCK_NOT_AVAILABLE;
    MergeStageNoMatchingDocument = 13113, UNDEFINED_OBJECT;
    MaxSubPipelineDepthExceeded = 232, STATEMENT_TOO_COMPLEX;
    ViewDepthLimitExceeded = 165, PROGRAM_LIMIT_EXCEEDED;
    CommandNotSupportedOnView = 166, WRONG_OBJECT_TYPE;
    OptionNotSupportedOnView = 167, INVALID_PARAMETER_VALUE;
    InvalidViewDefinition = 182, INVALID_OBJECT_DEFINITION;
    ViewPipelineMaxSizeExceeded = 195, PROGRAM_LIMIT_EXCEEDED;
    InvalidPipelineOperator = 168, INVALID_PARAMETER_VALUE;
    ConversionFailure = 241, INVALID_PARAMETER_VALUE;
}

impl Kind {
    /// MongoDB's nearest equivalent of an error of PostgreSQL's.
    const fn nearest(sqlstate: SqlState) -> Self {
        match sqlstate {
            sqlstate::UNIQUE_VIOLATION => Self::DuplicateKey,
            sqlstate::INSUFFICIENT_PRIVILEGE => Self::Unauthorized,
            sqlstate::LOCK_NOT_AVAILABLE => Self::LockTimeout,
            sqlstate::READ_ONLY => Self::NotWritablePrimary,
            sqlstate::FEATURE_NOT_SUPPORTED => Self::NotImplemented,
            sqlstate::STATEMENT_TOO_COMPLEX => Self::DocumentTooDeep,
            sqlstate::INTERNAL_ERROR => Self::InternalError,
            sqlstate::DISK_FULL => Self::OutOfDiskSpace,
            [b'0', b'8', ..] => Self::HostUnreachable,
            [b'4', b'0', ..] => Self::WriteConflict,
            [b'5', b'3', ..] => Self::ExceededMemoryLimit,
            _ => Self::UnknownError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_off() {
        let error = Error::new(Kind::BadValue, "é".repeat(5_000_000)).with_hint("a\0".repeat(10_000));
        let left_out = "… (9998720 more bytes) …";
        assert_eq!(error.message, format!("{}{left_out}{}", "é".repeat(512), "é".repeat(128)));
        let hint = error.hint.as_deref().expect("a hint");
        assert!(
            hint.starts_with("a\\u0000a") && hint.contains("… (18720 more bytes) …") && !hint.contains('\0'),
            "{hint}"
        );
        assert_eq!(Error::new(Kind::BadValue, "short").message, "short");
    }
}
