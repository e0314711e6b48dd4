//! Updates: a replacement, or operators applied to jsonb's bytes.
//!
//! * [`parse`] turns JSON into a tree of modifiers along their paths; its table of operators is the list of what is
//!   understood. Whatever can be refused without a document is refused there.
//! * [`tree`] is that tree and its one walk over a document: what no path touches is copied as it lies.
//! * [`message`] words what MongoDB says about elements of documents.
//!
//! INVARIANT: an update never changes the value at an immutable path (`_id`, the shard key's fields). That is checked
//! on the result, so no operator can get around it.

mod message;
mod parse;
mod tree;

use crate::document::element::Element;
use crate::document::order;
use crate::document::raw::{self, RawObject, RawValue};
use crate::document::value::Value;
use crate::document::write::{self, Part};
use crate::error::{Error, Kind, Result};
use crate::filter::Filter;
use crate::path;
use message::shown;
use std::borrow::Cow;
use tree::{Context, Tree};

/// A parsed update.
#[derive(Debug)]
pub struct Update {
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// the new document as jsonb, with or without `_id`
    Replacement(Vec<u8>),
    /// what happens at which path
    Operators(Tree),
}

impl Update {
    /// Parses `{"$set": …, "$inc": …}` (an update).
    ///
    /// # Errors
    /// `FailedToParse` for an unknown operator or a document without operators, `ConflictingUpdateOperators`,
    /// `EmptyFieldName`, `DollarPrefixedFieldName`, `TypeMismatch` for a wrong argument, `NotImplemented` for an
    /// operator or a positional path that is not understood yet.
    pub fn parse(json: &serde_json::Value) -> Result<Update> {
        Ok(Update { form: Form::Operators(parse::operators(json)?) })
    }

    /// Parses a replacement document.
    ///
    /// # Errors
    /// `FailedToParse` if it is no document, `DollarPrefixedFieldName` if it holds operators; what makes a document
    /// impossible to store.
    pub fn parse_replacement(json: &serde_json::Value) -> Result<Update> {
        Ok(Update { form: Form::Replacement(parse::replacement(json)?) })
    }

    /// True if it replaces the document.
    pub fn is_replacement(&self) -> bool {
        matches!(self.form, Form::Replacement(_))
    }

    /// The new document's jsonb, or None if nothing changes. `_id` is kept.
    ///
    /// # Errors
    /// `ImmutableField` if `_id` or one of `immutable` (dotted paths: the shard key's fields) would change,
    /// `TypeMismatch`, `PathNotViable`, `CannotBackfillArray`, `BadValue` for an integer overflow,
    /// `BSONObjectTooLarge`, `DocumentTooDeep`.
    pub fn apply(&self, document: RawObject<'_>, immutable: &[String]) -> Result<Option<Vec<u8>>> {
        let part = match &self.form {
            Form::Replacement(bytes) => replace(fields_of(bytes), document.get("_id"))?,
            Form::Operators(tree) => {
                match tree.apply(Some(document), &Context { id: document.get("_id"), inserting: false })? {
                    Some(part) => part,
                    None => return Ok(None),
                }
            }
        };
        let bytes = write::document(&part)?;
        if bytes == document.bytes() {
            return Ok(None);
        }
        let after = fields_of(&bytes);
        for path in std::iter::once("_id").chain(immutable.iter().map(String::as_str)) {
            let (old, new) = (path::resolve(document, path), path::resolve(after, path));
            let lost_id = path == "_id" && old.is_some() != new.is_some();
            if lost_id || !same(old, new) {
                return Err(altered(self.is_replacement(), path, new));
            }
        }
        Ok(Some(bytes))
    }

    /// The document that an upsert inserts when nothing matched; without `_id` if neither filter nor update gives one.
    ///
    /// # Errors
    /// As [`Update::apply`]; `NotSingleValueField` if the filter gives a field two values, `NotExactValueField` if it
    /// gives a replacement only a part of `_id`, `ImmutableField` if filter and update give different `_id`s.
    pub fn upsert(&self, filter: &Filter) -> Result<Vec<u8>> {
        match &self.form {
            Form::Replacement(bytes) => {
                let id = exact_id(filter)?.map(|id| write::value(&id)).transpose()?;
                write::document(&replace(fields_of(bytes), id.as_deref().map(raw::root))?)
            }
            Form::Operators(tree) => {
                let nothing = Context { id: None, inserting: true };
                let equalities = parse::equalities(filter.upsert_fields()?)?;
                let base = equalities.apply(None, &nothing)?.unwrap_or(Part::Object(Vec::new()));
                let base = write::document(&base)?;
                let document = fields_of(&base);
                let id = document.get("_id");
                let Some(part) = tree.apply(Some(document), &Context { id, inserting: true })? else {
                    return Ok(base);
                };
                let bytes = write::document(&part)?;
                let new = fields_of(&bytes).get("_id");
                if id.is_some() && (new.is_none() || !same(id, new)) {
                    return Err(altered(self.is_replacement(), "_id", new));
                }
                Ok(bytes)
            }
        }
    }
}

/// The replacement with the `_id` of what it replaces.
fn replace<'a>(replacement: RawObject<'a>, id: Option<RawValue<'a>>) -> Result<Part<'a>> {
    if let (Some(old), Some(new)) = (id, replacement.get("_id"))
        && !same(Some(old), Some(new))
    {
        return Err(altered(true, "_id", Some(new)));
    }
    let own = replacement.iter().filter(|(name, _)| id.is_none() || *name != "_id");
    let fields = id.map(|id| ("_id", id)).into_iter().chain(own);
    Ok(Part::Object(fields.map(|(name, value)| (Cow::Borrowed(name), Part::Raw(value))).collect()))
}

/// The `_id` that a filter demands.
fn exact_id(filter: &Filter) -> Result<Option<Value>> {
    let mut id = None;
    for (path, value) in filter.equalities() {
        if path::is_below(path, "_id") {
            let message = format!("field at '_id' must be exactly specified, field at sub-path '{path}' found");
            return Err(Error::new(Kind::NotExactValueField, message));
        }
        if path == "_id" && id.replace(value).is_some() {
            let message = "cannot infer query fields to set, path '_id' is matched twice";
            return Err(Error::new(Kind::NotSingleValueField, message));
        }
    }
    Ok(id)
}

/// The fields of a document that this module wrote.
fn fields_of(bytes: &[u8]) -> RawObject<'_> {
    raw::document(bytes).expect("an update writes objects")
}

fn altered(replacement: bool, path: &str, new: Option<RawValue<'_>>) -> Error {
    let message = match new {
        _ if !replacement => {
            format!("Performing an update on the path '{path}' would modify the immutable field '{path}'")
        }
        Some(new) => format!(
            "After applying the update, the (immutable) field '{path}' was found to have been altered to {path}: {}",
            shown(new)
        ),
        None => format!("After applying the update, the (immutable) field '{path}' was found to have been removed"),
    };
    Error::new(Kind::ImmutableField, message)
}

/// Equality in comparison order; missing equals null, as in a shard key.
fn same(a: Option<RawValue<'_>>, b: Option<RawValue<'_>>) -> bool {
    let element = |value: Option<_>| Element::of(value.unwrap_or(RawValue::Null));
    order::compare_elements(&element(a), &element(b)).is_eq()
}
