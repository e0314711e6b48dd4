//! Commands as data, and the check of a command document against its entry.

use super::reply::Reply;
use super::stable_api;
use crate::catalog::collections::namespace;
use crate::operation::arguments::{Arguments, Conflict, Field, Fields, Type, may, mismatch, type_name};
use crate::operation::concerns;
use crate::operation::request_parts::Specification;
use crate::operation::rights;
use crate::operation::table::Operation;
use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, bail, error};
use serde_json::Value as Json;

pub type Run = fn(&Request<'_>) -> Result<Reply>;

#[derive(Debug)]
pub struct Command {
    /// the name of the command
    pub name: &'static str,
    /// other names of the command
    pub aliases: &'static [&'static str],
    /// the type of the first field
    pub target: Type,
    /// the first field is a collection's name
    pub is_of_collection: bool,
    pub fields: Fields,
    /// combinations of fields that are errors
    pub conflicts: &'static [Conflict],
    /// the operations that the command may run; the caller needs the right to each one that it does run
    pub operations: &'static [&'static Operation],
    pub admin_only: bool,
    pub writes: bool,
    /// the command takes a read concern of any level
    pub read_concern: bool,
    /// the command takes a write concern
    pub write_concern: bool,
    /// a short description
    pub help: &'static str,
    pub run: Run,
}

/// The most cursors, users or roles that a command names.
pub const MAX_NAMED: usize = 10_000;

/// The fields of every command. Read concern, write concern and read preference have no effect: PostgreSQL is always consistent
/// within a statement and durable at commit. A session (`lsid`) has an effect only together with `txnNumber`.
const GENERIC: &[Field] = &[
    may("$db", Type::String),
    may("lsid", Type::Object),
    may("txnNumber", Type::Integer),
    may("comment", Type::Any),
    may("maxTimeMS", Type::Integer),
    may("writeConcern", Type::Object),
    may("readConcern", Type::Object),
    may("$readPreference", Type::Object),
    may("$clusterTime", Type::Object),
    may("apiVersion", Type::String),
    may("apiStrict", Type::Bool),
    may("apiDeprecationErrors", Type::Bool),
];

impl Command {
    /// Refuses a concern that a command of this kind does not take. Any command takes the read concern `local`.
    fn check_concerns(&self, generic: &Arguments<'_>) -> Result<()> {
        let level = generic.get("readConcern").and_then(|concern| concern.get("level")?.as_str());
        if let Some(level) = level.filter(|level| *level != "local" && !self.read_concern) {
            bail!(Kind::InvalidOptions, "Command {} does not support readConcern level '{level}'", self.name);
        }
        if generic.get("writeConcern").is_some() && !self.write_concern {
            bail!(Kind::InvalidOptions, "Command {} does not support writeConcern", self.name);
        }
        Ok(())
    }
}

/// Moves the name of a command to the front: a command document from jsonb has lost its order of fields.
///
/// # Errors
/// `FailedToParse` if several fields may be the name of the command.
pub fn name_first(json: Json, commands: &[Command]) -> Result<Json> {
    let Json::Object(mut fields) = json else { return Ok(json) };
    let is_name = |(name, value): &(&String, &Json)| {
        let is_called = |command: &&Command| command.name == *name || command.aliases.contains(&name.as_str());
        commands.iter().find(is_called).is_some_and(|command| command.target.takes(value))
    };
    let names: Vec<String> = fields.iter().filter(is_name).map(|(name, _)| name.clone()).collect();
    let name = match names.as_slice() {
        [] => return Ok(Json::Object(fields)),
        [name] => name,
        several => {
            return Err(error!(
                Kind::FailedToParse,
                "this is a command {}: jsonb does not keep the order of fields",
                several.join(" or ")
            )
            .with_hint("Pass json instead of jsonb."));
        }
    };
    let mut target = fields.shift_remove(name).unwrap_or_default();
    if name == "explain" {
        target = name_first(target, commands)?;
    }
    Ok(Json::Object(std::iter::once((name.clone(), target)).chain(fields).collect()))
}

/// The field with the number of a numbered write. MongoDB's transactions have it, too.
pub const TXN_NUMBER: &str = "txnNumber";

/// The fields of MongoDB's transactions.
const TRANSACTIONAL: &[&str] = &[TXN_NUMBER, "autocommit", "startTransaction", "stmtId", "stmtIds"];

#[derive(Debug)]
pub struct Request<'a> {
    pub db: &'a str,
    /// the name in the document, perhaps an alias
    pub name: &'a str,
    /// all commands
    pub commands: &'static [Command],
    /// the command's entry
    pub spec: &'static Command,
    /// the fields after the first one
    pub fields: Arguments<'a>,
    /// the value of the first field
    pub target: &'a Json,
    /// the documents of an insert, as BSON; None: they are in the command's field `documents`, which otherwise is empty
    pub documents: Option<&'a [&'a [u8]]>,
    pub generic: Arguments<'a>,
    /// the call is the client's whole transaction; builds of indexes and cursors use this, other commands can still fail after their writes
    pub sole: bool,
}

impl<'a> Request<'a> {
    /// Finds the command and checks its fields. If `may_have_number` is false, `txnNumber` is refused.
    pub fn parse(db: &'a str, json: &'a Json, commands: &'static [Command], may_have_number: bool) -> Result<Self> {
        let Json::Object(map) = json else {
            bail!(Kind::TypeMismatch, "a command must be a JSON object");
        };
        let Some((name, target)) = map.iter().next() else {
            return Err(error!(Kind::CommandNotFound, "no such command: ''")
                .with_hint("The first field of a command is its name."));
        };
        let is_wanted = |command: &&Command| command.name == name || command.aliases.contains(&name.as_str());
        let spec = commands.iter().find(is_wanted).ok_or_else(|| {
            let hint = match name.as_str() {
                "mapReduce" | "mapreduce" => {
                    "There is no JavaScript: docs/map-reduce.md shows pipelines for the same tasks."
                }
                _ => "The first field of a command is its name; {\"listCommands\": 1} lists them.",
            };
            error!(Kind::CommandNotFound, "no such command: '{name}'").with_hint(hint)
        })?;
        if !spec.target.takes(target) || (target.is_null() && spec.target != Type::Any) {
            return Err(if target.is_null() && !spec.is_of_collection {
                let message = format!("BSON field '{name}.{name}' is missing but a required field");
                Error::new(Kind::Location(40414), message)
            } else if spec.is_of_collection {
                let message = format!("collection name has invalid type {}", type_name(target));
                Error::new(Kind::InvalidNamespace, message)
            } else {
                mismatch(&format!("{name}.{name}"), target, spec.target)
            });
        }
        let is_refused = |field: &&&str| map.contains_key(**field) && !(may_have_number && **field == TXN_NUMBER);
        if let Some(field) = TRANSACTIONAL.iter().find(is_refused) {
            let message = format!("'{field}': transactions are PostgreSQL's own");
            return Err(Error::new(Kind::IllegalOperation, message)
                .with_hint("Run the commands between BEGIN and COMMIT; a single one is atomic by itself."));
        }
        let (fields, generic) = Arguments::of_command(map, name, spec.fields, &[GENERIC])?;
        concerns::check(&generic)?;
        spec.check_concerns(&generic)?;
        if let Some(other) = generic.text("$db").filter(|other| *other != db) {
            bail!(Kind::InvalidNamespace, "the command is for the database '{other}' and was run in '{db}'");
        }
        stable_api::check(spec.name, &fields, &generic)?;
        Ok(Self { db, name, commands, spec, fields, target, documents: None, generic, sole: false })
    }

    pub fn run(&self) -> Result<Reply> {
        self.fields.check_conflicts(self.spec.conflicts)?;
        (self.spec.run)(self)
    }

    /// Checks the caller's right to an operation, which then runs as the caller: see [`rights::check`].
    pub fn check_right(&self, operation: &'static Operation) -> Result<()> {
        self.check_listed(operation)?;
        rights::check(operation)
    }

    /// Runs an operation of administration with the rights of its SQL function: see [`rights::with_rights_of`].
    pub fn administer<T>(&self, operation: &'static Operation, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_listed(operation)?;
        rights::with_rights_of(operation, work)
    }

    /// Runs an operation that changes one collection, view or database: see [`rights::with_rights_on`].
    pub fn change<T>(
        &self,
        operation: &'static Operation,
        resource: &str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.check_listed(operation)?;
        rights::with_rights_on(operation, resource, work)
    }

    /// Like [`administer`](Self::administer); the result is the command's answer.
    pub fn answer(&self, operation: &'static Operation, work: impl FnOnce() -> Result<Json>) -> Result<Reply> {
        self.administer(operation, work).map(Reply::of)
    }

    /// Checks that the command's entry names the operation: documentation and tests are generated from the entries.
    fn check_listed(&self, operation: &'static Operation) -> Result<()> {
        if self.spec.operations.iter().any(|listed| std::ptr::eq(*listed, operation)) {
            return Ok(());
        }
        Err(error!(Kind::InternalError, "{} is not listed to run {}", self.spec.name, operation.function))
    }

    pub fn target_text(&self) -> &'a str {
        self.target.as_str().unwrap_or_default()
    }

    pub fn text(&self, name: &str) -> &'a str {
        self.fields.text(name).unwrap_or_default()
    }

    pub fn json(&self, name: &str) -> &'a Json {
        self.fields.get(name).unwrap_or(&Json::Null)
    }

    pub fn specification(&self, name: &str) -> Specification<'a> {
        Specification::of(self.fields.get(name))
    }

    /// The namespace of the collection in the first field.
    pub fn namespace(&self) -> Result<String> {
        let namespace = format!("{}.{}", self.db, self.target_text());
        namespace::split(&namespace)?;
        Ok(namespace)
    }

    pub fn read_concern(&self) -> Option<&'a Json> {
        self.generic.get("readConcern")
    }

    /// `maxTimeMS`; None: no limit.
    pub fn max_time_ms(&self) -> Result<Option<i64>> {
        self.generic.max_time_ms()
    }
}
