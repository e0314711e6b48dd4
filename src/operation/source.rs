//! What requests are made of: specifications, and what all parts of one statement have in common.

use super::arguments::Arguments;
use crate::pg::error::Result;
use crate::router::options::{self, parsed_setting};
use crate::router::query::Query;
use docshard_core::query::envelope;
use docshard_core::query::sort::Sort;
use serde_json::Value as Json;
use std::borrow::Cow;

/// A filter, an update or another specification.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// the text of an SQL function's argument, by which sessions keep what they have parsed
    Text(&'a str),
    /// a part of a larger request
    Value(&'a Json),
}

impl<'a> Source<'a> {
    /// An empty one.
    pub const EMPTY: Self = Source::Text("{}");

    /// A part of a request; an empty one if it is left out.
    pub fn of(part: Option<&'a Json>) -> Self {
        part.map_or(Self::EMPTY, Source::Value)
    }

    /// Its text, as shards are sent it.
    pub fn text(&self) -> Cow<'a, str> {
        match self {
            Source::Text(text) => Cow::Borrowed(text),
            Source::Value(json) => Cow::Owned(json.to_string()),
        }
    }

    /// Its value.
    ///
    /// # Errors
    /// `FailedToParse`.
    pub fn value(&self) -> Result<Cow<'a, Json>> {
        Ok(match self {
            Source::Text(text) => Cow::Owned(crate::pg::datum::json::parse(text)?),
            Source::Value(json) => Cow::Borrowed(json),
        })
    }
}

/// What a statement says once for all its parts, and how it is to find its documents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared<'a> {
    /// the index to use
    pub hint: Option<&'a Json>,
    /// how strings compare
    pub collation: Option<&'a Json>,
    /// variables
    pub variables: Option<&'a Json>,
}

impl<'a> Shared<'a> {
    /// Those of the arguments; `variables` are a batch's, which an operation's own replace.
    pub fn of(arguments: &Arguments<'a>, variables: Option<&'a Json>) -> Self {
        Self {
            hint: arguments.get("hint"),
            collation: arguments.get("collation"),
            variables: arguments.get("let").or(variables),
        }
    }

    /// The statement's setting; `projection` may ask for the time.
    ///
    /// # Errors
    /// Those of the setting's parser.
    pub fn setting(&self, namespace: &str, projection: Option<&Json>) -> Result<Option<Json>> {
        let text = projection.map(Json::to_string).unwrap_or_default();
        options::setting(namespace, self.collation, self.variables, &[&text])
    }

    /// The query of a filter; `projection` as for [`setting`](Self::setting).
    ///
    /// # Errors
    /// Those of the filter's and the setting's parsers, and of the hint.
    pub fn query(&self, namespace: &str, filter: Source<'_>, projection: Option<&Json>) -> Result<Query> {
        query(filter, self.setting(namespace, projection)?.as_ref(), self.hint)
    }
}

/// The query of a filter in a setting.
///
/// # Errors
/// Those of the filter's parser and of the hint.
pub fn query(filter: Source<'_>, setting: Option<&Json>, hint: Option<&Json>) -> Result<Query> {
    Query::of(&*filter.value()?, &filter.text(), setting)?.hinted(hint)
}

/// A sort specification in a setting, and the text that shards are sent; None for an empty one.
///
/// # Errors
/// Those of [`Sort::parse_in`] and of the setting.
pub fn sort(spec: Option<&Json>, setting: Option<&Json>) -> Result<Option<(Sort, String)>> {
    match spec {
        Some(spec) if !spec.as_object().is_some_and(serde_json::Map::is_empty) => Ok(Some((
            Sort::parse_in(spec, &parsed_setting(setting)?)?,
            envelope::wrap(&spec.to_string(), setting, None),
        ))),
        _ => Ok(None),
    }
}
