//! Divides the stages of a pipeline between the shards and the router, which merges the shards' documents.

use crate::error::Result;
use crate::query::filter::Filter;
use crate::query::sort::Sort;
use crate::query::stage::fields::Written;
use crate::query::stage::needed::projection;
use crate::query::stage::operation::{Merge, ParseStage, Shape, Stage};
use crate::query::stage::table::{MERGED_GROUP, PARTIAL_GROUP};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// The stages that the shards run, and those that run over the merged documents.
#[derive(Debug)]
pub(in crate::query::stage) struct SplitStages {
    pub at_shards: Vec<Stage>,
    pub order: Option<Json>,
    pub merging: Vec<Stage>,
}

/// Divides stages over several shards. `shard_key`: paths at which no document has an array, and whose values decide the shard of
/// a document; None if there are no such paths.
///
/// # Errors
/// Those of parsing a stage, which has been parsed before.
pub(in crate::query::stage) fn divided(
    stages: &[Stage],
    shard_key: Option<&[&str]>,
    parse: ParseStage<'_>,
) -> Result<SplitStages> {
    let mut key = shard_key.filter(|key| !key.is_empty());
    let mut at_shards = Vec::new();
    for (position, stage) in stages.iter().enumerate() {
        let (this, rest) = (|| vec![stage.clone()], &stages[position + 1..]);
        let renamed =
            |name: &str| parse(&Json::Object([(name.to_owned(), Json::clone(&stage.argument))].into_iter().collect()));
        let merge = if stage.operation.needs_router() { Merge::Undivided } else { stage.operator.merge };
        let (last, order, merging) = match (merge, stage.operation.shape()) {
            (Merge::Union, _) => {
                key = key.filter(|paths| keeps(&stage.operation.fields().written, paths));
                at_shards.push(stage.clone());
                continue;
            }
            (Merge::States, Shape::Group(group)) if key.is_some_and(|paths| group.determines(paths)) => {
                // Each group is on one shard, so each shard returns complete groups. Their documents have the shard key's fields in
                // `_id`, so later stages cannot use the shard key.
                key = None;
                at_shards.push(stage.clone());
                continue;
            }
            (_, Shape::Partitions(group)) if key.is_some_and(|paths| group.determines(paths)) => {
                key = key.filter(|paths| keeps(&stage.operation.fields().written, paths));
                at_shards.push(stage.clone());
                continue;
            }
            (Merge::Repeated, _) => (this(), None, this()),
            (Merge::Ordered, Shape::Sort(sort)) => {
                let limit = rest.first().filter(|next| matches!(next.operation.shape(), Shape::Limit(_)));
                (this().into_iter().chain(limit.cloned()).collect(), Some(sort.to_json()), Vec::new())
            }
            (Merge::Ordered, Shape::Sample(most)) => {
                let random = json!({"$rand": {"$meta": "randVal"}});
                (this(), Some(random), vec![parse(&json!({"$limit": most}))?])
            }
            (Merge::States, _) => (vec![renamed(PARTIAL_GROUP)?], None, vec![renamed(MERGED_GROUP)?]),
            (Merge::Undivided | Merge::Ordered, _) => (Vec::new(), None, this()),
        };
        at_shards.extend(last);
        return Ok(SplitStages {
            at_shards,
            order,
            merging: merging.into_iter().chain(rest.iter().cloned()).collect(),
        });
    }
    Ok(SplitStages { at_shards, order: None, merging: Vec::new() })
}

/// Divides stages between a single target shard and the router. The shard runs those before the first that needs the router.
pub(in crate::query::stage) fn at_one_shard(stages: &[Stage]) -> SplitStages {
    let end = stages.iter().position(|stage| stage.operation.needs_router()).unwrap_or(stages.len());
    let (at_shards, merging) = stages.split_at(end);
    SplitStages { at_shards: at_shards.to_vec(), order: None, merging: merging.to_vec() }
}

/// Adds a `$project` to the shards' stages that leaves only the fields which the router's stages read.
///
/// # Errors
/// Those of parsing a stage.
pub(in crate::query::stage) fn narrowed(
    mut divided: SplitStages,
    needed: impl Fn(&[Stage]) -> Option<Vec<String>>,
    parse: ParseStage<'_>,
) -> Result<SplitStages> {
    // Not after a `$group`, which returns only the fields that it computes. Without stages at the shards, the find projects
    // (`Find::fields`).
    let is_wide = divided.at_shards.last().is_some_and(|last| !matches!(last.operation.shape(), Shape::Group(_)));
    let Some(fields) = needed(&divided.merging).filter(|_| is_wide) else { return Ok(divided) };
    divided.at_shards.push(parse(&json!({"$project": projection(&fields)}))?);
    Ok(divided)
}

/// True if a stage does not write any of these paths.
fn keeps(written: &Written, paths: &[&str]) -> bool {
    paths.iter().all(|path| written.keeps(path))
}

/// The first stages of a pipeline as the arguments of a find.
#[derive(Clone, Debug, Default)]
pub struct Find {
    /// the filter; `{}` for all
    pub filter: Arc<Json>,
    /// its parsed form; None for all
    pub parsed: Option<Arc<Filter>>,
    /// the order of documents, and its parsed form
    pub sort: Option<(Arc<Json>, Sort)>,
    /// how many documents to skip
    pub skip: u64,
    /// how many documents to return after those skipped
    pub limit: Option<u64>,
    /// the top-level fields that the remaining stages read; None for all
    pub fields: Option<Vec<String>>,
}

impl Find {
    /// The projection to these fields; None for whole documents.
    pub fn projection(&self) -> Option<Json> {
        self.fields.as_deref().map(projection)
    }
}

/// Returns the find that replaces the first stages, and their number. `needed` returns the fields that stages read.
pub(in crate::query::stage) fn find(
    stages: &[Stage],
    needed: impl Fn(&[Stage]) -> Option<Vec<String>>,
) -> (Find, usize) {
    let mut find = Find { filter: Arc::new(json!({})), ..Find::default() };
    let mut count = 0;
    for stage in stages {
        let begins = find.limit.is_none() && find.skip == 0;
        match stage.operation.shape() {
            Shape::Match(filter) if begins && count == 0 => {
                find.filter = Arc::clone(&stage.argument);
                find.parsed = Some(Arc::clone(filter));
            }
            Shape::Sort(sort) if begins && find.sort.is_none() => {
                find.sort = Some((Arc::clone(&stage.argument), sort.clone()));
            }
            Shape::Limit(most) if begins => find.limit = Some(most),
            Shape::Skip(skip) if find.skip == 0 && find.limit.is_none_or(|most| most > skip) => {
                find.skip = skip;
                find.limit = find.limit.map(|most| most - skip);
            }
            _ => break,
        }
        count += 1;
    }
    find.fields = needed(&stages[count..]);
    (find, count)
}
