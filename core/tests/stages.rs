//! Stages: what a division over shards comes to, and what they say of their fields.

mod common;

use common::*;
use docshard_core::error::Kind;
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{Pipeline, Run, STAGES, Written};
use docshard_core::values::document::raw;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn pipeline(stages: &[Json]) -> Pipeline {
    Pipeline::parse(stages, &Environment::default()).unwrap()
}

fn all(mut run: Run<'_>, documents: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut results = Vec::new();
    for document in documents {
        if run.has_ended() {
            break;
        }
        results.extend(run.next(raw::document(document).unwrap()).unwrap().map(|bytes| bytes.into_owned()));
    }
    results
}

fn stage() -> impl Strategy<Value = Json> {
    prop_oneof![
        (0i64..4).prop_map(|a| json!({"$match": {"a": {"$gte": a}}})),
        (1i64..6).prop_map(|most| json!({"$limit": most})),
        (0i64..6).prop_map(|first| json!({"$skip": first})),
        Just(json!({"$set": {"b": {"$add": ["$a", 1]}}})),
        Just(json!({"$addFields": {"a": "$b"}})),
        Just(json!({"$unset": "b"})),
        Just(json!({"$project": {"a": 1}})),
        Just(json!({"$replaceWith": {"a": "$b", "c": "$$ROOT"}})),
        Just(json!({"$replaceRoot": {"newRoot": "$$ROOT"}})),
    ]
}

fn documents() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec((0i64..6, 0i64..6), 0..20)
        .prop_map(|values| values.into_iter().map(|(a, b)| bytes(&json!({"a": a, "b": b}))).collect())
}

proptest! {
    #[test]
    fn a_division_comes_to_the_same(
        stages in prop::collection::vec(stage(), 0..5),
        documents in documents(),
        cuts in prop::collection::vec(0usize..21, 0..4),
    ) {
        let pipeline = pipeline(&stages);
        let division = pipeline.division();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(documents.len())).chain([0, documents.len()]).collect();
        cuts.sort_unstable();
        let shards = cuts.windows(2).map(|part| all(pipeline.run(0..division.at_shards), &documents[part[0]..part[1]]));
        let of_shards: Vec<Vec<u8>> = shards.flatten().collect();
        let merged = all(pipeline.run(division.merging_from..stages.len()), &of_shards);
        prop_assert_eq!(merged, all(pipeline.run_all(), &documents), "{:?} {:?}", stages, division);
    }

    /// A stage that makes of a document what it makes of it alone, wherever it stands among others.
    #[test]
    fn what_remembers_nothing_looks_at_one_document(stage in stage(), documents in documents()) {
        let pipeline = pipeline(std::slice::from_ref(&stage));
        let (operator, _) = pipeline.stages().next().unwrap();
        if !operator.remembers {
            let apart: Vec<_> = documents.iter().flat_map(|one| all(pipeline.run_all(), std::slice::from_ref(one))).collect();
            prop_assert_eq!(all(pipeline.run_all(), &documents), apart, "{}", stage);
        }
    }

    /// A field that a stage does not write stays what it is.
    #[test]
    fn what_is_not_written_stays(stage in stage(), documents in documents()) {
        let pipeline = pipeline(std::slice::from_ref(&stage));
        let (_, fields) = pipeline.stages().next().unwrap();
        let written = |name: &str| match &fields.written {
            Written::Only(paths) => paths.contains(name),
            Written::AllBut(paths) => !paths.contains(name),
        };
        for document in &documents {
            let document = raw::document(document).unwrap();
            let Some(made) = pipeline.run_all().next(document).unwrap() else { continue };
            for name in ["a", "b"].into_iter().filter(|name| !written(name)) {
                prop_assert!(document.has_same(raw::document(&made).unwrap(), name), "{} {}", stage, name);
            }
        }
    }
}

#[test]
fn fields_are_told() {
    let of = |stage: Json| {
        let (_, fields) = pipeline(&[stage]).stages().next().unwrap();
        let list = |paths: &std::collections::BTreeSet<String>| paths.iter().cloned().collect::<Vec<_>>().join(" ");
        let written = match &fields.written {
            Written::Only(paths) => list(paths),
            Written::AllBut(paths) => format!("but {}", list(paths)),
        };
        (fields.read.as_ref().map_or("*".to_owned(), list), written)
    };
    for (stage, read, written) in [
        (json!({"$match": {"a.b": 1, "$or": [{"c": 2}]}}), "a.b c", ""),
        (json!({"$match": {"$expr": {"$eq": ["$a", "$b"]}}}), "*", ""),
        (json!({"$set": {"x.y": {"$add": ["$a", {"$let": {"vars": {"v": "$b"}, "in": "$$v"}}]}}}), "a b", "x.y"),
        (json!({"$unset": ["a", "b.c"]}), "", "a b.c"),
        (json!({"$project": {"_id": 0, "a.b": 1, "n": "$m"}}), "m", "but a.b"),
        (json!({"$replaceWith": "$o"}), "o", "but "),
        (json!({"$set": {"all": "$$ROOT"}}), "*", "all"),
        (json!({"$limit": 1}), "", ""),
    ] {
        assert_eq!(of(stage.clone()), (read.to_owned(), written.to_owned()), "{stage}");
    }
}

#[test]
fn malformed_stages_are_refused() {
    for (stage, kind) in [
        (json!({"$match": 1}), Kind::Location(15959)),
        (json!({"$limit": 0}), Kind::Location(15958)),
        (json!({"$limit": "x"}), Kind::Location(5107201)),
        (json!({"$skip": -1}), Kind::Location(5107200)),
        (json!({"$group": {"_id": 1}}), Kind::NotImplemented),
        (json!({"$nope": 1}), Kind::Location(40324)),
        (json!({}), Kind::Location(40323)),
        (json!(1), Kind::TypeMismatch),
    ] {
        assert_eq!(
            Pipeline::parse(std::slice::from_ref(&stage), &Environment::default()).unwrap_err().kind,
            kind,
            "{stage}"
        );
    }
    assert!(STAGES.iter().all(|stage| stage.keeps_order));
}
