//! `$type`: parses MongoDB's types by number and alias, and tests stored values.

use crate::error::{Error, Kind, Result, bail};
use crate::values::document::element::Element;
use crate::values::document::number::Number;
use crate::values::document::raw::RawValue;
use crate::values::document::value::{TYPES, Value};

/// The alias for all types of numbers.
const ANY_NUMBER: &str = "number";

/// A set of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u32);

impl Types {
    /// Parses one type or several, each a number or an alias.
    ///
    /// # Errors
    /// `BadValue` for an unknown type, `TypeMismatch` for neither number nor string, `FailedToParse` for an empty list.
    pub fn parse(path: &str, argument: &Value) -> Result<Types> {
        match argument {
            Value::Array(types) if types.is_empty() => {
                bail!(Kind::FailedToParse, "{path} must match at least one type")
            }
            Value::Array(types) => {
                types.iter().try_fold(Types(0), |all, one| Ok(Types(all.0 | Types::parse_one(one)?.0)))
            }
            one => Types::parse_one(one),
        }
    }

    fn parse_one(argument: &Value) -> Result<Types> {
        let message = match argument {
            Value::String(alias) if alias == ANY_NUMBER => {
                return Ok(["int", "long", "double", "decimal"]
                    .into_iter()
                    .fold(Types(0), |all, alias| Types(all.0 | Types::of_alias(alias).map_or(0, |types| types.0))));
            }
            Value::String(alias) => match Types::of_alias(alias) {
                Some(types) => return Ok(types),
                None => format!("Unknown type name alias: {alias}"),
            },
            Value::Number(number) => {
                let position = number.as_i64().and_then(|code| TYPES.iter().position(|(_, known)| *known == code));
                match position {
                    Some(position) => return Ok(Types(1 << position)),
                    None if number.as_i64() == Some(0) => {
                        "Invalid numerical type code: 0. Instead use {$exists:false}.".to_owned()
                    }
                    None => format!("Invalid numerical type code: {}", shown(number)),
                }
            }
            _ => bail!(Kind::TypeMismatch, "type must be represented as a number or a string"),
        };
        Err(Error::new(Kind::BadValue, message))
    }

    fn of_alias(alias: &str) -> Option<Types> {
        TYPES.iter().position(|(known, _)| *known == alias).map(|position| Types(1 << position))
    }

    /// True if all types are in the other set.
    pub fn is_subset_of(self, others: Types) -> bool {
        self.0 & !others.0 == 0
    }

    /// True if the value is of one of the types.
    pub fn contain(self, raw: RawValue<'_>) -> bool {
        let alias = match raw {
            RawValue::Null => "null",
            RawValue::Bool(_) => "bool",
            RawValue::String(_) => "string",
            RawValue::Array(_) => "array",
            RawValue::Number(number) => number.to_number().type_name(),
            RawValue::Object(_) => Element::of(raw).type_name(),
        };
        Types::of_alias(alias).is_some_and(|types| self.0 & types.0 != 0)
    }
}

fn shown(number: &Number) -> String {
    match number {
        Number::Int(value, _) => value.to_string(),
        number => number.to_f64().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_listed_once_and_fit_the_set() {
        assert!(TYPES.len() <= 32);
        for (alias, code) in TYPES {
            assert_eq!(TYPES.iter().filter(|(other, _)| other == alias).count(), 1);
            assert_eq!(TYPES.iter().filter(|(_, other)| other == code).count(), 1);
        }
    }
}
