//! `$merge` and `$out`: what they understand, and which document of the target one of the pipeline matches.

mod common;

use common::*;
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{Merging, Pipeline, Sink, WhenMatched, WhenNotMatched, target_filter, with_nulls};
use docshard_core::values::collation::Collator;
use docshard_core::values::document::ext_json;
use serde_json::{Value as Json, json};

fn parse(pipeline: &Json) -> Result<Pipeline, i32> {
    Pipeline::parse(pipeline.as_array().unwrap(), &Environment::default()).map_err(|error| error.kind.code())
}

fn code(pipeline: &Json) -> i32 {
    parse(pipeline).map(|_| ()).expect_err(&pipeline.to_string())
}

fn with_merging<R>(argument: Json, use_merging: impl FnOnce(&Merging) -> R) -> R {
    let pipeline = parse(&json!([{"$match": {}}, {"$merge": argument}])).unwrap();
    match pipeline.sink() {
        Some(Sink::Merge(merging)) => use_merging(merging),
        other => panic!("{other:?}"),
    }
}

#[test]
fn merge_arguments() {
    with_merging(json!("out"), |merging| {
        assert_eq!(merging.matched, WhenMatched::Merge);
        assert_eq!((merging.not_matched, &merging.on), (WhenNotMatched::Insert, &None));
    });
    let full = json!({"into": {"db": "d", "coll": "c"}, "on": ["a", "b.c"], "whenMatched": "replace", "whenNotMatched": "fail"});
    with_merging(full, |merging| {
        assert_eq!(merging.on.as_deref(), Some(&["a".to_owned(), "b.c".to_owned()][..]));
        assert_eq!((&merging.matched, merging.not_matched), (&WhenMatched::Replace, WhenNotMatched::Fail));
    });
    for (into, expected) in [
        (json!("c"), "here.c"),
        (json!({"coll": "c"}), "here.c"),
        (json!({"db": "", "coll": "c"}), "here.c"),
        (json!({"db": "d", "coll": "c.e"}), "d.c.e"),
    ] {
        let pipeline = parse(&json!([{"$merge": {"into": into}}])).unwrap();
        assert_eq!(pipeline.sink().unwrap().target().namespace("here"), expected);
    }
    assert!(parse(&json!([{"$match": {}}])).unwrap().sink().is_none());
}

#[test]
fn wrong_arguments_of_merge() {
    for (argument, expected) in [
        (json!(1), 14),
        (json!(""), 73),
        (json!({}), 40414),
        (json!({"into": "c", "other": 1}), 40415),
        (json!({"into": 1}), 51178),
        (json!({"into": ""}), 5786800),
        (json!({"into": {"db": "d"}}), 5786801),
        (json!({"into": {"db": "d", "coll": "c", "x": 1}}), 40415),
        (json!({"into": {"db": 1, "coll": "c"}}), 14),
        (json!({"into": "c", "on": 2.5}), 51186),
        (json!({"into": "c", "on": {"_id": 1}}), 51186),
        (json!({"into": "c", "on": []}), 51187),
        (json!({"into": "c", "on": ["a", 1]}), 51134),
        (json!({"into": "c", "on": [["_id"]]}), 51134),
        (json!({"into": "c", "on": ["a", "a"]}), 31465),
        (json!({"into": "c", "on": "$a"}), 16410),
        (json!({"into": "c", "whenMatched": "other"}), 2),
        (json!({"into": "c", "whenMatched": "pipeline"}), 2),
        (json!({"into": "c", "whenMatched": 1}), 51191),
        (json!({"into": "c", "whenNotMatched": "other"}), 2),
        (json!({"into": "c", "whenNotMatched": 1}), 14),
        (json!({"into": "c", "let": {"a": 1}}), 51199),
        (json!({"into": "c", "whenMatched": [], "let": 1}), 14),
        (json!({"into": "c", "whenMatched": [], "let": {"new": 1}}), 51273),
        (json!({"into": "c", "whenMatched": [], "let": {"$a": 1}}), 9),
        (json!({"into": "c", "whenMatched": [{"$set": {"a": "$$other"}}]}), 17276),
        (json!({"into": "c", "whenMatched": [{"$match": {}}]}), 72),
        (json!({"into": "c", "whenMatched": [{"$nothing": {}}]}), 40324),
    ] {
        assert_eq!(code(&json!([{"$merge": argument}])), expected, "{argument}");
    }
    let pipeline = json!([]);
    for (matched, not_matched, works) in [
        (json!("replace"), "insert", true),
        (json!("replace"), "discard", true),
        (json!("replace"), "fail", true),
        (json!("merge"), "insert", true),
        (json!("merge"), "discard", true),
        (json!("merge"), "fail", true),
        (pipeline.clone(), "insert", true),
        (pipeline.clone(), "discard", true),
        (pipeline, "fail", true),
        (json!("keepExisting"), "insert", true),
        (json!("keepExisting"), "discard", false),
        (json!("keepExisting"), "fail", false),
        (json!("fail"), "insert", true),
        (json!("fail"), "discard", false),
        (json!("fail"), "fail", false),
    ] {
        let parsed = parse(&json!([{"$merge": {"into": "c", "whenMatched": matched, "whenNotMatched": not_matched}}]));
        assert_eq!(parsed.map(|_| ()), if works { Ok(()) } else { Err(51181) }, "{matched} {not_matched}");
    }
}

/// The variables have no values yet when the pipeline is checked.
#[test]
fn a_pipeline_applies_operators_to_its_variables() {
    for expression in [
        json!({"$size": "$$new.tags"}),
        json!({"$strLenBytes": "$$text"}),
        json!({"$add": [{"$size": "$$new.tags"}, {"$arrayElemAt": ["$$new.tags", 0]}]}),
    ] {
        let update = json!([{"$set": {"n": expression}}]);
        let merge = json!({"into": "c", "let": {"text": "$text"}, "whenMatched": update});
        assert_eq!(parse(&json!([{"$merge": merge}])).map(|_| ()), Ok(()), "{expression}");
    }
}

#[test]
fn arguments_of_out() {
    for (argument, expected) in [
        (json!("c"), Ok("here.c")),
        (json!({"db": "d", "coll": "c"}), Ok("d.c")),
        (json!(1), Err(16990)),
        (json!(["c"]), Err(16990)),
        (json!(""), Err(73)),
        (json!({}), Err(40414)),
        (json!({"coll": "c"}), Err(40414)),
        (json!({"db": "d"}), Err(40414)),
        (json!({"db": "d", "coll": 1}), Err(14)),
        (json!({"db": "d", "coll": "c", "x": 1}), Err(40415)),
    ] {
        let parsed = parse(&json!([{"$out": argument}]));
        let found = parsed.map(|pipeline| match pipeline.sink() {
            Some(Sink::Out(target)) => target.namespace("here"),
            other => panic!("{other:?}"),
        });
        assert_eq!(found, expected.map(str::to_owned), "{argument}");
    }
}

#[test]
fn a_stage_that_writes_comes_last() {
    assert_eq!(code(&json!([{"$out": "c"}, {"$match": {}}])), 40601);
    assert_eq!(code(&json!([{"$facet": {"a": [{"$out": "c"}]}}])), 40600);
    assert_eq!(code(&json!([{"$merge": "c"}, {"$match": {}}])), 40601);
    assert_eq!(code(&json!([{"$merge": "c"}, {"$merge": "c"}])), 40601);
    assert_eq!(code(&json!([{"$facet": {"a": [{"$merge": "c"}]}}])), 40600);
}

#[test]
fn a_pipeline_that_writes_keeps_its_sink_where_documents_come_together() {
    let pipeline = parse(&json!([{"$match": {"a": 1}}, {"$set": {"b": 1}}, {"$merge": "c"}])).unwrap();
    let (_, rest) = pipeline.rearranged().unwrap().find();
    assert!(rest.sink().is_some());
    let division = rest.divided(Some(&["a"])).unwrap();
    assert!(division.at_shards.sink().is_none());
    assert_eq!(division.merging.to_json(), json!([{"$merge": "c"}]));
}

#[test]
fn a_stage_that_describes_the_collection_or_the_cluster_comes_first() {
    use docshard_core::query::stage::CatalogParts;
    use docshard_core::query::stage::Statistics::{Catalog, Collection, Distribution, Indexes, Operations};
    for (stage, expected) in [
        (json!({"$indexStats": {}}), Ok(Indexes)),
        (json!({"$listClusterCatalog": {}}), Ok(Catalog(CatalogParts::default()))),
        (
            json!({"$listClusterCatalog": {"shards": true, "balancingConfiguration": true, "tracked": false}}),
            Ok(Catalog(CatalogParts { shards: true, balancing: true, tracked: false })),
        ),
        (json!({"$listClusterCatalog": {"shards": 1}}), Err(14)),
        (json!({"$listClusterCatalog": {"other": true}}), Err(40415)),
        (json!({"$listClusterCatalog": []}), Err(9_621_302)),
        (json!({"$shardedDataDistribution": {}}), Ok(Distribution)),
        (json!({"$shardedDataDistribution": {"a": 1}}), Err(40415)),
        (json!({"$currentOp": {"allUsers": true}}), Ok(Operations { idle: false, all_users: true })),
        (
            json!({"$currentOp": {"idleConnections": true, "truncateOps": false}}),
            Ok(Operations { idle: true, all_users: false }),
        ),
        (json!({"$currentOp": {"allUsers": "x"}}), Err(14)),
        (json!({"$currentOp": 1}), Err(9)),
        (json!({"$indexStats": {"a": 1}}), Err(28803)),
        (json!({"$indexStats": 1}), Err(28803)),
        (json!({"$collStats": {}}), Ok(Collection { count: false, storage: None })),
        (json!({"$collStats": {"count": {}}}), Ok(Collection { count: true, storage: None })),
        (
            json!({"$collStats": {"storageStats": {"scale": 1024.5}}}),
            Ok(Collection { count: false, storage: Some(1024) }),
        ),
        (json!({"$collStats": {"storageStats": {"scale": 0}}}), Err(2)),
        (json!({"$collStats": {"storageStats": {"scale": "1"}}}), Err(14)),
        (json!({"$collStats": {"storageStats": {"other": 1}}}), Err(40415)),
        (json!({"$collStats": {"latencyStats": {}}}), Err(238)),
        (json!({"$collStats": {"other": {}}}), Err(40415)),
        (json!({"$collStats": {"count": 1}}), Err(14)),
        (json!({"$collStats": 1}), Err(5447000)),
    ] {
        let parsed = parse(&json!([stage, {"$match": {"a": 1}}]));
        let found = parsed.map(|pipeline| {
            let pipeline = pipeline.rearranged().unwrap();
            assert!(!pipeline.makes_documents(), "it reads statistics");
            pipeline.statistics().cloned().unwrap()
        });
        assert_eq!(found, expected, "{stage}");
    }
    assert_eq!(code(&json!([{"$limit": 1}, {"$indexStats": {}}])), 40602);
    assert_eq!(code(&json!([{"$facet": {"a": [{"$collStats": {}}]}}])), 40600);
}

#[test]
fn documents_match_by_the_values_of_on() {
    let on = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let document_of = |json: Json| bytes(&json);
    for (document, paths, expected) in [
        (json!({"_id": 1}), on(&["_id"]), Ok(json!({"_id": {"$eq": 1}}))),
        (
            json!({"a": {"b": "x"}, "c": {"d": 1}}),
            on(&["a.b", "c"]),
            Ok(json!({"a.b": {"$eq": "x"}, "c": {"$eq": {"d": 1}}})),
        ),
        (json!({"a": 1}), on(&["b"]), Err(51132)),
        (json!({"a": null}), on(&["a"]), Err(51132)),
        (json!({"a": {"b": null}}), on(&["a.b"]), Err(51132)),
        (json!({"a": 1}), on(&["a.b"]), Err(51132)),
        (json!({"a": [{"b": 1}]}), on(&["a.b"]), Err(51132)),
        (json!({"a": {"b": [1]}}), on(&["a.b"]), Err(51185)),
        (json!({"a": []}), on(&["a"]), Err(51185)),
    ] {
        let stored = document_of(document.clone());
        let found = target_filter(common::document(&stored), &paths, false, None).map_err(|error| error.kind.code());
        assert_eq!(found.map(|(filter, _)| filter), expected, "{document} {paths:?}");
    }
}

#[test]
fn documents_without_a_value_match_null_if_the_index_has_it() {
    for (document, path, completed) in [
        (json!({"_id": 1}), "a", Some(json!({"_id": 1, "a": null}))),
        (json!({"_id": 1, "a": null}), "a", None),
        (json!({"a": {"c": 1}}), "a.b", Some(json!({"a": {"b": null, "c": 1}}))),
        (json!({"_id": 1}), "a.b.c", Some(json!({"_id": 1, "a": {"b": {"c": null}}}))),
        (json!({"a": 1}), "a.b", Some(json!({"a": 1}))),
        (json!({"a": null}), "a.b", Some(json!({"a": null}))),
    ] {
        let (stored, on) = (bytes(&document), [path.to_owned()]);
        let (filter, _) = target_filter(common::document(&stored), &on, true, None).unwrap();
        assert_eq!(filter, json!({path: {"$eq": null}}), "{document}");
        let found = with_nulls(common::document(&stored), &on).unwrap();
        assert_eq!(found.map(|value| ext_json::to_json(&value)), completed, "{document}");
    }
    for document in [json!({"a": [{"b": 1}]}), json!({"a": {"b": []}})] {
        let stored = bytes(&document);
        let refused = target_filter(common::document(&stored), &["a.b".to_owned()], true, None).unwrap_err();
        assert_eq!(refused.kind.code(), 51185, "{document}");
    }
}

#[test]
fn documents_that_match_the_same_one_have_one_key() {
    let collator = Collator::parse(&json!({"locale": "en", "strength": 2})).unwrap();
    let key = |document: Json, collator| {
        let stored = bytes(&document);
        target_filter(common::document(&stored), &["a".to_owned(), "b".to_owned()], false, collator).unwrap().1
    };
    let one = key(json!({"_id": 1, "a": 1, "b": "x"}), None);
    assert_eq!(key(json!({"b": "x", "a": {"$numberDecimal": "1.0"}}), None), one);
    assert_ne!(key(json!({"a": 1, "b": "X"}), None), one);
    assert_ne!(key(json!({"a": "x", "b": 1}), None), one);
    let collated = key(json!({"a": 1, "b": "x"}), collator.as_ref());
    assert_eq!(key(json!({"a": 1, "b": "X"}), collator.as_ref()), collated);
}

#[test]
fn variables_of_a_document() {
    let of = |argument: Json, from: Json| {
        with_merging(argument, |merging| {
            let stored = bytes(&from);
            Json::Object(merging.variables(document(&stored), &Environment::default()).unwrap())
        })
    };
    let from = json!({"_id": 1, "a": "$b"});
    let argument = json!({"into": "c", "whenMatched": [{"$set": {"x": "$$v", "y": "$$new.a"}}], "let": {"v": {"$concat": ["$a", "!"]}, "w": "$none"}});
    assert_eq!(of(argument, from), json!({"new": {"$literal": {"_id": 1, "a": "$b"}}, "v": {"$literal": "$b!"}}));
}
