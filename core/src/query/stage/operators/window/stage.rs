//! The stage `$setWindowFields`.

use super::function::{Function, FunctionKind};
use super::linear_fill::LinearFill;
use super::partition::{Partition, Reader};
use super::sliding::Sliding;
use super::table;
use crate::error::{Kind, Result, bail, error};
use crate::query::expression::Expression;
use crate::query::projection::Assignments;
use crate::query::sort::Sort;
use crate::query::stage::fields::{Fields, Written};
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Partitioning, Shape, given};
use crate::query::stage::runtime::sorted_partitions::PartitionOrder;
use crate::query::stage::runtime::stream::{Input, Stream};
use crate::values::document::ext_json;
use crate::values::document::raw;
use crate::values::document::value::Value;
use serde_json::Value as Json;
use std::sync::Arc;

/// `$setWindowFields`
#[derive(Debug)]
struct SetWindowFields {
    order: Arc<PartitionOrder>,
    output: Assignments,
    /// the functions of the output fields, in their order
    functions: Vec<Arc<Function>>,
}

impl Operation for SetWindowFields {
    fn fields(&self) -> Fields {
        let sort = self.order.sort_by.iter().flat_map(|sort| sort.fields.iter().map(|(path, _)| path.clone()));
        let partition = self.order.partition_by.iter().map(Expression::fields_read);
        let functions = self.functions.iter().map(|function| function.fields_read());
        let read =
            partition.chain(functions).try_fold(sort.collect(), |mut read: std::collections::BTreeSet<_>, more| {
                read.extend(more?);
                Some(read)
            });
        Fields { read, written: Written::Only(self.output.paths().map(str::to_owned).collect()) }
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        let mut partition = Partition::new(Arc::clone(&self.order), input, &*context.resources.memory)?;
        let own = partition.reader();
        let mut running = Vec::with_capacity(self.functions.len());
        for function in &self.functions {
            running.push(match function.kind {
                FunctionKind::LinearFill => Running::LinearFill(LinearFill::new(Arc::clone(function), &mut partition)),
                _ => Running::Sliding(Sliding::new(Arc::clone(function), &mut partition)?),
            });
        }
        Ok(Box::new(Windows { stage: self, partition, own, running, document: Vec::new(), current: Vec::new() }))
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Partitions(self)
    }
}

impl Partitioning for SetWindowFields {
    fn determines(&self, paths: &[&str]) -> bool {
        let Some(partition_by) = &self.order.partition_by else { return false };
        let whole = partition_by.whole_paths();
        self.order.collator.is_none() && paths.iter().all(|path| whole.contains(path))
    }
}

/// A function in the present partition.
enum Running {
    Sliding(Sliding),
    LinearFill(LinearFill),
}

struct Windows<'s> {
    stage: Arc<SetWindowFields>,
    partition: Partition<'s>,
    /// the reader that has just read the current document
    own: Reader,
    running: Vec<Running>,
    document: Vec<u8>,
    current: Vec<u8>,
}

impl Windows<'_> {
    /// Reads the next document, of this partition or the next; false if there is none.
    fn next_document(&mut self) -> Result<bool> {
        loop {
            if let Some(document) = self.partition.read(&mut self.own)? {
                self.document.clear();
                self.document.extend(document.bytes());
                return Ok(true);
            }
            if !self.partition.begin_next()? {
                return Ok(false);
            }
            self.own.restart();
            for running in &mut self.running {
                match running {
                    Running::Sliding(sliding) => sliding.restart()?,
                    Running::LinearFill(fill) => fill.restart(),
                }
            }
        }
    }
}

impl Stream for Windows<'_> {
    fn advance(&mut self) -> Result<bool> {
        if !self.next_document()? {
            return Ok(false);
        }
        let document = raw::document(&self.document)
            .ok_or_else(|| error!(Kind::InternalError, "the input of a stage is not a document"))?;
        let mut values = Vec::with_capacity(self.running.len());
        for running in &mut self.running {
            let value = match running {
                Running::Sliding(sliding) => sliding.next(&mut self.partition, self.own.next - 1, document)?,
                Running::LinearFill(fill) => fill.next(&mut self.partition, &self.own, document)?,
            };
            values.push(Some(value));
        }
        self.partition.trim();
        self.current = self.stage.output.apply(document, &values)?;
        Ok(true)
    }

    fn bytes(&self) -> &[u8] {
        &self.current
    }
}

pub(in crate::query::stage) fn set_window_fields(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let environment = parser.environment;
    let fields =
        parser.named(json, &["partitionBy", "sortBy", "output"], [Kind::FailedToParse, Kind::UnknownOption])?;
    let partition_by = fields.get("partitionBy").map(|json| Expression::parse(json, environment)).transpose()?;
    let constant = partition_by.as_ref().and_then(Expression::constant);
    if matches!(constant, Some(Value::Array(_))) {
        bail!(Kind::TypeMismatch, "An expression used to partition cannot evaluate to value of type array");
    }
    let object = |name: &str| -> Result<Option<&Json>> {
        match given(fields, name) {
            Some(json)
                if ext_json::document(json).is_none() && (name != "sortBy" || ext_json::ordered(json).is_none()) =>
            {
                let error = error!(
                    Kind::TypeMismatch,
                    "BSON field '$setWindowFields.{name}' is the wrong type, expected type 'object'"
                );
                Err(if name == "sortBy" { error.with_hint(ext_json::ORDER_HINT) } else { error })
            }
            json => Ok(json),
        }
    };
    let sort_by = object("sortBy")?.map(|json| Sort::parse_in(json, environment)).transpose()?;
    let Some(Json::Object(output)) = object("output")? else {
        bail!(40414, "BSON field '$setWindowFields.output' is missing but a required field")
    };
    let paths: Vec<&str> = output.keys().map(String::as_str).collect();
    let assignments = Assignments::parse(&paths).map_err(|error| match Assignments::is_collision(&error) {
        true => error!(6307900, "$setWindowFields 'output' specification contains two conflicting paths"),
        false => error,
    })?;
    let mut functions = Vec::with_capacity(output.len());
    for (path, json) in output {
        functions.push(Arc::new(table::parse(path, json, sort_by.as_ref(), environment)?));
    }
    let collator = environment.collator().cloned();
    // A constant expression means one partition, which needs no key.
    let partition_by = partition_by.filter(|_| constant.is_none());
    let sort_by = sort_by.filter(|sort| !sort.fields.is_empty());
    let order = Arc::new(PartitionOrder { partition_by, sort_by, collator });
    Parser::one(SetWindowFields { order, output: assignments, functions })
}
