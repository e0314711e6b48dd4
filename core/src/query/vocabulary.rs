//! The names that the language's tables have, for documentation, tests and fuzzers: nobody needs to list them again.

use super::accumulator::ACCUMULATORS;
use super::stage::STAGES;
use super::{expression, filter, update};
use crate::values::document::ext_json;
use std::collections::BTreeSet;

/// What means something within the arguments of others: no table has it.
const PARTS: &[&str] = &["$each", "$position", "$sort", "$natural", "$meta", "$ref", "$id", "$db", "$scope"];

/// The operators of filters.
pub fn filter_operators() -> impl Iterator<Item = &'static str> {
    filter::operator_names()
}

/// The operators of updates.
pub fn update_operators() -> impl Iterator<Item = &'static str> {
    update::operator_names()
}

/// The operators of expressions.
pub fn expression_operators() -> impl Iterator<Item = &'static str> {
    expression::operator_names()
}

/// The accumulators of groups.
pub fn accumulators() -> impl Iterator<Item = &'static str> {
    ACCUMULATORS.iter().map(|operator| operator.name)
}

/// The stages of pipelines; with true, those that an update may have.
pub fn stages() -> impl Iterator<Item = (&'static str, bool)> {
    STAGES.iter().filter(|stage| stage.for_clients).map(|stage| (stage.name, stage.in_updates))
}

/// Every name that means something, those of values of extended types and of parts of arguments included; each once.
pub fn names() -> BTreeSet<&'static str> {
    let stages = stages().map(|(name, _)| name);
    let operators = filter_operators().chain(update_operators()).chain(expression_operators());
    let words = ext_json::NAMES.iter().chain(PARTS).copied();
    operators.chain(accumulators()).chain(stages).chain(words).collect()
}
