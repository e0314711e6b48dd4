//! Stages that return at most one document for each input document, which depends on that document alone: `$match`, `$project`, …

use crate::budget;
use crate::error::{Kind, Result, bail, ensure};
use crate::query::expression::Expression;
use crate::query::filter::Filter;
use crate::query::projection::Projection;
use crate::query::stage::fields::{Fields, Written};
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Shape, StageOutcome};
use crate::query::stage::runtime::stream::{Input, Stream, document};
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::raw::{RawArray, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::path;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::sync::Arc;

/// A parsed stage and its collation.
#[derive(Debug)]
struct PerDocument {
    kind: Transformation,
    collator: Option<Arc<Collator>>,
}

#[derive(Debug)]
enum Transformation {
    /// `$project`, `$set`, `$unset`
    Project(Box<Projection>),
    /// `$replaceWith`, `$replaceRoot`
    Replace(Expression),
    /// `$match`
    Match(Arc<Filter>),
    /// `$redact`
    Redact(Expression),
}

impl Operation for PerDocument {
    fn fields(&self) -> Fields {
        match &self.kind {
            Transformation::Project(projection) => {
                let (paths, all_but) = projection.fields_written();
                let written = if all_but { Written::AllBut(paths) } else { Written::Only(paths) };
                Fields { read: projection.fields_read(), written }
            }
            Transformation::Replace(expression) => Fields::replaced(expression.fields_read()),
            Transformation::Match(filter) => Fields { read: filter.fields_read(), written: Written::default() },
            Transformation::Redact(_) => Fields::replaced(None),
        }
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, _: &Context) -> Result<Input<'s>> {
        Ok(Box::new(PerDocumentStream { input, stage: self, made: None }))
    }

    fn apply<'d>(&self, document: RawObject<'d>) -> Result<StageOutcome<'d>> {
        let collator = self.collator.as_deref();
        Ok(match &self.kind {
            Transformation::Project(projection) => StageOutcome::One(Cow::Owned(projection.apply(document)?)),
            Transformation::Replace(expression) => {
                StageOutcome::One(Cow::Owned(replaced(expression, document, collator)?))
            }
            Transformation::Match(filter) => match filter.evaluate(document)? {
                true => StageOutcome::One(Cow::Borrowed(document.bytes())),
                false => StageOutcome::Dropped,
            },
            Transformation::Redact(expression) => {
                match (Redaction { expression, document, collator }).redacted(document)? {
                    Some(part) => StageOutcome::One(Cow::Owned(write::document(&part)?)),
                    None => StageOutcome::Dropped,
                }
            }
        })
    }

    fn shape(&self) -> Shape<'_> {
        if let Transformation::Match(filter) = &self.kind { Shape::Match(filter) } else { Shape::Other }
    }
}

struct PerDocumentStream<'s> {
    input: Input<'s>,
    stage: Arc<PerDocument>,
    /// None if the document is the input's
    made: Option<Vec<u8>>,
}

impl Stream for PerDocumentStream<'_> {
    fn advance(&mut self) -> Result<bool> {
        while self.input.advance()? {
            budget::step();
            match self.stage.apply(document(&self.input)?)? {
                StageOutcome::Dropped => continue,
                StageOutcome::One(Cow::Borrowed(_)) => self.made = None,
                StageOutcome::One(Cow::Owned(bytes)) => self.made = Some(bytes),
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn bytes(&self) -> &[u8] {
        self.made.as_deref().unwrap_or_else(|| self.input.bytes())
    }

    fn key(&self) -> &[u8] {
        self.input.key()
    }
}

fn replaced(expression: &Expression, document: RawObject<'_>, collator: Option<&Collator>) -> Result<Vec<u8>> {
    let root = expression.operand(document, collator)?;
    if !root.is_object() {
        bail!(
            40228,
            "'newRoot' expression must evaluate to an object, but resulting value was: {}. Type of resulting value: '{}'",
            root.shown(),
            root.type_name()
        );
    }
    write::document(&root.into_part().unwrap_or(Part::Object(Vec::new())))
}

/// The variables that the expression of `$redact` may return, and their values.
const DECISIONS: [(&str, &str); 3] = [("KEEP", "keep"), ("PRUNE", "prune"), ("DESCEND", "descend")];

/// A document that is being redacted.
struct Redaction<'d> {
    expression: &'d Expression,
    document: RawObject<'d>,
    collator: Option<&'d Collator>,
}

impl<'d> Redaction<'d> {
    /// Returns what is kept of a document, or of an embedded one; None if nothing is.
    fn redacted(&self, part: RawObject<'d>) -> Result<Option<Part<'d>>> {
        budget::step();
        let decision = self.expression.evaluate_part(part, self.document, self.collator)?;
        let decision = match &decision {
            Some(Value::String(text)) => DECISIONS.iter().position(|(_, decision)| decision == text),
            _ => None,
        };
        match decision {
            Some(0) => Ok(Some(Part::Raw(RawValue::Object(part)))),
            Some(1) => Ok(None),
            Some(_) => {
                let mut fields = Vec::with_capacity(part.len());
                for (name, value) in part.in_order() {
                    fields.extend(self.inside(value)?.map(|part| (Cow::Borrowed(name), part)));
                }
                Ok(Some(Part::Object(fields)))
            }
            None => bail!(17053, "$redact must evaluate to $$KEEP, $$PRUNE or $$DESCEND"),
        }
    }

    fn inside(&self, value: RawValue<'d>) -> Result<Option<Part<'d>>> {
        match value {
            RawValue::Array(array) => self.elements(array).map(Some),
            value => match path::embedded(value) {
                Some(object) => self.redacted(object),
                None => Ok(Some(Part::Raw(value))),
            },
        }
    }

    fn elements(&self, array: RawArray<'d>) -> Result<Part<'d>> {
        let mut items = Vec::with_capacity(array.len());
        for element in array.iter() {
            items.extend(self.inside(element)?);
        }
        Ok(Part::Array(items))
    }
}

fn per_document(parser: &Parser<'_>, kind: Transformation) -> Result<Parsed> {
    Parser::one(PerDocument { kind, collator: parser.environment.collator().cloned() })
}

pub(in crate::query::stage) fn add(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    per_document(
        parser,
        Transformation::Project(Box::new(Projection::parse_add(json, parser.name, parser.environment)?)),
    )
}

pub(in crate::query::stage) fn unset(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    per_document(parser, Transformation::Project(Box::new(Projection::parse_unset(json)?)))
}

pub(in crate::query::stage) fn project(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    ensure!(ext_json::document(json).is_some(), 15969, "$project specification must be an object");
    per_document(parser, Transformation::Project(Box::new(Projection::parse_stage(json, parser.environment)?)))
}

pub(in crate::query::stage) fn replace_with(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    per_document(parser, Transformation::Replace(Expression::parse(json, parser.environment)?))
}

pub(in crate::query::stage) fn replace_root(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let Some(fields) = ext_json::document(json) else {
        bail!(40229, "expected an object as specification for $replaceRoot stage, got {json}")
    };
    if let Some(unknown) = fields.keys().find(|name| *name != "newRoot") {
        bail!(Kind::UnknownOption, "BSON field '$replaceRoot.{unknown}' is an unknown field.");
    }
    let Some(root) = fields.get("newRoot") else {
        bail!(40414, "BSON field '$replaceRoot.newRoot' is missing but a required field")
    };
    replace_with(parser, root)
}

pub(in crate::query::stage) fn parse_match(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    ensure!(ext_json::document(json).is_some(), 15959, "the match filter must be an expression in an object");
    per_document(parser, Transformation::Match(Arc::new(Filter::parse_in(json, parser.environment)?)))
}

pub(in crate::query::stage) fn redact(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let decisions = DECISIONS.map(|(name, value)| (name.to_owned(), Value::String(value.to_owned())));
    per_document(parser, Transformation::Redact(Expression::parse_of_parts(json, &parser.environment.with(decisions))?))
}
