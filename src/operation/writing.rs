//! Insert, update, delete, and batches of them whose operations succeed or fail one by one.
//!
//! Each operation of a batch runs in a subtransaction, so that one that fails leaves nothing behind and those before it stay.
//! An ordered batch stops at the first that fails. Inserts go many at a time; where a document is refused, the batch is cut
//! in halves until it stands alone.

use super::arguments::Arguments;
use super::errors::is_of_one_operation;
use super::source::{self, Shared, Source};
use crate::pg::error::{Error, Result};
use crate::pg::transaction::subtransaction::attempt;
use crate::router::change::{self, Change, Updated};
use crate::router::insert::{self, Storable, WriteError};
use crate::router::modification::Modification;
use crate::router::query::Query;
use docshard_core::error::Kind;
use docshard_core::query::update::Style;
use docshard_core::values::document::{ext_json, write};
use serde_json::Value as Json;
use std::rc::Rc;

/// The most operations of a batch: MongoDB's number.
pub const MAX_BATCH: usize = 100_000;

/// Refuses a batch of no operations, or of too many.
///
/// # Errors
/// `InvalidLength`.
pub fn check_size(count: usize) -> Result<()> {
    if (1..=MAX_BATCH).contains(&count) {
        return Ok(());
    }
    let message = format!("Write batch sizes must be between 1 and {MAX_BATCH}. Got {count} operations.");
    Err(Error::new(Kind::InvalidLength, message))
}

/// Runs the operations of a batch; answers which failed, unless that is not their own fault.
///
/// # Errors
/// What is no single operation's fault.
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

/// A document that is part of a request, made storable.
///
/// # Errors
/// What is no document.
pub fn storable(json: &Json) -> Result<Storable> {
    Storable::new(&write::value(&ext_json::from_json(json)?)?)
}

/// Inserts documents; answers how many were inserted, and notes those that were not, by their positions: the first only if
/// `ordered`.
///
/// # Errors
/// What is no single document's fault.
pub fn insert_each(
    namespace: &str,
    documents: &[Storable],
    ordered: bool,
    failed: &mut Vec<(usize, Error)>,
) -> Result<i64> {
    put(namespace, documents, 0, ordered, failed)
}

/// As [`insert_each`], of documents the first of which is number `start` of the batch.
fn put(
    namespace: &str,
    documents: &[Storable],
    start: usize,
    ordered: bool,
    failed: &mut Vec<(usize, Error)>,
) -> Result<i64> {
    if documents.is_empty() {
        return Ok(0);
    }
    let mut refused = Vec::new();
    let done = attempt(|| {
        refused = insert::insert_unordered(namespace, documents)?;
        // Of an ordered batch, nothing behind the first that is refused may stay.
        match refused.iter().min_by_key(|refused| refused.index) {
            Some(first) if ordered => Err(first.error.clone()),
            _ => Ok(()),
        }
    });
    match done {
        Ok(()) => {
            let inserted = documents.len() - refused.len();
            failed.extend(refused.into_iter().map(|refused| (start + refused.index, refused.error)));
            Ok(inserted as i64)
        }
        Err(error) if !is_of_one_operation(&error) => Err(error),
        Err(error) if documents.len() == 1 => {
            failed.push((start, error));
            Ok(0)
        }
        Err(error) => {
            if let Some(first) = refused.iter().map(|refused| refused.index).min() {
                let inserted = put(namespace, &documents[..first], start, ordered, failed)?;
                if failed.is_empty() {
                    failed.push((start + first, error));
                }
                return Ok(inserted);
            }
            let (left, right) = documents.split_at(documents.len() / 2);
            let mut inserted = put(namespace, left, start, ordered, failed)?;
            if !ordered || failed.is_empty() {
                inserted += put(namespace, right, start + left.len(), ordered, failed)?;
            }
            Ok(inserted)
        }
    }
}

/// An update of one or many documents, or the replacement of one.
#[derive(Debug)]
pub struct Update<'a> {
    /// of which documents
    pub filter: Source<'a>,
    /// what is done to them
    pub update: Source<'a>,
    /// what that may be
    pub style: Style,
    /// all that match, or one
    pub many: bool,
    /// insert a document if none matched
    pub upsert: bool,
    /// the conditions that `$[identifier]` names
    pub array_filters: Option<&'a Json>,
    /// of one: the first in this order
    pub sort: Option<&'a Json>,
    /// the rest
    pub shared: Shared<'a>,
}

impl<'a> Update<'a> {
    /// The update that arguments ask for, of one document; `variables` are a batch's.
    pub fn of(
        filter: Source<'a>,
        update: Source<'a>,
        style: Style,
        arguments: &Arguments<'a>,
        variables: Option<&'a Json>,
    ) -> Self {
        Self {
            filter,
            update,
            style,
            many: false,
            upsert: arguments.flag("upsert"),
            array_filters: arguments.get("arrayFilters"),
            sort: arguments.get("sort"),
            shared: Shared::of(arguments, variables),
        }
    }

    /// The same, of all documents that match.
    #[must_use]
    pub fn of_many(self, many: bool) -> Self {
        Self { many, ..self }
    }

    /// Updates.
    ///
    /// # Errors
    /// Those of the parsers and of [`change::update`].
    pub fn run(&self, namespace: &str) -> Result<Updated> {
        let query = self.shared.query(namespace, self.filter, None)?;
        let modification = modification(self.update, self.style, self.array_filters, &query)?;
        if self.many && modification.update.is_replacement() {
            let message = "multi update is not supported for replacement-style update";
            return Err(Error::new(Kind::FailedToParse, message));
        }
        let change = Change {
            query: &query,
            modification: &modification,
            many: self.many,
            upsert: self.upsert,
            sort: source::sort(self.sort, query.setting.as_ref())?,
        };
        change::update(namespace, &change)
    }
}

/// An update, parsed, unless the session has met its text before.
///
/// # Errors
/// Those of [`Modification::parse`].
pub fn modification(
    update: Source<'_>,
    style: Style,
    array_filters: Option<&Json>,
    query: &Query,
) -> Result<Rc<Modification>> {
    Modification::parse(&update.text(), || update.value(), style, array_filters, query)
}

/// A deletion of one or many documents.
#[derive(Debug)]
pub struct Delete<'a> {
    /// of which documents
    pub filter: Source<'a>,
    /// all that match, or one
    pub many: bool,
    /// the rest
    pub shared: Shared<'a>,
}

impl Delete<'_> {
    /// Deletes; answers how many documents.
    ///
    /// # Errors
    /// Those of the filter's parser and of [`change::delete`].
    pub fn run(&self, namespace: &str) -> Result<i64> {
        change::delete(namespace, &self.shared.query(namespace, self.filter, None)?, self.many)
    }
}
