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

/// The largest number of updates that are cached: programs send the same updates again and again.
const MAX_KEPT: usize = 8;
/// The length of the longest update that is cached, in bytes.
const MAX_KEPT_BYTES: usize = 1024;

thread_local! {
    /// Keys: the style, whether documents keep the order of fields, and the text.
    static KEPT: RefCell<SmallCache<(Style, bool, String), Rc<Modification>, MAX_KEPT>> = const { RefCell::new(SmallCache::NONE) };
}

/// Returns the cached form of an update that has no array filters, collation or variables; None if it is not cached.
pub fn kept(update: &str, style: Style) -> Option<Rc<Modification>> {
    KEPT.with_borrow(|kept| {
        kept.find(|(known, ordered, text)| (*known, *ordered) == (style, keeps_order()) && text == update)
    })
}

/// Parses an update of the documents that `query` finds, or returns its cached form. `update` parses the text. If the text gives
/// a field twice, `update` also returns an equivalent text that does not.
pub fn parse<'u>(
    text: &str,
    update: impl FnOnce() -> Result<(Cow<'u, Json>, Option<String>)>,
    style: Style,
    array_filters: Option<&Json>,
    query: &Query,
) -> Result<Rc<Modification>> {
    let may_be_kept = array_filters.is_none() && query.environment.json().is_none() && text.len() <= MAX_KEPT_BYTES;
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
