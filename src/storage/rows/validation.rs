//! Validators of collections, as this shard has them: each document is checked where its row is written.
//!
//! This shard's copy of a collection's validator is in `docshard_data.placement`, in the row that also has the collection's version. A
//! writer reads the validator's number together with the version, under the collection's lock ([`set`]). A change of the validator excludes
//! writers. So a writer that holds the lock uses the present validator, whatever the router knows, and after a change has committed no
//! document is checked by the old one. A direct write to the table takes the lock and reads the number here, once in each transaction.
//!
//! Rows that a move or a change of layout writes are not checked: their documents were stored before.

use super::capture;
use crate::pg::error::{Result, server_log};
use crate::pg::memory::small_cache::SmallCache;
use crate::pg::security::bypass;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::storage::lock::{self, Mode, Tag};
use crate::storage::own_table;
use crate::storage::scan::{Columns, Look, by_int4};
use docshard_core::error::{Kind, error};
use docshard_core::query::specification;
use docshard_core::query::validator::{self, Action, Validator};
use docshard_core::routing::protocol::documents::{MAX_REPORTS, Refused};
use docshard_core::values::document::raw;
use docshard_core::values::key::encode::hash_encoded;
use std::cell::RefCell;
use std::rc::Rc;

/// Positions of columns of `docshard_data.placement`: the validator's number and its definition.
const NUMBER: usize = 3;
const DEFINITION: usize = 4;

/// The largest number of parsed validators that a session caches.
const MAX_CACHED: usize = 8;

/// What this transaction has read of the collections' validators.
#[derive(Default)]
struct Known {
    epoch: Epoch,
    /// a collection, and the number of its validator; None: it has no validator
    of: Vec<(i32, Option<i64>)>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
    static PARSED: RefCell<SmallCache<(i32, i64), Rc<Validator>, MAX_CACHED>> = const { RefCell::new(SmallCache::NONE) };
}

/// The number of a validator, a hash of its definition: equal definitions have equal numbers.
pub fn number_of(definition: &str) -> i64 {
    hash_encoded(definition.as_bytes())
}

/// The number of the validator in a row of `placement`; None if the collection has no validator.
pub fn number_in(row: &Columns<'_>) -> Option<i64> {
    row.opt_i64(NUMBER)
}

/// Sets the number of a collection's validator that was read under the collection's lock; None: it has no validator.
pub fn set(collection: i32, number: Option<i64>) {
    KNOWN.with_borrow_mut(|known| {
        let now = epoch::now();
        if known.epoch != now {
            *known = Known { epoch: now, of: Vec::new() };
        }
        match known.of.iter_mut().find(|(of, _)| *of == collection) {
            Some(entry) => entry.1 = number,
            None => known.of.push((collection, number)),
        }
    });
}

/// The number that this transaction has read; None: it has read none, Some(None): the collection has no validator.
fn known(collection: i32) -> Option<Option<i64>> {
    KNOWN.with_borrow(|known| {
        let entry = known.of.iter().find(|(of, _)| *of == collection).filter(|_| known.epoch == epoch::now());
        entry.map(|(_, number)| *number)
    })
}

/// The validator by which documents that this transaction writes to a collection must be checked; None: they need not be checked.
pub(super) fn of(collection: i32) -> Result<Option<Rc<Validator>>> {
    let number = match known(collection) {
        Some(number) => number,
        None if capture::is_bypassed() => return Ok(None),
        None => {
            lock::acquire(Tag::Collection(collection), Mode::Shared);
            let number = read(collection, |row| number_in(&row))?.flatten();
            set(collection, number);
            number
        }
    };
    let Some(number) = number.filter(|_| !bypass::is_on() && !capture::is_bypassed()) else { return Ok(None) };
    if let Some(parsed) = PARSED.with_borrow(|parsed| parsed.find(|of| *of == (collection, number))) {
        return Ok(Some(parsed));
    }
    let malformed =
        || error!(Kind::InternalError, "the validator of collection {collection} is malformed on this shard");
    let text = read(collection, |row| row.bytes(DEFINITION))?.flatten().ok_or_else(malformed)?;
    let text = String::from_utf8(text).map_err(|_| malformed())?;
    let parsed = Rc::new(Validator::parse(&specification::parse(&text)?)?);
    PARSED.with_borrow_mut(|cache| cache.insert((collection, number), Rc::clone(&parsed)));
    Ok(Some(parsed))
}

fn read<T>(collection: i32, visit: impl Fn(Columns<'_>) -> T) -> Result<Option<T>> {
    let (table, index) = own_table(c"placement", c"placement_pkey")?;
    let mut found = None;
    by_int4(table, index, collection, Look::Latest, |row| found = Some(visit(row)));
    Ok(found)
}

/// Checks a document before it is stored. `before` is the document that it replaces; None for an insert.
///
/// # Errors
/// `DocumentValidationFailure` (23514), with MongoDB's `errInfo` as its detail.
pub(super) fn check(validator: &Validator, before: Option<&[u8]>, after: &[u8]) -> Result<()> {
    let Some(document) = raw::document(after) else { return Ok(()) };
    let Some(violation) = validator.violation(before.and_then(raw::document), document) else { return Ok(()) };
    if validator.action != Action::Error {
        let what = if validator.action == Action::Warn {
            "Document would fail validation"
        } else {
            "Document failed validation"
        };
        server_log::write(what, violation.info().to_string());
    }
    if validator.action == Action::Warn { Ok(()) } else { Err(validator::refused(Some(violation.info().to_string()))) }
}

/// The documents that the collection's validator would refuse if they were inserted. After [`MAX_REPORTS`] bytes of reports, further
/// refused documents have no report.
pub fn refused<'d>(collection: i32, documents: impl Iterator<Item = &'d [u8]>) -> Result<Refused> {
    let Some(validator) = of(collection)?.filter(|validator| validator.action != Action::Warn) else {
        return Ok(Refused::new());
    };
    let (mut refused, mut bytes) = (Refused::new(), 0);
    for (position, document) in documents.enumerate() {
        let Some(document) = raw::document(document).filter(|document| validator.is_violated_by_new(*document)) else {
            continue;
        };
        let report = (bytes < MAX_REPORTS).then(|| validator.describe(document).info().to_string());
        bytes += report.as_ref().map_or(0, String::len);
        refused.push((position, report));
    }
    Ok(refused)
}
