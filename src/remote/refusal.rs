//! Errors by which a shard refuses a statement or a connection before it has done anything.

use crate::pg::error::{Again, Error, PROTOCOL_VIOLATION};

/// SQLSTATE of a shard whose placement version differs from the router's.
pub const STALE: [u8; 5] = *b"DS001";

/// SQLSTATE of a refused handshake: the server is another one, or not in the expected state.
pub const REFUSED_CONNECTION: [u8; 5] = *b"08004";

/// SQLSTATE of a handshake that is refused for writes: the shard is ahead of the catalog.
pub const READ_ONLY: [u8; 5] = *b"25006";

/// How many handshakes may be refused as the shard is ahead, before that is reported: the worker advances a counter at most once a
/// second.
pub const REFUSED_AHEAD: u32 = 3;

impl Error {
    /// True if the router's map is stale: the statement should run again with a newer map.
    pub fn is_stale(&self) -> bool {
        self.sqlstate == STALE
    }

    /// True if the shard could not be reached, or its connection was lost. False for a server that refuses the handshake, as one
    /// that is not the shard does, and for a malformed answer: these are mistakes to be corrected, not outages.
    pub fn is_out_of_reach(&self) -> bool {
        let is_answer = [REFUSED_CONNECTION, PROTOCOL_VIOLATION].contains(&self.sqlstate);
        (self.sqlstate.starts_with(b"08") || self.sqlstate.starts_with(b"57P")) && !is_answer
    }

    /// True if one of several hosts refused the handshake: the statement should run again, at the next host.
    pub fn has_other_host(&self) -> bool {
        self.again == Some(Again::OtherHost)
    }

    /// True if a shard refused writes as its counter is ahead of the handshake. Either the catalog is an older copy, or the worker has
    /// advanced the counter since the handshake was read: then the next one is accepted.
    pub fn is_ahead_of_handshake(&self) -> bool {
        self.again == Some(Again::NewHandshake)
    }

    /// Marks the refusal of a handshake: [`has_other_host`](Self::has_other_host) if there is one, or
    /// [`is_ahead_of_handshake`](Self::is_ahead_of_handshake).
    #[must_use]
    pub fn of_handshake(self, other_host: bool) -> Self {
        let is_ahead = self.sqlstate == READ_ONLY;
        let again = if other_host { Some(Again::OtherHost) } else { is_ahead.then_some(Again::NewHandshake) };
        Self { again, ..self }
    }
}
