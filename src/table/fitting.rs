//! Builds aggregation expressions that test whether a stored value *fits* its column: it can be read as the column's SQL type.
//!
//! They are needed when shards group or write documents without returning rows. The filter of a condition selects the same documents as SQL
//! only where the values fit. Other values are an error when they are read as rows, so such a statement must find and exclude them.

use super::column::{Column, DATES, DAY_MS, EPOCH_MS, TIMESTAMPS};
use super::scan::CollectionScan;
use crate::catalog::cache;
use crate::pg::error::Result;
use crate::pg::fdw::value::Scalar;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use serde_json::{Value as Json, json};

/// The expression for the value of a column.
pub fn value_of(column: &Column) -> Json {
    format!("${}", column.path).into()
}

fn is_null(column: &Column) -> Json {
    json!({"$in": [{"$type": value_of(column)}, ["missing", "null"]]})
}

/// The expression that is true if a value fits its column. In a nullable column null and missing values fit, too. None if there is no
/// expression for the column's type.
pub fn fits(column: &Column) -> Option<Json> {
    if !column.is_scalar() || column.path.is_empty() {
        return None;
    }
    let value = value_of(column);
    let has_type = |name: &str| json!({"$eq": [{"$type": value}, name]});
    let date = |millis: i64| json!({"$literal": ext_json::to_json(&Value::Date(millis))});
    let between =
        |least: i64, greatest: i64| [json!({"$gte": [value, date(least)]}), json!({"$lte": [value, date(greatest)]})];
    let fits = match column.kind.scalar {
        Scalar::Bool => has_type("bool"),
        // No `$type` test is needed: in MongoDB's order only numbers are between two numbers.
        Scalar::Int2 | Scalar::Int4 | Scalar::Int8 => {
            let (least, greatest) = column.integers();
            json!({"$and": [{"$gte": [value, least]}, {"$lte": [value, greatest]}, {"$eq": [value, {"$trunc": value}]}]})
        }
        Scalar::Text | Scalar::Bytea if column.is_object_id => has_type("objectId"),
        Scalar::Text => match column.kind.length {
            None => has_type("string"),
            Some(most) => json!({"$and": [has_type("string"), {"$lte": [{"$strLenCP": value}, most]}]}),
        },
        Scalar::Date => {
            let [least, greatest] = between(DATES.start * DAY_MS + EPOCH_MS, (DATES.end - 1) * DAY_MS + EPOCH_MS);
            let is_midnight = json!({"$eq": [{"$mod": [{"$toLong": value}, DAY_MS]}, 0]});
            json!({"$and": [least, greatest, is_midnight]})
        }
        Scalar::Timestamp | Scalar::TimestampTz => {
            let millis = |micros: i64| micros.div_euclid(1000) + EPOCH_MS;
            let [least, greatest] = between(millis(TIMESTAMPS.start), millis(TIMESTAMPS.end - 1));
            json!({"$and": [least, greatest]})
        }
        _ => return None,
    };
    Some(if column.not_null { fits } else { json!({"$or": [fits, is_null(column)]}) })
}

/// Returns the columns of a scan whose values may not fit. A column is omitted if all of this holds: a condition proves that its values fit
/// (`Condition::proves`); it is `_id` or a field of the shard key, which cannot be arrays; its type has no maximum length.
pub fn unproven(scan: &CollectionScan) -> Result<Vec<&Column>> {
    let mut proven = Vec::new();
    if let Some(collection) = cache::find(&scan.layout().options.namespace)? {
        scan.conditions().for_each(|condition| condition.proves(&mut proven));
        let key: Vec<&str> = collection.key.fields.iter().map(|(path, _)| path.as_str()).collect();
        proven.retain(|path| *path == "_id" || key.contains(path));
        let proven: Vec<String> = proven.into_iter().map(str::to_owned).collect();
        let mut columns: Vec<&Column> = scan.columns().iter().collect();
        columns.retain(|column| column.kind.length.is_some() || !proven.contains(&column.path));
        return Ok(columns);
    }
    Ok(scan.columns().iter().collect())
}
