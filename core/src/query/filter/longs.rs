//! Finds the integers that a filter gives as `$numberLong`. An upsert stores them as 64-bit integers; for matching they are numbers like
//! any others.

use crate::budget;
use crate::values::document::field_order::keeps_order;
use crate::values::document::value::Value;
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// The paths at which a filter's equalities have such integers.
#[derive(Debug, Default)]
pub(super) struct Longs(BTreeSet<String>);

impl Longs {
    /// The paths of a filter; none unless values keep their marks ([`keeps_order`]).
    pub(super) fn of(filter: &Json) -> Self {
        let mut longs = Self::default();
        if keeps_order() {
            longs.add(String::new(), filter);
        }
        longs
    }

    fn add(&mut self, path: String, json: &Json) {
        budget::step();
        match json {
            Json::Object(fields) => {
                for (name, json) in fields {
                    match (name.as_str(), json) {
                        ("$numberLong", _) => drop(self.0.insert(path.clone())),
                        ("$and", Json::Array(filters)) => {
                            filters.iter().for_each(|filter| self.add(path.clone(), filter))
                        }
                        ("$eq", json) => self.add(path.clone(), json),
                        (name, json) if !name.starts_with('$') => self.add(joined(&path, name), json),
                        _ => {}
                    }
                }
            }
            Json::Array(items) => {
                items.iter().enumerate().for_each(|(at, item)| self.add(joined(&path, &at.to_string()), item));
            }
            _ => {}
        }
    }

    /// Marks the 64-bit integers in the value of an equality at a path.
    pub(super) fn mark(&self, path: &str, value: Value) -> Value {
        if self.0.is_empty() { value } else { self.marked(path, value) }
    }

    fn marked(&self, path: &str, value: Value) -> Value {
        budget::step();
        match value {
            Value::Number(number)
                if self.0.contains(path) && number.as_i64().is_some_and(|long| i32::try_from(long).is_ok()) =>
            {
                Value::Long(number)
            }
            Value::Object(fields) => {
                let field =
                    |(name, value): &(String, Value)| (name.clone(), self.marked(&joined(path, name), value.clone()));
                Value::fixed_object(fields.iter().map(field).collect())
            }
            Value::Array(items) => {
                let item = |(at, item): (usize, &Value)| self.marked(&joined(path, &at.to_string()), item.clone());
                Value::fixed_array(items.iter().enumerate().map(item).collect())
            }
            value => value,
        }
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
