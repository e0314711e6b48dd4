//! Rearranges stages so that they process fewer documents, without changing the result.
//!
//! * A `$match` moves ahead of stages that do not write the fields it reads. Its conditions move separately.
//! * `$limit` and `$skip` move ahead of stages that return one document for each input document, and `$limit` ahead of `$skip`.
//! * Adjacent filters, limits and skips are combined.
//! * Stages move ahead of those that read other collections, or into the pipelines over these: see [`joins`].
//!
//! The order of stages decides for which documents an expression is evaluated. So a rearranged pipeline may raise an error that the
//! original one would not raise, and the reverse.

use super::conjunction::{conditions, joined};
use super::joins;
use crate::error::Result;
use crate::query::random::is_random;
use crate::query::stage::fields::Written;
use crate::query::stage::operation::{ParseStage, Shape, Stage};
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::{Value as Json, json};

/// Rearranges stages.
///
/// # Errors
/// Those of parsing the new stages. As the given stages were parsed, none is expected.
pub(in crate::query::stage) fn rearranged(mut stages: Vec<Stage>, parse: ParseStage<'_>) -> Result<Vec<Stage>> {
    stages.retain(|stage| !is_match(stage) || stage.argument.as_object().is_none_or(|filter| !filter.is_empty()));
    let mut position = 0;
    while position + 1 < stages.len() {
        match replacement(&stages[position..], parse)? {
            // A replacement may depend on three stages (`$lookup`, `$unwind`, `$match`), so the two stages before the new ones are
            // tried again.
            Some((count, others)) => {
                stages.splice(position..position + count, others);
                position = position.saturating_sub(2);
            }
            None => position += 1,
        }
    }
    joins::narrowed(stages, parse)
}

fn is_match(stage: &Stage) -> bool {
    matches!(stage.operation.shape(), Shape::Match(_))
}

/// Returns how many of the first stages are replaced, and the stages that replace them; None if they stay.
fn replacement(stages: &[Stage], parse: ParseStage<'_>) -> Result<Option<(usize, Vec<Stage>)>> {
    let [first, second, ..] = stages else { return Ok(None) };
    // Combines all adjacent filters at once, so that the time is proportional to their number.
    let filters = stages.iter().take_while(|stage| is_match(stage));
    if filters.clone().count() > 1 {
        let mut parts = Vec::new();
        filters.clone().for_each(|filter| conditions(&filter.argument, &mut parts));
        let filter = if parts.is_empty() { Vec::new() } else { vec![parse(&json!({"$match": joined(parts)}))?] };
        return Ok(Some((filters.count(), filter)));
    }
    match joins::replacement(stages, parse)? {
        Some(replaced) => Ok(Some(replaced)),
        None => Ok(of_two(first, second, parse)?.map(|others| (2, others))),
    }
}

/// Returns the stages that replace two adjacent ones; None if they stay.
fn of_two(first: &Stage, second: &Stage, parse: ParseStage<'_>) -> Result<Option<Vec<Stage>>> {
    let limit = |most: u64| parse(&json!({"$limit": most}));
    let skip = |count: u64| parse(&json!({"$skip": count}));
    Ok(match (first.operation.shape(), second.operation.shape()) {
        (_, Shape::Match(_)) if !first.operator.is_stateful && !first.operator.comes_first => {
            ahead(first, second, parse, &|_, _| true)?
        }
        (Shape::Partitions(partitioning), Shape::Match(_)) => {
            // Only conditions that match all documents of a partition, or none, may move.
            let is_by_partition = |part: &Json, parsed: &Stage| {
                let read = parsed.operation.fields().read.unwrap_or_default();
                let paths: Vec<&str> = read.iter().map(String::as_str).collect();
                is_comparison(part) && partitioning.determines(&paths)
            };
            ahead(first, second, parse, &is_by_partition)?
        }
        (Shape::Limit(one), Shape::Limit(other)) => Some(vec![limit(one.min(other))?]),
        (Shape::Skip(one), Shape::Skip(other)) => match one.checked_add(other).filter(|sum| is_count(*sum)) {
            Some(sum) => Some(vec![skip(sum)?]),
            None => None,
        },
        (Shape::Skip(count), Shape::Limit(most)) => match most.checked_add(count).filter(|sum| is_count(*sum)) {
            Some(sum) => Some(vec![limit(sum)?, first.clone()]),
            None => None,
        },
        (_, Shape::Limit(_) | Shape::Skip(_)) if first.operator.one_to_one && first.operator.keeps_order => {
            Some(vec![second.clone(), first.clone()])
        }
        _ => None,
    })
}

/// True if `$limit` and `$skip` accept the number.
fn is_count(count: u64) -> bool {
    i64::try_from(count).is_ok()
}

/// True for a condition that compares a field with scalars other than null. Like a partition's key, such a condition treats equal values
/// of different types alike, and null like a missing field, so it matches all documents of a partition or none.
fn is_comparison(condition: &Json) -> bool {
    let is_scalar = |value: &Json| match ext_json::from_json(value) {
        Ok(value) => {
            !matches!(value, Value::Null | Value::Undefined | Value::Array(_) | Value::Object(_) | Value::Regex(..))
        }
        Err(_) => false,
    };
    let compares = |(name, value): (&String, &Json)| match name.as_str() {
        "$eq" | "$gt" | "$gte" | "$lt" | "$lte" => is_scalar(value),
        "$in" => value.as_array().is_some_and(|values| values.iter().all(is_scalar)),
        _ => false,
    };
    condition.as_object().is_some_and(|fields| {
        fields.iter().all(|(name, value)| {
            !name.starts_with('$')
                && (is_scalar(value) || value.as_object().is_some_and(|all| all.iter().all(compares)))
        })
    })
}

/// Moves the conditions of a `$match` that read no field which the stage `first` writes, and that `may_move` accepts, ahead of `first`.
/// None if there are no such conditions.
fn ahead(
    first: &Stage,
    filter: &Stage,
    parse: ParseStage<'_>,
    may_move: &dyn Fn(&Json, &Stage) -> bool,
) -> Result<Option<Vec<Stage>>> {
    let written = first.operation.fields().written;
    let mut parts = Vec::new();
    conditions(&filter.argument, &mut parts);
    let (mut moving, mut staying) = (Vec::new(), Vec::new());
    for part in parts {
        let parsed = parse(&json!({"$match": part}))?;
        // A random condition stays: ahead of `$unwind`, for example, it would choose from fewer documents.
        let moves = !is_random(&part) && stays(&parsed, &written) && may_move(&part, &parsed);
        if moves { moving.push(part) } else { staying.push(part) }
    }
    if moving.is_empty() {
        return Ok(None);
    }
    let mut stages = vec![parse(&json!({"$match": joined(moving)}))?, first.clone()];
    if !staying.is_empty() {
        stages.push(parse(&json!({"$match": joined(staying)}))?);
    }
    Ok(Some(stages))
}

/// True if a filter reads only fields that are not written.
fn stays(filter: &Stage, written: &Written) -> bool {
    filter.operation.fields().read.is_some_and(|paths| paths.iter().all(|path| written.keeps(path)))
}
