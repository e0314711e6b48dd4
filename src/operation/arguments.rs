//! Arguments by name: option documents of SQL functions, operations of `bulk_write`, and fields of commands.
//!
//! A [`Field`] declares an argument: its name, its type, its default, and whether it is refused. A [`Conflict`] declares
//! arguments that exclude one another. [`Arguments`] is a JSON object that was checked against both. The [`Form`] of a request
//! decides the words of an error, as those of MongoDB's server and its drivers differ. Only commands accept a number for a
//! boolean, in some fields.
//!
//! Values stay `serde_json` values with `preserve_order`: they keep the order of fields and, as Extended JSON, the types of
//! BSON. The parsers of filters, updates, sorts and projections read them directly; the `bson` crate would need a conversion.

use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use serde_json::{Map, Value as Json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Any,
    String,
    /// a string that no message may contain
    Secret,
    /// a string, one of these
    Choice(&'static [&'static str]),
    /// true or false; commands also take a number, of which 0 is false
    Bool,
    /// true or false only
    StrictBool,
    /// an integral number
    Integer,
    /// a number that is not negative; its fraction is ignored
    Count,
    /// a long or an int, but not a double or decimal of the same value: JSON does not tell a long that fits into 32 bits from an int
    Long,
    /// an object; in option documents the argument's own parser checks that
    Object,
    /// an object, in every form
    Document,
    /// an order of fields: an object, or an array of pairs; in option documents the argument's own parser checks that
    Order,
    /// an array; in option documents the argument's own parser checks that
    Array,
    /// a string or an object, such as the name or the key of an index; in option documents the argument's own parser checks that
    StringOrObject,
    /// a timestamp
    Timestamp,
    /// binary data of the subtype of UUIDs, of any length
    Uuid,
}

impl Type {
    /// True if a command's field may have this value.
    pub fn takes(self, json: &Json) -> bool {
        match self {
            Type::Any => true,
            Type::String | Type::Secret | Type::Choice(_) => json.is_string(),
            Type::Bool => json.is_boolean() || number(json).is_some(),
            Type::StrictBool => json.is_boolean(),
            Type::Integer | Type::Count => number(json).is_some(),
            Type::Long => matches!(number(json), Some(Number::Int(..))),
            Type::Object | Type::Document => ext_json::document(json).is_some(),
            Type::Order => ext_json::document(json).is_some() || json.is_array(),
            Type::Array => json.is_array(),
            Type::StringOrObject => json.is_string() || ext_json::ordered(json).is_some(),
            Type::Timestamp => matches!(ext_json::from_json(json), Ok(Value::Timestamp(..))),
            Type::Uuid => matches!(ext_json::from_json(json), Ok(Value::Binary(4, _))),
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Type::Any => "any",
            Type::String | Type::Secret | Type::Choice(_) => "'string'",
            Type::Bool | Type::StrictBool => "'bool'",
            Type::Integer | Type::Count => "'[int, long, double, decimal]'",
            Type::Long => "'long'",
            Type::Object | Type::Document | Type::Order => "'object'",
            Type::Array => "'array'",
            Type::StringOrObject => "'[string, object]'",
            Type::Timestamp => "'timestamp'",
            Type::Uuid => "'binData'",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// the name in requests
    pub name: &'static str,
    /// the name by which operations read it
    argument: &'static str,
    kind: Type,
    is_required: bool,
    /// the value of a missing flag
    default: bool,
    /// the option exists in MongoDB and is refused here
    is_refused: bool,
    /// null has a wrong type; otherwise it counts as missing
    refuses_null: bool,
}

/// An optional argument.
pub const fn may(name: &'static str, kind: Type) -> Field {
    Field { name, argument: name, kind, is_required: false, default: false, is_refused: false, refuses_null: false }
}

/// Stands for all fields of a command that neither its list nor that of all commands has: see [`Arguments::others`].
pub const OTHERS: Field = may("*", Type::Any);

/// A required argument.
pub const fn must(name: &'static str, kind: Type) -> Field {
    Field { is_required: true, ..may(name, kind) }
}

impl Field {
    /// Sets another name by which operations read the argument.
    pub const fn means(self, argument: &'static str) -> Self {
        Self { argument, ..self }
    }

    /// Makes a flag true if it is missing.
    pub const fn or_true(self) -> Self {
        Self { default: true, ..self }
    }

    /// Makes null an error.
    pub const fn never_null(self) -> Self {
        Self { refuses_null: true, ..self }
    }

    /// Makes an argument an error, unless it is false.
    pub const fn refused(self) -> Self {
        Self { is_refused: true, ..self }
    }
}

/// Groups of arguments.
pub type Fields = &'static [&'static [Field]];

/// A condition on an argument, given by the name that operations use.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// it is given
    Given(&'static str),
    /// it is missing
    Missing(&'static str),
    /// it is a flag, and true
    True(&'static str),
    /// it is a flag, and false
    False(&'static str),
}

/// Arguments that exclude or require one another.
#[derive(Clone, Copy, Debug)]
pub enum Conflict {
    /// an error if all conditions hold
    All(&'static [When], Kind, &'static str),
    /// exactly one of these must be given
    OneOf(&'static [&'static str]),
}

/// The kind of request that arguments come from.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// the options of an SQL function, by its name
    Options(&'a str),
    /// an operation of `bulk_write`: its position and name
    Operation(usize, &'a str),
    /// the fields of a command or of an object in it: its path
    Command(&'a str),
}

/// Arguments whose names and types have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    map: &'a Map<String, Json>,
    form: Form<'a>,
    known: Fields,
}

impl<'a> Arguments<'a> {
    /// Checks names and types.
    pub fn parse(json: &'a Json, form: Form<'a>, known: Fields) -> Result<Self> {
        let Some(map) = ext_json::document(json) else {
            return Err(match form {
                Form::Command(path) => mismatch(path, json, Type::Object),
                Form::Options(name) | Form::Operation(_, name) => {
                    error!(Kind::TypeMismatch, "options of {name} must be a JSON object")
                }
            });
        };
        check(map, 0, form, known, &[])?;
        Ok(Self { map, form, known })
    }

    /// Splits a command document into the command's own fields and the fields of all commands. The first field, which names the
    /// command, is in neither.
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

    /// Checks conflicts, and that no refused argument is given.
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
                    bail!(Kind::InvalidOptions, "{}: give exactly one of {}", self.form.name(), names.join(", "));
                }
                _ => {}
            }
        }
        let asked = |field: &&Field| {
            field.is_refused && self.get(field.argument).is_some_and(|json| truth(json) != Some(false))
        };
        match self.known.iter().flat_map(|group| group.iter()).find(asked) {
            Some(field) => Err(error!(Kind::NotImplemented, "the option '{}' is not supported", field.name)),
            None => Ok(()),
        }
    }

    /// Returns the fields of a command for which [`OTHERS`] stands; `generic`: those of all commands.
    pub fn others(&self, generic: &Self) -> Map<String, Json> {
        let known = || self.known.iter().chain(generic.known).flat_map(|group| group.iter());
        let is_other = |(name, _): &(&String, &Json)| known().all(|field| field.name != *name);
        self.map.iter().skip(1).filter(is_other).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn field(&self, argument: &str) -> Option<&'static Field> {
        self.known.iter().flat_map(|group| group.iter()).find(|field| field.argument == argument)
    }

    /// Returns an argument by the name that operations use; null counts as missing.
    pub fn get(&self, argument: &str) -> Option<&'a Json> {
        if self.map.is_empty() {
            return None;
        }
        self.map.get(self.field(argument)?.name).filter(|value| !value.is_null())
    }

    /// Returns an argument as it is given, null included.
    pub fn raw(&self, argument: &str) -> Option<&'a Json> {
        self.map.get(self.field(argument)?.name)
    }

    /// True if the argument is given; in option documents, also as null.
    pub fn is_named(&self, argument: &str) -> bool {
        match self.form {
            Form::Command(_) => self.get(argument).is_some(),
            _ => self.field(argument).is_some_and(|field| self.map.contains_key(field.name)),
        }
    }

    pub fn text(&self, argument: &str) -> Option<&'a str> {
        self.get(argument).and_then(Json::as_str)
    }

    /// Returns the elements of an array; none if it is missing.
    pub fn array(&self, argument: &str) -> &'a [Json] {
        self.get(argument).and_then(Json::as_array).map_or(&[], Vec::as_slice)
    }

    pub fn flag(&self, argument: &str) -> bool {
        let default = || self.field(argument).is_some_and(|field| field.default);
        self.get(argument).and_then(truth).unwrap_or_else(default)
    }

    pub fn integer(&self, argument: &str) -> Result<Option<i64>> {
        let Some(json) = self.get(argument) else { return Ok(None) };
        number(json).and_then(|number| number.as_i64()).map(Some).ok_or_else(|| {
            let message = format!("{}.{argument} must be an integer, not {json}", self.form.name());
            Error::new(Kind::BadValue, message)
        })
    }

    /// Returns these arguments in the form of the options of an SQL function.
    pub fn as_options(&self, options: Fields) -> Json {
        let fields = options.iter().flat_map(|group| group.iter());
        let given = fields.filter_map(|field| {
            let value = match (field.kind, self.get(field.argument)?) {
                // Only commands accept a number for a flag.
                (Type::Bool, value) => truth(value).map_or_else(|| value.clone(), Json::Bool),
                (_, value) => value.clone(),
            };
            Some((field.name.to_owned(), value))
        });
        Json::Object(given.collect())
    }

    /// Returns `maxTimeMS`; None: no limit.
    ///
    /// # Errors
    /// `FailedToParse` for a number that is no integer, `BadValue` for one out of range.
    pub fn max_time_ms(&self) -> Result<Option<i64>> {
        let Some(given) = self.get("maxTimeMS") else { return Ok(None) };
        match number(given).and_then(|number| number.as_i64()) {
            None => Err(error!(Kind::FailedToParse, "maxTimeMS must be an integer, not {given}")),
            Some(0) => Ok(None),
            Some(n) if (0..=i64::from(i32::MAX)).contains(&n) => Ok(Some(n)),
            Some(n) => Err(error!(Kind::BadValue, "{n} value for maxTimeMS is out of range [0, {}]", i32::MAX)),
        }
    }

    /// Returns a number as MongoDB's safe integer: see [`Number::to_i64_rounded`].
    pub fn safe_integer(&self, argument: &str) -> Option<i64> {
        self.get(argument).and_then(number).map(|number| number.to_i64_rounded())
    }

    /// Returns a number as a safe integer; an error if it is negative.
    pub fn count(&self, argument: &str) -> Result<Option<u64>> {
        let Some(n) = self.safe_integer(argument) else { return Ok(None) };
        u64::try_from(n).map(Some).map_err(|_| {
            let message = match self.form {
                Form::Command(_) => format!("BSON field '{argument}' value must be >= 0, actual value '{n}'"),
                _ => format!("{argument} must be non-negative, but received: {n}"),
            };
            Error::new(Kind::BadValue, message)
        })
    }
}

/// Checks the fields after the first `skipped` ones. Names of `generic` are accepted, but not listed in errors.
fn check(map: &Map<String, Json>, skipped: usize, form: Form<'_>, known: Fields, generic: Fields) -> Result<()> {
    let all = || known.iter().flat_map(|group| group.iter());
    let is_command = matches!(form, Form::Command(_));
    for (name, value) in map.iter().skip(skipped) {
        let mut fields = all().chain(generic.iter().flat_map(|group| group.iter()));
        let Some(field) = fields.find(|field| field.name == name) else {
            if all().any(|field| field.name == OTHERS.name) {
                continue;
            }
            return Err(form.unknown(name, known));
        };
        let refuses_null = field.refuses_null || is_command && field.kind == Type::StringOrObject;
        if !value.is_null() || refuses_null {
            form.check(field, value)?;
        }
    }
    // To a command, null is a value of a field of any type.
    let is_missing = |field: &&Field| {
        let is_value = |value: &Json| !value.is_null() || is_command && field.kind == Type::Any;
        field.is_required && !map.get(field.name).is_some_and(is_value)
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
                error!(Kind::FailedToParse, "operation {index}: {operation} has no \"{name}\"")
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
            if !field.kind.takes(json) && field.kind == Type::StringOrObject {
                bail!(Kind::FailedToParse, "'{path}.{name}' must be a string or an object, not {}", type_name(json));
            }
            if !field.kind.takes(json) {
                return Err(mismatch(&format!("{path}.{name}"), json, field.kind));
            }
        } else {
            let wanted = match field.kind {
                _ if json.is_null() => "given with a value",
                Type::Any | Type::Object | Type::Order | Type::Array | Type::StringOrObject => return Ok(()),
                Type::Secret if !json.is_string() => {
                    bail!(Kind::TypeMismatch, "option \"{name}\" must be a string");
                }
                Type::String | Type::Choice(_) if !json.is_string() => "a string",
                Type::Bool | Type::StrictBool if !json.is_boolean() => "a boolean",
                Type::Document if ext_json::document(json).is_none() => "an object",
                Type::Integer if !is_integer(&ext_json::from_json(json)?) => "an integer",
                Type::Count if !matches!(ext_json::from_json(json)?, Value::Number(_)) => "a number",
                _ => "",
            };
            ensure!(wanted.is_empty(), Kind::TypeMismatch, "option \"{name}\" must be {wanted}, not {json}");
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

/// Reads a number in any form of Extended JSON.
pub fn number(json: &Json) -> Option<Number> {
    match json {
        Json::Number(_) | Json::Object(_) => match ext_json::from_json(json) {
            Ok(Value::Number(number)) => Some(number),
            _ => None,
        },
        _ => None,
    }
}

/// True for an integer. Option documents also accept an integral double, if it is exact.
fn is_integer(value: &Value) -> bool {
    match value {
        Value::Number(Number::Int(..)) => true,
        Value::Number(Number::Double(d)) => d.fract() == 0.0 && d.abs() < 9e15,
        _ => false,
    }
}

/// What a boolean or a number means as a boolean; None for other values.
pub fn truth(json: &Json) -> Option<bool> {
    match json {
        Json::Bool(value) => Some(*value),
        other => number(other).map(|number| number.to_f64() != 0.0),
    }
}

/// Returns MongoDB's name of a value's type.
pub fn type_name(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        other => ext_json::from_json(other).map_or("object", |value| value.type_name()),
    }
}

/// The error for a command's field with a value of another type.
pub fn mismatch(path: &str, found: &Json, wanted: Type) -> Error {
    let message = format!(
        "BSON field '{path}' is the wrong type '{}', expected type{} {}",
        type_name(found),
        if wanted.wanted().starts_with("'[") { "s" } else { "" },
        wanted.wanted()
    );
    Error::new(Kind::TypeMismatch, message)
}
