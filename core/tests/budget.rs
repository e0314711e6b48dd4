//! Bounds of expressions and updates: memory is limited, all loops check for interrupts, and sets do not take quadratic time.
//!
//! This test's allocator provides 256 MB; more memory ends the process.
#![allow(unsafe_code)]

mod common;

use common::*;
use docshard_core::budget::{self, Hooks, INTERVAL};
use docshard_core::query::environment::Environment;
use docshard_core::query::expression::Expression;
use docshard_core::query::filter::Filter;
use docshard_core::query::update::Update;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard};

const MOST: usize = 256 << 20;
const LIMIT: usize = 100 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);
/// The number of checks for an interrupt, and its limit.
static ASKED: AtomicUsize = AtomicUsize::new(0);
static PATIENCE: AtomicUsize = AtomicUsize::new(usize::MAX);

static LIMIT_NOW: AtomicUsize = AtomicUsize::new(LIMIT);

struct Bounded;

/// Changes the budget's counter, one thread at a time: it is loaded and stored separately, and other tests make their inputs meanwhile.
/// A lost change would move the limit.
fn count(change: fn(usize), bytes: usize) {
    static COUNTING: AtomicBool = AtomicBool::new(false);
    while COUNTING.swap(true, Acquire) {
        std::thread::yield_now();
    }
    change(bytes);
    COUNTING.store(false, Release);
}

// SAFETY: every call is passed to the system's allocator, or returns null.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if HELD.fetch_add(layout.size(), Relaxed) + layout.size() > MOST {
            return std::ptr::null_mut();
        }
        count(budget::allocated, layout.size());
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        count(budget::freed, layout.size());
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

struct Exceeded;
struct Interrupted;

fn interrupt() {
    if ASKED.fetch_add(1, Relaxed) >= PATIENCE.load(Relaxed) {
        panic_any(Interrupted);
    }
}

fn exceeded(_: usize) {
    panic_any(Exceeded);
}

/// One test at a time: the counters belong to the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    budget::install(Hooks { interrupt, limit: || LIMIT_NOW.load(Relaxed), exceeded });
    // Expected panics are not printed.
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Exceeded>() && !info.payload().is::<Interrupted>() {
                usual(info);
            }
        }));
    });
    PATIENCE.store(usize::MAX, Relaxed);
    ASKED.store(0, Relaxed);
    guard
}

#[derive(Debug, PartialEq)]
enum End {
    Answer,
    Error,
    Exceeded,
    Interrupted,
}

fn end_of(work: impl FnOnce() -> bool) -> End {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(true) => End::Answer,
        Ok(false) => End::Error,
        Err(payload) if payload.is::<Exceeded>() => End::Exceeded,
        Err(payload) if payload.is::<Interrupted>() => End::Interrupted,
        Err(payload) => resume_unwind(payload),
    }
}

fn evaluated(expression: &Json, against: &[u8]) -> End {
    end_of(|| {
        let parsed = Expression::parse(expression, &Environment::default());
        parsed.and_then(|expression| expression.evaluate(document(against), None)).is_ok()
    })
}

/// The values `0, 1 …`, from the document.
fn numbers(count: usize) -> Json {
    json!({"$range": ["$zero", count]})
}

/// A string of this number of powers of two, from the document.
fn doubled(times: usize) -> Json {
    json!({"$reduce": {"input": {"$range": ["$zero", times]}, "initialValue": "$s", "in": {"$concat": ["$$value", "$$value"]}}})
}

fn sample() -> Vec<u8> {
    bytes(&json!({
        "zero": 0, "s": "ab", "a": (0..20_000).collect::<Vec<_>>(), "docs": (0..2_000).map(|n| json!({"k": n, "v": "text"})).collect::<Vec<_>>(),
        "words": (0..20_000).map(|n| format!("word {n}")).collect::<Vec<_>>()
    }))
}

#[test]
fn what_would_take_too_much_memory_is_refused() {
    let _alone = alone();
    let against = sample();
    let large = doubled(22);
    for expression in [
        doubled(40),
        json!({"$map": {"input": numbers(1_000_000), "in": "$$ROOT"}}),
        json!({"$map": {"input": numbers(1_000_000), "in": doubled(12)}}),
        json!({"$reduce": {"input": numbers(40), "initialValue": ["$s"], "in": {"$concatArrays": ["$$value", "$$value"]}}}),
        json!({"$replaceAll": {"input": large, "find": "a", "replacement": large}}),
        json!({"$split": [large, "a"]}),
        json!({"$regexFindAll": {"input": large, "regex": "a"}}),
        json!({"$objectToArray": {"$arrayToObject": {"$map": {"input": numbers(2_000_000), "in": [{"$toString": "$$this"}, "$$this"]}}}}),
        json!({"$zip": {"inputs": [numbers(1_500_000), numbers(1_500_000)]}}),
        json!({"$setUnion": [numbers(3_000_000), {"$map": {"input": numbers(3_000_000), "in": {"$toString": "$$this"}}}]}),
        json!({"$let": {"vars": {"x": large}, "in": {"$map": {"input": numbers(100), "in": {"$concat": ["$$x", "b"]}}}}}),
        json!({"$range": ["$zero", 6_000_000]}),
        json!({"$toUpper": {"$concat": [doubled(24), doubled(24), doubled(24)]}}),
    ] {
        assert_eq!(evaluated(&expression, &against), End::Exceeded, "{expression}");
        // All of its memory is freed.
        assert!(HELD.load(Relaxed) < LIMIT / 2, "{expression}");
    }
    // The same with constants, while parsing.
    let constant = json!({"$strLenBytes": {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": "ab", "in": {"$concat": ["$$value", "$$value"]}}}});
    assert_eq!(evaluated(&constant, &against), End::Exceeded);
}

#[test]
fn what_a_document_of_full_size_asks_for_is_not_refused() {
    let _alone = alone();
    let text = "x".repeat(12 << 20);
    let against = bytes(&json!({"s": text, "a": (0..100_000).collect::<Vec<_>>(), "zero": 0}));
    for expression in [
        json!({"$toUpper": "$s"}),
        json!({"$concat": ["$s", "!"]}),
        json!({"$replaceAll": {"input": "$s", "find": "y", "replacement": "z"}}),
        json!({"$mergeObjects": ["$$ROOT", {"b": 1}]}),
        json!({"$setField": {"field": "b", "input": "$$ROOT", "value": 1}}),
        json!({"$sortArray": {"input": "$a", "sortBy": -1}}),
        json!({"$filter": {"input": "$a", "cond": {"$gt": ["$$this", 5]}}}),
        // Freed memory does not count.
        json!({"$reduce": {"input": numbers(2_000), "initialValue": "", "in": {"$concat": ["$$value", "one of two thousand lines, each of about a hundred bytes, of which a report may be made up in a loop"]}}}),
    ] {
        assert_eq!(evaluated(&expression, &against), End::Answer, "{expression}");
    }
}

#[test]
fn every_loop_asks_whether_to_go_on() {
    let _alone = alone();
    let against = sample();
    let words = json!({"$concatArrays": ["$words", "$words", "$words"]});
    for expression in [
        json!({"$map": {"input": "$a", "in": 1}}),
        json!({"$filter": {"input": "$a", "cond": true}}),
        json!({"$reduce": {"input": "$a", "initialValue": 0, "in": "$$this"}}),
        json!({"$in": ["none", "$words"]}),
        json!({"$indexOfArray": ["$words", "none"]}),
        json!({"$setUnion": ["$words", "$a"]}),
        json!({"$setDifference": ["$words", "$a"]}),
        json!({"$setEquals": ["$words", "$a"]}),
        json!({"$setIsSubset": ["$words", "$words"]}),
        json!({"$sortArray": {"input": "$words", "sortBy": 1}}),
        json!({"$sortArray": {"input": "$docs", "sortBy": {"v": 1, "k": -1}}}),
        json!({"$maxN": {"n": 5, "input": "$words"}}),
        json!({"$max": "$words"}),
        words.clone(),
        json!({"$reverseArray": words}),
        json!({"$slice": [words, 50_000]}),
        json!({"$zip": {"inputs": ["$a", "$words"]}}),
        json!({"$arrayToObject": {"$zip": {"inputs": ["$words", "$a"]}}}),
        json!({"$split": [doubled(17), "b"]}),
        json!({"$regexFindAll": {"input": doubled(15), "regex": "b"}}),
        json!({"$regexMatch": {"input": doubled(18), "regex": "none"}}),
        json!({"$replaceAll": {"input": doubled(20), "find": "b", "replacement": "c"}}),
        json!({"$trim": {"input": doubled(20), "chars": "abc"}}),
        json!({"$indexOfBytes": [doubled(20), "none"]}),
        json!({"$indexOfCP": [doubled(20), "none"]}),
        json!({"$eq": ["$$ROOT", "$$ROOT"]}),
        json!({"$range": ["$zero", 200_000]}),
        json!("$docs.k"),
    ] {
        let asked = ASKED.load(Relaxed);
        assert_eq!(evaluated(&expression, &against), End::Answer, "{expression}");
        assert!(ASKED.load(Relaxed) > asked, "{expression}: never");
        // It can be interrupted, and run again.
        PATIENCE.store(ASKED.load(Relaxed), Relaxed);
        assert_eq!(evaluated(&expression, &against), End::Interrupted, "{expression}");
        PATIENCE.store(usize::MAX, Relaxed);
    }
    let mut filters = vec![
        json!({"words": "none"}),
        json!({"words": {"$in": ["none", "no other"]}}),
        json!({"words": {"$regex": "none"}}),
        json!({"words": {"$all": ["word 1", "none"]}}),
        json!({"a": {"$elemMatch": {"$gt": 20_000}}}),
        json!({"docs.v": "none"}),
    ];
    filters.push(json!({"$nor": filters.clone()}));
    for filter in filters {
        let parsed = Filter::parse(&filter).unwrap();
        let (asked, rounds) = (ASKED.load(Relaxed), 2 * INTERVAL / 1_000);
        for _ in 0..rounds {
            parsed.evaluate(document(&against)).unwrap();
        }
        assert!(ASKED.load(Relaxed) > asked, "{filter}: never");
    }
    for update in [
        json!({"$addToSet": {"words": "one more"}}),
        json!({"$pullAll": {"words": ["none"]}}),
        json!({"$pull": {"words": {"$in": ["none"]}}}),
        json!({"$push": {"words": {"$each": ["one"], "$sort": 1}}}),
        json!({"$set": {"words.$[]": 1}}),
    ] {
        let asked = ASKED.load(Relaxed);
        let parsed = Update::parse(&update).unwrap();
        parsed.apply(document(&against), &[]).unwrap();
        assert!(ASKED.load(Relaxed) > asked, "{update}: never");
    }
}

/// Patterns for which a search without limits would backtrack exponentially often.
#[test]
fn a_search_cannot_run_away() {
    let _alone = alone();
    let against = bytes(&json!({"s": "a".repeat(5000)}));
    for (pattern, end) in [
        ("(a+)+b$", End::Answer),
        ("(a+)+$b", End::Error),
        (r"(a+)+\1b", End::Error),
        ("(?=(a*)*b)c", End::Answer),
        ("^(a|aa)+(?!a)b", End::Error),
    ] {
        // The most that is needed is 440,000 checks.
        PATIENCE.store(ASKED.load(Relaxed) + 1_000_000, Relaxed);
        let expression = json!({"$regexMatch": {"input": "$s", "regex": pattern}});
        assert_eq!(evaluated(&expression, &against), end, "{pattern}");
    }
    PATIENCE.store(usize::MAX, Relaxed);
}

/// A search that would take minutes: the pattern has many states, and the text is long.
#[test]
fn a_search_for_a_large_pattern_can_be_ended() {
    let _alone = alone();
    let mut random: u32 = 12345;
    let text: String = (0..4_000_000)
        .map(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if random >> 31 == 1 { 'a' } else { 'b' }
        })
        .collect();
    let against = bytes(&json!({"s": text}));
    for pattern in ["a[ab]{900}(a{40}|c)", "[ab]*a[ab]{2000}\\z[^ab]", "(a|b|ab|ba|aab){900}[^ab]"] {
        for expression in [
            json!({"$regexMatch": {"input": "$s", "regex": pattern}}),
            json!({"$regexFindAll": {"input": "$s", "regex": pattern}}),
        ] {
            PATIENCE.store(ASKED.load(Relaxed) + 10, Relaxed);
            assert_eq!(evaluated(&expression, &against), End::Interrupted, "{expression}");
        }
        PATIENCE.store(usize::MAX, Relaxed);
        let filter = Filter::parse(&json!({"s": {"$regex": pattern}})).unwrap();
        PATIENCE.store(ASKED.load(Relaxed) + 10, Relaxed);
        assert_eq!(end_of(|| filter.evaluate(document(&against)).is_ok()), End::Interrupted, "{pattern}");
        PATIENCE.store(usize::MAX, Relaxed);
    }
    // Without an interrupt it returns the right result.
    let found = json!({"s": {"$regex": "[ab]{300}[^ab]"}});
    for (text, expected) in [("ab".repeat(400_000), false), ("ab".repeat(400_000) + "c", true)] {
        let against = bytes(&json!({"s": text}));
        assert_eq!(Filter::parse(&found).unwrap().evaluate(document(&against)).unwrap(), expected);
    }
}

/// Searches that backtrack, and compare a part of the pattern with the whole text in each step.
#[test]
fn a_search_that_steps_back_can_be_ended() {
    let _alone = alone();
    let against = bytes(&json!({"s": "ab".repeat(200_000)}));
    for pattern in ["(?=[ab]*b)a[ab]*c", "(?<![ab]{3}c)a(?=([ab]*c))", "([ab]++)c", "(ab)+\\1[ab]*?\\1c"] {
        for expression in [
            json!({"$regexMatch": {"input": "$s", "regex": pattern}}),
            json!({"$regexFindAll": {"input": "$s", "regex": pattern}}),
        ] {
            PATIENCE.store(ASKED.load(Relaxed) + 10, Relaxed);
            assert_eq!(evaluated(&expression, &against), End::Interrupted, "{expression}");
        }
        PATIENCE.store(usize::MAX, Relaxed);
    }
    let found = |pattern: &str| {
        let filter = Filter::parse(&json!({"s": {"$regex": pattern}})).unwrap();
        filter.evaluate(document(&against)).map_err(|error| error.kind.code())
    };
    assert_eq!(found("\\A(?=[ab]*b\\z)ab"), Ok(true));
    assert_eq!(found("\\A(?=[ab]*c)ab"), Ok(false));
    // A single comparison with the text would take long, and could not be interrupted.
    assert_eq!(found("\\A(?=[ab]*a[ab]{5000}c)ab"), Err(51156));
    assert_eq!(found("\\A(?=[ab]*a[ab]{5000}c)ab(?=c)"), Err(51156));
}

/// In a long text, the engine finds the groups only within the match, which may be short.
#[test]
fn groups_are_found_in_long_texts() {
    let _alone = alone();
    let against = bytes(&json!({"s": "ab".repeat(500_000) + "ca" + &"ż".repeat(1_000)}));
    let expression = json!({"$regexFind": {"input": "$s", "regex": "([ab]{300}|d{900})(c)"}});
    let expression = Expression::parse(&expression, &Environment::default()).unwrap();
    let Some(found) = expression.evaluate(document(&against), None).unwrap() else { panic!("found") };
    let shown = format!("{found:?}");
    assert!(shown.contains("\"c\"") && shown.contains("999700"), "{shown}");
    // Here the match is long, too.
    let expression = json!({"$regexFind": {"input": "$s", "regex": "([ab]{300}|d{900})*(c)"}});
    assert_eq!(evaluated(&expression, &against), End::Error);
}

/// Text from a client; each value takes more memory than its text. The limit is smaller here, since the allocator would be exhausted
/// otherwise.
#[test]
fn reading_json_is_bounded() {
    let _alone = alone();
    LIMIT_NOW.store(8 << 20, Relaxed);
    for item in ["{}", "[[]]", "1", "{\"a\":{\"$in\":[1,2]}}"] {
        let text = format!("[{}null]", format!("{item},").repeat(4_000_000 / item.len()));
        assert_eq!(end_of(|| docshard_core::json::parse(&text).is_ok()), End::Exceeded, "{item}");
        PATIENCE.store(ASKED.load(Relaxed) + 10, Relaxed);
        assert_eq!(end_of(|| docshard_core::json::parse(&text).is_ok()), End::Interrupted, "{item}");
        PATIENCE.store(usize::MAX, Relaxed);
    }
    let text = format!("[\"{}\"]", "long, ".repeat(700_000));
    assert_eq!(end_of(|| docshard_core::json::parse(&text).is_ok()), End::Answer);
    LIMIT_NOW.store(LIMIT, Relaxed);
}

/// Patterns and their caches count.
#[test]
fn many_patterns_take_no_more_than_one() {
    let _alone = alone();
    let large = |n: usize| json!({"s": {"$regex": format!("\\p{{L}}{{{}}}x{n}", 5 + n % 7)}});
    let many: Vec<Json> = (0..2_000).map(large).collect();
    assert_eq!(end_of(|| Filter::parse(&json!({"$or": many})).is_ok()), End::Exceeded);
}

/// An expression over arrays, strings and numbers of the sample, nested to this depth.
fn expression(depth: u32) -> BoxedStrategy<Json> {
    let leaf = prop_oneof![
        Just(json!("$a")),
        Just(json!("$words")),
        Just(json!("$docs")),
        Just(json!("$s")),
        Just(json!("$$ROOT")),
        Just(json!("$docs.v")),
        Just(json!(7)),
        Just(json!("text")),
        Just(json!([1, "b", null])),
        Just(numbers(5_000)),
        Just(doubled(14))
    ];
    leaf.prop_recursive(depth, 24, 3, |inner| {
        let one = (
            prop::sample::select(vec!["$concatArrays", "$setUnion", "$mergeObjects", "$objectToArray", "$arrayToObject", "$reverseArray", "$toString",
                "$size", "$strLenCP", "$toUpper", "$max", "$sum", "$isArray", "$concat", "$setIntersection", "$eq", "$first"]),
            prop::collection::vec(inner.clone(), 1..3),
        );
        prop_oneof![
            one.prop_map(|(name, arguments)| json!({name: arguments})),
            inner.clone().prop_map(|of| json!({"$toString": of})),
            (inner.clone(), inner.clone()).prop_map(|(input, inside)| json!({"$map": {"input": input, "in": inside}})),
            (inner.clone(), inner.clone()).prop_map(|(input, inside)| json!({"$filter": {"input": input, "cond": inside}})),
            inner.clone().prop_map(|input| json!({"$reduce": {"input": input, "initialValue": "$s", "in": {"$concat": ["$$value", {"$toString": "$$this"}]}}})),
            inner.clone().prop_map(|input| json!({"$reduce": {"input": input, "initialValue": ["$a"], "in": {"$concatArrays": ["$$value", "$$value"]}}})),
            (inner.clone(), inner.clone()).prop_map(|(input, to)| json!({"$replaceAll": {"input": input, "find": "a", "replacement": to}})),
            inner.clone().prop_map(|input| json!({"$split": [input, "a"]})),
            inner.clone().prop_map(|input| json!({"$regexFindAll": {"input": input, "regex": "[a-z]"}})),
            (inner.clone(), inner.clone()).prop_map(|(x, inside)| json!({"$let": {"vars": {"x": x}, "in": [inside, "$$x", "$$x"]}})),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| json!({"$zip": {"inputs": [one, other], "useLongestLength": true}})),
            inner.prop_map(|input| json!({"$sortArray": {"input": input, "sortBy": {"k": 1}}})),
        ]
    })
    .boxed()
}

/// Every evaluation ends: with a result or an error, at the limit, or when it is interrupted. The allocator limits the memory.
#[test]
fn nothing_takes_more_than_its_share() {
    let _alone = alone();
    let against = sample();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let ends = Mutex::new([0usize; 4]);
    runner
        .run(&expression(4), |expression| {
            // Some thousands of steps are enough.
            PATIENCE.store(ASKED.load(Relaxed) + 2_000, Relaxed);
            let end = evaluated(&expression, &against);
            ends.lock().unwrap()[end as usize] += 1;
            prop_assert!(HELD.load(Relaxed) < LIMIT / 2, "{expression}");
            Ok(())
        })
        .unwrap();
    let [answers, errors, exceeded, interrupted] = *ends.lock().unwrap();
    assert!(answers > 20 && errors > 20 && exceeded + interrupted > 0, "{answers} {errors} {exceeded} {interrupted}");
}

fn small() -> impl Strategy<Value = Json> {
    prop_oneof![
        (0..4i64).prop_map(Json::from),
        (0..4i64).prop_map(|n| json!(n as f64)),
        (0..4i64).prop_map(|n| json!({"$numberDecimal": format!("{n}.0")})),
        "[ab]{0,1}".prop_map(Json::from),
        Just(Json::Null),
        (0..3i64).prop_map(|n| json!({"x": n, "y": 1})),
        (0..3i64).prop_map(|n| json!([n])),
        Just(json!({"$numberDouble": "NaN"})),
    ]
}

fn equal(a: &Json, b: &Json) -> bool {
    let against = bytes(&json!({}));
    let expression =
        Expression::parse(&json!({"$eq": [{"$literal": a}, {"$literal": b}]}), &Environment::default()).unwrap();
    expression.evaluate(document(&against), None).unwrap()
        == Some(docshard_core::values::document::value::Value::Bool(true))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sets_are_what_one_by_one_makes_of_them(there in prop::collection::vec(small(), 0..8), given in prop::collection::vec(small(), 0..8)) {
        let _alone = alone();
        let against = bytes(&json!({"a": there}));
        let applied = |update: Json| -> Json {
            let parsed = Update::parse(&update).unwrap();
            let changed = parsed.apply(document(&against), &[]).unwrap();
            read(&changed.unwrap_or_else(|| against.clone()))["a"].clone()
        };
        let stored = read(&against)["a"].as_array().unwrap().clone();
        let mut added = stored.clone();
        for value in &given {
            if !added.iter().any(|known| equal(known, value)) {
                added.push(value.clone());
            }
        }
        let expected = read(&bytes(&json!({"a": added})))["a"].clone();
        prop_assert_eq!(applied(json!({"$addToSet": {"a": {"$each": given}}})), expected);
        let kept: Vec<Json> = stored.iter().filter(|known| !given.iter().any(|value| equal(known, value))).cloned().collect();
        prop_assert_eq!(applied(json!({"$pullAll": {"a": given}})), Json::Array(kept));
    }
}

/// A way to put a value into another one, and the least number of levels that it adds.
type Wrapper = (fn(Json) -> Json, usize);

const WRAPPERS: [Wrapper; 11] = [
    (|inner| json!({"a": inner}), 1),
    (|inner| json!({"a": 1, "b": {"c": inner, "d": [null]}}), 2),
    (|inner| json!([inner]), 1),
    (|inner| json!({"$setField": {"field": "a", "input": {}, "value": inner}}), 1),
    (|inner| json!({"$mergeObjects": [{"b": 1}, {"a": inner}]}), 1),
    (|inner| json!({"$arrayToObject": [[["a", inner]]]}), 1),
    (|inner| json!({"$arrayToObject": [[{"k": "a", "v": inner}]]}), 1),
    (|inner| json!({"$concatArrays": [[1], [inner]]}), 1),
    (|inner| json!({"$map": {"input": [inner], "as": "x", "in": {"a": "$$x"}}}), 2),
    (|inner| json!({"$objectToArray": {"a": inner}}), 2),
    (|inner| json!({"$zip": {"inputs": [[inner]]}}), 2),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// However a value is wrapped, and how often: what is not too deep is the answer, anything else an error, and no recursion
    /// overflows the stack. As in the server, the value is then compared, copied and dropped.
    #[test]
    fn values_are_never_too_deep(wrappers in prop::collection::vec(0..WRAPPERS.len(), 1..12), times in prop_oneof![1usize..60, 1usize..3_000]) {
        let _alone = alone();
        let inside = wrappers.iter().fold(json!("$$value"), |inner, wrapper| WRAPPERS[*wrapper].0(inner));
        let levels: usize = wrappers.iter().map(|wrapper| WRAPPERS[*wrapper].1).sum();
        let against = bytes(&json!({"zero": 0}));
        let reduced = json!({"$reduce": {"input": numbers(times), "initialValue": {}, "in": inside}});
        let end = evaluated(&json!({"$eq": [reduced, {"$literal": 5}]}), &against);
        match levels * times {
            few if few < 190 => prop_assert_eq!(end, End::Answer),
            many if many > 200 => prop_assert_eq!(end, End::Error),
            _ => {}
        }
    }
}

/// Constants are folded while an expression is parsed, and are nested no deeper.
#[test]
fn constants_are_never_too_deep() {
    let _alone = alone();
    let constant = (0..120).fold(json!(1), |inner, _| json!([inner]));
    for (times, expected) in [(20, End::Answer), (41, End::Error)] {
        let wrapped =
            (0..times).fold(json!({"$literal": constant}), |inner, _| json!({"$objectToArray": {"a": inner}}));
        assert_eq!(evaluated(&wrapped, &sample()), expected, "{times}");
    }
}
