//! Values for code without `unsafe`: the types of columns that a foreign table may have, and their datums as owned values.

use crate::pg::datum::jsonb::{detoasted_bytes, new_varlena};
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind as ErrorKind;
use pgrx::{FromDatum, IntoDatum, pg_sys};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

/// A type that is not an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scalar {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Numeric,
    Text,
    Date,
    Timestamp,
    TimestampTz,
    Uuid,
    Bytea,
    Json,
    Jsonb,
}

/// The type of a column or of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub scalar: Scalar,
    pub is_array: bool,
    /// the largest number of characters, for `varchar(n)`
    pub length: Option<usize>,
    /// the precision and scale, for `numeric(p, s)`, which rounds values
    pub rounding: Option<(i64, i64)>,
}

/// A value that is not NULL.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    /// as text, with `NaN` and `Infinity`
    Numeric(String),
    Text(String),
    /// days since 2000; the least and the greatest stand for the infinities
    Date(i32),
    /// microseconds since 2000; the least and the greatest stand for the infinities
    Timestamp(i64),
    Uuid([u8; 16]),
    Bytes(Vec<u8>),
    /// a jsonb's root container, of any depth
    Jsonb(Vec<u8>),
    /// the text of a json
    Json(String),
    Array(Vec<Option<SqlValue>>),
    /// the quotient of two integers, as numeric
    Quotient(String, i64),
    /// an operand that EXPLAIN does not know, by its number
    Unknown(usize),
}

impl Scalar {
    fn of(oid: pg_sys::Oid) -> Option<Self> {
        Some(match oid {
            pg_sys::BOOLOID => Self::Bool,
            pg_sys::INT2OID => Self::Int2,
            pg_sys::INT4OID => Self::Int4,
            pg_sys::INT8OID => Self::Int8,
            pg_sys::FLOAT4OID => Self::Float4,
            pg_sys::FLOAT8OID => Self::Float8,
            pg_sys::NUMERICOID => Self::Numeric,
            pg_sys::TEXTOID | pg_sys::VARCHAROID => Self::Text,
            pg_sys::DATEOID => Self::Date,
            pg_sys::TIMESTAMPOID => Self::Timestamp,
            pg_sys::TIMESTAMPTZOID => Self::TimestampTz,
            pg_sys::UUIDOID => Self::Uuid,
            pg_sys::BYTEAOID => Self::Bytea,
            pg_sys::JSONOID => Self::Json,
            pg_sys::JSONBOID => Self::Jsonb,
            _ => return None,
        })
    }

    fn oid(self) -> pg_sys::Oid {
        match self {
            Self::Bool => pg_sys::BOOLOID,
            Self::Int2 => pg_sys::INT2OID,
            Self::Int4 => pg_sys::INT4OID,
            Self::Int8 => pg_sys::INT8OID,
            Self::Float4 => pg_sys::FLOAT4OID,
            Self::Float8 => pg_sys::FLOAT8OID,
            Self::Numeric => pg_sys::NUMERICOID,
            Self::Text => pg_sys::TEXTOID,
            Self::Date => pg_sys::DATEOID,
            Self::Timestamp => pg_sys::TIMESTAMPOID,
            Self::TimestampTz => pg_sys::TIMESTAMPTZOID,
            Self::Uuid => pg_sys::UUIDOID,
            Self::Bytea => pg_sys::BYTEAOID,
            Self::Json => pg_sys::JSONOID,
            Self::Jsonb => pg_sys::JSONBOID,
        }
    }
}

impl Kind {
    /// The type with this OID; None for one that a column cannot have.
    pub(super) fn of(oid: pg_sys::Oid, modifier: i32) -> Option<Self> {
        // SAFETY: a syscache look-up; InvalidOid for a type that is no array.
        let element = unsafe { pg_sys::get_element_type(oid) };
        let is_array = element != pg_sys::InvalidOid;
        // Excludes `int2vector`, which has elements, too, but must have one dimension from 0, and no NULL.
        // SAFETY: a syscache look-up.
        if is_array && unsafe { pg_sys::get_array_type(element) } != oid {
            return None;
        }
        let scalar = Scalar::of(if is_array { element } else { oid })?;
        let limited = scalar == Scalar::Text && modifier >= pg_sys::VARHDRSZ as i32;
        let length = limited.then(|| modifier as usize - pg_sys::VARHDRSZ);
        // MongoDB's dates have milliseconds. A type with fewer digits would round them, and compare differently.
        let rounds_dates = matches!(scalar, Scalar::Timestamp | Scalar::TimestampTz) && (0..3).contains(&modifier);
        let rounding = (scalar == Scalar::Numeric && modifier >= pg_sys::VARHDRSZ as i32).then(|| {
            let packed = modifier - pg_sys::VARHDRSZ as i32;
            // The scale is a number of 11 bits with a sign.
            (i64::from(packed >> 16 & 0xFFFF), i64::from((packed & 0x7FF ^ 0x400) - 0x400))
        });
        (!rounds_dates).then_some(Self { scalar, is_array, length, rounding })
    }
}

/// Makes a datum in the current memory context. `modifier` is the column's, which only numeric uses.
///
/// # Safety
/// In a transaction. The datum is used as one of this type.
pub(super) unsafe fn to_datum(value: &SqlValue, kind: Kind, modifier: i32) -> Result<pg_sys::Datum> {
    if let (SqlValue::Array(items), true) = (value, kind.is_array) {
        // SAFETY: promised by the caller.
        return unsafe { array_to_datum(items, kind, modifier) };
    }
    Ok(match (value, kind.scalar) {
        (SqlValue::Bool(value), Scalar::Bool) => pg_sys::Datum::from(*value),
        (SqlValue::Int(value), Scalar::Int2) => pg_sys::Datum::from(*value as i16),
        (SqlValue::Int(value), Scalar::Int4) => pg_sys::Datum::from(*value as i32),
        (SqlValue::Int(value), Scalar::Int8) => pg_sys::Datum::from(*value),
        (SqlValue::Float(value), Scalar::Float4) => (*value as f32).into_datum().unwrap_or(0.into()),
        (SqlValue::Float(value), Scalar::Float8) => value.into_datum().unwrap_or(0.into()),
        (SqlValue::Numeric(text), Scalar::Numeric) => numeric(text, modifier),
        (SqlValue::Quotient(dividend, divisor), Scalar::Numeric) => {
            let arguments = [Some(numeric(dividend, -1)), Some(numeric(&divisor.to_string(), -1))];
            // SAFETY: a function of two numerics.
            unsafe { pgrx::direct_function_call_as_datum(pg_sys::numeric_div, &arguments) }.unwrap_or(0.into())
        }
        (SqlValue::Text(text) | SqlValue::Json(text), Scalar::Text | Scalar::Json) => {
            new_varlena(text.as_bytes()).into()
        }
        (SqlValue::Date(days), Scalar::Date) => pg_sys::Datum::from(*days),
        (SqlValue::Timestamp(micros), Scalar::Timestamp | Scalar::TimestampTz) => pg_sys::Datum::from(*micros),
        (SqlValue::Uuid(bytes), Scalar::Uuid) => {
            // SAFETY: 16 bytes in the current memory context.
            unsafe {
                let copy: *mut u8 = pg_sys::palloc(bytes.len()).cast();
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
                copy.into()
            }
        }
        (SqlValue::Bytes(bytes), Scalar::Bytea) | (SqlValue::Jsonb(bytes), Scalar::Jsonb) => new_varlena(bytes).into(),
        _ => return Err(Error::new(ErrorKind::InternalError, "a value has another type than its column")),
    })
}

/// Makes an array's datum.
///
/// # Safety
/// The same as for [`to_datum`].
unsafe fn array_to_datum(items: &[Option<SqlValue>], kind: Kind, modifier: i32) -> Result<pg_sys::Datum> {
    // SAFETY: promised by the caller; the vectors have as many entries as are said.
    unsafe {
        let element = kind.scalar.oid();
        let (mut length, mut by_value, mut align) = (0, false, 0);
        pg_sys::get_typlenbyvalalign(element, &raw mut length, &raw mut by_value, &raw mut align);
        let one = Kind { is_array: false, ..kind };
        let mut datums = Vec::with_capacity(items.len());
        let mut nulls = Vec::with_capacity(items.len());
        for item in items {
            nulls.push(item.is_none());
            datums.push(match item {
                Some(item) => to_datum(item, one, modifier)?,
                None => pg_sys::Datum::from(0),
            });
        }
        let mut dimensions = [i32::try_from(items.len()).unwrap_or(i32::MAX)];
        let mut bounds = [1];
        let array = if items.is_empty() {
            pg_sys::construct_empty_array(element)
        } else {
            pg_sys::construct_md_array(
                datums.as_mut_ptr(),
                nulls.as_mut_ptr(),
                1,
                dimensions.as_mut_ptr(),
                bounds.as_mut_ptr(),
                element,
                i32::from(length),
                by_value,
                align,
            )
        };
        Ok(pg_sys::Datum::from(array))
    }
}

fn numeric(text: &str, modifier: i32) -> pg_sys::Datum {
    let text = CString::new(text).unwrap_or_default();
    let arguments = [Some(text.as_ptr().into()), Some(pg_sys::Datum::from(0)), Some(pg_sys::Datum::from(modifier))];
    // SAFETY: numeric's input function: a C string, an unused OID, and the modifier.
    unsafe { pgrx::direct_function_call_as_datum(pg_sys::numeric_in, &arguments) }.unwrap_or(0.into())
}

/// Reads a datum that is not null; None for a type that a column cannot have. The dimensions of an array are lost.
///
/// # Safety
/// In a transaction. The datum has this type.
pub(super) unsafe fn of_datum(datum: pg_sys::Datum, oid: pg_sys::Oid) -> Option<SqlValue> {
    let kind = Kind::of(oid, -1)?;
    // SAFETY: promised by the caller.
    unsafe {
        if !kind.is_array {
            return scalar_of_datum(datum, kind.scalar);
        }
        let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
        let (mut length, mut by_value, mut align) = (0, false, 0);
        pg_sys::get_typlenbyvalalign((*array).elemtype, &raw mut length, &raw mut by_value, &raw mut align);
        let (mut datums, mut nulls, mut count) = (null_mut(), null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            (*array).elemtype,
            i32::from(length),
            by_value,
            align,
            &raw mut datums,
            &raw mut nulls,
            &raw mut count,
        );
        let items = (0..count as usize).map(|at| {
            if *nulls.add(at) { Some(None) } else { scalar_of_datum(*datums.add(at), kind.scalar).map(Some) }
        });
        items.collect::<Option<Vec<_>>>().map(SqlValue::Array)
    }
}

/// The number of an array's elements.
///
/// # Safety
/// An array.
pub(super) unsafe fn elements(datum: pg_sys::Datum) -> usize {
    // SAFETY: promised by the caller; the lengths of the dimensions follow the header.
    unsafe {
        let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
        usize::try_from(pg_sys::ArrayGetNItems((*array).ndim, array.add(1).cast())).unwrap_or(usize::MAX)
    }
}

/// True for an array that [`of_datum`] would change: one of several dimensions, or one whose first element has another number than 1.
///
/// # Safety
/// An array.
pub(super) unsafe fn has_dimensions(datum: pg_sys::Datum) -> bool {
    // SAFETY: promised by the caller; the lengths of the dimensions, and then their first numbers, follow the header.
    unsafe {
        let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
        let bounds = array.add(1).cast::<i32>();
        (*array).ndim > 1 || (*array).ndim == 1 && *bounds.add(1) != 1
    }
}

/// # Safety
/// The same as for [`of_datum`].
unsafe fn scalar_of_datum(datum: pg_sys::Datum, scalar: Scalar) -> Option<SqlValue> {
    // SAFETY: promised by the caller.
    unsafe {
        Some(match scalar {
            Scalar::Bool => SqlValue::Bool(bool::from_datum(datum, false)?),
            Scalar::Int2 => SqlValue::Int(i16::from_datum(datum, false)?.into()),
            Scalar::Int4 => SqlValue::Int(i32::from_datum(datum, false)?.into()),
            Scalar::Int8 => SqlValue::Int(i64::from_datum(datum, false)?),
            Scalar::Float4 => SqlValue::Float(f32::from_datum(datum, false)?.into()),
            Scalar::Float8 => SqlValue::Float(f64::from_datum(datum, false)?),
            Scalar::Numeric => {
                let text = pgrx::direct_function_call_as_datum(pg_sys::numeric_out, &[Some(datum)])?;
                SqlValue::Numeric(CStr::from_ptr(text.cast_mut_ptr()).to_string_lossy().into_owned())
            }
            Scalar::Text => SqlValue::Text(String::from_utf8_lossy(detoasted_bytes(datum)).into_owned()),
            Scalar::Json => SqlValue::Json(String::from_utf8_lossy(detoasted_bytes(datum)).into_owned()),
            Scalar::Date => SqlValue::Date(datum.value() as i32),
            Scalar::Timestamp | Scalar::TimestampTz => SqlValue::Timestamp(datum.value() as i64),
            Scalar::Uuid => {
                let bytes: *const [u8; 16] = datum.cast_mut_ptr();
                SqlValue::Uuid(*bytes)
            }
            Scalar::Bytea => SqlValue::Bytes(detoasted_bytes(datum).to_vec()),
            Scalar::Jsonb => SqlValue::Jsonb(detoasted_bytes(datum).to_vec()),
        })
    }
}
