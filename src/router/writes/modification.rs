//! The parsed updates that a session keeps.

use crate::pg::error::Result;
use crate::pg::memory::small_cache::SmallCache;
use crate::router::session::session;
use docshard_core::query::update::Style;
use docshard_core::routing::request::modification::Modification;
use docshard_core::routing::request::query::Query;
use docshard_core::values::document::field_order::keeps_order;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// Programs send the same updates again and again; this many are cached.
const MOST_KEPT: usize = 8;
/// Longer updates, in bytes, are not cached.
const LONGEST_KEPT: usize = 1024;

thread_local! {
    /// By style and text, and whether documents keep the order of fields.
    static KEPT: RefCell<SmallCache<(Style, bool, String), Rc<Modification>, MOST_KEPT>> = const { RefCell::new(SmallCache::NONE) };
}

/// Returns the cached form of an update that has no array filters, collation and variables.
pub fn kept(update: &str, style: Style) -> Option<Rc<Modification>> {
    KEPT.with_borrow(|kept| {
        kept.find(|(known, ordered, text)| (*known, *ordered) == (style, keeps_order()) && text == update)
    })
}

/// Parses an update of the documents that `query` finds, or returns its cached form. `update` parses the text, and returns an equal text
/// if fields are given twice.
pub fn parse<'u>(
    text: &str,
    update: impl FnOnce() -> Result<(Cow<'u, Json>, Option<String>)>,
    style: Style,
    array_filters: Option<&Json>,
    query: &Query,
) -> Result<Rc<Modification>> {
    let may_be_kept = array_filters.is_none() && query.environment.json().is_none() && text.len() <= LONGEST_KEPT;
    if may_be_kept && let Some(known) = kept(text, style) {
        return Ok(known);
    }
    let (update, replaced) = update()?;
    let used = replaced.as_deref().unwrap_or(text);
    let (modification, is_lasting) = Modification::parse(used, &update, style, array_filters, query, &session())?;
    let modification = Rc::new(modification);
    if may_be_kept && is_lasting {
        KEPT.with_borrow_mut(|kept| kept.insert((style, keeps_order(), text.to_owned()), Rc::clone(&modification)));
    }
    Ok(modification)
}
