//! A parsed update and its application to a document.
//!
//! INVARIANT: an update never changes `_id`, nor the value at a fixed path. [`Update::apply`] checks the result, whatever the form of the
//! update.
//!
//! RULE: in an existing document only a pipeline sets a field at the root whose name starts with `$`, as in MongoDB. An upsert may insert
//! such a field.

use super::context::Context;
use super::message::shown;
use super::parse;
use super::pipeline;
use super::storable;
use super::tree::Tree;
use crate::budget::{self, Evaluation};
use crate::error::{Error, Kind, Result, bail, error};
use crate::query::environment::Environment;
use crate::query::filter::{ArrayFilter, Filter};
use crate::query::stage::Pipeline;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::field_order::{Keeping, keeps_order};
use crate::values::document::normalise;
use crate::values::document::raw::{self, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::order;
use crate::values::path;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// A parsed update.
#[derive(Debug)]
pub struct Update {
    pub(super) form: Form,
    /// the time, in milliseconds since 1970
    pub(super) now: Option<i64>,
    /// true if the update is of one document whose shard key must not change: a change is the error `ImmutableField`. If false, a change at
    /// a fixed path is the error `InvalidOptions`, which is that of updates of many documents
    pub(super) keeps_key: bool,
    /// true if new fields and objects keep the order in which they are given, also in documents without an order of fields
    pub(super) ordered: bool,
}

#[derive(Debug)]
pub(super) enum Form {
    /// the new document as jsonb; it may lack `_id`
    Replacement(Vec<u8>),
    /// jsonb of a document whose fields are set
    Merge(Vec<u8>),
    /// modifiers by path
    Operators(Box<Operators>),
    /// a pipeline of stages
    Pipeline(Pipeline),
}

#[derive(Debug)]
pub(super) struct Operators {
    tree: Tree,
    /// the conditions of `$[identifier]`
    array_filters: Vec<ArrayFilter>,
    /// the documents' filter, if `$` refers to the element by which they match
    pub(super) filter: Option<Filter>,
    /// the collation by which values are compared
    collator: Option<Arc<Collator>>,
}

impl Operators {
    fn context<'a>(&'a self, document: RawObject<'a>, inserting: bool, now: Option<i64>) -> Context<'a> {
        Context {
            document: Some(document),
            id: document.get("_id"),
            inserting,
            array_filters: &self.array_filters,
            position: self.filter.as_ref().and_then(|filter| filter.position(document)),
            now,
            strings: self.collator.as_deref(),
        }
    }

    /// The changed document; None if nothing changes.
    fn apply<'a>(&'a self, document: RawObject<'a>, inserting: bool, now: Option<i64>) -> Result<Option<Part<'a>>> {
        let context = self.context(document, inserting, now);
        self.tree.check_renames(document, &context)?;
        self.tree.apply(Some(document), &context)
    }
}

impl Update {
    /// True for an update of one document that fails if the document's shard key would change.
    pub fn keeps_key(&self) -> bool {
        self.keeps_key
    }

    /// Parses an update with operators, `{"$set": …, "$inc": …}`.
    ///
    /// # Errors
    /// `FailedToParse` for an unknown operator or a document without operators, `ConflictingUpdateOperators`,
    /// `EmptyFieldName`, `DollarPrefixedFieldName`, `DocumentTooDeep`, `TypeMismatch` and `BadValue` for a wrong argument or path; for
    /// `$pull` those of [`Filter::parse`].
    pub fn parse(json: &serde_json::Value) -> Result<Update> {
        Update::parse_with_array_filters(json, &[])
    }

    /// Like [`Update::parse`], with the conditions of `$[identifier]` in its paths.
    ///
    /// # Errors
    /// Those of [`Update::parse`]; `FailedToParse` for an array filter that is malformed, not used, or given twice;
    /// `BadValue` for an identifier without one.
    pub fn parse_with_array_filters(json: &serde_json::Value, array_filters: &[serde_json::Value]) -> Result<Update> {
        Update::parse_in(json, array_filters, &Environment::default())
    }

    /// Like [`Update::parse_with_array_filters`], with the variables and the collation of a statement; or a pipeline, an array of
    /// stages.
    ///
    /// # Errors
    /// Those of [`Update::parse_with_array_filters`]; for a pipeline `FailedToParse` if there are array filters,
    /// `InvalidOptions` for a stage that updates do not have, and those of its expressions.
    pub fn parse_in(
        json: &serde_json::Value,
        array_filters: &[serde_json::Value],
        environment: &Environment,
    ) -> Result<Update> {
        let _evaluation = Evaluation::begin();
        if let serde_json::Value::Array(stages) = json {
            if !array_filters.is_empty() {
                bail!(Kind::FailedToParse, "arrayFilters may not be specified for pipeline-style updates");
            }
            return Ok(Update {
                form: Form::Pipeline(Pipeline::parse_update(stages, environment)?),
                now: None,
                keeps_key: false,
                ordered: keeps_order(),
            });
        }
        let array_filters = parse::array_filters(array_filters, environment)?;
        let tree = parse::operators(json, &array_filters, environment)?;
        let collator = environment.collator().cloned();
        let operators = Operators { tree, array_filters, filter: None, collator };
        Ok(Update { form: Form::Operators(Box::new(operators)), now: None, keeps_key: false, ordered: keeps_order() })
    }

    /// True if it needs the statement's time: it has `$currentDate`.
    pub fn needs_clock(&self) -> bool {
        matches!(&self.form, Form::Operators(operators) if operators.tree.needs_clock())
    }

    /// True if it needs the documents' filter: one of its paths has `$`.
    pub fn is_positional(&self) -> bool {
        matches!(&self.form, Form::Operators(operators) if operators.tree.is_positional())
    }

    /// True if it could change the value at a path.
    pub fn touches(&self, path: &str) -> bool {
        match &self.form {
            Form::Replacement(_) | Form::Pipeline(_) => true,
            Form::Merge(bytes) => fields_of(bytes).get(path::split(path).0).is_some(),
            Form::Operators(operators) => operators.tree.touches(path),
        }
    }

    /// The replacement document, if it is one.
    pub fn replacement(&self) -> Option<RawObject<'_>> {
        match &self.form {
            Form::Replacement(bytes) => Some(fields_of(bytes)),
            Form::Merge(_) | Form::Operators(_) | Form::Pipeline(_) => None,
        }
    }

    /// False only for a pipeline that could change the top-level field of this path.
    pub fn pipeline_keeps(&self, path: &str) -> bool {
        match &self.form {
            Form::Pipeline(pipeline) => pipeline.keeps(path),
            Form::Replacement(_) | Form::Merge(_) | Form::Operators(_) => true,
        }
    }

    /// True if it could change the value at a path. Unlike [`touches`](Self::touches), this is false for a pipeline that keeps the path's
    /// top-level field.
    pub fn may_change(&self, path: &str) -> bool {
        self.touches(path) && (!matches!(self.form, Form::Pipeline(_)) || !self.pipeline_keeps(path))
    }

    /// Parses a document whose fields an update sets.
    ///
    /// # Errors
    /// `DocumentTooDeep`.
    pub(super) fn parse_merge(json: &serde_json::Value) -> Result<Update> {
        let form = Form::Merge(storable::stored(json)?);
        Ok(Update { form, now: None, keeps_key: false, ordered: keeps_order() })
    }

    /// Parses a replacement document.
    ///
    /// # Errors
    /// `FailedToParse` if it is not a document, `DollarPrefixedFieldName` if it has operators; the errors for documents that cannot be
    /// stored.
    pub fn parse_replacement(json: &serde_json::Value) -> Result<Update> {
        Ok(Update {
            form: Form::Replacement(parse::replacement(json)?),
            now: None,
            keeps_key: false,
            ordered: keeps_order(),
        })
    }

    /// True if it replaces the document.
    pub fn is_replacement(&self) -> bool {
        matches!(self.form, Form::Replacement(_))
    }

    /// The new document's jsonb, which can be stored; None if nothing changes. `_id` is kept.
    ///
    /// # Errors
    /// `ImmutableField` if `_id` would change. If the value at one of `fixed` (the dotted paths of the shard key) would change:
    /// `ImmutableField` if [`keeps_key`](Self::keeps_key), else `InvalidOptions`. Also `TypeMismatch`, `PathNotViable`,
    /// `CannotBackfillArray`, `BadValue` for an integer overflow, `BSONObjectTooLarge`, `DocumentTooDeep`; those of
    /// [`normalise::check_stored`].
    pub fn apply(&self, document: RawObject<'_>, fixed: &[String]) -> Result<Option<Vec<u8>>> {
        // Operators need no setting: they keep the order of each object that has one (`Part::InOrder`, `Part::Edited`).
        let is_ordered = || !matches!(self.form, Form::Operators(_)) && document.order().is_some();
        let _keeping = Keeping::order_if(self.ordered || is_ordered());
        let mut edited = None;
        let bytes = match &self.form {
            Form::Replacement(bytes) => write::document(&replace(fields_of(bytes), document.get("_id"))?)?,
            Form::Merge(bytes) => write::document(&merged(document, fields_of(bytes)))?,
            Form::Operators(operators) => match operators.apply(document, false, self.now)? {
                Some(part) => {
                    let bytes = write::document(&part)?;
                    if let Part::Edited(_, edits) = part {
                        edited = Some(edits);
                    }
                    bytes
                }
                None => return Ok(None),
            },
            Form::Pipeline(pipeline) => pipeline::apply(pipeline, document)?,
        };
        if bytes == document.bytes() {
            return Ok(None);
        }
        let after = fields_of(&bytes);
        match &self.form {
            Form::Replacement(bytes) | Form::Merge(bytes) => storable::check_root(fields_of(bytes))?,
            Form::Operators(operators) => operators.tree.check_root(document, after)?,
            Form::Pipeline(_) => {}
        }
        if self.touches("_id") {
            let (old, new) = (document.get("_id"), after.get("_id"));
            if old.is_some() != new.is_some() || !same(old, new) {
                return Err(altered(self.is_replacement(), "_id", new));
            }
        }
        if fixed.iter().any(|path| self.touches(path)) && changes_any(document, after, fixed) {
            if self.keeps_key {
                bail!(Kind::ImmutableField, "the shard key of the document cannot be changed");
            }
            let message = "Multi-update operations are not allowed when updating the shard key field.";
            return Err(error!(Kind::InvalidOptions, "{message}")
                .with_hint("Change the shard keys of documents one by one, each by an update of one document."));
        }
        match edited {
            Some(edits) => normalise::check_edited(after, edits.iter().map(|(position, _)| *position))?,
            None => normalise::check_stored(&bytes)?,
        }
        Ok(Some(bytes))
    }

    /// The document that an upsert inserts if no document matches; without `_id` if neither filter nor update has one.
    ///
    /// # Errors
    /// Those of [`Update::apply`]; `NotSingleValueField` if the filter has two values of a field, `NotExactValueField` if it has only a
    /// part of a replacement's `_id`, `ImmutableField` if filter and update have different `_id`s.
    pub fn upsert(&self, filter: &Filter) -> Result<Vec<u8>> {
        let _keeping = Keeping::order_if(self.ordered);
        match &self.form {
            Form::Replacement(bytes) => {
                let id = exact_id(filter)?.map(|id| write::value(&id)).transpose()?;
                write::document(&replace(fields_of(bytes), id.as_deref().map(raw::root))?)
            }
            Form::Merge(_) | Form::Operators(_) | Form::Pipeline(_) => {
                let nothing = Context {
                    document: None,
                    id: None,
                    inserting: true,
                    array_filters: &[],
                    position: None,
                    now: None,
                    strings: None,
                };
                let fields = filter.upsert_fields()?;
                let mut places: HashMap<String, usize> = HashMap::with_capacity(fields.len());
                for (place, (path, _)) in fields.iter().enumerate() {
                    budget::step();
                    places.entry(path::split(path).0.to_owned()).or_insert(place);
                }
                let equalities = parse::equalities(fields)?;
                let mut base = equalities.apply(None, &nothing)?.unwrap_or(Part::Object(Vec::new()));
                if let Part::Object(fields) = &mut base {
                    fields.sort_by_cached_key(|(name, _)| places.get(name.as_ref()).copied());
                }
                let base = write::document(&base)?;
                let document = fields_of(&base);
                let id = document.get("_id");
                let bytes = match &self.form {
                    Form::Operators(operators) => match operators.apply(document, true, self.now)? {
                        Some(part) => write::document(&part)?,
                        None => return Ok(base),
                    },
                    Form::Pipeline(pipeline) => pipeline::apply(pipeline, document)?,
                    Form::Merge(bytes) => write::document(&merged(document, fields_of(bytes)))?,
                    Form::Replacement(bytes) => bytes.clone(),
                };
                let new = fields_of(&bytes).get("_id");
                if id.is_some() && (new.is_none() || !same(id, new)) {
                    return Err(altered(self.is_replacement(), "_id", new));
                }
                Ok(bytes)
            }
        }
    }
}

/// True if the documents differ at one of the paths; missing equals null, as in a shard key.
pub fn changes_any(before: RawObject<'_>, after: RawObject<'_>, paths: &[String]) -> bool {
    paths.iter().any(|path| !same(path::resolve(before, path), path::resolve(after, path)))
}

/// The replacement with the `_id` of the replaced document.
fn replace<'a>(replacement: RawObject<'a>, id: Option<RawValue<'a>>) -> Result<Part<'a>> {
    if let (Some(old), Some(new)) = (id, replacement.get("_id"))
        && !same(Some(old), Some(new))
    {
        return Err(altered(true, "_id", Some(new)));
    }
    let own = replacement.in_order().filter(|(name, _)| id.is_none() || *name != "_id");
    let fields = id.map(|id| ("_id", id)).into_iter().chain(own);
    Ok(Part::Object(fields.map(|(name, value)| (Cow::Borrowed(name), Part::Raw(value))).collect()))
}

/// The document with the fields of another one, which replace its own.
fn merged<'a>(document: RawObject<'a>, other: RawObject<'a>) -> Part<'a> {
    let own = document.in_order().map(|(name, value)| (name, other.get(name).unwrap_or(value)));
    let added = other.in_order().filter(|(name, _)| document.get(name).is_none());
    Part::Object(own.chain(added).map(|(name, value)| (Cow::Borrowed(name), Part::Raw(value))).collect())
}

/// The `_id` in a filter's equalities.
fn exact_id(filter: &Filter) -> Result<Option<Value>> {
    let mut id = None;
    for (path, value) in filter.equalities() {
        if path::is_below(path, "_id") {
            bail!(
                Kind::NotExactValueField,
                "field at '_id' must be exactly specified, field at sub-path '{path}' found"
            );
        }
        if path == "_id" && id.replace(value).is_some() {
            bail!(Kind::NotSingleValueField, "cannot infer query fields to set, path '_id' is matched twice");
        }
    }
    Ok(id)
}

/// A document that this module wrote.
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
