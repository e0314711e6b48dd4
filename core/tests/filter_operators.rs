//! Filters: the operators on arrays, types, numbers and strings.

mod common;

use common::*;
use docshard_core::query::filter::Filter;
use docshard_core::values::key::encode::encode_value;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn matches(filter: &Json, against: &Json) -> bool {
    let filter = Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
    filter.matches(document(&bytes(against)))
}

/// Each case: a condition on the field `a`, values that match, values that do not.
fn check(cases: Vec<(Json, Vec<Json>, Vec<Json>)>) {
    for (test, yes, no) in cases {
        for (values, expected) in [(yes, true), (no, false)] {
            for value in values {
                assert_eq!(matches(&json!({"a": test}), &json!({"a": value})), expected, "{test} of {value}");
                assert_eq!(
                    matches(&json!({"a": {"$not": test}}), &json!({"a": value})),
                    !expected,
                    "not {test} of {value}"
                );
                assert_eq!(
                    matches(&json!({"b.a": test}), &json!({"b": [1, {"a": value}]})),
                    expected,
                    "{test} below an array of {value}"
                );
            }
        }
    }
}

fn check_refusals(cases: Vec<(Json, i32, &str)>) {
    for (filter, code, message) in cases {
        let error = Filter::parse(&filter).expect_err(&filter.to_string());
        assert!(error.kind.code() == code && error.message.contains(message), "{filter}: {:?} {error}", error.kind);
        let filter = canonical(&filter);
        assert_eq!(Filter::parse(&filter).expect_err(&filter.to_string()).kind.code(), code, "{filter}");
    }
}

#[test]
fn size() {
    check(vec![
        (
            json!({"$size": 2}),
            vec![json!([1, 2]), json!([[], null])],
            vec![json!([1]), json!([[1, 2]]), json!(2), json!("ab"), json!({"0": 1, "1": 1})],
        ),
        (json!({"$size": 0.0}), vec![json!([])], vec![json!([1]), json!(null), json!({})]),
    ]);
    assert!(!matches(&json!({"a": {"$size": 0}}), &json!({})));
    check_refusals(vec![
        (json!({"a": {"$size": -1}}), 2, "Failed to parse $size. Expected a non-negative number in: $size: -1"),
        (json!({"a": {"$size": 1.5}}), 2, "Expected an integer"),
        (json!({"a": {"$size": "1"}}), 2, "Expected a number"),
    ]);
}

#[test]
fn all() {
    check(vec![
        (json!({"$all": [1, 2]}), vec![json!([2, 1, 3])], vec![json!([1]), json!(1), json!([[1, 2]])]),
        (json!({"$all": [1]}), vec![json!([2, 1]), json!(1)], vec![json!([2])]),
        (json!({"$all": [[1, 2]]}), vec![json!([1, 2]), json!([[1, 2]])], vec![json!([2, 1])]),
        (json!({"$all": []}), vec![], vec![json!([]), json!(1)]),
        (json!({"$all": [null]}), vec![json!(null), json!([null])], vec![json!([])]),
        (json!({"$all": [{"x": 1}]}), vec![json!([{"x": 1}])], vec![json!([{"x": 1, "y": 2}])]),
        (
            json!({"$all": [{"$regularExpression": {"pattern": "^x", "options": ""}}, "y"]}),
            vec![json!(["xa", "y"])],
            vec![json!(["xa"])],
        ),
        (json!({"$all": [{"$regex": "^X", "$options": "i"}]}), vec![json!("xa")], vec![json!("ax")]),
        (
            json!({"$all": [{"$elemMatch": {"x": 1}}, {"$elemMatch": {"y": 2}}]}),
            vec![json!([{"x": 1}, {"y": 2}]), json!([{"x": 1, "y": 2}])],
            vec![json!([{"x": 1}]), json!({"x": 1, "y": 2})],
        ),
    ]);
    check_refusals(vec![
        (json!({"a": {"$all": 1}}), 2, "$all needs an array"),
        (json!({"a": {"$all": [{"$gt": 1}]}}), 2, "no $ expressions in $all"),
        (json!({"a": {"$all": [1, {"$elemMatch": {"x": 1}}]}}), 2, "no $ expressions in $all"),
        (json!({"a": {"$all": [{"$elemMatch": {"x": 1}}, 1]}}), 2, "$all/$elemMatch has to be consistent"),
    ]);
    let upsert = |filter| Filter::parse(&filter).unwrap().upsert_fields();
    assert_eq!(upsert(json!({"a": {"$all": [1]}})).unwrap(), vec![("a".to_owned(), value(&json!(1)))]);
    assert_eq!(upsert(json!({"a": {"$all": [1, 2]}})).unwrap_err().kind.code(), 54);
}

#[test]
fn elements() {
    check(vec![
        (
            json!({"$elemMatch": {"x": 1, "y": {"$gt": 1}}}),
            vec![json!([{"x": 0}, {"x": 1, "y": 2}])],
            vec![json!([{"x": 1}, {"y": 2}]), json!({"x": 1, "y": 2}), json!([[{"x": 1, "y": 2}]]), json!([])],
        ),
        (json!({"$elemMatch": {"$gt": 1, "$lt": 5}}), vec![json!([0, 3])], vec![json!([0, 9]), json!(3), json!([[3]])]),
        (
            json!({"$elemMatch": {"$not": {"$gt": 1}}}),
            vec![json!([9, 0]), json!(["x"])],
            vec![json!([2, 3]), json!([])],
        ),
        (json!({"$elemMatch": {"$in": [1, null]}}), vec![json!([1]), json!([null])], vec![json!([2]), json!([])]),
        (json!({"$elemMatch": {"$elemMatch": {"$eq": 3}}}), vec![json!([[1, 3]])], vec![json!([3]), json!([[[3]]])]),
        (json!({"$elemMatch": {"$size": 1}}), vec![json!([[1]])], vec![json!([1])]),
        (json!({"$elemMatch": {"$or": [{"x": 1}, {"y": 1}]}}), vec![json!([{"y": 1}])], vec![json!([{"z": 1}])]),
        (json!({"$elemMatch": {}}), vec![json!([{}]), json!([{"x": 1}]), json!([[]])], vec![json!([1]), json!([])]),
        // A nested array counts as a document whose names are positions.
        (json!({"$elemMatch": {"1": 5}}), vec![json!([[0, 5]])], vec![json!([[5]]), json!([0, 5])]),
        (
            json!({"$elemMatch": {"x": {"$exists": false}}}),
            vec![json!([{"y": 1}]), json!([[1]])],
            vec![json!([{"x": 1}, 5])],
        ),
    ]);
    check_refusals(vec![
        (json!({"a": {"$elemMatch": 1}}), 2, "$elemMatch needs an Object"),
        (json!({"a": {"$elemMatch": {"$gt": 1, "b": 1}}}), 2, "unknown operator: b"),
        (json!({"a": {"$elemMatch": {"$foo": 1}}}), 2, "unknown operator: $foo"),
    ]);
    let deep = (0..1000).fold(json!({"$gt": 1}), |inner, _| wrapped("$elemMatch", inner));
    assert!(Filter::parse(&wrapped("a", deep)).is_err());
}

#[test]
fn types() {
    let date = json!({"$date": "2020-01-01T00:00:00Z"});
    let decimal = json!({"$numberDecimal": "1"});
    check(vec![
        (
            json!({"$type": "int"}),
            vec![json!(1), json!(["x", 1])],
            vec![json!(1.0), json!(5_000_000_000_i64), json!("1")],
        ),
        (json!({"$type": 18}), vec![json!(5_000_000_000_i64)], vec![json!(1)]),
        (json!({"$type": 1}), vec![json!(1.0), json!({"$numberDouble": "NaN"})], vec![json!(1), decimal.clone()]),
        (json!({"$type": "number"}), vec![json!(1), json!(1.5), decimal, json!(5_000_000_000_i64)], vec![json!("1")]),
        (json!({"$type": "array"}), vec![json!([]), json!([1])], vec![json!(1)]),
        (json!({"$type": ["string", 9]}), vec![json!("x"), date.clone(), json!([date.clone()])], vec![json!(1)]),
        (json!({"$type": "object"}), vec![json!({}), json!([{}])], vec![date, json!([])]),
        (json!({"$type": "null"}), vec![json!(null)], vec![json!({"$undefined": true}), json!(0)]),
        (json!({"$type": "bool"}), vec![json!(false)], vec![json!(0)]),
        (json!({"$type": -1}), vec![json!({"$minKey": 1})], vec![json!({"$maxKey": 1})]),
        (json!({"$type": 127.0}), vec![json!({"$maxKey": 1})], vec![json!({"$minKey": 1})]),
    ]);
    assert!(!matches(&json!({"a": {"$type": "null"}}), &json!({})));
    check_refusals(vec![
        (json!({"a": {"$type": "foo"}}), 2, "Unknown type name alias: foo"),
        (json!({"a": {"$type": 99}}), 2, "Invalid numerical type code: 99"),
        (json!({"a": {"$type": 2.5}}), 2, "Invalid numerical type code: 2.5"),
        (json!({"a": {"$type": 0}}), 2, "Instead use {$exists:false}"),
        (json!({"a": {"$type": null}}), 14, "type must be represented as a number or a string"),
        (json!({"a": {"$type": []}}), 9, "a must match at least one type"),
    ]);
}

#[test]
fn remainders() {
    check(vec![
        (
            json!({"$mod": [4, 1]}),
            vec![json!(5), json!(5.9), json!({"$numberDecimal": "9"}), json!([4, 5])],
            vec![json!(4), json!("5"), json!(-3), json!(1e300), json!({"$numberDouble": "NaN"})],
        ),
        (json!({"$mod": [-4, -1]}), vec![json!(-5)], vec![json!(5)]),
        (json!({"$mod": [4.9, 0.9]}), vec![json!(8)], vec![json!(9)]),
        (json!({"$mod": [-1, 0]}), vec![json!(i64::MIN)], vec![]),
    ]);
    check_refusals(vec![
        (json!({"a": {"$mod": 4}}), 2, "malformed mod, needs to be an array"),
        (json!({"a": {"$mod": [4]}}), 2, "malformed mod, not enough elements"),
        (json!({"a": {"$mod": [4, 1, 1]}}), 2, "malformed mod, too many elements"),
        (json!({"a": {"$mod": ["4", 1]}}), 2, "malformed mod, divisor not a number"),
        (json!({"a": {"$mod": [4, null]}}), 2, "malformed mod, remainder not a number"),
        (json!({"a": {"$mod": [0.5, 1]}}), 2, "divisor cannot be 0"),
        (json!({"a": {"$mod": [{"$numberDouble": "Infinity"}, 1]}}), 2, "Unable to coerce NaN/Inf to integral type"),
        (json!({"a": {"$mod": [1e300, 1]}}), 2, "Out of bounds"),
    ]);
}

#[test]
fn bits() {
    let binary = json!({"$binary": {"base64": "BQE=", "subType": "00"}}); // 5, 1: bits 0, 2, 8
    let no_integers: Vec<Json> = ["NaN", "Infinity", "-Infinity"]
        .iter()
        .flat_map(|text| [json!({"$numberDouble": text}), json!({"$numberDecimal": text})])
        .chain([
            json!({"$numberDecimal": "9.9E+6144"}),
            json!({"$numberDecimal": "9223372036854775808"}),
            json!(1e30),
            json!(-1.5),
        ])
        .collect();
    check(vec![
        (
            json!({"$bitsAllSet": [0, 2]}),
            vec![json!(5), json!(7.0), json!([5]), binary.clone(), json!({"$numberDecimal": "5"})],
            vec![json!(4), json!(5.5), json!("5")],
        ),
        (json!({"$bitsAllSet": 5}), vec![json!(5), binary.clone()], vec![json!(4)]),
        (json!({"$bitsAllSet": binary.clone()}), vec![json!(261)], vec![json!(5)]),
        // Binary data of the old subtype 2 begins with its length, here 1.
        (
            json!({"$bitsAllSet": [0, 33]}),
            vec![json!({"$binary": {"base64": "Ag==", "subType": "02"}})],
            vec![json!({"$binary": {"base64": "Ag==", "subType": "00"}}), json!(2)],
        ),
        (json!({"$bitsAllClear": [1, 200]}), vec![json!(5), binary.clone()], vec![json!(2), json!(-3)]),
        (json!({"$bitsAnySet": [1, 200]}), vec![json!(2), json!(-5)], vec![json!(5), binary.clone()]),
        (json!({"$bitsAnyClear": 3}), vec![json!(1), binary], vec![json!(3), json!({"$numberDouble": "NaN"})]),
        (
            json!({"$bitsAnyClear": 1}),
            vec![json!({"$numberDecimal": "2.002"}), json!({"$numberDecimal": "2.5"})],
            vec![json!({"$numberDecimal": "0.9"})],
        ),
        // Numbers without an integer of 64 bits have no bits.
        (json!({"$bitsAllClear": 1}), vec![json!(2)], no_integers.clone()),
        (json!({"$bitsAnySet": -1i64 as u64 >> 1}), vec![json!(2)], no_integers),
        (json!({"$bitsAnySet": 0}), vec![], vec![json!(1)]),
        (json!({"$bitsAllSet": []}), vec![json!(1)], vec![json!("x")]),
    ]);
    check_refusals(vec![
        (json!({"a": {"$bitsAllSet": -1}}), 9, "Expected a non-negative number in: a: -1"),
        (json!({"a": {"$bitsAllSet": 1.5}}), 9, "Expected an integer"),
        (
            json!({"a": {"$bitsAllSet": "1"}}),
            2,
            "$bitsAllSet takes an Array, a number, or a BinData but received: string",
        ),
        (json!({"a": {"$bitsAllSet": [-1]}}), 2, "bit positions must be >= 0 but got: -1"),
        (json!({"a": {"$bitsAllSet": [1.5]}}), 2, "bit positions must be an integer but got: 1.5"),
        (json!({"a": {"$bitsAllSet": ["1"]}}), 2, "bit positions must be an integer"),
        (json!({"a": {"$bitsAllSet": [1e12]}}), 2, "bit positions cannot be represented as a 32-bit signed integer"),
    ]);
}

#[test]
fn regular_expressions() {
    let regex = |pattern: &str, options: &str| json!({"$regularExpression": {"pattern": pattern, "options": options}});
    check(vec![
        (
            json!({"$regex": "^a.c$"}),
            vec![json!("abc"), json!(["x", "abc"]), json!({"$symbol": "abc"})],
            vec![json!("xabc"), json!(1), json!(null), json!(["x"])],
        ),
        (json!({"$regex": "B", "$options": "i"}), vec![json!("abc")], vec![json!("a")]),
        (json!({"$options": "i", "$regex": "B"}), vec![json!("abc")], vec![json!("a")]),
        (json!({"$regex": regex("B", "i")}), vec![json!("abc")], vec![json!("a")]),
        (
            json!({"$regex": regex("B", ""), "$options": "i"}),
            vec![json!("abc"), regex("B", "i")],
            vec![json!("a"), regex("B", "")],
        ),
        (
            json!({"$in": [1, regex("^a", ""), {"$regex": "B$", "$options": "i"}]}),
            vec![json!("ax"), json!("xb"), json!(1), regex("^a", "")],
            vec![json!("xa"), regex("a", "")],
        ),
    ]);
    assert!(matches(&json!({"a": regex("^a", "")}), &json!({"a": ["b", "ab"]})));
    assert!(matches(&json!({"a": {"$not": regex("^a", "")}}), &json!({"a": ["b"]})));
    assert!(matches(&json!({"a": {"$nin": [regex("^a", "")]}}), &json!({"a": 1})));
    // Equality compares with the regular expression itself.
    assert!(!matches(&json!({"a": {"$eq": regex("^a", "")}}), &json!({"a": "ab"})));
    assert!(matches(&json!({"a": {"$eq": regex("^a", "")}}), &json!({"a": regex("^a", "")})));
    assert_eq!(
        Filter::parse(&json!({"a": regex("^a", ""), "b": {"$in": [regex("^a", "")]}}))
            .unwrap()
            .upsert_fields()
            .unwrap(),
        vec![]
    );
    check_refusals(vec![
        (json!({"a": {"$regex": "("}}), 51091, "Regular expression is invalid"),
        (json!({"a": regex("(", "")}), 51091, "Regular expression is invalid"),
        (json!({"a": {"$in": [regex("(", "")]}}), 51091, ""),
        (json!({"a": {"$regex": "x", "$options": "g"}}), 51108, "invalid flag in regex options: g"),
        (json!({"a": {"$regex": 1}}), 2, "$regex has to be a string"),
        (json!({"a": {"$regex": "x", "$options": 1}}), 2, "$options has to be a string"),
        (json!({"a": {"$options": "i"}}), 2, "$options needs a $regex"),
        (json!({"a": {"$regex": regex("x", "i"), "$options": "m"}}), 51075, "options set in both"),
        (json!({"a": {"$options": "m", "$regex": regex("x", "i")}}), 51074, "options set in both"),
    ]);
}

#[test]
fn constants() {
    assert!(matches(&json!({"$alwaysTrue": 1}), &json!({})));
    assert!(!matches(&json!({"$alwaysFalse": 1, "a": 1}), &json!({"a": 1})));
    check_refusals(vec![
        (json!({"$alwaysTrue": 0}), 9, "$alwaysTrue must be an integer value of 1"),
        (json!({"$alwaysFalse": "1"}), 9, ""),
    ]);
}

#[test]
fn a_prefix_narrows_the_keys() {
    for (pattern, inside, outside) in
        [("^ab", vec!["ab", "abc", "ab\u{1}"], vec!["a", "ac", "b", "aB"]), ("ab", vec!["", "ab", "zzz"], vec![])]
    {
        let ranges = Filter::parse(&json!({"a": {"$regex": pattern}})).unwrap().ranges_of("a");
        for (texts, expected) in [(inside, true), (outside, false)] {
            for text in texts {
                let mut key = Vec::new();
                encode_value(&value(&json!(text)), &mut key);
                assert_eq!(ranges.contains(&key), expected, "{pattern} {text:?}");
            }
        }
        assert!(!ranges.is_all());
    }
}

/// Random tests of a value, most of them for arrays.
fn any_test() -> impl Strategy<Value = Json> {
    let alias =
        proptest::sample::select(vec![json!("int"), json!("string"), json!("array"), json!(["object", "number"])]);
    let regex = proptest::sample::select(vec!["^a", "b$", "", "[ab]", "^(a|b)?$"])
        .prop_map(|pattern| json!({"$regex": pattern}));
    let leaf = prop_oneof![
        (0..3).prop_map(|size| json!({"$size": size})),
        alias.prop_map(|alias| json!({"$type": alias})),
        (1..4, 0..3).prop_map(|(divisor, remainder)| json!({"$mod": [divisor, remainder]})),
        (0..8).prop_map(|mask| json!({"$bitsAllSet": mask})),
        (0..8).prop_map(|mask| json!({"$bitsAnyClear": mask})),
        regex,
        proptest::collection::vec(scalar(), 0..3).prop_map(|values| json!({"$all": values})),
        scalar().prop_map(|value| json!({"$eq": value})),
    ];
    leaf.prop_recursive(3, 6, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|test| json!({"$elemMatch": test})),
            (name(), inner.clone()).prop_map(|(name, test)| json!({"$elemMatch": {name: test}})),
            inner.prop_map(|test| json!({"$not": test})),
        ]
    })
}

/// A second, simpler implementation of these operators on values: it lists the values of an array at the end first.
mod naive {
    use super::*;
    use docshard_core::values::document::value::Value;
    use docshard_core::values::order::compare_values;

    pub fn passes(test: &Json, found: Option<&Value>, is_element: bool) -> bool {
        let mut given: Vec<&Value> = found.into_iter().collect();
        if let (Some(Value::Array(elements)), false) = (found, is_element) {
            given.extend(elements);
        }
        let array = found.and_then(|value| if let Value::Array(elements) = value { Some(elements) } else { None });
        let (name, argument) = test.as_object().unwrap().iter().next().unwrap();
        match name.as_str() {
            "$not" => !passes(argument, found, is_element),
            "$size" => array.is_some_and(|elements| *argument == elements.len()),
            "$all" => {
                let values = argument.as_array().unwrap();
                !values.is_empty() && values.iter().all(|value| passes(&json!({"$eq": value}), found, is_element))
            }
            "$elemMatch" => {
                array.is_some_and(|elements| elements.iter().any(|element| element_passes(argument, element)))
            }
            "$eq" if argument.is_null() => found.is_none() || given.iter().any(|value| matches!(value, Value::Null)),
            "$eq" => given.iter().any(|found| compare_values(found, &value(argument)).is_eq()),
            _ => given.iter().any(|value| scalar_passes(name, argument, value)),
        }
    }

    fn element_passes(argument: &Json, element: &Value) -> bool {
        let (name, test) = argument.as_object().unwrap().iter().next().unwrap();
        match element {
            element if name.starts_with('$') => passes(argument, Some(element), true),
            Value::Object(fields) => {
                passes(test, fields.iter().find(|(field, _)| field == name).map(|(_, value)| value), false)
            }
            Value::Array(elements) => {
                passes(test, name.parse().ok().and_then(|index: usize| elements.get(index)), false)
            }
            _ => false,
        }
    }

    fn scalar_passes(name: &str, argument: &Json, value: &Value) -> bool {
        let integer = || match value {
            Value::Number(number) => number.as_i64(),
            _ => None,
        };
        match name {
            "$type" => {
                let is =
                    |alias: &Json| alias == value.type_name() || alias == "number" && matches!(value, Value::Number(_));
                argument.as_array().map_or_else(|| is(argument), |aliases| aliases.iter().any(is))
            }
            "$mod" => match value {
                Value::Number(number) if number.to_f64().is_finite() => {
                    argument[1] == number.to_f64().trunc() as i64 % argument[0].as_i64().unwrap()
                }
                _ => false,
            },
            "$bitsAllSet" => integer().is_some_and(|value| argument.as_i64().unwrap() & !value == 0),
            "$bitsAnyClear" => integer().is_some_and(|value| argument.as_i64().unwrap() & !value != 0),
            "$regex" => match (value, argument.as_str().unwrap()) {
                (Value::String(text), "^a") => text.starts_with('a'),
                (Value::String(text), "b$") => text.ends_with('b'),
                (Value::String(_), "") => true,
                (Value::String(text), "[ab]") => text.contains(['a', 'b']),
                (Value::String(text), _) => matches!(text.as_str(), "" | "a" | "b"),
                _ => false,
            },
            _ => unreachable!("{name}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn operators_agree_with_the_naive_reading(test in any_test(), against in any_value(scalar(), true)) {
        prop_assert_eq!(matches(&json!({"a": test}), &json!({"a": against})), naive::passes(&test, Some(&value(&against)), false));
    }

    #[test]
    fn keys_are_never_excluded(test in any_test(), against in any_value(scalar(), false)) {
        if matches(&json!({"a": test}), &json!({"a": against})) {
            let mut key = Vec::new();
            encode_value(&value(&against), &mut key);
            let ranges = Filter::parse(&json!({"a": test})).unwrap().ranges_of("a");
            prop_assert!(ranges.contains(&key));
        }
    }

    /// Existing operators with random arguments.
    #[test]
    fn no_argument_panics(argument in nonsense(), against in any_document(scalar(), true)) {
        for operator in ["$size", "$all", "$elemMatch", "$type", "$mod", "$regex", "$options", "$bitsAllSet", "$bitsAnyClear"] {
            if let Ok(filter) = Filter::parse(&json!({"a": {operator: argument}})) {
                filter.matches(document(&bytes(&against)));
                filter.ranges_of("a");
            }
        }
    }

    #[test]
    fn no_pattern_panics(pattern in "[\\\\^$.|?*+()\\[\\]{}a-c0-9dwsbQEZRxpk<>!=:&~ #-]{0,12}", options in "[imsx]{0,2}", text in "[a-c0-9\\n ]{0,6}") {
        if let Ok(filter) = Filter::parse(&json!({"a": {"$regex": pattern, "$options": options}})) {
            let against = bytes(&json!({"a": text}));
            if filter.matches(document(&against)) {
                let mut key = Vec::new();
                encode_value(&value(&json!(text)), &mut key);
                let ranges = filter.ranges_of("a");
                prop_assert!(ranges.contains(&key));
            }
        }
    }
}
