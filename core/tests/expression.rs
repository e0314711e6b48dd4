//! Expressions: each operator's results, errors and properties.

mod common;

use common::*;
use docshard_core::error::Error;
use docshard_core::query::environment::Environment;
use docshard_core::query::expression::Expression;
use docshard_core::query::filter::Filter;
use docshard_core::query::vocabulary;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

fn environment() -> Environment {
    let roles = json!(["clerk", "reader"]);
    Environment::parse(&json!({"now": 1_700_000_000_000i64, "roles": roles, "let": {"limit": {"$add": [1, 2]}}}))
        .unwrap()
}

fn evaluate(expression: &Json, against: &Json) -> Result<Option<Value>, Error> {
    Expression::parse(expression, &environment())?.evaluate(document(&bytes(against)), None)
}

/// The document of the cases.
fn sample() -> Json {
    json!({
        "n": 7, "d": 2.5, "neg": -3, "s": "Hello", "u": "żółw", "t": true, "nil": null,
        "a": [3, 1, 2], "docs": [{"k": "x", "v": 1}, {"v": 2}, 5, [{"v": 3}]], "o": {"p": {"q": 1}},
        "date": {"$date": "2024-02-29T13:14:15.678Z"}, "dec": {"$numberDecimal": "10.50"},
        "oid": {"$oid": "507f1f77bcf86cd799439011"}
    })
}

#[test]
fn operators_mean_what_they_mean_in_mongodb() {
    let cases = [
        // Paths and variables.
        ("$o.p.q", json!(1)),
        ("$docs.v", json!([1, 2])),
        ("$$ROOT.n", json!(7)),
        ("$$CURRENT.n", json!(7)),
        ("$$limit", json!(3)),
        ("$$NOW", json!({"$date": 1_700_000_000_000i64})),
    ]
    .map(|(path, expected)| (Json::from(path), expected));
    let operators = [
        // Percentiles.
        (json!({"$median": {"input": "$a", "method": "approximate"}}), json!(2.0)),
        (json!({"$median": {"input": [1, 2, "x", 4, null, 3], "method": "discrete"}}), json!(2.0)),
        (json!({"$median": {"input": [1, 2, 4, 3], "method": "continuous"}}), json!(2.5)),
        (json!({"$median": {"input": "$n", "method": "approximate"}}), json!(7.0)),
        (json!({"$median": {"input": "$s", "method": "approximate"}}), json!(null)),
        (
            json!({"$percentile": {"input": "$a", "p": [0, 0.5, 0.9, 1], "method": "approximate"}}),
            json!([1.0, 2.0, 3.0, 3.0]),
        ),
        (json!({"$percentile": {"input": "$none", "p": [0.1], "method": "approximate"}}), json!([null])),
        // Dates in words, and time zones by abbreviations.
        (json!({"$dateFromString": {"dateString": "July 4th, 2017"}}), json!({"$date": "2017-07-04T00:00:00Z"})),
        (json!({"$dateFromString": {"dateString": "July 4th, 2017 11am"}}), json!({"$date": "2017-07-04T11:00:00Z"})),
        (
            json!({"$dateFromString": {"dateString": "July 1st, 2017 12:39pm"}}),
            json!({"$date": "2017-07-01T12:39:00Z"}),
        ),
        (
            json!({"$dateFromString": {"dateString": "July 4th, 2017 12:39:30 BST"}}),
            json!({"$date": "2017-07-04T11:39:30Z"}),
        ),
        (
            json!({"$dateFromString": {"dateString": "2017-07-14T12:02:44.771 CEST"}}),
            json!({"$date": "2017-07-14T10:02:44.771Z"}),
        ),
        (
            json!({"$dateFromString": {"dateString": "2017-07-14T12:02:44.771 L"}}),
            json!({"$date": "2017-07-14T01:02:44.771Z"}),
        ),
        (
            json!({"$dateFromString": {"dateString": "2017-07-14T12:02:44 P", "format": "%Y-%m-%dT%H:%M:%S %z"}}),
            json!({"$date": "2017-07-14T15:02:44Z"}),
        ),
        (
            json!({"$dateFromString": {"dateString": "2017-07-04T11:56.02.8"}}),
            json!({"$date": "2017-07-04T11:56:02.8Z"}),
        ),
        (json!({"$toInt": "+5"}), json!(5)),
        (
            json!({"$map": {"input": {"$regexFindAll": {"input": "abc", "regex": "b*"}}, "in": "$$this.idx"}}),
            json!([0, 1, 2]),
        ),
        (json!({"$size": [{"$regexFindAll": {"input": "", "regex": "x*"}}]}), json!(1)),
        (json!("$$USER_ROLES.role"), json!(["clerk", "reader"])),
        (
            json!("$$USER_ROLES"),
            json!([{"_id": "admin.clerk", "role": "clerk", "db": "admin"}, {"_id": "admin.reader", "role": "reader", "db": "admin"}]),
        ),
        (json!({"$in": [{"_id": "admin.clerk", "role": "clerk", "db": "admin"}, "$$USER_ROLES"]}), json!(true)),
        // Arithmetic and its promotions.
        (json!({"$add": [1, 2, 3.5]}), json!(6.5)),
        (json!({"$add": [0.1, 0.2, 0.3]}), json!(0.6000000000000001)),
        (json!({"$add": ["$n", "$nil"]}), json!(null)),
        (json!({"$add": ["$date", 322]}), json!({"$date": "2024-02-29T13:14:16Z"})),
        (json!({"$add": [i64::MAX, 1]}), json!(9223372036854775808.0)),
        (json!({"$add": ["$dec", 1]}), json!({"$numberDecimal": "11.50"})),
        (json!({"$subtract": ["$date", {"$date": "2024-02-29T13:14:15Z"}]}), json!(678)),
        (json!({"$multiply": ["$n", "$d"]}), json!(17.5)),
        (json!({"$divide": [7, 2]}), json!(3.5)),
        (
            json!({"$divide": [{"$numberDecimal": "1"}, 3]}),
            json!({"$numberDecimal": "0.3333333333333333333333333333333333"}),
        ),
        (json!({"$mod": ["$neg", 2]}), json!(-1)),
        (json!({"$mod": [8, 3.0]}), json!(2)),
        (json!({"$mod": [-4, 2.0]}), json!(0)),
        (json!({"$mod": [5_000_000_000_i64, -3.0]}), json!(2)),
        (json!({"$mod": [5, 2147483648.0]}), json!(5.0)),
        (json!({"$mod": [5, -2147483648.0]}), json!(5)),
        (json!({"$mod": [5, 1.5]}), json!(0.5)),
        (json!({"$mod": [5.0, 3]}), json!(2.0)),
        (json!({"$abs": "$neg"}), json!(3)),
        (json!({"$ceil": 2.1}), json!(3.0)),
        (json!({"$floor": -2.1}), json!(-3.0)),
        (json!({"$round": [2.5]}), json!(2.0)),
        (json!({"$round": [1234, -2]}), json!(1200)),
        (json!({"$round": [1.25, 1]}), json!(1.2)),
        (json!({"$trunc": [-7.89, 1]}), json!(-7.8)),
        (json!({"$pow": [2, 10]}), json!(1024)),
        (json!({"$pow": [2, 64]}), json!(18446744073709551616.0)),
        (json!({"$pow": [2, -1]}), json!(0.5)),
        (json!({"$sqrt": 16}), json!(4.0)),
        (json!({"$log": [100, 10]}), json!(2.0)),
        (json!({"$sigmoid": 0}), json!(0.5)),
        (json!({"$exp": {"$numberDecimal": "1"}}), json!({"$numberDecimal": "2.718281828459045235360287471352662"})),
        (json!({"$ln": {"$numberDecimal": "10"}}), json!({"$numberDecimal": "2.302585092994045684017991454684364"})),
        (json!({"$bitXor": [12, 10]}), json!(6)),
        // Comparison across types; missing is less than null.
        (json!({"$gt": ["$s", "$n"]}), json!(true)),
        (json!({"$eq": ["$missing", null]}), json!(false)),
        (json!({"$lt": ["$missing", null]}), json!(true)),
        (json!({"$eq": [2, 2.0]}), json!(true)),
        (json!({"$cmp": ["$a", [3, 1]]}), json!(1)),
        (json!({"$and": [1, "x", {"$literal": []}]}), json!(true)),
        (json!({"$or": [0, null, "$missing"]}), json!(false)),
        (json!({"$not": ["$missing"]}), json!(true)),
        // Conditional operators evaluate only the chosen branch.
        (json!({"$cond": [true, "yes", {"$divide": [1, 0]}]}), json!("yes")),
        (json!({"$cond": {"if": "$nil", "then": 1, "else": 2}}), json!(2)),
        (json!({"$ifNull": ["$nil", "$missing", "third"]}), json!("third")),
        (json!({"$switch": {"branches": [{"case": {"$gt": ["$n", 10]}, "then": 1}], "default": 0}}), json!(0)),
        // Arrays.
        (json!({"$size": "$a"}), json!(3)),
        (json!({"$arrayElemAt": ["$a", -1]}), json!(2)),
        (json!({"$first": "$a"}), json!(3)),
        (json!({"$concatArrays": ["$a", [9]]}), json!([3, 1, 2, 9])),
        (json!({"$filter": {"input": "$a", "cond": {"$gt": ["$$this", 1]}}}), json!([3, 2])),
        (json!({"$filter": {"input": "$a", "as": "x", "cond": true, "limit": 1}}), json!([3])),
        (json!({"$map": {"input": "$a", "as": "x", "in": {"$multiply": ["$$x", "$n"]}}}), json!([21, 7, 14])),
        (
            json!({"$reduce": {"input": "$a", "initialValue": "", "in": {"$concat": ["$$value", {"$toString": "$$this"}]}}}),
            json!("312"),
        ),
        (
            json!({"$map": {"input": [[1, 2], [3]], "as": "row", "in": {"$map": {"input": "$$row", "in": {"$add": ["$$this", {"$size": "$$row"}]}}}}}),
            json!([[3, 4], [4]]),
        ),
        (json!({"$in": [2, "$a"]}), json!(true)),
        (json!({"$indexOfArray": ["$a", 2]}), json!(2)),
        (json!({"$range": [0, 10, 4]}), json!([0, 4, 8])),
        (json!({"$range": [3, 0, -2]}), json!([3, 1])),
        (json!({"$toLower": 123_456.789}), json!("123457")),
        (json!({"$toUpper": 1_000_000.0}), json!("1E+06")),
        (json!({"$toLower": 0.000_012_345_67}), json!("1.23457e-05")),
        (json!({"$toUpper": 100.5}), json!("100.5")),
        (json!({"$substrCP": [-0.5, 0, 9]}), json!("-0.5")),
        (json!({"$toLower": {"$numberDouble": "-Infinity"}}), json!("-inf")),
        (json!({"$range": [10, 0, -2]}), json!([10, 8, 6, 4, 2])),
        (json!({"$range": [10, 1, -3]}), json!([10, 7, 4])),
        (json!({"$range": [0, 10, -3]}), json!([])),
        (json!({"$range": [2_147_483_647, -2_147_483_648i64, -2_147_483_648i64]}), json!([2_147_483_647, -1])),
        // The seconds of an ObjectId are signed.
        (json!({"$toDate": {"$toObjectId": "ffffffff0000000000000000"}}), json!({"$date": {"$numberLong": "-1000"}})),
        (json!({"$reverseArray": "$a"}), json!([2, 1, 3])),
        (json!({"$slice": ["$a", -2]}), json!([1, 2])),
        (json!({"$slice": ["$a", 1, 5]}), json!([1, 2])),
        (
            json!({"$zip": {"inputs": ["$a", ["x"]], "useLongestLength": true, "defaults": [0, "-"]}}),
            json!([[3, "x"], [1, "-"], [2, "-"]]),
        ),
        (json!({"$arrayToObject": [[["k", 1], ["l", 2], ["k", 3]]]}), json!({"k": 3, "l": 2})),
        (json!({"$objectToArray": "$o"}), json!([{"k": "p", "v": {"q": 1}}])),
        (json!({"$sortArray": {"input": "$a", "sortBy": -1}}), json!([3, 2, 1])),
        (json!({"$sortArray": {"input": [{"x": 2}, {"x": 1}], "sortBy": {"x": 1}}}), json!([{"x": 1}, {"x": 2}])),
        (json!({"$firstN": {"n": 2, "input": "$a"}}), json!([3, 1])),
        (json!({"$maxN": {"n": 2, "input": "$a"}}), json!([3, 2])),
        (json!({"$setUnion": ["$a", [4, 1]]}), json!([1, 2, 3, 4])),
        (json!({"$setDifference": ["$a", [1]]}), json!([3, 2])),
        (json!({"$setEquals": ["$a", [1, 2, 3, 3]]}), json!(true)),
        (json!({"$setIsSubset": [[1], "$a"]}), json!(true)),
        (json!({"$anyElementTrue": [[0, null]]}), json!(false)),
        // Strings.
        (json!({"$concat": ["$s", " ", "world"]}), json!("Hello world")),
        (json!({"$toUpper": "$s"}), json!("HELLO")),
        (json!({"$substrCP": ["$u", 1, 2]}), json!("ół")),
        (json!({"$strLenCP": "$u"}), json!(4)),
        (json!({"$strLenBytes": "$u"}), json!(7)),
        (json!({"$indexOfCP": ["$u", "w"]}), json!(3)),
        (json!({"$split": ["a-b-c", "-"]}), json!(["a", "b", "c"])),
        (json!({"$trim": {"input": " x "}}), json!("x")),
        (json!({"$ltrim": {"input": "xxyx", "chars": "x"}}), json!("yx")),
        (json!({"$replaceAll": {"input": "aXbX", "find": "X", "replacement": "-"}}), json!("a-b-")),
        (json!({"$regexMatch": {"input": "$s", "regex": "^h", "options": "i"}}), json!(true)),
        (
            json!({"$regexFind": {"input": "żab12", "regex": "b(\\d)"}}),
            json!({"match": "b1", "idx": 2, "captures": ["1"]}),
        ),
        (
            json!({"$regexFindAll": {"input": "a1b2", "regex": "\\d"}}),
            json!([{"match": "1", "idx": 1, "captures": []}, {"match": "2", "idx": 3, "captures": []}]),
        ),
        (json!({"$strcasecmp": ["a", "B"]}), json!(-1)),
        // Types.
        (json!({"$type": "$missing"}), json!("missing")),
        (json!({"$type": "$dec"}), json!("decimal")),
        (json!({"$toInt": "12"}), json!(12)),
        (json!({"$toInt": 1.9}), json!(1)),
        (json!({"$toString": 1e21}), json!("1e+21")),
        (json!({"$toString": "$date"}), json!("2024-02-29T13:14:15.678Z")),
        (json!({"$toDate": "$oid"}), json!({"$date": "2012-10-17T21:13:27Z"})),
        (json!({"$toObjectId": "507f1f77bcf86cd799439011"}), json!({"$oid": "507f1f77bcf86cd799439011"})),
        (json!({"$convert": {"input": "x", "to": "int", "onError": "bad"}}), json!("bad")),
        (json!({"$convert": {"input": null, "to": "int", "onNull": 0}}), json!(0)),
        (json!({"$isNumber": "$dec"}), json!(true)),
        // Dates.
        (json!({"$year": "$date"}), json!(2024)),
        (json!({"$dayOfYear": "$date"}), json!(60)),
        (json!({"$isoWeek": "$date"}), json!(9)),
        (json!({"$week": "$date"}), json!(8)),
        (json!({"$hour": {"date": "$date", "timezone": "America/New_York"}}), json!(8)),
        (
            json!({"$dateToString": {"date": "$date", "format": "%d.%m.%Y %H:%M:%S.%L %j %z", "timezone": "+0130"}}),
            json!("29.02.2024 14:44:15.678 060 +0130"),
        ),
        (
            json!({"$dateFromString": {"dateString": "2024-02-29T13:14:15.678Z"}}),
            json!({"$date": "2024-02-29T13:14:15.678Z"}),
        ),
        (
            json!({"$dateFromString": {"dateString": "29/02/2024", "format": "%d/%m/%Y", "timezone": "Europe/Berlin"}}),
            json!({"$date": "2024-02-28T23:00:00Z"}),
        ),
        (json!({"$dateFromParts": {"year": 2023, "month": 14, "day": 1}}), json!({"$date": "2024-02-01T00:00:00Z"})),
        (
            json!({"$dateFromParts": {"isoWeekYear": 2024, "isoWeek": 9, "isoDayOfWeek": 4}}),
            json!({"$date": "2024-02-29T00:00:00Z"}),
        ),
        (
            json!({"$dateAdd": {"startDate": "$date", "unit": "year", "amount": 1}}),
            json!({"$date": "2025-02-28T13:14:15.678Z"}),
        ),
        (
            json!({"$dateAdd": {"startDate": {"$date": "2024-03-09T12:00:00Z"}, "unit": "day", "amount": 1, "timezone": "America/New_York"}}),
            json!({"$date": "2024-03-10T11:00:00Z"}),
        ),
        (
            json!({"$dateSubtract": {"startDate": "$date", "unit": "hour", "amount": 14}}),
            json!({"$date": "2024-02-28T23:14:15.678Z"}),
        ),
        (
            json!({"$dateDiff": {"startDate": {"$date": "2023-12-31T23:59:59Z"}, "endDate": "$date", "unit": "month"}}),
            json!(2),
        ),
        (
            json!({"$dateDiff": {"startDate": {"$date": "2024-02-25T00:00:00Z"}, "endDate": "$date", "unit": "week", "startOfWeek": "monday"}}),
            json!(1),
        ),
        (
            json!({"$dateTrunc": {"date": "$date", "unit": "hour", "binSize": 6}}),
            json!({"$date": "2024-02-29T12:00:00Z"}),
        ),
        (
            json!({"$dateTrunc": {"date": "$date", "unit": "week", "startOfWeek": "monday"}}),
            json!({"$date": "2024-02-26T00:00:00Z"}),
        ),
        (
            json!({"$dateTrunc": {"date": "$date", "unit": "month", "timezone": "Asia/Tokyo"}}),
            json!({"$date": "2024-01-31T15:00:00Z"}),
        ),
        (json!({"$tsSecond": {"$timestamp": {"t": 5, "i": 6}}}), json!(5)),
        // Documents.
        (json!({"$mergeObjects": ["$o", {"r": 1}, null]}), json!({"p": {"q": 1}, "r": 1})),
        (json!({"$getField": "n"}), json!(7)),
        (json!({"$getField": {"field": {"$literal": "$x"}, "input": {"$literal": {"$x": 1}}}}), json!(1)),
        (json!({"$setField": {"field": "p", "input": "$o", "value": "$$REMOVE"}}), json!({})),
        (json!({"x": "$missing", "y": ["$missing", 1]}), json!({"y": [null, 1]})),
        (json!({"$let": {"vars": {"x": 1, "y": "$n"}, "in": {"$subtract": ["$$y", "$$x"]}}}), json!(6)),
        (json!({"$let": {"vars": {"CURRENT": "$o"}, "in": "$p.q"}}), json!(1)),
        (json!({"$log10": 1000}), json!(3.0)),
        (json!({"$bitAnd": [12, 10]}), json!(8)),
        (json!({"$bitOr": [12, 10]}), json!(14)),
        (json!({"$bitNot": 5}), json!(-6)),
        // Trigonometry.
        (json!({"$sin": 1}), json!(0.8414709848078965)),
        (json!({"$cos": 1}), json!(0.5403023058681398)),
        (json!({"$tan": 1}), json!(1.5574077246549023)),
        (json!({"$asin": 1}), json!(std::f64::consts::FRAC_PI_2)),
        (json!({"$acos": -1}), json!(std::f64::consts::PI)),
        (json!({"$atan": 1}), json!(std::f64::consts::FRAC_PI_4)),
        (json!({"$atan2": [1, -1]}), json!(3.0 * std::f64::consts::FRAC_PI_4)),
        (json!({"$sinh": 1}), json!(1.1752011936438014)),
        (json!({"$cosh": 1}), json!(1.5430806348152437)),
        (json!({"$tanh": 1}), json!(0.7615941559557649)),
        (json!({"$asinh": 1}), json!(0.881373587019543)),
        (json!({"$acosh": 2}), json!(1.3169578969248166)),
        (json!({"$atanh": 0.5}), json!(0.5493061443340548)),
        (json!({"$degreesToRadians": 180}), json!(std::f64::consts::PI)),
        (json!({"$radiansToDegrees": std::f64::consts::PI}), json!(180.0)),
        // Comparison.
        (json!({"$ne": ["$n", 8]}), json!(true)),
        (json!({"$gte": ["$n", 8]}), json!(false)),
        (json!({"$lte": ["$n", 7]}), json!(true)),
        (json!({"$const": "$n"}), json!("$n")),
        // Arrays and sets.
        (json!({"$isArray": "$a"}), json!(true)),
        (json!({"$last": "$a"}), json!(2)),
        (json!({"$lastN": {"n": 2, "input": "$a"}}), json!([1, 2])),
        (json!({"$minN": {"n": 2, "input": "$a"}}), json!([1, 2])),
        (json!({"$setIntersection": ["$a", [2, 2, 4]]}), json!([2])),
        (json!({"$allElementsTrue": [[true, 0]]}), json!(false)),
        // Strings and binary values.
        (json!({"$indexOfBytes": ["$u", "w"]}), json!(6)),
        (json!({"$replaceOne": {"input": "$s", "find": "l", "replacement": "L"}}), json!("HeLlo")),
        (json!({"$rtrim": {"input": " x "}}), json!(" x")),
        (json!({"$substr": ["$s", 1, 3]}), json!("ell")),
        (json!({"$substrBytes": ["$u", 2, 4]}), json!("ół")),
        (json!({"$toLower": "$s"}), json!("hello")),
        (json!({"$binarySize": {"$binary": {"base64": "AAEC", "subType": "00"}}}), json!(3)),
        // Conversions.
        (json!({"$toBool": "$nil"}), json!(null)),
        (json!({"$toBool": 0}), json!(false)),
        (json!({"$toDecimal": "$n"}), json!({"$numberDecimal": "7"})),
        (json!({"$toDouble": "2.5"}), json!(2.5)),
        (json!({"$toLong": "$date"}), json!(1709212455678i64)),
        (json!({"$toHashedIndexKey": 42}), json!(-944_302_157_085_130_861i64)),
        (
            json!({"$toUUID": "12345678-1234-4234-8234-123456789abc"}),
            json!({"$uuid": "12345678-1234-4234-8234-123456789abc"}),
        ),
        // An integer in another base.
        (json!({"$convert": {"input": "-1F", "to": "int", "base": 16}}), json!(-31)),
        (json!({"$convert": {"input": "+17", "to": "long", "base": 8}}), json!(15)),
        (json!({"$convert": {"input": "0xA", "to": "int", "base": 16, "onError": "no"}}), json!("no")),
        (json!({"$convert": {"input": "0b1", "to": "long", "base": 2, "onError": "no"}}), json!("no")),
        (json!({"$convert": {"input": "1010", "to": "double", "base": 2}}), json!(10.0)),
        (json!({"$convert": {"input": "12", "to": "double", "base": 8}}), json!(10.0)),
        (json!({"$convert": {"input": "-A", "to": "decimal", "base": 16}}), json!({"$numberDecimal": "-10"})),
        (
            json!({"$convert": {"input": "9223372036854775808", "to": "double", "base": 10, "onError": "no"}}),
            json!("no"),
        ),
        (json!({"$convert": {"input": "1.5", "to": "decimal", "base": 10, "onError": "no"}}), json!("no")),
        (json!({"$convert": {"input": "101", "to": "int", "base": 2, "onError": "no"}}), json!(5)),
        (json!({"$convert": {"input": "102", "to": "int", "base": 2, "onError": "no"}}), json!("no")),
        (json!({"$convert": {"input": "--1", "to": "int", "base": 10, "onError": "no"}}), json!("no")),
        (json!({"$convert": {"input": -255, "to": "string", "base": 16}}), json!("-FF")),
        (json!({"$convert": {"input": 5.5, "to": "string", "base": 2, "onError": "no"}}), json!("no")),
        (json!({"$convert": {"input": 5, "to": "string", "base": null}}), json!("5")),
        // Hashes.
        (
            json!({"$hexHash": {"input": "report.pdf", "algorithm": "sha256"}}),
            json!("6466E450A16B77B865C5829D6B6C56D9F892956475642DBEB9CCC4340FE01B15"),
        ),
        (json!({"$hexHash": {"input": "abc", "algorithm": "md5"}}), json!("900150983CD24FB0D6963F7D28E17F72")),
        (json!({"$hexHash": {"input": "abc", "algorithm": "xxh64"}}), json!("44BC2CF5AD770999")),
        (json!({"$hexHash": {"input": "$nil", "algorithm": "md5"}}), json!(null)),
        (
            json!({"$hash": {"input": {"$binary": {"base64": "YWJj", "subType": "00"}}, "algorithm": "xxh64"}}),
            json!({"$binary": {"base64": "RLws9a13CZk=", "subType": "00"}}),
        ),
        (json!({"$subtype": {"$uuid": "12345678-1234-4234-8234-123456789abc"}}), json!(4)),
        (json!({"$subtype": "$missing"}), json!(null)),
        // Positions in arrays.
        (
            json!({"$map": {"input": ["a", "b"], "arrayIndexAs": "i", "in": ["$$i", "$$this"]}}),
            json!([[0, "a"], [1, "b"]]),
        ),
        (json!({"$filter": {"input": [5, 6, 7, 8], "cond": {"$mod": ["$$IDX", 2]}}}), json!([6, 8])),
        (
            json!({"$reduce": {"input": [5, 6], "initialValue": 0, "as": "x", "valueAs": "sum", "arrayIndexAs": "i",
                "in": {"$add": ["$$sum", {"$multiply": ["$$x", "$$i"]}]}}}),
            json!(6),
        ),
        (
            json!({"$map": {"input": [[1, 2], [3]], "in": {"$map": {"input": "$$this", "as": "x", "in": ["$$IDX", "$$x"]}}}}),
            json!([[[0, 1], [1, 2]], [[0, 3]]]),
        ),
        (json!({"$type": {"$createObjectId": {}}}), json!("objectId")),
        // Parts of dates.
        (json!({"$month": "$date"}), json!(2)),
        (json!({"$dayOfMonth": "$date"}), json!(29)),
        (json!({"$dayOfWeek": "$date"}), json!(5)),
        (json!({"$isoDayOfWeek": "$date"}), json!(4)),
        (json!({"$isoWeekYear": {"$date": "2021-01-03T00:00:00Z"}}), json!(2020)),
        (json!({"$minute": "$date"}), json!(14)),
        (json!({"$second": "$date"}), json!(15)),
        (json!({"$millisecond": "$date"}), json!(678)),
        (
            json!({"$dateToParts": {"date": "$date", "iso8601": true}}),
            json!({
                "isoWeekYear": 2024, "isoWeek": 9, "isoDayOfWeek": 4,
                "hour": 13, "minute": 14, "second": 15, "millisecond": 678
            }),
        ),
        (json!({"$tsIncrement": {"$timestamp": {"t": 5, "i": 6}}}), json!(6)),
        (json!({"$bsonSize": {"$literal": {"a": 1}}}), json!(12)),
        (json!({"$unsetField": {"field": "p", "input": "$o"}}), json!({})),
        (json!({"$stdDevSamp": "$a"}), json!(1.0)),
        // Accumulators.
        (json!({"$sum": "$a"}), json!(6)),
        (json!({"$avg": ["$n", "$d", "x"]}), json!(4.75)),
        (json!({"$max": ["$n", "$nil", "$d"]}), json!(7)),
        (json!({"$min": "$a"}), json!(1)),
        (json!({"$stdDevPop": [[2, 4, 4, 4, 5, 5, 7, 9]]}), json!(2.0)),
    ];
    let against = sample();
    // The result of `$rand` cannot be predicted.
    let mut untested: BTreeSet<&str> = vocabulary::expression_operators().filter(|name| *name != "$rand").collect();
    for (expression, expected) in cases.into_iter().chain(operators) {
        let text = expression.to_string();
        untested.retain(|name| !text.contains(&format!("\"{name}\":")));
        let found = evaluate(&expression, &against).unwrap_or_else(|error| panic!("{expression}: {error}"));
        assert_eq!(found, Some(value(&expected)), "{expression} gives {:?}", found.as_ref().map(ext_json::to_json));
    }
    for missing in [json!("$missing"), json!("$$REMOVE"), json!({"$arrayElemAt": ["$a", 9]}), json!("$n.x")] {
        assert_eq!(evaluate(&missing, &against), Ok(None), "{missing}");
    }
    assert!(untested.is_empty(), "operators without a row above: {untested:?}");
}

#[test]
fn errors_have_mongodbs_codes() {
    for (expression, code) in [
        (json!({"$noSuch": 1}), 168),
        (json!({"$hash": {"input": 5, "algorithm": "md5"}}), 14),
        (json!({"$hash": {"input": "x", "algorithm": "sha1"}}), 2),
        (json!({"$hash": {"input": "x"}}), 9),
        (json!({"$hexHash": {"input": "x", "algorithm": "md5", "more": 1}}), 9),
        (json!({"$subtype": "x"}), 14),
        (json!({"$createObjectId": {"a": 1}}), 3040501),
        (json!({"$createObjectId": 1}), 10065),
        (json!({"$convert": {"input": "1", "to": "int", "base": 3}}), 2),
        (json!({"$convert": {"input": "1", "to": "int", "base": "x"}}), 2),
        (json!({"$map": {"input": [], "arrayIndexAs": "I", "in": 1}}), 9),
        (json!({"$map": {"input": [], "arrayIndexAs": 1, "in": 1}}), 9),
        (json!({"$reduce": {"input": [], "initialValue": 0, "valueAs": "V", "in": 1}}), 9),
        (json!({"$map": {"input": [1], "arrayIndexAs": "i", "in": "$$IDX"}}), 17276),
        (json!({"$serializeEJSON": {"input": 1}}), 238),
        (json!({"$add": [1], "$subtract": [1, 2]}), 15983),
        (json!("$"), 16872),
        (json!({"$median": {"input": "$a"}}), 40414),
        (json!({"$median": {"input": "$a", "method": "exact"}}), 2),
        (json!({"$median": "$a"}), 7436201),
        (json!({"$median": {"input": "$a", "method": "approximate", "p": [1]}}), 40415),
        (json!({"$percentile": {"input": "$a", "method": "approximate"}}), 40414),
        (json!({"$percentile": {"input": "$a", "p": 0.5, "method": "approximate"}}), 7750301),
        (json!({"$percentile": {"input": "$a", "p": [], "method": "approximate"}}), 7750301),
        (json!({"$percentile": {"input": "$a", "p": [1.5], "method": "approximate"}}), 7750303),
        (json!({"$percentile": {"input": "$a", "p": ["x"], "method": "approximate"}}), 7750302),
        (json!({"$top": {"output": "$a", "sortBy": {"a": 1}}}), 168),
        (json!("$a..b"), 15998),
        (json!("$$nobody"), 17276),
        (json!("$$_x"), 9),
        (json!({"a.b": 1}), 16412),
        (json!({"$eq": [1]}), 16020),
        (json!({"$slice": [1]}), 28667),
        (json!({"$add": ["$s", 1]}), 14),
        (json!({"$divide": ["$n", 0]}), 2),
        (json!({"$mod": ["$n", 0]}), 16610),
        (json!({"$abs": i64::MIN}), 28680),
        (json!({"$sqrt": -1}), 28714),
        (json!({"$size": "$n"}), 17124),
        (json!({"$in": [1, "$n"]}), 40081),
        (json!({"$range": [0, 1_000_000_000]}), 146),
        (json!({"$range": [0, 1, 0]}), 34449),
        (json!({"$concat": ["$n"]}), 16702),
        (json!({"$split": ["a", ""]}), 40087),
        (json!({"$regexMatch": {"input": "a", "regex": "("}}), 51111),
        (json!({"$toInt": "x"}), 241),
        (json!({"$toInt": 1e18}), 241),
        (json!({"$convert": {"input": 1, "to": "nothing"}}), 2),
        (json!({"$year": "$s"}), 16006),
        (json!({"$year": {"date": "$date", "timezone": "Nowhere/Land"}}), 40485),
        (json!({"$dateToString": {"date": "$date", "format": "%q"}}), 18536),
        (json!({"$dateFromString": {"dateString": "no date"}}), 241),
        (json!({"$dateFromString": {"dateString": "July 4th"}}), 241),
        (json!({"$dateFromString": {"dateString": "2017-07-12T22:23:55 Europe/Amsterdam"}}), 241),
        (json!({"$dateFromString": {"dateString": "2017-07-12T22:23:55 EST", "timezone": "+01"}}), 241),
        (json!({"$dateFromString": {"dateString": "12/31/2018", "format": "%m/%d/%G"}}), 241),
        (json!({"$dateFromString": {"dateString": "Week 1, 2018", "format": "Week %V, %Y"}}), 241),
        (json!({"$dateTrunc": {"date": "$date", "unit": "eon"}}), 9),
        (json!({"$switch": {"branches": [{"case": "$nil", "then": 1}]}}), 40066),
        (json!({"$switch": {"branches": [{"case": false, "then": 1}]}}), 40069),
        (json!({"$cond": {"if": true, "else": 1}}), 17081),
        (json!({"$let": {"vars": {"A": 1}, "in": 1}}), 9),
        (json!({"$let": {"vars": 5, "in": 1}}), 10065),
        (json!({"$dateFromParts": {"year": 2020, "isoWeek": 1}}), 40489),
        (json!({"$dateFromParts": {"isoWeekYear": 2020, "month": 1}}), 40525),
        (json!({"$map": {"input": "$n", "in": 1}}), 16883),
        (json!({"$mergeObjects": ["$n"]}), 40400),
        (json!({"$getField": "$n"}), 3041704),
        (json!({"$rand": [1]}), 3040501),
        (json!({"$rand": 1}), 10065),
        (json!({"$function": {}}), 238),
    ] {
        for expression in [&expression, &canonical(&expression)] {
            let error = evaluate(expression, &sample()).expect_err(&expression.to_string());
            assert_eq!(error.kind.code(), code, "{expression}: {error}");
        }
    }
    let mut deep = json!(1);
    for _ in 0..120 {
        deep = json!({"$abs": [deep]});
    }
    assert_eq!(Expression::parse(&deep, &environment()).unwrap_err().kind.code(), 15);
}

#[test]
fn the_lists_of_zip_are_written_out() {
    for (zip, code) in [
        (json!(5), 34460),
        (json!({"inputs": 5}), 34461),
        (json!({"inputs": [[1], [2]], "useLongestLength": true, "defaults": 5}), 34462),
        (json!({"inputs": [[1], [2]], "useLongestLength": true, "defaults": "$a"}), 34462),
        (json!({"inputs": [[1]], "useLongestLength": 1}), 34463),
        (json!({"inputs": [[1]], "other": 1}), 34464),
        (json!({"inputs": []}), 34465),
        (json!({"inputs": [[1]], "defaults": [1]}), 34466),
        (json!({"inputs": [[1], [2]], "useLongestLength": true, "defaults": [1]}), 34467),
    ] {
        let error = Expression::parse(&json!({"$zip": zip}), &environment()).unwrap_err();
        assert_eq!(error.kind.code(), code, "{zip}");
    }
}

#[test]
fn an_expression_filters() {
    let matches = |filter: Json, against: Json| {
        Filter::parse_in(&filter, &environment()).unwrap().evaluate(document(&bytes(&against)))
    };
    assert_eq!(matches(json!({"$expr": {"$gt": ["$spent", "$budget"]}}), json!({"spent": 5, "budget": 3})), Ok(true));
    assert_eq!(matches(json!({"$expr": {"$eq": ["$n", "$$limit"]}}), json!({"n": 3})), Ok(true));
    assert_eq!(matches(json!({"$or": [{"a": 1}, {"$expr": "$b"}]}), json!({"b": true})), Ok(true));
    assert_eq!(matches(json!({"$nor": [{"$expr": true}]}), json!({})), Ok(false));
    assert_eq!(matches(json!({"$expr": {"$divide": [1, "$n"]}}), json!({"n": 0})).unwrap_err().kind.code(), 2);
    assert_eq!(matches(json!({"$sampleRate": 0}), json!({})), Ok(false));
    assert_eq!(matches(json!({"$sampleRate": 1}), json!({})), Ok(true));
    assert_eq!(matches(json!({"$expr": {"$lt": [{"$rand": {}}, 1]}}), json!({})), Ok(true));
    for (filter, code) in [
        (json!({"a": {"$elemMatch": {"$expr": true}}}), 2),
        (json!({"a": {"$expr": true}}), 2),
        (json!({"$sampleRate": 2}), 2),
        (json!({"$sampleRate": "x"}), 2),
        (json!({"$where": "this.a > 1"}), 238),
        (json!({"$expr": {"$nope": 1}}), 168),
    ] {
        assert_eq!(Filter::parse(&filter).unwrap_err().kind.code(), code, "{filter}");
    }
}

#[test]
fn an_equality_in_an_expression_is_analysed() {
    let ranges = |filter: Json, path: &str| Filter::parse(&filter).unwrap().ranges_of(path);
    let plain = Filter::parse(&json!({"a": 5})).unwrap().ranges_of("a");
    assert_eq!(ranges(json!({"$expr": {"$eq": ["$a", 5]}}), "a"), plain);
    assert_eq!(ranges(json!({"$expr": {"$and": [{"$eq": [5, "$a"]}, {"$gt": ["$b", 1]}]}}), "a"), plain);
    for unknown in [
        json!({"$expr": {"$or": [{"$eq": ["$a", 5]}, true]}}),
        json!({"$expr": {"$gt": ["$a", 5]}}),
        json!({"$expr": {"$eq": ["$a", "$b"]}}),
        json!({"$expr": {"$eq": ["$a", null]}}),
        json!({"$nor": [{"$expr": {"$eq": ["$a", 5]}}]}),
        json!({"$jsonSchema": {"required": ["a"]}}),
    ] {
        assert!(ranges(unknown.clone(), "a").is_all(), "{unknown}");
    }
}

/// Random expressions as JSON, mostly well-formed.
fn expression() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        3 => scalar(),
        3 => proptest::sample::select(vec!["$a", "$b", "$a.b", "$$ROOT", "$a.0", "$$REMOVE", "$$NOW"]).prop_map(Json::from),
    ];
    let names: Vec<&str> = vocabulary::expression_operators().collect();
    leaf.prop_recursive(4, 24, 3, move |inner| {
        let (one, two) = (inner.clone(), (inner.clone(), inner.clone()));
        prop_oneof![
            (proptest::sample::select(names.clone()), one).prop_map(|(name, a)| json!({name: [a]})),
            (proptest::sample::select(names.clone()), two).prop_map(|(name, (a, b))| json!({name: [a, b]})),
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Json::from),
            inner.clone().prop_map(|a| json!({"x": a})),
            (inner.clone(), inner).prop_map(|(a, b)| json!({"$map": {"input": a, "in": {"$ifNull": [b, "$$this"]}}})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_results_can_be_stored(expression in expression(), a in any_value(scalar(), true), b in scalar()) {
        let against = json!({"a": a, "b": b});
        if let Ok(Some(found)) = evaluate(&expression, &against) {
            let written = docshard_core::values::document::write::value(&found);
            prop_assert!(written.is_ok(), "{expression}: {:?}", written);
        }
    }

    /// Constant operands have the same results as fields with the same values.
    #[test]
    fn folding_changes_nothing(a in scalar(), b in scalar(), name in proptest::sample::select(vec!["$add", "$subtract", "$cmp", "$mod", "$concat", "$ifNull", "$divide", "$max"])) {
        let folded = evaluate(&json!({name: [{"$literal": a}, {"$literal": b}]}), &json!({}));
        let stored = evaluate(&json!({name: ["$a", "$b"]}), &json!({"a": a, "b": b}));
        prop_assert_eq!(folded.map_err(|e| e.kind), stored.map_err(|e| e.kind));
    }

    /// Integers against a model in 128 bits.
    #[test]
    fn integers_are_added_and_multiplied_exactly(a in any::<i64>(), b in any::<i64>()) {
        // What does not fit a long is the sum of two doubles.
        let sum = i64::try_from(i128::from(a) + i128::from(b)).map_or(json!(a as f64 + b as f64), Json::from);
        prop_assert_eq!(evaluate(&json!({"$add": [a, "$b"]}), &json!({"b": b})).unwrap(), Some(value(&sum)));
        prop_assert_eq!(evaluate(&json!({"$cmp": [a, "$b"]}), &json!({"b": b})).unwrap(), Some(value(&json!(a.cmp(&b) as i64))));
        if let Some(product) = a.checked_mul(b) {
            prop_assert_eq!(evaluate(&json!({"$multiply": [a, "$b"]}), &json!({"b": b})).unwrap(), Some(value(&json!(product))));
        }
    }

    /// A date's parts make the same date.
    #[test]
    fn dates_survive_their_parts(millis in -60_000_000_000_000i64..250_000_000_000_000, zone in proptest::sample::select(vec!["UTC", "+05:30", "-0800"])) {
        let date = json!({"$date": {"$numberLong": millis.to_string()}});
        let against = json!({"d": date, "z": zone});
        let parts = json!({"$let": {"vars": {"p": {"$dateToParts": {"date": "$d", "timezone": "$z"}}}, "in": {"$dateFromParts": {
            "year": "$$p.year", "month": "$$p.month", "day": "$$p.day", "hour": "$$p.hour", "minute": "$$p.minute",
            "second": "$$p.second", "millisecond": "$$p.millisecond", "timezone": "$z"}}}});
        prop_assert_eq!(evaluate(&parts, &against).unwrap(), Some(value(&date)));
        let text = json!({"$dateFromString": {"dateString": {"$dateToString": {"date": "$d", "format": "%Y-%m-%dT%H:%M:%S.%L%z", "timezone": "$z"}}}});
        prop_assert_eq!(evaluate(&text, &against).unwrap(), Some(value(&date)));
    }

    /// The sum over a document's own values equals a fold over them.
    #[test]
    fn reduce_is_a_fold(items in proptest::collection::vec(-1000i64..1000, 0..8)) {
        let against = json!({"a": items});
        let reduced = evaluate(&json!({"$reduce": {"input": "$a", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}), &against).unwrap();
        prop_assert_eq!(&reduced, &Some(value(&json!(items.iter().sum::<i64>()))));
        prop_assert_eq!(reduced, evaluate(&json!({"$sum": "$a"}), &against).unwrap());
        let mut sorted = items.clone();
        sorted.sort_unstable();
        prop_assert_eq!(evaluate(&json!({"$sortArray": {"input": "$a", "sortBy": 1}}), &against).unwrap(), Some(value(&json!(sorted))));
    }
}
