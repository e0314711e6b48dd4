//! Finds fields that a filter compares with strings although they contain dates: `{"sent": {"$gte": "2026-07-01"}}` does not match
//! `{"sent": {"$date": …}}`. `explain` looks for them in a sample of documents.

use super::Filter;
use crate::values::document::element::Element;
use crate::values::document::raw::RawObject;
use crate::values::path;
use serde_json::json;

/// Filters with more fields than this are not analysed.
const MAX_FIELDS: usize = 20;

/// The fields that are strings in all matching documents, with counts of the values that observed documents have there.
#[derive(Debug)]
pub struct StringFields(Vec<Field>);

#[derive(Debug)]
struct Field {
    path: String,
    dates: usize,
    others: usize,
}

impl StringFields {
    /// Finds the fields; None if there are none.
    pub fn of(filter: &Filter) -> Option<Self> {
        let fields = filter.fields_read().filter(|fields| fields.len() <= MAX_FIELDS)?;
        let only_strings = |path: &String| {
            let Ok(strings) = Filter::parse(&json!({path: {"$gte": ""}})) else { return false };
            let (found, strings) = (filter.ranges_of(path), strings.ranges_of(path));
            !found.is_none() && found.intersect(&strings) == found
        };
        let fields = fields.into_iter().filter(only_strings);
        let fields: Vec<_> = fields.map(|path| Field { path, dates: 0, others: 0 }).collect();
        (!fields.is_empty()).then_some(Self(fields))
    }

    /// Counts the values of a document.
    pub fn observe(&mut self, document: RawObject<'_>) {
        for field in &mut self.0 {
            match path::resolve(document, &field.path).map(Element::of) {
                None => {}
                Some(value) if is_of_dates(&value) => field.dates += 1,
                Some(_) => field.others += 1,
            }
        }
    }

    /// The fields in which all observed values were dates, and at least one was.
    pub fn with_dates_only(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|field| field.dates > 0 && field.others == 0).map(|field| field.path.as_str())
    }
}

/// True for a date, and for an array of dates only.
fn is_of_dates(value: &Element<'_>) -> bool {
    match value {
        Element::Date(_) => true,
        Element::Array(array) => {
            let mut items = array.iter().map(Element::of).peekable();
            items.peek().is_some() && items.all(|item| matches!(item, Element::Date(_)))
        }
        _ => false,
    }
}
