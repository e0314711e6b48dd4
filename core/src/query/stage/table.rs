//! The stages of pipelines, as a table.

use super::operation::{Merge, Parse, StageOperator};
use super::{
    bounded, bucket_auto, densify, derived, describing, documents, facet, fill, graph_lookup, group, lookup, merge,
    single, sort, union_with, unwind, window,
};
use crate::error::{Kind, Result, bail};
use serde_json::{Value as Json, json};

impl StageOperator {
    /// One that makes at most one document of each by itself.
    const fn of_one(name: &'static str, parse: Parse) -> Self {
        Self {
            name,
            parse,
            in_updates: false,
            in_facets: true,
            for_clients: true,
            begins: false,
            describes: false,
            ends: false,
            one_to_one: false,
            keeps_order: true,
            remembers: false,
            merge: Merge::Union,
        }
    }

    /// One that makes exactly one document of each by itself.
    const fn of_each(name: &'static str, parse: Parse) -> Self {
        Self { one_to_one: true, ..Self::of_one(name, parse) }
    }

    /// One whose documents depend on several.
    const fn of_all(name: &'static str, merge: Merge, parse: Parse) -> Self {
        Self { keeps_order: false, remembers: true, merge, ..Self::of_one(name, parse) }
    }

    const fn in_updates(self) -> Self {
        Self { in_updates: true, ..self }
    }

    const fn not_in_facets(self) -> Self {
        Self { in_facets: false, ..self }
    }

    const fn keeping_order(self) -> Self {
        Self { keeps_order: true, ..self }
    }

    /// One that describes the collection.
    const fn describing(self) -> Self {
        Self { begins: true, describes: true, ..self }.not_in_facets()
    }

    /// One that ends a pipeline.
    const fn ending(self) -> Self {
        Self { ends: true, ..self }.not_in_facets()
    }

    const fn of_division(self) -> Self {
        Self { for_clients: false, ..self }
    }
}

/// Every stage that is understood.
pub const STAGES: &[StageOperator] = &[
    StageOperator::of_each("$set", single::add).in_updates(),
    StageOperator::of_each("$addFields", single::add).in_updates(),
    StageOperator::of_each("$unset", single::unset).in_updates(),
    StageOperator::of_each("$project", single::project).in_updates(),
    StageOperator::of_each("$replaceWith", single::replace_with).in_updates(),
    StageOperator::of_each("$replaceRoot", single::replace_root).in_updates(),
    StageOperator::of_one("$match", single::matching),
    StageOperator::of_one("$redact", single::redact),
    StageOperator::of_one("$unwind", unwind::unwind),
    StageOperator::of_all("$limit", Merge::Again, bounded::limit).keeping_order(),
    StageOperator::of_all("$skip", Merge::Undivided, bounded::skip).keeping_order(),
    StageOperator { one_to_one: true, remembers: false, ..StageOperator::of_all("$sort", Merge::Ordered, sort::sort) },
    StageOperator::of_all("$sample", Merge::Ordered, sort::sample),
    StageOperator::of_all("$group", Merge::States, group::group),
    StageOperator::of_all("$count", Merge::States, derived::count),
    StageOperator::of_all("$sortByCount", Merge::States, derived::sort_by_count),
    StageOperator::of_all("$bucket", Merge::States, derived::bucket),
    StageOperator::of_all("$bucketAuto", Merge::Undivided, bucket_auto::bucket_auto),
    StageOperator {
        one_to_one: true,
        ..StageOperator::of_all("$setWindowFields", Merge::Undivided, window::set_window_fields)
    },
    StageOperator::of_all("$fill", Merge::Undivided, fill::fill),
    StageOperator::of_all("$densify", Merge::Undivided, densify::densify),
    StageOperator::of_all("$facet", Merge::Undivided, facet::facet).not_in_facets(),
    StageOperator {
        begins: true,
        ..StageOperator::of_all("$documents", Merge::Undivided, documents::documents).not_in_facets()
    },
    StageOperator { merge: Merge::Undivided, ..StageOperator::of_each("$lookup", lookup::lookup) },
    StageOperator { merge: Merge::Undivided, ..StageOperator::of_each("$graphLookup", graph_lookup::graph_lookup) },
    StageOperator::of_all("$unionWith", Merge::Undivided, union_with::union_with),
    StageOperator::of_all("$collStats", Merge::Undivided, describing::coll_stats).describing(),
    StageOperator::of_all("$indexStats", Merge::Undivided, describing::index_stats).describing(),
    StageOperator::of_all("$merge", Merge::Undivided, merge::merge).ending(),
    StageOperator::of_all("$out", Merge::Undivided, merge::out).ending(),
    StageOperator::of_all(PARTIAL_GROUP, Merge::Undivided, group::partial).of_division(),
    StageOperator::of_all(MERGED_GROUP, Merge::Undivided, group::merged).of_division(),
];

/// The parts of a divided `$group`: at the shards, and over their states.
pub(super) const PARTIAL_GROUP: &str = "$_partialGroup";
pub(super) const MERGED_GROUP: &str = "$_mergedGroup";

/// A stage as explanations show it: the parts of a divided `$group` as MongoDB does.
pub(super) fn shown(operator: &StageOperator, argument: &Json) -> Json {
    let mut argument = argument.clone();
    let name = match operator.name {
        PARTIAL_GROUP => "$group",
        MERGED_GROUP => {
            if let Json::Object(fields) = &mut argument {
                fields.insert("$doingMerge".to_owned(), true.into());
            }
            "$group"
        }
        name => name,
    };
    json!({name: argument})
}

/// MongoDB's stages that are not understood.
const NOT_SUPPORTED: &[&str] = &[
    "$geoNear",
    "$planCacheStats",
    "$currentOp",
    "$changeStream",
    "$changeStreamSplitLargeEvent",
    "$listSessions",
    "$listLocalSessions",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$listClusterCatalog",
    "$querySettings",
    "$queryStats",
    "$search",
    "$searchMeta",
    "$vectorSearch",
    "$rankFusion",
    "$scoreFusion",
    "$score",
    "$shardedDataDistribution",
];

/// The operation that the stages belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// a client, for an aggregation
    Client,
    /// a client, for an update
    Update,
    /// the part that has divided a pipeline
    Division,
}

/// The stage of an element of a pipeline, and its argument.
///
/// # Errors
/// `TypeMismatch` and `Location40323` for what is no stage, `Location40324` for an unknown one; `NotImplemented`, or
/// `InvalidOptions` in an update, for one that is not understood.
pub(super) fn find(json: &Json, asker: Asker) -> Result<(&'static StageOperator, &Json)> {
    let Json::Object(fields) = json else {
        bail!(Kind::TypeMismatch, "Each element of the 'pipeline' array must be an object")
    };
    let (Some((name, argument)), 1) = (fields.iter().next(), fields.len()) else {
        bail!(40323, "A pipeline stage specification object must contain exactly one field.")
    };
    let found = STAGES.iter().find(|stage| stage.name == name && (stage.for_clients || asker == Asker::Division));
    match found.filter(|stage| asker != Asker::Update || stage.in_updates) {
        Some(stage) => Ok((stage, argument)),
        None if found.is_none() && !NOT_SUPPORTED.contains(&name.as_str()) => {
            bail!(40324, "Unrecognized pipeline stage name: '{name}'")
        }
        None if asker == Asker::Update => {
            bail!(Kind::InvalidOptions, "{name} is not allowed to be used within an update")
        }
        None => bail!(Kind::NotImplemented, "the stage {name} is not supported"),
    }
}
