//! `$fill`: gives values to fields that are null or missing. It is replaced by `$setWindowFields` for a `method`, and by
//! `$addFields` for a `value`.

use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::stage::operation::{Parsed, Parser, given};
use crate::values::document::ext_json;
use crate::values::path;
use serde_json::{Map, Value as Json, json};

pub(in crate::query::stage) fn fill(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let known = ["partitionBy", "partitionByFields", "sortBy", "output"];
    let fields = parser.named(json, &known, [Kind::FailedToParse, Kind::UnknownOption])?;
    let output = match fields.get("output") {
        None => bail!(40414, "BSON field '$fill.output' is missing but a required field"),
        Some(Json::Object(output)) => output,
        Some(_) => return Err(wrong_type("output", "object")),
    };
    ensure!(
        !output.is_empty(),
        6050203,
        "The output field in '$fill' must contain an object with at least one element"
    );
    let (windows, added) = windows_and_added(output)?;
    let partition_by = partition_by(fields)?;
    if let Some(sort) = given(fields, "sortBy")
        && ext_json::ordered(sort).is_none()
    {
        return Err(wrong_type("sortBy", "object").with_hint(ext_json::ORDER_HINT));
    }
    let mut stages = Vec::new();
    if !windows.is_empty() {
        let mut window = Map::from_iter([("output".to_owned(), Json::Object(windows))]);
        window.extend(partition_by.map(|json| ("partitionBy".to_owned(), json)));
        window.extend(given(fields, "sortBy").map(|json| ("sortBy".to_owned(), json.clone())));
        stages.push(json!({"$setWindowFields": window}));
    }
    if !added.is_empty() {
        stages.push(json!({"$addFields": added}));
    }
    Ok(Parsed::Many(stages))
}

/// The fields that `$setWindowFields` gives, and those that `$addFields` gives.
fn windows_and_added(output: &Map<String, Json>) -> Result<(Map<String, Json>, Map<String, Json>)> {
    let (mut windows, mut added) = (Map::new(), Map::new());
    for (field, specification) in output {
        path::check_field_path(field)?;
        let Some(specification) = ext_json::document(specification) else {
            bail!(6050200, "Each fill output specification must be an object with exactly one field")
        };
        if let Some(unknown) = specification.keys().find(|name| !["method", "value"].contains(&name.as_str())) {
            bail!(Kind::UnknownOption, "BSON field '$fill.{unknown}' is an unknown field.");
        }
        let own = format!("${field}");
        match (specification.get("method"), specification.get("value")) {
            (Some(_), Some(_)) => bail!(
                6050201,
                "Each fill output specification must have exactly one of 'method' or 'value' fields, not both"
            ),
            (Some(Json::String(method)), None) => {
                let function = match method.as_str() {
                    "locf" => "$locf",
                    "linear" => "$linearFill",
                    _ => bail!(6050202, "Method must be either locf or linear"),
                };
                windows.insert(field.clone(), json!({function: own}));
            }
            (Some(_), None) => return Err(wrong_type("output.method", "string")),
            (None, Some(value)) => {
                added.insert(field.clone(), json!({"$ifNull": [own, value]}));
            }
            (None, None) => {}
        }
    }
    Ok((windows, added))
}

fn wrong_type(field: &str, expected: &str) -> crate::error::Error {
    error!(Kind::TypeMismatch, "BSON field '$fill.{field}' is the wrong type, expected type '{expected}'")
}

/// The expression of the partition's key.
fn partition_by(fields: &Map<String, Json>) -> Result<Option<Json>> {
    match (given(fields, "partitionBy"), given(fields, "partitionByFields")) {
        (Some(_), Some(_)) => {
            bail!(6050204, "Maximum one of 'partitionBy' and 'partitionByFields can be specified in '$fill'")
        }
        (Some(json @ (Json::String(_) | Json::Object(_))), None) => Ok(Some(json.clone())),
        (Some(_), None) => Err(wrong_type("partitionBy", "string or object")),
        (None, Some(names)) => {
            let names = names.as_array().ok_or_else(|| wrong_type("partitionByFields", "array"))?;
            // Positions serve as field names, because the paths may contain dots.
            let named = names.iter().enumerate().map(|(position, name)| {
                let name = name.as_str().ok_or_else(|| wrong_type("partitionByFields", "array of strings"))?;
                path::check_field_path(name)?;
                Ok((position.to_string(), json!(format!("${name}"))))
            });
            Ok(Some(Json::Object(named.collect::<Result<_>>()?)))
        }
        (None, None) => Ok(None),
    }
}
