//! The session and the transaction that a command names: `lsid`, `txnNumber`, `autocommit`, `startTransaction`, and the concerns that a
//! transaction allows.

use crate::reply::{Failure, INVALID_OPTIONS, TYPE_MISMATCH};
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument};

/// A session's UUID, which its client has chosen. Roles have sessions of their own: the same UUID of two roles is two sessions.
pub type Id = [u8; 16];

/// A transaction's place: its session, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub session: Id,
    pub number: i64,
}

/// The transaction or the numbered write to which a command belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Nothing,
    /// a write that its driver sends again if it gets no answer
    Retryable(Place),
    /// a statement, commit or abort of a transaction, which `start` begins
    Transaction {
        place: Place,
        start: bool,
    },
}

/// The largest number of stages that a router accepts. Longer pipelines are not searched.
pub const MAX_STAGES: usize = 1_000;

/// The largest number of sessions, cursors or users that a command may name, as in MongoDB.
pub const MAX_NAMED: usize = 10_000;

/// Levels of a read concern that a transaction may have.
const LEVELS: &[&str] = &["local", "majority", "snapshot"];

fn invalid(message: &str) -> Failure {
    Failure::new(INVALID_OPTIONS, message)
}

/// The UUID of `{"id": UUID}`.
pub fn id(value: RawBsonRef<'_>) -> Result<Id, Failure> {
    let wrong = || Failure::new(TYPE_MISMATCH, "a session is a document {id: UUID}");
    let binary = value.as_document().ok_or_else(wrong)?.get_binary("id").map_err(|_| wrong())?;
    if binary.subtype != BinarySubtype::Uuid {
        return Err(wrong());
    }
    binary.bytes.try_into().map_err(|_| wrong())
}

fn flag(command: &RawDocument, name: &str) -> Result<Option<bool>, Failure> {
    match command.get(name) {
        Ok(None) => Ok(None),
        Ok(Some(RawBsonRef::Boolean(value))) => Ok(Some(value)),
        _ => Err(Failure::new(TYPE_MISMATCH, format!("'{name}' must be a boolean"))),
    }
}

fn number(command: &RawDocument) -> Result<Option<i64>, Failure> {
    match command.get("txnNumber") {
        Ok(None) => Ok(None),
        Ok(Some(RawBsonRef::Int64(number))) if number >= 0 => Ok(Some(number)),
        Ok(Some(RawBsonRef::Int64(_))) => Err(invalid("Transaction number cannot be negative")),
        _ => Err(Failure::new(TYPE_MISMATCH, "'txnNumber' must be a long")),
    }
}

/// Reads and checks the fields of a command.
pub fn part(name: &str, command: &RawDocument) -> Result<Part, Failure> {
    let part = place(name, command)?;
    let level = command.get_document("readConcern").and_then(|concern| concern.get_str("level"));
    if level.is_ok_and(|level| level == "snapshot")
        && !matches!(part, Part::Transaction { .. })
        && !matches!(name, "find" | "aggregate" | "distinct" | "getMore")
    {
        return Err(invalid(&format!("{name} does not support the readConcern level snapshot outside transactions")));
    }
    Ok(part)
}

fn place(name: &str, command: &RawDocument) -> Result<Part, Failure> {
    let session = match command.get("lsid") {
        Ok(None) => None,
        Ok(Some(value)) => Some(id(value)?),
        Err(_) => return Err(Failure::new(TYPE_MISMATCH, "'lsid' must be a document")),
    };
    let number = number(command)?;
    let (autocommit, start) = (flag(command, "autocommit")?, flag(command, "startTransaction")?);
    let Some(number) = number else {
        return match (autocommit, start) {
            (Some(_), _) => Err(invalid("'autocommit' field requires a transaction number to also be specified")),
            (_, Some(_)) => Err(invalid("'startTransaction' field requires a transaction number to also be specified")),
            _ => Ok(Part::Nothing),
        };
    };
    let session = session.ok_or_else(|| invalid("Transaction number requires a session ID to also be specified"))?;
    let place = Place { session, number };
    match (autocommit, start) {
        (None, None) if is_retryable(name) => return Ok(Part::Retryable(place)),
        (None, None) => {
            let message =
                format!("txnNumber needs autocommit: false, or a write that can be sent again, which {name} is not");
            return Err(Failure::new((50768, "NotARetryableWriteCommand"), message));
        }
        (None, Some(_)) => {
            return Err(invalid("'startTransaction' field requires 'autocommit' field to also be specified"));
        }
        (Some(true), _) => return Err(invalid("Specifying autocommit=true is not allowed.")),
        (_, Some(false)) => return Err(invalid("Specifying startTransaction=false is not allowed.")),
        _ => {}
    }
    let (start, is_end) = (start.is_some(), is_end(name));
    if start && is_end {
        return Err(invalid(&format!("{name} cannot start a transaction")));
    }
    if !is_end && !matches!(command.get("writeConcern"), Ok(None)) {
        return Err(invalid("writeConcern is not allowed within a multi-statement transaction"));
    }
    if let Ok(concern) = command.get_document("readConcern") {
        if !start {
            return Err(invalid("Only the first command in a transaction may specify a readConcern"));
        }
        if concern.get_str("level").is_ok_and(|level| !LEVELS.contains(&level)) {
            let message = "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a transaction";
            return Err(invalid(message));
        }
    }
    Ok(Part::Transaction { place, start })
}

/// True for commands that drivers send again with the same number.
fn is_retryable(name: &str) -> bool {
    matches!(name, "insert" | "update" | "delete" | "findAndModify" | "findandmodify" | "bulkWrite") || is_end(name)
}

/// True for the commands that end a transaction.
pub fn is_end(name: &str) -> bool {
    matches!(name, "commitTransaction" | "abortTransaction")
}

/// True if a transaction may contain this command.
pub fn is_allowed(name: &str, database: &str, command: &RawDocument) -> bool {
    let is_listed = matches!(
        name,
        "aggregate"
            | "bulkWrite"
            | "create"
            | "createIndexes"
            | "delete"
            | "distinct"
            | "find"
            | "findAndModify"
            | "findandmodify"
            | "getMore"
            | "insert"
            | "killCursors"
            | "update"
    );
    let is_own =
        matches!(database, "admin" | "config" | "local") && !matches!(name, "bulkWrite" | "getMore" | "killCursors");
    is_listed && !is_own && !(name == "aggregate" && is_outside(command))
}

/// True for a pipeline with a stage that no transaction may contain.
fn is_outside(command: &RawDocument) -> bool {
    const STAGES: &[&str] = &[
        "$changeStream",
        "$collStats",
        "$currentOp",
        "$indexStats",
        "$listClusterCatalog",
        "$listLocalSessions",
        "$listSessions",
        "$merge",
        "$out",
        "$planCacheStats",
        "$shardedDataDistribution",
    ];
    let Ok(stages) = command.get_array("pipeline") else { return false };
    stages
        .into_iter()
        .take(MAX_STAGES)
        .filter_map(|stage| stage.ok()?.as_document()?.iter().next()?.ok())
        .any(|(name, _)| STAGES.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, Uuid, doc};

    fn of(fields: Document) -> Result<Part, i32> {
        named("insert", fields)
    }

    fn named(name: &str, fields: Document) -> Result<Part, i32> {
        let mut document = doc! { name: "c" };
        document.extend(fields);
        let bytes = document.to_vec().unwrap();
        part(name, RawDocument::from_bytes(&bytes).unwrap()).map_err(|failure| failure.code)
    }

    #[test]
    fn a_command_names_its_transaction() {
        let lsid = doc! { "id": Uuid::from_bytes([7; 16]) };
        let place = Place { session: [7; 16], number: 3 };
        assert_eq!(of(doc! {}), Ok(Part::Nothing));
        assert_eq!(of(doc! { "lsid": &lsid }), Ok(Part::Nothing));
        let numbered = doc! { "lsid": &lsid, "txnNumber": 3i64 };
        assert_eq!(of(numbered.clone()), Ok(Part::Retryable(place)));
        assert_eq!(named("find", numbered), Err(50768));
        let within = doc! { "lsid": &lsid, "txnNumber": 3i64, "autocommit": false };
        assert_eq!(of(within.clone()), Ok(Part::Transaction { place, start: false }));
        let with = |more: Document| {
            let mut all = within.clone();
            all.extend(more);
            of(all)
        };
        assert_eq!(with(doc! { "startTransaction": true }), Ok(Part::Transaction { place, start: true }));
        assert_eq!(
            with(doc! { "startTransaction": true, "readConcern": { "level": "snapshot" } }),
            Ok(Part::Transaction { place, start: true })
        );
        for (name, expected) in [("find", Ok(Part::Nothing)), ("listCollections", Err(72)), ("findAndModify", Err(72))]
        {
            assert_eq!(named(name, doc! { "readConcern": { "level": "snapshot" } }), expected, "{name}");
        }
        for wrong in [
            doc! { "startTransaction": false },
            doc! { "autocommit": true },
            doc! { "writeConcern": { "w": 1 } },
            doc! { "readConcern": {} },
            doc! { "startTransaction": true, "readConcern": { "level": "linearizable" } },
            doc! { "txnNumber": -1i64 },
        ] {
            assert_eq!(with(wrong.clone()), Err(72), "{wrong}");
        }
        for wrong in [
            doc! { "lsid": 3 },
            doc! { "lsid": { "id": "x" } },
            doc! { "lsid": &lsid, "txnNumber": 3 },
            doc! { "lsid": &lsid, "txnNumber": 3i64, "autocommit": 0 },
        ] {
            assert_eq!(of(wrong.clone()), Err(14), "{wrong}");
        }
        for wrong in [doc! { "txnNumber": 3i64 }, doc! { "autocommit": false }, doc! { "startTransaction": true }] {
            assert_eq!(of(wrong.clone()), Err(72), "{wrong}");
        }
    }
}
