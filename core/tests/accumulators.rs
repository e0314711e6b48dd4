//! Accumulators: the result does not depend on the division of the values over shards, and states can be written and read.

use docshard_core::error::Kind;
use docshard_core::query::accumulator::{ACCUMULATORS, Accumulation, AccumulatorOperator, Argument, Parameters, find};
use docshard_core::query::environment::Environment;
use docshard_core::query::expression::Expression;
use docshard_core::values::document::ext_json::{from_json, to_json};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{raw, write};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn value(json: &Json) -> Value {
    from_json(json).unwrap()
}

fn parameters() -> Parameters {
    Parameters { count: 3, parts: vec![0.5, 0.9], ..Parameters::default() }
}

fn begin(name: &str) -> Accumulation {
    Accumulation::begin(find(name).unwrap(), &parameters(), None)
}

fn from_bytes(name: &str, bytes: &[u8]) -> Result<Accumulation, docshard_core::error::Error> {
    let mut state = begin(name);
    state.merge(bytes).map(|()| state)
}

/// Values that an accumulator takes: documents, arrays, pairs of a sort key and a value, or any.
fn suitable(operator: &AccumulatorOperator, scalars: Vec<Json>, objects: Vec<Json>) -> Vec<Json> {
    let pair = |(at, value): (usize, Json)| {
        let key = ["AAAA", "AQ==", "//8="][at * 7 % 3];
        json!([{"$binary": {"base64": key, "subType": "00"}}, value])
    };
    match operator.argument {
        _ if operator.name == "$mergeObjects" => objects,
        _ if ["$concatArrays", "$setUnion"].contains(&operator.name) => {
            scalars.chunks(2).map(|values| json!(values)).collect()
        }
        Argument::Sorted | Argument::SeveralSorted => scalars.into_iter().enumerate().map(pair).collect(),
        _ => scalars,
    }
}

fn over(name: &str, values: &[Json]) -> Result<Accumulation, docshard_core::error::Error> {
    let mut state = begin(name);
    values.iter().try_for_each(|json| state.add_value(&value(json)))?;
    Ok(state)
}

fn result(name: &str, values: &[Json]) -> Json {
    to_json(&over(name, values).unwrap().finish())
}

#[test]
fn each_accumulates() {
    let numbers = [json!(4), json!(1.5), json!("x"), json!(null), json!(4)];
    for (name, expected) in [
        ("$sum", json!(9.5)),
        ("$avg", json!(9.5 / 3.0)),
        ("$min", json!(1.5)),
        ("$max", json!("x")),
        ("$first", json!(4)),
        ("$last", json!(4)),
        ("$count", json!(5)),
        ("$push", json!([4, 1.5, "x", null, 4])),
        ("$addToSet", json!([4, 1.5, "x", null])),
        ("$stdDevPop", json!((25f64 / 18.0).sqrt())),
    ] {
        let found = result(name, &numbers);
        let close = |a: &Json, b: &Json| a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| (a - b).abs() < 1e-12);
        assert!(found == expected || close(&found, &expected), "{name}: {found}, not {expected}");
    }
    for (name, expected) in [
        ("$firstN", json!([4, 1.5, "x"])),
        ("$lastN", json!(["x", null, 4])),
        ("$minN", json!([1.5, 4, 4])),
        ("$maxN", json!(["x", 4, 4])),
        ("$median", json!(4.0)),
        ("$percentile", json!([4.0, 4.0])),
    ] {
        assert_eq!(result(name, &numbers), expected, "{name}");
    }
    assert_eq!(
        result("$mergeObjects", &[json!({"a": 1, "b": 2}), json!(null), json!({"b": 3})]),
        json!({"a": 1, "b": 3})
    );
    let arrays = [json!([1, "x"]), json!([]), json!([[2], 1]), json!([1.0, null])];
    assert_eq!(result("$concatArrays", &arrays), json!([1, "x", [2], 1, 1.0, null]));
    assert_eq!(result("$setUnion", &arrays), json!([1, "x", [2], null]));
    for name in ["$concatArrays", "$setUnion"] {
        // The states of parts are merged, not their arrays.
        let mut first = over(name, &arrays[..2]).unwrap();
        first.merge(&over(name, &arrays[2..]).unwrap().to_bytes().unwrap()).unwrap();
        assert_eq!(to_json(&first.finish()), result(name, &arrays), "{name}");
        let mut missing = begin(name);
        missing.add(None).unwrap();
        assert_eq!(to_json(&missing.finish()), json!([]), "{name}");
        for other in [json!(1), json!(null), json!({"a": [1]})] {
            assert_eq!(over(name, &[other]).unwrap_err().kind, Kind::TypeMismatch, "{name}");
        }
    }
    assert_eq!(over("$mergeObjects", &[json!(1)]).unwrap_err().kind, Kind::Location(40400));
    assert_eq!(find("$sun").unwrap_err().kind, Kind::Location(15952));
    assert_eq!(find("$accumulator").unwrap_err().kind, Kind::NotImplemented);
}

/// The deviation of very large numbers is finite however they are divided.
#[test]
fn a_deviation_of_large_numbers() {
    let (one, other) = ([json!(6e153), json!(6e153)], [json!(-6e153), json!(-6e153)]);
    let all = over("$stdDevPop", &[&one[..], &other[..]].concat()).unwrap();
    let mut divided = over("$stdDevPop", &one).unwrap();
    divided.merge(&over("$stdDevPop", &other).unwrap().to_bytes().unwrap()).unwrap();
    for state in [all, divided] {
        let found = to_json(&state.finish());
        assert!(found.as_f64().is_some_and(|found| (found / 6e153 - 1.0).abs() < 1e-12), "{found}");
    }
}

/// The digits of sums count as memory.
#[test]
fn a_sum_of_many_digits_has_a_size() {
    let decimals = [json!({"$numberDecimal": "1E+6000"}), json!({"$numberDecimal": "1E-6000"})];
    let doubles: Vec<Json> = (-15..15).map(|n| json!(10f64.powi(n * 20))).collect();
    for name in ["$sum", "$avg"] {
        let none = begin(name).size();
        let (decimals, doubles) = (over(name, &decimals).unwrap().size(), over(name, &doubles).unwrap().size());
        assert!((4_900..6_000).contains(&(decimals - none)), "{name}: {} bytes", decimals - none);
        assert!((200..600).contains(&(doubles - none)), "{name}: {} bytes", doubles - none);
    }
}

#[test]
fn of_nothing() {
    for (name, expected) in [
        ("$sum", json!(0)),
        ("$avg", json!(null)),
        ("$min", json!(null)),
        ("$first", json!(null)),
        ("$count", json!(0)),
        ("$push", json!([])),
        ("$addToSet", json!([])),
        ("$mergeObjects", json!({})),
        ("$stdDevSamp", json!(null)),
    ] {
        assert_eq!(result(name, &[]), expected, "{name}");
    }
    let mut missing = begin("$first");
    missing.add(None).unwrap();
    missing.add_value(&value(&json!(1))).unwrap();
    let missing = from_bytes("$first", &missing.to_bytes().unwrap()).unwrap();
    assert_eq!(to_json(&missing.finish()), json!(null), "the first is missing");
}

#[test]
fn a_set_is_one_of_its_collation() {
    let environment = Environment::parse(&json!({"collation": {"locale": "en", "strength": 2}})).unwrap();
    let collator = environment.collator().cloned();
    let operator = find("$addToSet").unwrap();
    let mut set = Accumulation::begin(operator, &parameters(), collator.clone());
    let mut later = Accumulation::begin(operator, &parameters(), collator);
    ["a", "b"].iter().for_each(|text| set.add_value(&value(&json!(text))).unwrap());
    ["A", "c"].iter().for_each(|text| later.add_value(&value(&json!(text))).unwrap());
    set.merge(&later.to_bytes().unwrap()).unwrap();
    assert_eq!(to_json(&set.finish()), json!(["a", "b", "c"]));
}

/// The state of one group is bounded, also where the states of a group's parts are merged.
#[test]
fn a_state_above_100_mb_is_an_error() {
    let text = "x".repeat(1 << 20);
    let values = |numbers: std::ops::Range<usize>| numbers.map(|n| json!(format!("{n}{text}"))).collect::<Vec<_>>();
    // A set keeps a key of each value, too.
    for (name, half) in [("$push", 60), ("$addToSet", 40)] {
        let error = over(name, &values(0..2 * half)).expect_err(name);
        assert_eq!(error.kind, Kind::ExceededMemoryLimit, "{name}");
        let mut first = over(name, &values(0..half)).unwrap();
        let later = over(name, &values(half..2 * half)).unwrap();
        let error = first.merge(&later.to_bytes().unwrap()).expect_err(name);
        assert_eq!(error.kind, Kind::ExceededMemoryLimit, "{name}");
    }
}

fn scalar() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(json!(null)),
        (-5i64..5).prop_map(|value| json!(value)),
        any::<i64>().prop_map(|value| json!({"$numberLong": value.to_string()})),
        any::<f64>().prop_map(|value| json!({"$numberDouble": if value.is_nan() { "NaN".into() } else { value.to_string().replace("inf", "Infinity") }})),
        (-1e6..1e6f64).prop_map(|value| json!(value)),
        (-99999i64..99999, -8i32..8).prop_map(|(digits, exponent)| json!({"$numberDecimal": format!("{digits}E{exponent}")})),
        Just(json!({"$numberDecimal": "Infinity"})),
        Just(json!({"$numberDecimal": "1E+6000"})),
        "[a-c]{0,3}".prop_map(|value| json!(value)),
        Just(json!([1, {"b": "x"}])),
        Just(json!({"$date": "2026-01-01T00:00:00Z"})),
    ]
}

fn object() -> impl Strategy<Value = Json> {
    prop::collection::btree_map("[a-c]", scalar(), 0..3).prop_map(|fields| Json::Object(fields.into_iter().collect()))
}

proptest! {
    #[test]
    fn any_division_comes_to_the_same(
        at in 0..ACCUMULATORS.len(),
        scalars in prop::collection::vec(scalar(), 0..20),
        objects in prop::collection::vec(object(), 0..10),
        cuts in prop::collection::vec(0usize..21, 0..4),
    ) {
        let operator = &ACCUMULATORS[at];
        let values = suitable(operator, scalars, objects);
        let once = over(operator.name, &values).unwrap();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(values.len())).chain([0, values.len()]).collect();
        cuts.sort_unstable();
        let mut merged = begin(operator.name);
        for part in cuts.windows(2) {
            merged.merge(&over(operator.name, &values[part[0]..part[1]]).unwrap().to_bytes().unwrap()).unwrap();
        }
        let (once, merged) = (to_json(&once.finish()), to_json(&merged.finish()));
        if operator.name.starts_with("$stdDev") {
            // Chan's formula and Welford's method round differently.
            let (a, b) = (once.as_f64().unwrap_or(f64::NAN), merged.as_f64().unwrap_or(f64::NAN));
            let both_lost = !a.is_finite() || !b.is_finite();
            prop_assert!(both_lost || (a - b).abs() <= 1e-9 * a.abs().max(1.0), "{} {}", a, b);
        } else {
            prop_assert_eq!(once, merged, "{}", operator.name);
        }
    }

    #[test]
    fn a_state_survives_being_written(at in 0..ACCUMULATORS.len(), values in prop::collection::vec(scalar(), 0..10)) {
        let name = ACCUMULATORS[at].name;
        let values = suitable(&ACCUMULATORS[at], values.clone(), vec![json!({"a": values})]);
        let state = over(name, &values).unwrap();
        let bytes = state.to_bytes().unwrap();
        let read = from_bytes(name, &bytes).unwrap();
        // A sum has several forms, so the bytes of a state may differ after reading; its result may not.
        let again = from_bytes(name, &read.to_bytes().unwrap()).unwrap();
        let finished = to_json(&state.finish());
        prop_assert_eq!(&to_json(&read.finish()), &finished);
        prop_assert_eq!(&to_json(&again.finish()), &finished);
    }

    /// Reading a state from any bytes, adding to it and finishing it do not panic.
    #[test]
    fn damaged_states_are_refused(
        at in 0..ACCUMULATORS.len(),
        of in 0..ACCUMULATORS.len(),
        values in prop::collection::vec(scalar(), 0..6),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let values = suitable(&ACCUMULATORS[of], values.clone(), vec![json!({"a": values})]);
        let mut bytes = over(ACCUMULATORS[of].name, &values).unwrap().to_bytes().unwrap();
        flips.iter().for_each(|(place, byte)| { let at = place.index(bytes.len()); bytes[at] ^= byte; });
        if cut {
            bytes.truncate(length.index(bytes.len()));
            prop_assert!(from_bytes(ACCUMULATORS[at].name, &bytes).is_err());
        }
        if let Ok(mut state) = from_bytes(ACCUMULATORS[at].name, &bytes) {
            let _ = state.add_value(&value(&json!(1)));
            let _ = state.merge(&bytes);
            let _ = state.to_bytes().unwrap();
            state.finish();
        }
    }

    /// An expression of the same name accumulates as the accumulator does.
    #[test]
    fn expressions_accumulate_alike(values in prop::collection::vec(scalar(), 0..8)) {
        let document = write::value(&value(&json!({"v": values}))).unwrap();
        let document = raw::document(&document).unwrap();
        for name in ["$sum", "$avg", "$min", "$max", "$stdDevPop", "$stdDevSamp"] {
            let expression = Expression::parse(&json!({name: "$v"}), &Environment::default()).unwrap();
            let evaluated = expression.evaluate(document, None).unwrap().unwrap();
            prop_assert_eq!(to_json(&evaluated), to_json(&over(name, &values).unwrap().finish()), "{}", name);
        }
    }
}

#[test]
fn states_of_arbitrary_bytes_are_errors() {
    for operator in ACCUMULATORS {
        for bytes in [&[][..], &[0], &[255; 40], &[1, 0, 0, 0x40, 0, 0, 0, 0x20]] {
            assert_eq!(from_bytes(operator.name, bytes).unwrap_err().kind, Kind::BadValue);
        }
    }
    let huge = write::value(&value(&json!([[0, 0, [], [], 0, false, ["1", 999_999_999], null]]))).unwrap();
    assert_eq!(from_bytes("$sum", &huge).unwrap_err().kind, Kind::BadValue);
}
