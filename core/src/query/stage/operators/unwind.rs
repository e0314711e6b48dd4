//! `$unwind`: returns a document for each element of an array.

use crate::budget;
use crate::error::{Result, bail, ensure, error};
use crate::query::stage::fields::{Fields, Written};
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Shape, Unwound};
use crate::query::stage::runtime::stream::{Input, Stream, document};
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::raw::{self, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::order::Class;
use crate::values::path;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::sync::Arc;

/// `$unwind`
#[derive(Debug)]
struct Unwind {
    path: String,
    /// true if the path is a single name
    is_at_top: bool,
    options: Unwound,
}

impl Operation for Unwind {
    fn fields(&self) -> Fields {
        let mut fields = Fields::kept([self.path.clone()]);
        fields.written = Written::Only(std::iter::once(self.path.clone()).chain(self.options.index.clone()).collect());
        fields
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, _: &Context) -> Result<Input<'s>> {
        Ok(Box::new(Unwinding { input, stage: self, next: None, made: Vec::new(), is_made: false }))
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Unwind(&self.path, &self.options)
    }
}

struct Unwinding<'s> {
    input: Input<'s>,
    stage: Arc<Unwind>,
    /// the position of the next element; None if the input must advance
    next: Option<Next>,
    made: Vec<u8>,
    /// false if the document is the input's
    is_made: bool,
}

/// An element of the array that is being unwound.
#[derive(Clone, Copy, Debug)]
struct Next {
    /// the position of the array's field in the document; None if the array is not at the top
    field: Option<usize>,
    /// the position in the array
    element: usize,
}

impl Unwinding<'_> {
    /// The value at the path, and the position of its field if that is at the top.
    fn value<'d>(&self, document: RawObject<'d>) -> Option<(Option<usize>, RawValue<'d>)> {
        let path = &self.stage.path;
        match self.stage.is_at_top {
            true => document.find(path).map(|(field, value)| (Some(field), value)),
            false => path::value_at(document, path).map(|value| (None, value)),
        }
    }

    /// Makes the document of the next element; false if there is none.
    fn next_element(&mut self) -> Result<bool> {
        let Some(Next { field, element: position }) = self.next else { return Ok(false) };
        let (document, path) = (document(&self.input)?, &self.stage.path);
        let array = match field {
            Some(field) => document.value_at(field),
            None => path::value_at(document, path),
        };
        let element = match array {
            Some(RawValue::Array(array)) => array.get(position),
            _ => None,
        };
        let Some(element) = element else {
            self.next = None;
            return Ok(false);
        };
        match field {
            Some(field) => write::edited_into(document, &[(field, Part::Raw(element))], &mut self.made)?,
            None => self.made = write::document(&with(document, path, Some(Part::Raw(element))))?,
        }
        self.is_made = true;
        if let Some(indexed) = self.indexed(&self.made, Value::Number(Number::long(position as i64)))? {
            self.made = indexed;
        }
        self.next = Some(Next { field, element: position + 1 });
        Ok(true)
    }

    /// Adds the element's position, if the stage has `includeArrayIndex`.
    fn indexed(&self, bytes: &[u8], position: Value) -> Result<Option<Vec<u8>>> {
        let wanted = self.stage.options.index.as_ref().zip(raw::document(bytes));
        wanted.map(|(path, document)| write::document(&with(document, path, Some(Part::Owned(position))))).transpose()
    }

    /// Makes the result for a document without an element to unwind. `without`: removes the field, which is an empty array.
    fn make_whole(&mut self, without: bool) -> Result<()> {
        let document = document(&self.input)?;
        let less = without.then(|| write::document(&with(document, &self.stage.path, None))).transpose()?;
        let indexed = self.indexed(less.as_deref().unwrap_or(document.bytes()), Value::Null)?;
        let made = indexed.or(less);
        self.is_made = made.is_some();
        self.made = made.unwrap_or_default();
        Ok(())
    }
}

impl Stream for Unwinding<'_> {
    fn advance(&mut self) -> Result<bool> {
        loop {
            budget::step();
            if self.next_element()? {
                return Ok(true);
            }
            if !self.input.advance()? {
                return Ok(false);
            }
            let (has_value, is_empty) = match self.value(document(&self.input)?) {
                Some((_, RawValue::Array(array))) if array.is_empty() => (false, true),
                Some((field, RawValue::Array(_))) => {
                    self.next = Some(Next { field, element: 0 });
                    continue;
                }
                value => (value.is_some_and(|(_, value)| Class::of_raw(value) != Class::Null), false),
            };
            if has_value || self.stage.options.preserves {
                self.make_whole(is_empty)?;
                return Ok(true);
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        if self.is_made { &self.made } else { self.input.bytes() }
    }
}

/// Returns the document with a new value at a path, or, for None, without the path. A value on the path that is not a document is
/// replaced by a document, or removed.
pub(in crate::query::stage) fn with<'d>(document: RawObject<'d>, path: &'d str, value: Option<Part<'d>>) -> Part<'d> {
    let (head, rest) = path::split(path);
    let found = document.find(head);
    let part = match (rest, found) {
        (None, _) => value,
        (Some(rest), Some((_, inner))) if path::embedded(inner).is_some() => {
            path::embedded(inner).map(|inner| with(inner, rest, value))
        }
        (Some(rest), _) => value.map(|value| nested(rest, value)),
    };
    match (part, found) {
        (Some(part), Some((position, _))) => Part::Edited(document, vec![(position, part)]),
        (part, _) => {
            let others = document.in_order().filter(|(name, _)| *name != head);
            let others = others.map(|(name, value)| (Cow::Borrowed(name), Part::Raw(value)));
            Part::Object(others.chain(part.map(|part| (Cow::Borrowed(head), part))).collect())
        }
    }
}

/// Wraps a value into nested documents, one for each name of the path.
fn nested<'d>(path: &'d str, value: Part<'d>) -> Part<'d> {
    path.rsplit('.').fold(value, |inner, name| Part::Object(vec![(Cow::Borrowed(name), inner)]))
}

pub(in crate::query::stage) fn unwind(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let (mut index, mut preserves) = (None, false);
    let path = match json {
        Json::String(_) => Some(json),
        Json::Object(fields) if ext_json::is_document(fields) => {
            let fields =
                parser.named(json, &["path", "includeArrayIndex", "preserveNullAndEmptyArrays"], [15981, 28811])?;
            if let Some(name) = fields.get("includeArrayIndex") {
                let name = name.as_str().filter(|name| !name.is_empty());
                let name = name.ok_or_else(|| {
                    error!(28810, "expected a non-empty string for the includeArrayIndex option to $unwind stage")
                })?;
                ensure!(
                    !name.starts_with('$'),
                    28822,
                    "includeArrayIndex option to $unwind stage should not be prefixed with a '$': {name}"
                );
                path::check_field_path(name)?;
                index = Some(name.to_owned());
            }
            if let Some(flag) = fields.get("preserveNullAndEmptyArrays") {
                let Json::Bool(flag) = flag else {
                    bail!(28809, "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage")
                };
                preserves = *flag;
            }
            fields.get("path")
        }
        _ => bail!(15981, "expected either a string or an object as specification for $unwind stage, got {json}"),
    };
    let path = path.filter(|path| json.is_object() || path.as_str() != Some(""));
    let Some(path) = path else { bail!(28812, "no path specified to $unwind stage") };
    let Json::String(path) = path else { bail!(28808, "expected a string as the path for $unwind stage, got {path}") };
    let Some(path) = path.strip_prefix('$') else {
        bail!(28818, "path option to $unwind stage should be prefixed with a '$': {path}")
    };
    path::check_field_path(path)?;
    Parser::one(Unwind {
        path: path.to_owned(),
        is_at_top: path::split(path).1.is_none(),
        options: Unwound { index, preserves },
    })
}
