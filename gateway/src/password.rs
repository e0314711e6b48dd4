//! Passwords in `createUser` and `updateUser`: the router gets a verifier of SCRAM-SHA-256 in place of each, so that no statement, log or
//! view of PostgreSQL can show one.
//!
//! The verifier is as MongoDB's servers make it, with a salt of 28 bytes and 15,000 iterations: libmongoc refuses PostgreSQL's shorter
//! salts.

use crate::command::{Command, append_string, end};
use crate::reply::{BAD_VALUE, COMMAND_NOT_FOUND, Failure, TYPE_MISMATCH};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::RawBsonRef;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};
use std::num::NonZeroU32;

const COMMANDS: &[&str] = &["createUser", "updateUser"];
const FIELD: &str = "pwd";
const ITERATIONS: NonZeroU32 = const { NonZeroU32::new(15_000).unwrap() };
const SALT: usize = 28;
/// The largest length of a password in bytes. The limit is the gateway's own choice.
const MAX_PASSWORD: usize = 1024;

/// The password in a command; None if it has none.
pub fn of(command: &Command) -> Result<Option<String>, Failure> {
    // The inner command would reach the router, and its log, as it is.
    if let Ok(inner) = command.document().get_document("explain")
        && let Some(Ok((name, _))) = inner.iter().next()
        && COMMANDS.contains(&name.as_str())
    {
        return Err(Failure::new(COMMAND_NOT_FOUND, format!("Explain failed due to unknown command: {name}")));
    }
    if !COMMANDS.contains(&command.name.as_str()) {
        return Ok(None);
    }
    match command.document().get(FIELD) {
        Ok(None) => Ok(None),
        Ok(Some(RawBsonRef::String(password))) if (1..=MAX_PASSWORD).contains(&password.len()) => {
            Ok(Some(password.to_owned()))
        }
        Ok(Some(RawBsonRef::String(_))) => Err(refused("a password has 1 to 1024 bytes")),
        _ => Err(Failure::new(TYPE_MISMATCH, format!("{}.{FIELD} must be a string", command.name))),
    }
}

/// The command with a verifier in place of its password.
pub fn replaced(command: &Command, verifier: &str) -> Result<Command, Failure> {
    let mut bytes = vec![0; 4];
    let mut at = 4;
    for element in command.document().iter_elements() {
        let element = element.map_err(|_| refused("the command is not valid BSON"))?;
        let (from, key) = (at, element.key().as_str());
        at += 1 + key.len() + 1 + element.size();
        match key == FIELD {
            true => append_string(&mut bytes, FIELD, verifier),
            false => bytes.extend(command.bytes.get(from..at).unwrap_or_default()),
        }
    }
    end(&mut bytes, 0);
    Ok(Command {
        name: command.name.clone(),
        database: command.database.clone(),
        bytes,
        part: command.part,
        recovery: None,
        is_secret: true,
        number_at: None,
    })
}

fn refused(message: &str) -> Failure {
    Failure::new(BAD_VALUE, message)
}

/// The verifier of a password. It takes some milliseconds.
pub fn verifier(password: &str) -> Result<String, Failure> {
    let mut salt = [0; SALT];
    SystemRandom::new().fill(&mut salt).map_err(|_| refused("could not generate a salt"))?;
    Ok(verifier_with(password, &salt))
}

/// The verifier in PostgreSQL's form. As PostgreSQL and drivers do, a password that cannot be normalized is taken as it is.
fn verifier_with(password: &str, salt: &[u8]) -> String {
    let normal = stringprep::saslprep(password).unwrap_or(password.into());
    let mut salted = [0; digest::SHA256_OUTPUT_LEN];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, salt, normal.as_bytes(), &mut salted);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &salted);
    let stored = digest::digest(&digest::SHA256, hmac::sign(&key, b"Client Key").as_ref());
    let server = hmac::sign(&key, b"Server Key");
    let [salt, stored, server] = [salt, stored.as_ref(), server.as_ref()].map(|bytes| STANDARD.encode(bytes));
    format!("SCRAM-SHA-256${ITERATIONS}:{salt}${stored}:{server}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    fn hidden(document: &Document) -> Result<Document, Failure> {
        let command = Command {
            name: document.keys().next().unwrap().clone(),
            database: "admin".into(),
            bytes: document.to_vec().unwrap(),
            part: crate::session::Part::Nothing,
            recovery: None,
            is_secret: false,
            number_at: None,
        };
        let hidden = match of(&command)? {
            Some(password) => replaced(&command, &verifier(&password)?)?,
            None => command,
        };
        Ok(Document::from_reader(hidden.bytes.as_slice()).unwrap())
    }

    /// The password is that of the example in RFC 7677. Its verifier cannot be compared, because the example has other iterations. Checks the
    /// lengths of the parts, and that only the same password gives the same verifier.
    #[test]
    fn a_verifier_has_mongodbs_salt_and_iterations() {
        let found = hidden(&doc! { "createUser": "ann", "pwd": "pencil", "roles": ["read"] }).unwrap();
        let verifier = found.get_str("pwd").unwrap();
        let (scheme, rest) = verifier.split_once('$').unwrap();
        let (iterations, rest) = rest.split_once(':').unwrap();
        let (salt, keys) = rest.split_once('$').unwrap();
        assert_eq!((scheme, iterations), ("SCRAM-SHA-256", "15000"));
        let salt = STANDARD.decode(salt).unwrap();
        assert_eq!(salt.len(), 28);
        assert!(keys.split(':').all(|key| STANDARD.decode(key).unwrap().len() == 32));
        assert_eq!(verifier, verifier_with("pencil", &salt));
        assert_ne!(verifier, verifier_with("Pencil", &salt));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["createUser", "pwd", "roles"]);
        assert_eq!(found.get_array("roles").unwrap().len(), 1);
    }

    #[test]
    fn other_commands_and_values_stay() {
        for document in
            [doc! { "find": "c", "pwd": "x" }, doc! { "createUser": "ann" }, doc! { "explain": { "find": "c" } }]
        {
            assert_eq!(hidden(&document).unwrap(), document);
        }
        // Nothing that may hold a password passes as it is.
        for (document, code) in [
            (doc! { "updateUser": "ann", "pwd": "" }, 2),
            (doc! { "updateUser": "ann", "pwd": "x".repeat(1025) }, 2),
            (doc! { "createUser": "ann", "pwd": { "x": "secret" } }, 14),
            (doc! { "updateUser": "ann", "pwd": bson::Bson::Symbol("secret".into()) }, 14),
            (doc! { "explain": { "createUser": "ann", "pwd": "secret" } }, 59),
        ] {
            assert_eq!(hidden(&document).unwrap_err().code, code, "{document}");
        }
    }
}
