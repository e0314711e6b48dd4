//! Pipelines by example: the cases of aggregations and expressions that need no server, run over documents in memory, as they are,
//! and rearranged and divided over three parts of the documents, with memory for no more than a few groups.
//!
//! `tests/conformance/pipelines.txt` lists the cases that are expected to fail, with reasons. The tables are written to
//! `target/conformance-pipelines.txt`. `CONFORMANCE=part-of-an-id` runs only some cases.

use docshard_core::error::{Error, Result};
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{Database, InMemory, IterStream, Memory, Pipeline, Resources};
use docshard_core::values::document::value::Value as Document;
use docshard_core::values::document::{ext_json, raw, write};
use docshard_tests::conformance::{Answer, Case, Failure, Outcome, Report, Selection, Way, collected, verdict};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::rc::Rc;

#[test]
fn pipelines_conform() {
    let Some(selection) = Selection::of_pipelines() else { return };
    let mut report = Report::default();
    for case in &selection.cases {
        let outcomes: Vec<(Way, Outcome)> = vec![
            (Way::Memory, verdict(case, &answer(run(case)))),
            (Way::Divided, verdict(case, &answer(run_divided(case)))),
        ];
        report.add_all((&case.id, case.kind.name(), &case.operators), &selection.excuses, outcomes);
    }
    selection.conclude(&report, "pipelines");
}

fn answer(found: Result<Vec<Vec<u8>>>) -> std::result::Result<Answer, Failure> {
    let failure = |error: Error| Failure { code: Some(error.kind.code().into()), message: error.into_message() };
    let shown = |bytes: &Vec<u8>| ext_json::to_json(&Document::from_raw(raw::root(bytes)));
    found.map(|documents| Answer::Documents(documents.iter().map(shown).collect())).map_err(failure)
}

/// The pipeline and options of a case's command.
struct Command {
    pipeline: Pipeline,
    environment: Environment,
    documents: Vec<Vec<u8>>,
    /// all collections, by their names
    collections: Collections,
}

fn command(case: &Case) -> Result<Command> {
    let fields: &Map<String, Value> = &case.command;
    // A fixed day in November 2023.
    let now = Some(1_700_000_000_000);
    let json = Environment::to_json(fields.get("collation"), fields.get("let"), now);
    let environment = Environment::parse(&json.unwrap_or_default())?;
    let stages = fields["pipeline"].as_array().cloned().unwrap_or_default();
    let written = |documents: &[Value]| {
        let documents = collected(documents);
        documents.into_iter().map(|document| write::value(&ext_json::from_json(document)?)).collect::<Result<Vec<_>>>()
    };
    let documents = written(&case.documents)?;
    let mut collections = HashMap::new();
    for (name, others) in &case.others {
        collections.insert(name.clone(), written(others.as_array().expect("documents are a list"))?);
    }
    if let Some(name) = fields["aggregate"].as_str() {
        collections.insert(name.to_owned(), documents.clone());
    }
    let pipeline = Pipeline::parse(&stages, &environment)?;
    Ok(Command { pipeline, environment, documents, collections: Rc::new(collections) })
}

type Collections = Rc<HashMap<String, Vec<Vec<u8>>>>;

fn results(
    pipeline: &Pipeline,
    documents: Vec<Vec<u8>>,
    collections: &Collections,
    stage_bytes: usize,
) -> Result<Vec<Vec<u8>>> {
    let results = keyed_results(pipeline, documents, collections, stage_bytes)?;
    Ok(results.into_iter().map(|(_, bytes)| bytes).collect())
}

/// The results of a pipeline over documents, with the keys by which they are in order.
fn keyed_results(
    pipeline: &Pipeline,
    documents: Vec<Vec<u8>>,
    collections: &Collections,
    stage_bytes: usize,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let memory = InMemory { stage_bytes };
    let database = Database { collections: Rc::clone(collections), memory };
    let memory: Rc<dyn Memory> = Rc::new(memory);
    let mut stream = pipeline
        .run_with(Box::new(IterStream::new(documents)), &Resources { memory, collections: Rc::new(database) })?;
    let mut results = Vec::new();
    while stream.advance()? {
        raw::validate(stream.bytes())?;
        results.push((stream.key().to_vec(), stream.bytes().to_vec()));
    }
    Ok(results)
}

fn run(case: &Case) -> Result<Vec<Vec<u8>>> {
    let Command { pipeline, documents, collections, .. } = command(case)?;
    results(&pipeline, documents, &collections, 1 << 20)
}

/// Memory for about two groups.
const LITTLE: usize = 500;

fn run_divided(case: &Case) -> Result<Vec<Vec<u8>>> {
    let Command { pipeline, environment, documents, collections } = command(case)?;
    let division = pipeline.rearranged()?.divided(None)?;
    let again = |pipeline: &Pipeline| {
        Pipeline::parse_divided(pipeline.to_json().as_array().expect("stages are a list"), &environment)
    };
    let (at_shards, merging) = (again(&division.at_shards)?, again(&division.merging)?);
    if at_shards.makes_documents() {
        return results(&at_shards, Vec::new(), &collections, LITTLE);
    }
    let mut of_shards = Vec::new();
    for part in documents.chunks(documents.len().div_ceil(3).max(1)) {
        of_shards.extend(keyed_results(&at_shards, part.to_vec(), &collections, LITTLE)?);
    }
    if division.order.is_some() {
        of_shards.sort_by(|(key, _), (other, _)| key.cmp(other));
    }
    let of_shards = of_shards.into_iter().map(|(_, bytes)| bytes).collect();
    results(&merging, of_shards, &collections, LITTLE)
}
