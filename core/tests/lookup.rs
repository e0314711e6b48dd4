//! Stages that read other collections: what they find, how many queries that takes, and what they refuse.

mod common;

use common::pipelines::memory;
use common::*;
use docshard_core::error::{Kind, Result};
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{Collections, Database, InMemory, Input, IterStream, Pipeline, Resources};
use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// Collections that count the queries for them.
struct Counting {
    database: Database,
    queries: Rc<Cell<usize>>,
}

impl Collections for Counting {
    fn read(&self, collection: Option<&str>, stages: &[Json], environment: &Environment) -> Result<Input<'static>> {
        self.queries.set(self.queries.get() + 1);
        self.database.read(collection, stages, environment)
    }
}

fn jsonb(documents: &Json) -> Vec<Vec<u8>> {
    documents.as_array().unwrap().iter().map(bytes).collect()
}

fn database(collections: &Json) -> Database {
    let of = |(name, documents): (&String, &Json)| (name.clone(), jsonb(documents));
    let collections = collections.as_object().unwrap().iter().map(of).collect::<HashMap<_, _>>();
    Database { collections: Rc::new(collections), memory: InMemory { stage_bytes: 1 << 20 } }
}

/// The results of a pipeline over documents, with other collections and memory for this number of bytes; and its number of queries.
fn run_within(stages: &Json, locals: &Json, collections: &Json, stage_bytes: usize) -> Result<(Vec<Json>, usize)> {
    let queries = Rc::new(Cell::new(0));
    let others = Counting { database: database(collections), queries: Rc::clone(&queries) };
    let pipeline = Pipeline::parse(stages.as_array().unwrap(), &Environment::default())?;
    let mut stream = pipeline.run_with(
        Box::new(IterStream::new(jsonb(locals))),
        &Resources { memory: memory(stage_bytes), collections: Rc::new(others) },
    )?;
    let mut results = Vec::new();
    while stream.advance()? {
        docshard_core::values::document::raw::validate(stream.bytes())?;
        results.push(read(stream.bytes()));
    }
    Ok((results, queries.get()))
}

fn run(stages: &Json, locals: &Json, collections: &Json) -> Vec<Json> {
    run_within(stages, locals, collections, 1 << 20).unwrap_or_else(|error| panic!("{stages}: {error:?}")).0
}

fn refusal(stages: &Json) -> i32 {
    match Pipeline::parse(stages.as_array().unwrap(), &Environment::default()) {
        Ok(_) => panic!("{stages} is accepted"),
        Err(error) => error.kind.code(),
    }
}

/// The `_id` of the documents in a field.
fn ids(results: &[Json], field: &str) -> Vec<Vec<i64>> {
    let of = |found: &Json| found.as_array().unwrap().iter().map(|one| one["_id"].as_i64().unwrap()).collect();
    results.iter().map(|result| of(&result[field])).collect()
}

/// The `_id` of the documents among these that one value leads to, and of those that lead to it.
fn both_ways(documents: &Json, path: &str, value: Json) -> (Vec<i64>, Vec<i64>) {
    let one = json!([{"_id": 0, "b": value}]);
    let stage = |from: &str, local: &str, foreign: &str| json!([{"$lookup": {"from": from, "localField": local, "foreignField": foreign, "as": "m"}}]);
    let leads = ids(&run(&stage("docs", "b", path), &one, &json!({"docs": documents})), "m").remove(0);
    let results = run(&stage("one", path, "b"), documents, &json!({"one": one}));
    let led = results.iter().filter(|result| result["m"] != json!([])).map(|result| result["_id"].as_i64().unwrap());
    (leads, led.collect())
}

#[test]
fn null_equals_a_missing_field_and_an_empty_array_here() {
    let documents = json!([
        {"_id": 0, "no_a": 1}, {"_id": 1, "a": null}, {"_id": 2, "a": [null, 1]}, {"_id": 10, "a": []},
        {"_id": 20, "a": 1}, {"_id": 21, "a": {"x": null}}, {"_id": 22, "a": [[null, 1], 2]}, {"_id": 23, "a": false},
        {"_id": 24, "a": 0}, {"_id": 25, "a": {}}, {"_id": 26, "a": ""},
    ]);
    assert_eq!(both_ways(&documents, "a", json!(null)), (vec![0, 1, 2], vec![0, 1, 2, 10]));
}

#[test]
fn arrays_stand_for_their_elements_and_there_also_for_themselves() {
    let documents = json!([
        {"_id": 0, "a": [[1, 2], 3]}, {"_id": 1, "a": [[1, 2]]}, {"_id": 2, "a": [1, 2]}, {"_id": 10, "a": [[[1, 2], 3], 4]},
        {"_id": 11, "a": [2, 1]}, {"_id": 12, "a": [[2, 1], 3]}, {"_id": 14, "a": null},
    ]);
    assert_eq!(both_ways(&documents, "a", json!([1, 2])), (vec![2, 11], vec![0, 1, 2, 11]));
    assert_eq!(both_ways(&documents, "a", json!([[1, 2], 42])), (vec![0, 1, 2], vec![0, 1]));
    assert_eq!(both_ways(&documents, "a", json!(1)), (vec![2, 11], vec![2, 11]));
}

#[test]
fn paths_lead_through_arrays_and_their_positions() {
    let documents = json!([
        {"_id": 0, "a": [{"x": 1}, {"x": 2}]}, {"_id": 1, "a": [{"x": [2, 3, 1]}]}, {"_id": 2, "a": [{"x": 1}, {"y": 1}]},
        {"_id": 10, "a": [{"x": 2}, {"x": 1}]}, {"_id": 12, "a": {"x": 1}}, {"_id": 14, "a": [{"y": 1}, {"x": 1}]},
        {"_id": 15, "a": [[{"x": 1}]]}, {"_id": 16, "a": {"x": [[1], 2]}},
    ]);
    assert_eq!(both_ways(&documents, "a.0.x", json!(1)), (vec![0, 1, 2, 15], vec![0, 1, 2, 15]));
    assert_eq!(both_ways(&documents, "a.x", json!(1)), (vec![0, 1, 2, 10, 12, 14], vec![0, 1, 2, 10, 12, 14]));
}

#[test]
fn values_of_all_types_equal_themselves_only() {
    let values = json!([
        0, 3.5, "abc", {"b": 1, "c": 2}, true, false, {"$date": "2022-01-01T00:00:00Z"}, {"$timestamp": {"t": 1, "i": 123}},
        {"$oid": "0102030405060708090a0b0c"}, {"$binary": {"base64": "BBBB", "subType": "00"}},
        {"$regularExpression": {"pattern": "hjkl", "options": ""}}, {"$regularExpression": {"pattern": "hjkl", "options": "i"}},
        {"$minKey": 1}, {"$maxKey": 1}, {"$numberDouble": "NaN"}, "hjkl",
    ]);
    let of = |(number, value): (usize, &Json)| json!({"_id": number, "a": value});
    let documents: Json = values.as_array().unwrap().iter().enumerate().map(of).collect();
    for (number, value) in values.as_array().unwrap().iter().enumerate() {
        let only = vec![number as i64];
        assert_eq!(both_ways(&documents, "a", value.clone()), (only.clone(), only), "{value}");
    }
    let stage = json!([{"$lookup": {"from": "docs", "localField": "a", "foreignField": "a", "as": "m"}}]);
    let all: Vec<Vec<i64>> = (0..16).map(|number| vec![number]).collect();
    assert_eq!(ids(&run(&stage, &documents, &json!({"docs": documents})), "m"), all);
}

#[test]
fn results_go_where_as_says() {
    let collections = json!({"c": [{"_id": 1}]});
    for (local, path, expected) in [
        (json!({"_id": 1, "m": 5}), "m", json!({"_id": 1, "m": [{"_id": 1}]})),
        (json!({"_id": 1, "o": {"p": 1}}), "o.m", json!({"_id": 1, "o": {"p": 1, "m": [{"_id": 1}]}})),
        (json!({"_id": 1, "o": [1]}), "o.m", json!({"_id": 1, "o": {"m": [{"_id": 1}]}})),
        (json!({"_id": 2}), "a.b.c", json!({"_id": 2, "a": {"b": {"c": []}}})),
    ] {
        let stage = json!([{"$lookup": {"from": "c", "localField": "_id", "foreignField": "_id", "as": path}}]);
        assert_eq!(run(&stage, &json!([local]), &collections), [expected], "{path}");
    }
    let stage = json!([{"$lookup": {"from": "none", "localField": "_id", "foreignField": "_id", "as": "m"}}]);
    assert_eq!(run(&stage, &json!([{"_id": 1}]), &collections), [json!({"_id": 1, "m": []})]);
}

#[test]
fn pipelines_see_the_variables_of_each_document() {
    let locals =
        json!([{"_id": 1, "x": 1}, {"_id": 2, "x": 2}, {"_id": 3, "x": [2, 3]}, {"_id": 4}, {"_id": 5, "x": null}]);
    let collections = json!({"c": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2, "s": "a"}, {"_id": 3, "k": [2, 3]}, {"_id": 4}, {"_id": 5, "k": null}]});
    let found = |lookup: Json| {
        let mut stage = lookup;
        stage["from"] = json!("c");
        stage["as"] = json!("m");
        ids(&run(&json!([{"$lookup": stage}]), &locals, &collections), "m")
    };
    // An expression compares whole values, and null with null only.
    let equal = found(json!({"let": {"v": "$x"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$k", "$$v"]}}}]}));
    assert_eq!(equal, [vec![1], vec![2], vec![3], vec![4], vec![5]]);
    let equal = found(
        json!({"let": {"v": "$x"}, "pipeline": [{"$match": {"$expr": {"$and": [{"$eq": ["$$v", "$k"]}, {"$gt": ["$_id", 1]}]}, "s": "a"}}]}),
    );
    assert_eq!(equal, [vec![], vec![2], vec![], vec![], vec![]]);
    let less = found(
        json!({"let": {"v": "$_id"}, "pipeline": [{"$match": {"$expr": {"$lt": ["$_id", "$$v"]}}}, {"$sort": {"_id": -1}}, {"$limit": 2}]}),
    );
    assert_eq!(less, [vec![], vec![1], vec![2, 1], vec![3, 2], vec![4, 3]]);
    let both = found(
        json!({"localField": "x", "foreignField": "k", "let": {"v": "$_id"}, "pipeline": [{"$match": {"$expr": {"$ne": ["$_id", "$$v"]}}}]}),
    );
    assert_eq!(both, [vec![], vec![3], vec![2], vec![5], vec![4]]);
    let constant = found(json!({"let": {"v": 2}, "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$v"]}}}]}));
    assert_eq!(constant, vec![vec![2]; 5]);
}

#[test]
fn variables_reach_pipelines_within_pipelines() {
    let collections = json!({"c": [{"_id": 1}, {"_id": 2}]});
    let stages = json!([{"$lookup": {"from": "c", "let": {"a": "$_id", "b": "x"}, "as": "m", "pipeline": [
        {"$match": {"$expr": {"$eq": ["$_id", "$$a"]}}},
        {"$lookup": {"from": "c", "let": {"d": "$_id"}, "as": "n", "pipeline": [
            {"$match": {"$expr": {"$ne": ["$_id", "$$d"]}}},
            {"$set": {"all": {"$concat": [{"$toString": "$$a"}, "$$b", {"$toString": "$$d"}]}, "own": {"$let": {"vars": {"b": "y"}, "in": "$$b"}}}},
        ]}},
        {"$unionWith": {"coll": "c", "pipeline": [{"$match": {"$expr": {"$lt": ["$_id", "$$a"]}}}]}},
    ]}}]);
    assert_eq!(
        run(&stages, &json!([{"_id": 1}, {"_id": 2}]), &collections),
        [
            json!({"_id": 1, "m": [{"_id": 1, "n": [{"_id": 2, "all": "1x1", "own": "y"}]}]}),
            json!({"_id": 2, "m": [{"_id": 2, "n": [{"_id": 1, "all": "2x2", "own": "y"}]}, {"_id": 1}]}),
        ]
    );
}

#[test]
fn documents_of_a_pipeline_take_the_place_of_a_collection() {
    let locals = json!([{"_id": 1, "x": 5}, {"_id": 2, "x": 6}]);
    let found = |stage: Json| run(&json!([stage]), &locals, &json!({}));
    let lookup = json!({"$lookup": {"let": {"v": "$x"}, "as": "m", "pipeline": [{"$documents": [{"_id": 1, "w": "$$v"}, {"_id": 2}]}]}});
    assert_eq!(found(lookup)[1], json!({"_id": 2, "x": 6, "m": [{"_id": 1, "w": 6}, {"_id": 2}]}));
    let lookup = json!({"$lookup": {"localField": "_id", "foreignField": "k", "as": "m", "pipeline": [{"$documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2}]}, {"$match": {"_id": {"$lt": 9}}}, {"$unset": "k"}]}});
    assert_eq!(ids(&found(lookup), "m"), [[1], [2]]);
    let union = json!({"$unionWith": {"pipeline": [{"$documents": [{"_id": 9}]}]}});
    assert_eq!(found(union).last(), Some(&json!({"_id": 9})));
}

#[test]
fn unions_follow_the_documents() {
    let collections = json!({"c": [{"_id": 1, "v": 1}, {"_id": 2, "v": 2}]});
    let locals = json!([{"_id": "a"}]);
    let found = |stages: Json| run(&stages, &locals, &collections);
    assert_eq!(found(json!([{"$unionWith": "c"}])).len(), 3);
    assert_eq!(
        found(
            json!([{"$unionWith": {"coll": "c", "pipeline": [{"$match": {"v": 2}}]}}, {"$unionWith": "c"}, {"$count": "n"}])
        ),
        [json!({"n": 4})]
    );
    assert_eq!(found(json!([{"$unionWith": "c"}, {"$limit": 1}])), [json!({"_id": "a"})]);
    assert_eq!(found(json!([{"$unionWith": "none"}])), [json!({"_id": "a"})]);
}

#[test]
fn a_batch_is_one_query_and_a_pipeline_without_variables_runs_once() {
    let locals: Json = (0..544).map(|n| json!({"_id": n, "k": n % 50, "own": n})).collect();
    let others: Json = (0..60).map(|n| json!({"_id": n, "k": n})).collect();
    let queries = |stage: Json| {
        let (results, queries) = run_within(&json!([stage]), &locals, &json!({"c": others}), 1 << 20).unwrap();
        assert_eq!(results.len(), 544);
        queries
    };
    // 32, 64, 128, 256, and the last 64.
    assert_eq!(queries(json!({"$lookup": {"from": "c", "localField": "own", "foreignField": "k", "as": "m"}})), 5);
    let by_variable = json!({"$lookup": {"from": "c", "let": {"v": "$own"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$k", "$$v"]}}}], "as": "m"}});
    assert_eq!(queries(by_variable), 5);
    // The first two have found the documents of all 50 values.
    assert_eq!(queries(json!({"$lookup": {"from": "c", "localField": "k", "foreignField": "k", "as": "m"}})), 2);
    assert_eq!(queries(json!({"$lookup": {"from": "c", "pipeline": [{"$count": "n"}], "as": "m"}})), 1);
    let each = json!({"$lookup": {"from": "c", "let": {"v": "$k"}, "pipeline": [{"$match": {"$expr": {"$lt": ["$k", "$$v"]}}}], "as": "m"}});
    assert_eq!(queries(each), 544);
    // The first ten documents need no more than one batch.
    let limited = json!([{"$lookup": {"from": "c", "localField": "k", "foreignField": "k", "as": "m"}}, {"$unwind": "$m"}, {"$limit": 10}]);
    let (results, queries) = run_within(&limited, &locals, &json!({"c": others}), 1 << 20).unwrap();
    assert_eq!((results.len(), queries), (10, 1));
}

#[test]
fn a_document_that_becomes_too_large_is_refused_unless_its_results_are_unwound() {
    let others: Json = (0..18).map(|n| json!({"_id": n, "k": 1, "s": "x".repeat(1 << 20)})).collect();
    for stage in [
        json!({"from": "c", "localField": "k", "foreignField": "k", "as": "m"}),
        json!({"from": "c", "pipeline": [], "as": "m"}),
    ] {
        let stages = json!([{"$lookup": stage}, {"$unwind": "$m"}, {"$group": {"_id": null, "n": {"$sum": 1}}}]);
        assert_eq!(run(&stages, &json!([{"k": 1}]), &json!({"c": others}))[0]["n"], 18);
        let stages = json!([{"$lookup": stage}]);
        let refused = run_within(&stages, &json!([{"k": 1}]), &json!({"c": others}), 1 << 20).unwrap_err();
        assert_eq!(refused.kind, Kind::BSONObjectTooLarge);
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let lookup = |argument: Json| refusal(&json!([{"$lookup": argument}]));
    for argument in [
        json!(1),
        json!({}),
        json!({"From": "c", "as": "m", "localField": "a", "foreignField": "b"}),
        json!({"from": "c", "as": "m"}),
        json!({"from": "c", "as": "m", "localField": "a"}),
        json!({"from": "c", "as": "m", "localField": "a", "pipeline": []}),
        json!({"from": "c", "as": "m", "foreignField": "a", "pipeline": []}),
        json!({"as": "m", "localField": "a", "foreignField": "b"}),
        json!({"as": "m", "pipeline": [{"$match": {}}]}),
        json!({"from": 1, "as": "m", "pipeline": []}),
        json!({"from": {"db": "d", "coll": "c"}, "as": "m", "pipeline": []}),
        json!({"from": "c", "as": "m", "pipeline": [], "let": {"1a": 1}}),
        json!({"from": "c", "as": "m", "let": {"a": 1}, "localField": "a", "foreignField": "b"}),
    ] {
        assert_eq!(lookup(canonical(&argument)), 9, "{argument}");
        assert_eq!(lookup(argument.clone()), 9, "{argument}");
    }
    for (argument, code) in [
        (json!({"from": "c", "localField": "a", "foreignField": "b"}), 40414),
        (json!({"from": "c", "as": "", "pipeline": []}), 40352),
        (json!({"from": "c", "as": 1, "pipeline": []}), 14),
        (json!({"from": "c", "as": "m", "localField": 1, "foreignField": "b"}), 14),
        (json!({"from": "c", "as": "m", "pipeline": [], "let": 1}), 14),
        (json!({"from": "c", "as": "m", "pipeline": [], "other": 1}), 40415),
        (json!({"from": "c", "as": "m", "pipeline": {}}), 14),
        (json!({"from": "c", "as": "m", "pipeline": [1]}), 14),
        (json!({"from": "c", "as": "$m", "pipeline": []}), 16410),
        (json!({"from": "c", "as": "m.", "pipeline": []}), 40353),
        (json!({"from": "c", "as": "m", "localField": "$a", "foreignField": "b"}), 16410),
        (json!({"from": "", "as": "m", "pipeline": []}), 73),
        (json!({"from": "c", "as": "m", "pipeline": [{"$documents": []}]}), 73),
        (json!({"from": "c", "as": "m", "pipeline": [{"$limit": 1}, {"$documents": []}]}), 40602),
        (json!({"from": "c", "as": "m", "pipeline": [{"$out": "d"}]}), 51047),
        (json!({"from": "c", "as": "m", "pipeline": [{"$merge": {"into": "d"}}]}), 51047),
        (json!({"from": "c", "as": "m", "pipeline": [{"$set": {"a": "$$none"}}]}), 17276),
        (json!({"from": "c", "as": "m", "let": {"a": 1, "b": "$$a"}, "pipeline": []}), 17276),
        (json!({"from": "c", "as": "m", "pipeline": [{"$nope": 1}]}), 40324),
    ] {
        assert_eq!(lookup(argument.clone()), code, "{argument}");
    }
    let union = |argument: Json| refusal(&json!([{"$unionWith": argument}]));
    for (argument, code) in [
        (json!(1), 9),
        (json!({}), 9),
        (json!({"pipeline": []}), 9),
        (json!({"coll": 1}), 14),
        (json!({"coll": "c", "pipeline": 1}), 14),
        (json!({"coll": "c", "other": 1}), 40415),
        (json!(""), 73),
        (json!({"coll": "c", "pipeline": [{"$out": "d"}]}), 31441),
    ] {
        assert_eq!(union(argument.clone()), code, "{argument}");
    }
}

#[test]
fn pipelines_nest_to_a_depth_of_20() {
    let nested = |depth: usize| {
        let lookup = |pipeline: Json, _| json!([{"$lookup": {"from": "c", "as": "m", "pipeline": pipeline}}]);
        (0..depth).fold(json!([]), lookup)
    };
    assert_eq!(run(&nested(20), &json!([{"_id": 1}]), &json!({"c": [{"_id": 1}]})).len(), 1);
    assert_eq!(refusal(&nested(21)), 232);
    let mut facets = json!([{"$facet": {"f": nested(20)}}]);
    assert!(Pipeline::parse(facets.as_array().unwrap(), &Environment::default()).is_ok());
    facets = json!([{"$facet": {"f": nested(21)}}]);
    assert_eq!(refusal(&facets), 232);
}

#[test]
fn the_collections_that_a_pipeline_reads_are_known() {
    let stages = json!([
        {"$lookup": {"from": "a", "as": "m", "pipeline": [{"$unionWith": {"coll": "b", "pipeline": [{"$lookup": {"from": "c", "localField": "x", "foreignField": "y", "as": "z"}}]}}]}},
        {"$facet": {"f": [{"$graphLookup": {"from": "d", "startWith": 1, "connectFromField": "x", "connectToField": "y", "as": "z"}}]}},
    ]);
    let pipeline = Pipeline::parse(stages.as_array().unwrap(), &Environment::default()).unwrap();
    assert_eq!(pipeline.collections().into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
}

#[test]
fn stages_move_ahead_of_others_that_read_collections_and_into_their_pipelines() {
    let lookup = |pipeline: Option<Json>| {
        let mut stage = json!({"from": "c", "localField": "x", "foreignField": "y", "as": "m"});
        stage.as_object_mut().unwrap().extend(pipeline.map(|pipeline| ("pipeline".to_owned(), pipeline)));
        json!({"$lookup": stage})
    };
    let plain = || lookup(None);
    let unwind = json!({"$unwind": "$m"});
    let kept = [
        json!([plain(), {"$match": {"m.z": 2}}]),
        json!([plain(), {"$unwind": {"path": "$m", "preserveNullAndEmptyArrays": true}}, {"$match": {"m.z": 2}}]),
        json!([plain(), {"$unwind": {"path": "$m", "includeArrayIndex": "i"}}, {"$match": {"m.z": 2}}]),
        json!([plain(), unwind, {"$match": {"m": {"$ne": {}}}}]),
        json!([plain(), unwind, {"$match": {"$or": [{"m.z": 1}, {"k": 1}]}}]),
        json!([plain(), unwind, {"$match": {"$expr": {"$eq": ["$m.z", "$k"]}}}]),
        json!([plain(), {"$sort": {"m.z": 1}}]),
        json!([{"$unionWith": "c"}, {"$sort": {"a": 1}}]),
        json!([{"$unionWith": "c"}, {"$limit": 1}]),
        json!([{"$unionWith": "c"}, plain()]),
        json!([{"$unionWith": {"coll": "c", "pipeline": [{"$replaceWith": "$o"}]}}, {"$group": {"_id": "$a"}}]),
    ];
    let union = |pipeline: Json| json!({"$unionWith": {"coll": "c", "pipeline": pipeline}});
    let group = json!({"$group": {"_id": "$a", "n": {"$sum": "$b.c"}}});
    let moved = [
        (json!([plain(), unwind, {"$match": {"mm.z": 1}}]), json!([{"$match": {"mm.z": 1}}, plain(), unwind])),
        (
            json!([plain(), {"$match": {"k": 1, "m.z": 2}}, {"$limit": 3}]),
            json!([{"$match": {"k": 1}}, plain(), {"$match": {"m.z": 2}}, {"$limit": 3}]),
        ),
        (
            json!([plain(), unwind, {"$match": {"m.z": {"$gt": 2}, "$expr": {"$ne": ["$m.z", "$k"]}, "$nor": [{"m.a.b": 1}, {"$and": [{"m.c": 3}, {"m.z": 7}]}]}}]),
            json!([
                lookup(Some(json!([{"$match": {"$and": [{"z": {"$gt": 2}}, {"$nor": [{"a.b": 1}, {"$and": [{"c": 3}, {"z": 7}]}]}]}}]))),
                unwind,
                {"$match": {"$expr": {"$ne": ["$m.z", "$k"]}}},
            ]),
        ),
        (
            json!([lookup(Some(json!([{"$limit": 3}]))), unwind, {"$match": {"m.z": 2}}]),
            json!([lookup(Some(json!([{"$limit": 3}, {"$match": {"z": 2}}]))), unwind]),
        ),
        (json!([plain(), {"$sort": {"k": 1}}, {"$limit": 3}]), json!([{"$sort": {"k": 1}}, {"$limit": 3}, plain()])),
        (
            json!([{"$unionWith": "c"}, {"$match": {"a": 1}}, {"$set": {"b": 1}}, {"$unwind": "$c"}]),
            json!([{"$match": {"a": 1}}, {"$set": {"b": 1}}, {"$unwind": "$c"}, union(json!([{"$match": {"a": 1}}, {"$set": {"b": 1}}, {"$unwind": "$c"}]))]),
        ),
        (json!([{"$unionWith": "c"}, group]), json!([union(json!([{"$project": {"_id": 0, "a": 1, "b": 1}}])), group])),
        (
            json!([union(json!([{"$project": {"a": 1}}])), {"$match": {"a": 1}}, group]),
            json!([{"$match": {"a": 1}}, union(json!([{"$project": {"a": 1}}, {"$match": {"a": 1}}, {"$project": {"_id": 0, "a": 1, "b": 1}}])), group]),
        ),
    ];
    let of_kept = kept.into_iter().map(|stages| (stages.clone(), stages));
    for (stages, expected) in of_kept.chain(moved) {
        let pipeline = Pipeline::parse(stages.as_array().unwrap(), &Environment::default()).unwrap();
        assert_eq!(pipeline.rearranged().unwrap().to_json(), expected, "{stages}");
    }
}

/// A pipeline that moves stages into many others is not rearranged for long.
#[test]
fn rearranging_is_bounded() {
    let union = json!({"$unionWith": "c"});
    let joined = [json!({"$lookup": {"from": "c", "pipeline": [], "as": "m"}}), json!({"$unwind": "$m"})];
    let set = (0..500).map(|n| json!({"$set": {format!("f{n}"): 1}}));
    let filters = (0..998).map(|n| json!({"$match": {"$nor": [{"m.a": n}]}}));
    let unions: Vec<Json> = std::iter::repeat_n(union, 500).chain(set).collect();
    let filtered: Vec<Json> = joined.into_iter().chain(filters).collect();
    for stages in [unions, filtered] {
        let begun = std::time::Instant::now();
        let pipeline = Pipeline::parse(&stages, &Environment::default()).unwrap();
        pipeline.rearranged().unwrap();
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

// $graphLookup

fn graph(options: Json) -> Json {
    let mut stage = json!({"from": "people", "startWith": "$boss", "connectFromField": "boss", "connectToField": "name", "as": "chain"});
    stage.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    json!([{"$graphLookup": stage}])
}

fn people() -> Json {
    json!([
        {"_id": 1, "name": "Dev"}, {"_id": 2, "name": "Eliot", "boss": "Dev"}, {"_id": 3, "name": "Ron", "boss": "Eliot"},
        {"_id": 4, "name": "Andrew", "boss": ["Eliot", "Ron"]}, {"_id": 5, "name": "Asya", "boss": "Asya"},
    ])
}

#[test]
fn a_graph_is_searched_breadth_first() {
    let collections = json!({"people": people()});
    let found = |options: Json| run(&graph(options), &people(), &collections);
    assert_eq!(ids(&found(json!({})), "chain"), [vec![], vec![1], vec![1, 2], vec![1, 2, 3], vec![5]]);
    assert_eq!(ids(&found(json!({"maxDepth": 0})), "chain"), [vec![], vec![1], vec![2], vec![2, 3], vec![5]]);
    assert_eq!(
        ids(&found(json!({"restrictSearchWithMatch": {"name": {"$ne": "Eliot"}}})), "chain"),
        [vec![], vec![1], vec![], vec![3], vec![5]]
    );
    let depths = &found(json!({"depthField": "o.depth"}))[3]["chain"];
    assert_eq!(
        *depths,
        json!([
            {"_id": 1, "name": "Dev", "o": {"depth": 1}}, {"_id": 2, "name": "Eliot", "boss": "Dev", "o": {"depth": 0}},
            {"_id": 3, "name": "Ron", "boss": "Eliot", "o": {"depth": 0}},
        ])
    );
    let mut stages = graph(json!({"depthField": "depth"}));
    stages.as_array_mut().unwrap().push(json!({"$unwind": {"path": "$chain", "preserveNullAndEmptyArrays": true}}));
    assert_eq!(run(&stages, &people(), &collections).len(), 8);
    for stage_bytes in [0, 200] {
        assert_eq!(run_within(&graph(json!({})), &people(), &collections, stage_bytes).unwrap().0, found(json!({})));
    }
}

/// The searches of documents that are read ahead ask together; also where that exceeds the memory, they find the same.
#[test]
fn searches_ask_together() {
    // Chains of ten, and in each search five steps.
    let nodes: Json =
        (0..1000).map(|n| json!({"_id": n, "next": if n % 10 == 9 { json!(null) } else { json!(n + 1) }})).collect();
    let stage = json!([{"$graphLookup": {"from": "c", "startWith": "$next", "connectFromField": "next", "connectToField": "_id", "as": "m", "maxDepth": 4}}]);
    let expected: Vec<Vec<i64>> = (0..1000i64).map(|n| (n + 1..=(n / 10 * 10 + 9).min(n + 5)).collect()).collect();
    for (stage_bytes, most) in [(1 << 20, 50), (2000, 3000), (0, 5000)] {
        let (results, queries) = run_within(&stage, &nodes, &json!({"c": nodes}), stage_bytes).unwrap();
        assert_eq!(ids(&results, "m"), expected);
        assert!(queries <= most, "{queries} queries with {stage_bytes} bytes");
    }
    // The first document needs no others.
    let mut limited = stage.clone();
    limited.as_array_mut().unwrap().extend([json!({"$unwind": "$m"}), json!({"$limit": 5})]);
    assert_eq!(run_within(&limited, &nodes, &json!({"c": nodes}), 1 << 20).unwrap().1, 5);
}

/// MongoDB's limit of 100 MiB, whatever the memory of other stages: of documents found step by step, and at once.
#[test]
fn a_search_of_a_graph_is_limited() {
    let large = "x".repeat(15 << 20);
    let nodes =
        |count: i64| -> Json { (0..count).map(|n| json!({"_id": n, "next": n + 1, "k": 1, "s": large})).collect() };
    for (local, arrives) in [(json!({"a": 0}), "_id"), (json!({"a": 1}), "k")] {
        let stage = json!([
            {"$graphLookup": {"from": "c", "startWith": "$a", "connectFromField": "next", "connectToField": arrives, "as": "m"}},
            {"$unwind": "$m"}, {"$count": "n"},
        ]);
        let found = |count| run_within(&stage, &json!([local]), &json!({"c": nodes(count)}), 1 << 20);
        assert_eq!(found(6).unwrap().0, [json!({"n": 6})], "{arrives}");
        assert_eq!(found(7).unwrap_err().kind.code(), 40099, "{arrives}");
    }
    // What earlier searches have found does not count.
    let each = json!([
        {"$graphLookup": {"from": "c", "startWith": "$a", "connectFromField": "next", "connectToField": "_id", "as": "m", "maxDepth": 0}},
        {"$unwind": "$m"}, {"$count": "n"},
    ]);
    let locals: Json = (0..8).map(|n| json!({"a": n})).collect();
    for stage_bytes in [1 << 20, 1 << 30] {
        assert_eq!(run_within(&each, &locals, &json!({"c": nodes(8)}), stage_bytes).unwrap().0, [json!({"n": 8})]);
    }
}

#[test]
fn null_does_not_lead_to_missing_fields_in_a_graph() {
    let documents = json!([{"_id": 0, "x": 1, "y": 1}, {"_id": 1, "x": 1, "y": null}, {"_id": 3, "x": 1}]);
    let stage = |start: Json| json!([{"$graphLookup": {"from": "c", "startWith": start, "connectFromField": "x", "connectToField": "y", "as": "m", "maxDepth": 0}}]);
    let collections = json!({"c": documents});
    assert_eq!(ids(&run(&stage(json!("$y")), &documents, &collections), "m"), [vec![0], vec![1], vec![]]);
    assert_eq!(ids(&run(&stage(json!(null)), &documents, &collections), "m"), vec![vec![1]; 3]);
}

#[test]
fn wrong_arguments_of_a_graph_are_refused() {
    let mut without = graph(json!({}));
    without[0]["$graphLookup"].as_object_mut().unwrap().remove("from");
    assert_eq!(refusal(&without), 9);
    for name in ["startWith", "connectFromField", "connectToField", "as"] {
        let mut without = graph(json!({}));
        without[0]["$graphLookup"].as_object_mut().unwrap().remove(name);
        assert_eq!(refusal(&without), 40105, "{name}");
    }
    assert_eq!(refusal(&json!([{"$graphLookup": 4}])), 9);
    for (option, code) in [
        (json!({"maxDepth": "s"}), 40100),
        (json!({"maxDepth": -1}), 40101),
        (json!({"maxDepth": 2.3}), 40102),
        (json!({"from": -1}), 9),
        (json!({"from": ""}), 73),
        (json!({"as": 0}), 40103),
        (json!({"as": "$o"}), 16410),
        (json!({"connectFromField": 0}), 40103),
        (json!({"connectFromField": "$b"}), 16410),
        (json!({"connectToField": 0}), 40103),
        (json!({"depthField": "$d"}), 16410),
        (json!({"restrictSearchWithMatch": "no"}), 40185),
        (json!({"other": 1}), 40104),
    ] {
        assert_eq!(refusal(&graph(option.clone())), code, "{option}");
    }
}

// Random documents

fn value() -> impl Strategy<Value = Json> {
    let leaf = || {
        prop_oneof![
            Just(json!(null)),
            (0i64..4).prop_map(Json::from),
            Just(json!(1.0)),
            Just(json!("a")),
            Just(json!({}))
        ]
    };
    prop_oneof![4 => leaf(), 2 => prop::collection::vec(leaf(), 0..3).prop_map(Json::from), 1 => leaf().prop_map(|one| json!({"d": one})),
        1 => prop::collection::vec(leaf().prop_map(|one| json!({"d": one})), 0..3).prop_map(Json::from)]
}

fn documents() -> impl Strategy<Value = Json> {
    prop::collection::vec((prop::option::of(value()), prop::option::of(value())), 0..40).prop_map(|fields| {
        let document = |(number, (a, b)): (usize, (Option<Json>, Option<Json>))| {
            let mut document = Map::from_iter([("_id".to_owned(), json!(number))]);
            document.extend(a.map(|a| ("a".to_owned(), a)));
            document.extend(b.map(|b| ("b".to_owned(), b)));
            Json::Object(document)
        };
        fields.into_iter().enumerate().map(document).collect()
    })
}

/// The values of a field as one side of the equality: elements for arrays, null for none.
fn values_of(document: &Json, path: &str) -> Vec<Json> {
    let (head, rest) = path.split_once('.').map_or((path, None), |(head, rest)| (head, Some(rest)));
    let mut values = Vec::new();
    match (document.get(head), rest) {
        (None, _) => {}
        (Some(Json::Array(items)), None) => values.extend(items.iter().cloned()),
        (Some(value), None) => values.push(value.clone()),
        (Some(Json::Array(items)), Some(rest)) => values.extend(
            items
                .iter()
                .filter_map(|item| item.get(rest))
                .flat_map(|value| if let Json::Array(items) = value { items.clone() } else { vec![value.clone()] }),
        ),
        (Some(value), Some(rest)) => match value.get(rest) {
            Some(Json::Array(items)) => values.extend(items.iter().cloned()),
            other => values.extend(other.cloned()),
        },
    }
    if values.is_empty() { vec![Json::Null] } else { values }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn batches_find_what_a_query_for_each_document_finds(
        locals in documents(),
        others in documents(),
        local in prop::sample::select(vec!["a", "b", "a.d", "_id"]),
        foreign in prop::sample::select(vec!["a", "b", "a.d", "_id"]),
        stage_bytes in prop::sample::select(vec![0usize, 100, 1000, 1 << 20]),
    ) {
        let collections = json!({"c": others});
        let stages = json!([{"$lookup": {"from": "c", "localField": local, "foreignField": foreign, "as": "m"}}]);
        let (found, _) = run_within(&stages, &locals, &collections, stage_bytes).unwrap();
        let database = database(&collections);
        for (document, found) in locals.as_array().unwrap().iter().zip(&found) {
            let equal: Vec<Json> = values_of(document, local).into_iter().map(|value| json!({foreign: {"$eq": value}})).collect();
            let mut stream = database.read(Some("c"), &[json!({"$match": {"$or": equal}})], &Environment::default()).unwrap();
            let mut expected = Vec::new();
            while stream.advance().unwrap() {
                expected.push(read(stream.bytes()));
            }
            prop_assert_eq!(&found["m"], &Json::from(expected), "{}", document);
        }
        prop_assert_eq!(found.len(), locals.as_array().unwrap().len());
    }

    #[test]
    fn memory_and_unwinding_at_once_do_not_matter(
        locals in documents(),
        others in documents(),
        lookup in prop::sample::select(vec![
            json!({"localField": "a", "foreignField": "b"}),
            json!({"localField": "a", "foreignField": "a", "pipeline": [{"$match": {"b": {"$ne": 1}}}, {"$sort": {"_id": -1}}, {"$limit": 2}]}),
            json!({"let": {"v": "$a"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$$v", "$b"]}}}, {"$set": {"w": "$$v"}}]}),
            json!({"let": {"v": "$a"}, "localField": "b", "foreignField": "b", "pipeline": [{"$match": {"a": 1}}, {"$project": {"same": {"$eq": ["$a", "$$v"]}}}]}),
            json!({"let": {"v": "$a"}, "pipeline": [{"$group": {"_id": {"$lt": ["$b", "$$v"]}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]}),
            json!({"pipeline": [{"$match": {"a": 1}}]}),
        ]),
        target in prop::sample::select(vec!["m", "a", "n.m"]),
        preserves in any::<bool>(),
        stage_bytes in prop::sample::select(vec![0usize, 100, 1000]),
    ) {
        let mut lookup = lookup;
        lookup["from"] = json!("c");
        lookup["as"] = json!(target);
        let unwind = json!({"$unwind": {"path": format!("${target}"), "includeArrayIndex": "n.at", "preserveNullAndEmptyArrays": preserves}});
        let collections = json!({"c": others});
        let apart = json!([{"$lookup": lookup}, {"$match": {}}, unwind]);
        let (expected, _) = run_within(&apart, &locals, &collections, 1 << 20).unwrap();
        let together = json!([{"$lookup": lookup}, unwind]);
        let (found, _) = run_within(&together, &locals, &collections, stage_bytes).unwrap();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn rearranged_joins_return_the_same(
        stages in prop::collection::vec(stage(), 1..6),
        locals in documents(),
        others in documents(),
    ) {
        let collections = json!({"c": others});
        let naive = run_within(&Json::from(stages.clone()), &locals, &collections, 1 << 20);
        let pipeline = Pipeline::parse(&stages, &Environment::default()).unwrap();
        let rearranged = pipeline.rearranged().unwrap().to_json();
        let again = Pipeline::parse(rearranged.as_array().unwrap(), &Environment::default()).unwrap().rearranged().unwrap();
        prop_assert_eq!(again.to_json(), rearranged.clone());
        let found = run_within(&rearranged, &locals, &collections, 1 << 20);
        if let Ok((naive, _)) = naive {
            prop_assert_eq!(found.map(|(found, _)| found), Ok(naive), "{}", rearranged);
        }
    }
}

/// Stages among which some read another collection, and others that may move around them.
fn stage() -> impl Strategy<Value = Json> {
    prop::sample::select(vec![
        json!({"$lookup": {"from": "c", "localField": "a", "foreignField": "b", "as": "m"}}),
        json!({"$lookup": {"from": "c", "localField": "b", "foreignField": "_id", "as": "m", "pipeline": [{"$match": {"a": 1}}]}}),
        json!({"$lookup": {"from": "c", "let": {"v": "$a"}, "as": "m", "pipeline": [{"$match": {"$expr": {"$eq": ["$$v", "$b"]}}}, {"$sort": {"_id": -1}}, {"$limit": 2}]}}),
        json!({"$lookup": {"from": "c", "as": "a.m", "pipeline": [{"$limit": 3}]}}),
        json!({"$graphLookup": {"from": "c", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "m", "maxDepth": 1}}),
        json!({"$unwind": "$m"}),
        json!({"$unwind": "$m"}),
        json!({"$unwind": "$a.m"}),
        json!({"$unwind": {"path": "$m", "preserveNullAndEmptyArrays": true}}),
        json!({"$unwind": {"path": "$m", "includeArrayIndex": "at"}}),
        json!({"$match": {"m.a": {"$gte": 1}}}),
        json!({"$match": {"m.b": null, "a": {"$ne": 2}}}),
        json!({"$match": {"m.a.d": 1}}),
        json!({"$match": {"m": {"$ne": {"_id": 1}}}}),
        json!({"$match": {"$nor": [{"m.a": 1}, {"$and": [{"m.b": "a"}, {"m._id": {"$lt": 9}}]}]}}),
        json!({"$match": {"a.m.a": {"$not": {"$elemMatch": {"$gt": 1}}}}}),
        json!({"$match": {"$expr": {"$lt": ["$m._id", "$_id"]}, "m._id": {"$in": [1, 2, 3]}}}),
        json!({"$match": {"b": {"$exists": true}}}),
        json!({"$unionWith": "c"}),
        json!({"$unionWith": {"coll": "c", "pipeline": [{"$match": {"a": 1}}, {"$set": {"m": "$$ROOT"}}]}}),
        json!({"$unionWith": {"coll": "c", "pipeline": [{"$unwind": "$a"}, {"$replaceWith": {"a": "$a", "b": "$_id"}}]}}),
        json!({"$set": {"b": {"$ifNull": ["$m", "$a"]}}}),
        json!({"$project": {"a": 1, "m": 1}}),
        json!({"$unset": "a"}),
        json!({"$sort": {"b": 1, "_id": 1}}),
        json!({"$sort": {"m": 1, "_id": -1}}),
        json!({"$limit": 7}),
        json!({"$skip": 2}),
        json!({"$group": {"_id": "$b", "n": {"$sum": 1}, "a": {"$first": "$a"}}}),
        json!({"$count": "n"}),
    ])
}
