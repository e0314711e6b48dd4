//! Judges what a server that is not trusted sends while libpq logs in, before libpq reads it. Pure: the caller reads the socket.
//!
//! In SCRAM the server says how often the client hashes its password, and libpq hashes 2,147,483,647 times if it is told to, which takes
//! half an hour and cannot be interrupted. So a larger number than [`MAX_ITERATIONS`] is a violation.
//!
//! libpq reads of a message of authentication what it expects there, and may take the rest for the next message. So a message must be exactly as
//! long as its type says.
//!
//! After the server's consent to encryption, the records of TLS are passed on one by one ([`LoginMessages::limit`]). What a record holds is judged
//! when OpenSSL has decrypted it and libpq has not read it, by [`LoginMessages::of_tls`].

/// The most iterations of a password's hash, which take about a second. PostgreSQL's default is 4096.
pub const MAX_ITERATIONS: u32 = 1_000_000;

/// Size of a message's header, its kind and length, in bytes. That of a TLS record has the same size: kind, version, length.
const HEADER: usize = 5;

/// Kinds of TLS records with which a server may begin.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// The longest message of authentication; libpq accepts 2,000 bytes or, in older versions, 30,000.
const MAX_AUTHENTICATION: usize = 30_000;

/// Types of messages of authentication.
const OK: u32 = 0;
const CLEARTEXT: u32 = 3;
const MD5: u32 = 5;
const GSS: u32 = 7;
const GSS_CONTINUE: u32 = 8;
const SASL: u32 = 10;
const SASL_CONTINUE: u32 = 11;
const SASL_FINAL: u32 = 12;

/// The largest part of a TLS record behind its header, in bytes; that of TLS 1.2 is the larger one.
const MAX_RECORD: usize = (1 << 14) + 2048;

/// The messages of a login, as they arrive in pieces.
#[derive(Debug, Default)]
pub struct LoginMessages {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// the server has sent at most refusals of encryption
    #[default]
    Begun,
    /// in a message: its bytes so far
    Header(Vec<u8>),
    /// in a message of authentication: what has arrived of its body, and its length
    Authentication(Vec<u8>, usize),
    /// in a message of another type: how many of its bytes have not arrived
    Other(usize),
    /// encrypted, in the header of a record: its bytes so far
    RecordHeader(Vec<u8>),
    /// in a record: how many of its bytes have not arrived, more than 0
    Record(usize),
}

impl LoginMessages {
    /// The messages that TLS protects. Their first bytes may be no consent to encryption.
    #[must_use]
    pub fn of_tls() -> Self {
        Self { state: State::Header(Vec::with_capacity(HEADER)) }
    }

    /// How many of the next bytes may be passed on at once: a consent to encryption alone, and of encrypted bytes at most one record.
    #[must_use]
    pub fn limit(&self) -> usize {
        match &self.state {
            State::Begun => 1,
            State::RecordHeader(header) => HEADER - header.len(),
            State::Record(left) => *left,
            State::Header(_) | State::Authentication(..) | State::Other(_) => usize::MAX,
        }
    }

    /// Takes the next bytes; false if they violate the protocol, and libpq must not read them.
    pub fn accept(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.step(bytes) {
                Some(rest) => bytes = rest,
                None => return false,
            }
        }
        true
    }

    /// Takes some of the bytes, and returns the others; None for a violation.
    fn step<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        match &mut self.state {
            // One byte answers a request for encryption. No message begins with it, as settings and notices follow the login.
            State::Begun => match bytes[0] {
                b'N' => return Some(&bytes[1..]),
                b'R' | b'E' | b'v' => self.state = State::Header(Vec::with_capacity(HEADER)),
                b'S' => {
                    self.state = State::RecordHeader(Vec::with_capacity(HEADER));
                    return Some(&bytes[1..]);
                }
                // TLS without a question before it
                HANDSHAKE | ALERT => self.state = State::RecordHeader(Vec::with_capacity(HEADER)),
                _ => return None,
            },
            State::RecordHeader(header) => {
                let rest = fill(header, HEADER, bytes);
                if let [_, _, _, high, low] = header[..] {
                    self.state = match usize::from(u16::from_be_bytes([high, low])) {
                        0 => State::RecordHeader(Vec::with_capacity(HEADER)),
                        length @ 1..=MAX_RECORD => State::Record(length),
                        _ => return None,
                    };
                }
                return Some(rest);
            }
            State::Record(left) => {
                let rest = skip(left, bytes);
                if *left == 0 {
                    self.state = State::RecordHeader(Vec::with_capacity(HEADER));
                }
                return Some(rest);
            }
            State::Header(header) => {
                let rest = fill(header, HEADER, bytes);
                if let Some((kind, length)) = header.split_first().and_then(|(k, l)| Some((*k, l.try_into().ok()?))) {
                    // The length includes itself.
                    let length = usize::try_from(u32::from_be_bytes(length)).ok()?.checked_sub(HEADER - 1)?;
                    self.state = match kind {
                        b'R' if length <= MAX_AUTHENTICATION => State::Authentication(Vec::new(), length),
                        b'R' => return None,
                        _ => State::Other(length),
                    };
                }
                return Some(rest);
            }
            State::Authentication(body, length) => {
                let rest = fill(body, *length, bytes);
                if body.len() == *length {
                    if !is_acceptable(body) {
                        return None;
                    }
                    self.state = State::Header(Vec::with_capacity(HEADER));
                }
                return Some(rest);
            }
            State::Other(left) => {
                let rest = skip(left, bytes);
                if *left == 0 {
                    self.state = State::Header(Vec::with_capacity(HEADER));
                }
                return Some(rest);
            }
        }
        Some(bytes)
    }
}

/// Completes `part` to `length` bytes, as far as they have arrived, and returns the others.
fn fill<'a>(part: &mut Vec<u8>, length: usize, bytes: &'a [u8]) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(bytes.len().min(length - part.len()));
    part.extend_from_slice(taken);
    rest
}

/// Skips at most `left` bytes, and returns the others.
fn skip<'a>(left: &mut usize, bytes: &'a [u8]) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(bytes.len().min(*left));
    *left -= taken.len();
    rest
}

/// True for the body of a message of authentication that libpq reads whole, and that does not keep it busy.
fn is_acceptable(body: &[u8]) -> bool {
    let Some((kind, rest)) = body.split_first_chunk() else { return false };
    match u32::from_be_bytes(*kind) {
        OK | CLEARTEXT | GSS => rest.is_empty(),
        MD5 => rest.len() == 4,
        SASL => is_list(rest),
        SASL_CONTINUE => has_few_iterations(rest),
        GSS_CONTINUE | SASL_FINAL => true,
        _ => false,
    }
}

/// True for names that each end with a zero byte, and a zero byte after the last one.
fn is_list(names: &[u8]) -> bool {
    let end = names.windows(2).position(|two| two == [0, 0]);
    names == [0] || names.first() != Some(&0) && end.is_some_and(|end| end + 2 == names.len())
}

/// False for a challenge with too many iterations, or with a number that is not made of digits alone: libpq reads numbers as `strtol` does.
fn has_few_iterations(challenge: &[u8]) -> bool {
    let mut iterations = challenge.split(|byte| *byte == b',').filter_map(|attribute| attribute.strip_prefix(b"i="));
    iterations.all(|digits| {
        let number = digits.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(digits).ok()?.parse().ok());
        number.flatten().is_some_and(|number: u32| number <= MAX_ITERATIONS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    fn challenge(iterations: &str) -> Vec<u8> {
        let text = format!("r=abcdefSERVER,s=c2FsdA==,i={iterations}");
        message(b'R', &[&SASL_CONTINUE.to_be_bytes(), text.as_bytes()].concat())
    }

    fn login(iterations: &str) -> Vec<u8> {
        let mechanisms = message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0");
        let rest =
            [message(b'R', b"\0\0\0\0"), message(b'S', b"a\0b\0"), message(b'K', b"12345678"), message(b'Z', b"I")];
        [&b"NN"[..], &mechanisms, &challenge(iterations), &rest.concat()].concat()
    }

    #[test]
    fn only_few_iterations_are_accepted() {
        for few in ["1", "4096", "1000000", "0004096"] {
            assert!(LoginMessages::default().accept(&login(few)), "{few}");
        }
        for many in [
            "1000001",
            "2147483647",
            "99999999999999999999",
            "+2147483647",
            " 2147483647",
            "-1",
            "",
            "4096x",
            "0x7fffffff",
        ] {
            assert!(!LoginMessages::default().accept(&login(many)), "{many}");
        }
        // With two numbers in a challenge, it does not matter which of them libpq reads.
        assert!(!LoginMessages::default().accept(&challenge("4096,i=2147483647")));
        assert!(!LoginMessages::default().accept(&challenge("2147483647,i=4096")));
    }

    fn record(length: u16) -> Vec<u8> {
        [&[23, 3, 3][..], &length.to_be_bytes(), &vec![b'R'; usize::from(length)]].concat()
    }

    /// Encrypted bytes may be anything, but of a record's length.
    #[test]
    fn records_are_passed_on_one_by_one() {
        for consent in [&b"S"[..], b"NS"] {
            let mut messages = LoginMessages::default();
            assert_eq!(messages.limit(), 1);
            assert!(messages.accept(consent));
            for length in [5, 0, 1, 16_384 + 256] {
                assert_eq!(messages.limit(), 5);
                let record = record(length);
                assert!(messages.accept(&record[..3]));
                assert_eq!(messages.limit(), 2);
                assert!(messages.accept(&record[3..5]));
                assert!(length == 0 || messages.limit() == usize::from(length));
                assert!(messages.accept(&record[5..]));
            }
            assert!(!messages.accept(&record(u16::MAX)));
        }
        let mut direct = LoginMessages::default();
        assert!(direct.accept(&[22, 3, 3, 0]) && direct.limit() == 1);
        assert!(!LoginMessages::default().accept(b"G"));
    }

    /// What TLS protects is judged from its first byte on: no byte of it is a consent to encryption.
    #[test]
    fn decrypted_messages_are_judged() {
        assert!(LoginMessages::of_tls().accept(&challenge("4096")));
        assert!(!LoginMessages::of_tls().accept(&challenge("2147483647")));
        let notice = message(b'N', b"S");
        assert!(!LoginMessages::of_tls().accept(&[&notice[..], &challenge("2147483647")].concat()));
        assert!(!LoginMessages::of_tls().accept(&[b'S', 0, 0, 0, 3]));
    }

    /// libpq would take the rest for the beginning of another message.
    #[test]
    fn a_message_of_authentication_has_no_rest() {
        let is_accepted = |body: &[u8]| LoginMessages::default().accept(&message(b'R', body));
        let rest = &challenge("2147483647")[..9];
        let accepted: [&[u8]; 7] = [
            b"\0\0\0\0",
            b"\0\0\0\x03",
            b"\0\0\0\x05salt",
            b"\0\0\0\x07",
            b"\0\0\0\x0aSCRAM-SHA-256\0\0",
            b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0",
            b"\0\0\0\x0a\0",
        ];
        for body in accepted {
            assert!(is_accepted(body), "{body:?}");
            assert!(!is_accepted(&[body, rest].concat()), "{body:?}");
        }
        for body in [
            &b"\0\0\0\x0aSCRAM-SHA-256\0"[..],
            b"\0\0\0\x0a",
            b"\0\0\0\x0a\0\0",
            b"\0\0\0\x05sal",
            b"\0\0\0\x02",
            b"\0\0\0\x09",
        ] {
            assert!(!is_accepted(body), "{body:?}");
        }
    }

    #[test]
    fn a_message_of_authentication_is_short() {
        assert!(!LoginMessages::default().accept(&[b'R', 0x3f, 0, 0, 0]));
        assert!(!LoginMessages::default().accept(&[b'R', 0, 0, 0, 3]));
        // An error may be long: the caller limits the whole login.
        assert!(LoginMessages::default().accept(&message(b'E', &[b'x'; 100_000])));
    }

    proptest! {
        /// However the bytes arrive, the answer is the same, and it comes before the last byte of the challenge is passed on.
        #[test]
        fn pieces_change_nothing(cuts in prop::collection::vec(1..40usize, 1..40), is_many: bool) {
            let bytes = login(if is_many { "2147483647" } else { "4096" });
            let mut messages = LoginMessages::default();
            let (mut rest, mut accepted) = (&bytes[..], true);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, left) = rest.split_at(rest.len().min(*cut));
                accepted = accepted && messages.accept(piece);
                rest = left;
            }
            prop_assert_eq!(accepted, !is_many);
        }

        #[test]
        fn no_bytes_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..20)) {
            let mut messages = LoginMessages::default();
            for piece in pieces {
                messages.accept(&piece);
            }
        }
    }
}
