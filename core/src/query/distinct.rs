//! The distinct values of a field. Arrays on the path and at its end yield their elements.

use crate::error::Result;
use crate::query::environment::Environment;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::write;
use crate::values::key::encode::encode_under;
use crate::values::path;
use std::sync::Arc;

/// A field whose distinct values are requested.
#[derive(Debug)]
pub struct Distinct {
    path: String,
    collator: Option<Arc<Collator>>,
}

impl Distinct {
    /// Checks the field's dotted path. Unlike other paths, it may be empty, or have empty components. Strings are compared under the
    /// environment's collation.
    ///
    /// # Errors
    /// Those of field paths, such as for components that start with `$`.
    pub fn parse(path: &str, environment: &Environment) -> Result<Distinct> {
        let named: Vec<&str> = path.split('.').filter(|name| !name.is_empty()).collect();
        if !named.is_empty() {
            path::check_field_path(&named.join("."))?;
        }
        Ok(Distinct { path: path.to_owned(), collator: environment.collator().cloned() })
    }

    /// The document's values, each as an encoding that equal values share, and as jsonb. A missing field has none.
    ///
    /// # Errors
    /// `BSONObjectTooLarge`, which does not occur for stored documents.
    pub fn values(&self, document: RawObject<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        collect(document, &self.path, &mut found);
        found
            .into_iter()
            .map(|value| {
                let mut key = Vec::new();
                encode_under(&Element::of(value), self.collator.as_deref(), &mut key);
                Ok((key, write::document(&write::Part::Raw(value))?))
            })
            .collect()
    }
}

fn collect<'a>(document: RawObject<'a>, path: &str, found: &mut Vec<RawValue<'a>>) {
    let (name, rest) = path::split(path);
    if let Some(value) = document.get(name) {
        enter(value, rest, found);
    }
}

/// Follows the rest of a path from a value. In an array a position names an element; any other name is searched in each of its
/// documents.
fn enter<'a>(value: RawValue<'a>, rest: Option<&str>, found: &mut Vec<RawValue<'a>>) {
    match (value, rest) {
        (RawValue::Array(array), None) => found.extend(array.iter()),
        (value, None) => found.push(value),
        (RawValue::Array(array), Some(rest)) => {
            let (name, further) = path::split(rest);
            if name.bytes().all(|byte| byte.is_ascii_digit()) {
                if let Some(element) = path::array_index(name).and_then(|index| array.get(index)) {
                    enter(element, further, found);
                }
            } else {
                array.iter().filter_map(path::embedded).for_each(|inner| collect(inner, rest, found));
            }
        }
        (value, Some(rest)) => {
            if let Some(inner) = path::embedded(value) {
                collect(inner, rest, found);
            }
        }
    }
}
