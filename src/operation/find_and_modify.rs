//! Changing or deleting one document and answering with it.

use super::arguments::Arguments;
use super::source::{self, Shared, Source};
use super::writing::modification;
use crate::pg::error::Result;
use crate::router::find_and_modify::{self as router, Found};
use docshard_core::query::update::Style;
use serde_json::Value as Json;

/// A change, or the deletion, of the first document that matches.
#[derive(Debug)]
pub struct FindAndModify<'a> {
    /// which document
    pub filter: Source<'a>,
    /// what is done to it, and what that may be; None: it is deleted
    pub update: Option<(Source<'a>, Style)>,
    /// insert a document if none matched
    pub upsert: bool,
    /// the conditions that `$[identifier]` names
    pub array_filters: Option<&'a Json>,
    /// the first in this order
    pub sort: Option<&'a Json>,
    /// which fields are answered
    pub projection: Option<&'a Json>,
    /// it is answered as it has become, not as it was
    pub new: bool,
    /// the rest
    pub shared: Shared<'a>,
}

impl<'a> FindAndModify<'a> {
    /// What arguments ask for. `returnDocument` is the drivers' word, `new` the shell's.
    pub fn of(filter: Source<'a>, update: Option<(Source<'a>, Style)>, arguments: &Arguments<'a>) -> Self {
        Self {
            filter,
            update,
            upsert: arguments.flag("upsert"),
            array_filters: arguments.get("arrayFilters"),
            sort: arguments.get("sort"),
            projection: arguments.get("projection"),
            new: arguments.text("returnDocument").map_or_else(|| arguments.flag("new"), |state| state == "after"),
            shared: Shared::of(arguments, None),
        }
    }

    /// What a specification asks for that holds filter and update too.
    pub fn of_specification(arguments: &Arguments<'a>) -> Self {
        let update = arguments.get("update").map(|update| (Source::Value(update), Style::Either));
        Self::of(Source::of(arguments.get("filter")), update, arguments)
    }

    /// Does it.
    pub fn run(&self, namespace: &str) -> Result<Found> {
        let query = self.shared.query(namespace, self.filter, self.projection)?;
        let modification =
            self.update.map(|(update, style)| modification(update, style, self.array_filters, &query)).transpose()?;
        router::find_and_modify(
            namespace,
            &router::FindAndModify {
                query: &query,
                modification: modification.as_deref(),
                sort: source::sort(self.sort, query.setting.as_ref())?,
                projection: router::projection(self.projection, &query)?,
                new: self.new,
                upsert: self.upsert,
            },
        )
    }
}
