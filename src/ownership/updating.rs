//! Updating documents as a statement finds them, one after the other, without another search for them.
//!
//! The statement is preceded by the lock and the check that every write needs: see [`super::writing`]. What it updates
//! it does not see again, as no statement of PostgreSQL does: the versions written have the number of its own command.

use super::stored::document;
use super::table;
use crate::pg::datum::json;
use crate::pg::error::{Error, Result};
use crate::pg::memory::recently_used::RecentlyUsed;
use crate::storage::rows::{self, Change, Found, Purpose, Writer};
use docshard_core::error::Kind;
use docshard_core::query::filter::Filter;
use docshard_core::query::update::{self, Update};
use docshard_core::values::document::raw;
use std::cell::RefCell;
use std::rc::Rc;

/// How many updates a session keeps parsed, as routers keep them.
const MOST_KEPT: usize = 8;
/// Longer texts are not kept, in bytes.
const LONGEST_KEPT: usize = 1024;

thread_local! {
    /// By their texts, of which alone they come.
    static KEPT: RefCell<RecentlyUsed<String, Rc<Update>, MOST_KEPT>> = const { RefCell::new(RecentlyUsed::NONE) };
}

/// The update that a router sends, parsed if it is none of the last ones.
///
/// # Errors
/// Those of [`update::read`].
pub fn read_update(text: &str) -> Result<Rc<Update>> {
    if let Some(known) = KEPT.with_borrow(|kept| kept.find(|known| known == text)) {
        return Ok(known);
    }
    let json = json::parse(text)?;
    let read = Rc::new(update::read(&json)?);
    // Whatever stands beside the update is another one each time: a filter, the time, that it is a replacement.
    let is_lasting = json.as_object().is_some_and(|fields| fields.len() == 1);
    if is_lasting && text.len() <= LONGEST_KEPT {
        KEPT.with_borrow_mut(|kept| kept.keep(text.to_owned(), Rc::clone(&read)));
    }
    Ok(read)
}

/// An update that is running.
pub struct Updating {
    writer: Option<Writer>,
    filter: Filter,
    update: Rc<Update>,
    fixed: Vec<String>,
    done: Updated,
}

/// What an update has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Updated {
    /// documents that matched
    pub matched: i64,
    /// those that changed
    pub modified: i64,
}

impl Updating {
    /// Begins to update documents of a collection that match a filter; no value at the `fixed` paths may change.
    ///
    /// # Errors
    /// Those of [`Writer::open`]; `NamespaceNotFound` if the collection has no table here.
    pub fn begin(collection: i32, filter: Filter, update: Rc<Update>, fixed: Vec<String>) -> Result<Self> {
        let writer = Some(table::writer(collection, Purpose::Update)?);
        Ok(Self { writer, filter, update, fixed, done: Updated::default() })
    }

    /// Updates a document that the statement has found, and that so matches.
    ///
    /// # Errors
    /// Those of the update and of [`Writer::change_found`]; PostgreSQL's 23505.
    pub fn update(&mut self, found: &Found) -> Result<()> {
        let Self { writer, filter, update, fixed, done } = self;
        let writer = writer.as_mut().ok_or_else(|| Error::new(Kind::InternalError, "the update has ended"))?;
        let mut newer = false;
        let changed = writer.change_found(found, |doc| {
            let document = document(doc)?;
            // What has been waited for may match no longer.
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

    /// Ends the update, and fires the table's triggers of statements.
    pub fn finish(&mut self) -> Updated {
        if let Some(writer) = self.writer.take() {
            writer.finish();
        }
        self.done
    }
}

/// Checks that the present user may update documents of a collection, whether or not there are any.
///
/// # Errors
/// As [`Updating::begin`].
pub fn check_permission(collection: i32) -> Result<()> {
    rows::check_permission(table::oid(collection)?, Purpose::Update)
}

/// What an update does to a document, and whether it changes it.
///
/// # Errors
/// Those of the update.
pub(super) fn apply(update: &Update, document: raw::RawObject<'_>, fixed: &[String]) -> Result<(Change, bool)> {
    Ok(update.apply(document, fixed)?.map_or((Change::Nothing, false), |bytes| (Change::Update(bytes), true)))
}
