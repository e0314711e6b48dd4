//! PostgreSQL's SQLSTATEs that docshard gives or recognises, by PostgreSQL's names where these say what they are used for.

/// Five characters: digits and capital letters.
pub type SqlState = [u8; 5];

/// The first characters of SQLSTATEs.
pub mod class {
    /// A connection that could not be made, or was lost.
    pub const CONNECTION: &[u8] = b"08";
    /// A value that is malformed, or out of range.
    pub const DATA_EXCEPTION: &[u8] = b"22";
    /// An error that a PL/pgSQL function raises.
    pub const RAISED: &[u8] = b"P0";
    /// A transaction in a state that does not allow the statement.
    pub const TRANSACTION_STATE: &[u8] = b"25";
    /// A refused login.
    pub const AUTHORIZATION: &[u8] = b"28";
    /// A database that does not exist.
    pub const CATALOG_NAME: &[u8] = b"3D";
    /// A transaction that was rolled back, and can be repeated.
    pub const ROLLBACK: &[u8] = b"40";
    /// Missing memory, storage or connections.
    pub const RESOURCES: &[u8] = b"53";
    /// An operator's intervention.
    pub const INTERVENTION: &[u8] = b"57";
    /// A server that ends the session, or does not accept one.
    pub const SHUTDOWN: &[u8] = b"57P";
    /// An error of the operating system.
    pub const SYSTEM: &[u8] = b"58";
    /// An error of the server itself.
    pub const INTERNAL: &[u8] = b"XX";
}

/// Declares constants, each with its own text as its documentation.
macro_rules! sqlstates {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {$(
        #[doc = concat!("SQLSTATE ", $code, ".")]
        $(#[$doc])*
        pub const $name: SqlState = bytes($code);
    )*};
}

const fn bytes(code: &str) -> SqlState {
    *code.as_bytes().first_chunk().expect("five characters")
}

sqlstates! {
    UNABLE_TO_CONNECT = "08001";
    /// A refused handshake: the server is another one, or not in the expected state.
    REFUSED_CONNECTION = "08004";
    CONNECTION_FAILURE = "08006";
    TRANSACTION_RESOLUTION_UNKNOWN = "08007";
    /// An answer that violates the protocol.
    PROTOCOL_VIOLATION = "08P01";
    FEATURE_NOT_SUPPORTED = "0A000";
    NUMERIC_VALUE_OUT_OF_RANGE = "22003";
    NULL_VALUE_NOT_ALLOWED = "22004";
    INVALID_PARAMETER_VALUE = "22023";
    NOT_NULL_VIOLATION = "23502";
    UNIQUE_VIOLATION = "23505";
    CHECK_VIOLATION = "23514";
    EXCLUSION_VIOLATION = "23P01";
    INVALID_CURSOR_STATE = "24000";
    INVALID_TRANSACTION_STATE = "25000";
    ACTIVE_TRANSACTION = "25001";
    /// Among others, a handshake that is refused for writes: the shard is ahead of the catalog.
    READ_ONLY = "25006";
    IN_FAILED_TRANSACTION = "25P02";
    /// A prepared statement that the server does not know.
    UNDEFINED_STATEMENT = "26000";
    INVALID_PASSWORD = "28P01";
    DEPENDENT_OBJECTS_STILL_EXIST = "2BP01";
    PROHIBITED_SQL_STATEMENT = "2F003";
    INVALID_CURSOR_NAME = "34000";
    TRANSACTION_ROLLBACK = "40000";
    SERIALIZATION_FAILURE = "40001";
    DEADLOCK_DETECTED = "40P01";
    INSUFFICIENT_PRIVILEGE = "42501";
    INVALID_NAME = "42602";
    UNDEFINED_OBJECT = "42704";
    DUPLICATE_OBJECT = "42710";
    AMBIGUOUS_FUNCTION = "42725";
    DATATYPE_MISMATCH = "42804";
    WRONG_OBJECT_TYPE = "42809";
    UNDEFINED_FUNCTION = "42883";
    RESERVED_NAME = "42939";
    UNDEFINED_TABLE = "42P01";
    DUPLICATE_TABLE = "42P07";
    INVALID_OBJECT_DEFINITION = "42P17";
    DISK_FULL = "53100";
    OUT_OF_MEMORY = "53200";
    PROGRAM_LIMIT_EXCEEDED = "54000";
    STATEMENT_TOO_COMPLEX = "54001";
    OBJECT_NOT_IN_PREREQUISITE_STATE = "55000";
    OBJECT_IN_USE = "55006";
    LOCK_NOT_AVAILABLE = "55P03";
    QUERY_CANCELED = "57014";
    CANNOT_CONNECT_NOW = "57P03";
    IO_ERROR = "58030";
    /// docshard's own: a shard's placement version differs from the router's.
    STALE = "DS001";
    INTERNAL_ERROR = "XX000";
    DATA_CORRUPTED = "XX001";
    INDEX_CORRUPTED = "XX002";
}
