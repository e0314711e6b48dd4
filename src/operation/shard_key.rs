//! Advice on shard keys: MongoDB's analyzeShardKey, and a ranking of possible keys.

use super::arguments::{Arguments, number};
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_router;
use crate::catalog::cluster::settings;
use crate::catalog::collections::sharding::usable_shards;
use crate::catalog::collections::{grants, namespace, views};
use crate::pg::error::{Error, Result};
use crate::router::explain::assumed;
use crate::router::reads::key_sample::{self, Share};
use crate::store::sampled_statements;
use docshard_core::advice::candidates::{Origin, candidates};
use docshard_core::advice::characteristics::{Counted, MOST_COMMON, Trend};
use docshard_core::advice::layout::{Cluster, Layout};
use docshard_core::advice::sample::Sample;
use docshard_core::advice::simulation::{Replay, Simulation};
use docshard_core::advice::statement::{Kind as Does, Statement};
use docshard_core::advice::verdict::{Trait, Verdict, rank};
use docshard_core::error::{Kind, bail, ensure};
use docshard_core::routing::model::{Collection, Index};
use docshard_core::routing::request::options::FindOptions;
use docshard_core::routing::request::query::Query;
use docshard_core::values::key::KeyPattern;
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

/// How many documents `analyzeShardKey` reads by default.
const ANALYSED: u64 = 1_000_000;
/// How many documents a suggestion reads by default.
const SUGGESTED: u64 = 5000;
/// The most documents that a suggestion reads.
const MAX_SUGGESTED: u64 = 20_000;
/// The most sampled statements that `analyzeShardKey` reads; the latest ones.
const ANALYSED_STATEMENTS: i64 = 10_000;
/// The most sampled statements that a suggestion reads; the latest ones.
const SUGGESTED_STATEMENTS: i64 = 1000;
/// The most keys that are suggested.
const MAX_KEYS: usize = 20;
/// The most shards that can be assumed.
const MAX_SHARDS: i64 = 1000;

/// Returns the collection that the caller wants advice on.
///
/// # Errors
/// `IllegalOperation` if its database is an internal one; `CommandNotSupportedOnView`; `NamespaceNotFound`; `Unauthorized` if the caller
/// may not read the collection.
fn collection(ns: &str) -> Result<Rc<Collection>> {
    check_router()?;
    namespace::split_of_users(ns)?;
    views::refuse(ns)?;
    let collection = cache::get(ns)?;
    grants::require_of_caller(&collection)?;
    Ok(collection)
}

/// Returns the assumed cluster: the present one, with another number of shards if that is given. A cluster of one shard is assumed to have
/// two.
fn cluster(options: &Arguments<'_>) -> Result<Cluster> {
    let shards = match options.integer("shards")? {
        Some(given) => {
            ensure!(
                (2..=MAX_SHARDS).contains(&given),
                Kind::BadValue,
                "shards must be from 2 to {MAX_SHARDS}, not {given}"
            );
            given
        }
        None => usable_shards()?.len().max(2) as i64,
    };
    Ok(Cluster { shards: usize::try_from(shards).unwrap_or(2), chunk_bytes: settings::chunk_bytes()?.unsigned_abs() })
}

/// Returns the last sampled statements of a collection. A statement that cannot be read any more is left out.
fn statements(collection: &Collection, most: i64) -> Result<Vec<Statement>> {
    let stored = sampled_statements::last(collection.id, most)?;
    let read = stored.iter().map(|s| Statement::read(&s.kind, &s.filter, s.modification.as_deref(), s.many));
    Ok(read.filter_map(std::result::Result::ok).collect())
}

/// Returns which documents are read, by the options `sampleRate` and `sampleSize`.
///
/// # Errors
/// `InvalidOptions` for both options, and for too few documents; `BadValue` for a value out of bounds; `TypeMismatch`.
fn share(options: &Arguments<'_>) -> Result<Share> {
    let (rate, size) = (options.get("sampleRate"), options.integer("sampleSize")?);
    ensure!(
        rate.is_none() || size.is_none(),
        Kind::InvalidOptions,
        "Cannot specify both 'sampleRate' and 'sampleSize'"
    );
    if let Some(given) = rate {
        let Some(rate) = number(given).map(|number| number.to_f64()) else {
            bail!(Kind::TypeMismatch, "'sampleRate' must be a number, not {given}");
        };
        ensure!(
            rate > 0.0 && rate <= 1.0,
            Kind::BadValue,
            "'sampleRate' must be greater than 0 and at most 1, not {given}"
        );
        return Ok(Share::Part(rate));
    }
    match size {
        None => Ok(Share::Documents(ANALYSED)),
        Some(size) => {
            ensure!(size > 0, Kind::BadValue, "'sampleSize' must be greater than 0, not {size}");
            ensure!(
                size.unsigned_abs() >= MOST_COMMON as u64,
                Kind::InvalidOptions,
                "'sampleSize' must be at least {MOST_COMMON}, the number of the most common values, not {size}"
            );
            Ok(Share::Documents(size.unsigned_abs()))
        }
    }
}

/// Analyses a shard key by the documents and by sampled statements.
///
/// # Errors
/// Those of [`collection`] and [`share`]; `InvalidOptions` if nothing is to be analysed; `IllegalOperation` for an empty collection;
/// `BadValue` for a document that cannot have the key.
pub fn analyze(ns: &str, key: &Json, options: &Arguments<'_>) -> Result<Json> {
    let pattern = KeyPattern::parse(key)?;
    let (of_documents, of_statements) = (options.flag("keyCharacteristics"), options.flag("readWriteDistribution"));
    ensure!(of_documents || of_statements, Kind::InvalidOptions, "Cannot skip analyzing all metrics");
    let share = share(options)?;
    let of = collection(ns)?;
    let cluster = cluster(options)?;
    let share = if of_documents { share } else { Share::Documents(SUGGESTED) };
    let unsuitable = |error: Error| match error.kind {
        Kind::ShardKeyNotFound => error.with_kind(Kind::BadValue),
        _ => error,
    };
    let read = key_sample::read(ns, share, Some(&pattern)).map_err(unsuitable)?;
    ensure!(
        !read.sample.is_empty(),
        Kind::IllegalOperation,
        "Cannot analyze the characteristics of a shard key for an empty collection: {ns}"
    );
    let mut answer = json!({"ok": 1});
    let keys = read.sample.keys(&pattern).map_err(unsuitable)?;
    if of_documents {
        let trend = Trend::of(&pattern, &keys);
        answer["keyCharacteristics"] = characteristics(&pattern, &read.sample, &read.counted, trend);
    }
    if of_statements {
        let statements = statements(&of, ANALYSED_STATEMENTS)?;
        let layout = Layout::of(&pattern, &keys, read.sample.bytes, cluster)?;
        let replay = |writes| {
            let chosen = statements.iter().filter(move |statement| statement.kind.writes() == writes);
            Replay::of(chosen, &pattern, &layout)
        };
        answer["readDistribution"] = distribution(&statements, &replay(false), false);
        answer["writeDistribution"] = distribution(&statements, &replay(true), true);
        answer["bytesToMove"] = json!(bytes_to_move(&of, &read.sample, &pattern, &layout)?);
    }
    Ok(answer)
}

fn characteristics(
    pattern: &KeyPattern,
    sample: &Sample,
    counted: &Counted,
    (trend, correlation): (Trend, Option<f64>),
) -> Json {
    let common = |(key, count): &(Vec<u8>, u64)| json!({"value": pattern.bound_to_json(key), "frequency": count});
    let mut monotonicity = json!({"type": trend.name()});
    if let Some(correlation) = correlation {
        monotonicity["recordIdCorrelationCoefficient"] = json!(rounded(correlation));
    }
    json!({
        "numDocsTotal": sample.total,
        "avgDocSizeBytes": sample.bytes / sample.total.max(1),
        "numDocsSampled": counted.documents,
        "isUnique": counted.is_unique(),
        "numDistinctValues": counted.distinct,
        "mostCommonValues": counted.common.iter().map(common).collect::<Vec<_>>(),
        "monotonicity": monotonicity,
    })
}

fn rounded(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

/// Describes how the reads, or the writes, among the statements are distributed, in MongoDB's terms. If there are none, it returns only
/// their number.
fn distribution(statements: &[Statement], replay: &Replay, writes: bool) -> Json {
    let mut size = Map::from_iter([("total".to_owned(), json!(replay.statements))]);
    for kind in Does::ALL.into_iter().filter(|kind| kind.writes() == writes) {
        let count = statements.iter().filter(|statement| statement.kind == kind).count();
        size.insert(kind.name().to_owned(), json!(count));
    }
    let mut shown = Map::from_iter([("sampleSize".to_owned(), Json::Object(size))]);
    if replay.statements == 0 {
        return Json::Object(shown);
    }
    let what = if writes { "Writes" } else { "Reads" };
    let percent = |count: usize| json!(rounded(100.0 * count as f64 / replay.statements as f64));
    shown.insert(format!("percentageOfSingleShard{what}"), percent(replay.targeted));
    shown.insert(format!("percentageOfMultiShard{what}"), percent(replay.ranges));
    shown.insert(format!("percentageOfScatterGather{what}"), percent(replay.scattered));
    if writes {
        shown.insert("percentageOfShardKeyUpdates".to_owned(), percent(replay.key_updates));
        shown.insert("percentageOfSingleWritesWithoutShardKey".to_owned(), percent(replay.single_without_key));
        shown.insert("percentageOfMultiWritesWithoutShardKey".to_owned(), percent(replay.many_without_key));
    }
    shown.insert("averageShardsTouched".to_owned(), json!(rounded(replay.shards_touched)));
    shown.insert("percentageOfHottestChunk".to_owned(), json!(rounded(100.0 * replay.hottest_chunk)));
    Json::Object(shown)
}

/// Estimates, from the sample, the size of the documents that would move to another shard, in bytes.
fn bytes_to_move(of: &Collection, sample: &Sample, pattern: &KeyPattern, layout: &Layout) -> Result<u64> {
    let usable = usable_shards()?;
    let mut moved = 0_u64;
    for document in sample.documents() {
        let owner = of.map.owner(&of.key.key_of(document)?);
        let (_, place) = layout.place(&pattern.key_of(document)?);
        moved += u64::from(usable.get(place).map(|shard| shard.id) != Some(owner));
    }
    Ok((moved as f64 / sample.len().max(1) as f64 * sample.bytes as f64) as u64)
}

/// Ranks possible keys, which are taken from indexes, documents and sampled statements.
///
/// # Errors
/// Those of [`collection`]; `BadValue` for an option out of bounds; `IllegalOperation` for an empty collection.
pub fn suggest(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    let size = options.integer("sampleSize")?.unwrap_or(SUGGESTED.cast_signed());
    ensure!(
        (1..=MAX_SUGGESTED.cast_signed()).contains(&size),
        Kind::BadValue,
        "'sampleSize' must be from 1 to {MAX_SUGGESTED}, not {size}"
    );
    let cluster = cluster(options)?;
    let of = collection(ns)?;
    let sample = key_sample::read(ns, Share::Documents(size.unsigned_abs()), None)?.sample;
    ensure!(!sample.is_empty(), Kind::IllegalOperation, "{ns} is empty: there is nothing to judge a shard key by");
    let statements = statements(&of, SUGGESTED_STATEMENTS)?;
    let is_plain = |index: &&Index| index.partial.is_none() && index.keys.wildcard.is_none();
    let fields = |index: &Index| index.fields().iter().map(|(path, _)| path.clone()).collect();
    let indexes: Vec<Vec<String>> = of.indexes.iter().filter(is_plain).map(fields).collect();
    let mut judged = Vec::new();
    for (pattern, origin) in candidates(&sample, &statements, &indexes) {
        let found = Simulation::of(&sample, &statements, &pattern, cluster)?;
        judged.push((pattern.clone(), Verdict::of(&pattern, &found), (origin, found)));
    }
    rank(&mut judged);
    let shown: Vec<Json> = judged
        .iter()
        .take(MAX_KEYS)
        .map(|(pattern, verdict, (origin, found))| suggestion(pattern, verdict, *origin, found))
        .collect();
    let mut answer = json!({
        "ok": 1, "documents": sample.total, "sampledDocuments": sample.len(), "sampledStatements": statements.len(), "shards": cluster.shards,
        "keys": shown,
    });
    if statements.is_empty() {
        answer["note"] = "no statement was sampled: keys are judged by documents alone. docshard.configure_query_analyzer() samples statements".into();
    }
    Ok(answer)
}

fn suggestion(pattern: &KeyPattern, verdict: &Verdict, origin: Origin, found: &Simulation) -> Json {
    let reason =
        |(reason, text): &(Trait, String)| json!({"trait": reason.name(), "good": reason.is_good(), "text": text});
    json!({
        "key": pattern.to_json(),
        "score": verdict.score.round(),
        "verdict": verdict.word(),
        "from": origin.name(),
        "reasons": verdict.reasons.iter().map(reason).collect::<Vec<_>>(),
        "simulation": {
            "chunks": found.chunks,
            "documentsPerShard": found.documents,
            "hottestShardInsertShare": rounded(found.hottest_insert_share),
            "shardsPerStatement": rounded(found.replay.shards_touched),
            "indexPagesPer1000Inserts": found.index_pages.round(),
            "indexPages": found.all_index_pages.round(),
            "distinctValues": found.values.distinct,
        },
    })
}

/// Plans a find as if the collection had another shard key.
pub fn explain_assumed(ns: &str, query: &Query, options: &FindOptions, key: &Json) -> Result<Json> {
    assumed::explain(ns, query, options, &KeyPattern::parse(key)?, settings::chunk_bytes()?.unsigned_abs())
}
