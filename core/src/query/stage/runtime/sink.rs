//! The target of a pipeline that ends with `$merge` or `$out`.
//!
//! The stage itself returns its input unchanged. The caller that runs the pipeline asks the stage for its sink, and writes the
//! documents. For `$merge` this module makes the filter for the matching document of the target, and says how to update that document.

use crate::error::{Result, bail, ensure};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::nested::Nested;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::encode::encode_under;
use crate::values::path;
use serde_json::{Map, Value as Json, json};

/// How a pipeline writes its documents.
#[derive(Debug)]
pub enum Sink {
    /// `$merge`: into a collection
    Merge(Box<Merging>),
    /// `$out`: the documents replace a collection
    Out(TargetCollection),
}

impl Sink {
    /// The collection that is written.
    pub fn target(&self) -> &TargetCollection {
        match self {
            Sink::Merge(merging) => &merging.target,
            Sink::Out(target) => target,
        }
    }
}

/// The name of a collection that a stage writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetCollection {
    /// None for the database of the pipeline
    pub database: Option<String>,
    /// not empty
    pub collection: String,
}

impl TargetCollection {
    /// The namespace, for a pipeline in a database.
    pub fn namespace(&self, database: &str) -> String {
        format!("{}.{}", self.database.as_deref().unwrap_or(database), self.collection)
    }
}

/// A parsed `$merge`.
#[derive(Debug)]
pub struct Merging {
    pub(in crate::query::stage) target: TargetCollection,
    /// the paths at which a document of the pipeline and one of the target must be equal to match; None for the default
    pub on: Option<Vec<String>>,
    /// what happens to a matching document of the target
    pub matched: WhenMatched,
    /// what happens to a document of the pipeline without a match
    pub not_matched: WhenNotMatched,
    /// the variables of the pipeline of `whenMatched`
    pub(in crate::query::stage) variables: Vec<(String, Expression)>,
}

/// What happens to a document of the target that matches a document of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum WhenMatched {
    /// the pipeline's document replaces it
    Replace,
    /// it stays
    KeepExisting,
    /// the fields of the pipeline's document are set in it
    Merge,
    /// the statement fails
    Fail,
    /// the stages of an update change it
    Pipeline(Vec<Json>),
}

/// What happens to a document of the pipeline that matches none of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotMatched {
    /// it is inserted
    Insert,
    /// it is ignored
    Discard,
    /// the statement fails
    Fail,
}

/// The name of the variable that holds the pipeline's document.
pub(in crate::query::stage) const NEW: &str = "new";

impl Merging {
    /// Evaluates the variables for a document, and returns them as the fields of a `let`.
    ///
    /// # Errors
    /// Those of the variables' expressions.
    pub fn variables(&self, document: RawObject<'_>, environment: &Environment) -> Result<Map<String, Json>> {
        let collator = environment.collator().map(AsRef::as_ref);
        let mut variables = Map::new();
        for (name, expression) in &self.variables {
            // A variable without a value is undefined for the pipeline, as in MongoDB.
            if let Some(value) = expression.evaluate(document, collator)? {
                variables.insert(name.clone(), literal(&value));
            }
        }
        Ok(variables)
    }
}

/// Returns an expression whose result is the value.
fn literal(value: &Value) -> Json {
    json!({"$literal": ext_json::to_typed_json(value)})
}

impl WhenMatched {
    /// The value of `whenMatched`, or `pipeline`.
    pub(in crate::query::stage) fn name(&self) -> &'static str {
        match self {
            WhenMatched::Replace => "replace",
            WhenMatched::KeepExisting => "keepExisting",
            WhenMatched::Merge => "merge",
            WhenMatched::Fail => "fail",
            WhenMatched::Pipeline(_) => "pipeline",
        }
    }

    /// Returns the client's stages that update the matching document; None if there are none. `$$new` is the pipeline's document.
    pub fn stages(&self) -> Option<Json> {
        match self {
            WhenMatched::Pipeline(stages) => Some(Json::Array(stages.clone())),
            _ => None,
        }
    }
}

impl WhenNotMatched {
    /// The value of `whenNotMatched`.
    pub(in crate::query::stage) fn name(self) -> &'static str {
        match self {
            WhenNotMatched::Insert => "insert",
            WhenNotMatched::Discard => "discard",
            WhenNotMatched::Fail => "fail",
        }
    }
}

/// Returns the filter for the matching document of the target: equality with the document's values at the paths of `on`. Also
/// returns the encoding of these values, which is the same for documents that match the same document.
///
/// # Errors
/// `Location51185` for an array, and, if null is allowed, for a path that leads through an array; `Location51132` for a value that is
/// null or missing if null is not allowed.
pub fn target_filter(
    document: RawObject<'_>,
    on: &[String],
    allows_null: bool,
    collator: Option<&Collator>,
) -> Result<(Json, Vec<u8>)> {
    let (mut filter, mut key) = (Map::new(), Vec::new());
    for path in on {
        let value = path::value_at(document, path);
        let element = value.map_or(Element::Null, Element::of);
        if matches!(element, Element::Array(_)) || allows_null && leads_through_array(document, path) {
            bail!(51185, "$merge write error: 'on' field '{path}' is an array");
        }
        let is_nullish = matches!(element, Element::Null | Element::Undefined);
        ensure!(
            allows_null || !is_nullish,
            51132,
            "$merge write error: 'on' field '{path}' cannot be missing, null, undefined or an array"
        );
        let value = if is_nullish { Json::Null } else { ext_json::to_json(&Value::from_element(&element)) };
        filter.insert(path.clone(), json!({"$eq": value}));
        encode_under(&element, collator, &mut key);
    }
    Ok((Json::Object(filter), key))
}

/// Returns the document, as it is inserted, with null at each path of `on` where it has no value. None if it has a value at every path.
pub fn with_nulls(document: RawObject<'_>, on: &[String]) -> Result<Option<Value>> {
    let mut missing = on.iter().filter(|path| path::value_at(document, path).is_none()).peekable();
    if missing.peek().is_none() {
        return Ok(None);
    }
    missing.try_fold(Value::from_raw(RawValue::Object(document)), |value, path| with_null(value, path)).map(Some)
}

/// Sets null at a path, and creates the embedded documents that are missing on the path. A value on the path that is not a document
/// stays, and null is not set.
fn with_null(value: Value, path: &str) -> Result<Value> {
    let Value::Object(fields) = value else { return Ok(value) };
    let mut fields = fields.into_vec();
    let (name, rest) = path::split(path);
    let empty = || Nested::new(Vec::new()).map(Value::Object);
    match (fields.iter_mut().find(|(field, _)| field == name), rest) {
        (Some((_, inner)), Some(rest)) => *inner = with_null(std::mem::replace(inner, Value::Null), rest)?,
        (Some(_), None) => {}
        (None, Some(rest)) => fields.push((name.to_owned(), with_null(empty()?, rest)?)),
        (None, None) => fields.push((name.to_owned(), Value::Null)),
    }
    Nested::new(fields).map(Value::Object)
}

fn leads_through_array(document: RawObject<'_>, path: &str) -> bool {
    let (name, Some(rest)) = path::split(path) else { return false };
    match document.get(name) {
        Some(RawValue::Array(_)) => true,
        Some(value) => path::embedded(value).is_some_and(|inner| leads_through_array(inner, rest)),
        None => false,
    }
}
