//! The content of messages: OP_MSG, and OP_QUERY, with which older drivers begin.

use super::checksum::crc32c;
use super::frame::HEADER;
use super::{Bytes, Violation};

const CHECKSUM: u32 = 1;
const MORE_TO_COME: u32 = 1 << 1;
const EXHAUST_ALLOWED: u32 = 1 << 16;
/// Flags that a server must understand.
const REQUIRED: u32 = 0xFFFF;

/// The largest number of documents in the sequences of a message, far above the limit of a batch of writes.
const MAX_DOCUMENTS: usize = 1_000_000;

/// The largest number of sequences. Drivers send at most two, for `bulkWrite`. The limit keeps the search for equal names short.
const MAX_SEQUENCES: usize = 10;

/// A request, with the bytes of its documents.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// the command
    pub document: &'a [u8],
    /// arrays of the command that are sent beside it: their names and documents
    pub sequences: Vec<(&'a str, Vec<&'a [u8]>)>,
    /// the client wants no reply
    pub more_to_come: bool,
    /// the client takes several replies
    pub exhaust_allowed: bool,
    /// OP_QUERY's database; in OP_MSG the command names it
    pub database: Option<&'a str>,
}

/// Reads the body of an OP_MSG. `header`: the message's header, which the checksum includes; None after decompression, when the checksum
/// cannot be checked.
pub fn read_msg<'a>(header: Option<&[u8; HEADER]>, body: &'a [u8]) -> Result<Request<'a>, Violation> {
    let mut bytes = Bytes(body);
    let flags = bytes.u32()?;
    if flags & REQUIRED & !(CHECKSUM | MORE_TO_COME) != 0 {
        return Err(Violation("a required flag of OP_MSG is unknown"));
    }
    if flags & CHECKSUM != 0 {
        let (rest, sum) = bytes.0.split_last_chunk::<4>().ok_or(Violation("the checksum is missing"))?;
        bytes.0 = rest;
        let summed = body.get(..body.len() - 4).unwrap_or_default();
        if header.is_some_and(|header| crc32c(&[header, summed]) != u32::from_le_bytes(*sum)) {
            return Err(Violation("the checksum is wrong"));
        }
    }
    let (mut document, mut sequences, mut count) = (None, Vec::new(), 0);
    while !bytes.0.is_empty() {
        match bytes.byte()? {
            0 if document.is_some() => return Err(Violation("OP_MSG has two bodies")),
            0 => document = Some(bytes.document()?),
            1 => {
                if sequences.len() == MAX_SEQUENCES {
                    return Err(Violation("OP_MSG has too many sequences"));
                }
                let size = Bytes(bytes.0).length()?;
                let mut section = Bytes(bytes.take(size)?);
                section.take(4)?;
                let (name, mut documents) = (section.cstring()?, Vec::new());
                while !section.0.is_empty() {
                    count += 1;
                    if count > MAX_DOCUMENTS {
                        return Err(Violation("OP_MSG has too many documents"));
                    }
                    documents.push(section.document()?);
                }
                if sequences.iter().any(|(other, _)| *other == name) {
                    return Err(Violation("OP_MSG has two sequences of one name"));
                }
                sequences.push((name, documents));
            }
            _ => return Err(Violation("a section of OP_MSG is of an unknown kind")),
        }
    }
    let document = document.ok_or(Violation("OP_MSG has no body"))?;
    let (more_to_come, exhaust_allowed) = (flags & MORE_TO_COME != 0, flags & EXHAUST_ALLOWED != 0);
    Ok(Request { document, sequences, more_to_come, exhaust_allowed, database: None })
}

/// Reads the body of an OP_QUERY, which must be a command.
pub fn read_query(body: &[u8]) -> Result<Request<'_>, Violation> {
    let mut bytes = Bytes(body);
    bytes.u32()?;
    let database = bytes.cstring()?.strip_suffix(".$cmd").ok_or(Violation("OP_QUERY is only for commands"))?;
    bytes.take(8)?;
    let document = bytes.document()?;
    let (more_to_come, exhaust_allowed) = (false, false);
    Ok(Request { document, sequences: Vec::new(), more_to_come, exhaust_allowed, database: Some(database) })
}

/// What precedes the document in an OP_MSG without flags.
pub const MSG_PREFIX: &[u8] = &[0, 0, 0, 0, 0];

/// As [`MSG_PREFIX`], for a reply after which another one follows without a request.
pub const MORE_PREFIX: &[u8] = &[MORE_TO_COME as u8, 0, 0, 0, 0];

/// What precedes the document in an OP_REPLY: flags (8: the server can await data), the cursor's id (0: none), the first document's position (0),
/// the number of documents (1).
pub const REPLY_PREFIX: &[u8] = &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\x05\0\0\0\0";

    #[test]
    fn sections_come_in_any_order() {
        let sequence = b"\x01\x14\0\0\0names\0\x05\0\0\0\0\x05\0\0\0\0";
        for body in [
            [&[0; 4], sequence.as_slice(), b"\0", EMPTY].concat(),
            [&[0; 4], b"\0".as_slice(), EMPTY, sequence].concat(),
        ] {
            let request = read_msg(None, &body).unwrap();
            assert_eq!(request.document, EMPTY);
            assert_eq!(request.sequences, [("names", vec![EMPTY, EMPTY])]);
        }
    }

    #[test]
    fn a_checksum_is_checked() {
        let header = [9; HEADER];
        let mut body = [&[1, 0, 0, 0, 0], EMPTY].concat();
        let sum = crc32c(&[&header, &body]);
        body.extend(sum.to_le_bytes());
        assert!(read_msg(Some(&header), &body).is_ok());
        assert_eq!(read_msg(Some(&[8; HEADER]), &body), Err(Violation("the checksum is wrong")));
    }

    /// A message with so many empty sequences.
    fn many(count: usize) -> Vec<u8> {
        let mut body = [&[0; 5], EMPTY].concat();
        (0..count).for_each(|number| body.extend(format!("\x01\x08\0\0\0{number:03}\0").as_bytes()));
        body
    }

    #[test]
    fn malformed_messages_are_refused() {
        for body in [
            [&[0; 4][..]].concat(),
            [&[0; 5], EMPTY, b"\0", EMPTY].concat(),
            [&[4, 0, 0, 0, 0], EMPTY].concat(),
            [&[0, 0, 0, 0, 2], EMPTY].concat(),
            [&[0; 4], &b"\x01\xff\xff\xff\xff"[..]].concat(),
            many(MAX_SEQUENCES + 1),
        ] {
            assert!(read_msg(None, &body).is_err(), "{body:?}");
        }
        assert_eq!(read_msg(None, &many(MAX_SEQUENCES)).unwrap().sequences.len(), MAX_SEQUENCES);
        assert!(read_query(b"\0\0\0\0test.c\0\0\0\0\0\x01\0\0\0\x05\0\0\0\0").is_err());
        assert_eq!(read_query(b"\0\0\0\0admin.$cmd\0\0\0\0\0\x01\0\0\0\x05\0\0\0\0").unwrap().database, Some("admin"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
            let _ = read_msg(Some(&[0; HEADER]), &bytes);
            let _ = read_msg(None, &[&[0; 5], bytes.as_slice()].concat());
            let _ = read_msg(None, &[&[0, 0, 0, 0, 1], bytes.as_slice()].concat());
            let _ = read_query(&bytes);
        }
    }
}
