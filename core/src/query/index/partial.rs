//! The documents that a partial or sparse index holds.

use super::keys::IndexKeys;
use crate::error::{Kind, Result, bail};
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::query::filter::Filter;
use crate::values::collation::Collator;
use crate::values::document::ext_json;

/// The filter of the documents that an index holds.
#[derive(Debug)]
pub struct Partial {
    /// the filter and its collation as text, which is the predicate's text in the index and in the queries that use the index
    pub text: String,
    /// the filter's text for users
    pub expression: String,
    /// the filter
    pub filter: Filter,
}

impl Partial {
    /// Parses a `partialFilterExpression`, which compares strings under the index's collation.
    ///
    /// # Errors
    /// `TypeMismatch`, `CannotCreateIndex` for an unsupported filter, and those of [`Filter::parse`].
    pub fn parse(json: &serde_json::Value, collation: Option<&Collator>) -> Result<Partial> {
        if ext_json::document(json).is_none() {
            bail!(Kind::TypeMismatch, "The field 'partialFilterExpression' must be an object, not {json}");
        }
        let environment = collation.and_then(|collator| Environment::to_json(Some(collator.definition()), None, None));
        let filter = match &environment {
            None => Filter::parse(json)?,
            Some(environment) => Filter::parse_in(json, &Environment::parse(environment)?)?,
        };
        filter.check_partial()?;
        let expression = json.to_string();
        Ok(Partial { text: envelope::wrap(&expression, environment.as_ref(), None), expression, filter })
    }

    /// The filter of a sparse index: documents with at least one of its fields.
    pub fn sparse(keys: &IndexKeys) -> Partial {
        let exist = |(path, _): &(String, bool)| serde_json::json!({path: {"$exists": true}});
        let json = match keys.fields.as_slice() {
            [one] => exist(one),
            several => serde_json::json!({"$or": several.iter().map(exist).collect::<Vec<_>>()}),
        };
        let filter = Filter::parse(&json).expect("made of paths that were checked");
        let text = json.to_string();
        Partial { expression: text.clone(), text, filter }
    }
}
