//! Converts single conditions, with the values of their operands, to MongoDB's filters. The header of `condition` tells why the filters are
//! right.

use super::column::{DAY_MS, EPOCH_MS};
use super::matching::Matching;
use super::options;
use crate::pg::fdw::clause::Operator;
use crate::pg::fdw::value::SqlValue;
use docshard_core::values::document::MAX_RECURSION;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::raw;
use docshard_core::values::document::value::Value;
use serde_json::{Value as Json, json};

/// A condition with the values of its operands.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// the condition may be true for every row, so no filter is needed
    Always,
    /// the condition is true for no row
    Never,
    /// the filter selects at least the rows for which the condition is true
    Filter(Json),
}

use Bound::{Always, Never};

pub fn contains_value(path: &str, value: &SqlValue) -> Bound {
    match value {
        // Conversion of a value recurses, so a deeply nested one gets no filter, and PostgreSQL evaluates the condition alone.
        SqlValue::Jsonb(bytes) if !raw::nests_within(bytes, MAX_RECURSION) => Always,
        SqlValue::Jsonb(bytes) => {
            let mut left = MAX_CONTAINED;
            contains(path, &Value::from_raw(raw::root(bytes)), &mut left)
        }
        SqlValue::Unknown(number) => Bound::Filter(json!({"$contains": format!("${number}")})),
        _ => Always,
    }
}

pub fn has_key(value: &SqlValue) -> Bound {
    match value {
        SqlValue::Text(key) => {
            let mut path = String::new();
            push_step(&mut path, key).map_or(Always, |()| Bound::Filter(json!({path: {"$exists": true}})))
        }
        SqlValue::Unknown(number) => Bound::Filter(json!({format!("${number}"): {"$exists": true}})),
        _ => Always,
    }
}

/// Adds a field's name to a path. None if the name has another meaning in MongoDB's paths, or if PostgreSQL takes it for a position in an
/// array, and MongoDB does not.
pub fn push_step(path: &mut String, step: &str) -> Option<()> {
    let is_other_number = step.starts_with(|c: char| c.is_whitespace() || c == '-' || c == '+')
        || step.starts_with('0') && step.len() > 1;
    if step.contains('.') || is_other_number || options::check_path(step).is_err() {
        return None;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(step);
    Some(())
}

/// The filter of all conditions together. Conditions on different fields become one object, and so do several operators on one field.
pub fn all(bounds: impl Iterator<Item = Bound>) -> Bound {
    let mut filters: Vec<Json> = Vec::new();
    for bound in bounds {
        match bound {
            Always => {}
            Never => return Never,
            Bound::Filter(filter) => filters.push(filter),
        }
    }
    if filters.is_empty() {
        return Always;
    }
    let mut merged = serde_json::Map::new();
    for filter in &filters {
        for (name, value) in filter.as_object().into_iter().flatten() {
            let is_operators = value.is_object() && !is_extended(value);
            let value = if is_operators || name.starts_with('$') { value.clone() } else { json!({"$eq": value}) };
            match merged.get_mut(name) {
                None => {
                    merged.insert(name.clone(), value);
                }
                Some(Json::Object(known)) if !name.starts_with('$') && joinable(known, &value) => {
                    known.extend(value.as_object().cloned().unwrap_or_default());
                }
                Some(_) => return Bound::Filter(json!({"$and": filters})),
            }
        }
    }
    for value in merged.values_mut() {
        if let Some(object) = value.as_object()
            && object.len() == 1
            && let Some(equal) = object.get("$eq")
        {
            *value = equal.clone();
        }
    }
    Bound::Filter(Json::Object(merged))
}

/// True for a value in Extended JSON, such as `{"$oid": …}`; false for operators.
fn is_extended(json: &Json) -> bool {
    json.get("$regex").is_none() && ext_json::from_json(json).is_ok_and(|value| !matches!(value, Value::Object(_)))
}

/// True if the two objects have no operator in common, so that they can be merged.
fn joinable(known: &serde_json::Map<String, Json>, value: &Json) -> bool {
    value.as_object().is_some_and(|value| !value.keys().any(|name| known.contains_key(name)))
}

pub fn any(bounds: impl Iterator<Item = Bound>) -> Bound {
    let mut filters: Vec<Json> = Vec::new();
    for bound in bounds {
        match bound {
            Always => return Always,
            Never => {}
            Bound::Filter(filter) => filters.push(filter),
        }
    }
    match filters.len() {
        0 => Never,
        1 => Bound::Filter(filters.remove(0)),
        _ => Bound::Filter(json!({"$or": filters})),
    }
}

pub fn not_null(path: &str) -> Json {
    json!({path: {"$ne": null}})
}

fn name(operator: Operator) -> &'static str {
    match operator {
        Operator::Less => "$lt",
        Operator::LessOrEqual => "$lte",
        Operator::Equal => "$eq",
        Operator::GreaterOrEqual => "$gte",
        Operator::Greater => "$gt",
        Operator::NotEqual => "$ne",
    }
}

/// A comparison with a value that MongoDB compares as SQL does.
fn plain(path: &str, operator: Operator, value: Json) -> Bound {
    Bound::Filter(match operator {
        Operator::Equal => json!({path: {"$eq": value}}),
        Operator::NotEqual => json!({path: {"$nin": [value, null]}}),
        _ => json!({path: {name(operator): value}}),
    })
}

/// An equality with a value that no value of the column equals: `=` selects nothing, `<>` all that is not NULL.
fn different(path: &str, operator: Operator) -> Bound {
    match operator {
        Operator::NotEqual => Bound::Filter(not_null(path)),
        _ => Never,
    }
}

pub fn compare(path: &str, operator: Operator, value: &SqlValue, matching: Matching) -> Bound {
    if let SqlValue::Unknown(number) = value {
        return plain(path, operator, format!("${number}").into());
    }
    match (matching, value) {
        (Matching::Text, SqlValue::Text(text)) => plain(path, operator, text.clone().into()),
        (Matching::Bool, SqlValue::Bool(value)) => plain(path, operator, (*value).into()),
        (Matching::Uuid, SqlValue::Uuid(bytes)) => {
            plain(path, operator, ext_json::to_json(&Value::Binary(4, bytes.to_vec())))
        }
        (Matching::Integer { least, greatest }, SqlValue::Int(value)) => {
            let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
            if is_equality && !(least..=greatest).contains(value) {
                return different(path, operator);
            }
            plain(path, operator, (*value).into())
        }
        (Matching::ObjectId, SqlValue::Text(_) | SqlValue::Bytes(_)) => match object_id(value) {
            Some(id) => plain(path, operator, id),
            None => different(path, operator),
        },
        (Matching::Timestamp, SqlValue::Timestamp(micros)) => {
            let is_infinite = matches!(*micros, i64::MIN | i64::MAX);
            date(path, operator, *micros, is_infinite, |micros| (micros.div_euclid(1000), micros.rem_euclid(1000) != 0))
        }
        (Matching::Date, SqlValue::Date(days)) => {
            let is_infinite = matches!(*days, i32::MIN | i32::MAX);
            let days = i64::from(*days);
            date(path, operator, days, is_infinite, |days| (days * DAY_MS, false))
        }
        (Matching::Float, SqlValue::Float(value)) => number(path, operator, *value),
        (Matching::Numeric, SqlValue::Numeric(text)) => {
            if operator == Operator::Equal
                && let Some(integer) = text.parse::<i64>().ok().filter(|integer| integer.unsigned_abs() < 1 << 53)
            {
                return plain(path, operator, integer.into());
            }
            match text.as_str() {
                "NaN" => number(path, operator, f64::NAN),
                // A number beyond the range of double is parsed as infinite. The filter then selects from the largest doubles on.
                text => text.parse().map_or(Always, |value| number(path, operator, value)),
            }
        }
        _ => Always,
    }
}

/// The ObjectId that an operand stands for. None if it is none, or not in the form in which the column shows ObjectIds: then no
/// value of the column equals it.
fn object_id(value: &SqlValue) -> Option<Json> {
    let text = match value {
        SqlValue::Bytes(bytes) if bytes.len() == 12 => super::column::hex(bytes),
        SqlValue::Text(text) => text.clone(),
        _ => return None,
    };
    let is_hex = text.len() == 24 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| json!({"$oid": text}))
}

/// A comparison with a date. `millis` converts to milliseconds since 2000, rounded down; it also returns true if that lost
/// microseconds.
fn date(path: &str, operator: Operator, at: i64, is_infinite: bool, millis: impl Fn(i64) -> (i64, bool)) -> Bound {
    use Operator::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    if is_infinite {
        let is_all = match operator {
            NotEqual => true,
            Less | LessOrEqual => at > 0,
            Greater | GreaterOrEqual => at < 0,
            Equal => false,
        };
        return if is_all { Bound::Filter(not_null(path)) } else { Never };
    }
    let (floor, is_more) = millis(at);
    let value = |millis: i64| ext_json::to_json(&Value::Date(millis + EPOCH_MS));
    match operator {
        Equal | NotEqual if is_more => different(path, operator),
        Less | GreaterOrEqual if is_more => plain(path, operator, value(floor + 1)),
        _ => plain(path, operator, value(floor)),
    }
}

/// A filter that matches at least the numbers for which the comparison as float8 or numeric is true. Conversions round, so the filter's
/// range is a few units in the last place wider.
fn number(path: &str, operator: Operator, value: f64) -> Bound {
    let double = |value: f64| ext_json::to_json(&Value::Number(Number::Double(value)));
    let nan = || double(f64::NAN);
    let (lo, hi) = around(value);
    Bound::Filter(match operator {
        Operator::Equal if value.is_nan() => json!({path: {"$eq": nan()}}),
        Operator::Equal => json!({path: {"$gte": double(lo), "$lte": double(hi)}}),
        Operator::NotEqual => not_null(path),
        Operator::Less | Operator::LessOrEqual if value.is_nan() => not_null(path),
        Operator::Less | Operator::LessOrEqual => json!({path: {"$lte": double(hi)}}),
        Operator::Greater if value.is_nan() => return Never,
        Operator::GreaterOrEqual if value.is_nan() => json!({path: {"$eq": nan()}}),
        Operator::Greater | Operator::GreaterOrEqual => {
            json!({"$or": [{path: {"$gte": double(lo)}}, {path: {"$eq": nan()}}]})
        }
    })
}

fn around(value: f64) -> (f64, f64) {
    (0..4).fold((value, value), |(lo, hi), _| (lo.next_down(), hi.next_up()))
}

pub fn member(path: &str, is_negated: bool, items: &[Option<SqlValue>], matching: Matching) -> Bound {
    if is_negated {
        // `<> ALL` of an array with NULL is never true; of an empty array it is always true.
        if items.is_empty() {
            return Always;
        }
        if items.iter().any(Option::is_none) {
            return Never;
        }
        return all_of(items.iter().flatten().map(|item| compare(path, Operator::NotEqual, item, matching)), path);
    }
    let mut equal = Vec::new();
    let mut others = Vec::new();
    for item in items.iter().flatten() {
        match compare(path, Operator::Equal, item, matching) {
            Always => return Always,
            Never => {}
            Bound::Filter(filter) => match filter.get(path).and_then(|condition| condition.get("$eq")) {
                // In `$in`, names that start with `$` would be operators.
                Some(value) if ext_json::document(value).is_none() => equal.push(value.clone()),
                _ => others.push(Bound::Filter(filter)),
            },
        }
    }
    if !equal.is_empty() {
        others.push(Bound::Filter(json!({path: {"$in": equal}})));
    }
    any(others.into_iter())
}

/// The filter of several `<>`: one `$nin` with all values that they exclude.
fn all_of(bounds: impl Iterator<Item = Bound>, path: &str) -> Bound {
    let mut excluded = vec![Json::Null];
    for bound in bounds {
        match bound {
            Always | Never => return bound,
            Bound::Filter(filter) => {
                let values = filter.get(path).and_then(|condition| condition.get("$nin")).and_then(Json::as_array);
                excluded.extend(values.into_iter().flatten().filter(|value| !value.is_null()).cloned());
            }
        }
    }
    Bound::Filter(json!({path: {"$nin": excluded}}))
}

/// The largest number of a prefix's characters that are used in a filter.
const MAX_PREFIX: usize = 1000;

/// The filter for `LIKE`: strings that begin with the pattern's characters before its first wildcard.
pub fn like(path: &str, pattern: &str) -> Bound {
    let mut prefix = String::new();
    let mut characters = pattern.chars();
    let mut is_whole = true;
    for length in 0.. {
        let Some(character) = characters.next() else { break };
        match character {
            _ if length == MAX_PREFIX => {
                is_whole = false;
                break;
            }
            '%' | '_' => {
                is_whole = false;
                break;
            }
            '\\' => match characters.next() {
                Some(escaped) => prefix.push(escaped),
                // The pattern ends with an escape character, which is an error that PostgreSQL reports.
                None => return Always,
            },
            other => prefix.push(other),
        }
    }
    if is_whole {
        return Bound::Filter(json!({path: {"$eq": prefix}}));
    }
    if prefix.is_empty() {
        return Bound::Filter(not_null(path));
    }
    let mut end = prefix.clone();
    while let Some(last) = end.pop() {
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            end.push(next);
            return Bound::Filter(json!({path: {"$gte": prefix, "$lt": end}}));
        }
    }
    Bound::Filter(json!({path: {"$gte": prefix}}))
}

/// The largest number of values in the operand of `@>` that are used in a filter.
const MAX_CONTAINED: usize = 32;

/// The filter for at least the documents whose value at a path contains this value, as `@>` means it. `left`: how many more values may be
/// used.
fn contains(path: &str, value: &Value, left: &mut usize) -> Bound {
    if *left == 0 {
        return Always;
    }
    *left -= 1;
    match value {
        Value::Object(fields) => {
            if fields.is_empty() {
                return if path.is_empty() { Always } else { Bound::Filter(json!({path: {"$exists": true}})) };
            }
            let mut bounds = Vec::new();
            for (name, value) in fields.iter() {
                let mut inner = path.to_owned();
                if push_step(&mut inner, name).is_some() {
                    bounds.push(contains(&inner, value, left));
                }
            }
            all(bounds.into_iter())
        }
        // A document as a whole contains no array and no scalar, so PostgreSQL decides.
        _ if path.is_empty() => Always,
        Value::Array(items) => {
            let bounds = items.iter().map(|item| match item {
                Value::Array(_) => Always,
                item => contains(path, item, left),
            });
            match all(bounds.collect::<Vec<_>>().into_iter()) {
                Always => Bound::Filter(json!({path: {"$exists": true}})),
                narrower => narrower,
            }
        }
        Value::Null
        | Value::Bool(_)
        | Value::String(_)
        | Value::Number(Number::Int(..))
        | Value::Date(_)
        | Value::ObjectId(_)
        | Value::Binary(..) => Bound::Filter(json!({path: {"$eq": ext_json::to_json(value)}})),
        // Filters refuse these values, or compare them in another way than jsonb.
        _ => Bound::Filter(json!({path: {"$exists": true}})),
    }
}

/// The filter for at least the documents whose value at a path has this text, or is this number after a cast (`is_number`).
pub fn text(path: &str, operator: Operator, value: &SqlValue, is_number: bool) -> Bound {
    if let SqlValue::Unknown(number) = value {
        return Bound::Filter(json!({path: {name(operator): format!("${number}")}}));
    }
    let exists = || Bound::Filter(json!({path: {"$exists": true}}));
    if operator == Operator::NotEqual {
        return exists();
    }
    if is_number {
        let double = match value {
            SqlValue::Int(value) => *value as f64,
            SqlValue::Float(value) => *value,
            SqlValue::Numeric(text) if text == "NaN" => f64::NAN,
            SqlValue::Numeric(text) => text.parse().unwrap_or(f64::NAN),
            _ => return exists(),
        };
        // PostgreSQL also casts strings to numbers, so the filter selects all strings.
        let strings = Bound::Filter(json!({path: {"$type": "string"}}));
        return any([number(path, operator, double), strings].into_iter());
    }
    let SqlValue::Text(text) = value else { return exists() };
    if text.starts_with(['{', '[']) {
        return exists();
    }
    let mut equal: Vec<Json> = vec![text.clone().into()];
    equal.extend(text.parse::<bool>().ok().map(Json::from));
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(integer), _) => equal.push(integer.into()),
        (Err(_), Ok(value)) if value.is_finite() => {
            let strings = Bound::Filter(json!({path: {"$in": equal}}));
            return any([strings, number(path, Operator::Equal, value)].into_iter());
        }
        // Filters cannot compare a number beyond the range of double.
        (Err(_), Ok(_)) if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => return exists(),
        _ => {}
    }
    Bound::Filter(if equal.len() == 1 {
        json!({path: {"$eq": equal.remove(0)}})
    } else {
        json!({path: {"$in": equal}})
    })
}
