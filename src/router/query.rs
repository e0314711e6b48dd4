//! The documents that a statement is about: a filter, and what it is to be run with.

use super::options;
use crate::catalog::model::Collection;
use crate::pg::error::{Error, Result};
use docshard_core::cluster::targeting;
use docshard_core::error::Kind;
use docshard_core::query::envelope;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::Bounds;
use docshard_core::values::key::KeyRanges;
use serde_json::Value as Json;

/// A filter, parsed, with the text that shards are sent.
#[derive(Debug)]
pub struct Query {
    /// the filter
    pub filter: Filter,
    /// its text, with the setting it is meant in
    pub text: String,
    /// the statement's collation, variables and time, as `Environment::to_json` writes them
    pub setting: Option<Json>,
    /// the index that it is to be run with: its name, its keys, or `{"$natural": 1}`
    pub hint: Option<Json>,
    /// the range of the hinted index's keys that documents must have one in
    pub bounds: Option<Bounds>,
}

impl Query {
    /// Parses a filter.
    ///
    /// # Errors
    /// What the filter's parser refuses.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(text, None)
    }

    /// Parses a filter in a statement's setting, to which the present time is added if the filter asks for it.
    ///
    /// # Errors
    /// What the filter's and the setting's parsers refuse.
    pub fn parse_in(text: &str, setting: Option<&Json>) -> Result<Self> {
        Self::of(&crate::pg::datum::json::parse(text)?, text, setting)
    }

    /// The same of a filter that was parsed as JSON; `text` is that JSON's text.
    ///
    /// # Errors
    /// As [`parse_in`](Self::parse_in).
    pub fn of(json: &Json, text: &str, setting: Option<&Json>) -> Result<Self> {
        let mut setting = setting.cloned();
        if text.contains("$$NOW") && setting.as_ref().is_none_or(|setting| setting.get("now").is_none()) {
            let fields = setting.get_or_insert_with(|| Json::Object(serde_json::Map::new()));
            fields["now"] = Json::from(options::now());
        }
        let filter = Filter::parse_in(json, &options::parsed_setting(setting.as_ref())?)?;
        Ok(Self { filter, text: envelope::wrap(text, setting.as_ref(), None), setting, hint: None, bounds: None })
    }

    /// The same, with a hint; `{}` is none.
    ///
    /// # Errors
    /// `FailedToParse` for what is neither name nor keys.
    pub fn hinted(self, hint: Option<&Json>) -> Result<Self> {
        let hint = match hint {
            None | Some(Json::Null) => None,
            Some(Json::Object(keys)) if keys.is_empty() => None,
            Some(hint @ (Json::String(_) | Json::Object(_))) => Some(hint.clone()),
            Some(_) => return Err(Error::new(Kind::FailedToParse, "hint must be a string or an object")),
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
