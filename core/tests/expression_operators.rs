//! Unusual arguments of expression operators: results, and MongoDB's codes where several mistakes meet.

mod common;

use common::*;
use docshard_core::error::Error;
use docshard_core::query::environment::Environment;
use docshard_core::query::expression::Expression;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use serde_json::{Value as Json, json};

fn minus_zero() -> Json {
    json!({"$numberDouble": "-0.0"})
}

fn evaluate(expression: &Json) -> Result<Option<Value>, Error> {
    let document_bytes = bytes(&json!({
        "nil": null, "s": "text", "n": 7, "one": 1, "empty": [], "o": {"b": [{"c": 3}, {"c": 1}]},
        "date": {"$date": "2021-07-01T10:30:00Z"}, "zone": "Nowhere/Land"
    }));
    Expression::parse(expression, &Environment::default())?.evaluate(document(&document_bytes), None)
}

fn all_give(cases: &[(Json, Json)]) {
    for (expression, expected) in cases {
        for expression in [expression, &canonical(expression)] {
            let found = evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
            assert_eq!(found, Some(value(expected)), "{expression} gives {:?}", found.as_ref().map(ext_json::to_json));
        }
    }
}

fn all_fail(cases: &[(Json, i32)]) {
    for (expression, code) in cases {
        for expression in [expression, &canonical(expression)] {
            let error = evaluate(expression).expect_err(&expression.to_string());
            assert_eq!(error.kind.code(), *code, "{expression}: {error}");
        }
    }
}

#[test]
fn numbers() {
    all_give(&[
        // A sum of doubles is rounded after each of them.
        (json!({"$add": [1e16, 1, -1e16]}), json!(0.0)),
        (json!({"$add": [i64::MAX, 1, -1]}), json!(9223372036854775808.0)),
        (json!({"$add": ["$date", {"$numberDecimal": "0.5"}]}), json!({"$date": "2021-07-01T10:30:00Z"})),
        (json!({"$add": ["$date", {"$numberDecimal": "1.5"}]}), json!({"$date": "2021-07-01T10:30:00.002Z"})),
        (json!({"$add": ["$date", 0.5]}), json!({"$date": "2021-07-01T10:30:00.001Z"})),
        // 2.675 is a little less than its digits say, 1.005 too; 0.125 is exact.
        (json!({"$round": [2.675, 2]}), json!(2.67)),
        (json!({"$round": [1.005, 2]}), json!(1.0)),
        (json!({"$round": [0.125, 2]}), json!(0.12)),
        (json!({"$round": [1.298, 100]}), json!(1.298)),
        (json!({"$round": [23.298, -1]}), json!(20.0)),
        // The sign of zero is kept.
        (json!({"$round": -0.4}), minus_zero()),
        (json!({"$round": [-0.04, 1]}), minus_zero()),
        (json!({"$round": [minus_zero(), -1]}), minus_zero()),
        (json!({"$round": [-4.5, -1]}), minus_zero()),
        (json!({"$round": [0.04, 1]}), json!(0.0)),
        (json!({"$trunc": -0.9}), minus_zero()),
        (json!({"$trunc": [-0.09, 1]}), minus_zero()),
        (json!({"$trunc": [-9.5, -1]}), minus_zero()),
        (json!({"$ceil": -0.9}), minus_zero()),
        (json!({"$floor": minus_zero()}), minus_zero()),
        (json!({"$trunc": [-123.397, 2]}), json!(-123.39)),
        (json!({"$trunc": [1.1, 1]}), json!(1.1)),
        (json!({"$trunc": [0.29, 2]}), json!(0.28)),
        (json!({"$bitAnd": [5, "$nil", "$s"]}), json!(null)),
        // No double is as small.
        (json!({"$toBool": {"$numberDecimal": "1E-6000"}}), json!(true)),
        (json!({"$and": [{"$numberDecimal": "1E-6000"}]}), json!(true)),
        (json!({"$not": {"$numberDecimal": "0.00"}}), json!(true)),
    ]);
    all_fail(&[
        (json!({"$add": ["$date", {"$numberDecimal": "1E+30"}]}), 15),
        (json!({"$round": [1, "x"]}), 16004),
        (json!({"$round": [1, 2.5]}), 51082),
        (json!({"$round": [1, 101]}), 51083),
        (json!({"$mod": ["$n", {"$numberDecimal": "0"}]}), 5733415),
        (json!({"$percentile": {"input": [1], "p": "$empty", "method": "approximate"}}), 7750300),
        (json!({"$mod": [{"$numberDecimal": "1"}, 0]}), 5733415),
        (json!({"$bitOr": ["$s", "$nil"]}), 14),
    ]);
}

#[test]
fn strings() {
    all_give(&[
        // The bounds are those of the start: the string may end behind them.
        (json!({"$indexOfCP": ["foobar", "bar", 0, 4]}), json!(3)),
        (json!({"$indexOfBytes": ["foobar", "bar", 0, 4]}), json!(-1)),
        (json!({"$indexOfCP": ["żółw", "w", 1]}), json!(3)),
        (json!({"$indexOfCP": ["abc", "", 3]}), json!(-1)),
        (json!({"$indexOfCP": ["abc", "", 2]}), json!(2)),
        (json!({"$indexOfCP": ["", ""]}), json!(0)),
        (json!({"$indexOfCP": ["", "", 1]}), json!(-1)),
        (json!({"$indexOfCP": ["abc", "a", 7]}), json!(-1)),
        (json!({"$indexOfBytes": ["abc", "", 3]}), json!(3)),
        (json!({"$toLower": 1e16}), json!("1e+16")),
        (json!({"$toString": 123456789012345680.0}), json!("1.2345678901234568e+17")),
        (json!({"$toString": 1e15}), json!("1000000000000000")),
        (json!({"$toString": 0.0001}), json!("0.0001")),
        (json!({"$toString": 0.000012}), json!("1.2e-05")),
        (json!({"$regexMatch": {"input": "$nil", "regex": "a"}}), json!(false)),
    ]);
    all_fail(&[
        (json!({"$substrCP": ["abc", -1, -1]}), 34454),
        (json!({"$substrCP": ["abc", -1, 1]}), 34455),
        (json!({"$substrCP": ["abc", -1, "x"]}), 34452),
        // The regular expression is looked at before the input.
        (json!({"$regexMatch": {"input": 1, "regex": 1}}), 51105),
        (json!({"$regexMatch": {"input": 1, "regex": "a", "options": 1}}), 51106),
        (json!({"$regexMatch": {"input": 1, "regex": "(", "options": "i"}}), 51111),
        (json!({"$regexMatch": {"input": 1, "regex": "a", "options": "q"}}), 51108),
        (json!({"$regexMatch": {"input": 1, "regex": "a"}}), 51104),
        (json!({"$regexMatch": {"input": 1, "regex": "$nil"}}), 51104),
    ]);
}

#[test]
fn arrays_and_sets() {
    all_give(&[
        (json!({"$setEquals": [[1], [2], "$s"]}), json!(false)),
        (json!({"$filter": {"input": "$empty", "cond": true, "limit": "$s"}}), json!([])),
        // A path leads through documents and named positions, not through all elements.
        (
            json!({"$sortArray": {"input": [{"a": [{"b": 2}]}, {"a": {"b": 1}}], "sortBy": {"a.b": 1}}}),
            json!([{"a": [{"b": 2}]}, {"a": {"b": 1}}]),
        ),
        (
            json!({"$sortArray": {"input": [{"a": [2, 1]}, {"a": [1, 2]}], "sortBy": {"a.0": 1}}}),
            json!([{"a": [1, 2]}, {"a": [2, 1]}]),
        ),
        (json!({"$sortArray": {"input": [3, 1], "sortBy": 1.0}}), json!([1, 3])),
        (json!({"$eq": [{"$toHashedIndexKey": [7]}, {"$toHashedIndexKey": "$n"}]}), json!(false)),
        (json!({"$eq": [{"$toHashedIndexKey": 7}, {"$toHashedIndexKey": "$n"}]}), json!(true)),
    ]);
    all_fail(&[
        (json!({"$setEquals": [[1], [1], "$s"]}), 17044),
        (json!({"$filter": {"input": [1], "cond": true, "limit": "$s"}}), 327391),
        (json!({"$sortArray": {"input": [1], "sortBy": {}}}), 2942505),
        (json!({"$sortArray": {"input": [1], "sortBy": {"a": 2}}}), 2942505),
        (json!({"$sortArray": {"input": [1], "sortBy": {"a..b": 1}}}), 2942505),
        (json!({"$sortArray": {"input": [1], "sortBy": 2}}), 2942506),
        (json!({"$sortArray": {"input": [1], "sortBy": "a"}}), 2942507),
    ]);
}

#[test]
fn documents() {
    all_give(&[(json!({"$setField": {"field": {"$literal": "$a.b"}, "input": {}, "value": 1}}), json!({"$a.b": 1}))]);
    all_fail(&[
        (json!("$$ROOT."), 40353),
        (json!("$$ROOT..a"), 15998),
        (json!({"a": 1, "$b": 2}), 16410),
        (json!({"a": 1, "$add": [1, 2]}), 16410),
        (json!({"$add": [1, 2], "a": 1}), 15983),
        (json!({"$setField": {"field": "$s", "input": {}, "value": 1}}), 4161108),
        (json!({"$setField": {"field": 1, "input": {}, "value": 1}}), 4161107),
        (json!({"$setField": {"field": {"$concat": ["$s", "x"]}, "input": {}, "value": 1}}), 4161106),
        (json!({"$setField": {"field": {"$concat": ["a", "x"]}, "input": {}, "value": 1}}), 4161106),
        (json!({"$setField": {"field": "a"}}), 4161103),
        (json!({"$setField": {"field": "a", "value": 1}}), 4161109),
        (json!({"$unsetField": {"field": "$s", "input": {}}}), 4161108),
        (json!({"$getField": {"field": "$n", "input": {}}}), 3041704),
        (json!({"$getField": {"field": 1, "input": {}}}), 3041704),
    ]);
}

#[test]
fn conversions() {
    let converted = |input: Json, to: Json| json!({"$convert": {"input": input, "to": to}});
    let in_format =
        |input: Json, to: Json, format: &str| json!({"$convert": {"input": input, "to": to, "format": format}});
    let binary = |base64: &str, subtype: &str| json!({"$binary": {"base64": base64, "subType": subtype}});
    all_give(&[
        (converted(json!(1.9), json!({"type": "int"})), json!(1)),
        (converted(json!(1_700_000_000_000i64), json!("date")), json!({"$date": 1_700_000_000_000i64})),
        (converted(json!(1), json!({"type": null})), json!(null)),
        (
            json!({"$toDecimal": "1.23456789012345678901234567890123456"}),
            json!({"$numberDecimal": "1.234567890123456789012345678901235"}),
        ),
        // Bytes as text.
        (
            in_format(binary("hn3uUsMxSE6S0cVkebjmfg==", "04"), json!("string"), "auto"),
            json!("867dee52-c331-484e-92d1-c56479b8e67e"),
        ),
        (
            in_format(binary("hn3uUsMxSE6S0cVkebjmfg==", "04"), json!("string"), "hex"),
            json!("867DEE52C331484E92D1C56479B8E67E"),
        ),
        (in_format(binary("hn3u", "00"), json!("string"), "auto"), json!("hn3u")),
        (in_format(json!("867dee"), json!("binData"), "hex"), binary("hn3u", "00")),
        // `onError` is for failures of the conversion.
        (json!({"$convert": {"input": {"$minKey": 1}, "to": "missing", "onError": "no"}}), json!("no")),
        (json!({"$convert": {"input": "x", "to": "binData", "format": "auto", "onError": "no"}}), json!("no")),
        (converted(json!(1), json!("date")), json!({"$date": "1970-01-01T00:00:00.001Z"})),
        (json!({"$toString": binary("aGk=", "00")}), json!("aGk=")),
        // The bytes of numbers, the least significant first.
        (converted(binary("/w==", "00"), json!("int")), json!(-1)),
        (converted(binary("AAE=", "00"), json!("long")), json!(256)),
        (converted(binary("AACAPw==", "00"), json!("double")), json!(1.0)),
        (converted(binary("AAAAAAAA+D8=", "00"), json!("double")), json!(1.5)),
        (converted(json!(1.5), json!("binData")), binary("AAAAAAAA+D8=", "00")),
        (json!({"$convert": {"input": 1, "to": "binData", "byteOrder": "big"}}), binary("AAAAAQ==", "00")),
        (json!({"$convert": {"input": binary("AAAAAQ==", "00"), "to": "int", "byteOrder": "big"}}), json!(1)),
    ]);
    all_fail(&[
        (converted(json!({}), json!("object")), 241),
        (converted(json!("x"), json!("binData")), 4341115),
        (json!({"$convert": {"input": "x", "to": "binData", "onError": 1}}), 4341115),
        (converted(binary("hn3u", "00"), json!("string")), 4341115),
        (in_format(json!("x"), json!("binData"), "ascii"), 4341125),
        (json!({"$convert": {"input": "x", "to": "binData", "format": 1, "onError": 1}}), 4341114),
        (in_format(json!("x"), json!({"type": "binData", "subtype": -1}), "utf8"), 4341107),
        (in_format(json!("x"), json!({"type": "binData", "subtype": 127}), "utf8"), 4341107),
        (in_format(json!("x"), json!({"type": "binData", "subtype": 1.5}), "utf8"), 4341106),
        (in_format(json!("x"), json!({"type": "binData", "subtype": "a"}), "utf8"), 4341108),
        (converted(json!(1), json!({"subtype": 0})), 9),
        (converted(json!(1), json!({"type": -2})), 9),
        (converted(binary("AgE=", "00"), json!("double")), 241),
        (converted(json!({"$numberDecimal": "1.5"}), json!("binData")), 241),
        (converted(binary("AQID", "00"), json!("int")), 241),
        (converted(binary("AAAAAAAA8D8=", "00"), json!("int")), 241),
        (converted(binary("AQ==", "00"), json!("double")), 241),
        (json!({"$convert": {"input": 1, "to": "binData", "byteOrder": 1}}), 9130001),
        (json!({"$convert": {"input": 1, "to": "binData", "byteOrder": "middle"}}), 9130002),
        (json!({"$round": [1, {"$numberDouble": "NaN"}]}), 31109),
        (json!({"$round": [1, {"$numberDecimal": "Infinity"}]}), 31109),
        (json!({"$trunc": [1, 1.5]}), 51082),
        (json!({"$multiply": ["$n", "x"]}), 14),
        (json!({"$sigmoid": "x"}), 14),
        (json!({"$sigmoid": [1]}), 14),
        (json!({"$setEquals": [[1], 1]}), 5887502),
        (json!({"$indexOfArray": [[1], 1, 1.5]}), 9711600),
        (json!({"$indexOfArray": [[1], 1, -1]}), 9711601),
        (json!({"$indexOfCP": ["a", "a", "x"]}), 40096),
        (json!({"$split": ["a", 1]}), 10503900),
        (json!({"$replaceOne": {"input": 1, "find": "a", "replacement": "b"}}), 10503904),
        (json!({"$replaceOne": {"input": "a", "find": 1, "replacement": "b"}}), 10503901),
        (json!({"$replaceAll": {"input": "a", "find": "a", "replacement": 1}}), 10503902),
        (json!({"$zip": {"inputs": "$empty"}}), 34461),
        (json!({"$dateAdd": {"startDate": "$date", "unit": "month", "amount": 30_000_000_000i64}}), 5976500),
        (json!({"$dateTrunc": {"date": "$date", "unit": "year", "binSize": 100_000_000_001i64}}), 5439006),
        (json!({"$dateTrunc": {"date": "$date", "unit": "hour", "binSize": i64::MAX}}), 5439002),
        (json!({"$toInt": []}), 50723),
        (json!({"$toDate": [1, 2]}), 50723),
        (json!({"$convert": {"input": 1, "to": "long", "bytes": "big"}}), 9),
        (json!({"$toDecimal": "1E+7000"}), 241),
        (json!({"$toDecimal": "1E-7000"}), 241),
    ]);
}

#[test]
fn texts_of_dates() {
    let read = |text: &str| json!({"$dateFromString": {"dateString": text}});
    let date = |text: &str| json!({"$date": text});
    all_give(&[
        (read("7/4/17"), date("2017-07-04T00:00:00Z")),
        (read("7/4/2017 11:00"), date("2017-07-04T11:00:00Z")),
        (read("04-07-2017"), date("2017-07-04T00:00:00Z")),
        (read("04.07.2017"), date("2017-07-04T00:00:00Z")),
        (read("2017-Jul-04 noon"), date("2017-07-04T12:00:00Z")),
        (read("2020-01-01T23:59:60Z"), date("2020-01-02T00:00:00Z")),
        (read("2020-01-01T24:00:00"), date("2020-01-02T00:00:00Z")),
        (read("2020-01-01 24:30"), date("2020-01-02T00:30:00Z")),
        (read("2020-366T01:02:03Z"), date("2020-12-31T01:02:03Z")),
        (read("2020-001"), date("2020-01-01T00:00:00Z")),
        (read("2020-12"), date("2020-12-01T00:00:00Z")),
        (read("2020-W01-1"), date("2019-12-30T00:00:00Z")),
        (read("2017-07-04T1156"), date("2017-07-04T11:56:00Z")),
        (read("Sat 15 Aug 2015 08:00:00 GMT"), date("2015-08-15T08:00:00Z")),
        (read("July 4th, 2017 12pm"), date("2017-07-04T12:00:00Z")),
        (read("20170704T115602"), date("2017-07-04T11:56:02Z")),
        (read("2017-07-04T11:56"), date("2017-07-04T11:56:00Z")),
        (read("2017-07-04 12:48:07 GMT+0545"), date("2017-07-04T07:03:07Z")),
        (read("2017-07-04 12:48:07 PM"), date("2017-07-04T12:48:07Z")),
        (read("2017-07"), date("2017-07-01T00:00:00Z")),
        // Months by their names or the first letters of them, whichever specifier asks for them.
        (json!({"$dateFromString": {"dateString": "4 July 2017", "format": "%d %b %Y"}}), date("2017-07-04T00:00:00Z")),
        (json!({"$dateFromString": {"dateString": "4 jul 2017", "format": "%d %B %Y"}}), date("2017-07-04T00:00:00Z")),
        (
            json!({"$dateFromString": {"dateString": "2017-07-04T11:56:02Z", "timezone": "UTC"}}),
            date("2017-07-04T11:56:02Z"),
        ),
        (json!({"$dateFromString": {"dateString": "$nil", "timezone": "$nil", "onNull": 1}}), json!(1)),
        (json!({"$dateFromString": {"dateString": "2017-07-04", "timezone": "$nil", "onNull": 1}}), json!(null)),
        (json!({"$dateFromString": {"dateString": 5, "timezone": "$nil", "onError": 1}}), json!(1)),
        // Null for the date is more than null for the zone or the format.
        (json!({"$dateToString": {"date": "$nil", "timezone": "$nil", "onNull": 1}}), json!(1)),
        (json!({"$dateToString": {"date": "$nil", "format": "$nil", "onNull": 1}}), json!(1)),
        (json!({"$dateToString": {"date": "$date", "timezone": "$nil", "onNull": 1}}), json!(null)),
        (json!({"$dateToString": {"date": "$date", "timezone": "GMT"}}), json!("2021-07-01T10:30:00.000")),
        (json!({"$dateToString": {"date": "$date", "timezone": "UTC"}}), json!("2021-07-01T10:30:00.000Z")),
        (json!({"$dateToString": {"date": "$date", "format": "100%% %Y"}}), json!("100% 2021")),
    ]);
    all_fail(&[
        (read("2017-02-30"), 241),
        (read("12:50:53"), 241),
        (read("2017, 12:50:53"), 241),
        (read("60.Monday1770/06:59"), 241),
        (json!({"$dateFromString": {"dateString": "4 Ju 2017", "format": "%d %b %Y"}}), 241),
        // A date after the year 9999 has no text.
        (json!({"$toString": {"$date": 253_402_300_800_000i64}}), 15),
        (json!({"$toUpper": {"$date": 253_402_300_800_000i64}}), 15),
        // Formats are checked first.
        (json!({"$dateFromString": {"dateString": "$nil", "format": "%q"}}), 18536),
        (json!({"$dateFromString": {"dateString": "$nil", "format": "%Y%"}}), 18535),
        (json!({"$dateFromString": {"dateString": "2017", "format": "%U"}}), 18536),
        (json!({"$dateToString": {"date": "$nil", "format": "%q"}}), 18536),
        (json!({"$dateToString": {"date": "$nil", "format": "%"}}), 18535),
        (json!({"$dateToString": {"date": "$nil", "timezone": "$zone"}}), 40485),
        (json!({"$hour": {"date": "$date", "timezone": "europe/london"}}), 40485),
        (json!({"$hour": {"date": "$date", "timezone": "Z"}}), 40485),
    ]);
}

#[test]
fn dates() {
    let date = |text: &str| json!({"$date": text});
    let truncated = |unit: &str, size: i64, zone: &str| json!({"$dateTrunc": {"date": "$date", "unit": unit, "binSize": size, "timezone": zone}});
    all_give(&[
        // Bins of hours have one length from the year 2000 on, whatever the clock does in summer.
        (truncated("hour", 2, "America/New_York"), date("2021-07-01T09:00:00Z")),
        (truncated("hour", 2, "UTC"), date("2021-07-01T10:00:00Z")),
        (truncated("day", 1, "America/New_York"), date("2021-07-01T04:00:00Z")),
        // Null decides before the other arguments are looked at.
        (json!({"$dateTrunc": {"date": "$nil", "unit": "$s", "binSize": "$s", "timezone": "$zone"}}), json!(null)),
        (json!({"$dateTrunc": {"date": "$s", "unit": "$nil", "binSize": "$s"}}), json!(null)),
        (json!({"$dateTrunc": {"date": "$s", "unit": "week", "startOfWeek": "$nil"}}), json!(null)),
        (json!({"$dateTrunc": {"date": "$date", "unit": "year", "startOfWeek": 1}}), date("2021-01-01T00:00:00Z")),
        (json!({"$dateDiff": {"startDate": "$nil", "endDate": "$s", "unit": "$s"}}), json!(null)),
        (json!({"$dateAdd": {"startDate": "$nil", "unit": "$s", "amount": "$s"}}), json!(null)),
        (json!({"$dateAdd": {"startDate": "$s", "unit": "day", "amount": "$nil"}}), json!(null)),
        (json!({"$hour": {"date": "$nil", "timezone": "$zone"}}), json!(null)),
        (json!({"$dateToParts": {"date": "$date", "timezone": "$nil", "iso8601": 1}}), json!(null)),
        // The clock was put forward by half an hour: 02:00 to 03:30 there is one hour.
        (
            json!({"$dateDiff": {
                "startDate": date("2021-10-02T15:00:00Z"), "endDate": date("2021-10-02T16:30:00Z"),
                "unit": "hour", "timezone": "Australia/Lord_Howe"
            }}),
            json!(2),
        ),
    ]);
    all_fail(&[
        (json!({"$dateTrunc": {"date": "$s", "unit": "$n"}}), 5166307),
        (json!({"$hour": {"date": "$s", "timezone": "$zone"}}), 16006),
        (json!({"$hour": {"date": "$date", "timezone": 1}}), 40517),
        (json!({"$dateTrunc": {"date": "$date", "unit": "$n"}}), 5439013),
        (json!({"$dateTrunc": {"date": "$date", "unit": "day", "binSize": 0}}), 5439018),
        (json!({"$dateTrunc": {"date": "$date", "unit": "week", "startOfWeek": 1}}), 5439015),
        (json!({"$dateTrunc": {"date": "$date", "unit": "week", "startOfWeek": "FRIDIE"}}), 5439016),
        (json!({"$dateAdd": {"startDate": "$s", "unit": "$n", "amount": "$s"}}), 5166403),
        (json!({"$dateAdd": {"startDate": "$date", "unit": "$n", "amount": "$s"}}), 5439013),
        (json!({"$dateAdd": {"startDate": "$date", "unit": "day", "amount": "$s"}}), 5166405),
        (json!({"$dateFromParts": {"month": 1}}), 40516),
        (json!({"$dateFromParts": {"isoWeek": 1, "month": 1}}), 40516),
        (json!({"$dateFromParts": {"year": "$nil", "isoWeek": 1}}), 40489),
        (json!({"$dateFromParts": {"isoWeekYear": "$nil", "day": 1}}), 40525),
        (json!({"$dateFromParts": {"years": 1}}), 40518),
        (json!({"$dateFromParts": 1}), 40519),
    ]);
}

/// The calendar's last days, and offsets of zones beyond a day.
#[test]
fn dates_at_the_edges() {
    let date = |text: &str| json!({"$date": text});
    let millis = |millis: i64| json!({"$date": {"$numberLong": millis.to_string()}});
    let last = || date("9999-12-31T23:59:59.999Z");
    let first = || millis(-377_705_116_800_000);
    let truncated = |unit: &str| json!({"$dateTrunc": {"date": last(), "unit": unit}});
    let shifted =
        |date: Json, unit: &str, amount: i64| json!({"$dateAdd": {"startDate": date, "unit": unit, "amount": amount}});
    all_give(&[
        (
            json!([{"$year": last()}, {"$month": last()}, {"$dayOfMonth": last()}, {"$dayOfYear": last()}]),
            json!([9999, 12, 31, 365]),
        ),
        (
            json!([{"$dayOfWeek": last()}, {"$week": last()}, {"$isoWeek": last()}, {"$hour": last()}]),
            json!([6, 52, 52, 23]),
        ),
        (json!([{"$year": first()}, {"$dayOfYear": first()}]), json!([-9999, 1])),
        (json!({"$toString": last()}), json!("9999-12-31T23:59:59.999Z")),
        (
            json!({"$dateToString": {"date": last(), "timezone": "America/New_York", "format": "%m-%d %H%z"}}),
            json!("12-31 18-0500"),
        ),
        (truncated("year"), date("9999-01-01T00:00:00Z")),
        (truncated("quarter"), date("9999-10-01T00:00:00Z")),
        (truncated("week"), date("9999-12-26T00:00:00Z")),
        (truncated("day"), date("9999-12-31T00:00:00Z")),
        (truncated("hour"), date("9999-12-31T23:00:00Z")),
        (json!({"$dateDiff": {"startDate": date("9999-12-30T00:00:00Z"), "endDate": last(), "unit": "day"}}), json!(1)),
        (shifted(date("9999-12-30T00:00:00Z"), "day", 1), date("9999-12-31T00:00:00Z")),
        (shifted(date("9999-12-30T00:00:00Z"), "hour", 47), date("9999-12-31T23:00:00Z")),
        (shifted(date("9998-12-31T23:59:59.999Z"), "year", 1), last()),
        (json!({"$dateFromParts": {"year": 9999, "month": 12, "day": 31, "hour": 23}}), date("9999-12-31T23:00:00Z")),
        (json!({"$dateFromString": {"dateString": "9999-12-31T23:59:59.999"}}), last()),
        (json!({"$toDate": "9999-12-31"}), date("9999-12-31T00:00:00Z")),
        // 100 hours and 39 minutes.
        (
            json!({"$dateToString": {"date": date("2020-01-01T12:00:00Z"), "timezone": "+99:99", "format": "%d %H:%M %z %Z"}}),
            json!("05 16:39 +10039 6039"),
        ),
        (
            json!({"$dateToString": {"date": date("2020-01-01T12:00:00Z"), "timezone": "-9999", "format": "%d %H:%M %z"}}),
            json!("28 07:21 -10039"),
        ),
        (json!({"$dateFromParts": {"year": 2020, "hour": 12, "timezone": "+99:99"}}), date("2019-12-28T07:21:00Z")),
        (
            json!({"$dateAdd": {"startDate": date("2020-01-31T12:00:00Z"), "unit": "month", "amount": 1, "timezone": "+99:99"}}),
            date("2020-02-29T12:00:00Z"),
        ),
    ]);
    all_fail(&[
        (shifted(last(), "millisecond", 1), 6045000),
        (shifted(last(), "day", 1), 6045000),
        (json!({"$year": {"date": last(), "timezone": "+00:01"}}), 15),
        (json!({"$year": millis(i64::MAX)}), 15),
        (json!({"$year": {"date": millis(i64::MIN), "timezone": "-99:99"}}), 15),
        (json!({"$dateFromString": {"dateString": "2017 +9223372036854775807", "format": "%Y %Z"}}), 241),
        (json!({"$dateFromString": {"dateString": "2017-01-01 +99999999", "format": "%Y-%m-%d %Z"}}), 241),
        (json!({"$hour": {"date": "$date", "timezone": "+1:00"}}), 40485),
        (json!({"$hour": {"date": "$date", "timezone": format!("+{}", "9".repeat(100_000))}}), 40485),
    ]);
}

#[test]
fn positions_in_bytes() {
    let part = |start: Json, length: Json| json!({"$substrBytes": ["hello", start, length]});
    let decimal = |text: &str| json!({"$numberDecimal": text});
    let double = |text: &str| json!({"$numberDouble": text});
    all_give(&[
        // A double is cut, a decimal rounded half to even.
        (part(json!(1.9), json!(2.9)), json!("el")),
        (part(decimal("0.5"), decimal("1.5")), json!("he")),
        (part(decimal("1.5"), decimal("2.5")), json!("ll")),
        (part(decimal("-0.5"), decimal("-0.5")), json!("")),
        (part(decimal("30E-1"), decimal("1E-6176")), json!("")),
        (part(json!(-0.9), json!(3)), json!("hel")),
        // A decimal beyond 64 bits counts as the least integer.
        (part(json!(2), decimal("NaN")), json!("llo")),
        (part(json!(2), decimal("Infinity")), json!("llo")),
        (part(json!(2), decimal("9.999999999999999999999999999999999E+6144")), json!("llo")),
    ]);
    all_fail(&[
        (part(decimal("NaN"), json!(1)), 50752),
        (part(decimal("Infinity"), json!(1)), 50752),
        (part(decimal("1E+6144"), json!(1)), 50752),
        (part(decimal("-1.5"), json!(1)), 50752),
        (part(double("NaN"), json!(-1)), 31109),
        (part(double("Infinity"), json!(1)), 31109),
        (part(json!(1e20), json!(1)), 31109),
        (part(json!(0), double("NaN")), 31109),
        (part(json!(0), double("-Infinity")), 31109),
        (part(json!(0), json!(-1e20)), 31109),
        (part(double("NaN"), json!("1")), 16035),
        (part(json!(-1), double("NaN")), 50752),
    ]);
}

#[test]
fn doubles_of_strings() {
    let of = |text: &str| json!({"$toDouble": text});
    let zeros = "0".repeat(1000);
    all_give(&[
        (of("+0x1p0"), json!(1.0)),
        (of("-0x1.8p1"), json!(-3.0)),
        (of("+0X.8"), json!(0.5)),
        (of("0X1P-1"), json!(0.5)),
        (of("+0xff"), json!(255.0)),
        (of("+0xF.Fp+4"), json!(255.0)),
        (of("0X0p99999999999999999999"), json!(0.0)),
        (of("+0x1p-1022"), json!(f64::MIN_POSITIVE)),
        (of("+0x1p-1074"), json!(5e-324)),
        (of("+0x1.fffffffffffffp1023"), json!(f64::MAX)),
        // Half to even, and a digit far behind the point decides.
        (of("+0x20000000000001"), json!(9007199254740992.0)),
        (of(&format!("+0x20000000000001.{zeros}1")), json!(9007199254740994.0)),
        (of(&format!("0X{zeros}f")), json!(15.0)),
        (of(&format!("+0x1{zeros}p-4000")), json!(1.0)),
        (of(&format!("+0x.{zeros}1p4004")), json!(1.0)),
        (of("0e-400"), json!(0.0)),
        (of("2.2250738585072014e-308"), json!(f64::MIN_POSITIVE)),
        (of("1."), json!(1.0)),
        (of(".5"), json!(0.5)),
    ]);
    // MongoDB refuses a string that begins with 0x, but none with a sign before, nor 0X.
    for text in [
        "0x1",
        "0x",
        "0X",
        "+0x",
        "-0x.p0",
        "+0xp0",
        "+0x1p",
        "+0x1p+",
        "+0x1p-",
        "+0x1p1.5",
        "+0x1 ",
        "+0x1g",
        "+0x1.2.3",
        "+-0x1",
        "+0x1p1024",
        "+0x1p-1075",
        "+0x1.8p-1074",
        "+0xp99999999999999999999",
        "+0x1p99999999999999999999",
        "1e-400",
        "-1e-400",
        "5e-324",
        "1e309",
        "1e",
        "",
        " 1",
        "1 ",
        "1_0",
        "+",
        ".",
        "e5",
        "0x1.0é",
    ] {
        all_fail(&[(of(text), 241)]);
    }
    all_fail(&[(json!({"$toInt": "+0x1"}), 241), (json!({"$toDecimal": "+0x1"}), 241)]);
}

#[test]
fn signs_of_zero() {
    let text = |expression: Json| json!({"$toString": expression});
    let zero = || json!({"$numberDouble": "-0.0"});
    all_give(&[
        (text(zero()), json!("-0")),
        (text(json!({"$multiply": [-1, 0.0]})), json!("-0")),
        (text(json!({"$ceil": -0.5})), json!("-0")),
        (text(json!({"$abs": zero()})), json!("0")),
        (text(json!({"$add": [zero(), 0.0]})), json!("0")),
        (text(json!({"$sum": [zero(), zero()]})), json!("0")),
        (text(json!({"$toDouble": "-0"})), json!("-0")),
        (text(json!({"$first": [[zero()]]})), json!("-0")),
        (json!({"$eq": [zero(), 0]}), json!(true)),
        (json!({"$cmp": [zero(), {"$numberDecimal": "0.00"}]}), json!(0)),
        (json!({"$toBool": zero()}), json!(false)),
        (json!({"$cond": [zero(), 1, 2]}), json!(2)),
        (json!({"$type": zero()}), json!("double")),
        (json!({"$toInt": zero()}), json!(0)),
        (json!({"$setUnion": [[zero()], [0]]}), json!([0])),
    ]);
}
