//! A parsed filter with its environment and hint.

use super::options;
use crate::catalog::model::Collection;
use crate::pg::error::Result;
use docshard_core::cluster::targeting;
use docshard_core::error::{Kind, error};
use docshard_core::query::envelope;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::Bounds;
use docshard_core::query::specification::Role;
use docshard_core::values::document::ext_json;
use docshard_core::values::key::KeyRanges;
use serde_json::Value as Json;

/// A parsed filter with everything that its evaluation needs.
#[derive(Debug)]
pub struct Query {
    pub filter: Filter,
    /// the filter's text with the environment, as it is sent to shards
    pub text: String,
    /// collation, variables and time, as `Environment::to_json` writes them
    pub environment: Option<Json>,
    /// an index's name or keys, or `{"$natural": 1}`
    pub hint: Option<Json>,
    /// `min` and `max` of the hinted index
    pub bounds: Option<Bounds>,
}

impl Query {
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(text, None)
    }

    /// Parses a filter in an environment, to which [`options::complete`] adds what the filter uses.
    pub fn parse_in(text: &str, environment: Option<&Json>) -> Result<Self> {
        let (json, replaced) = crate::pg::datum::json::parse_as(text, Role::Filter)?;
        Self::of(&json, replaced.as_deref().unwrap_or(text), environment)
    }

    /// Like [`parse_in`](Self::parse_in), for a filter that is JSON already; `text` is its text.
    pub fn of(json: &Json, text: &str, environment: Option<&Json>) -> Result<Self> {
        let mut environment = environment.cloned();
        options::complete(&mut environment, std::iter::once(text))?;
        let filter = Filter::parse_in(json, &options::parsed_environment(environment.as_ref())?)?;
        Ok(Self {
            filter,
            text: envelope::wrap(text, environment.as_ref(), None),
            environment,
            hint: None,
            bounds: None,
        })
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
