//! Every error a user can meet: one table from kind to MongoDB's code and name and PostgreSQL's SQLSTATE.

use std::fmt;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with MongoDB's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What went wrong, as MongoDB classifies it.
    pub kind: Kind,
    /// What the user reads first.
    pub message: String,
    /// What the user can do about it, where that is not obvious.
    pub hint: Option<String>,
}

impl Error {
    /// An error without a hint.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

macro_rules! kinds {
    ($($kind:ident = $code:literal, $sqlstate:literal;)*) => {
        /// What went wrong, as MongoDB classifies it; each kind has MongoDB's number and a fitting SQLSTATE.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind { $(
            #[doc = concat!("MongoDB's code ", stringify!($code), ", SQLSTATE ", $sqlstate, ".")]
            $kind,
        )* }

        impl Kind {
            /// Every kind, for tests and listings.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// MongoDB's error code.
            pub const fn code(self) -> i32 { match self { $(Kind::$kind => $code,)* } }

            /// MongoDB's name of the code.
            pub const fn name(self) -> &'static str { match self { $(Kind::$kind => stringify!($kind),)* } }

            /// PostgreSQL's SQLSTATE, five characters.
            pub const fn sqlstate(self) -> &'static str { match self { $(Kind::$kind => $sqlstate,)* } }
        }
    };
}

kinds! {
    InternalError = 1, "XX000";
    BadValue = 2, "22023";
    GraphContainsCycle = 5, "22023";
    HostUnreachable = 6, "08001";
    UserNotFound = 11, "42704";
    Unauthorized = 13, "42501";
    TypeMismatch = 14, "42804";
    Overflow = 15, "22003";
    InvalidLength = 16, "22023";
    IllegalOperation = 20, "55000";
    LockTimeout = 24, "55P03";
    NamespaceNotFound = 26, "42P01";
    IndexNotFound = 27, "42704";
    PathNotViable = 28, "22023";
    CannotCreateIndex = 67, "42P17";
    AlreadyInitialized = 23, "42710";
    NotYetInitialized = 94, "55000";
    CannotBackfillArray = 34, "22023";
    ConflictingUpdateOperators = 40, "22023";
    NoMatchingDocument = 47, "42704";
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
    IndexKeySpecsConflict = 86, "42710";
    OperationFailed = 96, "55000";
    FailedToSatisfyReadPreference = 133, "08001";
    CannotImplicitlyCreateCollection = 227, "42P01";
    ConflictingOperationInProgress = 117, "55006";
    NamespaceNotSharded = 118, "55000";
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
    Location15998 = 15998, "22023";
    Location16410 = 16410, "22023";
    Location28667 = 28667, "22023";
    Location28724 = 28724, "22023";
    Location31249 = 31249, "22023";
    Location31250 = 31250, "22023";
    Location31253 = 31253, "22023";
    Location31254 = 31254, "22023";
    Location31274 = 31274, "22023";
    Location31275 = 31275, "22023";
    Location40352 = 40352, "22023";
    Location40353 = 40353, "22023";
    Location51024 = 51024, "22023";
    Location51074 = 51074, "22023";
    Location51075 = 51075, "22023";
    Location51091 = 51091, "22023";
    Location51108 = 51108, "22023";
    Location51270 = 51270, "22023";
    MissingSortKeyShard = 169, "22023";
}
