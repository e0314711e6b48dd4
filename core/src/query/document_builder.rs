//! Builds a document field by field.

use crate::budget;
use crate::values::document::value::Value;
use std::collections::HashMap;

/// A document that is being built. INVARIANT: its values come from documents in which they were nested at least as deep, so it is not too
/// deep.
#[derive(Clone, Debug, Default)]
pub(crate) struct DocumentBuilder {
    fields: Vec<(String, Value)>,
    positions: HashMap<String, usize>,
}

impl DocumentBuilder {
    /// Sets a field, or adds it at the end.
    pub(crate) fn put(&mut self, name: String, value: Value) {
        budget::step();
        match self.positions.get(&name) {
            Some(position) => self.fields[*position].1 = value,
            None => {
                self.positions.insert(name.clone(), self.fields.len());
                self.fields.push((name, value));
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(crate) fn to_value(&self) -> Value {
        Value::fixed_object(self.fields.clone())
    }

    pub(crate) fn into_value(self) -> Value {
        Value::fixed_object(self.fields)
    }
}
