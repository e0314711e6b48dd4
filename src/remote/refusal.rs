//! The errors by which a shard refuses a statement or a connection before it has done anything.

use crate::pg::error::Error;

/// SQLSTATE of a shard's answer that its placement version differs from the one that the router assumed.
pub const STALE: [u8; 5] = *b"DS001";

/// SQLSTATE of a connection that the handshake refuses: the server is not the one that was meant, or not as it should be.
pub const REFUSED_CONNECTION: [u8; 5] = *b"08004";

/// The end of such an error's context where the shard has another host, which the next connection tries.
const OTHER_HOST: &str = "another of its hosts is tried next";

impl Error {
    /// True if the shard owns other chunks than the router assumed: refresh the map and run again.
    pub fn is_stale(&self) -> bool {
        self.sqlstate == STALE
    }

    /// True if a shard was refused at one of several hosts, before anything was done there: run again, at the next one.
    pub fn has_other_host(&self) -> bool {
        self.sqlstate == REFUSED_CONNECTION && self.context.as_deref().is_some_and(|text| text.ends_with(OTHER_HOST))
    }

    /// The same error, which the next connection to the shard may not meet.
    #[must_use]
    pub fn at_one_host(mut self) -> Self {
        let context = self.context.take().map_or_else(String::new, |text| format!("{text}\n"));
        self.with_context(context + OTHER_HOST)
    }
}
