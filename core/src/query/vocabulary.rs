//! The names in the language's tables, for documentation, tests and fuzzers, so that no other list is needed.

use super::accumulator::ACCUMULATORS;
use super::stage::{STAGES, WINDOW_FUNCTIONS};
use super::{expression, filter, update};
use crate::values::document::ext_json;
use std::collections::BTreeSet;

/// Names with a meaning inside the arguments of operators, which are in no table.
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

/// The functions of windows.
pub fn window_functions() -> impl Iterator<Item = &'static str> {
    WINDOW_FUNCTIONS.iter().map(|operator| operator.name)
}

/// The stages of pipelines, each with true if an update may have it.
pub fn stages() -> impl Iterator<Item = (&'static str, bool)> {
    STAGES.iter().filter(|stage| !stage.is_internal).map(|stage| (stage.name, stage.in_updates))
}

/// All names with a meaning, also those of extended types and inside arguments, each once.
pub fn names() -> BTreeSet<&'static str> {
    let stages = stages().map(|(name, _)| name);
    let operators = filter_operators().chain(update_operators()).chain(expression_operators());
    let words = ext_json::NAMES.iter().chain(PARTS).copied();
    operators.chain(accumulators()).chain(window_functions()).chain(stages).chain(words).collect()
}
