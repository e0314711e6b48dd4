//! A parsed filter with its environment and hint.

use crate::cluster::targeting;
use crate::error::Result;
use crate::error::{Kind, error};
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::query::filter::Filter;
use crate::query::index::Bounds;
use crate::routing::model::Collection;
use crate::values::document::ext_json;
use crate::values::key::KeyRanges;
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// A parsed filter with everything that its evaluation needs.
#[derive(Debug)]
pub struct Query {
    pub filter: Arc<Filter>,
    /// the filter's text with the environment, as it is sent to shards
    pub text: String,
    pub environment: Environment,
    /// an index's name or keys, or `{"$natural": 1}`
    pub hint: Option<Json>,
    /// `min` and `max` of the hinted index
    pub bounds: Option<Bounds>,
}

impl Query {
    /// The query of all documents.
    pub fn all() -> Result<Self> {
        Self::of(&Json::Object(Map::new()), "{}", Environment::default())
    }

    /// Parses a filter in an environment; `text` is its text.
    pub fn of(json: &Json, text: &str, environment: Environment) -> Result<Self> {
        let filter = Filter::parse_in(json, &environment)?;
        Ok(Self::parsed(Arc::new(filter), text, environment))
    }

    /// The query of a filter that was parsed in this environment.
    pub fn parsed(filter: Arc<Filter>, text: &str, environment: Environment) -> Self {
        let text = envelope::wrap(text, environment.json().as_ref(), None);
        Self { filter, text, environment, hint: None, bounds: None }
    }

    /// Sets the hint; an empty object is ignored.
    pub fn hinted(self, hint: Option<&Json>) -> Result<Self> {
        let hint = match hint {
            None | Some(Json::Null) => None,
            Some(Json::Object(keys)) if keys.is_empty() => None,
            Some(hint @ Json::String(_)) => Some(hint.clone()),
            Some(keys) => match ext_json::ordered(keys) {
                Some(keys) => Some(Json::Object(keys.into_owned())),
                None => {
                    let error = error!(Kind::FailedToParse, "hint must be a string or an object");
                    return Err(error.with_hint(ext_json::ORDER_HINT));
                }
            },
        };
        Ok(Self { hint, ..self })
    }

    /// The shard keys that matching documents can have.
    pub fn keys(&self, collection: &Collection) -> KeyRanges {
        if collection.key.is_unsharded() {
            return KeyRanges::all();
        }
        targeting::key_ranges(&collection.key, &self.filter)
    }
}
