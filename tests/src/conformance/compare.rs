//! Compares answers with the expected ones: documents are compared as values.
//!
//! Numbers are compared by value and not by type, objects without the order of their fields, arrays in order. Both sides may have
//! any form of Extended JSON.

use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A value in a form in which equal values are equal texts.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

/// True if both are equal values.
pub fn same(a: &Value, b: &Value) -> bool {
    canonical(a) == canonical(b)
}

/// True if both lists have the same documents, optionally in the same order.
pub fn same_documents(a: &[Value], b: &[Value], ordered: bool) -> bool {
    let texts = |documents: &[Value]| {
        let mut texts: Vec<String> = documents.iter().map(canonical).collect();
        if !ordered {
            texts.sort_unstable();
        }
        texts
    };
    texts(a) == texts(b)
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => {
            let _ = write!(text, "{value}");
        }
        Value::Number(number) => write_number(&number.to_string(), text),
        Value::Array(elements) => {
            text.push('[');
            for element in elements {
                write_canonical(element, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(fields) => match extended(fields) {
            Some(Extended::Number(digits)) => write_number(&digits, text),
            Some(Extended::Other(value)) => {
                let _ = write!(text, "<{value}>");
            }
            None => {
                let mut names: Vec<&String> = fields.keys().collect();
                names.sort_unstable();
                text.push('{');
                for name in names {
                    let _ = write!(text, "{}:", Value::String(name.clone()));
                    write_canonical(&fields[name], text);
                    text.push(',');
                }
                text.push('}');
            }
        },
    }
}

/// Integers are compared exactly, other numbers as the nearest double: decimals to about 15 digits.
fn write_number(digits: &str, text: &mut String) {
    let _ = match digits.parse::<i64>() {
        Ok(integer) => write!(text, "{integer}"),
        Err(_) => match digits.parse::<f64>() {
            Ok(double) if double.fract() == 0.0 && double.abs() < 9e15 => write!(text, "{}", double as i64),
            Ok(double) if double.is_nan() => write!(text, "NaN"),
            // Decimals may have more digits than a double shows.
            Ok(double) => write!(text, "{double:.14e}"),
            Err(_) => write!(text, "?{digits}"),
        },
    };
}

enum Extended {
    Number(String),
    Other(Value),
}

/// The values that Extended JSON writes as objects, each in one form.
fn extended(fields: &Map<String, Value>) -> Option<Extended> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let mut names = fields.keys().map(String::as_str).collect::<Vec<_>>();
    names.sort_unstable();
    Some(match names.as_slice() {
        ["$numberInt" | "$numberLong" | "$numberDouble" | "$numberDecimal"] => {
            Extended::Number(text(fields.values().next()?)?.replace("Infinity", "inf"))
        }
        ["$date"] => Extended::Other(json!(["date", milliseconds(&fields["$date"])?])),
        ["$regex"] => Extended::Other(json!(["regex", fields["$regex"], ""])),
        ["$options", "$regex"] => Extended::Other(json!(["regex", fields["$regex"], fields["$options"]])),
        ["$regularExpression"] => {
            let regex = &fields["$regularExpression"];
            Extended::Other(json!(["regex", regex["pattern"], regex["options"]]))
        }
        ["$binary"] => {
            let binary = &fields["$binary"];
            let subtype = binary["subType"].as_str()?;
            Extended::Other(json!(["binary", binary["base64"], format!("{subtype:0>2}")]))
        }
        _ => return None,
    })
}

fn milliseconds(date: &Value) -> Option<i64> {
    match date {
        Value::Number(number) => number.as_i64(),
        Value::Object(long) => long.get("$numberLong")?.as_str()?.parse().ok(),
        Value::String(text) => docshard_core::values::document::ext_json::from_json(&json!({ "$date": text }))
            .ok()
            .and_then(|value| match value {
                docshard_core::values::document::value::Value::Date(milliseconds) => Some(milliseconds),
                _ => None,
            }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_one_value_are_the_same() {
        assert!(same(&json!({"a": 1, "b": 2.5}), &json!({"b": {"$numberDouble": "2.5"}, "a": {"$numberInt": "1"}})));
        assert!(same(&json!({"$numberDecimal": "1.50"}), &json!(1.5)));
        assert!(same(&json!({"$date": {"$numberLong": "0"}}), &json!({"$date": "1970-01-01T00:00:00Z"})));
        assert!(!same(&json!([1, 2]), &json!([2, 1])));
        assert!(!same(&json!(9007199254740993i64), &json!(9007199254740992i64)));
        assert!(!same(&json!({"a": null}), &json!({})));
        assert!(same_documents(&[json!(1), json!(2)], &[json!(2), json!(1)], false));
        assert!(!same_documents(&[json!(1), json!(2)], &[json!(2), json!(1)], true));
    }
}
