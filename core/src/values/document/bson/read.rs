//! Reads BSON into JSON with relaxed Extended JSON in it. The result is the same as that of parsing the document's text. Documents to be
//! inserted are read into owned values instead, without making JSON.
//!
//! RULE: a field whose name begins a value of Extended JSON, such as `$oid`, is refused: as JSON it would be another value. `$regex` is
//! refused only in values that are stored, as elsewhere it is an operator.

use super::super::ext_json::{self, to_json, to_typed_json};
use super::super::nested::Nested;
use super::super::number::{Decimal, Number};
use super::super::value::Value;
use super::*;
use crate::budget::{self, Evaluation};
use crate::error::{Error, Kind, Result, ensure, error};
use crate::json::{Builder, Tree, Trees, Values};
use serde_json::Value as Json;
use std::cell::Cell;

/// The deepest nesting, as for JSON text.
const MAX_LEVELS: usize = 127;

/// The memory limit, as a multiple of an evaluation's: a command has many documents.
const TIMES: usize = 8;

/// Why bytes could not be read.
#[derive(Debug)]
pub enum Failure {
    /// They are not a document.
    Invalid(Error),
    /// A document names this field twice.
    RepeatedField(String),
}

/// A document; and the bytes of the documents in one of its fields, if these are left to the caller.
pub type Split<'a> = (Json, Option<Vec<&'a [u8]>>);

/// Reads a document.
///
/// # Errors
/// `InvalidBSON`, `DocumentTooDeep`; a field that is named twice in a document.
pub fn parse(bytes: &[u8]) -> std::result::Result<Json, Failure> {
    parse_without(bytes, None).map(|(json, _)| json)
}

/// Like [`parse`]. If the field of this name is an array of documents, the result has an empty array instead, and the documents' bytes are
/// returned separately, for [`value`].
///
/// # Errors
/// Those of [`parse`].
pub fn parse_without<'a>(bytes: &'a [u8], field: Option<&str>) -> std::result::Result<Split<'a>, Failure> {
    let repeated = Cell::new(None);
    let target = Plain { builder: Values { repeated: &repeated }, place: Place::InCommand };
    let mut left = None;
    let read = root(bytes, target, |name, elements| {
        left = if field == Some(name) { elements.documents() } else { None };
        left.is_some()
    });
    match read {
        Ok(json) => Ok((json, left)),
        Err(error) => Err(match repeated.take() {
            Some(name) => Failure::RepeatedField(name),
            None => Failure::Invalid(error),
        }),
    }
}

/// Reads a document, and keeps fields that are named twice.
///
/// # Errors
/// `InvalidBSON`, `DocumentTooDeep`.
pub fn parse_tree(bytes: &[u8]) -> Result<Tree> {
    root(bytes, Plain { builder: Trees, place: Place::InCommand }, |_, _| false)
}

/// Reads a document into an owned value, without JSON between.
///
/// # Errors
/// `InvalidBSON`, `DocumentTooDeep`; `Location40413` for a field that is named twice in a document.
pub fn value(bytes: &[u8]) -> Result<Value> {
    root(bytes, Owned, |_, _| false)
}

/// The name of a document's first field, which for a command is its own name. None if there is none.
#[must_use]
pub fn first_name(bytes: &[u8]) -> Option<&str> {
    Reader(bytes.get(SHORTEST..)?).cstring().ok()
}

/// What BSON is read into.
trait Target: Copy {
    type Output;
    type Fields;
    /// The target of a field's value.
    fn within(self, _name: &str, _kind: u8) -> Self {
        self
    }
    /// The target of a document's fields; `first`: the name of the first one.
    fn in_document(self, _first: Option<&str>) -> Self {
        self
    }
    /// The target of an array's elements.
    fn in_array(self) -> Self {
        self
    }
    /// True if an object is stored as it is, and so must not have the name of an operator that is also that of a value.
    fn is_stored(self) -> bool;
    /// A value that is neither an array nor an object.
    fn scalar(self, value: Value) -> Self::Output;
    fn array(self, items: Vec<Self::Output>) -> Result<Self::Output>;
    fn no_fields(self) -> Self::Fields;
    fn add(self, fields: &mut Self::Fields, name: &str, value: Self::Output) -> Result<()>;
    fn object(self, fields: Self::Fields) -> Result<Self::Output>;
    fn code_with_scope(self, code: &str, scope: Self::Fields) -> Result<Self::Output>;
}

/// Where a value is in a command. 64-bit integers that fit 32 bits are read as `{"$numberLong": …}` in values that a command stores, and in
/// expressions. Everywhere else a plain number is expected, whose type makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// the command: pipelines, variables, `updates`, `ops` and `update` may have such values
    InCommand,
    /// an operation of a command
    InOperation,
    /// an update; a replacement, unless its first name is an operator's
    InUpdate,
    /// the argument of `$push` or `$addToSet`
    InPush,
    /// the argument for one path of `$push` or `$addToSet`
    InPushed,
    /// a filter, whose equalities an upsert stores
    InFilter,
    /// a condition for a field of such a filter; a value, unless its first name is an operator's
    InCondition,
    /// a filter whose values are not stored, or a part of one: it may have `$expr`
    InSearch,
    /// a find's projection: conditions and positions beside expressions
    InProjection,
    /// an expression
    InExpression,
    /// in a value that is stored, or compared as a whole: its names are no operators
    Stored,
    Nowhere,
}

/// The other update operators whose arguments are stored or added.
const STORING: &str = "$set $setOnInsert $inc $mul $bit $min $max";

impl Place {
    fn within(self, name: &str, kind: u8) -> Self {
        match self {
            Self::InCommand if matches!(name, "updates" | "ops") => Self::InOperation,
            Self::InCommand if matches!(name, "pipeline" | "let") => Self::InExpression,
            Self::InCommand if name == "update" && kind == DOCUMENT => Self::InUpdate,
            Self::InCommand if name == "update" => Self::InExpression,
            Self::InCommand if name == "query" => Self::InFilter,
            Self::InCommand if matches!(name, "filter" | "deletes") => Self::InSearch,
            Self::InCommand if matches!(name, "projection" | "fields") => Self::InProjection,
            Self::InCommand if name == "documents" => Self::Stored,
            Self::InOperation if matches!(name, "q" | "filter") => Self::InFilter,
            Self::InOperation if matches!(name, "u" | "updateMods") && kind == DOCUMENT => Self::InUpdate,
            Self::InOperation if matches!(name, "u" | "updateMods") => Self::InExpression,
            Self::InOperation if matches!(name, "document" | "c" | "constants") => Self::Stored,
            Self::InUpdate if matches!(name, "$push" | "$addToSet") => Self::InPush,
            Self::InUpdate if STORING.split(' ').any(|operator| operator == name) => Self::Stored,
            Self::InPush => Self::InPushed,
            Self::InPushed if name == "$each" => Self::Stored,
            Self::InFilter | Self::InSearch if name == "$expr" => Self::InExpression,
            Self::InFilter if matches!(name, "$and" | "$or") => Self::InFilter,
            Self::InFilter if !name.starts_with('$') => Self::InCondition,
            Self::InCondition if matches!(name, "$eq" | "$in") => Self::Stored,
            Self::InCondition | Self::InSearch if matches!(name, "$eq" | "$ne") && kind == DOCUMENT => Self::Stored,
            Self::InFilter | Self::InCondition | Self::InSearch => Self::InSearch,
            Self::InProjection if !matches!(name, "$slice" | "$elemMatch") => Self::InProjection,
            Self::InExpression if matches!(name, "$literal" | "$const") => Self::Stored,
            Self::InExpression if !matches!(name, "$slice" | "$position" | "$sort") => Self::InExpression,
            Self::Stored => Self::Stored,
            _ => Self::Nowhere,
        }
    }

    /// The place of a document's fields; `first`: the name of the first one.
    fn in_document(self, first: Option<&str>) -> Self {
        let is_operator = match self {
            Self::InPushed => matches!(first, Some("$each" | "$slice" | "$position" | "$sort")),
            _ => first.is_some_and(|name| name.starts_with('$') && !ext_json::is_reference(name)),
        };
        if is_operator { self } else { self.in_array() }
    }

    /// The place of an array's elements.
    fn in_array(self) -> Self {
        match self {
            Self::InUpdate | Self::InPushed | Self::InCondition => Self::Stored,
            other => other,
        }
    }
}

/// JSON, with relaxed Extended JSON in it.
#[derive(Clone, Copy)]
struct Plain<B> {
    builder: B,
    place: Place,
}

impl<B: Builder> Target for Plain<B> {
    type Output = B::Output;
    type Fields = B::Fields;

    fn within(self, name: &str, kind: u8) -> Self {
        Self { place: self.place.within(name, kind), ..self }
    }

    fn in_document(self, first: Option<&str>) -> Self {
        Self { place: self.place.in_document(first), ..self }
    }

    fn in_array(self) -> Self {
        Self { place: self.place.in_array(), ..self }
    }

    fn is_stored(self) -> bool {
        self.place == Place::Stored
    }

    fn scalar(self, value: Value) -> B::Output {
        use Place::{InCondition, InExpression, InProjection, InPushed, Stored};
        self.builder.scalar(match value {
            Value::String(text) => Json::String(text),
            value if matches!(self.place, InCondition | InExpression | InProjection | InPushed | Stored) => {
                to_typed_json(&value)
            }
            value => to_json(&value),
        })
    }

    fn array(self, items: Vec<B::Output>) -> Result<B::Output> {
        Ok(self.builder.array(items))
    }

    fn no_fields(self) -> B::Fields {
        self.builder.no_fields()
    }

    fn add(self, fields: &mut B::Fields, name: &str, value: B::Output) -> Result<()> {
        self.builder.add(fields, name.to_owned(), value).map_err(|_: serde::de::value::Error| twice(name))
    }

    fn object(self, fields: B::Fields) -> Result<B::Output> {
        Ok(self.builder.object(fields))
    }

    fn code_with_scope(self, code: &str, scope: B::Fields) -> Result<B::Output> {
        let mut fields = self.no_fields();
        self.add(&mut fields, "$code", self.builder.scalar(Json::String(code.to_owned())))?;
        self.add(&mut fields, "$scope", self.builder.object(scope))?;
        self.object(fields)
    }
}

/// Owned values.
#[derive(Clone, Copy)]
struct Owned;

impl Target for Owned {
    type Output = Value;
    type Fields = Vec<(String, Value)>;

    fn is_stored(self) -> bool {
        true
    }

    fn scalar(self, value: Value) -> Value {
        value
    }

    fn array(self, items: Vec<Value>) -> Result<Value> {
        Value::array(items)
    }

    fn no_fields(self) -> Self::Fields {
        Vec::new()
    }

    fn add(self, fields: &mut Self::Fields, name: &str, value: Value) -> Result<()> {
        fields.push((name.to_owned(), value));
        Ok(())
    }

    fn object(self, fields: Self::Fields) -> Result<Value> {
        check_names(&fields)?;
        Value::object(fields)
    }

    fn code_with_scope(self, code: &str, scope: Self::Fields) -> Result<Value> {
        check_names(&scope)?;
        Ok(Value::CodeWithScope(code.to_owned(), Box::new(Nested::new(scope)?)))
    }
}

/// The largest number of fields whose names are compared pairwise; more are sorted.
const FEW: usize = 12;

fn check_names(fields: &[(String, Value)]) -> Result<()> {
    let mut names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
    let repeated = if names.len() <= FEW {
        names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)).map(|(_, name)| *name)
    } else {
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    };
    repeated.map_or(Ok(()), |name| Err(twice(name)))
}

fn twice(name: &str) -> Error {
    error!(Kind::Location(40413), "the field '{name}' is given twice")
}

/// Reads a whole document. Each of its fields that is an array is passed to the closure. If the closure returns true, it has
/// taken the elements, and the result has an empty array.
fn root<'a, T: Target>(
    bytes: &'a [u8],
    target: T,
    mut takes: impl FnMut(&str, Reader<'a>) -> bool,
) -> Result<T::Output> {
    let _evaluation = Evaluation::begin_large(TIMES);
    let mut reader = Reader(bytes);
    let mut elements = reader.elements()?;
    ensure!(reader.0.is_empty(), Kind::InvalidBSON, "{} bytes follow the document", reader.0.len());
    let mut fields = target.no_fields();
    while !elements.0.is_empty() {
        let (kind, name) = elements.field(target)?;
        let rest = Reader(elements.0);
        let value = match kind {
            ARRAY if takes(name, elements.elements()?) => target.array(Vec::new())?,
            ARRAY => {
                elements = rest;
                elements.value(kind, target.within(name, kind), 1)?
            }
            _ => elements.value(kind, target.within(name, kind), 1)?,
        };
        target.add(&mut fields, name, value)?;
    }
    target.object(fields)
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

    /// The elements, if all are documents.
    fn documents(mut self) -> Option<Vec<&'a [u8]>> {
        let mut documents = Vec::new();
        while !self.0.is_empty() {
            budget::step();
            let is_document = self.byte().ok()? == DOCUMENT;
            self.cstring().ok()?;
            let length = Reader(self.0).length().ok()?;
            documents.push(self.take(length).ok().filter(|_| is_document)?);
        }
        Some(documents)
    }

    /// Takes the type and the name of a field.
    fn field<T: Target>(&mut self, target: T) -> Result<(u8, &'a str)> {
        let kind = self.byte()?;
        let name = self.cstring()?;
        if ext_json::is_reserved(name) && (ext_json::NAMES.contains(&name) || target.is_stored()) {
            return Err(error!(Kind::FailedToParse, "the field name '{name}' is that of a type of Extended JSON"));
        }
        Ok((kind, name))
    }

    fn fields<T: Target>(&mut self, target: T, level: usize) -> Result<T::Fields> {
        let mut elements = self.elements()?;
        let target = target.in_document(elements.first_name());
        let mut fields = target.no_fields();
        while !elements.0.is_empty() {
            let (kind, name) = elements.field(target)?;
            let value = elements.value(kind, target.within(name, kind), level)?;
            target.add(&mut fields, name, value)?;
        }
        Ok(fields)
    }

    /// The name of the first field, if it is well formed.
    fn first_name(&self) -> Option<&'a str> {
        let name = self.0.get(1..)?;
        std::str::from_utf8(name.get(..memchr::memchr(0, name)?)?).ok()
    }

    fn items<T: Target>(&mut self, target: T, level: usize) -> Result<T::Output> {
        let mut elements = self.elements()?;
        let target = target.in_array();
        let mut items = Vec::new();
        while !elements.0.is_empty() {
            let kind = elements.byte()?;
            // The names of an array's elements mean nothing; only their order does.
            elements.cstring()?;
            items.push(elements.value(kind, target, level)?);
        }
        target.array(items)
    }

    fn value<T: Target>(&mut self, kind: u8, target: T, level: usize) -> Result<T::Output> {
        budget::step();
        let deeper = || {
            ensure!(
                level < MAX_LEVELS,
                Kind::DocumentTooDeep,
                "The value is nested more than {MAX_LEVELS} levels deep"
            );
            Ok(level + 1)
        };
        let value = match kind {
            DOCUMENT => return target.object(self.fields(target, deeper()?)?),
            ARRAY => return self.items(target, deeper()?),
            CODE_WITH_SCOPE => return self.code_with_scope(target, deeper()?),
            DOUBLE => Value::Number(Number::Double(f64::from_le_bytes(self.array()?))),
            STRING => Value::String(self.string()?.to_owned()),
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
                Value::Binary(subtype, bytes.to_vec())
            }
            UNDEFINED => Value::Undefined,
            OBJECT_ID => Value::ObjectId(self.array()?),
            BOOL => match self.byte()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return Err(invalid("a boolean is neither 0 nor 1")),
            },
            DATE => Value::Date(i64::from_le_bytes(self.array()?)),
            NULL => Value::Null,
            REGEX => {
                let (pattern, options) = (self.cstring()?, self.cstring()?);
                Value::Regex(pattern.to_owned(), ext_json::sorted(options))
            }
            DB_POINTER => Value::DbPointer(self.string()?.to_owned(), self.array()?),
            CODE => Value::Code(self.string()?.to_owned()),
            SYMBOL => Value::Symbol(self.string()?.to_owned()),
            INT32 => Value::Number(Number::int(self.i32()?.into())),
            TIMESTAMP => {
                let (increment, time) = (self.u32()?, self.u32()?);
                Value::Timestamp(time, increment)
            }
            INT64 => Value::Number(Number::long(i64::from_le_bytes(self.array()?))),
            DECIMAL => {
                let value: Option<Decimal> = decimal::read(self.array()?);
                Value::Number(Number::Decimal(value.ok_or_else(|| invalid("a decimal"))?))
            }
            MIN_KEY => Value::MinKey,
            MAX_KEY => Value::MaxKey,
            _ => return Err(invalid(&format!("there is no type {kind:#04x}"))),
        };
        Ok(target.scalar(value))
    }

    fn code_with_scope<T: Target>(&mut self, target: T, level: usize) -> Result<T::Output> {
        let mut at = Reader(self.0);
        let length = at.length()?;
        let mut inner = Reader(self.take(length)?.get(4..).ok_or_else(|| invalid("code is cut off"))?);
        let code = inner.string()?;
        let scope = inner.fields(target, level)?;
        ensure!(inner.0.is_empty(), Kind::InvalidBSON, "invalid BSON: the length of code is wrong");
        target.code_with_scope(code, scope)
    }
}
