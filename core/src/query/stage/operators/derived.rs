//! Stages that are replaced by other stages when they are parsed: `$count`, `$sortByCount`, `$bucket`.

use crate::budget;
use crate::error::{Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::stage::operation::{Parsed, Parser};
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use crate::values::order::{Class, compare_views};
use crate::values::view::View;
use serde_json::{Map, Value as Json, json};
use std::cmp::Ordering;

pub(in crate::query::stage) fn count(_: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let Json::String(name) = json else { bail!(40156, "the count field must be a non-empty string") };
    ensure!(!name.is_empty(), 40157, "the count field must be a non-empty string");
    ensure!(!name.starts_with('$'), 40158, "the count field cannot be a $-prefixed path");
    ensure!(!name.contains('\0'), 40159, "the count field cannot contain a null byte");
    ensure!(!name.contains('.'), 40160, "the count field cannot contain '.'");
    ensure!(name != "_id", 9039800, "the count field cannot be '_id'");
    Ok(Parsed::Many(vec![json!({"$group": {"_id": null, name: {"$sum": 1}}}), json!({"$project": {"_id": 0}})]))
}

pub(in crate::query::stage) fn sort_by_count(_: &Parser<'_>, json: &Json) -> Result<Parsed> {
    match json {
        Json::Object(fields) if ext_json::is_document(fields) => ensure!(
            fields.keys().next().is_some_and(|name| name.starts_with('$')),
            40147,
            "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
        ),
        Json::String(text) => {
            ensure!(
                text.starts_with('$'),
                40148,
                "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
            );
        }
        _ => bail!(40149, "the sortByCount field must be specified as a string or as an object"),
    }
    Ok(Parsed::Many(vec![json!({"$group": {"_id": json, "count": {"$sum": 1}}}), json!({"$sort": {"count": -1}})]))
}

/// The variable that holds the value of `groupBy`.
const VALUE: &str = "value";

pub(in crate::query::stage) fn bucket(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let Some(fields) = ext_json::document(json) else { bail!(40201, "Argument to $bucket stage must be an object") };
    for (name, value) in fields {
        match name.as_str() {
            "groupBy" => ensure!(
                is_group_by(value),
                40202,
                "The $bucket 'groupBy' field must be defined as a $-prefixed path or an expression, but found: {value}"
            ),
            "boundaries" => {
                ensure!(value.is_array(), 40200, "The $bucket 'boundaries' field must be an array, but found: {value}");
            }
            "output" => {
                output(Some(value), 40196)?;
            }
            "default" => {}
            unknown => bail!(40197, "Unrecognized option to $bucket: {unknown}."),
        }
    }
    let (Some(by), Some(Json::Array(boundaries))) = (fields.get("groupBy"), fields.get("boundaries")) else {
        bail!(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.")
    };
    let default = fields.get("default");
    check_boundaries(boundaries, default, parser.environment)?;
    let variable = format!("$${VALUE}");
    let branches = boundaries.windows(2).map(|pair| {
        budget::step();
        json!({
            "case": {"$and": [{"$gte": [variable, pair[0]]}, {"$lt": [variable, pair[1]]}]},
            "then": pair[0],
        })
    });
    let mut switch = Map::from_iter([("branches".to_owned(), branches.collect())]);
    switch.extend(default.map(|default| ("default".to_owned(), default.clone())));
    let mut group = Map::new();
    group.insert("_id".to_owned(), json!({"$let": {"vars": {VALUE: by}, "in": {"$switch": switch}}}));
    let output = output(fields.get("output"), 40196)?;
    ensure!(!output.contains_key("_id"), 15948, "$bucket: the field '_id' of 'output' is the bucket's own");
    group.extend(output);
    Ok(Parsed::Many(vec![json!({"$group": group}), json!({"$sort": {"_id": 1}})]))
}

/// Checks that the boundaries are ascending constants of one type, and that the default is outside of them.
fn check_boundaries(boundaries: &[Json], default: Option<&Json>, environment: &Environment) -> Result<()> {
    let values = boundaries.iter().map(|boundary| {
        constant(boundary, environment)?
            .ok_or_else(|| error!(40191, "The $bucket 'boundaries' field must be an array of constant values"))
    });
    let values = values.collect::<Result<Vec<Value>>>()?;
    ensure!(values.len() > 1, 40192, "The $bucket 'boundaries' field must have at least 2 values");
    for pair in values.windows(2) {
        let same_type = class(&pair[0]) == class(&pair[1]);
        ensure!(same_type, 40193, "All values in the 'boundaries' option to $bucket must have the same type");
        let ascends = compare(&pair[0], &pair[1], environment) == Ordering::Less;
        ensure!(ascends, 40194, "The 'boundaries' option to $bucket must be sorted");
    }
    let (first, last) = (&values[0], &values[values.len() - 1]);
    if let Some(default) = default {
        let value = constant(default, environment)?;
        let value = value.ok_or_else(|| error!(40195, "The $bucket 'default' field must be a constant expression"))?;
        ensure!(
            class(&value) != class(first)
                || compare(&value, first, environment).is_lt()
                || compare(&value, last, environment).is_ge(),
            40199,
            "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the highest \
             boundary."
        );
    }
    Ok(())
}

/// True if `groupBy` may have this form: a `$`-prefixed path, or an object with an operator.
pub(in crate::query::stage) fn is_group_by(json: &Json) -> bool {
    match json {
        Json::String(text) => text.starts_with('$'),
        Json::Object(fields) => {
            fields.keys().next().is_some_and(|name| name.starts_with('$')) && ext_json::is_document(fields)
        }
        _ => false,
    }
}

/// Returns the accumulators in `output`, or a count by default. `code`: the error if `output` is not an object.
pub(in crate::query::stage) fn output(json: Option<&Json>, code: i32) -> Result<Map<String, Json>> {
    match json {
        None => Ok(default_output()),
        Some(Json::Object(fields)) if ext_json::is_document(fields) => Ok(fields.clone()),
        Some(other) => bail!(code, "The 'output' field must be an object, but found: {other}"),
    }
}

/// The default of `output`: a count of documents.
pub(in crate::query::stage) fn default_output() -> Map<String, Json> {
    Map::from_iter([("count".to_owned(), json!({"$sum": 1}))])
}

fn constant(json: &Json, environment: &Environment) -> Result<Option<Value>> {
    Ok(Expression::parse(json, environment)?.constant())
}

fn class(value: &Value) -> Class {
    View::of_value(value).class()
}

fn compare(a: &Value, b: &Value, environment: &Environment) -> Ordering {
    compare_views(&View::of_value(a), &View::of_value(b), environment.collator().map(|collator| &**collator))
}
