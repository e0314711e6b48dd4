//! The table of stages, with their parsers and properties.

use super::operation::{Merge, Parse, StageOperator};
use super::{
    bounded, bucket_auto, densify, derived, describing, documents, facet, fill, graph_lookup, group, lookup, merge,
    single, sort, union_with, unwind, window,
};
use crate::error::{Kind, Result, bail};
use serde_json::{Value as Json, json};

impl StageOperator {
    /// A stage whose results for a document depend on that document alone.
    const fn stateless(name: &'static str, parse: Parse) -> Self {
        Self {
            name,
            parse,
            in_updates: false,
            in_facets: true,
            for_clients: true,
            comes_first: false,
            reads_statistics: false,
            ends: false,
            one_to_one: false,
            keeps_order: true,
            remembers: false,
            merge: Merge::Union,
        }
    }

    /// A stage that returns exactly one document for each input document, which depends on that document alone.
    const fn one_to_one(name: &'static str, parse: Parse) -> Self {
        Self { one_to_one: true, ..Self::stateless(name, parse) }
    }

    /// A stage whose results depend on several documents.
    const fn stateful(name: &'static str, merge: Merge, parse: Parse) -> Self {
        Self { keeps_order: false, remembers: true, merge, ..Self::stateless(name, parse) }
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

    /// A first stage that returns statistics of the collection.
    const fn describing(self) -> Self {
        Self { comes_first: true, reads_statistics: true, ..self }.not_in_facets()
    }

    /// A last stage that writes documents.
    const fn ending(self) -> Self {
        Self { ends: true, ..self }.not_in_facets()
    }

    const fn of_division(self) -> Self {
        Self { for_clients: false, ..self }
    }
}

/// All supported stages.
pub const STAGES: &[StageOperator] = &[
    StageOperator::one_to_one("$set", single::add).in_updates(),
    StageOperator::one_to_one("$addFields", single::add).in_updates(),
    StageOperator::one_to_one("$unset", single::unset).in_updates(),
    StageOperator::one_to_one("$project", single::project).in_updates(),
    StageOperator::one_to_one("$replaceWith", single::replace_with).in_updates(),
    StageOperator::one_to_one("$replaceRoot", single::replace_root).in_updates(),
    StageOperator::stateless("$match", single::matching),
    StageOperator::stateless("$redact", single::redact),
    StageOperator::stateless("$unwind", unwind::unwind),
    StageOperator::stateful("$limit", Merge::Again, bounded::limit).keeping_order(),
    StageOperator::stateful("$skip", Merge::Undivided, bounded::skip).keeping_order(),
    StageOperator {
        one_to_one: true,
        remembers: false,
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
    StageOperator::stateful("$collStats", Merge::Undivided, describing::coll_stats).describing(),
    StageOperator::stateful("$indexStats", Merge::Undivided, describing::index_stats).describing(),
    StageOperator::stateful("$merge", Merge::Undivided, merge::merge).ending(),
    StageOperator::stateful("$out", Merge::Undivided, merge::out).ending(),
    StageOperator::stateful(PARTIAL_GROUP, Merge::Undivided, group::partial).of_division(),
    StageOperator::stateful(MERGED_GROUP, Merge::Undivided, group::merged).of_division(),
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

/// The kind of pipeline that the stages belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
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
