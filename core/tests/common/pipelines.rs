//! Pipelines over documents in memory.

use docshard_core::error::Result;
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{Division, InMemory, IterStream, Memory, Pipeline};
use serde_json::{Value as Json, json};
use std::rc::Rc;

/// Memory for groups of at most this number of bytes.
pub fn memory(stage_bytes: usize) -> Rc<dyn Memory> {
    Rc::new(InMemory { stage_bytes })
}

pub fn parse(stages: &[Json]) -> Pipeline {
    Pipeline::parse(stages, &Environment::default()).unwrap_or_else(|error| panic!("{stages:?}: {error:?}"))
}

/// The results of a pipeline over documents, in jsonb.
pub fn run_in(pipeline: &Pipeline, documents: &[Vec<u8>], memory: &Rc<dyn Memory>) -> Result<Vec<Vec<u8>>> {
    Ok(run_keyed(pipeline, documents, memory)?.into_iter().map(|(_, bytes)| bytes).collect())
}

/// The results of a pipeline over documents, with the keys by which they are in order.
fn run_keyed(pipeline: &Pipeline, documents: &[Vec<u8>], memory: &Rc<dyn Memory>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut stream = pipeline.run(Box::new(IterStream::new(documents.to_vec())), memory)?;
    let mut results = Vec::new();
    while stream.advance()? {
        docshard_core::values::document::raw::validate(stream.bytes())?;
        results.push((stream.key().to_vec(), stream.bytes().to_vec()));
    }
    Ok(results)
}

pub fn run(pipeline: &Pipeline, documents: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    run_in(pipeline, documents, &memory(1 << 20))
}

/// The results of stages over documents.
pub fn aggregate(stages: &Json, documents: &Json) -> Result<Vec<Json>> {
    let documents: Vec<_> = documents.as_array().unwrap().iter().map(super::bytes).collect();
    let pipeline = Pipeline::parse(stages.as_array().unwrap(), &Environment::default())?;
    Ok(run(&pipeline, &documents)?.iter().map(|bytes| super::read(bytes)).collect())
}

/// The results of a divided pipeline over the documents of shards. Both parts are printed and parsed, as when they are sent.
pub fn run_divided(division: &Division, shards: &[&[Vec<u8>]], memory: &Rc<dyn Memory>) -> Result<Vec<Vec<u8>>> {
    let again = |pipeline: &Pipeline| {
        let stages = pipeline.to_json();
        Pipeline::parse_divided(stages.as_array().unwrap(), &Environment::default()).unwrap()
    };
    let (at_shards, merging) = (again(&division.at_shards), again(&division.merging));
    let mut of_shards = Vec::new();
    for documents in shards {
        let found = run_keyed(&at_shards, documents, memory)?;
        if division.order.is_some() {
            assert!(found.is_sorted_by_key(|(key, _)| key), "{}", at_shards.to_json());
        }
        of_shards.extend(found);
    }
    if division.order.is_some() {
        of_shards.sort_by(|(key, _), (other, _)| key.cmp(other));
    }
    let of_shards: Vec<_> = of_shards.into_iter().map(|(_, bytes)| bytes).collect();
    run_in(&merging, &of_shards, memory)
}

/// Runs a find over documents as a shard does.
pub fn run_find(find: &docshard_core::query::stage::Find, documents: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let mut stages = vec![json!({"$match": *find.filter})];
    stages.extend(find.sort.as_ref().map(|(sort, _)| json!({"$sort": **sort})));
    stages.push(json!({"$skip": find.skip}));
    stages.extend(find.limit.map(|limit| json!({"$limit": limit})));
    stages.extend(find.projection().map(|projection| json!({"$project": projection})));
    run(&parse(&stages), documents)
}
