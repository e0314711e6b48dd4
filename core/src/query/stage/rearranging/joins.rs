//! Rearranges stages around those that read other collections, so that less is read and joined.
//!
//! * A stage after `$unionWith` that processes each document independently runs on both inputs instead: at the end of the pipeline over
//!   the other collection, and ahead of `$unionWith`, where shards may run it.
//! * A `$project` at the end of the pipeline of `$unionWith` removes fields that no later stage reads.
//! * A `$sort` by fields that `$lookup` or `$graphLookup` does not write moves ahead of that stage. A `$limit` after it can then move, too.
//! * If `$unwind` and `$match` follow a `$lookup`, conditions that read only the unwound results move into the lookup's pipeline.

use super::conjunction::{conditions, joined};
use crate::error::Result;
use crate::query::sort::Sort;
use crate::query::stage::needed::{needed, projection};
use crate::query::stage::operation::{Merge, ParseStage, Shape, Stage};
use serde_json::{Map, Value as Json, json};

/// Stages move into a pipeline over another collection only up to this length. Each move parses that pipeline again, so the limit bounds
/// the time of rearranging.
const MAX_INNER: usize = 32;

/// Returns how many of the first stages are replaced, and the stages that replace them; None if they stay.
pub(in crate::query::stage) fn replacement(
    stages: &[Stage],
    parse: ParseStage<'_>,
) -> Result<Option<(usize, Vec<Stage>)>> {
    let [first, second, ..] = stages else { return Ok(None) };
    match (first.operation.shape(), second.operation.shape()) {
        (Shape::Union(_), _) => on_both_sides(stages, parse),
        (Shape::Lookup(_), Shape::Unwind(..)) => filtered(stages, parse),
        (_, Shape::Sort(sort)) if may_follow(first, sort) => Ok(Some((2, vec![second.clone(), first.clone()]))),
        _ => Ok(None),
    }
}

/// Moves the stages that follow a `$unionWith`, and process each document independently, ahead of it and to the end of its pipeline.
fn on_both_sides(stages: &[Stage], parse: ParseStage<'_>) -> Result<Option<(usize, Vec<Stage>)>> {
    let is_of_one = |stage: &&Stage| stage.operator.merge == Merge::Union && !stage.operation.needs_router();
    let union = &stages[0];
    let moving: Vec<Stage> = stages[1..].iter().take(room(union)).take_while(is_of_one).cloned().collect();
    if moving.is_empty() {
        return Ok(None);
    }
    let union = with_inner(union, moving.iter().map(Stage::to_json), parse)?;
    Ok(Some((moving.len() + 1, moving.into_iter().chain([union]).collect())))
}

/// True if a sort may run ahead of a stage that reads other collections.
fn may_follow(stage: &Stage, sort: &Sort) -> bool {
    let operator = stage.operator;
    let written = stage.operation.fields().written;
    let is_free = operator.one_to_one && operator.keeps_order && stage.operation.needs_router();
    is_free && sort.fields.iter().all(|(path, _)| written.keeps(path))
}

/// Moves conditions of a filter on the unwound results of a `$lookup` into the lookup's pipeline.
///
/// Not with `preserveNullAndEmptyArrays` or `includeArrayIndex`, which depend on the results before the filter.
fn filtered(stages: &[Stage], parse: ParseStage<'_>) -> Result<Option<(usize, Vec<Stage>)>> {
    let [lookup, unwind, filter, ..] = stages else { return Ok(None) };
    let (Shape::Lookup(target), Shape::Unwind(path, options), Shape::Match(_)) =
        (lookup.operation.shape(), unwind.operation.shape(), filter.operation.shape())
    else {
        return Ok(None);
    };
    if path != target || options.preserves || options.index.is_some() || room(lookup) == 0 {
        return Ok(None);
    }
    let mut parts = Vec::new();
    conditions(&filter.argument, &mut parts);
    let (mut moving, mut staying) = (Vec::new(), Vec::new());
    for part in parts {
        match below(&part, target) {
            Some(inner) => moving.push(inner),
            None => staying.push(part),
        }
    }
    if moving.is_empty() {
        return Ok(None);
    }
    let mut others = vec![with_inner(lookup, [json!({"$match": joined(moving)})], parse)?, unwind.clone()];
    if !staying.is_empty() {
        others.push(parse(&json!({"$match": joined(staying)}))?);
    }
    Ok(Some((3, others)))
}

/// Returns the equivalent of `filter` for the document at `path`: `{"path.a": 1}` becomes `{"a": 1}`. None if `filter` reads anything else.
fn below(filter: &Json, path: &str) -> Option<Json> {
    let inner = |(name, condition): (&String, &Json)| match (name.as_str(), condition) {
        ("$and" | "$or" | "$nor", Json::Array(filters)) => {
            let filters: Option<Json> = filters.iter().map(|filter| below(filter, path)).collect();
            Some((name.clone(), filters?))
        }
        _ => {
            let rest = name.strip_prefix(path)?.strip_prefix('.')?;
            let is_field = !rest.is_empty() && !rest.starts_with('$');
            is_field.then(|| (rest.to_owned(), condition.clone()))
        }
    };
    filter.as_object()?.iter().map(inner).collect::<Option<Map<_, _>>>().map(Json::Object)
}

/// Appends to the pipelines of `$unionWith` a `$project` to the fields that later stages need, unless the pipeline's last stage already
/// names all fields of its results.
pub(in crate::query::stage) fn narrowed(mut stages: Vec<Stage>, parse: ParseStage<'_>) -> Result<Vec<Stage>> {
    for position in 0..stages.len() {
        if let Shape::Union(true) = stages[position].operation.shape()
            && let Some(fields) = needed(&stages[position + 1..])
        {
            let fields: Vec<String> = fields.into_iter().collect();
            stages[position] = with_inner(&stages[position], [json!({"$project": projection(&fields)})], parse)?;
        }
    }
    Ok(stages)
}

/// How many stages may still move into a stage's pipeline.
fn room(stage: &Stage) -> usize {
    let inner = stage.argument.get("pipeline").and_then(Json::as_array).map_or(0, Vec::len);
    MAX_INNER.saturating_sub(inner)
}

/// Returns the stage with `inner` appended to its pipeline over another collection.
fn with_inner(stage: &Stage, inner: impl IntoIterator<Item = Json>, parse: ParseStage<'_>) -> Result<Stage> {
    let mut argument = match &*stage.argument {
        Json::Object(fields) => fields.clone(),
        collection => Map::from_iter([("coll".to_owned(), collection.clone())]),
    };
    if let Json::Array(pipeline) = argument.entry("pipeline").or_insert_with(|| json!([])) {
        pipeline.extend(inner);
    }
    parse(&json!({stage.operator.name: argument}))
}
