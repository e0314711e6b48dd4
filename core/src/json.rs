//! Parses JSON text, with keys in their order, within bounds of time and memory. PostgreSQL accepts texts of up to a gigabyte.

use crate::budget::{self, Evaluation};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The memory limit of parsing, as a multiple of an evaluation's: a list of operations is longer than each of them.
const TIMES: usize = 8;

/// Parses JSON text. Every value is a step, and memory is limited to [`TIMES`] times an evaluation's.
///
/// # Errors
/// A syntax error, with its position.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    let _evaluation = Evaluation::begin_large(TIMES);
    serde_json::from_str(text).map(|Counted(value)| value)
}

/// A value whose parsing counts as a step.
struct Counted(Value);

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        budget::step();
        deserializer.deserialize_any(Reader).map(Counted)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        budget::bytes(value.len());
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Counted(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Counted(value))) = fields.next_entry::<String, Counted>()? {
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_reads_what_the_library_reads() {
        let depth = "[".repeat(127) + &"]".repeat(127);
        for text in [
            "null",
            "true",
            "-1",
            "18446744073709551615",
            "1e400",
            "1.5e-7",
            "-0",
            "-0.0",
            "123456789012345678901234567890",
            r#"{"b": 1, "a": [2, {"b": 3}], "b": 4}"#,
            r#""\u00e9\ud83d\ude00 x""#,
            "[1,]",
            "{",
            "",
            "1 2",
            &depth,
            &format!("[{depth}]"),
            r#"{"$serde_json::private::Number": "1"}"#,
        ] {
            let expected = serde_json::from_str::<Value>(text);
            match (parse(text), expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value.to_string(), expected.to_string(), "{text}"),
                (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected.to_string(), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_the_text(text in r#"[\[\]{}:,"0-9.eE+\-a ]{0,40}"#) {
            prop_assert_eq!(parse(&text).ok(), serde_json::from_str::<Value>(&text).ok());
        }
    }
}
