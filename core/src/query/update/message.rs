//! Formats elements of documents for messages, as MongoDB's log does: names without quotes.

use crate::values::document::ext_json;
use crate::values::document::raw::RawValue;
use crate::values::document::value::Value;
use serde_json::Value as Json;

/// Formats a stored value.
pub(super) fn shown(value: RawValue<'_>) -> String {
    show(&ext_json::to_json(&Value::from_raw(value)))
}

/// Formats a value as JSON with unquoted names, truncated to 200 characters.
pub(super) fn show(json: &Json) -> String {
    const MAX_LENGTH: usize = 200;
    let mut text = String::new();
    append(json, &mut text);
    if let Some((end, _)) = text.char_indices().nth(MAX_LENGTH) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn append(json: &Json, text: &mut String) {
    let separate = |text: &mut String, position: usize| {
        if position > 0 {
            text.push_str(", ");
        }
    };
    match json {
        Json::Object(fields) => {
            text.push('{');
            for (position, (name, value)) in fields.iter().enumerate() {
                separate(text, position);
                text.push_str(name);
                text.push_str(": ");
                append(value, text);
            }
            text.push('}');
        }
        Json::Array(elements) => {
            text.push('[');
            for (position, value) in elements.iter().enumerate() {
                separate(text, position);
                append(value, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_bare_and_strings_quoted() {
        assert_eq!(show(&json!({"a": 1, "b": {"c": ["x", null]}})), r#"{a: 1, b: {c: ["x", null]}}"#);
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let text = show(&json!("ä".repeat(1000)));
        assert!(text.chars().count() == 201 && text.ends_with('…'));
    }
}
