//! Calls of numbered writes, which are executed once though their client sends them again: see `router::writes::once`.

use super::checked::CheckedCall as _;
use crate::error::{Error, Result};
use std::borrow::Cow;

checked_calls! {
    /// Claims a [`Number`] for the present transaction, at the owner of a key, under that key's locks; None: it is new. A number
    /// that was claimed before by a committed transaction is answered with that one's [`ClaimOutcome`]. Waits for the end of another
    /// transaction that has claimed for the session.
    claim_write => ClaimWrite<'a> { number: Cow<'a, [u8]>, skey: Cow<'a, [u8]> } -> Option<Vec<u8>>;

    /// Stores the reply to the number that the present transaction has claimed here; false if the number is not stored here.
    remember_reply => RememberReply<'a> { number: Cow<'a, [u8]>, reply: Cow<'a, [u8]> } -> bool;

    /// Claims a number at a document's key and inserts the document, packed as for `insert_documents`; answers 1, or [`CLAIMED`].
    insert_once => InsertOnce<'a> { number: Cow<'a, [u8]>, documents: Cow<'a, [u8]> } -> i64;

    /// Claims a number at a document's key and updates the document; answers as `update_document`, or [`CLAIMED`].
    update_once => UpdateOnce<'a> {
        number: Cow<'a, [u8]>,
        skey: Cow<'a, [u8]>,
        id: Option<Cow<'a, [u8]>>,
        filter: Option<Cow<'a, str>>,
        update: Cow<'a, str>,
        fixed: Vec<String>,
    } -> i64;

    /// Claims a number at a document's key and deletes the document; answers as `delete_document`, or [`CLAIMED`].
    delete_once => DeleteOnce<'a> {
        number: Cow<'a, [u8]>,
        skey: Cow<'a, [u8]>,
        id: Option<Cow<'a, [u8]>>,
        filter: Option<Cow<'a, str>>,
    } -> i64;
}

/// The answer of a write whose number was claimed before: nothing is written.
pub const CLAIMED: i64 = -1;

/// The longest reply that is stored, in bytes. A write with a longer reply gets an error when it is sent again.
pub const MAX_REPLY: usize = 1_000_000;

/// The longest name of a command with its namespace, in bytes: a namespace has at most 255.
const MAX_COMMAND: usize = 600;

/// A session's name: the number of its role at the router, and the UUID that its client has chosen.
pub type Session = [u8; 20];

/// Identifies one of a client's writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number {
    /// the session, which sends one write at a time
    pub session: Session,
    /// greater than that of each earlier write of the session
    pub number: i64,
    /// the command's name and namespace: another command cannot have the same number
    pub command: String,
}

impl Number {
    /// The number of the session's role at the router.
    pub fn role(&self) -> u32 {
        let [a, b, c, d, ..] = self.session;
        u32::from_be_bytes([a, b, c, d])
    }

    /// The bytes that are sent to the shard.
    pub fn encode(&self) -> Vec<u8> {
        [&self.number.to_be_bytes()[..], &self.session, self.command.as_bytes()].concat()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// 08P01 for malformed bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = || {
            let (number, rest) = bytes.split_first_chunk()?;
            let (session, command) = rest.split_first_chunk()?;
            let command = std::str::from_utf8(command).ok().filter(|command| command.len() <= MAX_COMMAND)?.to_owned();
            Some(Self { session: *session, number: i64::from_be_bytes(*number), command })
        };
        parts().ok_or_else(|| malformed(ClaimWrite::SIGNATURE.function))
    }
}

/// The outcome of a numbered write that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// the answer of the shard's function that wrote
    Written(i64),
    /// the reply to the command
    Replied(Vec<u8>),
}

impl ClaimOutcome {
    /// The bytes that are sent to the router.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ClaimOutcome::Written(answer) => [&[0][..], &answer.to_be_bytes()].concat(),
            ClaimOutcome::Replied(reply) => [&[1], reply.as_slice()].concat(),
        }
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// 08P01 for malformed bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        match bytes.split_first() {
            Some((0, answer)) if answer.len() == 8 => {
                Ok(ClaimOutcome::Written(answer.first_chunk().map_or(0, |answer| i64::from_be_bytes(*answer))))
            }
            Some((1, reply)) => Ok(ClaimOutcome::Replied(reply.to_vec())),
            _ => Err(malformed(ClaimWrite::SIGNATURE.function)),
        }
    }
}

fn malformed(function: &str) -> Error {
    Error::protocol_violation(format!("malformed bytes of {function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_arrives() {
        let number = Number { session: [7; 20], number: 3, command: "insert shop.ärger".to_owned() };
        assert_eq!(Number::decode(&number.encode()).unwrap(), number);
        assert_eq!(number.role(), 0x0707_0707);
        for outcome in [
            ClaimOutcome::Written(2),
            ClaimOutcome::Written(i64::MIN),
            ClaimOutcome::Replied(vec![]),
            ClaimOutcome::Replied(vec![0; 9]),
        ] {
            assert_eq!(ClaimOutcome::decode(&outcome.encode()).unwrap(), outcome);
        }
        assert!(Number::decode(&number.encode()[..27]).is_err());
        let of_length = |length| Number { command: "x".repeat(length), ..number.clone() }.encode();
        assert!(
            Number::decode(&of_length(MAX_COMMAND)).is_ok() && Number::decode(&of_length(MAX_COMMAND + 1)).is_err()
        );
        assert!(Number::decode(&[&number.encode()[..], b"\xff"].concat()).is_err());
        for wrong in [&[][..], &[0], &[0; 8], &[0; 10], &[2, 0]] {
            assert!(ClaimOutcome::decode(wrong).is_err(), "{wrong:?}");
        }
    }
}
