//! Types: which one a value has, and conversions between them.

use super::date_format::parse_date;
use super::node::Call;
use super::parse::{Arguments, Operator, Parameter, Refusal};
use crate::error::{Error, Kind, Result, bail};
use crate::query::operand::Operand;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::text;
use crate::values::document::value::Value;
use crate::values::document::value::type_of_code;
use crate::values::key::hashed_index;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::exactly("$type", 1, |call| Ok(Operand::string(call.argument(0)?.type_name()))),
    Operator::exactly("$toHashedIndexKey", 1, |call| {
        // What is missing has the key of null.
        Ok(Operand::int(hashed_index::hash(&call.argument(0)?.into_option().unwrap_or(Value::Null))))
    }),
    Operator::exactly("$isNumber", 1, |call| Ok(Operand::bool(call.argument(0)?.number().is_some()))),
    Operator::new(
        "$convert",
        Arguments::Named(
            &[
                Parameter::required("input", Kind::FailedToParse),
                Parameter::required("to", Kind::FailedToParse),
                Parameter::lazy("onError"),
                Parameter::lazy("onNull"),
                Parameter::optional("format"),
                Parameter::optional("byteOrder"),
            ],
            Refusal { object: Kind::FailedToParse, name: Kind::FailedToParse },
        ),
        convert,
    ),
    Operator::exactly("$toInt", 1, |call| shorthand(call, Target::of("int"))),
    Operator::exactly("$toLong", 1, |call| shorthand(call, Target::of("long"))),
    Operator::exactly("$toDouble", 1, |call| shorthand(call, Target::of("double"))),
    Operator::exactly("$toDecimal", 1, |call| shorthand(call, Target::of("decimal"))),
    Operator::exactly("$toString", 1, |call| shorthand(call, Target::of("string"))),
    Operator::exactly("$toBool", 1, |call| shorthand(call, Target::of("bool"))),
    Operator::exactly("$toDate", 1, |call| shorthand(call, Target::of("date"))),
    Operator::exactly("$toObjectId", 1, |call| shorthand(call, Target::of("objectId"))),
    Operator::exactly("$toUUID", 1, |call| {
        shorthand(call, Target { name: "binData", subtype: 4, format: Some("uuid".to_owned()) })
    }),
];

/// What a value is converted to.
struct Target {
    name: &'static str,
    subtype: u8,
    /// how binary data is written as a string
    format: Option<String>,
}

impl Target {
    fn of(name: &'static str) -> Target {
        Target { name, subtype: 0, format: None }
    }
}

fn failed<T>(message: impl Into<String>) -> Result<T> {
    bail!(Kind::ConversionFailure, "{} in $convert with no onError value", message.into())
}

fn shorthand(call: &Call<'_>, target: Target) -> Result<Operand<'static>> {
    let input = call.argument(0)?;
    if input.is_nullish() {
        return Ok(Operand::NULL);
    }
    converted(&input.into_value(), &target).map(Operand::Made)
}

fn convert<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let input = call.argument(0)?;
    let target = target(call)?;
    if input.is_nullish() {
        return if call.given(3) { call.argument(3) } else { Ok(Operand::NULL) };
    }
    let Some(target) = target else { return Ok(Operand::NULL) };
    match converted(&input.into_value(), &target) {
        Ok(value) => Ok(Operand::Made(value)),
        Err(_) if call.given(2) => call.argument(2),
        Err(error) => Err(error),
    }
}

/// The type that `to` names; None if it is null.
fn target(call: &Call<'_>) -> Result<Option<Target>> {
    let fail = |message: String| Err(Error::new(Kind::FailedToParse, message));
    let to = call.argument(1)?;
    if to.is_nullish() {
        return Ok(None);
    }
    let (kind, subtype) =
        if to.is_object() { (to.clone().into_field("type"), to.into_field("subtype")) } else { (to, Operand::Missing) };
    let subtype = if subtype.is_nullish() {
        0
    } else {
        let code = subtype.number().and_then(|number| number.as_i64()).and_then(|code| u8::try_from(code).ok());
        match code {
            Some(code) => code,
            None => {
                return fail(format!(
                    "In $convert, numeric value for 'subtype' does not correspond to a BinData type: {}",
                    subtype.shown()
                ));
            }
        }
    };
    let known = match (kind.text(), kind.number()) {
        (Some(alias), _) => match type_of_code(None, Some(alias)) {
            Some(name) => name,
            None => bail!(Kind::BadValue, "Unknown type name: {alias}"),
        },
        (None, Some(number)) => match number.as_i64().and_then(|code| type_of_code(Some(code), None)) {
            Some(name) => name,
            None => {
                let shown = kind.shown();
                return fail(format!(
                    "In $convert, numeric value for 'to' does not correspond to a BSON type: {shown}"
                ));
            }
        },
        (None, None) => {
            return fail(format!("$convert's 'to' argument must be a string or number, but is {}", kind.type_name()));
        }
    };
    let format = call.argument(4)?;
    Ok(Some(Target { name: known, subtype, format: format.text().map(str::to_owned) }))
}

fn unsupported<T>(value: &Value, target: &Target) -> Result<T> {
    failed(format!("Unsupported conversion from {} to {}", value.type_name(), target.name))
}

fn converted(value: &Value, target: &Target) -> Result<Value> {
    match target.name {
        "int" => integer(value, target, i64::from(i32::MIN), i64::from(i32::MAX)),
        "long" => integer(value, target, i64::MIN, i64::MAX),
        "double" => double(value, target),
        "decimal" => decimal(value, target),
        "string" => string(value, target),
        "bool" => Ok(Value::Bool(match value {
            Value::Bool(value) => *value,
            Value::Number(number) => number.is_nan() || number.to_f64() != 0.0,
            _ => true,
        })),
        "date" => date(value, target),
        "objectId" => match value {
            Value::ObjectId(id) => Ok(Value::ObjectId(*id)),
            Value::String(hex) => match text::parse_object_id(hex) {
                Some(id) => Ok(Value::ObjectId(id)),
                None => failed(format!("Failed to parse objectId '{hex}'")),
            },
            _ => unsupported(value, target),
        },
        "binData" => binary(value, target),
        name if name == value.type_name() && matches!(value, Value::Object(_) | Value::Array(_)) => Ok(value.clone()),
        _ => unsupported(value, target),
    }
}

fn integer(value: &Value, target: &Target, least: i64, greatest: i64) -> Result<Value> {
    let fits = |integer: i64| (least..=greatest).contains(&integer);
    let whole = match value {
        Value::Bool(value) => i64::from(*value),
        Value::Number(Number::Int(value)) if fits(*value) => *value,
        Value::Number(number) => {
            if number.is_nan() {
                return failed("Attempt to convert NaN value to integer type");
            }
            if number.to_f64().is_infinite() && !matches!(number, Number::Decimal(Decimal::Finite(_))) {
                return failed("Attempt to convert infinity value to integer type");
            }
            match truncated(number).filter(|integer| fits(*integer)) {
                Some(integer) => integer,
                None => {
                    let shown = Operand::number_of(number.clone()).shown();
                    return failed(format!("Conversion would overflow target type: {shown}"));
                }
            }
        }
        Value::String(text) => match text.parse::<i64>() {
            Ok(integer) if fits(integer) => integer,
            _ => return failed(format!("Failed to parse number '{text}'")),
        },
        Value::Date(millis) if target.name == "long" => *millis,
        _ => return unsupported(value, target),
    };
    Ok(Value::Number(Number::Int(whole)))
}

/// The integer towards zero.
fn truncated(number: &Number) -> Option<i64> {
    match number {
        Number::Int(value) => Some(*value),
        Number::Double(value) => Number::Double(value.trunc()).as_i64(),
        Number::Decimal(Decimal::Finite(value)) => {
            Number::Decimal(Decimal::Finite(Box::new(value.with_scale_round(0, bigdecimal::RoundingMode::Down))))
                .as_i64()
        }
        Number::Decimal(_) => None,
    }
}

fn double(value: &Value, target: &Target) -> Result<Value> {
    let double = match value {
        Value::Bool(value) => f64::from(u8::from(*value)),
        Value::Number(number) => {
            let double = number.to_f64();
            if double.is_infinite() && matches!(number, Number::Decimal(Decimal::Finite(_))) {
                let shown = Operand::number_of(number.clone()).shown();
                return failed(format!("Conversion would overflow target type: {shown}"));
            }
            double
        }
        Value::String(text) => {
            let plain = !text.is_empty() && !text.starts_with(char::is_whitespace) && !text.contains(['x', 'X']);
            match text.parse::<f64>() {
                Ok(double) if plain && (double.is_finite() || !text.contains(|c: char| c.is_ascii_digit())) => double,
                _ => return failed(format!("Failed to parse number '{text}'")),
            }
        }
        Value::Date(millis) => *millis as f64,
        _ => return unsupported(value, target),
    };
    Ok(Value::Number(Number::Double(double)))
}

fn decimal(value: &Value, target: &Target) -> Result<Value> {
    let decimal = match value {
        Value::Bool(value) => Number::Int(i64::from(*value)).to_decimal(),
        Value::Number(number) => number.to_decimal(),
        Value::String(text) => match Decimal::parse(text) {
            Ok(decimal) => decimal,
            Err(_) => return failed(format!("Failed to parse number '{text}'")),
        },
        Value::Date(millis) => Number::Int(*millis).to_decimal(),
        _ => return unsupported(value, target),
    };
    Ok(Value::Number(Number::Decimal(decimal)))
}

/// The text of a number or a date.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::Number(Number::Int(value)) => value.to_string(),
        Value::Number(Number::Double(value)) => double_text(*value),
        Value::Number(Number::Decimal(value)) => value.to_string(),
        Value::Date(millis) => super::date_format::iso(*millis),
        Value::Timestamp(t, i) => super::date_format::timestamp(*t, *i),
        _ => String::new(),
    }
}

/// The shortest text that reads back as the double, with an exponent where C would write one.
fn double_text(value: f64) -> String {
    if !value.is_finite() {
        let name = if value.is_nan() { "NaN" } else { "Infinity" };
        return if value < 0.0 { format!("-{name}") } else { name.to_owned() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-5..17).contains(&exponent) {
        return value.to_string();
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn uuid_text(bytes: &[u8]) -> Option<String> {
    let hex = text::hex(bytes);
    (hex.len() == 32).then(|| format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

fn string(value: &Value, target: &Target) -> Result<Value> {
    Ok(Value::String(match value {
        Value::String(text) | Value::Symbol(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(_) | Value::Date(_) => text_of(value),
        Value::ObjectId(id) => text::hex(id),
        Value::Binary(subtype, bytes) => {
            let written = match target.format.as_deref() {
                Some("base64") => Some(STANDARD.encode(bytes)),
                Some("base64url") => Some(URL_SAFE_NO_PAD.encode(bytes)),
                Some("hex") => Some(text::hex(bytes).to_uppercase()),
                Some("utf8") => String::from_utf8(bytes.clone()).ok(),
                Some("uuid") if *subtype == 4 => uuid_text(bytes),
                Some("auto") if *subtype == 4 => uuid_text(bytes),
                Some("auto") => Some(STANDARD.encode(bytes)),
                None => return unsupported(value, target),
                Some(_) => None,
            };
            match written {
                Some(text) => text,
                None => return failed("The input binary does not fit the format"),
            }
        }
        _ => return unsupported(value, target),
    }))
}

fn binary(value: &Value, target: &Target) -> Result<Value> {
    match value {
        Value::Binary(subtype, bytes) if *subtype == target.subtype => Ok(Value::Binary(*subtype, bytes.clone())),
        Value::String(text) => {
            let uuid = target.subtype == 4;
            let bytes = match target.format.as_deref() {
                Some("base64") if !uuid => STANDARD.decode(text).ok(),
                Some("base64url") if !uuid => URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok(),
                Some("hex") if !uuid => hex_bytes(text),
                Some("utf8") if !uuid => Some(text.as_bytes().to_vec()),
                Some("auto") if !uuid => STANDARD.decode(text).ok(),
                Some("uuid" | "auto") if uuid => text::parse_uuid(text).map(|bytes| bytes.to_vec()),
                None => return unsupported(value, target),
                Some(_) => None,
            };
            match bytes {
                Some(bytes) => Ok(Value::Binary(target.subtype, bytes)),
                None => failed(format!("Failed to parse BinData '{text}'")),
            }
        }
        _ => unsupported(value, target),
    }
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn date(value: &Value, target: &Target) -> Result<Value> {
    let millis = match value {
        Value::Date(millis) => *millis,
        Value::Number(number) => match truncated(number) {
            Some(millis) => millis,
            None => {
                let shown = Operand::number_of(number.clone()).shown();
                return failed(format!("Conversion would overflow target type: {shown}"));
            }
        },
        Value::ObjectId(id) => i64::from(u32::from_be_bytes([id[0], id[1], id[2], id[3]])) * 1000,
        Value::Timestamp(t, _) => i64::from(*t) * 1000,
        Value::String(text) => parse_date(text, &super::date::utc(), false)?,
        _ => return unsupported(value, target),
    };
    Ok(Value::Date(millis))
}
