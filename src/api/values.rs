//! SQL functions that make and read values of Extended JSON. Like PostgreSQL's own conversions they return null for null.

use super::run;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use docshard_core::error::{Kind, bail, error, report};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::{Decimal, Number};
use docshard_core::values::document::raw;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write::{self, Part};
use pgrx::prelude::*;
use std::str::FromStr;

/// From 1970 to 2000, where PostgreSQL's timestamps begin, in milliseconds.
const EPOCH_MS: i64 = 946_684_800_000;

/// The document of a value of an extended type.
fn document(value: Value) -> Result<RawJsonb> {
    Ok(RawJsonb::from_bytes(&write::document(&Part::Owned(value))?))
}

/// The value, in the form in which documents store it or in another form of Extended JSON, as literals have it.
fn of_any_form(value: &RawJsonb) -> Result<Value> {
    match Value::from_raw(raw::root(value.bytes())) {
        object @ Value::Object(_) => ext_json::from_json(&ext_json::to_json(&object)),
        value => Ok(value),
    }
}

/// Milliseconds since 1970; an error for the infinite timestamps.
fn millis(at: TimestampWithTimeZone) -> Result<i64> {
    let micros: i64 = at.into();
    if micros == i64::MIN || micros == i64::MAX {
        bail!(Kind::BadValue, "an infinite timestamp is not a date");
    }
    Ok(micros.div_euclid(1000) + EPOCH_MS)
}

#[pg_extern(immutable, parallel_safe, strict, requires = ["catalog"])]
fn date(at: TimestampWithTimeZone) -> RawJsonb {
    run(|| document(Value::Date(millis(at)?)))
}

#[pg_extern(volatile, parallel_safe, strict, requires = ["catalog"])]
fn object_id() -> RawJsonb {
    run(|| document(Value::ObjectId(bson::oid::ObjectId::new().bytes())))
}

#[pg_extern(name = "object_id", immutable, parallel_safe, strict, requires = ["catalog"])]
fn object_id_at(at: TimestampWithTimeZone) -> RawJsonb {
    run(|| {
        let seconds = i32::try_from(millis(at)?.div_euclid(1000))
            .map_err(|_| error!(Kind::BadValue, "an ObjectId's time is from 1901 to 2038"))?;
        let mut id = [0; 12];
        id[..4].copy_from_slice(&seconds.to_be_bytes());
        document(Value::ObjectId(id))
    })
}

#[pg_extern(immutable, parallel_safe, strict, requires = ["catalog"])]
fn decimal(number: AnyNumeric) -> RawJsonb {
    run(|| document(Value::Number(Number::Decimal(Decimal::parse(&number.to_string())?))))
}

#[pg_extern(immutable, parallel_safe, strict, requires = ["catalog"])]
fn to_timestamptz(value: RawJsonb) -> Option<TimestampWithTimeZone> {
    run(|| {
        let millis = match of_any_form(&value)? {
            Value::Null => return Ok(None),
            Value::Date(millis) => millis,
            Value::ObjectId([a, b, c, d, ..]) => i64::from(i32::from_be_bytes([a, b, c, d])) * 1000,
            other => {
                return Err(error!(Kind::TypeMismatch, "a value of type {} has no time", other.type_name())
                    .with_hint("It must be a date or an ObjectId."));
            }
        };
        let micros = millis.checked_sub(EPOCH_MS).and_then(|millis| millis.checked_mul(1000));
        let at = micros.and_then(|micros| TimestampWithTimeZone::try_from(micros).ok());
        at.map(Some).ok_or_else(|| error!(Kind::BadValue, "the date is outside of PostgreSQL's timestamps"))
    })
}

#[pg_extern(immutable, parallel_safe, strict, requires = ["catalog"])]
fn to_numeric(value: RawJsonb) -> Option<AnyNumeric> {
    run(|| {
        let text = match of_any_form(&value)? {
            Value::Null => return Ok(None),
            Value::Number(Number::Int(number, _)) => number.to_string(),
            Value::Number(Number::Decimal(number)) => number.to_string(),
            Value::Number(Number::Double(number)) if number.is_nan() => "NaN".to_owned(),
            Value::Number(Number::Double(number)) if number.is_infinite() => {
                if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
            }
            Value::Number(Number::Double(number)) => number.to_string(),
            other => {
                bail!(Kind::TypeMismatch, "a value of type {} is no number", other.type_name());
            }
        };
        let number = AnyNumeric::from_str(&text);
        number.map(Some).map_err(|_| error!(Kind::BadValue, "{text} is outside of PostgreSQL's numeric"))
    })
}

/// MongoDB's code in the DETAIL of an error, which is `MongoDB error 11000 (DuplicateKey).`; null for another DETAIL.
#[pg_extern(immutable, parallel_safe, strict, requires = ["catalog"])]
fn error_code(detail: &str) -> Option<i32> {
    report::code(detail)
}
