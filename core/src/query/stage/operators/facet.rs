//! `$facet`: runs several pipelines over the same documents, and returns one document with an array of results for each.
//!
//! The documents are kept in a sorter, with their positions as keys. The pipelines read them from there, one after the other.

use crate::budget;
use crate::error::{Kind, Result, bail, ensure};
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Stage, run};
use crate::query::stage::runtime::sorter::Sorter;
use crate::query::stage::runtime::stream::{Input, Stream};
use crate::values::document::MAX_DOCUMENT_BYTES;
use crate::values::document::ext_json;
use crate::values::document::raw;
use crate::values::document::write::{self, Part};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// `$facet`
#[derive(Debug)]
struct Facet(Vec<(String, Vec<Stage>)>);

impl Operation for Facet {
    fn fields(&self) -> Fields {
        Fields::replaced(None)
    }

    fn needs_router(&self) -> bool {
        self.0.iter().flat_map(|(_, stages)| stages).any(|stage| stage.operation.needs_router())
    }

    fn collections(&self, found: &mut BTreeSet<String>) {
        self.0.iter().flat_map(|(_, stages)| stages).for_each(|stage| stage.operation.collections(found));
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        Ok(Box::new(Faceting { input: Some(input), facet: self, context: context.clone(), result: Vec::new() }))
    }
}

struct Faceting<'s> {
    /// None after the result
    input: Option<Input<'s>>,
    facet: Arc<Facet>,
    context: Context,
    result: Vec<u8>,
}

impl Stream for Faceting<'_> {
    fn advance(&mut self) -> Result<bool> {
        let Some(mut input) = self.input.take() else { return Ok(false) };
        let mut sorter = self.context.resources.memory.sorter(None, true)?;
        let mut position: u64 = 0;
        while input.advance()? {
            budget::step();
            sorter.add(&position.to_be_bytes(), input.bytes())?;
            position += 1;
        }
        drop(input);
        let sorter = Rc::new(RefCell::new(sorter));
        let mut size = 0;
        let mut facets = Vec::with_capacity(self.facet.0.len());
        for (name, stages) in &self.facet.0 {
            let mut results = run(stages, Box::new(SorterReader::begin(&sorter)?), &self.context)?;
            let mut documents = Vec::new();
            while results.advance()? {
                size += results.bytes().len();
                ensure!(
                    size <= MAX_DOCUMENT_BYTES,
                    Kind::BSONObjectTooLarge,
                    "the results of $facet are larger than {MAX_DOCUMENT_BYTES} bytes"
                );
                documents.push(results.bytes().to_vec());
            }
            facets.push((name, documents));
        }
        let fields = facets.iter().map(|(name, documents)| (Cow::Borrowed(name.as_str()), array(documents)));
        self.result = write::document(&Part::Object(fields.collect()))?;
        Ok(true)
    }

    fn bytes(&self) -> &[u8] {
        &self.result
    }
}

fn array(documents: &[Vec<u8>]) -> Part<'_> {
    Part::Array(documents.iter().map(|document| Part::Raw(raw::root(document))).collect())
}

/// Reads the rows of a sorter from the beginning. Only the latest reader of a sorter may be used.
pub(in crate::query::stage) struct SorterReader {
    sorter: Rc<RefCell<Box<dyn Sorter>>>,
    current: Vec<u8>,
}

impl SorterReader {
    /// Moves the sorter before its first row.
    pub(in crate::query::stage) fn begin(sorter: &Rc<RefCell<Box<dyn Sorter>>>) -> Result<SorterReader> {
        sorter.borrow_mut().sort()?;
        Ok(SorterReader { sorter: Rc::clone(sorter), current: Vec::new() })
    }
}

impl Stream for SorterReader {
    fn advance(&mut self) -> Result<bool> {
        let mut sorter = self.sorter.borrow_mut();
        let more = sorter.advance()?;
        self.current.clear();
        self.current.extend(sorter.value());
        Ok(more)
    }

    fn bytes(&self) -> &[u8] {
        &self.current
    }
}

pub(in crate::query::stage) fn facet(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let fields = match json {
        Json::Object(fields) if !fields.is_empty() && ext_json::is_document(fields) => fields,
        _ => bail!(40169, "the $facet specification must be a non-empty object, but found: {json}"),
    };
    let mut facets = Vec::with_capacity(fields.len());
    for (name, pipeline) in fields {
        ensure!(!name.is_empty(), 15998, "FieldPath field names may not be empty strings.");
        ensure!(!name.starts_with('$'), 16410, "FieldPath field names may not start with '$'");
        ensure!(!name.contains('.'), 16412, "FieldPath field names may not contain '.'");
        let Json::Array(stages) = pipeline else {
            bail!(40170, "arguments to $facet must be arrays, {name} is: {pipeline}")
        };
        if let Some(stage) = stages.iter().find(|stage| ext_json::document(stage).is_none()) {
            bail!(40171, "elements of arrays in $facet spec must be non-empty objects, {name} contained: {stage}");
        }
        let stages = (parser.nested)(stages, parser.environment, parser.depth)?;
        if let Some(stage) = stages.iter().find(|stage| !stage.in_facets()) {
            bail!(40600, "{} is not allowed to be used within a $facet stage", stage.operator.name);
        }
        facets.push((name.clone(), stages));
    }
    Parser::one(Facet(facets))
}
