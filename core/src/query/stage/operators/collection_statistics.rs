//! `$collStats`, `$indexStats`, `$listClusterCatalog`, `$shardedDataDistribution` and `$currentOp`: the first stage of a pipeline. Its
//! documents describe the collection or its indexes at each shard, or the cluster.
//!
//! The stage itself returns its input unchanged. The caller that runs the pipeline asks the stage which documents are wanted, and
//! supplies these documents as the input.

use crate::error::{Kind, Result, bail, ensure};
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Shape, given};
use crate::query::stage::runtime::statistics::{CatalogParts, Statistics};
use crate::query::stage::runtime::stream::Input;
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Any stage of this file.
#[derive(Debug)]
struct CollectionStatistics(Statistics);

impl Operation for CollectionStatistics {
    fn fields(&self) -> Fields {
        Fields::replaced(Some(BTreeSet::new()))
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, _: &Context) -> Result<Input<'s>> {
        Ok(input)
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Statistics(&self.0)
    }
}

pub(in crate::query::stage) fn index_stats(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let is_empty = json.as_object().is_some_and(Map::is_empty);
    ensure!(is_empty, 28803, "The {} stage specification must be an empty object", parser.name);
    Parser::one(CollectionStatistics(Statistics::Indexes))
}

/// The stage's options, which are flags.
fn flags<const N: usize>(parser: &Parser<'_>, json: &Json, known: [&str; N]) -> Result<[bool; N]> {
    let fields = parser.named(json, &known, [Kind::FailedToParse, Kind::UnknownOption])?;
    let mut flags = [false; N];
    for (flag, name) in flags.iter_mut().zip(known) {
        *flag = match given(fields, name) {
            None => false,
            Some(Json::Bool(given)) => *given,
            Some(other) => {
                bail!(Kind::TypeMismatch, "BSON field '{}.{name}' must be a bool, but found: {other}", parser.name)
            }
        };
    }
    Ok(flags)
}

pub(in crate::query::stage) fn list_cluster_catalog(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let is_object = json.as_object().is_some_and(ext_json::is_document);
    ensure!(is_object, 9_621_302, "The $listClusterCatalog stage specification must be an object");
    let [shards, tracked, balancing] = flags(parser, json, ["shards", "tracked", "balancingConfiguration"])?;
    Parser::one(CollectionStatistics(Statistics::Catalog(CatalogParts { shards, tracked, balancing })))
}

pub(in crate::query::stage) fn sharded_data_distribution(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let [] = flags(parser, json, [])?;
    Parser::one(CollectionStatistics(Statistics::Distribution))
}

/// Only `allUsers` and `idleConnections` have an effect: there are no idle sessions or cursors of MongoDB's kind, and a router shows only
/// its own operations.
pub(in crate::query::stage) fn current_op(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let known = [
        "allUsers",
        "idleConnections",
        "idleCursors",
        "idleSessions",
        "localOps",
        "truncateOps",
        "backtrace",
        "targetAllNodes",
    ];
    let [all_users, idle, ..] = flags(parser, json, known)?;
    Parser::one(CollectionStatistics(Statistics::Operations { idle, all_users }))
}

pub(in crate::query::stage) fn coll_stats(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let known = ["latencyStats", "storageStats", "count", "queryExecStats"];
    let fields = parser.named(json, &known, [Kind::Location(5447000), Kind::UnknownOption])?;
    let object = |name: &str| match given(fields, name) {
        None => Ok(None),
        Some(Json::Object(fields)) if ext_json::is_document(fields) => Ok(Some(fields)),
        Some(other) => {
            bail!(Kind::TypeMismatch, "BSON field '$collStats.{name}' must be an object, but found: {other}")
        }
    };
    let count = object("count")?.is_some();
    let storage = object("storageStats")?.map(scale).transpose()?;
    for name in known {
        if object(name)?.is_some() && !["storageStats", "count"].contains(&name) {
            bail!(Kind::NotImplemented, "$collStats does not support {name}");
        }
    }
    Parser::one(CollectionStatistics(Statistics::Collection { count, storage }))
}

/// The unit of sizes, in bytes.
fn scale(fields: &Map<String, Json>) -> Result<i64> {
    let known = ["scale", "verbose", "waitForLock", "numericOnly"];
    if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        bail!(Kind::UnknownOption, "BSON field '$collStats.storageStats.{unknown}' is an unknown field.");
    }
    let Some(scale) = given(fields, "scale") else { return Ok(1) };
    let Value::Number(number) = ext_json::from_json(scale)? else {
        bail!(Kind::TypeMismatch, "BSON field '$collStats.storageStats.scale' must be a number, but found: {scale}")
    };
    let number = number.to_i64_rounded();
    ensure!(number >= 1, Kind::BadValue, "BSON field 'scale' value must be >= 1, actual value '{scale}'");
    Ok(number.min(i32::MAX.into()))
}
