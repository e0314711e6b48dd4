//! Writes that drivers number, and send again after an error with the label `RetryableWriteError`, or a lost connection. The router
//! executes them once.

use crate::command::Command;
use crate::reply::{self, RETRYABLE_WRITE, Reply};

/// The codes after which a second attempt may succeed: a node was not reached, ended, or was no primary.
const CODES: &[i32] = &[6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436];

/// The reply, with the label if its command may be sent again.
pub fn labelled(command: &Command, reply: Reply) -> Reply {
    let may_be_sent_again = || reply::code_of(&reply).is_some_and(|code| CODES.contains(&code));
    if command.number_at.is_some() && may_be_sent_again() {
        return reply::relabelled(&reply, RETRYABLE_WRITE, true);
    }
    reply
}
