//! Errors: one table maps each kind to MongoDB's code and name and PostgreSQL's SQLSTATE.

use std::borrow::Cow;
use std::fmt;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with MongoDB's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The class of the error, as in MongoDB.
    pub kind: Kind,
    /// The message.
    pub message: String,
    /// A suggestion how to fix the problem, where that is not obvious.
    pub hint: Option<String>,
}

impl Error {
    /// An error without a hint.
    pub fn new(kind: impl Into<Kind>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: shown(message.into()), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(shown(hint.into()));
        self
    }
}

/// Makes an [`Error`] of a kind, or of MongoDB's code, and a format: `error!(Kind::BadValue, "unknown operator: {name}")`.
macro_rules! error {
    ($kind:expr, $($message:tt)+) => { $crate::error::Error::new($kind, std::fmt::format(format_args!($($message)+))) };
}

/// Returns an [`Error`] of a kind and a format from the function around it.
macro_rules! bail {
    ($($error:tt)+) => { return Err($crate::error::error!($($error)+)) };
}

/// Returns an [`Error`] from the function around it unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($error:tt)+) => { if !$condition { $crate::error::bail!($($error)+) } };
}

pub(crate) use {bail, ensure, error};

/// How many bytes of a longer message or hint are shown: its beginning and its end. Between them is the client's input that it quotes.
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
    ($($kind:ident = $code:literal, $sqlstate:literal;)*) => {
        /// The class of an error: one of MongoDB's codes, with an SQLSTATE that fits.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            /// One of MongoDB's codes that have no name of their own: `Location(40324)` is called `Location40324`.
            Location(i32),
            $(
                #[doc = concat!("MongoDB's code ", stringify!($code), ", SQLSTATE ", $sqlstate, ".")]
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

            /// PostgreSQL's SQLSTATE, five characters.
            pub const fn sqlstate(self) -> &'static str {
                match self {
                    // A regular expression that backtracks too often.
                    Kind::Location(51156) => "54001",
                    // Definitions of indexes.
                    Kind::Location(16764 | 31303 | 7246201 | 7246204) => "42P17",
                    Kind::Location(_) => "22023",
                    $(Kind::$kind => $sqlstate,)*
                }
            }
        }
    };
}

kinds! {
    InternalError = 1, "XX000";
    BadValue = 2, "22023";
    GraphContainsCycle = 5, "22023";
    HostUnreachable = 6, "08001";
    UnknownError = 8, "XX000";
    UserNotFound = 11, "42704";
    Unauthorized = 13, "42501";
    PrivilegeNotFound = 33, "42704";
    TypeMismatch = 14, "42804";
    Overflow = 15, "22003";
    InvalidLength = 16, "22023";
    IllegalOperation = 20, "55000";
    CannotDropShardKeyIndex = 303, "55000";
    LockTimeout = 24, "55P03";
    NamespaceNotFound = 26, "42P01";
    IndexNotFound = 27, "42704";
    PathNotViable = 28, "22023";
    CannotCreateIndex = 67, "42P17";
    NetworkTimeout = 89, "08006";
    AmbiguousIndexKeyPattern = 181, "42725";
    NoQueryExecutionPlans = 291, "55000";
    AlreadyInitialized = 23, "42710";
    NotYetInitialized = 94, "55000";
    CannotBackfillArray = 34, "22023";
    ConflictingUpdateOperators = 40, "22023";
    NoMatchingDocument = 47, "42704";
    CursorNotFound = 43, "34000";
    MaxTimeMSExpired = 50, "57014";
    APIVersionError = 322, "22023";
    NotWritablePrimary = 10107, "25006";
    NotPrimaryOrSecondary = 13436, "57P03";
    NamespaceExists = 48, "42P07";
    DollarPrefixedFieldName = 52, "22023";
    InvalidIdField = 53, "22023";
    NotSingleValueField = 54, "22023";
    EmptyFieldName = 56, "22023";
    DottedFieldName = 57, "22023";
    CommandNotFound = 59, "42883";
    ShardKeyNotFound = 61, "22023";
    StaleShardVersion = 63, "40001";
    ImmutableField = 66, "22023";
    IndexAlreadyExists = 68, "42710";
    ShardNotFound = 70, "42704";
    InvalidOptions = 72, "22023";
    InvalidNamespace = 73, "42602";
    IndexOptionsConflict = 85, "42710";
    InvalidIndexSpecificationOption = 197, "22023";
    IndexKeySpecsConflict = 86, "42710";
    OperationFailed = 96, "55000";
    FailedToSatisfyReadPreference = 133, "08001";
    CannotImplicitlyCreateCollection = 227, "42P01";
    ConflictingOperationInProgress = 117, "55006";
    NamespaceNotSharded = 118, "55000";
    IncompatibleCollationVersion = 161, "22023";
    QueryFeatureNotAllowed = 224, "22023";
    InvalidUUID = 207, "22023";
    QueryPlanKilled = 175, "57014";
    CannotIndexParallelArrays = 171, "22023";
    ZoneNotFound = 162, "42704";
    ZoneStillInUse = 163, "55006";
    RangeOverlapConflict = 178, "23P01";
    ChunkTooBig = 179, "54000";
    NotExactValueField = 111, "22023";
    NotImplemented = 238, "0A000";
    ExceededMemoryLimit = 146, "53200";
    QueryExceededMemoryLimitNoDiskUseAllowed = 292, "53200";
    FailedToParse = 9, "22023";
    UnknownOption = 40415, "22023";
    ShardKeyTooBig = 13334, "54000";
    KeyTooLong = 17280, "54000";
    BSONObjectTooLarge = 10334, "54000";
    Interrupted = 11601, "57014";
    DocumentTooDeep = 15994, "54000";
    DuplicateKey = 11000, "23505";
    WriteConflict = 112, "40001";
    TransactionTooLarge = 257, "54000";
    NoSuchTransaction = 251, "25000";
    OperationNotSupportedInTransaction = 263, "25001";
    MergeStageNoMatchingDocument = 13113, "42704";
    MaxSubPipelineDepthExceeded = 232, "54001";
    MissingSortKeyShard = 169, "22023";
    ViewDepthLimitExceeded = 165, "54000";
    CommandNotSupportedOnView = 166, "42809";
    OptionNotSupportedOnView = 167, "22023";
    InvalidViewDefinition = 182, "42P17";
    ViewPipelineMaxSizeExceeded = 229, "54000";
    InvalidPipelineOperator = 168, "22023";
    ConversionFailure = 241, "22023";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_off() {
        let error = Error::new(Kind::BadValue, "é".repeat(5_000_000)).with_hint("a\0".repeat(10_000));
        assert!(error.message.ends_with("é… (9991808 more bytes)"), "{}", error.message);
        assert_eq!(error.message.chars().count(), 4096 + "… (9991808 more bytes)".chars().count());
        let hint = error.hint.expect("a hint");
        assert!(hint.ends_with("a\\u0000… (11808 more bytes)") && !hint.contains('\0'), "{hint}");
        assert_eq!(Error::new(Kind::BadValue, "short").message, "short");
    }
}
