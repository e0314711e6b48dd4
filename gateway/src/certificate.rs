//! The role of a client's certificate, for `MONGODB-X509`.
//!
//! TLS has verified the certificate ([`crate::tls::acceptor`]) before it is read here. The role is the common name of its subject, as in
//! PostgreSQL's method `cert`. The user that a client may name is compared with it, and decides nothing.
//!
//! RULE: a subject that could be read in two ways has no role: with several common names, several attributes in a part, a common name that is
//! not text, has a NUL, or is longer than the name of a role, which PostgreSQL would truncate.

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Reader, SliceReader, Tag, Tagged};
use ring::digest;
use rustls_pki_types::CertificateDer;
use std::borrow::Cow;

/// PostgreSQL's longest name of a role, in bytes.
pub const MAX_ROLE: usize = 63;

/// `CN`
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The short names of attributes in a distinguished name, as OpenSSL writes them.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.42", "GN"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// A certificate that a client has shown.
#[derive(Debug, PartialEq, Eq)]
pub struct Certificate {
    pub role: String,
    /// its digest
    pub digest: Vec<u8>,
    /// the subject's distinguished name in the form of RFC 2253
    name: String,
}

/// One attribute of a subject.
struct Attribute<'a> {
    kind: ObjectIdentifier,
    value: AnyRef<'a>,
}

impl Certificate {
    /// Reads a certificate that TLS has verified.
    ///
    /// Errors: says why its subject has no role.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let read = webpki::EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
        let (role, name) = names_of(read.subject())?;
        let digest = digest::digest(&digest::SHA256, certificate).as_ref().to_vec();
        Ok(Self { role, digest, name })
    }

    /// True if a client that shows the certificate may call itself this: by the subject's distinguished name, or by the role.
    pub fn is_of(&self, user: &str) -> bool {
        user == self.role || unescaped(user) == self.name.as_bytes()
    }
}

/// The role and the distinguished name of a subject, given as the content of its `SEQUENCE`.
fn names_of(subject: &[u8]) -> Result<(String, String), String> {
    let attributes = attributes(subject).map_err(|error| format!("its subject is malformed: {error}"))?;
    let attributes = attributes.ok_or("a part of its subject has several attributes")?;
    let mut roles = attributes.iter().filter(|attribute| attribute.kind == COMMON_NAME);
    let (Some(role), None) = (roles.next(), roles.next()) else {
        return Err("its subject must have one common name (CN)".to_owned());
    };
    let role = text(role.value).ok_or("its common name (CN) is not text")?;
    if !(1..=MAX_ROLE).contains(&role.len()) || role.contains('\0') {
        return Err("its common name (CN) is no name of a role".to_owned());
    }
    // RFC 2253 begins with the last part.
    let parts: Vec<String> = attributes.iter().rev().map(described).collect();
    Ok((role.to_owned(), parts.join(",")))
}

/// The attributes of a subject; None if a part has several.
fn attributes(subject: &[u8]) -> der::Result<Option<Vec<Attribute<'_>>>> {
    let mut attributes = Vec::new();
    let mut parts = SliceReader::new(subject)?;
    while !parts.is_finished() {
        let part: AnyRef<'_> = parts.decode()?;
        part.tag().assert_eq(Tag::Set)?;
        let mut part = SliceReader::new(part.value())?;
        let attribute: AnyRef<'_> = part.decode()?;
        if !part.is_finished() {
            return Ok(None);
        }
        attributes.push(attribute.sequence(|attribute| -> der::Result<_> {
            Ok(Attribute { kind: attribute.decode()?, value: attribute.decode()? })
        })?);
    }
    Ok(Some(attributes))
}

/// The text of an attribute, if its type is one of those in use today.
fn text(value: AnyRef<'_>) -> Option<&str> {
    let text = std::str::from_utf8(value.value()).ok()?;
    match value.tag() {
        Tag::Utf8String => Some(text),
        Tag::PrintableString | Tag::Ia5String => text.is_ascii().then_some(text),
        _ => None,
    }
}

/// An attribute as a part of a distinguished name.
fn described(attribute: &Attribute<'_>) -> String {
    let kind = attribute.kind.to_string();
    let short = SHORT_NAMES.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name);
    let value = text(attribute.value).map_or_else(|| String::from_utf8_lossy(attribute.value.value()), Cow::Borrowed);
    let mut part = format!("{}=", short.unwrap_or(&kind));
    let last = value.chars().count().saturating_sub(1);
    for (place, character) in value.chars().enumerate() {
        let is_special = match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => true,
            '#' => place == 0,
            ' ' => place == 0 || place == last,
            _ => false,
        };
        if is_special {
            part.push('\\');
        }
        part.push(character);
    }
    part
}

/// A distinguished name in which bytes of UTF-8 are as they are: MongoDB and OpenSSL write them as `\C3\A9`.
fn unescaped(name: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), name.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let pair = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).filter(|byte| !byte.is_ascii());
        let length = match (first, byte) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                3
            }
            // The character after a backslash stands for itself, also if it is a backslash.
            (b'\\', None) => {
                out.extend(rest.iter().take(2));
                2
            }
            _ => {
                out.push(*first);
                1
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTF8: u8 = 0x0c;
    const PRINTABLE: u8 = 0x13;
    const TELETEX: u8 = 0x14;
    const COMMON: &[u8] = &[0x55, 4, 3];
    const UNIT: &[u8] = &[0x55, 4, 11];
    const OTHER: &[u8] = &[0x2a, 3, 4];

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        let head = if length < 128 { vec![tag, length] } else { vec![tag, 0x81, length] };
        [head, content.to_vec()].concat()
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        element(0x30, &[element(6, kind), element(tag, value)].concat())
    }

    fn subject(parts: &[(&[u8], u8, &str)]) -> Vec<u8> {
        let part = |(kind, tag, value): &(&[u8], u8, &str)| element(0x31, &attribute(kind, *tag, value.as_bytes()));
        parts.iter().flat_map(part).collect()
    }

    fn certificate(parts: &[(&[u8], u8, &str)]) -> Certificate {
        let (role, name) = names_of(&subject(parts)).unwrap();
        Certificate { role, name, digest: Vec::new() }
    }

    #[test]
    fn the_role_is_the_common_name() {
        let ann = certificate(&[(OTHER, UTF8, "x"), (UNIT, PRINTABLE, "sales, east"), (COMMON, UTF8, "märz")]);
        assert_eq!((ann.role.as_str(), ann.name.as_str()), ("märz", "CN=märz,OU=sales\\, east,1.2.3.4=x"));
        for user in ["märz", "CN=märz,OU=sales\\, east,1.2.3.4=x", "CN=m\\C3\\A4rz,OU=sales\\, east,1.2.3.4=x"] {
            assert!(ann.is_of(user), "{user}");
        }
        for user in
            ["", "ann", "CN=märz", "CN=M\\C3\\A4RZ,OU=sales\\, east,1.2.3.4=x", "1.2.3.4=x,OU=sales\\, east,CN=märz"]
        {
            assert!(!ann.is_of(user), "{user}");
        }
        let longest = "x".repeat(MAX_ROLE);
        assert_eq!(certificate(&[(COMMON, PRINTABLE, &longest)]).role, longest);
    }

    #[test]
    fn names_are_escaped_as_rfc_2253_says() {
        for (value, escaped) in [
            (" a ", "\\ a\\ "),
            (" ", "\\ "),
            ("#a#", "\\#a#"),
            ("a\\\"<>;+", "a\\\\\\\"\\<\\>\\;\\+"),
            // No escaped byte, but a backslash and letters.
            ("a\\c3", "a\\\\c3"),
        ] {
            let found = certificate(&[(COMMON, UTF8, value)]);
            assert_eq!(found.name, format!("CN={escaped}"));
            assert!(found.is_of(&format!("CN={escaped}")), "{value}");
        }
    }

    #[test]
    fn an_ambiguous_subject_has_no_role() {
        let long = "x".repeat(MAX_ROLE + 1);
        for wrong in [
            &[][..],
            &[(UNIT, UTF8, "ann")],
            &[(COMMON, UTF8, "")],
            &[(COMMON, UTF8, "ann\0boss")],
            &[(COMMON, UTF8, &long)],
            &[(COMMON, TELETEX, "ann")],
            &[(COMMON, PRINTABLE, "märz")],
            &[(COMMON, UTF8, "ann"), (COMMON, UTF8, "boss")],
            &[(COMMON, UTF8, "ann"), (UNIT, UTF8, "x"), (COMMON, UTF8, "ann")],
        ] {
            assert!(names_of(&subject(wrong)).is_err(), "{wrong:?}");
        }
        let invalid = element(0x31, &attribute(COMMON, UTF8, b"a\xff"));
        let several = element(0x31, &[attribute(COMMON, UTF8, b"ann"), attribute(UNIT, UTF8, b"x")].concat());
        let none = element(0x31, &[]);
        let longer =
            element(0x31, &element(0x30, &[element(6, COMMON), element(UTF8, b"ann"), element(5, b"")].concat()));
        let mut cut = subject(&[(COMMON, UTF8, "ann")]);
        cut.pop();
        for wrong in [invalid, several, none, longer, cut] {
            assert!(names_of(&wrong).is_err(), "{wrong:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100), user in ".{0,20}") {
            let _ = (names_of(&bytes), unescaped(&user));
            let _ = Certificate::of(&CertificateDer::from(bytes));
        }

        #[test]
        fn values_of_any_text_are_compared(value in "[^\0]{1,10}") {
            let found = certificate(&[(COMMON, UTF8, &value)]);
            let name = found.name.clone();
            proptest::prop_assert!(found.is_of(&value) && found.is_of(&name));
        }
    }
}
