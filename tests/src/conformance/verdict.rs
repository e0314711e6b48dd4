//! Whether a case has answered what it must.

use super::{Answer, Case, Expected, Failure, Outcome, compare};
use docshard_core::query::sort::Sort;
use docshard_core::values::document::{ext_json, raw, write};
use serde_json::{Value, json};

/// Compares an answer with the expected one.
pub fn verdict(case: &Case, answer: &Result<Answer, Failure>) -> Outcome {
    let expected = &case.expected;
    let passed = match (expected, answer) {
        (Expected::Documents { documents, ordered }, Ok(Answer::Documents(found))) => {
            compare::same_documents(documents, found, *ordered)
                || compare::same_documents(documents, found, false) && same_order(case, documents, found)
        }
        (Expected::Documents { documents, .. }, Ok(Answer::Response(found))) => {
            matches!(documents.as_slice(), [wanted] if same_response(wanted, found))
        }
        (Expected::Response(wanted), Ok(Answer::Response(found))) => same_response(wanted, found),
        // An operation of a list fails by itself.
        (Expected::Error(code), Ok(Answer::Response(found))) => {
            let first = found["writeErrors"][0]["code"].as_i64();
            first.is_some() && (code.is_none() || *code == first)
        }
        (Expected::Error(None), Err(failure)) => failure.code.is_some(),
        (Expected::Error(code), Err(failure)) => failure.code.is_some() && *code == failure.code,
        _ => false,
    };
    if passed {
        return Outcome::Passed;
    }
    let found = match answer {
        Ok(Answer::Documents(documents)) => Value::from(documents.clone()).to_string(),
        Ok(Answer::Response(response)) => response.to_string(),
        Err(failure) => format!("{:?} {}", failure.code, failure.message),
    };
    Outcome::Failed(format!("expected {}, found {found}", shown(expected)))
}

/// True if both lists have the same sort keys: documents whose keys are equal come in any order.
fn same_order(case: &Case, wanted: &[Value], found: &[Value]) -> bool {
    let Some(Ok(sort)) = case.command.get("sort").map(Sort::parse) else { return false };
    let keys = |documents: &[Value]| -> Option<Vec<Vec<u8>>> {
        let key = |document: &Value| {
            let bytes = write::value(&ext_json::from_json(document).ok()?).ok()?;
            sort.key_of(raw::document(&bytes)?).ok()
        };
        documents.iter().map(key).collect()
    };
    keys(wanted).is_some_and(|wanted| Some(wanted) == keys(found))
}

fn shown(expected: &Expected) -> String {
    match expected {
        Expected::Documents { documents, .. } => Value::from(documents.clone()).to_string(),
        Expected::Response(response) => response.to_string(),
        Expected::Error(code) => format!("error {code:?}"),
    }
}

/// Compares two answers of a command: the fields that describe documents, and the positions and codes of errors.
fn same_response(wanted: &Value, found: &Value) -> bool {
    let plain = ["n", "nModified", "upserted", "value", "lastErrorObject"];
    let errors = |response: &Value| -> Vec<String> {
        let errors = response["writeErrors"].as_array().into_iter().flatten();
        errors.map(|error| compare::canonical(&json!([error["index"], error["code"]]))).collect()
    };
    plain.iter().all(|field| match wanted.get(*field) {
        // Only commands return this field, not the SQL functions.
        Some(_) if *field == "lastErrorObject" && found.get(*field).is_none() => true,
        Some(value) => compare::same(value, &found[*field]),
        None => true,
    }) && match (wanted["values"].as_array(), found["values"].as_array()) {
        // The values of a distinct come in any order.
        (Some(wanted), Some(found)) => compare::same_documents(wanted, found, false),
        (wanted, _) => wanted.is_none(),
    } && errors(wanted) == errors(found)
        && found["ok"].as_f64() == Some(1.0)
}
