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
        Self { kind, message: shown(message.into()), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(shown(hint.into()));
        self
    }
}

/// A text that may quote what somebody has sent: neither PostgreSQL's messages nor jsonb can hold a zero byte.
fn shown(text: String) -> String {
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
    Location40414 = 40414, "22023";
    Location51024 = 51024, "22023";
    Location51074 = 51074, "22023";
    Location51075 = 51075, "22023";
    Location51091 = 51091, "22023";
    Location51108 = 51108, "22023";
    Location51156 = 51156, "54001";
    Location51173 = 51173, "22023";
    Location51174 = 51174, "22023";
    Location51175 = 51175, "22023";
    Location51176 = 51176, "22023";
    Location51270 = 51270, "22023";
    Location51271 = 51271, "22023";
    Location7246201 = 7246201, "42P17";
    Location7246204 = 7246204, "42P17";
    MissingSortKeyShard = 169, "22023";
    InvalidPipelineOperator = 168, "22023";
    ConversionFailure = 241, "22023";
    Location15958 = 15958, "22023";
    Location15959 = 15959, "22023";
    Location5107200 = 5107200, "22023";
    Location5107201 = 5107201, "22023";
    Location15969 = 15969, "22023";
    Location15974 = 15974, "22023";
    Location15975 = 15975, "22023";
    Location15952 = 15952, "22023";
    Location15976 = 15976, "22023";
    Location15983 = 15983, "22023";
    Location16006 = 16006, "22023";
    Location16007 = 16007, "22023";
    Location16020 = 16020, "22023";
    Location16034 = 16034, "22023";
    Location16035 = 16035, "22023";
    Location16412 = 16412, "22023";
    Location16610 = 16610, "22023";
    Location16611 = 16611, "22023";
    Location16612 = 16612, "22023";
    Location16702 = 16702, "22023";
    Location16764 = 16764, "42P17";
    Location16766 = 16766, "22023";
    Location16872 = 16872, "22023";
    Location16874 = 16874, "22023";
    Location16875 = 16875, "22023";
    Location16876 = 16876, "22023";
    Location16877 = 16877, "22023";
    Location16878 = 16878, "22023";
    Location16879 = 16879, "22023";
    Location16880 = 16880, "22023";
    Location16882 = 16882, "22023";
    Location16883 = 16883, "22023";
    Location17040 = 17040, "22023";
    Location17041 = 17041, "22023";
    Location17042 = 17042, "22023";
    Location17043 = 17043, "22023";
    Location17044 = 17044, "22023";
    Location17045 = 17045, "22023";
    Location17046 = 17046, "22023";
    Location17047 = 17047, "22023";
    Location17048 = 17048, "22023";
    Location17049 = 17049, "22023";
    Location17080 = 17080, "22023";
    Location17081 = 17081, "22023";
    Location17082 = 17082, "22023";
    Location17083 = 17083, "22023";
    Location17124 = 17124, "22023";
    Location17276 = 17276, "22023";
    Location18533 = 18533, "22023";
    Location18534 = 18534, "22023";
    Location18535 = 18535, "22023";
    Location18536 = 18536, "22023";
    Location18537 = 18537, "22023";
    Location18628 = 18628, "22023";
    Location18629 = 18629, "22023";
    Location28646 = 28646, "22023";
    Location28647 = 28647, "22023";
    Location28648 = 28648, "22023";
    Location28650 = 28650, "22023";
    Location28651 = 28651, "22023";
    Location28656 = 28656, "22023";
    Location28657 = 28657, "22023";
    Location28664 = 28664, "22023";
    Location28680 = 28680, "22023";
    Location28689 = 28689, "22023";
    Location28690 = 28690, "22023";
    Location28691 = 28691, "22023";
    Location28714 = 28714, "22023";
    Location28725 = 28725, "22023";
    Location28726 = 28726, "22023";
    Location28727 = 28727, "22023";
    Location28728 = 28728, "22023";
    Location28729 = 28729, "22023";
    Location28756 = 28756, "22023";
    Location28757 = 28757, "22023";
    Location28758 = 28758, "22023";
    Location28759 = 28759, "22023";
    Location28761 = 28761, "22023";
    Location28762 = 28762, "22023";
    Location28763 = 28763, "22023";
    Location28764 = 28764, "22023";
    Location28765 = 28765, "22023";
    Location28766 = 28766, "22023";
    Location31022 = 31022, "22023";
    Location31023 = 31023, "22023";
    Location31024 = 31024, "22023";
    Location31026 = 31026, "22023";
    Location31034 = 31034, "22023";
    Location31095 = 31095, "22023";
    Location31393 = 31393, "22023";
    Location34435 = 34435, "22023";
    Location34443 = 34443, "22023";
    Location34444 = 34444, "22023";
    Location34445 = 34445, "22023";
    Location34446 = 34446, "22023";
    Location34447 = 34447, "22023";
    Location34448 = 34448, "22023";
    Location34449 = 34449, "22023";
    Location34450 = 34450, "22023";
    Location34451 = 34451, "22023";
    Location34452 = 34452, "22023";
    Location34453 = 34453, "22023";
    Location34454 = 34454, "22023";
    Location34455 = 34455, "22023";
    Location34460 = 34460, "22023";
    Location34461 = 34461, "22023";
    Location34462 = 34462, "22023";
    Location34463 = 34463, "22023";
    Location34464 = 34464, "22023";
    Location34465 = 34465, "22023";
    Location34466 = 34466, "22023";
    Location34467 = 34467, "22023";
    Location34468 = 34468, "22023";
    Location34471 = 34471, "22023";
    Location34473 = 34473, "22023";
    Location40060 = 40060, "22023";
    Location40061 = 40061, "22023";
    Location40062 = 40062, "22023";
    Location40063 = 40063, "22023";
    Location40064 = 40064, "22023";
    Location40065 = 40065, "22023";
    Location40066 = 40066, "22023";
    Location40067 = 40067, "22023";
    Location40068 = 40068, "22023";
    Location40075 = 40075, "22023";
    Location40076 = 40076, "22023";
    Location40077 = 40077, "22023";
    Location40078 = 40078, "22023";
    Location40079 = 40079, "22023";
    Location40080 = 40080, "22023";
    Location40081 = 40081, "22023";
    Location40085 = 40085, "22023";
    Location40086 = 40086, "22023";
    Location40087 = 40087, "22023";
    Location40090 = 40090, "22023";
    Location40091 = 40091, "22023";
    Location40092 = 40092, "22023";
    Location40093 = 40093, "22023";
    Location40094 = 40094, "22023";
    Location40095 = 40095, "22023";
    Location40096 = 40096, "22023";
    Location40097 = 40097, "22023";
    Location40386 = 40386, "22023";
    Location40390 = 40390, "22023";
    Location40391 = 40391, "22023";
    Location40392 = 40392, "22023";
    Location40393 = 40393, "22023";
    Location40394 = 40394, "22023";
    Location40395 = 40395, "22023";
    Location40396 = 40396, "22023";
    Location40397 = 40397, "22023";
    Location40398 = 40398, "22023";
    Location40400 = 40400, "22023";
    Location40485 = 40485, "22023";
    Location40489 = 40489, "22023";
    Location40515 = 40515, "22023";
    Location40516 = 40516, "22023";
    Location40517 = 40517, "22023";
    Location40518 = 40518, "22023";
    Location40519 = 40519, "22023";
    Location40521 = 40521, "22023";
    Location40522 = 40522, "22023";
    Location40523 = 40523, "22023";
    Location40524 = 40524, "22023";
    Location40533 = 40533, "22023";
    Location40535 = 40535, "22023";
    Location40536 = 40536, "22023";
    Location40539 = 40539, "22023";
    Location40540 = 40540, "22023";
    Location40541 = 40541, "22023";
    Location40542 = 40542, "22023";
    Location40684 = 40684, "22023";
    Location50694 = 50694, "22023";
    Location50695 = 50695, "22023";
    Location50696 = 50696, "22023";
    Location50699 = 50699, "22023";
    Location50700 = 50700, "22023";
    Location50752 = 50752, "22023";
    Location50989 = 50989, "22023";
    Location51045 = 51045, "22023";
    Location51080 = 51080, "22023";
    Location51081 = 51081, "22023";
    Location51082 = 51082, "22023";
    Location51083 = 51083, "22023";
    Location51103 = 51103, "22023";
    Location51104 = 51104, "22023";
    Location51105 = 51105, "22023";
    Location51106 = 51106, "22023";
    Location51107 = 51107, "22023";
    Location51109 = 51109, "22023";
    Location51110 = 51110, "22023";
    Location51111 = 51111, "22023";
    Location51144 = 51144, "22023";
    Location51276 = 51276, "22023";
    Location51744 = 51744, "22023";
    Location51745 = 51745, "22023";
    Location51746 = 51746, "22023";
    Location51747 = 51747, "22023";
    Location51748 = 51748, "22023";
    Location51749 = 51749, "22023";
    Location51750 = 51750, "22023";
    Location51751 = 51751, "22023";
    Location327391 = 327391, "22023";
    Location327392 = 327392, "22023";
    Location1257300 = 1257300, "22023";
    Location2942500 = 2942500, "22023";
    Location2942501 = 2942501, "22023";
    Location2942502 = 2942502, "22023";
    Location2942503 = 2942503, "22023";
    Location2942504 = 2942504, "22023";
    Location3040501 = 3040501, "22023";
    Location3041701 = 3041701, "22023";
    Location3041702 = 3041702, "22023";
    Location3041703 = 3041703, "22023";
    Location3041704 = 3041704, "22023";
    Location4161100 = 4161100, "22023";
    Location4161101 = 4161101, "22023";
    Location4161102 = 4161102, "22023";
    Location4161103 = 4161103, "22023";
    Location4161105 = 4161105, "22023";
    Location4161106 = 4161106, "22023";
    Location4161109 = 4161109, "22023";
    Location4890500 = 4890500, "22023";
    Location4940400 = 4940400, "22023";
    Location5166301 = 5166301, "22023";
    Location5166302 = 5166302, "22023";
    Location5166303 = 5166303, "22023";
    Location5166304 = 5166304, "22023";
    Location5166305 = 5166305, "22023";
    Location5166307 = 5166307, "22023";
    Location5166308 = 5166308, "22023";
    Location5166400 = 5166400, "22023";
    Location5166401 = 5166401, "22023";
    Location5166402 = 5166402, "22023";
    Location5166403 = 5166403, "22023";
    Location5166404 = 5166404, "22023";
    Location5166405 = 5166405, "22023";
    Location5439003 = 5439003, "22023";
    Location5439007 = 5439007, "22023";
    Location5439008 = 5439008, "22023";
    Location5439009 = 5439009, "22023";
    Location5439010 = 5439010, "22023";
    Location5439012 = 5439012, "22023";
    Location5439013 = 5439013, "22023";
    Location5439015 = 5439015, "22023";
    Location5439016 = 5439016, "22023";
    Location5439017 = 5439017, "22023";
    Location5439018 = 5439018, "22023";
    Location5654600 = 5654600, "22023";
    Location5654602 = 5654602, "22023";
    Location5687301 = 5687301, "22023";
    Location5687302 = 5687302, "22023";
    Location5787801 = 5787801, "22023";
    Location5787901 = 5787901, "22023";
    Location5787902 = 5787902, "22023";
    Location5787903 = 5787903, "22023";
    Location5787906 = 5787906, "22023";
    Location5787907 = 5787907, "22023";
    Location5787908 = 5787908, "22023";
    Location5788200 = 5788200, "22023";
    Location6045000 = 6045000, "22023";
    Location7429703 = 7429703, "22023";
    Location7436100 = 7436100, "22023";
    Location7750301 = 7750301, "22023";
    Location7750302 = 7750302, "22023";
    Location40520 = 40520, "22023";
    Location31002 = 31002, "22023";
    Location31119 = 31119, "22023";
    Location31120 = 31120, "22023";
    Location10065 = 10065, "22023";
    Location31252 = 31252, "22023";
    Location31255 = 31255, "22023";
    Location31256 = 31256, "22023";
    Location31271 = 31271, "22023";
    Location31303 = 31303, "42P17";
    Location31308 = 31308, "22023";
    Location31310 = 31310, "22023";
    Location31325 = 31325, "22023";
    Location40176 = 40176, "22023";
    Location40181 = 40181, "22023";
    Location40183 = 40183, "22023";
    Location40525 = 40525, "22023";
    Location31276 = 31276, "22023";
    Location31394 = 31394, "22023";
    Location31395 = 31395, "22023";
    Location40228 = 40228, "22023";
    Location40229 = 40229, "22023";
    Location40272 = 40272, "22023";
    Location40323 = 40323, "22023";
    Location40324 = 40324, "22023";
    Location51246 = 51246, "22023";
    Location51272 = 51272, "22023";
}
