//! Insert, update and delete, and batches of them whose operations succeed or fail one by one.
//!
//! Each operation of a batch runs in a subtransaction: one that fails changes nothing, and the earlier ones stay. An ordered
//! batch stops at the first failure. Many documents are inserted at a time. Shards report which of them have duplicate keys or violate the
//! validator; after another error, the batch is halved until the refused document is alone.

use super::arguments::Arguments;
use super::errors::is_of_one_operation;
use super::request_parts::{self, Shared, Specification};
use crate::pg::error::{Error, Result};
use crate::pg::transaction::subtransaction::attempt;
use crate::router::writes::insert::{self, Storable, WriteError};
use crate::router::writes::modification;
use crate::router::writes::modify;
use crate::router::writes::once;
use docshard_core::error::{Kind, error};
use docshard_core::query::specification::Role;
use docshard_core::query::update::Style;
use docshard_core::routing::request::modification::{Write, WriteResult};
use docshard_core::routing::request::query::Query;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write as jsonb;
use serde_json::Value as Json;

/// The largest number of operations in a batch, the same as MongoDB's.
pub const MAX_BATCH: usize = 100_000;

pub fn check_size(count: usize) -> Result<()> {
    if (1..=MAX_BATCH).contains(&count) {
        return Ok(());
    }
    Err(error!(Kind::InvalidLength, "Write batch sizes must be between 1 and {MAX_BATCH}. Got {count} operations."))
}

/// Runs the operations of a batch and returns those that failed. Fails if an error concerns the whole batch.
pub fn each<T>(
    operations: &[T],
    ordered: bool,
    mut run: impl FnMut(usize, &T) -> Result<()>,
) -> Result<Vec<WriteError>> {
    let mut errors = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        match attempt(|| run(index, operation)) {
            Ok(()) => {}
            Err(error) if !is_of_one_operation(&error) => return Err(error),
            Err(error) => {
                errors.push(WriteError { index, error });
                if ordered {
                    break;
                }
            }
        }
    }
    Ok(errors)
}

pub fn storable(json: &Json) -> Result<Storable> {
    storable_value(&ext_json::from_json(json)?)
}

pub fn storable_value(value: &Value) -> Result<Storable> {
    Storable::new(&jsonb::value(value)?)
}

/// Inserts the documents of a batch. Returns the `_id`s of the inserted ones, and the failures by position.
pub fn insert_batch(
    namespace: &str,
    documents: impl Iterator<Item = Result<Result<Storable>>>,
    ordered: bool,
) -> Result<(Vec<Value>, Vec<WriteError>)> {
    let (mut storable, mut positions, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for (index, document) in documents.enumerate() {
        match document? {
            Ok(document) => {
                storable.push(document);
                positions.push(index);
            }
            Err(error) => {
                errors.push(WriteError { index, error });
                if ordered {
                    break;
                }
            }
        }
    }
    insert::claim(namespace, &storable)?;
    let mut batch = BatchInsert { namespace, ordered, failed: Vec::new() };
    batch.insert(&storable.iter().collect::<Vec<_>>(), 0)?;
    let mut failed = batch.failed;
    failed.sort_unstable_by_key(|failed| failed.index);
    if let Some(first) = failed.first().filter(|_| ordered) {
        // An ordered batch ends at its first failure. This one precedes the document that could not be read, if any, whose error is dropped.
        errors.clear();
        storable.truncate(first.index);
    }
    let inserted = storable.into_iter().enumerate();
    let inserted = inserted.filter(|(at, _)| failed.binary_search_by_key(at, |failed| failed.index).is_err());
    let ids = inserted.map(|(_, document)| document.id).collect();
    errors.extend(failed.into_iter().map(|failed| WriteError { index: positions[failed.index], ..failed }));
    errors.sort_unstable_by_key(|failed| failed.index);
    Ok((ids, errors))
}

/// The state of inserting a batch: documents are inserted many at a time, although single ones may be refused.
struct BatchInsert<'a> {
    namespace: &'a str,
    /// the first failure ends the batch
    ordered: bool,
    /// the errors of refused documents, with positions among the batch's readable documents
    failed: Vec<WriteError>,
}

impl BatchInsert<'_> {
    /// Inserts successive documents of the batch; `start` is the position of the first one. Fails if an error concerns the whole batch.
    fn insert(&mut self, documents: &[&Storable], start: usize) -> Result<()> {
        if documents.is_empty() {
            return Ok(());
        }
        let mut refused = Vec::new();
        let done = attempt(|| {
            if let [document] = documents
                && once::may_claim_by_itself()
            {
                return insert::insert_once(self.namespace, document);
            }
            refused = insert::insert_unordered(self.namespace, documents)?;
            // In an ordered batch no document after the first failure may be inserted.
            match refused.iter().min_by_key(|refused| refused.index) {
                Some(first) if self.ordered => Err(first.error.clone()),
                _ => Ok(()),
            }
        });
        match done {
            Ok(()) => self.add_failures(refused, |at| start + at),
            Err(error) if !is_of_one_operation(&error) => return Err(error),
            Err(error) if documents.len() == 1 => self.failed.push(WriteError { index: start, error }),
            Err(error) if error.kind == Kind::DocumentValidationFailure => return self.insert_valid(documents, start),
            Err(error) => match refused.iter().map(|refused| refused.index).min() {
                Some(index) => return self.insert_before(documents, start, WriteError { index, error }),
                None => return self.insert_halves(documents, start),
            },
        }
        Ok(())
    }

    /// Adds the errors of refused documents. `position` turns the index in an error into the position in the batch.
    fn add_failures(&mut self, refused: Vec<WriteError>, position: impl Fn(usize) -> usize) {
        self.failed.extend(refused.into_iter().map(|one| WriteError { index: position(one.index), ..one }));
    }

    /// Inserts those documents of an ordered batch that come before `first`, which is known to be refused; then reports `first`, unless an
    /// earlier one failed.
    fn insert_before(&mut self, documents: &[&Storable], start: usize, first: WriteError) -> Result<()> {
        self.insert(&documents[..first.index], start)?;
        if self.failed.is_empty() {
            self.add_failures(vec![first], |at| start + at);
        }
        Ok(())
    }

    fn insert_halves(&mut self, documents: &[&Storable], start: usize) -> Result<()> {
        let (left, right) = documents.split_at(documents.len() / 2);
        self.insert(left, start)?;
        if self.ordered && !self.failed.is_empty() {
            return Ok(());
        }
        self.insert(right, start + left.len())
    }

    /// Like [`insert`](Self::insert), after the collection's validator has refused at least one of the documents.
    fn insert_valid(&mut self, documents: &[&Storable], start: usize) -> Result<()> {
        let mut invalid = insert::violations(self.namespace, documents)?;
        if invalid.is_empty() {
            // No document violates the validator any more: it has changed, or depends on the time.
            return self.insert_halves(documents, start);
        }
        if self.ordered {
            return self.insert_before(documents, start, invalid.swap_remove(0));
        }
        let is_valid = |at: &usize| invalid.binary_search_by_key(at, |invalid| invalid.index).is_err();
        let positions: Vec<usize> = (0..documents.len()).filter(is_valid).collect();
        let valid: Vec<&Storable> = positions.iter().map(|at| documents[*at]).collect();
        let mut others = BatchInsert { failed: Vec::new(), ..*self };
        others.insert(&valid, 0)?;
        self.add_failures(others.failed, |at| start + positions[at]);
        self.add_failures(invalid, |at| start + at);
        Ok(())
    }
}

/// An update, a replacement or a deletion, of one or many documents.
#[derive(Debug, Default)]
pub struct DocumentWrite<'a> {
    pub filter: Specification<'a>,
    /// the update, and the forms that it may have; None: delete the documents
    pub update: Option<(Specification<'a>, Style)>,
    pub many: bool,
    pub upsert: bool,
    pub array_filters: Option<&'a Json>,
    /// for a write of one document: write the first one in this order
    pub sort: Option<&'a Json>,
    /// an update also locks the documents that it does not change
    pub locks: bool,
    /// for a write of one document: skip documents that other transactions have locked
    pub skip_locked: bool,
    /// the call is the client's whole transaction
    pub sole: bool,
    pub shared: Shared<'a>,
}

impl<'a> DocumentWrite<'a> {
    /// Describes a write of one matching document, or of all if `many`. `variables` are the batch's `let`, which the write's own `let`
    /// in `arguments` replaces.
    pub fn of(
        filter: Specification<'a>,
        update: Option<(Specification<'a>, Style)>,
        many: bool,
        arguments: &Arguments<'a>,
        variables: Option<&'a Json>,
    ) -> Self {
        Self {
            filter,
            update,
            many,
            upsert: arguments.flag("upsert"),
            array_filters: arguments.get("arrayFilters"),
            sort: arguments.get("sort"),
            locks: false,
            skip_locked: arguments.flag("skipLocked"),
            sole: false,
            shared: Shared::of(arguments, variables),
        }
    }

    pub fn run(&self, namespace: &str) -> Result<WriteResult> {
        self.run_on(namespace, &self.shared.query(namespace, self.filter)?, false)
    }

    /// Writes the documents that match `query`, which must be the parsed form of this write's filter. If `images` is true, also returns one
    /// document's old and new form.
    pub fn run_on(&self, namespace: &str, query: &Query, images: bool) -> Result<WriteResult> {
        let parse = |(update, style): (Specification<'_>, Style)| {
            modification::parse(&update.text(), || update.parse(Role::Update), style, self.array_filters, query)
        };
        let modification = self.update.map(parse).transpose()?;
        let modification = modification.as_deref();
        if self.many && modification.is_some_and(|modification| modification.update.is_replacement()) {
            let message = "multi update is not supported for replacement-style update";
            return Err(Error::new(Kind::FailedToParse, message));
        }
        let upsert = self.upsert && modification.is_some();
        let sort = request_parts::sort(self.sort, &query.environment)?;
        let &Self { many, locks, skip_locked, sole, .. } = self;
        let write =
            Write { many, upsert, sort, images, locks, skip_locked, sole, ..Write::of_one(query, modification) };
        modify::write(namespace, &write)
    }
}
