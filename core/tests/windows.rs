//! `$setWindowFields`, `$fill` and `$densify`: windows hold what a plain reading of their bounds says, whatever the function.

mod common;

use common::pipelines::*;
use common::*;
use docshard_core::error::Kind;
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{Pipeline, WINDOW_FUNCTIONS};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// Accumulators of groups that are window functions, too.
fn function() -> impl Strategy<Value = Json> {
    prop::sample::select(vec![
        json!({"$sum": "$v"}),
        json!({"$sum": 1}),
        json!({"$avg": "$v"}),
        json!({"$count": {}}),
        json!({"$min": "$v"}),
        json!({"$max": "$v"}),
        json!({"$push": "$v"}),
        json!({"$addToSet": "$v"}),
        json!({"$concatArrays": {"$slice": [["$_id", "$v"], 2]}}),
        json!({"$setUnion": {"$slice": [["$v", "$_id", "$v"], 3]}}),
        json!({"$mergeObjects": {"v": "$v", "w": "$_id"}}),
        json!({"$stdDevPop": "$v"}),
        json!({"$stdDevSamp": "$v"}),
        json!({"$first": "$v"}),
        json!({"$last": "$v"}),
        json!({"$firstN": {"input": "$v", "n": 2}}),
        json!({"$lastN": {"input": "$_id", "n": 2}}),
        json!({"$minN": {"input": "$v", "n": 2}}),
        json!({"$maxN": {"input": "$v", "n": 2}}),
        json!({"$top": {"sortBy": {"v": -1}, "output": "$_id"}}),
        json!({"$topN": {"sortBy": {"v": 1}, "output": "$_id", "n": 2}}),
        json!({"$bottom": {"sortBy": {"v": -1}, "output": "$_id"}}),
        json!({"$bottomN": {"sortBy": {"v": 1}, "output": ["$v"], "n": 2}}),
        json!({"$median": {"input": "$v", "method": "approximate"}}),
        json!({"$percentile": {"input": "$v", "p": [0.1, 0.9], "method": "continuous"}}),
    ])
}

/// Bounds, each a number or a word.
fn bounds() -> impl Strategy<Value = [Json; 2]> {
    let bound = || prop_oneof![2 => Just(json!("current")), 2 => Just(json!("unbounded")), 6 => (-4i64..5).prop_map(Json::from)];
    (bound(), bound()).prop_map(|(lower, upper)| {
        let distance = |bound: &Json| if bound == "current" { Some(0) } else { bound.as_i64() };
        match (distance(&lower), distance(&upper)) {
            (Some(one), Some(other)) if one > other => [upper, lower],
            _ => [lower, upper],
        }
    })
}

fn documents() -> impl Strategy<Value = Vec<Json>> {
    let value = prop_oneof![
        6 => (-3i64..4).prop_map(Json::from),
        2 => prop::sample::select(vec![json!(0.5), json!(-1.25), json!(1e300), json!({"$numberDecimal": "0.1"})]),
        1 => prop::sample::select(vec![json!({"$numberDouble": "NaN"}), json!({"$numberDouble": "Infinity"}), json!({"$numberDecimal": "-Infinity"})]),
        1 => prop::sample::select(vec![json!(null), json!("s"), json!([1])]),
    ];
    let document = (
        0i64..3,
        prop::sample::select(vec![json!(0), json!(1), json!(1.5), json!(2), json!(4), json!(7)]),
        prop::option::of(value),
    );
    prop::collection::vec(document, 0..14).prop_map(|all| {
        let document = |(id, (partition, sort, value)): (usize, (i64, Json, Option<Json>))| {
            let mut document = json!({"_id": id, "p": partition, "s": sort});
            if let Some(value) = value {
                document["v"] = value;
            }
            document
        };
        all.into_iter().enumerate().map(document).collect()
    })
}

fn partitions(documents: &[Json]) -> Vec<Vec<Json>> {
    let sort = |document: &Json| document["s"].as_f64().unwrap();
    (0..3)
        .map(|partition| {
            let mut of_one: Vec<Json> =
                documents.iter().filter(|document| document["p"] == partition).cloned().collect();
            of_one.sort_by(|one, other| sort(one).total_cmp(&sort(other)));
            of_one
        })
        .collect()
}

/// The documents in the window of one, by their positions.
fn window(documents: &[Json], current: usize, bounds: &[Json; 2], is_range: bool) -> Vec<Json> {
    let sort = |position: usize| documents[position]["s"].as_f64().unwrap();
    let holds = |position: usize| {
        let reaches = |bound: &Json, is_lower: bool| {
            let (at, edge) = match bound.as_i64() {
                None if bound == "unbounded" => return true,
                None => (position as f64, current as f64),
                Some(distance) if is_range => (sort(position), sort(current) + distance as f64),
                Some(distance) => (position as f64, current as f64 + distance as f64),
            };
            if is_lower { at >= edge } else { at <= edge }
        };
        reaches(&bounds[0], true) && reaches(&bounds[1], false)
    };
    (0..documents.len()).filter(|position| holds(*position)).map(|position| documents[position].clone()).collect()
}

/// What the accumulator of a group makes of documents.
fn grouped(function: &Json, documents: &[Json]) -> Json {
    let group = json!([{"$group": {"_id": null, "r": function}}]);
    match aggregate(&group, &json!(documents)).unwrap().pop() {
        Some(group) => group["r"].clone(),
        // Of no documents.
        None => match function.as_object().unwrap().keys().next().unwrap().as_str() {
            "$sum" | "$count" => json!(0),
            "$push" | "$addToSet" | "$concatArrays" | "$setUnion" | "$firstN" | "$lastN" | "$minN" | "$maxN"
            | "$topN" | "$bottomN" => json!([]),
            "$mergeObjects" => json!({}),
            "$percentile" => json!([null, null]),
            _ => json!(null),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every window of an accumulator is a group of the documents in it.
    #[test]
    fn a_window_is_a_group_of_its_documents(
        function in function(),
        bounds in bounds(),
        is_range in any::<bool>(),
        documents in documents(),
    ) {
        let kind = if is_range { "range" } else { "documents" };
        let mut output = function.clone();
        output["window"] = json!({kind: bounds});
        let stage = json!([{"$setWindowFields": {"partitionBy": "$p", "sortBy": {"s": 1}, "output": {"r": output}}}]);
        let mut expected = Vec::new();
        for partition in partitions(&documents) {
            for current in 0..partition.len() {
                let mut document = partition[current].clone();
                document["r"] = grouped(&function, &window(&partition, current, &bounds, is_range));
                expected.push(document);
            }
        }
        let found = aggregate(&stage, &json!(documents)).unwrap();
        let expected: Vec<Json> = expected.iter().map(|document| read(&bytes(document))).collect();
        prop_assert_eq!(found, expected, "{}", stage);
    }

    /// A partition whose key holds the shard key is looked at where it is.
    #[test]
    fn partitions_by_the_shard_key_stay_at_their_shards(function in function(), bounds in bounds(), documents in documents()) {
        let mut output = function;
        output["window"] = json!({"documents": bounds});
        let stages = [json!({"$setWindowFields": {"partitionBy": {"x": "$p"}, "sortBy": {"s": 1}, "output": {"r": output}}})];
        let division = parse(&stages).rearranged().unwrap().divided(Some(&["p"])).unwrap();
        prop_assert_eq!(division.merging.stages().len(), 0);
        let shards: Vec<Vec<Vec<u8>>> = (0..3)
            .map(|shard| documents.iter().filter(|document| document["p"] == shard).map(bytes).collect())
            .collect();
        let all: Vec<Vec<u8>> = documents.iter().map(bytes).collect();
        let shards: Vec<&[Vec<u8>]> = shards.iter().map(Vec::as_slice).collect();
        let (naive, divided) = (run(&parse(&stages), &all), run_divided(&division, &shards, &memory(0)));
        prop_assert_eq!(naive.unwrap(), divided.unwrap());
    }

    /// New documents stand where a plain count from the lower bound gets to.
    #[test]
    fn densify_fills_all_steps(documents in documents(), step in 1i64..4, bounds in 0usize..3, partitioned in any::<bool>()) {
        let range = [json!("full"), json!("partition"), json!([-2, 6])][bounds].clone();
        prop_assume!(partitioned || range != "partition");
        let fields = if partitioned { json!(["p"]) } else { json!([]) };
        let stage = json!([{"$densify": {"field": "s", "partitionByFields": fields, "range": {"step": step, "bounds": range}}}]);
        let found = aggregate(&stage, &json!(documents)).unwrap();
        let sort = |document: &Json| document["s"].as_f64().unwrap();
        let extremes = |documents: &[Json]| {
            let all = documents.iter().map(sort);
            (all.clone().fold(f64::INFINITY, f64::min), all.fold(f64::NEG_INFINITY, f64::max))
        };
        let mut expected = Vec::new();
        let parts = if partitioned { partitions(&documents) } else { vec![documents.clone()] };
        let any = !documents.is_empty();
        for part in parts.iter().filter(|part| !part.is_empty() || !any) {
            expected.extend(part.iter().map(|document| (document["p"].as_i64(), sort(document))));
            let (least, greatest) = match bounds {
                0 => extremes(&documents),
                1 => extremes(part),
                _ => (-2.0, 5.9),
            };
            let mut at = least;
            while at <= greatest {
                if part.iter().all(|document| sort(document) != at) {
                    let partition = part.first().filter(|_| partitioned).and_then(|document| document["p"].as_i64());
                    expected.push((partition, at));
                }
                at += step as f64;
            }
            if !any {
                break;
            }
        }
        let mut found: Vec<_> = found.iter().map(|document| (document["p"].as_i64(), sort(document))).collect();
        let order = |one: &(Option<i64>, f64), other: &(Option<i64>, f64)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1));
        found.sort_by(order);
        expected.sort_by(order);
        prop_assert_eq!(found, expected, "{}", stage);
    }
}

/// What a function makes of documents `[s, v]`, sorted by `s`.
fn over(function: Json, rows: Json) -> Result<Vec<Json>, Kind> {
    let documents: Vec<Json> = rows.as_array().unwrap().iter().map(|row| json!({"s": row[0], "v": row[1]})).collect();
    let stage = json!([{"$setWindowFields": {"sortBy": {"s": 1}, "output": {"r": function}}}]);
    let found = aggregate(&stage, &json!(documents)).map_err(|error| error.kind)?;
    Ok(found.into_iter().map(|document| document["r"].clone()).collect())
}

#[test]
fn functions_of_windows_alone() {
    let day = |day: i64| json!({"$date": {"$numberLong": (day * 86_400_000).to_string()}});
    let rows = json!([[1, 5], [2, 5], [2, 7], [4, 1]]);
    for (function, rows, expected) in [
        (json!({"$rank": {}}), rows.clone(), json!([1, 2, 2, 4])),
        (json!({"$denseRank": {}}), rows.clone(), json!([1, 2, 2, 3])),
        (json!({"$documentNumber": {}}), rows.clone(), json!([1, 2, 3, 4])),
        (json!({"$shift": {"output": "$v", "by": 1}}), rows.clone(), json!([5, 7, 1, null])),
        (json!({"$shift": {"output": "$v", "by": -2, "default": "none"}}), rows, json!(["none", "none", 5, 5])),
        (json!({"$locf": "$v"}), json!([[1, null], [2, 3], [3, null], [4, 0]]), json!([null, 3, 3, 0])),
        (
            json!({"$linearFill": "$v"}),
            json!([[0, null], [1, 10], [2, null], [5, null], [6, 20], [7, null]]),
            json!([null, 10, 12.0, 18.0, 20, null]),
        ),
        (
            json!({"$linearFill": "$v"}),
            json!([[day(0), 1], [day(1), null], [day(2), null], [day(4), 9]]),
            json!([1, 3.0, 5.0, 9]),
        ),
        (
            json!({"$expMovingAvg": {"input": "$v", "N": 3}}),
            json!([[1, 13], [2, 15.4], [3, "x"], [4, 12]]),
            json!([13.0, 14.2, 14.2, 13.1]),
        ),
        (
            json!({"$expMovingAvg": {"input": "$v", "alpha": 0.75}}),
            json!([[1, 13], [2, 15.4], [4, 12]]),
            json!([13.0, 14.8, 12.7]),
        ),
        (
            json!({"$derivative": {"input": "$v"}, "window": {"documents": [-1, 0]}}),
            json!([[0, 1], [2, 5], [3, 4]]),
            json!([null, 2.0, -1.0]),
        ),
        (
            json!({"$derivative": {"input": "$v", "unit": "hour"}, "window": {"range": [-1, 0], "unit": "day"}}),
            json!([[day(0), 0], [day(1), 432], [day(3), 0]]),
            json!([null, 18.0, null]),
        ),
        (
            json!({"$integral": {"input": "$v"}, "window": {"documents": ["unbounded", "current"]}}),
            json!([[0, 2], [1, 4], [3, 4]]),
            json!([0, 3.0, 11.0]),
        ),
        (
            json!({"$integral": {"input": "$v", "unit": "day"}, "window": {"documents": [-1, "current"]}}),
            json!([[day(0), 2], [day(1), 4], [day(3), 4]]),
            json!([0.0, 3.0, 8.0]),
        ),
        (
            json!({"$covariancePop": ["$s", "$v"], "window": {"documents": ["unbounded", "current"]}}),
            json!([[1, 2], [2, 4], [3, "x"], [6, 12]]),
            json!([0.0, 0.5, 0.5, 28.0 / 3.0]),
        ),
        (
            json!({"$covarianceSamp": ["$s", "$v"], "window": {"documents": [-1, 0]}}),
            json!([[1, 2], [2, 4], [6, 12]]),
            json!([null, 1.0, 16.0]),
        ),
        // Nothing is left of a large number when it has gone.
        (
            json!({"$sum": "$v", "window": {"documents": [-1, 0]}}),
            json!([[1, 1e300], [2, 0.25], [3, 0.5]]),
            json!([1e300, 1e300, 0.75]),
        ),
        (
            json!({"$sum": "$v", "window": {"documents": [0, 0]}}),
            json!([[1, 0.5], [2, {"$numberDecimal": "1"}], [3, 2]]),
            json!([0.5, {"$numberDecimal": "1"}, 2]),
        ),
        (
            json!({"$push": "$v", "window": {"range": [-1, 1], "unit": "month"}}),
            json!([[{"$date": "2024-01-31T00:00:00Z"}, 1], [{"$date": "2024-02-29T00:00:00Z"}, 2], [{"$date": "2024-04-01T00:00:00Z"}, 3]]),
            json!([[1, 2], [1, 2], [3]]),
        ),
    ] {
        let expected: Vec<Json> = read(&bytes(&json!({"r": expected})))["r"].as_array().unwrap().clone();
        assert_eq!(over(function.clone(), rows).unwrap(), expected, "{function}");
    }
}

#[test]
fn a_shift_to_a_missing_value_gives_the_default() {
    let documents = json!([{"s": 1, "v": 5}, {"s": 2}, {"s": 3, "v": null}]);
    let output = json!({
        "r": {"$shift": {"output": "$v", "by": 1, "default": "none"}},
        "t": {"$shift": {"output": "$v", "by": 1}},
        "first": {"$first": "$v", "window": {"documents": [1, "unbounded"]}},
    });
    let found = aggregate(&json!([{"$setWindowFields": {"sortBy": {"s": 1}, "output": output}}]), &documents).unwrap();
    let found: Vec<_> = found.iter().map(|document| json!([document["r"], document["t"], document["first"]])).collect();
    assert_eq!(Json::from(found), json!([["none", null, null], [null, null, null], ["none", null, null]]));
}

#[test]
fn densified_values_have_the_type_of_the_last_document_of_the_series() {
    let decimal = |text: &str| json!({"$numberDecimal": text});
    let documents = json!([{"v": decimal("0")}, {"v": 0.5}, {"v": decimal("1")}]);
    let found =
        aggregate(&json!([{"$densify": {"field": "v", "range": {"step": 0.25, "bounds": "full"}}}]), &documents);
    let found: Vec<_> = found.unwrap().iter().map(|document| document["v"].clone()).collect();
    let expected = json!([decimal("0"), decimal("0.25"), 0.5, 0.75, decimal("1")]);
    assert_eq!(Json::from(found), expected);
}

#[test]
fn windows_of_wrong_types_are_refused() {
    let date = json!({"$date": {"$numberLong": "1"}});
    for (function, rows, code) in [
        (json!({"$sum": 1, "window": {"range": [0, 1]}}), json!([["x", 1]]), 5429414),
        (json!({"$sum": 1, "window": {"range": [0, 1]}}), json!([[date, 1]]), 5429413),
        (json!({"$sum": 1, "window": {"range": [0, 1], "unit": "day"}}), json!([[1, 1]]), 5429513),
        (json!({"$linearFill": "$v"}), json!([[1, 1], [1, 2]]), 6050106),
        (json!({"$linearFill": "$v"}), json!([[1, "x"]]), 14),
        (json!({"$linearFill": "$v"}), json!([["x", 1]]), 14),
        (json!({"$linearFill": "$v"}), json!([[1, 1], [date, 2]]), 14),
        (
            json!({"$derivative": {"input": "$v"}, "window": {"documents": [-1, 0]}}),
            json!([[date, 1], [date, 2]]),
            5624901,
        ),
        (
            json!({"$derivative": {"input": "$v", "unit": "day"}, "window": {"documents": [-1, 0]}}),
            json!([[1, 1]]),
            5624900,
        ),
        (json!({"$derivative": {"input": "$v"}, "window": {"documents": [-1, 0]}}), json!([["x", 1]]), 5624902),
        (json!({"$derivative": {"input": "$v"}, "window": {"documents": [-1, 0]}}), json!([[1, null]]), 5624903),
        (json!({"$integral": {"input": "$v"}}), json!([[date, 1]]), 5423902),
        (json!({"$integral": {"input": "$v", "unit": "day"}}), json!([[1, 1]]), 5423901),
        (json!({"$integral": {"input": "$v"}}), json!([[1, "x"]]), 5423900),
    ] {
        assert_eq!(over(function.clone(), rows).unwrap_err().code(), code, "{function}");
    }
}

#[test]
fn stages_are_refused() {
    let window = |output: Json| json!({"$setWindowFields": {"sortBy": {"s": 1}, "output": {"r": output}}});
    let unsorted = |output: Json| json!({"$setWindowFields": {"output": {"r": output}}});
    let bounds = |bounds: Json| window(json!({"$sum": 1, "window": bounds}));
    let densify = |range: Json| json!({"$densify": {"field": "s", "range": range}});
    let fill = |output: Json| json!({"$fill": {"sortBy": {"s": 1}, "output": output}});
    for (stage, code) in [
        (json!({"$setWindowFields": "x"}), 9),
        (json!({"$setWindowFields": {"sortBy": "x", "output": {}}}), 14),
        (json!({"$setWindowFields": {"output": "x"}}), 14),
        (json!({"$setWindowFields": {"sortBy": {"s": 1}}}), 40414),
        (json!({"$setWindowFields": {"what": 1}}), 40415),
        (json!({"$setWindowFields": {"partitionBy": [1], "output": {}}}), 14),
        (json!({"$setWindowFields": {"output": {"a": {"$sum": 1}, "a.b": {"$sum": 1}}}}), 6307900),
        (json!({"$setWindowFields": {"output": {"$a": {"$sum": 1}}}}), 16410),
        (json!({"$setWindowFields": {"output": {"": {"$sum": 1}}}}), 40352),
        (window(json!(1)), 9),
        (window(json!({})), 9),
        (window(json!({"sum": 1})), 9),
        (window(json!({"$summ": 1})), 9),
        (window(json!({"$accumulator": 1})), 9),
        (window(json!({"$minMaxScaler": {"input": "$a"}})), 238),
        (window(json!({"$sum": 1, "x": 1})), 9),
        (window(json!({"$sum": 1, "$avg": 1})), 9),
        (bounds(json!([0, 1])), 9),
        (bounds(json!({"documents": [0, 1], "range": [0, 1]})), 9),
        (bounds(json!({"documents": [0, 1], "unit": "day"})), 9),
        (bounds(json!({"documents": [0]})), 9),
        (bounds(json!({"documents": ["now", 1]})), 9),
        (bounds(json!({"documents": [0.5, 1]})), 9),
        (bounds(json!({"documents": ["$a", 1]})), 9),
        (bounds(json!({"documents": [1, -1]})), 5339900),
        (bounds(json!({"range": ["current", -1]})), 5339900),
        (bounds(json!({"range": [0.5, 1], "unit": "day"})), 9),
        (bounds(json!({"range": [0, 1], "unit": "days"})), 9),
        (bounds(json!({"range": ["x", 1]})), 9),
        (unsorted(json!({"$sum": 1, "window": {"documents": [0, 0]}})), 5339901),
        (unsorted(json!({"$sum": 1, "window": {"range": [0, 0]}})), 5339902),
        (
            json!({"$setWindowFields": {"sortBy": {"s": -1}, "output": {"r": {"$sum": 1, "window": {"range": [0, 0]}}}}}),
            8947401,
        ),
        (window(json!({"$rank": {}, "window": {}})), 5371601),
        (window(json!({"$rank": 1})), 5371603),
        (unsorted(json!({"$rank": {}})), 5371602),
        (unsorted(json!({"$shift": {"output": "$v", "by": 1}})), 9),
        (window(json!({"$shift": {"output": "$v", "by": 0.5}})), 9),
        (window(json!({"$shift": {"output": "$v", "by": 1, "default": "$v"}})), 9),
        (window(json!({"$locf": "$v", "window": {}})), 9),
        (unsorted(json!({"$linearFill": "$v"})), 605001),
        (window(json!({"$expMovingAvg": {"input": "$v", "N": 0}})), 9),
        (window(json!({"$expMovingAvg": {"input": "$v", "alpha": 1}})), 9),
        (window(json!({"$expMovingAvg": {"input": "$v", "x": 1}})), 9),
        (window(json!({"$derivative": {"input": "$v"}})), 9),
        (window(json!({"$derivative": {"input": "$v", "unit": "year"}, "window": {}})), 5490710),
        (window(json!({"$integral": {"unit": "day"}})), 9),
        (window(json!({"$topN": {"output": "$v", "sortBy": {"v": 1}, "n": 0}})), 5787908),
        (densify(json!({"step": 0, "bounds": "full"})), 5733401),
        (densify(json!({"step": 1, "bounds": "partition"})), 5733408),
        (densify(json!({"step": 1, "bounds": "all"})), 5946802),
        (densify(json!({"step": 1, "bounds": 1})), 5733404),
        (densify(json!({"step": 1, "bounds": [1]})), 5733403),
        (densify(json!({"step": 1, "bounds": [2, 1]})), 5733402),
        (densify(json!({"step": 1, "bounds": [1, "x"]})), 5733406),
        (densify(json!({"step": 1, "bounds": [1, 2.5]})), 5876900),
        (densify(json!({"step": 1, "bounds": ["a", "b"]})), 5946800),
        (densify(json!({"step": 1, "unit": "day", "bounds": [1, 2]})), 5733409),
        (densify(json!({"step": 0.5, "unit": "day", "bounds": "full"})), 6586400),
        (densify(json!({"step": 1, "bounds": "full", "x": 1})), 40415),
        (fill(json!({})), 6050203),
        (fill(json!({"v": 1})), 6050200),
        (fill(json!({"v": {"method": "locf", "value": 1}})), 6050201),
        (fill(json!({"v": {"method": "x"}})), 6050202),
        (json!({"$fill": {"output": {"v": {"method": "linear"}}}}), 605001),
        (json!({"$fill": {"partitionBy": "$a", "partitionByFields": ["a"], "output": {"v": {"value": 1}}}}), 6050204),
    ] {
        for stage in [canonical(&stage), stage] {
            let error =
                Pipeline::parse(std::slice::from_ref(&stage), &Environment::default()).expect_err(&stage.to_string());
            assert_eq!(error.kind.code(), code, "{stage}: {error}");
        }
    }
    let documents = json!([{"s": "x"}]);
    let error = aggregate(&json!([densify(json!({"step": 1, "bounds": "full"}))]), &documents).unwrap_err();
    assert_eq!(error.kind.code(), 5733201);
    let error = aggregate(&json!([densify(json!({"step": 1, "bounds": [0, 600_000]}))]), &json!([])).unwrap_err();
    assert_eq!(error.kind.code(), 5897900);
    let error = aggregate(&json!([densify(json!({"step": 1, "unit": "day", "bounds": "full"}))]), &json!([{"s": 1}]));
    assert_eq!(error.unwrap_err().kind.code(), 6053600);
    let error = aggregate(&json!([{"$setWindowFields": {"partitionBy": "$a", "output": {}}}]), &json!([{"a": [1]}]));
    assert_eq!(error.unwrap_err().kind, Kind::TypeMismatch);
}

#[test]
fn fields_are_filled() {
    let documents = json!([
        {"_id": 1, "p": 1, "s": 1, "v": 1}, {"_id": 2, "p": 1, "s": 2}, {"_id": 3, "p": 2, "s": 3, "v": null},
        {"_id": 4, "p": 1, "s": 4, "v": 7, "w": 1}, {"_id": 5, "p": 2, "s": 5, "v": 2}
    ]);
    let filled = |stage: Json| -> Json {
        let mut found = aggregate(&json!([stage]), &documents).unwrap();
        found.sort_by_key(|document| document["_id"].as_i64());
        found.iter().map(|document| json!([document["v"], document["w"]])).collect()
    };
    let own = json!({"$fill": {"partitionByFields": ["p"], "sortBy": {"s": 1}, "output": {"v": {"method": "linear"}, "w": {"value": {"$add": ["$s", 1]}}}}});
    assert_eq!(filled(own), json!([[1, 2], [3.0, 3], [null, 4], [7, 1], [2, 6]]));
    let carried = json!({"$fill": {"partitionBy": "$p", "sortBy": {"s": -1}, "output": {"v": {"method": "locf"}}}});
    assert_eq!(filled(carried), json!([[1, null], [7, null], [2, null], [7, 1], [2, null]]));
    assert_eq!(
        filled(json!({"$fill": {"output": {"v": {"value": 0}}}})),
        json!([[1, null], [0, null], [0, null], [7, 1], [2, null]])
    );
}

/// Values below a path, in arrays, and in place of what is there.
#[test]
fn results_go_where_paths_lead() {
    let stage = json!([{"$setWindowFields": {"output": {"a.b": {"$sum": "$x"}, "x": {"$count": {}}}}}]);
    let documents = json!([{"_id": 1, "a": [{"b": 1, "c": 2}, 3], "x": 4}, {"_id": 2, "a": 5, "x": 6}, {"_id": 3}]);
    assert_eq!(
        aggregate(&stage, &documents).unwrap(),
        [
            json!({"_id": 1, "a": [{"b": 10, "c": 2}, {"b": 10}], "x": 3}),
            json!({"_id": 2, "a": {"b": 10}, "x": 3}),
            json!({"_id": 3, "a": {"b": 10}, "x": 3}),
        ]
    );
}

#[test]
fn names_are_of_the_table() {
    assert!(WINDOW_FUNCTIONS.len() > 30);
    assert!(WINDOW_FUNCTIONS.iter().all(|operator| operator.name.starts_with('$')));
}
