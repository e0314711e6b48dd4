//! Writes BSON: owned values, and stored documents directly from jsonb.
//!
//! An integer is an int64 if it is a long, else an int32. [`Item::Long`] and [`Item::Double`] force an int64 and a double. Fields
//! of stored documents come in the order that they have kept.

use super::super::element::Element;
use super::super::number::Number;
use super::super::raw::RawValue;
use super::super::value::Value;
use super::*;
use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use std::io::Write as _;

/// The longest reply, in bytes: MongoDB's limit of a message.
pub const MAX_BYTES: usize = 48_000_000;

/// A value to be written.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// An owned value.
    Value(&'a Value),
    /// A value of a stored document.
    Stored(RawValue<'a>),
    /// An int64, however small.
    Long(i64),
    /// A double, also if it is integral.
    Double(f64),
}

/// A document that is being written. Fields come in the order in which they are added.
#[derive(Debug)]
pub struct Writer {
    out: Vec<u8>,
    /// where each document or array begins that is not complete
    open: Vec<usize>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { out: vec![0; 4], open: vec![0] }
    }
}

impl Writer {
    /// Begins a document.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field.
    ///
    /// # Errors
    /// `BSONObjectTooLarge`; `BadValue` for a zero byte in a name, `DocumentTooDeep`.
    pub fn field(&mut self, name: &str, item: Item<'_>) -> Result<()> {
        let from = self.out.len();
        self.out.push(NULL);
        self.name(name)?;
        let kind = self.item(item)?;
        if let Some(at) = self.out.get_mut(from) {
            *at = kind;
        }
        Ok(())
    }

    /// Begins an embedded document; fields go there until [`end`](Self::end).
    ///
    /// # Errors
    /// Those of [`field`](Self::field).
    pub fn begin_document(&mut self, name: &str) -> Result<()> {
        self.out.push(DOCUMENT);
        self.name(name)?;
        self.begin();
        Ok(())
    }

    /// Begins an array; its elements are fields whose names are their positions.
    ///
    /// # Errors
    /// Those of [`field`](Self::field).
    pub fn begin_array(&mut self, name: &str) -> Result<()> {
        self.out.push(ARRAY);
        self.name(name)?;
        self.begin();
        Ok(())
    }

    /// Ends the innermost document or array.
    ///
    /// # Errors
    /// `BSONObjectTooLarge`.
    pub fn end(&mut self) -> Result<()> {
        self.out.push(0);
        self.check_size()?;
        let Some(start) = self.open.pop() else { bail!(Kind::InternalError, "no document is open") };
        let length = i32::try_from(self.out.len() - start).unwrap_or_default().to_le_bytes();
        if let Some(at) = self.out.get_mut(start..start + 4) {
            at.copy_from_slice(&length);
        }
        Ok(())
    }

    /// Ends the document and returns its bytes.
    ///
    /// # Errors
    /// `BSONObjectTooLarge`.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        while !self.open.is_empty() {
            self.end()?;
        }
        Ok(self.out)
    }

    fn begin(&mut self) {
        self.open.push(self.out.len());
        self.out.extend([0; 4]);
    }

    fn check_size(&self) -> Result<()> {
        let fits = self.out.len() <= MAX_BYTES;
        ensure!(fits, Kind::BSONObjectTooLarge, "The reply is larger than {MAX_BYTES} bytes");
        Ok(())
    }

    fn name(&mut self, name: &str) -> Result<()> {
        let holds_zero = name.as_bytes().contains(&0);
        ensure!(!holds_zero, Kind::BadValue, "A name or regular expression holds \\u0000");
        self.out.extend(name.as_bytes());
        self.out.push(0);
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<()> {
        self.binary_length(text.len() + 1)?;
        self.out.extend(text.as_bytes());
        self.out.push(0);
        Ok(())
    }

    fn binary_length(&mut self, length: usize) -> Result<()> {
        let fits = self.out.len().saturating_add(length) <= MAX_BYTES;
        ensure!(fits, Kind::BSONObjectTooLarge, "The reply is larger than {MAX_BYTES} bytes");
        self.out.extend(i32::try_from(length).unwrap_or_default().to_le_bytes());
        Ok(())
    }

    fn number(&mut self, number: &Number) -> Result<u8> {
        Ok(match number {
            Number::Int(value, _) if number.is_long() => {
                self.out.extend(value.to_le_bytes());
                INT64
            }
            Number::Int(value, _) => {
                self.out.extend((*value as i32).to_le_bytes());
                INT32
            }
            Number::Double(value) => {
                self.out.extend(value.to_le_bytes());
                DOUBLE
            }
            Number::Decimal(value) => {
                let bytes = decimal::write(value).ok_or_else(|| error!(Kind::BadValue, "{value} is no decimal128"))?;
                self.out.extend(bytes);
                DECIMAL
            }
        })
    }

    /// Writes a value and returns its type.
    fn item(&mut self, item: Item<'_>) -> Result<u8> {
        budget::step();
        match item {
            Item::Value(value) => self.value(value),
            Item::Stored(value) => self.element(&Element::of(value)),
            Item::Long(value) => {
                self.out.extend(value.to_le_bytes());
                Ok(INT64)
            }
            Item::Double(value) => {
                self.out.extend(value.to_le_bytes());
                Ok(DOUBLE)
            }
        }
    }

    /// Writes a document or array of these elements; the names of an array's are ignored.
    fn nested<'a>(&mut self, elements: impl Iterator<Item = (Option<&'a str>, Item<'a>)>) -> Result<()> {
        let deep = self.open.len() > super::super::MAX_RECURSION;
        ensure!(!deep, Kind::DocumentTooDeep, "The reply is nested too deeply");
        self.begin();
        for (position, (name, item)) in elements.enumerate() {
            let from = self.out.len();
            self.out.push(NULL);
            match name {
                Some(name) => self.name(name)?,
                None => write!(self.out, "{position}\0").map_err(|_| error!(Kind::InternalError, "no memory"))?,
            }
            let kind = self.item(item)?;
            if let Some(at) = self.out.get_mut(from) {
                *at = kind;
            }
        }
        self.end()
    }

    /// Stored documents are mostly of these types; others are written as owned values.
    fn element(&mut self, element: &Element<'_>) -> Result<u8> {
        match element {
            Element::Null => Ok(NULL),
            Element::Number(number) => self.number(number),
            Element::String(text) => self.string(text).map(|()| STRING),
            Element::Object(object) => {
                self.nested(object.in_order().map(|(name, value)| (Some(name), Item::Stored(value))))?;
                Ok(DOCUMENT)
            }
            Element::Array(array) => {
                self.nested(array.iter().map(|value| (None, Item::Stored(value))))?;
                Ok(ARRAY)
            }
            Element::Binary(subtype, bytes) => self.binary(*subtype, bytes),
            Element::CodeWithScope(code, scope) => {
                self.code_with_scope(code, scope.in_order().map(|(name, value)| (Some(name), Item::Stored(value))))
            }
            scalar => self.value(&Value::from_element(scalar)),
        }
    }

    fn value(&mut self, value: &Value) -> Result<u8> {
        Ok(match value {
            Value::Null => NULL,
            Value::MinKey => MIN_KEY,
            Value::MaxKey => MAX_KEY,
            Value::Undefined => UNDEFINED,
            Value::Number(number) => self.number(number)?,
            Value::String(text) => self.string(text).map(|()| STRING)?,
            Value::Object(fields) => {
                self.nested(fields.iter().map(|(name, value)| (Some(name.as_str()), Item::Value(value))))?;
                DOCUMENT
            }
            Value::Array(items) => {
                self.nested(items.iter().map(|value| (None, Item::Value(value))))?;
                ARRAY
            }
            Value::Binary(subtype, bytes) => self.binary(*subtype, bytes)?,
            Value::ObjectId(id) => {
                self.out.extend(id);
                OBJECT_ID
            }
            Value::Bool(value) => {
                self.out.push(u8::from(*value));
                BOOL
            }
            Value::Date(millis) => {
                self.out.extend(millis.to_le_bytes());
                DATE
            }
            Value::Timestamp(time, increment) => {
                self.out.extend(increment.to_le_bytes());
                self.out.extend(time.to_le_bytes());
                TIMESTAMP
            }
            Value::Regex(pattern, options) => {
                self.name(pattern)?;
                self.name(options)?;
                REGEX
            }
            Value::DbPointer(namespace, id) => {
                self.string(namespace)?;
                self.out.extend(id);
                DB_POINTER
            }
            Value::Code(code) => self.string(code).map(|()| CODE)?,
            Value::CodeWithScope(code, scope) => {
                let fields = scope.iter().map(|(name, value)| (Some(name.as_str()), Item::Value(value)));
                self.code_with_scope(code, fields)?
            }
            Value::Symbol(text) => self.string(text).map(|()| SYMBOL)?,
        })
    }

    fn binary(&mut self, subtype: u8, bytes: &[u8]) -> Result<u8> {
        let old = subtype == OLD_BINARY;
        self.binary_length(bytes.len() + if old { 4 } else { 0 })?;
        self.out.push(subtype);
        if old {
            self.binary_length(bytes.len())?;
        }
        self.out.extend(bytes);
        Ok(BINARY)
    }

    fn code_with_scope<'a>(
        &mut self,
        code: &str,
        scope: impl Iterator<Item = (Option<&'a str>, Item<'a>)>,
    ) -> Result<u8> {
        let start = self.out.len();
        self.out.extend([0; 4]);
        self.string(code)?;
        self.nested(scope)?;
        let length = i32::try_from(self.out.len() - start).unwrap_or_default().to_le_bytes();
        if let Some(at) = self.out.get_mut(start..start + 4) {
            at.copy_from_slice(&length);
        }
        Ok(CODE_WITH_SCOPE)
    }
}
