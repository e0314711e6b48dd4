//! A command document, checked: every field is known and of its type, required ones are there.

use super::table::{self, Command};
use crate::catalog::namespace;
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use serde_json::{Map, Value as Json};

/// The types a field takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// anything
    Any,
    /// a string
    String,
    /// true or false; a number counts as whether it differs from 0
    Bool,
    /// true or false only
    StrictBool,
    /// an integral number
    Integer,
    /// as `Integer`, and not negative
    Count,
    /// an object
    Object,
    /// an array
    Array,
}

impl Type {
    fn takes(self, json: &Json) -> bool {
        match self {
            Type::Any => true,
            Type::String => json.is_string(),
            Type::Bool => json.is_boolean() || number(json).is_some(),
            Type::StrictBool => json.is_boolean(),
            Type::Integer | Type::Count => number(json).is_some(),
            Type::Object => json.is_object(),
            Type::Array => json.is_array(),
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Type::Any => "any",
            Type::String => "'string'",
            Type::Bool | Type::StrictBool => "'bool'",
            Type::Integer | Type::Count => "'[int, long, double, decimal]'",
            Type::Object => "'object'",
            Type::Array => "'array'",
        }
    }
}

/// A field of a command.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// its name
    pub name: &'static str,
    /// what it takes
    pub kind: Type,
    /// it must be given
    pub required: bool,
}

/// A field that may be left out.
pub const fn may(name: &'static str, kind: Type) -> Field {
    Field { name, kind, required: false }
}

/// A field that must be given.
pub const fn must(name: &'static str, kind: Type) -> Field {
    Field { name, kind, required: true }
}

/// Fields of every command. Sessions, and reading and writing concerns, say nothing new to PostgreSQL, which is always
/// consistent within a statement and durable at commit.
const GENERIC: &[Field] = &[
    may("$db", Type::String),
    may("lsid", Type::Object),
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

/// Fields of MongoDB's transactions, which are PostgreSQL's here.
const TRANSACTIONAL: &[&str] = &["txnNumber", "autocommit", "startTransaction", "stmtId", "stmtIds"];

/// Fields of an object, each known and of its type.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Json>,
    /// the path to it, for messages
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// Checks an object inside a command.
    ///
    /// # Errors
    /// `UnknownOption`, `TypeMismatch`, `Location40414`.
    pub fn parse(json: &'a Json, path: &'a str, known: &[Field]) -> Result<Self> {
        let Json::Object(map) = json else {
            return Err(mismatch(path, json, Type::Object));
        };
        check(map, path, &[known])?;
        Ok(Self { map, path })
    }

    /// A field's value; null counts as left out.
    pub fn get(&self, name: &str) -> Option<&'a Json> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A string.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(Json::as_str)
    }

    /// An array's elements; none if it is left out.
    pub fn array(&self, name: &str) -> &'a [Json] {
        self.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
    }

    /// A truth.
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Json::Bool(value) => Some(*value),
            other => number(other).map(|number| number.to_f64() != 0.0),
        }
    }

    /// An integer.
    ///
    /// # Errors
    /// `BadValue` for a fraction.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        let Some(json) = self.get(name) else { return Ok(None) };
        match number(json) {
            Some(number) if number.as_i64().is_some() => Ok(number.as_i64()),
            Some(Number::Double(d)) if d.fract() == 0.0 && d.abs() < 9e18 => Ok(Some(d as i64)),
            _ => Err(Error::new(Kind::BadValue, format!("{}.{name} must be an integer, not {json}", self.path))),
        }
    }

    /// A number without its fraction.
    pub fn truncated(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(number).map(|number| number.to_i64_truncated())
    }

    /// An integer that is not negative; a fraction is cut off.
    ///
    /// # Errors
    /// `Location51024` for a negative one.
    pub fn count(&self, name: &str) -> Result<Option<u64>> {
        let Some(n) = self.truncated(name) else { return Ok(None) };
        u64::try_from(n).map(Some).map_err(|_| {
            let message = format!("BSON field '{name}' value must be >= 0, actual value '{n}'");
            Error::new(Kind::Location51024, message)
        })
    }

    /// The text of a JSON value; `otherwise` if it is left out.
    pub fn json_or(&self, name: &str, otherwise: &str) -> String {
        self.get(name).map_or_else(|| otherwise.to_owned(), Json::to_string)
    }
}

/// A command that is to be run.
#[derive(Debug)]
pub struct Request<'a> {
    /// the database it is run in
    pub db: &'a str,
    /// its name as given
    pub name: &'a str,
    /// its entry
    pub spec: &'static Command,
    /// its fields; the first, which names it, too
    pub fields: Fields<'a>,
}

impl<'a> Request<'a> {
    /// Finds the command and checks its fields.
    ///
    /// # Errors
    /// `TypeMismatch`, `CommandNotFound`, `UnknownOption`, `Location40414`.
    pub fn parse(db: &'a str, json: &'a Json) -> Result<Self> {
        let Json::Object(map) = json else {
            return Err(Error::new(Kind::TypeMismatch, "a command must be a JSON object"));
        };
        let Some((name, target)) = map.iter().next() else {
            return Err(Error::new(Kind::CommandNotFound, "no such command: ''")
                .with_hint("The first field of a command is its name."));
        };
        let spec = table::find(name).ok_or_else(|| {
            Error::new(Kind::CommandNotFound, format!("no such command: '{name}'"))
                .with_hint("The first field of a command is its name; {\"listCommands\": 1} lists them.")
        })?;
        let first = Field { name: "", kind: spec.target, required: true };
        if !first.kind.takes(target) || (target.is_null() && first.kind != Type::Any) {
            let kind = if spec.is_of_collection { Kind::BadValue } else { Kind::TypeMismatch };
            let found = type_name(target);
            return Err(Error::new(
                kind,
                if spec.is_of_collection {
                    format!("collection name has invalid type {found}")
                } else {
                    mismatch(&format!("{name}.{name}"), target, first.kind).message
                },
            ));
        }
        if let Some(field) = TRANSACTIONAL.iter().find(|field| map.contains_key(**field)) {
            let message = format!("'{field}': transactions are PostgreSQL's own");
            return Err(Error::new(Kind::IllegalOperation, message)
                .with_hint("Run the commands between BEGIN and COMMIT; a single one is atomic by itself."));
        }
        check(&map.iter().skip(1).collect::<Vec<_>>().as_slice(), name, &[spec.fields, GENERIC])?;
        let fields = Fields { map, path: name };
        if let Some(other) = fields.text("$db").filter(|other| *other != db) {
            let message = format!("the command is for the database '{other}' and was run in '{db}'");
            return Err(Error::new(Kind::InvalidNamespace, message));
        }
        if fields.text("apiVersion").is_some_and(|version| version != "1") {
            return Err(Error::new(Kind::APIVersionError, "API version must be \"1\""));
        }
        Ok(Self { db, name, spec, fields })
    }

    /// The value of the field that names the command.
    pub fn target(&self) -> &'a Json {
        self.fields.map.get(self.name).unwrap_or(&Json::Null)
    }

    /// That value, if it is a string.
    pub fn target_text(&self) -> &'a str {
        self.target().as_str().unwrap_or_default()
    }

    /// The namespace of the collection that names the command.
    ///
    /// # Errors
    /// `InvalidNamespace`.
    pub fn namespace(&self) -> Result<String> {
        let namespace = format!("{}.{}", self.db, self.target_text());
        namespace::split(&namespace)?;
        Ok(namespace)
    }

    /// How long it may take, in milliseconds.
    ///
    /// # Errors
    /// `BadValue`.
    pub fn max_time_ms(&self) -> Result<Option<i64>> {
        match self.fields.integer("maxTimeMS")? {
            None | Some(0) => Ok(None),
            Some(n) if (0..=i64::from(i32::MAX)).contains(&n) => Ok(Some(n)),
            Some(n) => {
                let message = format!("{n} value for maxTimeMS is out of range [0, {}]", i32::MAX);
                Err(Error::new(Kind::BadValue, message))
            }
        }
    }
}

/// A number in any form of Extended JSON.
pub fn number(json: &Json) -> Option<Number> {
    match json {
        Json::Number(_) | Json::Object(_) => match ext_json::from_json(json) {
            Ok(Value::Number(number)) => Some(number),
            _ => None,
        },
        _ => None,
    }
}

/// The fields of an object, in order.
trait Pairs {
    fn pairs(&self) -> impl Iterator<Item = (&String, &Json)>;
}

impl Pairs for Map<String, Json> {
    fn pairs(&self) -> impl Iterator<Item = (&String, &Json)> {
        self.iter()
    }
}

impl Pairs for &[(&String, &Json)] {
    fn pairs(&self) -> impl Iterator<Item = (&String, &Json)> {
        self.iter().copied()
    }
}

fn check(given: &impl Pairs, path: &str, known: &[&[Field]]) -> Result<()> {
    let find = |name: &str| known.iter().flat_map(|fields| fields.iter()).find(|field| field.name == name);
    for (name, value) in given.pairs() {
        let Some(field) = find(name) else {
            let names: Vec<_> = known[0].iter().map(|field| field.name).collect();
            let error = Error::new(Kind::UnknownOption, format!("BSON field '{path}.{name}' is an unknown field."));
            return Err(if names.is_empty() {
                error
            } else {
                error.with_hint(format!("Fields are: {}.", names.join(", ")))
            });
        };
        if !value.is_null() && !field.kind.takes(value) {
            return Err(mismatch(&format!("{path}.{name}"), value, field.kind));
        }
    }
    let missing = |field: &&Field| field.required && !given.pairs().any(|(name, _)| name == field.name);
    match known[0].iter().find(missing) {
        None => Ok(()),
        Some(field) => {
            let message = format!("BSON field '{path}.{}' is missing but a required field", field.name);
            Err(Error::new(Kind::Location40414, message))
        }
    }
}

fn type_name(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        other => ext_json::from_json(other).map_or("object", |value| value.type_name()),
    }
}

fn mismatch(path: &str, found: &Json, wanted: Type) -> Error {
    let message = format!(
        "BSON field '{path}' is the wrong type '{}', expected type{} {}",
        type_name(found),
        if wanted.wanted().starts_with("'[") { "s" } else { "" },
        wanted.wanted()
    );
    Error::new(Kind::TypeMismatch, message)
}
