//! A value of a stored document, classified and borrowed: [`raw`](super::raw) values with the types of Extended JSON.
//!
//! Only the stored form, relaxed Extended JSON as [`ext_json`](super::ext_json) writes it, counts as an extended type. Other forms
//! are converted before documents are stored.

use super::number::{Decimal, Number};
use super::raw::{RawArray, RawObject, RawValue};
use super::text;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// A value in one of MongoDB's types, borrowing from the document.
#[derive(Clone, Debug)]
pub enum Element<'a> {
    /// `{"$minKey": 1}`
    MinKey,
    /// `{"$undefined": true}`
    Undefined,
    /// null
    Null,
    /// int, long, double, decimal
    Number(Number),
    /// a string
    String(&'a str),
    /// an embedded document
    Object(RawObject<'a>),
    /// an array
    Array(RawArray<'a>),
    /// `{"$binary": {"base64": …, "subType": …}}`, decoded
    Binary(u8, Vec<u8>),
    /// `{"$oid": …}`
    ObjectId([u8; 12]),
    /// a boolean
    Bool(bool),
    /// `{"$date": …}`, milliseconds since 1970
    Date(i64),
    /// `{"$timestamp": {"t": …, "i": …}}`
    Timestamp(u32, u32),
    /// `{"$regularExpression": {"pattern": …, "options": …}}`
    Regex(&'a str, &'a str),
    /// `{"$dbPointer": …}`
    DbPointer(&'a str, [u8; 12]),
    /// `{"$code": …}`
    Code(&'a str),
    /// `{"$code": …, "$scope": …}`
    CodeWithScope(&'a str, RawObject<'a>),
    /// `{"$symbol": …}`
    Symbol(&'a str),
    /// `{"$maxKey": 1}`
    MaxKey,
}

impl<'a> Element<'a> {
    /// Classifies a raw value. An object with `$` that is not a well-formed extended type stays an object.
    #[inline]
    pub fn of(raw: RawValue<'a>) -> Element<'a> {
        match raw {
            RawValue::Null => Element::Null,
            RawValue::Bool(value) => Element::Bool(value),
            RawValue::Number(value) => Element::Number(value.to_number()),
            RawValue::String(value) => Element::String(value),
            RawValue::Array(array) => Element::Array(array),
            RawValue::Object(object) => extended(object).unwrap_or(Element::Object(object)),
        }
    }
}

/// Gives an enum with a variant for each type the method `type_name`.
macro_rules! impl_type_name {
    ($of:ty) => {
        impl $of {
            /// MongoDB's alias of the type, as `$type` and messages use it: "double", "string", "object" …
            pub fn type_name(&self) -> &'static str {
                match self {
                    Self::MinKey => "minKey",
                    Self::Undefined => "undefined",
                    Self::Null => "null",
                    Self::Number(number) => number.type_name(),
                    Self::String(_) => "string",
                    Self::Object(_) => "object",
                    Self::Array(_) => "array",
                    Self::Binary(..) => "binData",
                    Self::ObjectId(_) => "objectId",
                    Self::Bool(_) => "bool",
                    Self::Date(_) => "date",
                    Self::Timestamp(..) => "timestamp",
                    Self::Regex(..) => "regex",
                    Self::DbPointer(..) => "dbPointer",
                    Self::Code(_) => "javascript",
                    Self::CodeWithScope(..) => "javascriptWithScope",
                    Self::Symbol(_) => "symbol",
                    Self::MaxKey => "maxKey",
                }
            }
        }
    };
}

pub(super) use impl_type_name;

impl_type_name!(Element<'_>);

/// Classifies an object; None if it is not an extended type in its stored form.
fn extended(object: RawObject<'_>) -> Option<Element<'_>> {
    if !(1..=2).contains(&object.len()) {
        return None;
    }
    let (key, value) = object.iter().next()?;
    if !key.starts_with('$') {
        return None;
    }
    if object.len() == 2 {
        return match (key, value, object.get("$scope")) {
            ("$code", RawValue::String(code), Some(RawValue::Object(scope))) => {
                Some(Element::CodeWithScope(code, scope))
            }
            _ => None,
        };
    }
    match (key, value) {
        ("$oid", RawValue::String(value)) => stored_object_id(value).map(Element::ObjectId),
        ("$date", RawValue::String(value)) => text::parse_stored_date(value).map(Element::Date),
        ("$date", RawValue::Object(value)) => {
            let millis = canonical_long(single_string(value, "$numberLong")?)?;
            text::format_date(millis).is_none().then_some(Element::Date(millis))
        }
        ("$binary", RawValue::Object(value)) => {
            let [RawValue::String(data), RawValue::String(subtype)] = pair(value, "base64", "subType")? else {
                return None;
            };
            let number =
                text::parse_subtype(subtype).filter(|_| subtype.len() == 2 && text::has_no_uppercase(subtype))?;
            Some(Element::Binary(number, STANDARD.decode(data).ok()?))
        }
        ("$numberDecimal", RawValue::String(value)) => {
            Decimal::parse(value).ok().map(|decimal| Element::Number(Number::Decimal(decimal)))
        }
        ("$numberDouble", RawValue::String(value)) => special_double(value).map(|v| Element::Number(Number::Double(v))),
        ("$regularExpression", RawValue::Object(value)) => {
            let [RawValue::String(pattern), RawValue::String(options)] = pair(value, "pattern", "options")? else {
                return None;
            };
            options.bytes().is_sorted().then_some(Element::Regex(pattern, options))
        }
        ("$timestamp", RawValue::Object(value)) => {
            let [RawValue::Number(t), RawValue::Number(i)] = pair(value, "t", "i")? else { return None };
            let part = |number: Number| match number {
                Number::Int(value, _) => u32::try_from(value).ok(),
                _ => None,
            };
            Some(Element::Timestamp(part(t.to_number())?, part(i.to_number())?))
        }
        ("$minKey", value) => is_one(value).then_some(Element::MinKey),
        ("$maxKey", value) => is_one(value).then_some(Element::MaxKey),
        ("$undefined", RawValue::Bool(true)) => Some(Element::Undefined),
        ("$symbol", RawValue::String(value)) => Some(Element::Symbol(value)),
        ("$code", RawValue::String(value)) => Some(Element::Code(value)),
        ("$dbPointer", RawValue::Object(value)) => {
            let [RawValue::String(namespace), RawValue::Object(id)] = pair(value, "$ref", "$id")? else { return None };
            Some(Element::DbPointer(namespace, stored_object_id(single_string(id, "$oid")?)?))
        }
        _ => None,
    }
}

fn pair<'a>(object: RawObject<'a>, first: &str, second: &str) -> Option<[RawValue<'a>; 2]> {
    if object.len() != 2 {
        return None;
    }
    Some([object.get(first)?, object.get(second)?])
}

fn single_string<'a>(object: RawObject<'a>, key: &str) -> Option<&'a str> {
    match (object.len(), object.get(key)?) {
        (1, RawValue::String(value)) => Some(value),
        _ => None,
    }
}

fn stored_object_id(value: &str) -> Option<[u8; 12]> {
    text::parse_object_id(value).filter(|_| text::has_no_uppercase(value))
}

/// Parses a long that is written as it would be printed.
fn canonical_long(value: &str) -> Option<i64> {
    value.parse().ok().filter(|long: &i64| long.to_string() == value)
}

/// Parses the names of doubles that JSON has no number for.
pub(super) fn special_double(value: &str) -> Option<f64> {
    match value {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        "-0.0" => Some(-0.0),
        _ => None,
    }
}

fn is_one(value: RawValue<'_>) -> bool {
    matches!(value, RawValue::Number(number) if matches!(number.to_number(), Number::Int(1, _)))
}
