//! The bytes of all messages together (`--message-memory`), of which a role has at most half.
//!
//! INVARIANT: memory is taken for a message before it is read, and for a reply while the session is still held. So only small messages, and
//! one reply for each session, are not counted.

use crate::reply::{Failure, MEMORY_LIMIT};
use crate::shares::{Share, Shares};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// The size in bytes up to which messages are not counted.
pub const SMALL: usize = 64 * 1024;

/// The least that may be configured, in MiB: half of it holds the largest reply of a router, and a copy.
pub const LEAST: usize = 256;

/// How long a reply waits for memory; meanwhile it holds its session.
const REPLY: Duration = Duration::from_secs(10);

/// The client to whom messages belong.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Role(String),
    /// clients without a user
    Address(IpAddr),
}

pub type Memory = Shares<Owner>;

pub fn new(mebibytes: usize) -> Memory {
    let bytes = mebibytes << 20;
    Shares::new(bytes, bytes / 2)
}

/// The memory that a request and then its reply have taken.
#[derive(Debug)]
pub struct Budget {
    memory: Arc<Memory>,
    owner: Owner,
    held: Option<Share>,
}

impl Budget {
    pub fn new(memory: Arc<Memory>, owner: Owner) -> Self {
        Self { memory, owner, held: None }
    }

    /// Takes memory for a message of `length` bytes that holds `content` bytes when it is inflated. At any time there are at most
    /// two of: the message, its content, the command, and the router's message.
    pub async fn request(&mut self, length: usize, content: usize, until: Instant) -> io::Result<()> {
        let larger = length.max(content);
        if larger > SMALL {
            let share = timeout_at(until, self.memory.take(&self.owner, content + larger)).await;
            let full = |_| io::Error::new(io::ErrorKind::TimedOut, "no memory for its message (--message-memory)");
            self.held = Some(share.map_err(full)?);
        }
        Ok(())
    }

    /// Gives the request's memory back and takes that of its reply, of which compression makes a copy. Does nothing for a small
    /// reply.
    pub async fn reply(&mut self, length: usize) -> Result<(), Failure> {
        if length > SMALL {
            self.held = None;
            let share = timeout(REPLY, self.memory.take(&self.owner, 2 * length)).await;
            let message = "replies of this role that its clients have not read use all memory (--message-memory)";
            self.held = Some(share.map_err(|_| Failure::new(MEMORY_LIMIT, message))?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::MAX_MESSAGE;

    #[tokio::test(start_paused = true)]
    async fn messages_of_a_role_have_half() {
        let memory = Arc::new(new(512));
        let budget = |role: &str| Budget::new(memory.clone(), Owner::Role(role.to_owned()));
        let until = || Instant::now() + Duration::from_secs(5);
        let mut held = Vec::new();
        loop {
            let mut one = budget("eve");
            if one.request(MAX_MESSAGE, MAX_MESSAGE, until()).await.is_err() {
                break;
            }
            held.push(one);
        }
        // Each takes 96 MB of 268 MB.
        assert_eq!(held.len(), 2);
        let mut small = budget("eve");
        assert!(small.request(SMALL, SMALL, until()).await.is_ok());
        assert!(small.request(100, 200_000_000, until()).await.is_err(), "what it inflates to counts");
        assert_eq!(small.reply(MAX_MESSAGE).await.unwrap_err().code, 146);
        assert!(budget("ann").request(MAX_MESSAGE, MAX_MESSAGE, until()).await.is_ok());
        // A request's memory becomes its reply's.
        assert!(held[0].reply(MAX_MESSAGE).await.is_ok());
        held.clear();
        assert!(small.reply(MAX_MESSAGE).await.is_ok());
    }
}
