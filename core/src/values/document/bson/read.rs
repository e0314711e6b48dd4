//! Reads BSON into JSON with relaxed Extended JSON in it: what parsing the text of the same document gives.
//!
//! RULE: a field whose name begins a value of Extended JSON, such as `$oid`, is refused: as JSON it would be another value.

use super::super::ext_json::{self, to_json};
use super::super::number::{Decimal, Number};
use super::super::value::Value;
use super::*;
use crate::budget::{self, Evaluation};
use crate::error::{Error, Kind, Result, ensure, error};
use crate::json::{Builder, Tree, Trees, Values};
use serde_json::Value as Json;
use std::cell::Cell;

/// The deepest nesting, which is that of JSON text.
const MAX_LEVELS: usize = 127;

/// The memory limit, as a multiple of an evaluation's: a command has many documents.
const TIMES: usize = 8;

/// Bytes that were not read.
#[derive(Debug)]
pub enum Failure {
    /// They are no document.
    Invalid(Error),
    /// A document names this field twice.
    RepeatedField(String),
}

/// Reads a document.
///
/// # Errors
/// `InvalidBSON`, `DocumentTooDeep`; a field that is named twice in a document.
pub fn parse(bytes: &[u8]) -> std::result::Result<Json, Failure> {
    let repeated = Cell::new(None);
    root(bytes, Values { repeated: &repeated }).map_err(|error| match repeated.take() {
        Some(name) => Failure::RepeatedField(name),
        None => Failure::Invalid(error),
    })
}

/// Reads a document, and keeps fields that are named twice.
///
/// # Errors
/// `InvalidBSON`, `DocumentTooDeep`.
pub fn parse_tree(bytes: &[u8]) -> Result<Tree> {
    root(bytes, Trees)
}

/// The name of a document's first field, which for a command is its own name. None if there is none.
#[must_use]
pub fn first_name(bytes: &[u8]) -> Option<&str> {
    Reader(bytes.get(SHORTEST..)?).cstring().ok()
}

fn root<B: Builder>(bytes: &[u8], builder: B) -> Result<B::Output> {
    let _evaluation = Evaluation::begin_large(TIMES);
    let mut reader = Reader(bytes);
    let value = reader.document(builder, 1)?;
    ensure!(reader.0.is_empty(), Kind::InvalidBSON, "{} bytes follow the document", reader.0.len());
    Ok(value)
}

/// The bytes that have not been read.
struct Reader<'a>(&'a [u8]);

fn invalid(what: &str) -> Error {
    error!(Kind::InvalidBSON, "invalid BSON: {what}")
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| invalid("a value is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| invalid("a value is cut off"))
    }

    fn byte(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn length(&mut self) -> Result<usize> {
        usize::try_from(self.i32()?).map_err(|_| invalid("a length is negative"))
    }

    fn utf8(bytes: &'a [u8]) -> Result<&'a str> {
        budget::bytes(bytes.len());
        std::str::from_utf8(bytes).map_err(|_| invalid("a string is not UTF-8"))
    }

    fn cstring(&mut self) -> Result<&'a str> {
        let end = memchr::memchr(0, self.0).ok_or_else(|| invalid("a name has no end"))?;
        let bytes = self.take(end)?;
        self.take(1)?;
        Self::utf8(bytes)
    }

    fn string(&mut self) -> Result<&'a str> {
        let length = self.length()?;
        let bytes = self.take(length)?.strip_suffix(&[0]).ok_or_else(|| invalid("a string has no end"))?;
        Self::utf8(bytes)
    }

    /// Takes the elements of a document or array.
    fn elements(&mut self) -> Result<Reader<'a>> {
        let mut at = Reader(self.0);
        let length = at.length()?;
        ensure!(length >= SHORTEST, Kind::InvalidBSON, "invalid BSON: a document of {length} bytes");
        let bytes = self.take(length)?.strip_suffix(&[0]).ok_or_else(|| invalid("a document has no end"))?;
        Ok(Reader(bytes.get(4..).unwrap_or_default()))
    }

    fn document<B: Builder>(&mut self, builder: B, level: usize) -> Result<B::Output> {
        let mut elements = self.elements()?;
        let mut fields = builder.no_fields();
        while !elements.0.is_empty() {
            let kind = elements.byte()?;
            let name = elements.cstring()?;
            if name.starts_with('$') && ext_json::NAMES.contains(&name) {
                return Err(error!(Kind::FailedToParse, "the field name '{name}' is that of a type of Extended JSON"));
            }
            let value = elements.value(kind, builder, level)?;
            add(builder, &mut fields, name, value)?;
        }
        Ok(builder.object(fields))
    }

    fn items<B: Builder>(&mut self, builder: B, level: usize) -> Result<B::Output> {
        let mut elements = self.elements()?;
        let mut items = Vec::new();
        while !elements.0.is_empty() {
            let kind = elements.byte()?;
            // The names of an array's elements mean nothing; only their order does.
            elements.cstring()?;
            items.push(elements.value(kind, builder, level)?);
        }
        Ok(builder.array(items))
    }

    fn value<B: Builder>(&mut self, kind: u8, builder: B, level: usize) -> Result<B::Output> {
        budget::step();
        let extended = |value: Value| to_json(&value);
        let deeper = || {
            ensure!(
                level < MAX_LEVELS,
                Kind::DocumentTooDeep,
                "The value is nested more than {MAX_LEVELS} levels deep"
            );
            Ok(level + 1)
        };
        let json = match kind {
            DOCUMENT => return self.document(builder, deeper()?),
            ARRAY => return self.items(builder, deeper()?),
            CODE_WITH_SCOPE => return self.code_with_scope(builder, deeper()?),
            DOUBLE => extended(Value::Number(Number::Double(f64::from_le_bytes(self.array()?)))),
            STRING => Json::String(self.string()?.to_owned()),
            BINARY => {
                let (length, subtype) = (self.length()?, self.byte()?);
                let mut bytes = self.take(length)?;
                if subtype == OLD_BINARY {
                    let mut inner = Reader(bytes);
                    let same = inner.length()? == inner.0.len();
                    ensure!(same, Kind::InvalidBSON, "invalid BSON: the length of an old binary is wrong");
                    bytes = inner.0;
                }
                budget::room_for(3 * bytes.len());
                extended(Value::Binary(subtype, bytes.to_vec()))
            }
            UNDEFINED => extended(Value::Undefined),
            OBJECT_ID => extended(Value::ObjectId(self.array()?)),
            BOOL => match self.byte()? {
                0 => Json::Bool(false),
                1 => Json::Bool(true),
                _ => return Err(invalid("a boolean is neither 0 nor 1")),
            },
            DATE => extended(Value::Date(i64::from_le_bytes(self.array()?))),
            NULL => Json::Null,
            REGEX => {
                let (pattern, options) = (self.cstring()?, self.cstring()?);
                extended(Value::Regex(pattern.to_owned(), options.to_owned()))
            }
            DB_POINTER => extended(Value::DbPointer(self.string()?.to_owned(), self.array()?)),
            CODE => extended(Value::Code(self.string()?.to_owned())),
            SYMBOL => extended(Value::Symbol(self.string()?.to_owned())),
            INT32 => Json::from(self.i32()?),
            TIMESTAMP => {
                let (increment, time) = (self.u32()?, self.u32()?);
                extended(Value::Timestamp(time, increment))
            }
            INT64 => Json::from(i64::from_le_bytes(self.array()?)),
            DECIMAL => {
                let value: Option<Decimal> = decimal::read(self.array()?);
                extended(Value::Number(Number::Decimal(value.ok_or_else(|| invalid("a decimal"))?)))
            }
            MIN_KEY => extended(Value::MinKey),
            MAX_KEY => extended(Value::MaxKey),
            _ => return Err(invalid(&format!("there is no type {kind:#04x}"))),
        };
        Ok(builder.scalar(json))
    }

    fn code_with_scope<B: Builder>(&mut self, builder: B, level: usize) -> Result<B::Output> {
        let mut at = Reader(self.0);
        let length = at.length()?;
        let mut inner = Reader(self.take(length)?.get(4..).ok_or_else(|| invalid("code is cut off"))?);
        let code = inner.string()?;
        let scope = inner.document(builder, level)?;
        ensure!(inner.0.is_empty(), Kind::InvalidBSON, "invalid BSON: the length of code is wrong");
        let mut fields = builder.no_fields();
        add(builder, &mut fields, "$code", builder.scalar(Json::String(code.to_owned())))?;
        add(builder, &mut fields, "$scope", scope)?;
        Ok(builder.object(fields))
    }
}

fn add<B: Builder>(builder: B, fields: &mut B::Fields, name: &str, value: B::Output) -> Result<()> {
    let twice = |_: serde::de::value::Error| error!(Kind::Location(40413), "the field '{name}' is given twice");
    builder.add(fields, name.to_owned(), value).map_err(twice)
}
