//! The target of a pipeline that ends with `$merge` or `$out`.
//!
//! The stage itself returns its input unchanged. The caller that runs the pipeline asks the stage for its sink, and writes the
//! documents. For `$merge` this module says which document of the target a document matches, and how that one is updated.

use crate::error::{Result, bail, ensure};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::encode::encode_under;
use crate::values::path;
use serde_json::{Map, Value as Json, json};

/// Where the documents of a pipeline go.
#[derive(Debug)]
pub enum Sink {
    /// `$merge`: into a collection, one by one
    Merge(Box<Merging>),
    /// `$out`: they replace a collection
    Out(Target),
}

impl Sink {
    /// The collection that is written.
    pub fn target(&self) -> &Target {
        match self {
            Sink::Merge(merging) => &merging.target,
            Sink::Out(target) => target,
        }
    }
}

/// The name of a collection that a stage writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// None for the database of the pipeline
    pub database: Option<String>,
    /// not empty
    pub collection: String,
}

impl Target {
    /// The namespace, for a pipeline in a database.
    pub fn namespace(&self, database: &str) -> String {
        format!("{}.{}", self.database.as_deref().unwrap_or(database), self.collection)
    }
}

/// A parsed `$merge`.
#[derive(Debug)]
pub struct Merging {
    pub(super) target: Target,
    /// the paths that decide which document of the target one of the pipeline matches; None for the default
    pub on: Option<Vec<String>>,
    /// what becomes of a document of the target that one matches
    pub matched: WhenMatched,
    /// what becomes of a document that matches none
    pub not_matched: WhenNotMatched,
    /// the variables of the pipeline of `whenMatched`
    pub(super) variables: Vec<(String, Expression)>,
}

/// What becomes of a document of the target that one of the pipeline matches.
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

/// What becomes of a document that matches none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotMatched {
    /// it is inserted
    Insert,
    /// it is ignored
    Discard,
    /// the statement fails
    Fail,
}

/// The variable that is the pipeline's document.
pub(super) const NEW: &str = "new";

impl Merging {
    /// The variables for a document, as the fields of a `let`.
    ///
    /// # Errors
    /// Those of the variables' expressions.
    pub fn variables(&self, document: RawObject<'_>, environment: &Environment) -> Result<Map<String, Json>> {
        let collator = environment.collator().map(AsRef::as_ref);
        let mut variables = Map::new();
        if self.variables.is_empty() {
            variables.insert(NEW.to_owned(), literal(&Value::from_raw(RawValue::Object(document))));
        }
        for (name, expression) in &self.variables {
            let value = expression.evaluate(document, collator)?;
            variables.insert(name.clone(), value.as_ref().map_or_else(|| json!("$$REMOVE"), literal));
        }
        Ok(variables)
    }
}

/// The expression of a constant.
fn literal(value: &Value) -> Json {
    json!({"$literal": ext_json::to_json(value)})
}

impl WhenMatched {
    /// The word in the stage, or `pipeline`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            WhenMatched::Replace => "replace",
            WhenMatched::KeepExisting => "keepExisting",
            WhenMatched::Merge => "merge",
            WhenMatched::Fail => "fail",
            WhenMatched::Pipeline(_) => "pipeline",
        }
    }

    /// The stages of the update, in which `$$new` is the pipeline's document; None if it is no update by stages.
    pub fn stages(&self) -> Option<Json> {
        match self {
            WhenMatched::Pipeline(stages) => Some(Json::Array(stages.clone())),
            WhenMatched::Merge => Some(json!([{"$replaceWith": {"$mergeObjects": ["$$ROOT", "$$new"]}}])),
            _ => None,
        }
    }
}

impl WhenNotMatched {
    /// The word in the stage.
    pub(super) fn name(self) -> &'static str {
        match self {
            WhenNotMatched::Insert => "insert",
            WhenNotMatched::Discard => "discard",
            WhenNotMatched::Fail => "fail",
        }
    }
}

/// The filter that finds the document of the target which a document matches: its values at the paths of `on`. And their encoding,
/// which is the same for documents that match the same one.
///
/// # Errors
/// `Location51185` for an array, `Location51132` for a value that is null or missing.
pub fn matching(document: RawObject<'_>, on: &[String], collator: Option<&Collator>) -> Result<(Json, Vec<u8>)> {
    let (mut filter, mut key) = (Map::new(), Vec::new());
    for path in on {
        let value = value_at(document, path);
        let element = value.map_or(Element::Null, Element::of);
        if matches!(element, Element::Array(_)) {
            bail!(51185, "$merge write error: 'on' field '{path}' is an array");
        }
        let is_nullish = matches!(element, Element::Null | Element::Undefined);
        ensure!(
            !is_nullish,
            51132,
            "$merge write error: 'on' field '{path}' cannot be missing, null, undefined or an array"
        );
        filter.insert(path.clone(), json!({"$eq": ext_json::to_json(&Value::from_element(&element))}));
        encode_under(&element, collator, &mut key);
    }
    Ok((Json::Object(filter), key))
}

/// The value at a path through embedded documents only.
fn value_at<'a>(document: RawObject<'a>, path: &str) -> Option<RawValue<'a>> {
    let (name, rest) = path::split(path);
    let value = document.get(name)?;
    match rest {
        None => Some(value),
        Some(rest) => value_at(path::embedded(value)?, rest),
    }
}
