//! `$documents`: begins a pipeline with the documents of its argument instead of a collection's.

use crate::error::{Kind, Result, bail, ensure};
use crate::query::expression::Expression;
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Operation, Parsed, Parser};
use crate::query::stage::runtime::stream::{Input, IterStream};
use crate::values::document::raw;
use crate::values::document::value::Value;
use crate::values::document::write;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// `$documents`
#[derive(Debug)]
struct Documents(Vec<Vec<u8>>);

impl Operation for Documents {
    fn fields(&self) -> Fields {
        Fields::replaced(Some(BTreeSet::new()))
    }

    fn begin<'s>(self: Arc<Self>, _: Input<'s>, _: &Context) -> Result<Input<'s>> {
        Ok(Box::new(IterStream::new(self.0.clone())))
    }
}

pub(in crate::query::stage) fn documents(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let expression = Expression::parse(json, parser.environment)?;
    if expression.is_open() {
        return Parser::one(Documents(Vec::new()));
    }
    let empty = write::empty()?;
    let Some(empty) = raw::document(&empty) else { bail!(Kind::InternalError, "the empty document is invalid") };
    let collator = parser.environment.collator().map(|collator| &**collator);
    let Some(Value::Array(documents)) = expression.evaluate(empty, collator)? else {
        bail!(5858203, "$documents must be an array of documents, computed without a collection")
    };
    let objects = documents.iter().all(|document| matches!(document, Value::Object(_)));
    ensure!(objects, 40228, "each element of $documents must be a document");
    Parser::one(Documents(documents.iter().map(write::value).collect::<Result<_>>()?))
}
