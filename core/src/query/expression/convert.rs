//! Operators on types: `$type`, and conversions between types.

use super::date_format::parse_date;
use super::node::Call;
use super::parse::{Arguments, Operator, Parameter, lazy, optional, required};
use super::zone::Zone;
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::operand::{Operand, truncated};
use crate::values::document::number::{Decimal, Number, parse_exponent};
use crate::values::document::text;
use crate::values::document::value::{Value, type_of_code};
use crate::values::key::hashed_index;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use std::num::FpCategory;
use uuid::Uuid;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::exactly("$type", 1, |call| Ok(Operand::string(call.argument(0)?.type_name()))),
    Operator::new("$toHashedIndexKey", Arguments::Special(|parser, _, value| Ok(vec![parser.node(value)?])), |call| {
        // A missing value has the key of null.
        Ok(Operand::long(hashed_index::hash(&call.argument(0)?.into_option().unwrap_or(Value::Null))))
    }),
    Operator::unary("$subtype", |call, value| {
        let type_name = value.type_name();
        match value.into_value() {
            Value::Binary(subtype, _) => Ok(Operand::int(subtype.into())),
            _ => bail!(Kind::TypeMismatch, "{} requires binary data, found: {type_name}", call.name),
        }
    }),
    Operator::exactly("$isNumber", 1, |call| Ok(Operand::bool(call.argument(0)?.number().is_some()))),
    Operator::new("$convert", Arguments::Named(CONVERT_PARAMETERS, [9, 9]), convert),
    Operator::conversion("$toInt", COUNT, |_, input| converted(&input.into_value(), &Target::of("int"))),
    Operator::conversion("$toLong", COUNT, |_, input| converted(&input.into_value(), &Target::of("long"))),
    Operator::conversion("$toDouble", COUNT, |_, input| converted(&input.into_value(), &Target::of("double"))),
    Operator::conversion("$toDecimal", COUNT, |_, input| converted(&input.into_value(), &Target::of("decimal"))),
    Operator::conversion("$toString", COUNT, |_, input| converted(&input.into_value(), &Target::text())),
    Operator::conversion("$toBool", COUNT, |_, input| converted(&input.into_value(), &Target::of("bool"))),
    Operator::conversion("$toDate", COUNT, |_, input| converted(&input.into_value(), &Target::of("date"))),
    Operator::conversion("$toObjectId", COUNT, |_, input| converted(&input.into_value(), &Target::of("objectId"))),
    Operator::conversion("$toUUID", COUNT, |_, input| converted(&input.into_value(), &Target::uuid())),
];

/// MongoDB's error code for a conversion that does not have exactly one argument.
const COUNT: i32 = 50723;

/// The parameters of `$convert`. The error of a missing one has code 9 (FailedToParse), as in MongoDB.
const CONVERT_PARAMETERS: &[Parameter] = &[
    required("input", 9),
    required("to", 9),
    lazy("onError"),
    lazy("onNull"),
    optional("format"),
    optional("byteOrder"),
    optional("base"),
];

/// The type that a value is converted to.
struct Target {
    name: &'static str,
    /// the subtype of binary data, which [`Target::subtype`] checks
    subtype: Value,
    /// the encoding of binary data as a string
    format: Option<String>,
    /// true if the bytes of a number in binary data begin with the most significant one
    is_big_endian: bool,
    /// the base of integers in strings; None: strings have numbers in their usual form
    base: Option<u32>,
}

impl Target {
    fn of(name: &'static str) -> Target {
        Target { name, subtype: Value::Number(Number::int(0)), format: None, is_big_endian: false, base: None }
    }

    /// The target of `$toString`: binary data becomes base64, and a UUID its usual text.
    fn text() -> Target {
        Target { format: Some("auto".to_owned()), ..Target::of("string") }
    }

    fn uuid() -> Target {
        let subtype = Value::Number(Number::int(UUID.into()));
        Target { subtype, format: Some("uuid".to_owned()), ..Target::of("binData") }
    }

    /// The subtype of binary data.
    fn subtype(&self) -> Result<u8> {
        let subtype = Operand::Given(&self.subtype);
        if !subtype.is_number() {
            bail!(
                4341108,
                "For BinData, $convert's 'subtype' argument must be a number, but is {}",
                subtype.type_name()
            );
        }
        let code = subtype.int32();
        let code = code.ok_or_else(|| error!(4341106, "In $convert, numeric 'subtype' argument is not an integer"))?;
        let known = u8::try_from(code).ok().filter(|code| *code <= LAST_SUBTYPE || *code >= FIRST_CUSTOM_SUBTYPE);
        known.ok_or_else(|| error!(4341107, "In $convert, 'subtype' does not correspond to a BinData type: {code}"))
    }

    /// Returns the encoding for a conversion between binary data and a string; an error if none is given.
    fn format(&self, value: &Value) -> Result<&str> {
        let missing = || error!(4341115, "$convert from '{}' to '{}' requires 'format'", value.type_name(), self.name);
        self.format.as_deref().ok_or_else(missing)
    }
}

/// The subtype of a UUID.
const UUID: u8 = 4;
/// The last subtype of BSON's specification.
const LAST_SUBTYPE: u8 = 9;
/// The first subtype that users may define.
const FIRST_CUSTOM_SUBTYPE: u8 = 128;
/// The encodings of binary data as a string.
const FORMATS: [&str; 6] = ["auto", "base64", "base64url", "hex", "utf8", "uuid"];

fn convert<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let target = target(call.argument(1)?)?;
    let input = call.argument(0)?;
    let format = call.argument(4)?;
    if input.is_nullish() {
        return if call.is_given(3) { call.argument(3) } else { Ok(Operand::NULL) };
    }
    let Some(target) = target else { return Ok(Operand::NULL) };
    let is_big_endian = is_big_endian(call)?;
    let format = format_of(call, &format)?.map(str::to_owned);
    let base = base_of(call)?;
    match converted(&input.into_value(), &Target { format, is_big_endian, base, ..target }) {
        Err(error) if error.kind == Kind::ConversionFailure && call.is_given(2) => call.argument(2),
        other => other,
    }
}

/// The argument `base`; None if it is null or missing.
fn base_of(call: &Call<'_>) -> Result<Option<u32>> {
    let base = if call.is_given(6) { call.argument(6)? } else { Operand::NULL };
    if base.is_nullish() {
        return Ok(None);
    }
    match base.int32() {
        Some(base @ (2 | 8 | 10 | 16)) => Ok(u32::try_from(base).ok()),
        _ => bail!(Kind::BadValue, "In $convert, 'base' must be 2, 8, 10 or 16, not {}", base.shown()),
    }
}

/// An integer of 64 bits in a string of that base, with a sign or without.
fn integer_of_base(text: &str, base: u32) -> Option<i64> {
    budget::bytes(text.len());
    i64::from_str_radix(text, base).ok()
}

/// Writes an integer in a base, without a prefix such as `0x`; None for a number that is no integer of 64 bits.
fn text_of_base(number: &Number, base: u32) -> Option<String> {
    let integer = number.as_i64()?;
    let digits = integer.unsigned_abs();
    let digits = match base {
        2 => format!("{digits:b}"),
        8 => format!("{digits:o}"),
        16 => format!("{digits:X}"),
        _ => digits.to_string(),
    };
    Some(if integer < 0 { format!("-{digits}") } else { digits })
}

/// True if the argument `byteOrder` is "big".
fn is_big_endian(call: &Call<'_>) -> Result<bool> {
    let order = if call.is_given(5) { call.argument(5)? } else { Operand::NULL };
    if order.is_nullish() {
        return Ok(false);
    }
    match call.text(&order, "'byteOrder'", 9130001)? {
        "little" => Ok(false),
        "big" => Ok(true),
        other => bail!(9130002, "Invalid 'byteOrder' argument for $convert: {other}"),
    }
}

/// Returns the bytes of a number in binary data, the least significant first; an error if the data has none of the given
/// lengths.
fn bytes_of(bytes: &[u8], lengths: &[usize], target: &Target) -> Result<Vec<u8>> {
    if !lengths.contains(&bytes.len()) {
        bail!(Kind::ConversionFailure, "Failed to convert binary data of {} bytes to {}", bytes.len(), target.name);
    }
    let mut bytes = bytes.to_vec();
    if target.is_big_endian {
        bytes.reverse();
    }
    Ok(bytes)
}

/// The signed integer in binary data.
fn integer_in(bytes: &[u8], lengths: &[usize], target: &Target) -> Result<i64> {
    let bytes = bytes_of(bytes, lengths, target)?;
    let sign = if bytes.last().is_some_and(|last| *last > 0x7f) { 0xff } else { 0 };
    let mut all = [sign; 8];
    all[..bytes.len()].copy_from_slice(&bytes);
    Ok(i64::from_le_bytes(all))
}

/// The double, or the single-precision number, in binary data.
fn double_in(bytes: &[u8], target: &Target) -> Result<f64> {
    let bytes = bytes_of(bytes, &[4, 8], target)?;
    Ok(match (<[u8; 4]>::try_from(&bytes[..]), <[u8; 8]>::try_from(&bytes[..])) {
        (Ok(single), _) => f64::from(f32::from_le_bytes(single)),
        (_, Ok(double)) => f64::from_le_bytes(double),
        _ => f64::NAN,
    })
}

/// The argument `format`; None if it is null.
fn format_of<'o>(call: &Call<'_>, format: &'o Operand<'_>) -> Result<Option<&'o str>> {
    if format.is_nullish() {
        return Ok(None);
    }
    let name = call.text(format, "'format'", 4341114)?;
    ensure!(FORMATS.contains(&name), 4341125, "Invalid 'format' argument for $convert: {name}");
    Ok(Some(name))
}

/// The argument `to`: the name or number of a type, or a document with the fields `type` and `subtype`; None for null.
fn target(to: Operand<'_>) -> Result<Option<Target>> {
    let (kind, subtype) = if to.is_object() {
        let kind = to.clone().into_field("type");
        ensure!(!kind.is_missing(), Kind::FailedToParse, "$convert requires 'type' in 'to'");
        (kind, to.into_field("subtype").non_null().and_then(Operand::into_option))
    } else {
        (to, None)
    };
    if kind.is_nullish() {
        return Ok(None);
    }
    let name = match kind.text() {
        // No value has this type, but `$type` returns the name: the conversion is unsupported, not the type unknown.
        Some("missing") => Some("missing"),
        Some(alias) => {
            Some(type_of_code(None, Some(alias)).ok_or_else(|| error!(Kind::BadValue, "Unknown type name: {alias}"))?)
        }
        None => kind.int32().and_then(|code| type_of_code(Some(code), None)),
    };
    let name = name.ok_or_else(|| error!(Kind::FailedToParse, "$convert to an unknown type: {}", kind.shown()))?;
    let target = Target::of(name);
    Ok(Some(Target { subtype: subtype.unwrap_or(target.subtype), ..target }))
}

fn unsupported(value: &Value, target: &Target) -> Error {
    error!(Kind::ConversionFailure, "Unsupported conversion from {} to {}", value.type_name(), target.name)
}

fn unreadable(text: &str, target: &Target) -> Error {
    error!(Kind::ConversionFailure, "Failed to parse {} '{text}'", target.name)
}

fn overflow(number: &Number) -> Error {
    let shown = Operand::number_of(number.clone()).shown();
    error!(Kind::ConversionFailure, "Conversion would overflow target type: {shown}")
}

fn converted(value: &Value, target: &Target) -> Result<Operand<'static>> {
    Ok(Operand::Made(match target.name {
        "int" => Value::Number(Number::int(integer(value, target, i64::from(i32::MIN), i64::from(i32::MAX))?)),
        "long" => Value::Number(Number::long(integer(value, target, i64::MIN, i64::MAX)?)),
        "double" => Value::Number(Number::Double(double(value, target)?)),
        "decimal" => Value::Number(Number::Decimal(decimal(value, target)?)),
        "string" => Value::String(string(value, target)?),
        "bool" => Value::Bool(match value {
            Value::Bool(value) => *value,
            Value::Number(number) => !number.is_zero(),
            _ => true,
        }),
        "date" => Value::Date(date(value, target)?),
        "objectId" => match value {
            Value::ObjectId(id) => Value::ObjectId(*id),
            Value::String(hex) => Value::ObjectId(text::parse_object_id(hex).ok_or_else(|| unreadable(hex, target))?),
            _ => return Err(unsupported(value, target)),
        },
        "binData" => binary(value, target)?,
        _ => return Err(unsupported(value, target)),
    }))
}

fn integer(value: &Value, target: &Target, least: i64, greatest: i64) -> Result<i64> {
    let fits = |integer: &i64| (least..=greatest).contains(integer);
    match value {
        Value::Bool(value) => Ok(i64::from(*value)),
        Value::Number(number) => {
            if number.is_nan() {
                bail!(Kind::ConversionFailure, "Attempt to convert NaN value to integer type");
            }
            if number.to_f64().is_infinite() && !matches!(number, Number::Decimal(Decimal::Finite(_))) {
                bail!(Kind::ConversionFailure, "Attempt to convert infinity value to integer type");
            }
            truncated(number).filter(fits).ok_or_else(|| overflow(number))
        }
        Value::String(text) => {
            let read = match target.base {
                Some(base) => integer_of_base(text, base),
                None => text.parse::<i64>().ok(),
            };
            read.filter(fits).ok_or_else(|| unreadable(text, target))
        }
        Value::Date(millis) if target.name == "long" => Ok(*millis),
        Value::Binary(_, bytes) if target.name == "long" => integer_in(bytes, &[1, 2, 4, 8], target),
        Value::Binary(_, bytes) => integer_in(bytes, &[1, 2, 4], target),
        _ => Err(unsupported(value, target)),
    }
}

fn double(value: &Value, target: &Target) -> Result<f64> {
    match value {
        Value::Bool(value) => Ok(f64::from(u8::from(*value))),
        Value::Number(number) => {
            let double = number.to_f64();
            let is_lost = double.is_infinite() && matches!(number, Number::Decimal(Decimal::Finite(_)));
            if is_lost { Err(overflow(number)) } else { Ok(double) }
        }
        Value::String(text) => match target.base {
            Some(base) => integer_of_base(text, base).map(|integer| integer as f64),
            None => parse_double(text),
        }
        .ok_or_else(|| unreadable(text, target)),
        Value::Date(millis) => Ok(*millis as f64),
        Value::Binary(_, bytes) => double_in(bytes, target),
        _ => Err(unsupported(value, target)),
    }
}

/// Parses a decimal or a hexadecimal double. None for another text, and where C's `strtod` reports `ERANGE`: for a value
/// beyond all doubles, and for one that is rounded to a subnormal double or to zero.
fn parse_double(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(hex) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        // As in MongoDB, `0x` without a sign is refused, but `0X`, `+0x` and `-0x` are not.
        let double = parse_hex_double(hex).filter(|_| !text.starts_with("0x"))?;
        return Some(if text.starts_with('-') { -double } else { double });
    }
    budget::bytes(text.len());
    let double = text.parse::<f64>().ok()?;
    let mut digits = unsigned.bytes().take_while(|byte| !matches!(byte, b'e' | b'E')).filter(u8::is_ascii_digit);
    let fits = match double.classify() {
        FpCategory::Normal | FpCategory::Nan => true,
        // Without digits the text is a name, such as `inf`; with digits the value is beyond all doubles.
        FpCategory::Infinite => digits.next().is_none(),
        FpCategory::Zero => digits.all(|digit| digit == b'0'),
        FpCategory::Subnormal => false,
    };
    fits.then_some(double)
}

/// Parses a hexadecimal double after its `0x`: digits, perhaps with a point, and perhaps `p` with a binary exponent.
fn parse_hex_double(text: &str) -> Option<f64> {
    budget::bytes(text.len());
    let (mantissa, exponent) = match text.split_once(['p', 'P']) {
        None => (text, 0),
        Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // The leading digits, at most 64 bits. The last bit is sticky: any later digit that is not zero sets it, so that the
    // conversion to a double is correctly rounded.
    let (mut leading, mut scale) = (0u64, exponent);
    for digit in whole.bytes().chain(fraction.bytes()) {
        let digit = char::from(digit).to_digit(16)?;
        if leading.leading_zeros() >= 4 {
            leading = leading << 4 | u64::from(digit);
        } else {
            leading |= u64::from(digit > 0);
            scale = scale.saturating_add(4);
        }
    }
    scale = scale.saturating_sub(i64::try_from(fraction.len()).ok()?.saturating_mul(4));
    match (whole.len() + fraction.len(), leading) {
        (0, _) => None,
        (_, 0) => Some(0.0),
        _ => scaled(leading, scale),
    }
}

/// An integer times a power of two; None if it is beyond all doubles, or is rounded to a subnormal one.
fn scaled(integer: u64, exponent: i64) -> Option<f64> {
    let exponent = exponent.clamp(-1200, 1200);
    // Two factors, since the power itself can be beyond all doubles.
    let powers = [exponent / 2, exponent - exponent / 2].map(|half| f64::from_bits(((half + 1023) as u64) << 52));
    let whole = integer as f64;
    let double = whole * powers[0] * powers[1];
    let is_exact = whole as u64 == integer && double / powers[0] / powers[1] == whole;
    (double.is_normal() || double.is_subnormal() && is_exact).then_some(double)
}

fn decimal(value: &Value, target: &Target) -> Result<Decimal> {
    match value {
        Value::Bool(value) => Ok(Number::int(i64::from(*value)).to_decimal()),
        Value::Number(number) => Ok(number.to_decimal()),
        Value::String(text) => match target.base {
            Some(base) => integer_of_base(text, base).map(|integer| Number::int(integer).to_decimal()),
            None => Decimal::parse_rounded(text),
        }
        .ok_or_else(|| unreadable(text, target)),
        Value::Date(millis) => Ok(Number::int(*millis).to_decimal()),
        _ => Err(unsupported(value, target)),
    }
}

/// The text of a number, a date or a timestamp.
pub(super) fn text_of(value: &Value) -> Result<String> {
    Ok(match value {
        Value::Number(Number::Int(value, _)) => value.to_string(),
        Value::Number(Number::Double(value)) => double_text(*value),
        Value::Number(Number::Decimal(value)) => value.to_string(),
        Value::Date(millis) => super::date_format::iso(*millis)?,
        Value::Timestamp(t, i) => super::date_format::timestamp(*t, *i),
        _ => String::new(),
    })
}

/// The shortest text that reads back as the double, with an exponent where C's `%.16g` has one.
fn double_text(value: f64) -> String {
    if !value.is_finite() {
        let name = if value.is_nan() { "NaN" } else { "Infinity" };
        return if value < 0.0 { format!("-{name}") } else { name.to_owned() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return value.to_string();
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn string(value: &Value, target: &Target) -> Result<String> {
    Ok(match value {
        Value::String(text) | Value::Symbol(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) if target.base.is_some() => {
            let base = target.base.unwrap_or(10);
            let whole =
                || error!(Kind::ConversionFailure, "In $convert with 'base', a number must be an integer of 64 bits");
            text_of_base(number, base).ok_or_else(whole)?
        }
        Value::Number(_) | Value::Date(_) => text_of(value)?,
        Value::ObjectId(id) => hex::encode(id),
        Value::Binary(subtype, bytes) => {
            let uuid = Some(bytes).filter(|_| *subtype == UUID).and_then(|bytes| Uuid::from_slice(bytes).ok());
            let written = match (target.format(value)?, uuid) {
                ("uuid" | "auto", Some(uuid)) => Some(uuid.to_string()),
                ("base64" | "auto", _) => Some(STANDARD.encode(bytes)),
                ("base64url", _) => Some(URL_SAFE_NO_PAD.encode(bytes)),
                ("hex", _) => Some(hex::encode_upper(bytes)),
                ("utf8", _) => String::from_utf8(bytes.clone()).ok(),
                _ => None,
            };
            written.ok_or_else(|| error!(Kind::ConversionFailure, "The input binary does not fit the format"))?
        }
        _ => return Err(unsupported(value, target)),
    })
}

fn binary(value: &Value, target: &Target) -> Result<Value> {
    match value {
        Value::Binary(subtype, _) if *subtype == target.subtype()? => Ok(value.clone()),
        Value::String(text) => {
            let (format, subtype) = (target.format(value)?, target.subtype()?);
            let bytes = match (format, subtype == UUID) {
                ("base64", false) => STANDARD.decode(text).ok(),
                ("base64url", false) => URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok(),
                ("hex", false) => hex::decode(text).ok(),
                ("utf8", false) => Some(text.as_bytes().to_vec()),
                ("uuid", true) => text::parse_uuid(text).map(|bytes| bytes.to_vec()),
                _ => None,
            };
            bytes.map(|bytes| Value::Binary(subtype, bytes)).ok_or_else(|| unreadable(text, target))
        }
        Value::Number(Number::Decimal(_)) => Err(unsupported(value, target)),
        Value::Number(number) => {
            let mut bytes = match number {
                Number::Int(value, _) if number.is_long() => value.to_le_bytes().to_vec(),
                Number::Int(value, _) => (*value as i32).to_le_bytes().to_vec(),
                number => number.to_f64().to_le_bytes().to_vec(),
            };
            if target.is_big_endian {
                bytes.reverse();
            }
            Ok(Value::Binary(target.subtype()?, bytes))
        }
        _ => Err(unsupported(value, target)),
    }
}

fn date(value: &Value, target: &Target) -> Result<i64> {
    match value {
        // MongoDB refuses an int. Here an int is accepted, since a client's small long may be stored as one.
        Value::Number(number) => truncated(number).ok_or_else(|| overflow(number)),
        Value::String(text) => parse_date(text, &Zone::UTC),
        value => super::date::millis_of(&Operand::Given(value)).ok_or_else(|| unsupported(value, target)),
    }
}
