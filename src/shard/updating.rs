//! Updates documents one by one while a statement finds them, without searching for them again.
//!
//! [`super::writing::lock_and_check`] is called before the statement. As in PostgreSQL, the statement does not see its
//! own updates, because the new row versions have the statement's own command number.

use super::stored::document;
use super::table;
use crate::pg::error::Result;
use crate::pg::memory::small_cache::SmallCache;
use crate::storage::rows::{self, Change, FoundRow, Purpose, Writer};
use docshard_core::error::{Kind, error};
use docshard_core::query::filter::Filter;
use docshard_core::query::specification;
use docshard_core::query::update::{self, Update};
use docshard_core::values::document::raw;
use std::cell::RefCell;
use std::rc::Rc;

/// The largest number of parsed updates that a session caches.
const MAX_CACHED: usize = 8;
/// The length of the longest text that is cached, in bytes.
const MAX_CACHED_BYTES: usize = 1024;

thread_local! {
    static CACHE: RefCell<SmallCache<String, Rc<Update>, MAX_CACHED>> = const { RefCell::new(SmallCache::NONE) };
}

/// Parses an update that a router sends, unless it is cached.
pub fn read_update(text: &str) -> Result<Rc<Update>> {
    if let Some(update) = CACHE.with_borrow(|cache| cache.find(|cached| cached == text)) {
        return Ok(update);
    }
    let json = specification::parse(text)?;
    let read = Rc::new(update::read(&json)?);
    // The values of other fields (a filter, the time, a replacement) differ between calls, so caching would not help.
    let is_repeated =
        json.as_object().is_some_and(|fields| fields.keys().all(|name| name == "update" || name == "ordered"));
    if is_repeated && text.len() <= MAX_CACHED_BYTES {
        CACHE.with_borrow_mut(|cache| cache.insert(text.to_owned(), Rc::clone(&read)));
    }
    Ok(read)
}

/// An update that is being executed.
pub struct Updating {
    /// None after the end
    writer: Option<Writer>,
    filter: Filter,
    update: Rc<Update>,
    fixed: Vec<String>,
    done: Updated,
}

#[derive(Clone, Copy, Default)]
pub struct Updated {
    pub matched: i64,
    pub modified: i64,
}

impl Updating {
    /// Begins an update of documents that match a filter; values at the `fixed` paths must not change.
    pub fn begin(collection: i32, filter: Filter, update: Rc<Update>, fixed: Vec<String>) -> Result<Self> {
        let writer = Some(table::writer(collection, Purpose::Update)?);
        Ok(Self { writer, filter, update, fixed, done: Updated::default() })
    }

    /// Updates a document that the statement has found.
    pub fn update(&mut self, found: &FoundRow) -> Result<()> {
        let Self { writer, filter, update, fixed, done } = self;
        let writer = writer.as_mut().ok_or_else(|| error!(Kind::InternalError, "the update has ended"))?;
        let mut newer = false;
        let changed = writer.change_found(found, |doc| {
            let document = document(doc)?;
            // The second call is for a newer version of the row, which may no longer match.
            if std::mem::replace(&mut newer, true) && !filter.evaluate(document)? {
                return Ok(None);
            }
            apply(update, document, fixed).map(Some)
        })?;
        let Some(changed) = changed else { return Ok(()) };
        done.matched += 1;
        done.modified += i64::from(changed);
        Ok(())
    }

    /// Ends the update, and fires the table's statement triggers.
    pub fn finish(&mut self) -> Updated {
        if let Some(writer) = self.writer.take() {
            writer.finish();
        }
        self.done
    }
}

/// Checks that the user may update documents of a collection.
pub fn check_permission(collection: i32) -> Result<()> {
    rows::check_permission(table::oid(collection)?, Purpose::Update)
}

/// Returns the change that an update makes to a document, and true if the document changes.
pub(super) fn apply(update: &Update, document: raw::RawObject<'_>, fixed: &[String]) -> Result<(Change, bool)> {
    Ok(update.apply(document, fixed)?.map_or((Change::Nothing, false), |bytes| (Change::Update(bytes), true)))
}
