//! Judges a simulated key, in words that an administrator understands, and ranks keys.

use super::characteristics::Trend;
use super::simulation::Simulation;
use crate::values::key::KeyPattern;

/// With fewer chunks on each shard than this a collection cannot be kept even.
const FEW_CHUNKS: f64 = 8.0;
/// A value counts as common if its documents are more than this share of the documents that a shard has on average.
const COMMON: f64 = 0.25;
/// The least imbalance, from 0 to 1, that is mentioned.
const NOTABLE: f64 = 0.1;
/// The least [`Simulation::scatter`] at which statements count as scattered. With a key that divides the documents of one popular value,
/// some statements go to several shards; they alone should not count.
const SCATTERED: f64 = 0.25;
/// The imbalance of inserts above which one shard is said to get them.
const HOT: f64 = 0.5;

/// What a key does well or badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trait {
    /// few values
    LowCardinality,
    /// one value is in a large part of the documents
    CommonValue,
    /// new documents have higher keys than older ones
    Ascending,
    /// values without any order
    Random,
    /// a few ascending values first, then another field
    CoarseAscending,
    /// inserts go to few shards
    HotShard,
    /// documents are spread unevenly
    Uneven,
    /// documents and inserts are spread evenly
    Even,
    /// most statements go to one shard
    Targeted,
    /// statements go to several shards
    Scattered,
    /// updates change the key
    KeyUpdates,
}

impl Trait {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::LowCardinality => "lowCardinality",
            Self::CommonValue => "commonValue",
            Self::Ascending => "ascending",
            Self::Random => "random",
            Self::CoarseAscending => "coarseAscending",
            Self::HotShard => "hotShard",
            Self::Uneven => "uneven",
            Self::Even => "even",
            Self::Targeted => "targeted",
            Self::Scattered => "scattered",
            Self::KeyUpdates => "keyUpdates",
        }
    }

    /// True for an advantage.
    pub fn is_good(self) -> bool {
        matches!(self, Self::CoarseAscending | Self::Even | Self::Targeted)
    }
}

/// A judged key.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// from 0 to 100: how suitable the key is
    pub score: f64,
    /// the reasons, each with a sentence
    pub reasons: Vec<(Trait, String)>,
}

impl Verdict {
    /// Judges a key.
    pub fn of(pattern: &KeyPattern, found: &Simulation) -> Self {
        Self { score: score(found), reasons: reasons(pattern, found) }
    }

    /// The verdict in a word.
    pub fn word(&self) -> &'static str {
        match self.score {
            score if score >= 75.0 => "good",
            score if score >= 50.0 => "acceptable",
            _ => "poor",
        }
    }
}

/// How many chunks each shard can have, relative to [`FEW_CHUNKS`], at most 1.
fn divisibility(found: &Simulation) -> f64 {
    if found.values.is_unique() {
        return 1.0;
    }
    let chunks = found.values.distinct.min(found.chunks as u64);
    (chunks as f64 / (FEW_CHUNKS * found.shards as f64)).min(1.0)
}

/// The most common value's documents, relative to an even part of one shard.
fn weight_of_most_common(found: &Simulation) -> f64 {
    if found.values.is_unique() { 0.0 } else { found.values.largest_share() * found.shards as f64 }
}

fn score(found: &Simulation) -> f64 {
    let lost = 40.0 * found.insert_imbalance()
        + 35.0 * found.scatter()
        + 30.0 * (1.0 - divisibility(found))
        + 20.0 * found.imbalance()
        + 20.0 * found.key_update_share()
        + 10.0 * (weight_of_most_common(found) / COMMON).min(1.0)
        + 5.0 * found.index_share.min(1.0);
    (100.0 - lost).max(0.0)
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 10.0 || percent == 0.0 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

/// The names of fields, for sentences.
fn names(pattern: &KeyPattern) -> (String, String) {
    let name = |(path, _): &(String, _)| format!("\"{path}\"");
    let mut names = pattern.fields.iter().map(name);
    (names.next().unwrap_or_default(), names.collect::<Vec<_>>().join(", "))
}

fn reasons(pattern: &KeyPattern, found: &Simulation) -> Vec<(Trait, String)> {
    let mut reasons = of_values(pattern, found);
    reasons.extend(of_inserts(pattern, found));
    reasons.extend(of_statements(found));
    reasons
}

/// Judges a key by the number and the frequency of its values.
fn of_values(pattern: &KeyPattern, found: &Simulation) -> Vec<(Trait, String)> {
    let mut reasons = Vec::new();
    if divisibility(found) < 1.0 {
        let values = found.values.distinct;
        reasons.push((
            Trait::LowCardinality,
            format!(
                "{} has only {values} values: the collection can have no more than {values} chunks, for {} shards. A chunk of one value \
                 cannot be split. It becomes jumbo: too large to be moved",
                pattern.to_json(),
                found.shards
            ),
        ));
    } else if weight_of_most_common(found) > COMMON {
        reasons.push((
            Trait::CommonValue,
            format!(
                "the most common value is in {} of the documents. Its chunk cannot be split, and becomes jumbo: too large to be moved. \
                 Another field at the end of the key would divide it",
                percent(found.values.largest_share())
            ),
        ));
    }
    if found.imbalance() > NOTABLE {
        let most = found.documents.iter().max().copied().unwrap_or(0);
        let least = found.documents.iter().min().copied().unwrap_or(0);
        reasons.push((Trait::Uneven, format!("shards are uneven: one has {most} documents, another one {least}")));
    }
    reasons
}

/// Judges a key by the order of inserts.
fn of_inserts(pattern: &KeyPattern, found: &Simulation) -> Vec<(Trait, String)> {
    let (first, others) = names(pattern);
    let hottest = percent(found.hottest_insert_share);
    let mut reasons = Vec::new();
    let is_hot = found.insert_imbalance() > HOT;
    if found.is_coarse_ascending() && !is_hot {
        reasons.push((
            Trait::CoarseAscending,
            format!(
                "{first} ascends in large steps, and {others} divides each step: new documents are together in {} of the index, which stays \
                 in memory, and still go to all shards",
                percent(found.index_share)
            ),
        ));
    } else if found.trend == Trend::Monotonic && is_hot {
        reasons.push((
            Trait::Ascending,
            format!(
                "new documents have higher keys than older ones: {hottest} of the inserts go to one shard, however many shards there are"
            ),
        ));
    } else if found.is_random() {
        reasons.push((
            Trait::Random,
            format!(
                "values of {first} have no order: 1,000 inserts change about {:.0} pages of the index, anywhere in it, so all of it must be \
                 in memory, and queries of ranges go to all shards",
                found.index_pages
            ),
        ));
    }
    if is_hot && reasons.is_empty() {
        reasons.push((Trait::HotShard, format!("{hottest} of the inserts go to one of {} shards", found.shards)));
    } else if found.insert_imbalance() <= NOTABLE && found.imbalance() <= NOTABLE && found.shards > 1 {
        let text = format!("documents and inserts are spread evenly: the busiest shard gets {hottest} of the inserts");
        reasons.push((Trait::Even, text));
    }
    reasons
}

/// Judges a key by the statements.
fn of_statements(found: &Simulation) -> Vec<(Trait, String)> {
    let (replay, mut reasons) = (&found.replay, Vec::new());
    if replay.statements > 0 && found.shards > 1 {
        let text = format!("a sampled statement goes to {:.1} of {} shards", replay.shards_touched, found.shards);
        let scattered = percent(replay.scattered as f64 / replay.statements as f64);
        reasons.push(match found.scatter() > SCATTERED {
            true => {
                (Trait::Scattered, format!("{text}; {scattered} of the statements do not have the key's first field"))
            }
            false => (Trait::Targeted, text),
        });
    }
    if replay.key_updates > 0 {
        let share = percent(found.key_update_share());
        let text =
            format!("{share} of the sampled updates may change the key, and so move documents from shard to shard");
        reasons.push((Trait::KeyUpdates, text));
    }
    reasons
}

/// Sorts judged keys, the best one first; of equally good ones, that with fewer fields.
pub fn rank<T>(judged: &mut [(KeyPattern, Verdict, T)]) {
    judged.sort_by(|a, b| b.1.score.total_cmp(&a.1.score).then(a.0.fields.len().cmp(&b.0.fields.len())));
}
