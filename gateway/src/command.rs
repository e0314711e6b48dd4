//! Converts a client's command to the form that the router expects: one document, without the fields that only the gateway uses.
//!
//! INVARIANT: the gateway checks exactly what the router runs: the command's name is the first field that the router gets, and no field
//! occurs twice.

use crate::recovery::Xid;
use crate::reply::{COMMAND_NOT_FOUND, FAILED_TO_PARSE, Failure, INVALID_NAMESPACE};
use crate::session::{self, Id, Part, Place};
use crate::wire::message::Request;
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument};
use std::collections::HashSet;

const STRING: u8 = 2;
const ARRAY: u8 = 4;
const DOCUMENT: u8 = 3;

/// Fields that the router does not get: those of sessions and transactions, which are the gateway's, and times of a MongoDB cluster.
const DROPPED: &[&str] = &[
    "$db",
    "lsid",
    "txnNumber",
    "autocommit",
    "startTransaction",
    "stmtId",
    "stmtIds",
    "recoveryToken",
    "$clusterTime",
    "$configTime",
    "$topologyTime",
];

/// The largest number of a command's fields. Commands have about twenty.
const MAX_FIELDS: usize = 1_000;

/// The length of the longest name of a command, in bytes. The longest existing one has 40.
const MAX_NAME: usize = 100;

#[derive(Debug)]
pub struct Command {
    /// the name of the first field that the router gets
    pub name: String,
    pub database: String,
    /// the document, with sequences as arrays
    pub bytes: Vec<u8>,
    /// the transaction or the numbered write that the command belongs to
    pub part: Part,
    /// the transaction's id in its `recoveryToken`
    pub recovery: Option<Xid>,
    /// the command may contain a password, so no log of the router may show it
    pub is_secret: bool,
    /// the position in `bytes` of the session and the number of a write, which are the last fields; None if the write has no number
    pub number_at: Option<usize>,
}

/// True if a field with this name may hold a password.
fn names_password(field: &str) -> bool {
    ["pwd", "passwd", "password"].iter().any(|name| field.eq_ignore_ascii_case(name))
}

impl Command {
    pub fn of(request: &Request<'_>) -> Result<Self, Failure> {
        let malformed = |_| Failure::new(FAILED_TO_PARSE, "the command is not valid BSON");
        let mut document = RawDocument::from_bytes(request.document).map_err(malformed)?;
        // Old drivers wrap a command that has a read preference.
        if request.database.is_some()
            && let Ok(inner) = document.get_document("$query")
        {
            document = inner;
        }
        let mut database = request.database.map(str::to_owned);
        let mut name = None;
        let mut keys: HashSet<&str> = request.sequences.iter().map(|(name, _)| *name).collect();
        let mut bytes = vec![0; 4];
        // Elements are copied as they are.
        let mut at = 4;
        for (count, element) in document.iter_elements().enumerate() {
            let element = element.map_err(malformed)?;
            if count == MAX_FIELDS {
                return Err(Failure::new(FAILED_TO_PARSE, "the command has too many fields"));
            }
            let key = element.key().as_str();
            let from = at;
            at += 1 + key.len() + 1 + element.size();
            if !keys.insert(key) {
                let message = format!("the field '{key:.100}' is given twice");
                return Err(Failure::new((40413, "Location40413"), message));
            }
            if key == "$db"
                && database.is_none()
                && let Ok(RawBsonRef::String(named)) = element.value()
            {
                database = Some(named.to_owned());
            }
            if !DROPPED.contains(&key) {
                name.get_or_insert(key);
                bytes.extend(document.as_bytes().get(from..at).unwrap_or_default());
            }
        }
        for (name, documents) in &request.sequences {
            append_array(&mut bytes, name, documents);
        }
        let name = name.ok_or_else(|| Failure::new(FAILED_TO_PARSE, "the command has no name"))?;
        if name.len() > MAX_NAME {
            return Err(Failure::new(COMMAND_NOT_FOUND, format!("no such command: '{name:.100}…'")));
        }
        let database =
            database.ok_or_else(|| Failure::new((40571, "Location40571"), "OP_MSG requests require a $db argument"))?;
        if database.contains('\0') {
            let message = "namespaces cannot have embedded null characters";
            return Err(Failure::new(INVALID_NAMESPACE, message));
        }
        let part = session::part(name, document)?;
        let mut number_at = None;
        if let Part::Retryable(Place { session, number }) = part
            && !session::is_end(name)
        {
            number_at = Some(bytes.len());
            append_number(&mut bytes, session, number);
        }
        end(&mut bytes, 0);
        // Checked for every command: a misspelled one may contain a password, too.
        let is_secret = matches!(part, Part::Nothing) && keys.iter().any(|key| names_password(key));
        let recovery = Xid::of_command(document);
        Ok(Self { name: name.to_owned(), database, bytes, part, recovery, is_secret, number_at })
    }

    /// The document without session and number, for a router whose version has no numbered writes.
    pub fn without_number(&self) -> Vec<u8> {
        let mut bytes = self.number_at.and_then(|at| self.bytes.get(..at)).unwrap_or(&self.bytes).to_vec();
        if self.number_at.is_some() {
            end(&mut bytes, 0);
        }
        bytes
    }

    pub fn document(&self) -> &RawDocument {
        // The bytes were made above, with the right length.
        RawDocument::from_bytes(&self.bytes)
            .unwrap_or_else(|_| RawDocument::from_bytes(EMPTY).unwrap_or_else(|_| unreachable!()))
    }
}

const EMPTY: &[u8] = b"\x05\0\0\0\0";

/// Appends `lsid` and `txnNumber`.
fn append_number(out: &mut Vec<u8>, session: Id, number: i64) {
    out.extend(b"\x03lsid\0");
    let start = out.len();
    out.extend([0; 4]);
    out.extend(b"\x05id\0");
    out.extend(16_i32.to_le_bytes());
    out.push(u8::from(BinarySubtype::Uuid));
    out.extend(session);
    end(out, start);
    out.extend(b"\x12txnNumber\0");
    out.extend(number.to_le_bytes());
}

fn append_array(out: &mut Vec<u8>, name: &str, documents: &[&[u8]]) {
    out.push(ARRAY);
    out.extend(name.as_bytes());
    out.push(0);
    let start = out.len();
    out.extend([0; 4]);
    for (position, document) in documents.iter().enumerate() {
        out.push(DOCUMENT);
        out.extend(position.to_string().as_bytes());
        out.push(0);
        out.extend(*document);
    }
    end(out, start);
}

pub fn append_string(out: &mut Vec<u8>, name: &str, text: &str) {
    out.push(STRING);
    out.extend(name.as_bytes());
    out.push(0);
    out.extend(i32::try_from(text.len() + 1).unwrap_or(i32::MAX).to_le_bytes());
    out.extend(text.as_bytes());
    out.push(0);
}

/// Ends a document and fills in its length, which a message's limit keeps within 32 bits.
pub fn end(out: &mut Vec<u8>, start: usize) {
    out.push(0);
    let length = i32::try_from(out.len() - start).unwrap_or(i32::MAX).to_le_bytes();
    if let Some(at) = out.get_mut(start..start + 4) {
        at.copy_from_slice(&length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    fn parse(document: &Document, sequences: &[(&str, Vec<Document>)]) -> Result<Command, Failure> {
        let document = document.to_vec().unwrap();
        let sequences: Vec<(&str, Vec<Vec<u8>>)> = sequences
            .iter()
            .map(|(name, all)| (*name, all.iter().map(|one| one.to_vec().unwrap()).collect()))
            .collect();
        let sequences = sequences.iter().map(|(name, all)| (*name, all.iter().map(Vec::as_slice).collect())).collect();
        Command::of(&Request {
            document: &document,
            sequences,
            more_to_come: false,
            exhaust_allowed: false,
            database: None,
        })
    }

    #[test]
    fn sequences_become_arrays_and_the_clients_fields_go() {
        let document = doc! { "insert": "c", "lsid": { "id": bson::Uuid::new() }, "ordered": true, "$db": "test", "$clusterTime": {} };
        let many: Vec<Document> = (0..12).map(|n| doc! { "_id": n }).collect();
        let command = parse(&document, &[("documents", many.clone())]).unwrap();
        assert_eq!((command.name.as_str(), command.database.as_str()), ("insert", "test"));
        let found = Document::from_reader(command.bytes.as_slice()).unwrap();
        assert_eq!(found, doc! { "insert": "c", "ordered": true, "documents": many });
    }

    #[test]
    fn a_number_stays_with_a_write() {
        let lsid = doc! { "id": bson::Uuid::from_bytes([7; 16]) };
        let plain = doc! { "insert": "c", "documents": [{}] };
        let mut numbered = plain.clone();
        numbered.extend(doc! { "lsid": &lsid, "txnNumber": 3i64 });
        let mut sent = numbered.clone();
        sent.extend(doc! { "$db": "test", "stmtId": 1 });
        let command = parse(&sent, &[]).unwrap();
        assert_eq!(Document::from_reader(command.bytes.as_slice()).unwrap(), numbered);
        assert_eq!(Document::from_reader(command.without_number().as_slice()).unwrap(), plain);
        // In a transaction, the gateway uses the number and does not send it.
        sent.insert("autocommit", false);
        let command = parse(&sent, &[]).unwrap();
        assert_eq!(Document::from_reader(command.bytes.as_slice()).unwrap(), plain);
        assert_eq!(command.without_number(), command.bytes);
    }

    #[test]
    fn a_field_cannot_come_twice() {
        let document = doc! { "insert": "c", "documents": [], "$db": "test" };
        assert_eq!(parse(&document, &[("documents", vec![])]).unwrap_err().code, 40413);
        assert_eq!(parse(&doc! { "ping": 1 }, &[]).unwrap_err().code, 40571);
        assert!(parse(&doc! {}, &[]).is_err());
        // Of two fields with one name, the router and the gateway would read different ones.
        for twice in ["getMore", "pipeline", "lsid", "$db"] {
            let mut bytes = vec![0; 4];
            append_string(&mut bytes, "find", "c");
            append_string(&mut bytes, twice, "x");
            append_string(&mut bytes, twice, "y");
            end(&mut bytes, 0);
            let request = Request {
                document: &bytes,
                sequences: vec![],
                more_to_come: false,
                exhaust_allowed: false,
                database: Some("test"),
            };
            assert_eq!(Command::of(&request).unwrap_err().code, 40413, "{twice}");
        }
    }

    #[test]
    fn the_name_is_the_first_field_that_the_router_gets() {
        for first in DROPPED {
            let mut document = doc! {};
            let value =
                if *first == "lsid" { bson::Bson::from(doc! { "id": bson::Uuid::new() }) } else { "test".into() };
            document.insert(*first, value);
            if !matches!(*first, "txnNumber" | "autocommit" | "startTransaction") {
                document.extend(doc! { "getLastError": 1, "$db": "test" });
                assert_eq!(parse(&document, &[]).unwrap().name, "getLastError", "{first}");
            }
        }
        assert!(parse(&doc! { "$db": "test" }, &[]).is_err(), "a command without a name");
        assert_eq!(parse(&doc! { "x".repeat(1000): 1, "$db": "test" }, &[]).unwrap_err().code, 59);
    }

    /// PostgreSQL has no such strings.
    #[test]
    fn a_database_has_no_nul_in_its_name() {
        let failure = parse(&doc! { "ping": 1, "$db": "a\0b" }, &[]).unwrap_err();
        assert_eq!((failure.code, failure.name.as_str()), (73, "InvalidNamespace"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
            let mut document = (bytes.len() as i32 + 5).to_le_bytes().to_vec();
            document.extend(&bytes);
            document.push(0);
            for document in [document.as_slice(), &bytes] {
                let _ = Command::of(&Request { document, sequences: vec![("a", vec![document])], more_to_come: false, exhaust_allowed: false, database: Some("x") });
            }
        }
    }
}
