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
    given: Given,
    /// the environment that is sent with it
    sent: Option<Json>,
    pub environment: Environment,
    /// an index's name or keys, or `{"$natural": 1}`
    pub hint: Option<Json>,
    /// `min` and `max` of the hinted index
    pub bounds: Option<Bounds>,
}

/// A filter as it was given. Its text is made only when it is needed, as many statements find their documents without it.
#[derive(Debug)]
enum Given {
    Text(String),
    Part(Arc<Json>),
}

impl Query {
    /// The query of all documents.
    pub fn all() -> Result<Self> {
        Self::of(&Json::Object(Map::new()), "{}", Environment::default())
    }

    /// Parses a filter in an environment; `text` is its text.
    pub fn of(json: &Json, text: &str, environment: Environment) -> Result<Self> {
        let filter = Arc::new(Filter::parse_in(json, &environment)?);
        Ok(Self::new(filter, Given::Text(text.to_owned()), environment))
    }

    /// The query of a filter that was parsed from `json` in this environment.
    pub fn parsed(filter: Arc<Filter>, json: Arc<Json>, environment: Environment) -> Self {
        Self::new(filter, Given::Part(json), environment)
    }

    fn new(filter: Arc<Filter>, given: Given, environment: Environment) -> Self {
        Self { filter, given, sent: environment.json(), environment, hint: None, bounds: None }
    }

    /// The filter's text with the environment, as it is sent to shards.
    pub fn text(&self) -> String {
        let wrap = |text: &str| envelope::wrap(text, self.sent.as_ref(), None);
        match &self.given {
            Given::Text(text) => wrap(text),
            Given::Part(json) => wrap(&json.to_string()),
        }
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
