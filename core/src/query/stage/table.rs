//! The table of stages, with their parsers and properties.

use super::operation::{Merge, Parse, StageOperator};
use super::operators::{
    bucket_auto, collection_statistics, densify, derived, documents, facet, fill, graph_lookup, group, limit_skip,
    lookup, merge, per_document, sort, union_with, unwind, window,
};
use crate::error::{Kind, Result, bail};
use crate::values::document::ext_json;
use serde_json::{Value as Json, json};

impl StageOperator {
    /// A stage whose results for a document depend on that document alone.
    const fn stateless(name: &'static str, parse: Parse) -> Self {
        Self {
            name,
            parse,
            in_updates: false,
            in_facets: true,
            is_internal: false,
            comes_first: false,
            reads_statistics: false,
            writes: false,
            one_to_one: false,
            keeps_order: true,
            is_stateful: false,
            merge: Merge::Union,
        }
    }

    /// A stage that returns exactly one document for each input document, which depends on that document alone.
    const fn one_to_one(name: &'static str, parse: Parse) -> Self {
        Self { one_to_one: true, ..Self::stateless(name, parse) }
    }

    /// A stage with results that depend on several input documents, or on none.
    const fn stateful(name: &'static str, merge: Merge, parse: Parse) -> Self {
        Self { keeps_order: false, is_stateful: true, merge, ..Self::stateless(name, parse) }
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

    /// A first stage that returns statistics of the collection or the cluster.
    const fn reading_statistics(self) -> Self {
        Self { comes_first: true, reads_statistics: true, ..self }.not_in_facets()
    }

    /// A last stage that writes documents.
    const fn writing(self) -> Self {
        Self { writes: true, ..self }.not_in_facets()
    }

    const fn internal(self) -> Self {
        Self { is_internal: true, ..self }
    }
}

/// All supported stages.
pub const STAGES: &[StageOperator] = &[
    StageOperator::one_to_one("$set", per_document::add).in_updates(),
    StageOperator::one_to_one("$addFields", per_document::add).in_updates(),
    StageOperator::one_to_one("$unset", per_document::unset).in_updates(),
    StageOperator::one_to_one("$project", per_document::project).in_updates(),
    StageOperator::one_to_one("$replaceWith", per_document::replace_with).in_updates(),
    StageOperator::one_to_one("$replaceRoot", per_document::replace_root).in_updates(),
    StageOperator::stateless("$match", per_document::parse_match),
    StageOperator::stateless("$redact", per_document::redact),
    StageOperator::stateless("$unwind", unwind::unwind),
    StageOperator::stateful("$limit", Merge::Repeated, limit_skip::limit).keeping_order(),
    StageOperator::stateful("$skip", Merge::Undivided, limit_skip::skip).keeping_order(),
    StageOperator {
        one_to_one: true,
        is_stateful: false,
        ..StageOperator::stateful("$sort", Merge::Ordered, sort::sort)
    },
    StageOperator::stateful("$sample", Merge::Ordered, sort::sample),
    StageOperator::stateful("$group", Merge::States, group::group),
    StageOperator::stateful("$count", Merge::States, derived::count),
    StageOperator::stateful("$sortByCount", Merge::States, derived::sort_by_count),
    StageOperator::stateful("$bucket", Merge::States, derived::bucket),
    StageOperator::stateful("$bucketAuto", Merge::Undivided, bucket_auto::bucket_auto),
    StageOperator {
        one_to_one: true,
        ..StageOperator::stateful("$setWindowFields", Merge::Undivided, window::set_window_fields)
    },
    StageOperator::stateful("$fill", Merge::Undivided, fill::fill),
    StageOperator::stateful("$densify", Merge::Undivided, densify::densify),
    StageOperator::stateful("$facet", Merge::Undivided, facet::facet).not_in_facets(),
    StageOperator {
        comes_first: true,
        ..StageOperator::stateful("$documents", Merge::Undivided, documents::documents).not_in_facets()
    },
    StageOperator { merge: Merge::Undivided, ..StageOperator::one_to_one("$lookup", lookup::lookup) },
    StageOperator { merge: Merge::Undivided, ..StageOperator::one_to_one("$graphLookup", graph_lookup::graph_lookup) },
    StageOperator::stateful("$unionWith", Merge::Undivided, union_with::union_with),
    StageOperator::stateful("$collStats", Merge::Undivided, collection_statistics::coll_stats).reading_statistics(),
    StageOperator::stateful("$indexStats", Merge::Undivided, collection_statistics::index_stats).reading_statistics(),
    StageOperator::stateful("$listClusterCatalog", Merge::Undivided, collection_statistics::list_cluster_catalog)
        .reading_statistics(),
    StageOperator::stateful(
        "$shardedDataDistribution",
        Merge::Undivided,
        collection_statistics::sharded_data_distribution,
    )
    .reading_statistics(),
    StageOperator::stateful("$currentOp", Merge::Undivided, collection_statistics::current_op).reading_statistics(),
    StageOperator::stateful("$merge", Merge::Undivided, merge::merge).writing(),
    StageOperator::stateful("$out", Merge::Undivided, merge::out).writing(),
    StageOperator::stateful(PARTIAL_GROUP, Merge::Undivided, group::partial).internal(),
    StageOperator::stateful(MERGED_GROUP, Merge::Undivided, group::merged).internal(),
];

/// The parts of a divided `$group`: the first makes partial states at the shards, the second merges them.
pub(super) const PARTIAL_GROUP: &str = "$_partialGroup";
pub(super) const MERGED_GROUP: &str = "$_mergedGroup";

/// Returns a stage as `explain` shows it. The parts of a divided `$group` have MongoDB's form.
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

/// MongoDB's stages that are not supported.
const NOT_SUPPORTED: &[&str] = &[
    "$geoNear",
    "$planCacheStats",
    "$changeStream",
    "$changeStreamSplitLargeEvent",
    "$listSessions",
    "$listLocalSessions",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$querySettings",
    "$queryStats",
    "$search",
    "$searchMeta",
    "$vectorSearch",
    "$rankFusion",
    "$scoreFusion",
    "$score",
];

/// The kind of pipeline that the stages belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// an aggregation of a client
    Client,
    /// an update of a client
    Update,
    /// a part of a divided pipeline, or a stage derived from another
    Division,
}

/// Returns the row of a stage `{name: argument}` in the table, and its argument.
///
/// # Errors
/// `TypeMismatch` and `Location40323` for an element that is not a stage, `Location40324` for an unknown stage,
/// `NotImplemented` for one of MongoDB's that is not supported; in an update, `InvalidOptions` for any stage that it may not have.
pub(super) fn find(json: &Json, origin: Origin) -> Result<(&'static StageOperator, &Json)> {
    let Some(fields) = ext_json::document(json) else {
        bail!(Kind::TypeMismatch, "Each element of the 'pipeline' array must be an object")
    };
    let (Some((name, argument)), 1) = (fields.iter().next(), fields.len()) else {
        bail!(40323, "A pipeline stage specification object must contain exactly one field.")
    };
    let found = STAGES.iter().find(|stage| stage.name == name && (!stage.is_internal || origin == Origin::Division));
    match found.filter(|stage| origin != Origin::Update || stage.in_updates) {
        Some(stage) => Ok((stage, argument)),
        None if found.is_none() && !NOT_SUPPORTED.contains(&name.as_str()) => {
            bail!(40324, "Unrecognized pipeline stage name: '{name}'")
        }
        None if origin == Origin::Update => {
            bail!(Kind::InvalidOptions, "{name} is not allowed to be used within an update")
        }
        None if name.to_ascii_lowercase().contains("search") => {
            bail!(
                Kind::NotImplemented,
                "the stage {name} is not supported: search indexes are a service of MongoDB Atlas"
            )
        }
        None => bail!(Kind::NotImplemented, "the stage {name} is not supported"),
    }
}
