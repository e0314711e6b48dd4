//! Arguments by name: option documents of SQL functions, operations of `bulk_write`, and fields of commands.
//!
//! A [`Field`] declares an argument: its name, its type, its default, and whether it is refused. A [`Conflict`] declares which
//! of them exclude one another. [`Arguments`] is a JSON object that was checked against both. The [`Form`] in which arguments
//! are given decides the words of an error, as MongoDB's server and its drivers differ in them; functions take a number for
//! a truth nowhere, commands in places.
//!
//! Values stay `serde_json` values, with `preserve_order`: these keep the order of fields and, as Extended JSON, the types of
//! BSON, and the parsers of filters, updates, sorts and projections read them. The `bson` crate would be another tree to walk.

use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use serde_json::{Map, Value as Json};

/// The types of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// anything
    Any,
    /// a string
    String,
    /// one of these strings
    Choice(&'static [&'static str]),
    /// true or false; in commands a number counts as whether it differs from 0
    Bool,
    /// true or false only
    StrictBool,
    /// an integral number
    Integer,
    /// a number that is not negative; a fraction is cut off
    Count,
    /// an object; in option documents its own parser says so
    Object,
    /// an object, everywhere
    Document,
    /// an array; in option documents its own parser says so
    Array,
}

impl Type {
    /// True if a command's field may have the value.
    pub fn takes(self, json: &Json) -> bool {
        match self {
            Type::Any => true,
            Type::String | Type::Choice(_) => json.is_string(),
            Type::Bool => json.is_boolean() || number(json).is_some(),
            Type::StrictBool => json.is_boolean(),
            Type::Integer | Type::Count => number(json).is_some(),
            Type::Object | Type::Document => json.is_object(),
            Type::Array => json.is_array(),
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Type::Any => "any",
            Type::String | Type::Choice(_) => "'string'",
            Type::Bool | Type::StrictBool => "'bool'",
            Type::Integer | Type::Count => "'[int, long, double, decimal]'",
            Type::Object | Type::Document => "'object'",
            Type::Array => "'array'",
        }
    }
}

/// An argument.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// its name as it is given
    pub name: &'static str,
    /// the name by which operations ask for it
    argument: &'static str,
    kind: Type,
    is_required: bool,
    /// what a flag is that is left out
    default: bool,
    /// it asks for something that does not exist here
    is_refused: bool,
}

/// An argument that may be left out.
pub const fn may(name: &'static str, kind: Type) -> Field {
    Field { name, argument: name, kind, is_required: false, default: false, is_refused: false }
}

/// An argument that must be given.
pub const fn must(name: &'static str, kind: Type) -> Field {
    Field { is_required: true, ..may(name, kind) }
}

impl Field {
    /// The same, under another name than operations use.
    pub const fn means(self, argument: &'static str) -> Self {
        Self { argument, ..self }
    }

    /// The same, a flag that is true if it is left out.
    pub const fn or_true(self) -> Self {
        Self { default: true, ..self }
    }

    /// The same, refused unless it is false.
    pub const fn refused(self) -> Self {
        Self { is_refused: true, ..self }
    }
}

/// Groups of arguments that belong together.
pub type Fields = &'static [&'static [Field]];

/// A condition on one argument, by the name that operations use.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// it is given
    Given(&'static str),
    /// it is left out
    Missing(&'static str),
    /// it is a flag, and true
    True(&'static str),
    /// it is a flag, and false
    False(&'static str),
}

/// Arguments that exclude one another, or need one another.
#[derive(Clone, Copy, Debug)]
pub enum Conflict {
    /// all of these at once are an error
    All(&'static [When], Kind, &'static str),
    /// one of these must be given, and only one
    OneOf(&'static [&'static str]),
}

/// In which form arguments are given.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// the option document of an SQL function
    Options(&'a str),
    /// an operation of `bulk_write`: its index and name
    Operation(usize, &'a str),
    /// the fields of a command or of an object in one: the path to it
    Command(&'a str),
}

/// Arguments, each of them known and of its type.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    map: &'a Map<String, Json>,
    form: Form<'a>,
    known: Fields,
}

impl<'a> Arguments<'a> {
    /// Checks names and types.
    ///
    /// # Errors
    /// `TypeMismatch`, `UnknownOption`, `BadValue`; `Location40414`, in operations `FailedToParse`, for one that is missing.
    pub fn parse(json: &'a Json, form: Form<'a>, known: Fields) -> Result<Self> {
        let Json::Object(map) = json else {
            return Err(match form {
                Form::Command(path) => mismatch(path, json, Type::Object),
                Form::Options(name) | Form::Operation(_, name) => {
                    Error::new(Kind::TypeMismatch, format!("options of {name} must be a JSON object"))
                }
            });
        };
        check(map, 0, form, known, &[])?;
        Ok(Self { map, form, known })
    }

    /// The fields of a command document, whose first field is its name; and those that it has in common with others.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of_command(
        map: &'a Map<String, Json>,
        name: &'a str,
        known: Fields,
        generic: Fields,
    ) -> Result<(Self, Self)> {
        let form = Form::Command(name);
        check(map, 1, form, known, generic)?;
        Ok((Self { map, form, known }, Self { map, form, known: generic }))
    }

    /// Checks what the arguments say together, and that none asks for something that does not exist here.
    ///
    /// # Errors
    /// Those of the conflicts; `NotImplemented`.
    pub fn check_conflicts(&self, conflicts: &[Conflict]) -> Result<()> {
        let is = |when: &When| match when {
            When::Given(name) => self.get(name).is_some(),
            When::Missing(name) => self.get(name).is_none(),
            When::True(name) => self.flag(name),
            When::False(name) => !self.flag(name),
        };
        for conflict in conflicts {
            match conflict {
                Conflict::All(all, kind, message) if all.iter().all(is) => return Err(Error::new(*kind, *message)),
                Conflict::OneOf(names) if names.iter().filter(|name| self.get(name).is_some()).count() != 1 => {
                    let message = format!("{}: give exactly one of {}", self.form.name(), names.join(", "));
                    return Err(Error::new(Kind::InvalidOptions, message));
                }
                _ => {}
            }
        }
        let asked = |field: &&Field| {
            field.is_refused && self.get(field.argument).is_some_and(|json| truth(json) != Some(false))
        };
        match self.known.iter().flat_map(|group| group.iter()).find(asked) {
            Some(field) => {
                Err(Error::new(Kind::NotImplemented, format!("the option '{}' is not supported", field.name)))
            }
            None => Ok(()),
        }
    }

    fn field(&self, argument: &str) -> Option<&'static Field> {
        self.known.iter().flat_map(|group| group.iter()).find(|field| field.argument == argument)
    }

    /// An argument's value, by the name that operations use; null counts as left out.
    pub fn get(&self, argument: &str) -> Option<&'a Json> {
        self.map.get(self.field(argument)?.name).filter(|value| !value.is_null())
    }

    /// True if it is given, be it in an option document as null.
    pub fn is_named(&self, argument: &str) -> bool {
        match self.form {
            Form::Command(_) => self.get(argument).is_some(),
            _ => self.field(argument).is_some_and(|field| self.map.contains_key(field.name)),
        }
    }

    /// A string.
    pub fn text(&self, argument: &str) -> Option<&'a str> {
        self.get(argument).and_then(Json::as_str)
    }

    /// An array's elements; none if it is left out.
    pub fn array(&self, argument: &str) -> &'a [Json] {
        self.get(argument).and_then(Json::as_array).map_or(&[], Vec::as_slice)
    }

    /// A flag.
    pub fn flag(&self, argument: &str) -> bool {
        let default = || self.field(argument).is_some_and(|field| field.default);
        self.get(argument).and_then(truth).unwrap_or_else(default)
    }

    /// An integer.
    ///
    /// # Errors
    /// `BadValue` for a command's fraction.
    pub fn integer(&self, argument: &str) -> Result<Option<i64>> {
        let Some(json) = self.get(argument) else { return Ok(None) };
        number(json).and_then(|number| number.as_i64()).map(Some).ok_or_else(|| {
            let message = format!("{}.{argument} must be an integer, not {json}", self.form.name());
            Error::new(Kind::BadValue, message)
        })
    }

    /// A number without its fraction.
    pub fn truncated(&self, argument: &str) -> Option<i64> {
        self.get(argument).and_then(number).map(|number| number.to_i64_truncated())
    }

    /// A number without its fraction, which is not negative.
    ///
    /// # Errors
    /// `Location51024`.
    pub fn count(&self, argument: &str) -> Result<Option<u64>> {
        let Some(n) = self.truncated(argument) else { return Ok(None) };
        u64::try_from(n).map(Some).map_err(|_| {
            let message = match self.form {
                Form::Command(_) => format!("BSON field '{argument}' value must be >= 0, actual value '{n}'"),
                _ => format!("{argument} must be non-negative, but received: {n}"),
            };
            Error::new(Kind::Location(51024), message)
        })
    }
}

/// Checks the names and types of fields after the first so many. Those of `generic` are not told of.
fn check(map: &Map<String, Json>, skipped: usize, form: Form<'_>, known: Fields, generic: Fields) -> Result<()> {
    let all = || known.iter().flat_map(|group| group.iter());
    for (name, value) in map.iter().skip(skipped) {
        let mut fields = all().chain(generic.iter().flat_map(|group| group.iter()));
        let field = fields.find(|field| field.name == name).ok_or_else(|| form.unknown(name, known))?;
        if !value.is_null() {
            form.check(field, value)?;
        }
    }
    let is_missing = |field: &&Field| {
        field.is_required
            && match form {
                Form::Command(_) => !map.contains_key(field.name),
                _ => map.get(field.name).is_none_or(Json::is_null),
            }
    };
    match all().find(is_missing) {
        None => Ok(()),
        Some(field) => Err(form.missing(field.name)),
    }
}

impl Form<'_> {
    fn name(&self) -> &str {
        match self {
            Form::Options(name) | Form::Operation(_, name) | Form::Command(name) => name,
        }
    }

    fn unknown(&self, name: &str, known: Fields) -> Error {
        let (message, what) = match self {
            Form::Command(path) => (format!("BSON field '{path}.{name}' is an unknown field."), "Fields"),
            _ => (format!("unknown option \"{name}\" of {}", self.name()), "Options"),
        };
        let names: Vec<_> = known.iter().flat_map(|group| group.iter()).map(|field| field.name).collect();
        let error = Error::new(Kind::UnknownOption, message);
        if names.is_empty() { error } else { error.with_hint(format!("{what} are: {}.", names.join(", "))) }
    }

    fn missing(&self, name: &str) -> Error {
        match self {
            Form::Operation(index, operation) => {
                Error::new(Kind::FailedToParse, format!("operation {index}: {operation} has no \"{name}\""))
            }
            _ => {
                let message = format!("BSON field '{}.{name}' is missing but a required field", self.name());
                Error::new(Kind::Location(40414), message)
            }
        }
    }

    fn check(&self, field: &Field, json: &Json) -> Result<()> {
        let name = field.name;
        if let Form::Command(path) = self {
            if !field.kind.takes(json) {
                return Err(mismatch(&format!("{path}.{name}"), json, field.kind));
            }
        } else {
            let wanted = match field.kind {
                Type::Any | Type::Object | Type::Array => return Ok(()),
                Type::String | Type::Choice(_) if !json.is_string() => "a string",
                Type::Bool | Type::StrictBool if !json.is_boolean() => "a boolean",
                Type::Document if !json.is_object() => "an object",
                Type::Integer if !is_integer(&ext_json::from_json(json)?) => "an integer",
                Type::Count if !matches!(ext_json::from_json(json)?, Value::Number(_)) => "a number",
                _ => "",
            };
            if !wanted.is_empty() {
                let message = format!("option \"{name}\" must be {wanted}, not {json}");
                return Err(Error::new(Kind::TypeMismatch, message));
            }
        }
        match (field.kind, json.as_str()) {
            (Type::Choice(known), Some(given)) if !known.contains(&given) => Err(Error::new(
                Kind::BadValue,
                match self {
                    Form::Command(path) => {
                        format!("Enumeration value '{given}' for field '{path}.{name}' is not a valid value.")
                    }
                    _ => format!("option \"{name}\" must be \"{}\", not \"{given}\"", known.join("\" or \"")),
                },
            )),
            _ => Ok(()),
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

/// What option documents take for an integer: an integral double too, as far as doubles tell integers apart.
fn is_integer(value: &Value) -> bool {
    match value {
        Value::Number(Number::Int(_)) => true,
        Value::Number(Number::Double(d)) => d.fract() == 0.0 && d.abs() < 9e15,
        _ => false,
    }
}

fn truth(json: &Json) -> Option<bool> {
    match json {
        Json::Bool(value) => Some(*value),
        other => number(other).map(|number| number.to_f64() != 0.0),
    }
}

/// The name of a value's type.
pub fn type_name(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        other => ext_json::from_json(other).map_or("object", |value| value.type_name()),
    }
}

/// The error of a command's field with a value of another type.
pub fn mismatch(path: &str, found: &Json, wanted: Type) -> Error {
    let message = format!(
        "BSON field '{path}' is the wrong type '{}', expected type{} {}",
        type_name(found),
        if wanted.wanted().starts_with("'[") { "s" } else { "" },
        wanted.wanted()
    );
    Error::new(Kind::TypeMismatch, message)
}
