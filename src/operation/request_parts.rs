//! The parts of requests: specifications, and the arguments that apply to a whole statement.

use super::arguments::Arguments;
use crate::pg::error::Result;
use crate::router::session;
use docshard_core::query::envelope;
use docshard_core::query::environment::Environment;
use docshard_core::query::sort::Sort;
use docshard_core::query::specification::Role;
use docshard_core::routing::request::query::Query;
use serde_json::Value as Json;
use std::borrow::Cow;

/// A filter, an update or another specification.
#[derive(Clone, Copy, Debug)]
pub enum Specification<'a> {
    /// the text of an SQL function's argument, by which its parsed form is cached
    Text(&'a str),
    /// a part of a larger request
    Value(&'a Json),
}

impl Default for Specification<'_> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<'a> Specification<'a> {
    pub const EMPTY: Self = Specification::Text("{}");

    /// Wraps a part of a request; a missing one counts as empty.
    pub fn of(part: Option<&'a Json>) -> Self {
        part.map_or(Self::EMPTY, Specification::Value)
    }

    /// The text that is sent to shards.
    pub fn text(&self) -> Cow<'a, str> {
        match self {
            Specification::Text(text) => Cow::Borrowed(text),
            Specification::Value(json) => Cow::Owned(json.to_string()),
        }
    }

    pub fn value(&self, role: Role) -> Result<Cow<'a, Json>> {
        Ok(self.parse(role)?.0)
    }

    /// Parses the specification. If its text gives a field twice, also returns an equivalent text without the duplicate; otherwise None.
    pub fn parse(&self, role: Role) -> Result<(Cow<'a, Json>, Option<String>)> {
        Ok(match self {
            Specification::Text(text) => {
                let (value, text) = docshard_core::query::specification::read(text, role)?;
                (Cow::Owned(value), text)
            }
            Specification::Value(json) => (Cow::Borrowed(json), None),
        })
    }
}

/// The arguments that apply to a whole statement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared<'a> {
    pub hint: Option<&'a Json>,
    pub collation: Option<&'a Json>,
    pub variables: Option<&'a Json>,
}

impl<'a> Shared<'a> {
    /// Reads the arguments. An operation's own variables replace `variables`, those of its batch.
    pub fn of(arguments: &Arguments<'a>, variables: Option<&'a Json>) -> Self {
        Self {
            hint: arguments.get("hint"),
            collation: arguments.get("collation"),
            variables: arguments.get("let").or(variables),
        }
    }

    /// Returns the environment of the statement.
    pub fn environment(&self, namespace: &str) -> Result<Environment> {
        session::environment(namespace, self.collation, self.variables)
    }

    pub fn query(&self, namespace: &str, filter: Specification<'_>) -> Result<Query> {
        query(filter, self.environment(namespace)?, self.hint)
    }
}

pub fn query(filter: Specification<'_>, environment: Environment, hint: Option<&Json>) -> Result<Query> {
    let (json, text) = filter.parse(Role::Filter)?;
    Query::of(&json, &text.map_or_else(|| filter.text(), Cow::Owned), environment)?.hinted(hint)
}

/// Parses a sort and returns it with the text that is sent to shards; None if it is empty.
pub fn sort(spec: Option<&Json>, environment: &Environment) -> Result<Option<(Sort, String)>> {
    match spec {
        Some(spec) => {
            let sort = Sort::parse_in(spec, environment)?;
            Ok(Some(sort).filter(|sort| !sort.fields.is_empty()).map(|sort| with_text(sort, spec, environment)))
        }
        None => Ok(None),
    }
}

/// Returns a sort that was parsed from `spec` with the text that is sent to shards.
pub fn with_text(sort: Sort, spec: &Json, environment: &Environment) -> (Sort, String) {
    let text = if spec.is_array() { sort.to_json().to_string() } else { spec.to_string() };
    (sort, envelope::wrap(&text, environment.json().as_ref(), None))
}
