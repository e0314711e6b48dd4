//! Large arguments of every kind: parsing, planning and evaluation check for an interrupt at least every second of processor time,
//! whatever the argument is. A loop that takes quadratic time without counting steps fails here.

mod common;

use common::*;
use docshard_core::budget::{self, Hooks};
use docshard_core::cluster::chunk_map::{Chunk, ChunkMap};
use docshard_core::cluster::targeting;
use docshard_core::query::environment::Environment;
use docshard_core::query::expression::Expression;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::IndexKeys;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::query::stage::Pipeline;
use docshard_core::query::update::Update;
use docshard_core::values::key::KeyPattern;
use serde_json::{Map, Value as Json, json};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of branches, fields or elements of an argument.
const COUNT: usize = 20_000;
/// The number for arguments of about 1 to 10 MB.
const SOAK_COUNT: usize = 100_000;
/// The most processor time between two checks, in ns. It is a few ms, and minutes for a quadratic loop that does not count.
const MOST_BETWEEN: u64 = 1_000_000_000;
/// Processor time after which an argument's processing is interrupted.
const MOST: u64 = 100_000_000;

/// The processor time at the last check.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The most processor time between two checks.
static LARGEST: AtomicU64 = AtomicU64::new(0);
static CHECKS: AtomicU64 = AtomicU64::new(0);
static DEADLINE: AtomicU64 = AtomicU64::new(u64::MAX);

struct Interrupted;

/// The processor time of this thread, in ns: other load does not matter.
fn clock() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux kernel with scheduler statistics");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

fn interrupt() {
    let now = clock();
    CHECKS.fetch_add(1, Relaxed);
    LARGEST.fetch_max(now - LAST.swap(now, Relaxed), Relaxed);
    if now > DEADLINE.load(Relaxed) {
        panic_any(Interrupted);
    }
}

fn object(fields: impl Iterator<Item = (String, Json)>) -> Json {
    Json::Object(fields.collect::<Map<_, _>>())
}

fn fields(n: usize, value: impl Fn(usize) -> Json) -> Json {
    object((0..n).map(|i| (format!("f{i}"), value(i))))
}

fn list(n: usize, value: impl Fn(usize) -> Json) -> Json {
    (0..n).map(value).collect()
}

/// An argument, and what is done with it.
enum Work {
    Filter(Json),
    Expression(Json),
    Update(Json, Vec<Json>),
    Replacement(Json),
    Projection(Json),
    Sort(Json),
    Pipeline(Json),
    Index(Json, Option<Json>),
}

/// Everything that planning finds out about a filter.
fn analyse(filter: &Filter) {
    let patterns =
        [json!({"_id": 1}), json!({"k": 1, "_id": 1}), json!({"_id": "hashed"}), json!({"k": "hashed", "a.b": 1})];
    let map = ChunkMap::new((0..1000).map(|i: i32| {
        let at = |i: i32| if i == 0 { vec![] } else { i.to_be_bytes().to_vec() };
        Chunk { min: at(i), max: if i == 999 { vec![255] } else { at(i + 1) }, shard: i % 3 }
    }))
    .unwrap();
    for pattern in patterns {
        let pattern = KeyPattern::parse(&pattern).unwrap();
        let keys = targeting::key_ranges(&pattern, filter);
        let _ = map.targets(&keys);
        let _ = targeting::exact_key(&pattern, filter);
        let _ = targeting::has_regex(&pattern, filter);
        let _ = targeting::key_decides(&pattern, filter, true);
    }
    let _ = filter.paths();
    let _ = filter.ranges_of("k");
    let _ = filter.equality_of("k");
    let _ = filter.is_about(&["k"]);
    let _ = filter.upsert_fields();
    let _ = filter.check_upsert();
    let _ = filter.check_partial();
    let _ = filter.part().alternatives();
    for index in [
        json!({"k": 1}),
        json!({"k": 1, "a.b": 1, "c": -1}),
        json!({"$**": 1}),
        json!({"a.b": 1, "a.c": 1, "d": 1}),
        json!({"k": "hashed"}),
    ] {
        let index = IndexKeys::parse(&index).unwrap();
        let _ = index.wanted(filter);
        let _ = index.wanted_beside(filter, &["_id"]);
        for parts in filter.part().alternatives() {
            for part in parts {
                let _ = index.wanted_by(part);
            }
        }
    }
    for partial in [json!({"k": {"$gt": 1}}), json!({"$or": [{"a": {"$in": [1, 2, 3]}}, {"k": {"$exists": true}}]})] {
        let _ = filter.implies(&Filter::parse(&partial).unwrap());
    }
    let sample =
        bytes(&json!({"_id": 1, "k": -1, "a": {"b": [1, 2, 3], "c": "x"}, "v": (0..1000).collect::<Vec<_>>()}));
    let _ = filter.evaluate(document(&sample));
}

fn work(work: &Work) {
    let environment = Environment::default();
    let sample = bytes(
        &json!({"_id": 1, "k": -1, "a": {"b": [1, 2, 3], "c": "x"}, "v": (0..1000).collect::<Vec<_>>(), "w": (0..1000).map(|i| json!({"x": i})).collect::<Vec<_>>()}),
    );
    let sample = document(&sample);
    match work {
        Work::Filter(json) => {
            let Ok(filter) = Filter::parse(json) else { return };
            analyse(&filter);
        }
        Work::Expression(json) => {
            let Ok(expression) = Expression::parse(json, &environment) else { return };
            let _ = expression.evaluate(sample, None);
            if let Ok(filter) = Filter::parse(&json!({"$expr": json})) {
                analyse(&filter);
            }
        }
        Work::Update(json, filters) => {
            let Ok(update) = Update::parse_with_array_filters(json, filters) else { return };
            let _ = update.needs_clock();
            let _ = update.touches("_id");
            let _ = update.is_positional();
            let _ = update.apply(sample, &["k".to_owned()]);
            let _ = update.upsert(&Filter::parse(&json!({"k": 1})).unwrap());
        }
        Work::Replacement(json) => {
            let Ok(update) = Update::parse_replacement(json) else { return };
            let _ = update.apply(sample, &[]);
        }
        Work::Projection(json) => {
            let Ok(projection) = Projection::parse(json) else { return };
            let _ = projection.included();
            let _ = projection.apply(sample);
        }
        Work::Sort(json) => {
            let Ok(sort) = Sort::parse(json) else { return };
            let _ = sort.key_of(sample);
        }
        Work::Pipeline(json) => {
            let Ok(pipeline) = Pipeline::parse(json.as_array().unwrap(), &environment) else { return };
            let _ = pipeline.collections();
            let pipeline = pipeline.rearranged().unwrap();
            let (_, rest) = pipeline.find();
            let division = rest.divided(Some(&["k", "_id"])).unwrap();
            let _ = division.at_shards.to_json();
            let _ = division.merging.to_json();
            let _ = pipeline.at_one_shard();
            let _ = pipeline.shown();
        }
        Work::Index(json, projection) => {
            let Ok(keys) = IndexKeys::parse(json) else { return };
            let Ok(keys) = keys.projected(projection.as_ref()) else { return };
            let _ = keys.entries(sample);
            let _ = keys.wanted(&Filter::parse(&json!({"k": 1, "f5": 2})).unwrap());
        }
    }
}

/// Calls a function for each case: only one of them is in memory.
macro_rules! each {
    ($run:ident; $(($name:expr, $work:expr $(,)?)),* $(,)?) => { $($run($name, $work);)* };
}

fn each_case(n: usize, mut run: impl FnMut(&'static str, Work)) {
    use Work::*;
    let deep = |n: usize, inner: Json, wrap: fn(Json) -> Json| (0..n).fold(inner, |inner, _| wrap(inner));
    each![
        run;
        ("$or _id", Filter(json!({"$or": list(n, |i| json!({"_id": i}))}))),
        ("$or ranges", Filter(json!({"$or": list(n, |i| json!({"k": {"$gt": 2 * i, "$lt": 2 * i + 1}}))}))),
        (
            "$or two fields",
            Filter(json!({"$or": list(n, |i| if i % 2 == 0 { json!({"k": i}) } else { json!({"a.b": i}) })})),
        ),
        (
            "$or of $in",
            Filter(json!({"$or": list(n / 100, |i| json!({"k": {"$in": list(100, |j| json!(i * 100 + j))}}))})),
        ),
        ("$or many fields", Filter(json!({"$or": list(n, |i| json!({format!("f{i}"): i}))}))),
        ("$or of $and", Filter(json!({"$or": list(n, |i| json!({"$and": [{"k": i}, {"a.b": i}]}))}))),
        ("$and _id", Filter(json!({"$and": list(n, |i| json!({"_id": i}))}))),
        ("$and of $gt", Filter(json!({"$and": list(n, |i| json!({"k": {"$gt": i}}))}))),
        ("$and of $ne", Filter(json!({"$and": list(n, |i| json!({"k": {"$ne": i}}))}))),
        ("$and of $in", Filter(json!({"$and": list(300, |_| json!({"k": {"$in": list(n / 300, |j| json!(j))}}))}))),
        ("$and of $or", Filter(json!({"$and": list(n, |i| json!({"$or": [{"k": i}, {"k": i + 1}]}))}))),
        ("$and of $elemMatch", Filter(json!({"$and": list(n, |i| json!({"a": {"$elemMatch": {"b": i, "c": i}}}))}))),
        ("$nor", Filter(json!({"$nor": list(n, |i| json!({"k": i}))}))),
        ("$in _id", Filter(json!({"_id": {"$in": list(10 * n, |i| json!(i))}}))),
        ("$in k", Filter(json!({"k": {"$in": list(10 * n, |i| json!(i))}}))),
        ("$in strings", Filter(json!({"k": {"$in": list(n, |i| json!(format!("{i:0100}")))}}))),
        ("$in arrays", Filter(json!({"k": {"$in": list(n, |i| json!([i, i]))}}))),
        (
            "$in regex",
            Filter(
                json!({"k": {"$in": list(n / 10, |i| json!({"$regularExpression": {"pattern": format!("^{i}"), "options": ""}}))}}),
            ),
        ),
        ("$in v", Filter(json!({"v": {"$in": list(n, |i| json!(i + 5000))}}))),
        ("$nin", Filter(json!({"k": {"$nin": list(n, |i| json!(i))}}))),
        ("$all", Filter(json!({"k": {"$all": list(n, |i| json!(i))}}))),
        ("$all v", Filter(json!({"v": {"$all": list(n, |i| json!(i % 1000))}}))),
        ("$all $elemMatch", Filter(json!({"a": {"$all": list(n, |i| json!({"$elemMatch": {"b": i}}))}}))),
        ("$elemMatch $in", Filter(json!({"v": {"$elemMatch": {"$in": list(n, |i| json!(i + 5000))}}}))),
        ("$bits", Filter(json!({"k": {"$bitsAllSet": list(n, |i| json!(i % 64))}}))),
        ("$type", Filter(json!({"k": {"$type": list(n, |i| json!(i % 10 + 1))}}))),
        ("fields", Filter(fields(n, |i| json!(i)))),
        ("fields below k", Filter(object((0..n).map(|i| (format!("k.f{i}"), json!(i)))))),
        ("not fields", Filter(fields(n, |i| json!({"$not": {"$gt": i}})))),
        ("equal object", Filter(json!({"a": fields(n, |i| json!(i))}))),
        ("in objects", Filter(json!({"a": {"$in": list(n, |i| json!({"b": i}))}}))),
        ("in objects of fields", Filter(json!({"a": {"$in": list(300, |_| fields(n / 300, |j| json!(j)))}}))),
        ("equal array", Filter(json!({"k": list(n, |i| json!(i))}))),
        ("long path", Filter(json!({vec!["a"; n].join("."): 1}))),
        ("long string", Filter(json!({"k": "x".repeat(100 * n)}))),
        ("long regex", Filter(json!({"k": {"$regex": "x".repeat(100 * n)}}))),
        (
            "regex alternatives",
            Filter(json!({"k": {"$regex": (0..n).map(|i| format!("a{i}")).collect::<Vec<_>>().join("|")}})),
        ),
        ("decimal digits", Filter(json!({"k": {"$numberDecimal": "9".repeat(100 * n)}}))),
        ("decimals", Filter(json!({"k": {"$in": list(n, |i| json!({"$numberDecimal": format!("1.{i}")}))}}))),
        (
            "schema properties",
            Filter(json!({"$jsonSchema": {"properties": fields(n, |_| json!({"bsonType": "int"}))}})),
        ),
        ("schema required", Filter(json!({"$jsonSchema": {"required": list(n, |i| json!(format!("f{i}")))}}))),
        (
            "schema enum",
            Filter(json!({"$jsonSchema": {"properties": {"v": {"items": {"enum": list(n, |i| json!(i + 5000))}}}}})),
        ),
        ("schema enum objects", Filter(json!({"$jsonSchema": {"enum": list(n, |i| json!({"a": i}))}}))),
        (
            "schema anyOf",
            Filter(json!({"$jsonSchema": {"anyOf": list(n, |i| json!({"required": [format!("f{i}")]}))}})),
        ),
        (
            "schema patterns",
            Filter(
                json!({"$jsonSchema": {"patternProperties": object((0..n / 10).map(|i| (format!("^x{i}"), json!({}))))}}),
            ),
        ),
        (
            "schema dependencies",
            Filter(json!({"$jsonSchema": {"dependencies": fields(n, |i| json!([format!("f{}", i + 1)]))}})),
        ),
        (
            "schema additional",
            Filter(json!({"$jsonSchema": {"properties": fields(n, |_| json!({})), "additionalProperties": false}})),
        ),
        ("schema items", Filter(json!({"$jsonSchema": {"items": list(n, |_| json!({"bsonType": "int"}))}}))),
        ("$expr $and", Expression(json!({"$and": list(n, |i| json!({"$eq": ["$k", i]}))}))),
        ("$expr $or", Expression(json!({"$or": list(n, |i| json!({"$eq": ["$k", i]}))}))),
        (
            "$switch",
            Expression(
                json!({"$switch": {"branches": list(n, |i| json!({"case": {"$eq": ["$k", i]}, "then": i})), "default": 0}}),
            ),
        ),
        (
            "$switch constant",
            Expression(json!({"$switch": {"branches": list(n, |i| json!({"case": false, "then": i})), "default": 0}})),
        ),
        (
            "$conds",
            Expression(list(n, |i| {
                deep(30, json!(i), |inner| {
                    // json! would copy what is inside at every level.
                    let mut cond = json!({"$cond": [{"$gt": ["$k", 1]}, null, 0]});
                    cond["$cond"][1] = inner;
                    cond
                })
            })),
        ),
        ("$add", Expression(json!({"$add": list(n, |i| json!(i))}))),
        ("$add fields", Expression(json!({"$add": list(n, |i| json!(format!("$f{i}")))}))),
        ("$concat", Expression(json!({"$concat": list(n, |_| json!("x"))}))),
        ("$in expression", Expression(json!({"$in": ["$k", list(n, |i| json!(i))]}))),
        ("$setUnion", Expression(json!({"$setUnion": list(300, |_| list(n / 300, |j| json!(j)))}))),
        ("$mergeObjects", Expression(json!({"$mergeObjects": list(n, |i| json!({format!("f{i}"): "$k"}))}))),
        ("$mergeObjects of many", Expression(json!({"$mergeObjects": list(300, |_| fields(n / 300, |j| json!(j)))}))),
        ("object", Expression(fields(n, |_| json!("$k")))),
        ("array", Expression(list(n, |_| json!("$k")))),
        (
            "$let",
            Expression(json!({"$let": {"vars": fields(n, |i| json!(i)), "in": list(n, |i| json!(format!("$$f{i}")))}})),
        ),
        (
            "$let fields",
            Expression(
                json!({"$let": {"vars": fields(n, |_| json!("$k")), "in": list(n, |i| json!(format!("$$f{i}")))}}),
            ),
        ),
        ("$literal", Expression(json!({"$literal": list(n, |i| json!(i))}))),
        ("$zip", Expression(json!({"$zip": {"inputs": list(n, |i| json!([i]))}}))),
        (
            "$arrayToObject",
            Expression(json!({"$arrayToObject": {"$literal": list(n, |i| json!([format!("f{i}"), i]))}})),
        ),
        ("$sortArray", Expression(json!({"$sortArray": {"input": "$w", "sortBy": fields(n, |_| json!(1))}}))),
        (
            "$setField deep",
            Expression(deep(
                90,
                json!("$$ROOT"),
                |inner| json!({"$setField": {"field": "x", "input": inner, "value": 1}}),
            )),
        ),
        ("$cmp arrays", Expression(json!({"$eq": [list(n, |i| json!(i)), list(n, |i| json!(i))]}))),
        ("$regexMatch", Expression(json!({"$regexMatch": {"input": "x".repeat(10 * n), "regex": "x*y"}}))),
        (
            "$dateFromString",
            Expression(json!({"$dateFromString": {"dateString": "2020".repeat(10 * n), "onError": 1}})),
        ),
        ("$dateToString", Expression(json!({"$dateToString": {"date": {"$toDate": 1}, "format": "%Y".repeat(n)}}))),
        ("$split", Expression(json!({"$split": ["a,".repeat(n), ","]}))),
        (
            "$trim",
            Expression(
                json!({"$trim": {"input": "abc".repeat(n), "chars": ('\u{100}'..'\u{2fff}').collect::<String>()}}),
            ),
        ),
        ("$trim long", Expression(json!({"$trim": {"input": "x".repeat(n), "chars": "y".repeat(n) + "x"}}))),
        ("$replaceAll", Expression(json!({"$replaceAll": {"input": "ab".repeat(n), "find": "b", "replacement": ""}}))),
        ("$indexOfCP", Expression(json!({"$indexOfCP": ["a".repeat(n), "a".repeat(n / 2) + "b"]}))),
        ("$substrCP", Expression(json!({"$substrCP": ["é".repeat(n), n / 2, n]}))),
        ("$toDecimal", Expression(json!({"$toDecimal": "9".repeat(100 * n)}))),
        ("$convert", Expression(json!({"$toDouble": "9".repeat(100 * n)}))),
        ("$toHashedIndexKey", Expression(json!({"$toHashedIndexKey": "x".repeat(40_000_000)}))),
        ("starts of lines", Filter(json!({"a": {"$regex": "^a?".repeat(10_000), "$options": "m"}}))),
        ("open groups", Filter(json!({"a": {"$regex": "(^|$".repeat(8_000), "$options": "m"}}))),
        ("$getField path", Expression(json!(format!("${}", vec!["a"; n].join("."))))),
        ("$set", Update(json!({"$set": fields(n, |i| json!(i))}), vec![])),
        ("$set below", Update(json!({"$set": object((0..n).map(|i| (format!("n.f{i}"), json!(i))))}), vec![])),
        ("$set positions", Update(json!({"$set": object((0..n).map(|i| (format!("v.{i}"), json!(i))))}), vec![])),
        ("$unset", Update(json!({"$unset": fields(n, |_| json!(1))}), vec![])),
        ("$inc", Update(json!({"$inc": fields(n, |_| json!(1))}), vec![])),
        (
            "$rename",
            Update(json!({"$rename": object((0..n).map(|i| (format!("f{i}"), json!(format!("g{i}")))))}), vec![]),
        ),
        ("$push", Update(json!({"$push": {"v": {"$each": list(n, |i| json!(i))}}}), vec![])),
        (
            "$push sort",
            Update(
                json!({"$push": {"w": {"$each": list(n, |i| json!({"x": i})), "$sort": fields(100, |_| json!(1))}}}),
                vec![],
            ),
        ),
        ("$push sort many", Update(json!({"$push": {"w": {"$each": [], "$sort": fields(n, |_| json!(1))}}}), vec![])),
        ("$addToSet", Update(json!({"$addToSet": {"v": {"$each": list(n, |i| json!(i))}}}), vec![])),
        ("$addToSet new", Update(json!({"$addToSet": {"n": {"$each": list(n, |i| json!({"x": i}))}}}), vec![])),
        ("$pull", Update(json!({"$pull": {"v": {"$in": list(n, |i| json!(i + 5000))}}}), vec![])),
        ("$pull many", Update(json!({"$pull": fields(n, |i| json!(i))}), vec![])),
        ("$pullAll", Update(json!({"$pullAll": {"v": list(n, |i| json!(i + 5000))}}), vec![])),
        ("$bit", Update(json!({"$bit": fields(n, |_| json!({"and": 1}))}), vec![])),
        (
            "$bit many",
            Update(
                json!({"$bit": {"k": object((0..n).map(|i| (["and", "or", "xor"][i % 3].to_owned(), json!(1))))}}),
                vec![],
            ),
        ),
        ("$currentDate", Update(json!({"$currentDate": fields(n, |_| json!(true))}), vec![])),
        ("$min", Update(json!({"$min": fields(n, |_| json!(1))}), vec![])),
        (
            "arrayFilters",
            Update(
                json!({"$set": object((0..n).map(|i| (format!("v.$[i{i}]"), json!(i))))}),
                (0..n).map(|i| json!({format!("i{i}"): {"$gt": 5000}})).collect(),
            ),
        ),
        (
            "arrayFilters all",
            Update(
                json!({"$set": object((0..n).map(|i| (format!("w.$[i{i}].f{i}"), json!(i))))}),
                (0..n).map(|i| json!({format!("i{i}.x"): {"$gte": 0}})).collect(),
            ),
        ),
        (
            "arrayFilters nested",
            Update(
                json!({"$set": object((0..300).flat_map(|i| (0..n / 300).map(move |j| (format!("w.$[i{i}].f{i}x{j}"), json!(j)))))}),
                (0..300).map(|i| json!({format!("i{i}.x"): {"$gte": 0}})).collect(),
            ),
        ),
        (
            "arrayFilter of $or",
            Update(json!({"$set": {"v.$[i]": 1}}), vec![json!({"$or": list(n, |i| json!({"i": i + 5000}))})]),
        ),
        ("update pipeline", Update(json!([{"$set": fields(n, |i| json!(i))}]), vec![])),
        ("update pipeline unset", Update(json!([{"$unset": list(n, |i| json!(format!("f{i}")))}]), vec![])),
        ("$set deep", Update(json!({"$set": {vec!["a"; n].join("."): 1}}), vec![])),
        ("$set value", Update(json!({"$set": {"x": fields(n, |i| json!(i))}}), vec![])),
        ("replacement", Replacement(fields(n, |i| json!(i)))),
        ("replacement array", Replacement(json!({"a": list(10 * n, |i| json!(i))}))),
        ("projection", Projection(fields(n, |_| json!(1)))),
        ("projection exclude", Projection(fields(n, |_| json!(0)))),
        ("projection computed", Projection(fields(n, |_| json!("$k")))),
        ("projection below", Projection(object((0..n).map(|i| (format!("w.f{i}"), json!(1)))))),
        ("projection deep", Projection(json!({vec!["a"; n].join("."): 1}))),
        ("projection slice", Projection(fields(n, |_| json!({"$slice": 1})))),
        ("projection elemMatch", Projection(fields(n, |_| json!({"$elemMatch": {"x": 1}})))),
        ("sort", Sort(fields(n, |_| json!(1)))),
        ("sort one path", Sort(json!({vec!["a"; n].join("."): 1}))),
        (
            "$match",
            Pipeline(
                json!([{"$match": {"$or": list(n, |i| json!({"_id": i}))}}, {"$sort": {"k": 1}}, {"$match": {"$and": list(n, |i| json!({"k": {"$ne": i}}))}}]),
            ),
        ),
        ("$matches", Pipeline(list(900, |_| json!({"$match": fields(n / 900, |i| json!(i))})))),
        (
            "$sorts",
            Pipeline(list(900, |i| {
                if i % 2 == 0 {
                    json!({"$sort": {"a": 1}})
                } else {
                    json!({"$match": fields(2 * n / 900, |i| json!(i))})
                }
            })),
        ),
        ("$set stages", Pipeline(list(900, |_| json!({"$set": fields(n / 900, |i| json!(i))})))),
        (
            "$set and $match",
            Pipeline(list(900, |i| {
                if i % 2 == 0 {
                    json!({"$set": fields(2 * n / 900, |i| json!(i))})
                } else {
                    json!({"$match": object((0..2 * n / 900).map(|i| (format!("g{i}"), json!(i))))})
                }
            })),
        ),
        (
            "$group",
            Pipeline(
                json!([{"$group": {"_id": "$k"}}, {"$group": object(std::iter::once(("_id".to_owned(), json!("$k"))).chain((0..n).map(|i| (format!("f{i}"), json!({"$sum": "$k"})))))}]),
            ),
        ),
        ("$group id", Pipeline(json!([{"$group": {"_id": fields(n, |i| json!(format!("$f{i}")))}}]))),
        ("$facet", Pipeline(json!([{"$facet": fields(n, |_| json!([{"$limit": 1}]))}]))),
        ("$facet stages", Pipeline(json!([{"$facet": fields(n / 500, |_| list(500, |_| json!({"$limit": 1})))}]))),
        (
            "$bucket",
            Pipeline(json!([{"$bucket": {"groupBy": "$k", "boundaries": list(n, |i| json!(i)), "default": -1}}])),
        ),
        (
            "$bucketAuto",
            Pipeline(
                json!([{"$bucketAuto": {"groupBy": "$k", "buckets": 5, "output": fields(n, |_| json!({"$sum": 1}))}}]),
            ),
        ),
        ("$documents", Pipeline(json!([{"$documents": list(n, |i| json!({"a": i}))}]))),
        (
            "$unionWith",
            Pipeline(
                json!([{"$unionWith": {"coll": "x", "pipeline": [{"$match": {"$or": list(n, |i| json!({"_id": i}))}}]}}]),
            ),
        ),
        ("$unionWiths", Pipeline(list(900, |i| json!({"$unionWith": format!("c{i}")})))),
        (
            "$lookup let",
            Pipeline(
                json!([{"$lookup": {"from": "x", "as": "y", "let": fields(n, |_| json!("$k")), "pipeline": [{"$match": {"$expr": {"$and": list(n, |i| json!({"$eq": [format!("$$f{i}"), "$k"]}))}}}]}}]),
            ),
        ),
        (
            "$lookup let unused",
            Pipeline(
                json!([{"$lookup": {"from": "x", "as": "y", "let": fields(n, |_| json!("$k")), "pipeline": [{"$match": {"$expr": {"$and": list(n, |i| json!({"$eq": ["$f", i]}))}}}]}}]),
            ),
        ),
        (
            "$lookup pipeline",
            Pipeline(
                json!([{"$lookup": {"from": "x", "as": "y", "localField": "a", "foreignField": "b", "pipeline": [{"$match": fields(n, |i| json!(i))}]}}]),
            ),
        ),
        (
            "$graphLookup",
            Pipeline(
                json!([{"$graphLookup": {"from": "x", "as": "y", "startWith": list(n, |i| json!(i)), "connectFromField": "a", "connectToField": "b", "restrictSearchWithMatch": fields(n, |i| json!(i))}}]),
            ),
        ),
        ("$project", Pipeline(json!([{"$project": fields(n, |_| json!("$k"))}]))),
        (
            "$project and $match",
            Pipeline(json!([{"$project": fields(n, |_| json!("$k"))}, {"$match": fields(n, |i| json!(i))}])),
        ),
        (
            "$set and $project",
            Pipeline(
                json!([{"$set": fields(n, |_| json!("$k"))}, {"$match": object((0..n).map(|i| (format!("g{i}"), json!(i))))}, {"$project": fields(n, |_| json!(1))}, {"$group": {"_id": fields(n, |i| json!(format!("$f{i}")))}}]),
            ),
        ),
        ("$unset stage", Pipeline(json!([{"$unset": list(n, |i| json!(format!("f{i}")))}]))),
        (
            "$setWindowFields",
            Pipeline(
                json!([{"$setWindowFields": {"partitionBy": "$k", "sortBy": {"a": 1}, "output": fields(n, |_| json!({"$sum": "$k"}))}}]),
            ),
        ),
        (
            "$setWindowFields sort",
            Pipeline(
                json!([{"$setWindowFields": {"sortBy": fields(n, |_| json!(1)), "output": {"x": {"$sum": "$k"}}}}]),
            ),
        ),
        ("$fill", Pipeline(json!([{"$fill": {"output": fields(n, |i| json!({"value": i}))}}]))),
        (
            "$fill partition",
            Pipeline(
                json!([{"$fill": {"partitionByFields": list(n, |i| json!(format!("p{i}"))), "sortBy": {"a": 1}, "output": fields(n, |_| json!({"method": "locf"}))}}]),
            ),
        ),
        (
            "$densify",
            Pipeline(
                json!([{"$densify": {"field": "a", "partitionByFields": list(n, |i| json!(format!("p{i}"))), "range": {"step": 1, "bounds": "full"}}}]),
            ),
        ),
        (
            "$merge",
            Pipeline(
                json!([{"$merge": {"into": "x", "on": list(n, |i| json!(format!("f{i}"))), "let": fields(n, |_| json!("$k")), "whenMatched": [{"$set": fields(n, |i| json!(format!("$$f{i}")))}]}}]),
            ),
        ),
        ("$sort stage", Pipeline(json!([{"$sort": fields(n, |_| json!(1))}]))),
        (
            "$redact",
            Pipeline(
                json!([{"$redact": {"$switch": {"branches": list(n, |i| json!({"case": {"$eq": ["$k", i]}, "then": "$$KEEP"})), "default": "$$PRUNE"}}}]),
            ),
        ),
        ("$geoNear", Pipeline(json!([{"$geoNear": fields(n, |i| json!(i))}]))),
        ("$sample many", Pipeline(list(900, |_| json!({"$sample": {"size": 10}})))),
        ("stages", Pipeline(list(10 * n, |_| json!({"$limit": 1})))),
        ("index", Index(fields(n, |_| json!(1)), None)),
        ("index of arrays", Index(json!({"v": 1, "w.x": 1}), None)),
        ("wildcard projection", Index(json!({"$**": 1}), Some(fields(n, |_| json!(1))))),
        ("wildcard exclusion", Index(json!({"$**": 1}), Some(fields(n, |_| json!(0))))),
    ];
}

/// Processes an argument until the deadline.
fn process(case: &Work) {
    let began = clock();
    LAST.store(began, Relaxed);
    LARGEST.store(0, Relaxed);
    CHECKS.store(0, Relaxed);
    DEADLINE.store(began + MOST, Relaxed);
    let end = catch_unwind(AssertUnwindSafe(|| work(case)));
    DEADLINE.store(u64::MAX, Relaxed);
    interrupt();
    if let Err(payload) = end
        && !payload.is::<Interrupted>()
    {
        resume_unwind(payload);
    }
}

#[test]
fn every_large_argument_can_be_interrupted() {
    try_all(COUNT);
}

/// The same for arguments of many MB.
#[test]
#[ignore = "takes long: make soak"]
fn every_large_argument_soak() {
    try_all(SOAK_COUNT);
}

fn try_all(count: usize) {
    budget::install(Hooks { interrupt, limit: || 1 << 30, exceeded: |_| panic_any(Interrupted) });
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Interrupted>() {
            usual(info);
        }
    }));
    let mut late = Vec::new();
    each_case(count, |name, case| {
        process(&case);
        let (checks, largest) = (CHECKS.load(Relaxed), LARGEST.load(Relaxed));
        println!("{name}: {checks} checks, at most {} ms between them", largest / 1_000_000);
        // The last check is this test's own.
        if checks < 2 || largest > MOST_BETWEEN {
            late.push((name, checks, largest));
        }
    });
    assert!(late.is_empty(), "{late:?}");
}
