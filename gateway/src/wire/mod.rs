//! MongoDB's wire protocol: messages, without a meaning for the documents in them.
//!
//! * [`frame`] reads and writes whole messages, with bounds.
//! * [`message`] is the content of OP_MSG and OP_QUERY, and the replies to both.
//! * [`compression`] is OP_COMPRESSED.
//!
//! Source: MongoDB's manual, "MongoDB Wire Protocol".

pub mod checksum;
pub mod compression;
pub mod frame;
pub mod message;

/// A violation of the protocol, after which the connection is closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Takes bytes from the front of a message.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Violation> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Violation("the message is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Violation> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    pub fn u32(&mut self) -> Result<u32, Violation> {
        let mut four = [0; 4];
        four.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(four))
    }

    /// A length or count, which must not be negative.
    pub fn length(&mut self) -> Result<usize, Violation> {
        i32::try_from(self.u32()?)
            .ok()
            .and_then(|length| usize::try_from(length).ok())
            .ok_or(Violation("a length is negative"))
    }

    pub fn cstring(&mut self) -> Result<&'a str, Violation> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Violation("a name has no end"))?;
        let text = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(text).map_err(|_| Violation("a name is not UTF-8"))
    }

    /// A document's bytes, of which only the length is checked.
    pub fn document(&mut self) -> Result<&'a [u8], Violation> {
        let length = Bytes(self.0).length()?;
        if length < 5 {
            return Err(Violation("a document is too short"));
        }
        self.take(length)
    }
}
