//! Columns of a foreign table, and their values in documents.
//!
//! A column is the value at a path of fields. A missing value and null are NULL. A value *does not fit* if it has another type than the
//! column, or if there is an array on the path, so that the path has several values.

use super::options::{self, OnMismatch, TableOptions};
use crate::pg::error::{Error, Result};
use crate::pg::fdw::value::{Kind, Scalar, SqlValue};
use crate::pg::fdw::{ColumnDefinition, Definition};
use docshard_core::error::{Kind as ErrorKind, bail, error};
use docshard_core::values::document::element::Element;
use docshard_core::values::document::number::{Decimal, Number};
use docshard_core::values::document::raw::{RawObject, RawValue};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, print, write};

/// The days from 1970 to 2000, where PostgreSQL's dates begin.
const EPOCH_DAYS: i64 = 10_957;
pub const DAY_MS: i64 = 86_400_000;
pub const EPOCH_MS: i64 = EPOCH_DAYS * DAY_MS;
/// The range of PostgreSQL's timestamps, in microseconds since 2000.
pub const TIMESTAMPS: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;
/// The range of PostgreSQL's dates, in days since 2000.
pub const DATES: std::ops::Range<i64> = -2_451_545..2_145_031_949;

#[derive(Clone, Debug)]
pub struct Column {
    pub number: i16,
    pub name: String,
    pub kind: Kind,
    /// the dotted path; empty: the whole document
    pub path: String,
    /// the column holds ObjectIds, as text or bytea
    pub is_object_id: bool,
    pub not_null: bool,
}

/// A foreign table with its checked options.
#[derive(Clone, Debug)]
pub struct Layout {
    pub name: String,
    pub options: TableOptions,
    /// a column's number, and the column or the reason why it is invalid
    columns: Vec<(i16, Result<Column>)>,
}

impl Layout {
    pub fn of(definition: Definition) -> Result<Self> {
        let options = options::table(&definition.options)?;
        let columns = definition.columns.into_iter().map(|column| (column.number, Column::of(column))).collect();
        Ok(Self { name: definition.name, options, columns })
    }

    /// The column with this number; None if it is invalid.
    pub fn column(&self, number: i16) -> Option<&Column> {
        self.columns.iter().find(|(known, _)| *known == number)?.1.as_ref().ok()
    }

    /// The column with this number; an error if it is invalid.
    pub fn valid_column(&self, number: i16) -> Result<&Column> {
        match self.columns.iter().find(|(known, _)| *known == number) {
            Some((_, column)) => column.as_ref().map_err(Clone::clone),
            None => bail!(ErrorKind::InternalError, "a column of a foreign table is missing"),
        }
    }

    /// All columns that are valid.
    pub fn valid(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter_map(|(_, column)| column.as_ref().ok())
    }

    /// The columns with these numbers, without dropped ones. An error if one of them is invalid.
    pub fn chosen(&self, numbers: &[i16]) -> Result<Vec<Column>> {
        let chosen = self.columns.iter().filter(|(number, _)| numbers.contains(number));
        chosen.map(|(_, column)| column.clone()).collect()
    }

    /// The numbers of the valid columns.
    pub fn numbers(&self) -> Vec<i16> {
        self.columns.iter().filter(|(_, column)| column.is_ok()).map(|(number, _)| *number).collect()
    }

    /// True if a value that does not fit its column is an error; false if it is read as NULL. In the latter case PostgreSQL must
    /// evaluate conditions again, because shards may evaluate them differently for such a value.
    pub fn is_strict(&self) -> bool {
        self.options.on_mismatch == OnMismatch::Error
    }

    /// The error of a row with a value of this type in a column that cannot have it. `which` follows the type in the message: a space and
    /// the row's description, or nothing.
    pub fn misfit(&self, column: &Column, type_name: &str, which: &str) -> Error {
        let (table, column) = (&self.name, &column.name);
        let error = error!(
            ErrorKind::TypeMismatch,
            "a value of type {type_name}{which} does not fit the column \"{column}\" of the foreign table \"{table}\""
        );
        error.with_hint("Use a column of type jsonb, or the option on_mismatch 'null' of the table.")
    }
}

impl Column {
    fn of(definition: ColumnDefinition) -> Result<Self> {
        let ColumnDefinition { number, name, kind, type_name, not_null, options } = definition;
        let options = options::column(&options)?;
        let Some(kind) = kind else {
            let error = error!(
                ErrorKind::NotImplemented,
                "the column \"{name}\" has the type {type_name}, which a foreign table of docshard cannot have"
            );
            return Err(error.with_hint(
                "Types are boolean, integers, real, double precision, numeric, text, varchar, date, timestamp, timestamptz, uuid, bytea, json and jsonb, and arrays of these.",
            ));
        };
        let path = match options.path {
            Some(path) => path,
            None => {
                options::check_path(&name)?;
                name.clone()
            }
        };
        if options.is_object_id && !matches!(kind.scalar, Scalar::Text | Scalar::Bytea) {
            bail!(ErrorKind::BadValue, "the column \"{name}\" with the type objectId must be text or bytea");
        }
        if path.is_empty() && (kind.is_array || !matches!(kind.scalar, Scalar::Json | Scalar::Jsonb)) {
            bail!(ErrorKind::BadValue, "the column \"{name}\" is the whole document, so it must be jsonb or json");
        }
        Ok(Self { number, name, kind, path, is_object_id: options.is_object_id, not_null })
    }

    /// True if the column is neither an array nor json or jsonb.
    pub fn is_scalar(&self) -> bool {
        !self.kind.is_array && !matches!(self.kind.scalar, Scalar::Json | Scalar::Jsonb)
    }

    /// The first field of the path.
    pub fn field(&self) -> &str {
        self.path.split('.').next().unwrap_or_default()
    }

    /// Reads the column's value in a document.
    pub fn read(&self, document: RawObject<'_>) -> Read {
        if self.path.is_empty() {
            return whole(RawValue::Object(document), self.kind.scalar);
        }
        let mut object = document;
        let mut steps = self.path.split('.').peekable();
        loop {
            let Some(step) = steps.next() else { return Read::Null };
            let Some(value) = object.get(step) else { return Read::Null };
            if steps.peek().is_none() {
                return self.value(value);
            }
            match value {
                RawValue::Object(inner) => object = inner,
                RawValue::Array(_) => return Read::Misfit("array"),
                _ => return Read::Null,
            }
        }
    }

    /// Reads a value that was found at the column's path.
    pub fn value(&self, value: RawValue<'_>) -> Read {
        if matches!(value, RawValue::Null) {
            return Read::Null;
        }
        if !self.kind.is_array {
            return self.scalar(value);
        }
        let RawValue::Array(items) = value else { return Read::Misfit(Element::of(value).type_name()) };
        let mut read = Vec::with_capacity(items.len());
        for item in items.iter() {
            let one = if matches!(item, RawValue::Null) { Read::Null } else { self.scalar(item) };
            read.push(match one {
                Read::Value(value) => Some(value),
                Read::Null => None,
                misfit @ Read::Misfit(_) => return misfit,
            });
        }
        Read::Value(SqlValue::Array(read))
    }

    fn scalar(&self, value: RawValue<'_>) -> Read {
        if matches!(self.kind.scalar, Scalar::Json | Scalar::Jsonb) {
            return whole(value, self.kind.scalar);
        }
        let element = Element::of(value);
        let type_name = element.type_name();
        let fitting = match (self.kind.scalar, element) {
            (Scalar::Bool, Element::Bool(value)) => Some(SqlValue::Bool(value)),
            (Scalar::Int2 | Scalar::Int4 | Scalar::Int8, Element::Number(number)) => {
                let (least, greatest) = self.integers();
                number.as_i64().filter(|value| (least..=greatest).contains(value)).map(SqlValue::Int)
            }
            (Scalar::Float4, Element::Number(number)) => {
                let value = number.to_f64();
                ((value as f32).is_finite() || !value.is_finite()).then_some(SqlValue::Float(value))
            }
            (Scalar::Float8, Element::Number(number)) => Some(SqlValue::Float(number.to_f64())),
            (Scalar::Numeric, Element::Number(number)) => {
                let fits = self.kind.rounding.is_none_or(|rounding| fits_precision(&number, rounding));
                fits.then(|| SqlValue::Numeric(numeric_text(&number)))
            }
            (Scalar::Text, Element::String(text)) if !self.is_object_id => {
                let fits = self.kind.length.is_none_or(|most| text.chars().count() <= most);
                fits.then(|| SqlValue::Text(text.to_owned()))
            }
            (Scalar::Text, Element::ObjectId(id)) if self.is_object_id => Some(SqlValue::Text(hex(&id))),
            (Scalar::Bytea, Element::ObjectId(id)) if self.is_object_id => Some(SqlValue::Bytes(id.to_vec())),
            (Scalar::Bytea, Element::Binary(_, bytes)) if !self.is_object_id => Some(SqlValue::Bytes(bytes)),
            (Scalar::Uuid, Element::Binary(4, bytes)) => bytes.try_into().ok().map(SqlValue::Uuid),
            (Scalar::Date, Element::Date(millis)) if millis.rem_euclid(DAY_MS) == 0 => {
                let days = millis.div_euclid(DAY_MS) - EPOCH_DAYS;
                DATES.contains(&days).then_some(SqlValue::Date(days as i32))
            }
            (Scalar::Timestamp | Scalar::TimestampTz, Element::Date(millis)) => {
                let micros = millis.checked_sub(EPOCH_MS).and_then(|millis| millis.checked_mul(1000));
                micros.filter(|micros| TIMESTAMPS.contains(micros)).map(SqlValue::Timestamp)
            }
            _ => None,
        };
        fitting.map_or(Read::Misfit(type_name), Read::Value)
    }

    /// The least and the greatest value of the column's integer type.
    pub fn integers(&self) -> (i64, i64) {
        match self.kind.scalar {
            Scalar::Int2 => (i16::MIN.into(), i16::MAX.into()),
            Scalar::Int4 => (i32::MIN.into(), i32::MAX.into()),
            _ => (i64::MIN, i64::MAX),
        }
    }
}

/// The value of a column in a document.
#[derive(Debug)]
pub enum Read {
    Null,
    Value(SqlValue),
    /// a value of this type, which does not fit the column
    Misfit(&'static str),
}

fn whole(value: RawValue<'_>, scalar: Scalar) -> Read {
    let Ok(bytes) = jsonb(value) else { return Read::Misfit("value that jsonb cannot hold") };
    if scalar == Scalar::Jsonb {
        return Read::Value(SqlValue::Jsonb(bytes));
    }
    let mut text = Vec::new();
    match print::print(&bytes, &mut text) {
        Some(()) => Read::Value(SqlValue::Json(String::from_utf8_lossy(&text).into_owned())),
        None => Read::Misfit("value that json cannot hold"),
    }
}

/// Converts a value to the bytes of a jsonb. An object or array is copied as it is.
fn jsonb(value: RawValue<'_>) -> Result<Vec<u8>> {
    match value {
        RawValue::Object(object) => Ok(object.bytes().to_vec()),
        RawValue::Array(array) => Ok(array.bytes().to_vec()),
        scalar => write::value(&Value::from_raw(scalar)),
    }
}

fn numeric_text(number: &Number) -> String {
    match number {
        Number::Int(value, _) => value.to_string(),
        Number::Double(value) if value.is_nan() => "NaN".to_owned(),
        Number::Double(value) if value.is_infinite() => if *value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Number::Double(value) => value.to_string(),
        Number::Decimal(value) => value.to_string(),
    }
}

/// True if a number fits `numeric(p, s)`: after it was rounded to the scale, it has at most p - s digits before the point.
fn fits_precision(number: &Number, (precision, scale): (i64, i64)) -> bool {
    let text = match number {
        // In this notation a double has at most 17 digits.
        Number::Double(value) if value.is_finite() => format!("{value:e}"),
        number => numeric_text(number),
    };
    match Decimal::parse(&text) {
        Ok(Decimal::Finite(value)) => {
            let (digits, exponent) = value.round(scale).abs().into_bigint_and_exponent();
            let digits = digits.to_string();
            digits == "0" || i64::try_from(digits.len()).is_ok_and(|count| count - exponent <= precision - scale)
        }
        Ok(_) => text == "NaN",
        Err(_) => false,
    }
}

pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The `_id` of a document as text, for messages.
pub fn id_text(document: RawObject<'_>) -> String {
    document.get("_id").map_or_else(|| "none".to_owned(), |id| ext_json::to_json(&Value::from_raw(id)).to_string())
}
