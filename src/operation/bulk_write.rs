//! `bulk_write`: many writes in one call, each of which succeeds or fails by itself. Consecutive inserts run together; if that
//! fails, they run one by one.

use super::arguments::{Arguments, Form};
use super::errors::is_of_one_operation;
use super::request_parts::Specification;
use super::table::BULK_OPERATIONS;
use super::writing::{DocumentWrite, each, storable};
use crate::pg::error::Result;
use crate::pg::transaction::subtransaction::attempt;
use crate::router::writes::insert::{self, WriteError};
use docshard_core::error::{Kind, error};
use docshard_core::query::update::Style;
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;

#[derive(Debug)]
pub enum BulkOperation<'a> {
    Insert(&'a Json),
    Write(DocumentWrite<'a>),
}

impl<'a> BulkOperation<'a> {
    /// Parses an operation such as `{"insertOne": {"document": …}}`. Filters and updates are parsed when it runs.
    pub fn parse(index: usize, json: &'a Json, variables: Option<&'a Json>) -> Result<Self> {
        let malformed = |message: String| error!(Kind::FailedToParse, "operation {index}: {message}");
        let names = || BULK_OPERATIONS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let Some((given, arguments)) =
            json.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.iter().next())
        else {
            return Err(malformed(format!("it must be an object with one field, named one of {}", names())));
        };
        let Some((name, declared)) = BULK_OPERATIONS.iter().find(|(name, _)| name == given) else {
            return Err(
                malformed(format!("unknown operation \"{given}\"")).with_hint(format!("Known are: {}.", names()))
            );
        };
        let arguments = Arguments::parse(arguments, Form::Operation(index, name), declared)?;
        if *name == "insertOne" {
            return Ok(Self::Insert(arguments.get("document").unwrap_or(&Json::Null)));
        }
        let style = if *name == "replaceOne" { Style::Replacement } else { Style::Operators };
        let update = (!name.starts_with("delete")).then(|| (Specification::of(arguments.get("update")), style));
        let filter = Specification::of(arguments.get("filter"));
        Ok(Self::Write(DocumentWrite::of(filter, update, name.ends_with("Many"), &arguments, variables)))
    }
}

/// The sum of all results. Inserted and upserted `_id`s have the positions of their operations as names.
#[derive(Debug, Default)]
pub struct Totals {
    pub inserted: Vec<(String, Value)>,
    pub matched: i64,
    pub modified: i64,
    pub deleted: i64,
    pub upserted: Vec<(String, Value)>,
    pub errors: Vec<WriteError>,
}

/// Runs the writes in order; if `ordered`, it stops at the first failure.
pub fn run(namespace: &str, writes: &[BulkOperation<'_>], ordered: bool) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut next = 0;
    while next < writes.len() && (!ordered || totals.errors.is_empty()) {
        let inserts = writes[next..].iter().take_while(|write| matches!(write, BulkOperation::Insert(_))).count();
        let some = &writes[next..next + inserts.max(1)];
        if inserts < 2 || !totals.insert_together(namespace, next, some)? {
            let errors = each(some, ordered, |at, write| totals.run(namespace, next + at, write))?;
            totals.errors.extend(errors.into_iter().map(|failed| WriteError { index: next + failed.index, ..failed }));
        }
        next += some.len();
    }
    Ok(totals)
}

impl Totals {
    fn run(&mut self, namespace: &str, index: usize, write: &BulkOperation<'_>) -> Result<()> {
        match write {
            BulkOperation::Insert(document) => {
                let inserted = insert::insert_all(namespace, vec![storable(document)?])?;
                self.inserted.extend(inserted.into_iter().map(|document| (index.to_string(), document.id)));
            }
            BulkOperation::Write(write) => {
                let done = write.run(namespace)?;
                if write.update.is_none() {
                    self.deleted += done.matched;
                } else {
                    self.matched += done.matched;
                }
                self.modified += done.modified;
                self.upserted.extend(done.upserted.map(|id| (index.to_string(), id)));
            }
        }
        Ok(())
    }

    /// Runs consecutive inserts as one statement; `first` is the position of the first one. Returns false if they must run one
    /// by one.
    fn insert_together(&mut self, namespace: &str, first: usize, inserts: &[BulkOperation<'_>]) -> Result<bool> {
        let inserted = attempt(|| {
            let documents = inserts.iter().filter_map(|write| match write {
                BulkOperation::Insert(document) => Some(storable(document)),
                _ => None,
            });
            insert::insert_all(namespace, documents.collect::<Result<Vec<_>>>()?)
        });
        match inserted {
            Ok(documents) => {
                let ids = documents.into_iter().enumerate();
                self.inserted.extend(ids.map(|(at, document)| ((first + at).to_string(), document.id)));
                Ok(true)
            }
            Err(error) if is_of_one_operation(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
