//! The context in which an update's parts are applied, and their results.

use super::message::shown;
use crate::query::filter::ArrayFilter;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::write::Part;
use crate::values::order::Strings;
use crate::values::path;

/// The context in which modifiers are applied to a document.
pub(super) struct Context<'a> {
    /// the document before the update; None while an upsert sets the filter's equalities
    pub document: Option<RawObject<'a>>,
    /// its `_id`, for messages
    pub id: Option<RawValue<'a>>,
    /// true if an upsert inserts the document
    pub inserting: bool,
    /// the conditions of `$[identifier]`
    pub array_filters: &'a [ArrayFilter],
    /// the array element by which the document matched, to which `$` refers
    pub position: Option<usize>,
    /// the time, in milliseconds since 1970
    pub now: Option<i64>,
    /// the collation by which values are compared
    pub strings: Strings<'a>,
}

impl<'a> Context<'a> {
    /// The document's `_id` as messages show it.
    pub fn shown_id(&self) -> String {
        self.id.map_or_else(|| "no _id".to_owned(), |id| format!("_id: {}", shown(id)))
    }

    /// The value that a rename moves; None if it is missing.
    pub fn renamed(&self, from: &str) -> Option<RawValue<'a>> {
        path::at(self.document?, from)
    }
}

/// The change of a single value.
pub(super) enum UpdateOutcome<'a> {
    Keep,
    Remove,
    Write(Part<'a>),
}

/// Finds the filter of an identifier; the filters are sorted by their identifiers.
pub(super) fn filter_of<'f>(array_filters: &'f [ArrayFilter], identifier: &str) -> Option<&'f ArrayFilter> {
    let found = array_filters.binary_search_by(|filter| filter.identifier().cmp(identifier)).ok()?;
    array_filters.get(found)
}
