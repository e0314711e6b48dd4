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

/// MongoDB's limit.
pub const MAX_BATCH: usize = 100_000;

pub fn check_size(count: usize) -> Result<()> {
    if (1..=MAX_BATCH).contains(&count) {
        return Ok(());
    }
    let message = format!("Write batch sizes must be between 1 and {MAX_BATCH}. Got {count} operations.");
    Err(Error::new(Kind::InvalidLength, message))
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
    Storable::new(&write::value(&ext_json::from_json(json)?)?)
}

/// Inserts documents and returns how many were inserted. Failures are added to `failed` with their positions; if
/// `ordered`, the first ends the batch.
pub fn insert_each(
    namespace: &str,
    documents: &[Storable],
    ordered: bool,
    failed: &mut Vec<(usize, Error)>,
) -> Result<i64> {
    put(namespace, documents, 0, ordered, failed)
}

/// Like [`insert_each`]; `start` is the position of the first document in the batch.
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
        // In an ordered batch no document after the first failure may stay.
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
    pub filter: Source<'a>,
    pub update: Source<'a>,
    pub style: Style,
    pub many: bool,
    pub upsert: bool,
    pub array_filters: Option<&'a Json>,
    pub sort: Option<&'a Json>,
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

    #[must_use]
    pub fn of_many(self, many: bool) -> Self {
        Self { many, ..self }
    }

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

pub fn modification(
    update: Source<'_>,
    style: Style,
    array_filters: Option<&Json>,
    query: &Query,
) -> Result<Rc<Modification>> {
    Modification::parse(&update.text(), || update.value(), style, array_filters, query)
}

#[derive(Debug)]
pub struct Delete<'a> {
    pub filter: Source<'a>,
    pub many: bool,
    pub shared: Shared<'a>,
}

impl Delete<'_> {
    pub fn run(&self, namespace: &str) -> Result<i64> {
        change::delete(namespace, &self.shared.query(namespace, self.filter, None)?, self.many)
    }
}
