//! Parses JSON text, with keys in their order, within bounds of time and memory. PostgreSQL accepts texts of up to a gigabyte.
//!
//! RULE: no field is dropped. An object that names a field twice cannot be a [`Value`]: [`parse`] refuses it, and [`parse_tree`] keeps
//! both fields for callers that give them a meaning, such as a filter.

use crate::budget::{self, Evaluation};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

/// Parsing may take this many times the memory of one evaluation, because one text may contain a list of operations.
const MEMORY_FACTOR: usize = 8;

/// JSON whose objects may name a field more than once.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// Null, a boolean, a number or a string; from BSON also a value of an extended type.
    Scalar(Value),
    /// An array.
    Array(Vec<Tree>),
    /// An object, with its fields in their order.
    Object(Vec<(String, Tree)>),
}

/// Returns the fields of an object. An array of pairs such as `[["a", 1], ["b", -1]]`, as drivers write a sort order, is read as the
/// object `{"a": 1, "b": -1}`. None for any other value, for an empty array, and if two pairs have the same name.
#[must_use]
pub fn ordered(json: &Value) -> Option<Cow<'_, Map<String, Value>>> {
    let pairs = match json {
        Value::Object(fields) => return Some(Cow::Borrowed(fields)),
        Value::Array(pairs) if !pairs.is_empty() => pairs,
        _ => return None,
    };
    let mut fields = Map::new();
    for pair in pairs {
        budget::step();
        let [Value::String(name), value] = pair.as_array()?.as_slice() else { return None };
        if fields.insert(name.clone(), value.clone()).is_some() {
            return None;
        }
    }
    Some(Cow::Owned(fields))
}

/// Converts an array of pairs into the object that [`ordered`] reads it as; returns any other value unchanged.
#[must_use]
pub fn pairs_as_object(json: &Value) -> Cow<'_, Value> {
    match ordered(json) {
        Some(Cow::Owned(fields)) => Cow::Owned(Value::Object(fields)),
        _ => Cow::Borrowed(json),
    }
}

/// Why a text could not be parsed.
#[derive(Debug)]
pub enum Failure {
    /// The syntax is wrong.
    Syntax(serde_json::Error),
    /// The value is nested too deeply.
    TooDeep,
    /// An object names this field twice.
    RepeatedField(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Syntax(error) => write!(f, "{error}"),
            Failure::TooDeep => write!(f, "the value is nested more than {MAX_DEPTH} levels deep"),
            Failure::RepeatedField(name) => write!(f, "the field '{name}' is given twice in an object"),
        }
    }
}

/// The depth that the parser permits.
const MAX_DEPTH: usize = 127;

/// Converts an error of serde_json, which reports an exceeded depth only by its message.
fn failure(error: serde_json::Error) -> Failure {
    if error.to_string().starts_with("recursion limit exceeded") { Failure::TooDeep } else { Failure::Syntax(error) }
}

/// Parses JSON text. Each value counts as one [`budget::step`]. Memory is limited to [`MEMORY_FACTOR`] times the limit of an evaluation.
///
/// # Errors
/// [`Failure::Syntax`], [`Failure::TooDeep`], [`Failure::RepeatedField`].
pub fn parse(text: &str) -> Result<Value, Failure> {
    let repeated = Cell::new(None);
    read(text, Values { repeated: &repeated }).map_err(|error| match repeated.take() {
        Some(name) => Failure::RepeatedField(name),
        None => failure(error),
    })
}

/// Parses JSON text and keeps fields that are named twice.
///
/// # Errors
/// [`Failure::Syntax`], [`Failure::TooDeep`].
pub fn parse_tree(text: &str) -> Result<Tree, Failure> {
    read(text, Trees).map_err(failure)
}

fn read<B: Builder>(text: &str, builder: B) -> serde_json::Result<B::Output> {
    let _evaluation = Evaluation::begin_large(MEMORY_FACTOR);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Reader(builder).deserialize(&mut deserializer)?;
    deserializer.end().map(|()| value)
}

/// Makes a value from its parts. The reader of BSON uses it, too.
pub(crate) trait Builder: Copy {
    type Output;
    type Fields;
    fn scalar(self, value: Value) -> Self::Output;
    fn array(self, items: Vec<Self::Output>) -> Self::Output;
    fn no_fields(self) -> Self::Fields;
    fn add<E: Error>(self, fields: &mut Self::Fields, name: String, value: Self::Output) -> Result<(), E>;
    fn object(self, fields: Self::Fields) -> Self::Output;
}

/// Makes a [`Value`].
#[derive(Clone, Copy)]
pub(crate) struct Values<'c> {
    /// receives the name of a field that is named twice
    pub(crate) repeated: &'c Cell<Option<String>>,
}

impl Builder for Values<'_> {
    type Output = Value;
    type Fields = Map<String, Value>;

    fn scalar(self, value: Value) -> Value {
        value
    }

    fn array(self, items: Vec<Value>) -> Value {
        Value::Array(items)
    }

    fn no_fields(self) -> Self::Fields {
        Map::new()
    }

    fn add<E: Error>(self, fields: &mut Self::Fields, name: String, value: Value) -> Result<(), E> {
        match fields.entry(name) {
            serde_json::map::Entry::Vacant(field) => {
                field.insert(value);
                Ok(())
            }
            serde_json::map::Entry::Occupied(field) => {
                self.repeated.set(Some(field.key().clone()));
                Err(E::custom("a field is given twice"))
            }
        }
    }

    fn object(self, fields: Self::Fields) -> Value {
        Value::Object(fields)
    }
}

/// Makes a [`Tree`].
#[derive(Clone, Copy)]
pub(crate) struct Trees;

impl Builder for Trees {
    type Output = Tree;
    type Fields = Vec<(String, Tree)>;

    fn scalar(self, value: Value) -> Tree {
        Tree::Scalar(value)
    }

    fn array(self, items: Vec<Tree>) -> Tree {
        Tree::Array(items)
    }

    fn no_fields(self) -> Self::Fields {
        Vec::new()
    }

    fn add<E: Error>(self, fields: &mut Self::Fields, name: String, value: Tree) -> Result<(), E> {
        fields.push((name, value));
        Ok(())
    }

    fn object(self, fields: Self::Fields) -> Tree {
        Tree::Object(fields)
    }
}

/// Reads a value. Each value in it counts as a step.
struct Reader<B>(B);

impl<'de, B: Builder> DeserializeSeed<'de> for Reader<B> {
    type Value = B::Output;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<B::Output, D::Error> {
        budget::step();
        deserializer.deserialize_any(self)
    }
}

impl<'de, B: Builder> Visitor<'de> for Reader<B> {
    type Value = B::Output;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<B::Output, E> {
        Ok(self.0.scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<B::Output, E> {
        Ok(self.0.scalar(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<B::Output, E> {
        Ok(self.0.scalar(Value::from(value)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<B::Output, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(self.0.scalar(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<B::Output, E> {
        budget::bytes(value.len());
        Ok(self.0.scalar(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<B::Output, E> {
        Ok(self.0.scalar(Value::String(value)))
    }

    fn visit_unit<E>(self) -> Result<B::Output, E> {
        Ok(self.0.scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<B::Output, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(Reader(self.0))? {
            values.push(value);
        }
        Ok(self.0.array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<B::Output, A::Error> {
        let mut fields = self.0.no_fields();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(Reader(self.0))?;
            self.0.add(&mut fields, name, value)?;
        }
        Ok(self.0.object(fields))
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
            r#"{"b": 1, "a": [2, {"b": 3}], "c": 4}"#,
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
                (Err(Failure::Syntax(error)), Err(expected)) => {
                    assert_eq!(error.to_string(), expected.to_string(), "{text}")
                }
                (Err(Failure::TooDeep), Err(expected)) => {
                    assert!(expected.to_string().starts_with("recursion limit"), "{text}: {expected}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn no_field_is_dropped() {
        let text = r#"{"b": 1, "a": [{"x": 2, "x": 3}]}"#;
        assert!(matches!(parse(text), Err(Failure::RepeatedField(name)) if name == "x"));
        let field = |name: &str, value: i64| (name.to_owned(), Tree::Scalar(Value::from(value)));
        let inner = Tree::Object(vec![field("x", 2), field("x", 3)]);
        let expected = Tree::Object(vec![field("b", 1), ("a".to_owned(), Tree::Array(vec![inner]))]);
        assert_eq!(parse_tree(text).unwrap(), expected);
        // `parse_tree` does not stop at a repeated field, so it reports a syntax error after one.
        assert!(matches!(parse_tree("{\"a\": 1, \"a\": }"), Err(Failure::Syntax(_))));
    }

    proptest! {
        #[test]
        fn it_agrees_with_serde_json(text in r#"[\[\]{}:,"0-9.eE+\-a ]{0,40}"#) {
            match parse(&text) {
                Err(Failure::RepeatedField(_)) => {
                    let is_object = text.contains('{');
                    prop_assert!(is_object);
                },
                parsed => prop_assert_eq!(parsed.ok(), serde_json::from_str::<Value>(&text).ok()),
            }
        }
    }
}
