//! `$unionWith`: appends the results of a pipeline over another collection to the input.

use crate::error::{Kind, Result, bail, ensure};
use crate::query::environment::Environment;
use crate::query::stage::fields::{Fields, Written};
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Shape, Stage, given};
use crate::query::stage::runtime::stream::{Input, Stream};
use crate::values::document::ext_json;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// `$unionWith`
#[derive(Debug)]
struct UnionWith {
    /// None if the pipeline begins with `$documents`
    collection: Option<String>,
    pipeline: Vec<Json>,
    /// other collections that the pipeline reads
    inner_collections: BTreeSet<String>,
    /// true if the pipeline's last stage keeps fields that it does not name, or if the pipeline is empty
    is_whole: bool,
    /// true if `$facet` allows all stages of the pipeline
    in_facets: bool,
    environment: Environment,
}

impl Operation for UnionWith {
    /// The input documents are returned unchanged.
    fn fields(&self) -> Fields {
        Fields::kept([])
    }

    fn needs_router(&self) -> bool {
        true
    }

    fn collections(&self, found: &mut BTreeSet<String>) {
        found.extend(self.collection.iter().chain(&self.inner_collections).cloned());
    }

    fn in_facets(&self) -> bool {
        self.in_facets
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Union(self.is_whole)
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        Ok(Box::new(United { input, stage: self, context: context.clone(), is_second: false }))
    }
}

struct United<'s> {
    input: Input<'s>,
    stage: Arc<UnionWith>,
    context: Context,
    /// true once `input` is the pipeline's results
    is_second: bool,
}

impl Stream for United<'_> {
    fn advance(&mut self) -> Result<bool> {
        if self.input.advance()? {
            return Ok(true);
        }
        if self.is_second {
            return Ok(false);
        }
        self.is_second = true;
        let UnionWith { collection, pipeline, environment, .. } = &*self.stage;
        self.input = self.context.resources.collections.read(collection.as_deref(), pipeline, environment)?;
        self.input.advance()
    }

    fn bytes(&self) -> &[u8] {
        self.input.bytes()
    }
}

pub(in crate::query::stage) fn union_with(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let (collection, pipeline) = match json {
        Json::String(name) => (Some(name), None),
        Json::Object(fields) if ext_json::is_document(fields) => {
            if let Some(unknown) = fields.keys().find(|name| !["coll", "pipeline"].contains(&name.as_str())) {
                bail!(Kind::UnknownOption, "BSON field '$unionWith.{unknown}' is an unknown field.");
            }
            let collection = match given(fields, "coll") {
                None => None,
                Some(Json::String(name)) => Some(name),
                Some(other) => {
                    bail!(Kind::TypeMismatch, "BSON field '$unionWith.coll' must be a string, but found: {other}")
                }
            };
            (collection, given(fields, "pipeline"))
        }
        _ => bail!(
            Kind::FailedToParse,
            "the $unionWith stage specification must be an object or string, but found: {json}"
        ),
    };
    let pipeline = match pipeline {
        None => Vec::new(),
        Some(Json::Array(stages)) => stages.clone(),
        Some(other) => bail!(Kind::TypeMismatch, "'pipeline' option must be specified as an array, but found: {other}"),
    };
    let stages = parser.other_pipeline(&pipeline, parser.environment, 31441)?;
    let makes_documents = stages.first().is_some_and(|stage| stage.operator.makes_documents());
    match collection {
        None => ensure!(
            makes_documents,
            Kind::FailedToParse,
            "$unionWith stage without explicit collection must have a pipeline with $documents as first stage"
        ),
        Some(name) => parser.check_other(name, makes_documents)?,
    }
    let mut inner_collections = BTreeSet::new();
    stages.iter().for_each(|stage| stage.operation.collections(&mut inner_collections));
    Parser::one(UnionWith {
        collection: collection.cloned(),
        pipeline,
        inner_collections,
        is_whole: stages.last().is_none_or(|last| matches!(last.operation.fields().written, Written::Only(_))),
        in_facets: stages.iter().all(Stage::in_facets),
        environment: parser.environment.clone(),
    })
}
