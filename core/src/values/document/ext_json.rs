//! Extended JSON v2: reads canonical, relaxed and legacy forms, writes the relaxed form.
//!
//! An object with a key that is the name of a type, at any position, is of that extended type and must be well formed. All other
//! objects are ordinary ones.
//!
//! RULE: no field of a stored document has a name for which [`is_reserved`] is true. So a stored object is never read as a value of another
//! type.
//! Source: MongoDB's Extended JSON v2 specification.

use super::element::special_double;
use super::nested::Nested;
use super::number::{Decimal, Number, is_numeric};
use super::text;
use super::value::{Fields, Value};
use crate::budget;
use crate::error::{Error, Kind, Result, bail, error};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;

/// Reads JSON, with any form of Extended JSON, into a value.
///
/// # Errors
/// `FailedToParse` for a malformed extended value such as `{"$oid": "xyz"}`, `DocumentTooDeep`.
pub fn from_json(json: &Json) -> Result<Value> {
    read(json, 0)
}

/// Names that begin a value of an extended type instead of a document.
pub(crate) const NAMES: &[&str] = &[
    "$oid",
    "$date",
    "$numberInt",
    "$numberLong",
    "$numberDouble",
    "$numberDecimal",
    "$binary",
    "$uuid",
    "$timestamp",
    "$regularExpression",
    "$dbPointer",
    "$code",
    "$symbol",
    "$undefined",
    "$minKey",
    "$maxKey",
];

/// The name of legacy regular expressions. It is not in [`NAMES`] because the query operator has it, too.
const LEGACY_REGEX: &str = "$regex";

/// True for a name that no field of a stored document may have: as JSON, an object with such a field is a value of an extended type.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with('$') && (name == LEGACY_REGEX || NAMES.contains(&name))
}

/// Refuses a reserved name of a field.
///
/// # Errors
/// `DollarPrefixedFieldName`.
pub fn check_name(name: &str) -> Result<()> {
    if is_reserved(name) { Err(reserved(name)) } else { Ok(()) }
}

/// The error for a field with a reserved name.
pub(crate) fn reserved(name: &str) -> Error {
    error!(
        Kind::DollarPrefixedFieldName,
        "The field name '{name}' is reserved: an object that has it is a value of Extended JSON"
    )
}

/// True for the names of a DBRef, the only ones that start with `$` and may be in a path of a projection, a sort or an expression.
pub(crate) fn is_reference(name: &str) -> bool {
    matches!(name, "$ref" | "$id" | "$db")
}

/// The fields of a document; None for any other value, also for one of an extended type, such as `{"$numberInt": "1"}`. Every
/// argument that must be a document is read with this function.
pub fn document(json: &Json) -> Option<&Map<String, Json>> {
    json.as_object().filter(|fields| is_document(fields))
}

/// Like [`document`], also for an array of pairs, as drivers write an order: see [`ordered`](crate::json::ordered).
pub fn ordered(json: &Json) -> Option<Cow<'_, Map<String, Json>>> {
    crate::json::ordered(json).filter(|fields| is_document(fields))
}

/// The hint of an error about a value that is no order: [`ordered`] returns None for it.
pub const ORDER_HINT: &str = "An order is an object such as {\"a\": 1, \"b\": -1}, or an array of pairs such as [[\"a\", 1], [\"b\", -1]], \
                              which names each field once.";

/// True for an object that is a document, and not a value of an extended type.
pub fn is_document(fields: &Map<String, Json>) -> bool {
    !fields.keys().any(|name| name.starts_with('$') && NAMES.contains(&name.as_str()))
}

/// Writes a value as relaxed Extended JSON, the form that is stored and returned to clients. A double with an integral value keeps
/// its fraction (`5.0`); negative zero, which jsonb lacks, is an extended value like NaN. A long that fits 32 bits looks like an int.
pub fn to_json(value: &Value) -> Json {
    json_of(value, false)
}

/// As [`to_json`], but a long that fits 32 bits is a `$numberLong`: for values that are read again, by [`from_json`].
pub fn to_typed_json(value: &Value) -> Json {
    json_of(value, true)
}

fn json_of(value: &Value, typed: bool) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Number(number) if typed && number.small_long().is_some() => {
            json!({"$numberLong": number.small_long().unwrap_or_default().to_string()})
        }
        Value::Number(Number::Int(value, _)) => Json::from(*value),
        Value::Number(Number::Double(value)) if is_numeric(*value) => Json::from(*value),
        Value::String(value) => Json::String(value.clone()),
        Value::Object(fields) => {
            Json::Object(fields.iter().map(|(name, value)| (name.clone(), json_of(value, typed))).collect())
        }
        Value::Array(items) => Json::Array(items.iter().map(|item| json_of(item, typed)).collect()),
        Value::Bool(value) => Json::Bool(*value),
        extended => relaxed(extended).as_ref().map_or(Json::Null, |value| json_of(value, typed)),
    }
}

/// Converts a value of an extended type into an object in relaxed form; None for types that JSON has itself.
pub(super) fn relaxed(value: &Value) -> Option<Value> {
    let string = |text: &str| Value::String(text.to_owned());
    let integer = |value: u32| Value::Number(Number::int(i64::from(value)));
    let object = |key: &str, value: Value| Value::fixed_object(vec![(key.to_owned(), value)]);
    let two = |first: &str, one: Value, second: &str, other: Value| {
        Value::fixed_object(vec![(first.to_owned(), one), (second.to_owned(), other)])
    };
    let object_id = |id: &[u8; 12]| object("$oid", Value::String(hex::encode(id)));
    Some(match value {
        Value::Null
        | Value::Number(Number::Int(..))
        | Value::String(_)
        | Value::Object(_)
        | Value::Array(_)
        | Value::Bool(_) => return None,
        Value::Number(Number::Double(value)) if is_numeric(*value) => return None,
        Value::Number(Number::Double(value)) => object(
            "$numberDouble",
            string(match value {
                value if value.is_nan() => "NaN",
                value if *value == 0.0 => "-0.0",
                value if *value > 0.0 => "Infinity",
                _ => "-Infinity",
            }),
        ),
        Value::Number(Number::Decimal(value)) => object("$numberDecimal", Value::String(value.to_string())),
        Value::MinKey => object("$minKey", integer(1)),
        Value::MaxKey => object("$maxKey", integer(1)),
        Value::Undefined => object("$undefined", Value::Bool(true)),
        Value::Binary(subtype, bytes) => {
            let data = Value::String(STANDARD.encode(bytes));
            object("$binary", two("base64", data, "subType", Value::String(hex::encode([*subtype]))))
        }
        Value::ObjectId(id) => object_id(id),
        Value::Date(millis) => object(
            "$date",
            match text::format_date(*millis) {
                Some(text) => Value::String(text),
                None => object("$numberLong", Value::String(millis.to_string())),
            },
        ),
        Value::Timestamp(t, i) => object("$timestamp", two("t", integer(*t), "i", integer(*i))),
        Value::Regex(pattern, options) => {
            object("$regularExpression", two("pattern", string(pattern), "options", string(&sorted(options))))
        }
        Value::DbPointer(namespace, id) => object("$dbPointer", two("$ref", string(namespace), "$id", object_id(id))),
        Value::Code(code) => object("$code", string(code)),
        Value::CodeWithScope(code, scope) => two("$code", string(code), "$scope", Value::Object((**scope).clone())),
        Value::Symbol(value) => object("$symbol", string(value)),
    })
}

/// The options of a regular expression, sorted.
pub(crate) fn sorted(options: &str) -> String {
    let mut options: Vec<char> = options.chars().collect();
    options.sort_unstable();
    options.into_iter().collect()
}

fn read(json: &Json, depth: usize) -> Result<Value> {
    budget::step();
    if depth > super::MAX_RECURSION {
        bail!(Kind::DocumentTooDeep, "The value is nested too deeply");
    }
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Number(match number.as_i64() {
            Some(integer) => Number::int(integer),
            None => Number::Double(number.as_f64().unwrap_or(f64::NAN)),
        }),
        Json::String(value) => Value::String(value.clone()),
        Json::Array(items) => Value::array(items.iter().map(|item| read(item, depth + 1)).collect::<Result<_>>()?)?,
        Json::Object(fields) => match extended(fields, depth)? {
            Some(value) => value,
            None => Value::Object(read_fields(fields, depth)?),
        },
    })
}

fn read_fields(fields: &Map<String, Json>, depth: usize) -> Result<Fields> {
    let field = |(name, value): (&String, &Json)| Ok((name.clone(), read(value, depth + 1)?));
    Nested::new(fields.iter().map(field).collect::<Result<_>>()?)
}

/// Reads the value of a type's key; None if it is malformed.
type Reader = fn(&Json) -> Option<Value>;

/// The types with a single key.
const TYPES: &[(&str, Reader)] = &[
    ("$oid", |json| object_id(json).map(Value::ObjectId)),
    ("$symbol", |json| Some(Value::Symbol(json.as_str()?.to_owned()))),
    ("$numberInt", |json| Some(Value::Number(Number::int(integer::<i32>(json)?.into())))),
    ("$numberLong", |json| Some(Value::Number(Number::long(integer(json)?)))),
    ("$numberDouble", |json| Some(Value::Number(Number::Double(double(json.as_str()?)?)))),
    ("$numberDecimal", |json| Some(Value::Number(Number::Decimal(Decimal::parse(json.as_str()?).ok()?)))),
    ("$binary", |json| {
        let (data, subtype) = two(json.as_object()?, "base64", "subType")?;
        binary(data, subtype)
    }),
    ("$uuid", |json| Some(Value::Binary(4, text::parse_uuid(json.as_str()?)?.to_vec()))),
    ("$timestamp", |json| {
        let (t, i) = two(json.as_object()?, "t", "i")?;
        Some(Value::Timestamp(t.as_u64()?.try_into().ok()?, i.as_u64()?.try_into().ok()?))
    }),
    ("$regularExpression", |json| {
        let (pattern, options) = two(json.as_object()?, "pattern", "options")?;
        Some(Value::Regex(pattern.as_str()?.to_owned(), sorted(options.as_str()?)))
    }),
    ("$dbPointer", |json| {
        let (namespace, id) = two(json.as_object()?, "$ref", "$id")?;
        Some(Value::DbPointer(namespace.as_str()?.to_owned(), object_id(only(id, "$oid")?)?))
    }),
    ("$date", date),
    ("$minKey", |json| is_one(json).then_some(Value::MinKey)),
    ("$maxKey", |json| is_one(json).then_some(Value::MaxKey)),
    ("$undefined", |json| (*json == Json::Bool(true)).then_some(Value::Undefined)),
];

/// Reads an object of an extended type; None for an ordinary object.
///
/// # Errors
/// `FailedToParse` if it has the name of a type and is malformed.
pub(crate) fn extended_value(fields: &Map<String, Json>) -> Result<Option<Value>> {
    extended(fields, 0)
}

/// Like [`extended_value`], for an object inside `depth` levels.
fn extended(fields: &Map<String, Json>, depth: usize) -> Result<Option<Value>> {
    if !fields.keys().any(|key| key.starts_with('$')) {
        return Ok(None);
    }
    if let Some(code) = fields.get("$code") {
        let scope = fields.get("$scope");
        return match (code, scope, fields.len()) {
            (Json::String(code), None, 1) => Ok(Some(Value::Code(code.clone()))),
            (Json::String(code), Some(Json::Object(scope)), 2) => {
                Ok(Some(Value::CodeWithScope(code.clone(), Box::new(read_fields(scope, depth + 1)?))))
            }
            _ => Err(malformed("$code", fields)),
        };
    }
    // Legacy regular expressions; the query operator of the same name may have other values.
    if let Some(Json::String(pattern)) = fields.get(LEGACY_REGEX) {
        return match (fields.get("$options"), fields.len()) {
            (None, 1) => Ok(Some(Value::Regex(pattern.clone(), String::new()))),
            (Some(Json::String(options)), 2) => Ok(Some(Value::Regex(pattern.clone(), sorted(options)))),
            _ => Err(malformed(LEGACY_REGEX, fields)),
        };
    }
    if let Some((data, subtype)) = two(fields, "$binary", "$type") {
        return binary(data, subtype).map(Some).ok_or_else(|| malformed("$binary", fields));
    }
    for (name, reader) in TYPES {
        if let Some(json) = fields.get(*name) {
            let value = if fields.len() == 1 { reader(json) } else { None };
            return value.map(Some).ok_or_else(|| malformed(name, fields));
        }
    }
    Ok(None)
}

fn malformed(name: &str, fields: &Map<String, Json>) -> Error {
    let mut text = json!(fields).to_string();
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
        text.push('…');
    }
    error!(Kind::FailedToParse, "Bad {name} value in Extended JSON: {text}")
}

/// The values of an object with exactly these two keys.
fn two<'a>(fields: &'a Map<String, Json>, first: &str, second: &str) -> Option<(&'a Json, &'a Json)> {
    if fields.len() != 2 {
        return None;
    }
    Some((fields.get(first)?, fields.get(second)?))
}

/// The value of an object with exactly this key.
fn only<'a>(json: &'a Json, key: &str) -> Option<&'a Json> {
    json.as_object().filter(|fields| fields.len() == 1)?.get(key)
}

fn object_id(json: &Json) -> Option<[u8; 12]> {
    text::parse_object_id(json.as_str()?)
}

fn is_one(json: &Json) -> bool {
    json.as_i64() == Some(1)
}

fn integer<T: std::str::FromStr>(json: &Json) -> Option<T> {
    json.as_str().filter(|text| !text.starts_with('+'))?.parse().ok()
}

fn double(text: &str) -> Option<f64> {
    if let Some(special) = special_double(text) {
        return Some(special);
    }
    // Some libraries write a meaningless sign of NaN.
    if text == "-NaN" {
        return Some(f64::NAN);
    }
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    if plain { text.parse().ok().filter(|value: &f64| value.is_finite()) } else { None }
}

/// Reads canonical and legacy binaries; a legacy subtype may be a number, or a single digit.
fn binary(data: &Json, subtype: &Json) -> Option<Value> {
    let subtype = match subtype {
        Json::Number(number) => u8::try_from(number.as_u64()?).ok()?,
        subtype => text::parse_subtype(subtype.as_str()?)?,
    };
    Some(Value::Binary(subtype, STANDARD.decode(data.as_str()?).ok()?))
}

fn date(json: &Json) -> Option<Value> {
    Some(Value::Date(match json {
        Json::String(text) => text::parse_date(text)?,
        Json::Number(millis) => millis.as_i64()?,
        wrapped => integer(only(wrapped, "$numberLong")?)?,
    }))
}
