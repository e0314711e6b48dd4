//! Errors by which a shard refuses a statement or a connection before it has done anything.

use crate::pg::error::Error;

/// SQLSTATE of a shard whose placement version differs from the router's.
pub const STALE: [u8; 5] = *b"DS001";

/// SQLSTATE of a refused handshake: the server is another one, or not in the expected state.
pub const REFUSED_CONNECTION: [u8; 5] = *b"08004";

/// The last line of the context of such an error if the next connection tries another host.
const OTHER_HOST: &str = "another of its hosts is tried next";

impl Error {
    /// True if the router's map is stale: the statement should run again with a newer map.
    pub fn is_stale(&self) -> bool {
        self.sqlstate == STALE
    }

    /// True if one of several hosts refused the handshake: the statement should run again, at the next host.
    pub fn has_other_host(&self) -> bool {
        self.sqlstate == REFUSED_CONNECTION && self.context.as_deref().is_some_and(|text| text.ends_with(OTHER_HOST))
    }

    #[must_use]
    pub fn at_one_host(mut self) -> Self {
        let context = self.context.take().map_or_else(String::new, |text| format!("{text}\n"));
        self.with_context(context + OTHER_HOST)
    }
}
