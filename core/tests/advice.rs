//! Verdicts on shard keys: those of a textbook for the four patterns, and for a social inbox.

mod common;

use docshard_core::advice::candidates::candidates;
use docshard_core::advice::layout::Cluster;
use docshard_core::advice::sample::{Sample, Sampled};
use docshard_core::advice::simulation::Simulation;
use docshard_core::advice::statement::{Reach, Statement};
use docshard_core::advice::verdict::{Trait, Verdict, rank};
use docshard_core::values::key::KeyPattern;
use serde_json::{Value as Json, json};

const DOCUMENTS: u64 = 6000;
const CLUSTER: Cluster = Cluster { shards: 4, chunk_bytes: 128 << 20 };

/// A number without order, the same at each run.
fn scrambled(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A sample of a collection of 600,000 documents.
fn sample(document: impl Fn(u64) -> Json) -> Sample {
    let documents = (0..DOCUMENTS)
        .map(|number| Sampled { bytes: common::bytes(&document(number)), place: number as f64 / DOCUMENTS as f64 });
    Sample::new(documents.collect(), 100 * DOCUMENTS, 100 * DOCUMENTS * 400)
}

fn statement(kind: &str, filter: &Json, modification: Option<&Json>) -> Statement {
    let modification = modification.map(|update| json!({"update": update}).to_string());
    Statement::read(kind, &filter.to_string(), modification.as_deref(), false).unwrap()
}

fn pattern(key: &Json) -> KeyPattern {
    KeyPattern::parse(key).unwrap()
}

fn judge(sample: &Sample, statements: &[Statement], key: &Json) -> (Verdict, Simulation) {
    let pattern = pattern(key);
    let found = Simulation::of(sample, statements, &pattern, CLUSTER).unwrap();
    (Verdict::of(&pattern, &found), found)
}

fn traits(sample: &Sample, statements: &[Statement], key: &Json) -> Vec<Trait> {
    judge(sample, statements, key).0.reasons.into_iter().map(|(reason, _)| reason).collect()
}

/// Events of two years, in the order of their time; users look at theirs of a month.
fn events() -> (Sample, Vec<Statement>) {
    let month =
        |number: u64| format!("{}-{:02}", 2024 + number * 24 / DOCUMENTS / 12, number * 24 / DOCUMENTS % 12 + 1);
    let countries = ["de", "fr", "it"];
    let sample = sample(|number| {
        json!({
            "_id": {"$oid": format!("{:08x}{:016x}", 1_700_000_000 + number * 10, scrambled(number))},
            "user": format!("u{}", scrambled(number) % 500),
            "country": countries[(scrambled(number) % 3) as usize],
            "hash": format!("{:016x}", scrambled(number + 77)),
            "month": month(number),
        })
    });
    let statements = (0..200).map(|number| {
        let month = month(DOCUMENTS - 1 - number % 300);
        statement("find", &json!({"user": format!("u{number}"), "month": month}), None)
    });
    (sample, statements.collect())
}

#[test]
fn few_values_make_few_and_jumbo_chunks() {
    let (sample, statements) = events();
    let (verdict, found) = judge(&sample, &statements, &json!({"country": 1}));
    assert_eq!(verdict.word(), "poor");
    assert!(found.chunks <= 3, "{found:?}");
    let (_, text) = verdict.reasons.iter().find(|(reason, _)| *reason == Trait::LowCardinality).unwrap();
    assert!(text.contains("only 3 values") && text.contains("jumbo"), "{text}");
}

#[test]
fn an_ascending_key_sends_all_inserts_to_one_shard() {
    let (sample, statements) = events();
    let (verdict, found) = judge(&sample, &statements, &json!({"_id": 1}));
    assert_eq!(verdict.word(), "poor");
    assert!(found.hottest_insert_share == 1.0 && found.index_pages < 10.0, "{found:?}");
    let (_, text) = verdict.reasons.iter().find(|(reason, _)| *reason == Trait::Ascending).unwrap();
    assert!(text.contains("100 % of the inserts go to one shard"), "{text}");
}

#[test]
fn a_random_key_changes_all_pages_of_the_index_and_scatters_queries() {
    let (sample, statements) = events();
    for key in [json!({"hash": 1}), json!({"_id": "hashed"})] {
        let (verdict, found) = judge(&sample, &statements, &key);
        assert_eq!(verdict.word(), "acceptable", "{verdict:?}");
        assert!(found.hottest_insert_share < 0.4 && found.index_pages > 700.0, "{found:?}");
        assert_eq!(found.replay.scattered, statements.len());
        let found = traits(&sample, &statements, &key);
        assert!(found.contains(&Trait::Random) && found.contains(&Trait::Scattered), "{found:?}");
    }
}

#[test]
fn a_coarse_ascending_field_and_one_that_is_searched_stay_in_memory_and_spread() {
    let (sample, statements) = events();
    let (verdict, found) = judge(&sample, &statements, &json!({"month": 1, "user": 1}));
    assert_eq!(verdict.word(), "good", "{verdict:?} {found:?}");
    assert!(found.hottest_insert_share < 0.6 && found.index_share < 0.2, "{found:?}");
    assert_eq!(found.replay.targeted, statements.len());
    let found: Vec<Trait> = verdict.reasons.iter().map(|(reason, _)| *reason).collect();
    assert!(found.contains(&Trait::CoarseAscending) && found.contains(&Trait::Targeted), "{found:?}");
}

#[test]
fn of_the_four_patterns_the_last_one_is_the_best_and_is_found() {
    let (sample, statements) = events();
    let indexes = [vec!["hash".to_owned()], vec!["country".to_owned()]];
    let mut judged: Vec<_> = candidates(&sample, &statements, &indexes)
        .into_iter()
        .map(|(pattern, origin)| {
            let found = Simulation::of(&sample, &statements, &pattern, CLUSTER).unwrap();
            (pattern.clone(), Verdict::of(&pattern, &found), origin)
        })
        .collect();
    rank(&mut judged);
    let place = |key: Json| judged.iter().position(|(known, ..)| *known == pattern(&key)).expect("a candidate");
    assert_eq!(place(json!({"month": 1, "user": 1})), 0, "{judged:?}");
    let worst = [json!({"_id": 1}), json!({"country": 1})].map(place);
    let random = place(json!({"_id": "hashed"}));
    assert!(worst.into_iter().all(|place| place > random), "{judged:?}");
}

/// An inbox: the recipient reads the latest messages, marks one as read, and deletes one. Some recipients are popular.
fn inbox() -> (Sample, Vec<Statement>) {
    let recipient = |number: u64| match scrambled(number) % 10 {
        0 => "celebrity".to_owned(),
        _ => format!("r{}", scrambled(number + 1) % 800),
    };
    let sample = sample(|number| {
        json!({
            "_id": format!("m{:x}", scrambled(number + 5)),
            "recipient": recipient(number),
            "sender": format!("s{}", scrambled(number + 9) % 800),
            "sent": {"$date": {"$numberLong": (1_700_000_000_000 + number * 1000).to_string()}},
            "text": "…",
        })
    });
    let statements = (0..300).map(|number| {
        let recipient = json!(recipient(number * 17));
        let id = json!(format!("m{number}"));
        let read = json!({"$set": {"read": true}});
        match number % 6 {
            0 => statement("update", &json!({"recipient": recipient, "_id": id}), Some(&read)),
            1 => statement("delete", &json!({"recipient": recipient, "_id": id}), None),
            _ => statement("find", &json!({"recipient": recipient}), None),
        }
    });
    (sample, statements.collect())
}

#[test]
fn an_inbox_is_kept_by_recipient_and_time() {
    let (sample, statements) = inbox();
    let keys = [json!({"recipient": 1, "sent": 1}), json!({"recipient": 1}), json!({"sender": 1}), json!({"sent": 1})];
    let mut judged: Vec<_> = keys.iter().map(|key| (pattern(key), judge(&sample, &statements, key).0, ())).collect();
    rank(&mut judged);
    let ranked: Vec<Json> = judged.iter().map(|(pattern, ..)| pattern.to_json()).collect();
    assert_eq!(ranked, keys, "{judged:?}");
    let found = |key: Json| traits(&sample, &statements, &key);
    // By recipient: one shard for each statement, but the celebrity's messages cannot be divided.
    assert!([Trait::CommonValue, Trait::Targeted].iter().all(|reason| found(json!({"recipient": 1})).contains(reason)));
    // By sender: spread, but a recipient's messages are everywhere.
    assert!([Trait::Even, Trait::Scattered].iter().all(|reason| found(json!({"sender": 1})).contains(reason)));
    // By time: all inserts at one shard, and reads everywhere.
    assert!([Trait::Ascending, Trait::Scattered].iter().all(|reason| found(json!({"sent": 1})).contains(reason)));
    // By both.
    let both = found(json!({"recipient": 1, "sent": 1}));
    assert!([Trait::Even, Trait::Targeted].iter().all(|reason| both.contains(reason)), "{both:?}");
    assert_eq!(judged[0].1.word(), "good");
    let all: Vec<KeyPattern> = candidates(&sample, &statements, &[]).into_iter().map(|(pattern, _)| pattern).collect();
    assert!(all.contains(&pattern(&json!({"recipient": 1}))), "{all:?}");
}

#[test]
fn statements_are_classified_by_the_key_alone() {
    let reach = |filter: Json, key: Json| Reach::of(&statement("find", &filter, None).keys(&pattern(&key)));
    let both = json!({"a": 1, "b": 1});
    assert_eq!(reach(json!({"a": 1}), json!({"a": 1})), Reach::Targeted);
    assert_eq!(reach(json!({"a": 1}), json!({"a": "hashed"})), Reach::Targeted);
    assert_eq!(reach(json!({"a": {"$gt": 1}}), json!({"a": 1})), Reach::Ranges);
    assert_eq!(reach(json!({"a": {"$in": [1, 2]}}), json!({"a": 1})), Reach::Ranges);
    assert_eq!(reach(json!({"a": {"$gt": 1}}), json!({"a": "hashed"})), Reach::Scatter);
    assert_eq!(reach(json!({"a": 1}), both.clone()), Reach::Ranges);
    assert_eq!(reach(json!({"a": 1, "b": 2}), both.clone()), Reach::Targeted);
    assert_eq!(reach(json!({"b": 1}), both.clone()), Reach::Scatter);
    assert_eq!(reach(json!({"$or": [{"a": 1}, {"c": 1}]}), both), Reach::Scatter);
    let changes =
        |update: Json| statement("update", &json!({"a": 1}), Some(&update)).may_change_key(&pattern(&json!({"a": 1})));
    assert!(
        changes(json!({"$set": {"a": 2}}))
            && changes(json!({"$unset": {"a": ""}}))
            && changes(json!([{"$set": {"a": 2}}]))
    );
    assert!(!changes(json!({"$set": {"b": 2}})) && !changes(json!([{"$set": {"b": 2}}])));
}

#[test]
fn documents_that_cannot_have_a_key_are_an_error_and_no_candidate() {
    let sample = sample(|number| json!({"_id": number, "tags": [1, 2], "n": number % 7}));
    let error = Simulation::of(&sample, &[], &pattern(&json!({"tags": 1})), CLUSTER).unwrap_err();
    assert_eq!(error.kind.name(), "ShardKeyNotFound");
    let statements = [statement("find", &json!({"tags": 1}), None)];
    let all = candidates(&sample, &statements, &[vec!["tags".to_owned()], vec!["$**".to_owned()]]);
    assert!(
        !all.is_empty()
            && all.iter().all(|(key, _)| key.fields.iter().all(|(path, _)| path != "tags" && !path.contains('$')))
    );
}
