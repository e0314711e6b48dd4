//! Writes the documents of a pipeline that ends with `$merge` or `$out`.
//!
//! Both are part of the caller's transaction. `$merge` reads and writes documents in batches. The pipeline's reads keep the
//! snapshot in which they began, so a pipeline may write the collection that it reads. `$out` first reads all documents, into a
//! temporary file if memory is short, then deletes the old documents and inserts the new ones.
//!
//! `$merge` with `whenNotMatched: "insert"` first tries to insert the documents of a batch together. Documents whose keys exist in the
//! collection, or occur earlier in the batch, are not inserted. Their targets are then updated together, by key or by the unique index of
//! `on`. Two kinds of documents are written one by one: those whose target another client has changed or deleted meanwhile; and all
//! documents, if the pipeline of `whenMatched` can change a field of `on`, because then a document may match the updated target of another
//! one. The latter is impossible if `on` is the shard key with `_id`, which an update cannot change.

use crate::catalog::cache;
use crate::catalog::collections::grants::{self, Level};
use crate::catalog::collections::namespace;
use crate::catalog::collections::views;
use crate::pg::error::{DuplicateKey, Error, Result};
use crate::pg::fault;
use crate::pg::memory::stages::StageMemory;
use crate::pg::transaction;
use crate::router::reads::aggregate::Results;
use crate::router::session;
use crate::router::writes::insert::{self, Storable};
use crate::router::writes::keyed_updates::{self, KeyedOutcome, KeyedUpdate};
use crate::router::writes::{clear, modify};
use docshard_core::error::{Kind, error};
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::{
    Memory, Merging, Pipeline, Sink, WhenMatched, WhenNotMatched, target_filter, with_nulls,
};
use docshard_core::query::update::Style;
use docshard_core::routing::model::{Collection, Index};
use docshard_core::routing::request::modification::{Modification, Write};
use docshard_core::routing::request::query::Query;
use docshard_core::values::collation::Collator;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::raw::{self, RawObject, RawValue};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write;
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use std::sync::Arc;

/// The limits of a batch.
const BATCH_DOCUMENTS: usize = 2000;
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// How often a document is tried while other clients insert and delete documents with its key.
const ATTEMPTS: usize = 5;

/// Checks the target of a pipeline that writes, and prepares to write; None if the pipeline does not end with `$merge` or `$out`.
/// Errors: `Location51183`, `Location28769`, those of [`check_special`]; `InvalidNamespace`, `CommandNotSupportedOnView`, `Unauthorized`;
/// 25006 in a read-only transaction.
pub fn prepare<'p>(source: &str, pipeline: &'p Pipeline, environment: &'p Environment) -> Result<Option<Writing<'p>>> {
    let Some(sink) = pipeline.sink() else { return Ok(None) };
    let (database, _) = source.split_once('.').unwrap_or((source, ""));
    // A dot in the database's name would make another namespace.
    namespace::check_database(sink.target().database.as_deref().unwrap_or(database))?;
    let target = sink.target().namespace(database);
    check_special(sink, &target)?;
    namespace::split(&target)?;
    transaction::refuse_if_read_only(c"aggregate");
    views::refuse(&target)?;
    let collection = cache::find(&target)?;
    if let Some(collection) = &collection {
        grants::require(collection, Level::Write)?;
    }
    Ok(Some(match sink {
        Sink::Merge(merging) => {
            Writing::Merge(Box::new(Merge::new(target, merging, collection.as_deref(), environment)?))
        }
        Sink::Out(_) => {
            collection.as_deref().map_or(Ok(()), clear::check_unsharded)?;
            Writing::Replace(target)
        }
    }))
}

/// Refuses collections and databases of the system.
fn check_special(sink: &Sink, target: &str) -> Result<()> {
    let (stage, collection_code, database_code) = match sink {
        Sink::Merge(_) => ("$merge", 31319, 31320),
        Sink::Out(_) => ("$out", 17385, 31321),
    };
    let (database, collection) = target.split_once('.').unwrap_or((target, ""));
    if collection.starts_with("system.") {
        let message = format!("Cannot {stage} to special collection: {collection}");
        return Err(Error::new(Kind::Location(collection_code), message));
    }
    if namespace::is_internal(database) {
        let message = format!("Cannot {stage} to internal database: {database}");
        return Err(Error::new(Kind::Location(database_code), message));
    }
    Ok(())
}

/// How the documents of a pipeline are written.
pub enum Writing<'p> {
    Merge(Box<Merge<'p>>),
    /// they replace the documents of this collection
    Replace(String),
}

impl Writing<'_> {
    pub fn run(&self, documents: &mut Results) -> Result<()> {
        match self {
            Writing::Merge(merge) => merge.run(documents),
            Writing::Replace(target) => replace(target, documents),
        }
    }
}

fn replace(target: &str, documents: &mut Results) -> Result<()> {
    let mut kept = StageMemory::new(true).rows()?;
    let reader = kept.reader();
    let mut left: u64 = 0;
    while let Some(document) = documents.next_bytes()? {
        kept.add(document)?;
        left += 1;
    }
    clear::clear(target)?;
    fault::point("out.cleared")?;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while left > 0 {
        let document = Storable::new(kept.next(reader)?)?;
        left -= 1;
        bytes += document.bytes.len();
        batch.push(document);
        if left == 0 || batch.len() >= BATCH_DOCUMENTS || bytes >= BATCH_BYTES {
            insert::insert_all(target, std::mem::take(&mut batch))?;
            bytes = 0;
            fault::point("out.written")?;
        }
    }
    Ok(())
}

/// A `$merge` into a collection.
pub struct Merge<'p> {
    target: String,
    merging: &'p Merging,
    on: Vec<String>,
    /// `on` is the shard key with `_id`
    by_document_key: bool,
    /// documents without a value at `on` are merged with the one that has none, as the unique index has an entry for it
    allows_null: bool,
    /// the environment of the pipeline
    environment: &'p Environment,
    /// compares the values at `on`
    collator: Option<Arc<Collator>>,
    /// the environment of the filter that finds the matching document
    filter_environment: Environment,
    /// the pipeline of `whenMatched`, if it is one, and its text
    stages: Option<(Json, String)>,
}

/// A document that is to be merged.
struct Item {
    /// the document with an `_id`, as it is inserted
    new: Storable,
    /// the pipeline's document, if it has no `_id`
    given: Option<Vec<u8>>,
    /// the filter that matches the target
    filter: Json,
    /// the values at `on`; equal for documents with the same target
    key: Vec<u8>,
}

impl Item {
    fn object(&self) -> Result<RawObject<'_>> {
        object(self.given.as_deref().unwrap_or(&self.new.bytes))
    }
}

fn object(bytes: &[u8]) -> Result<RawObject<'_>> {
    raw::document(bytes).ok_or_else(|| error!(Kind::InternalError, "a pipeline made no document"))
}

impl<'p> Merge<'p> {
    fn new(
        target: String,
        merging: &'p Merging,
        collection: Option<&Collection>,
        environment: &'p Environment,
    ) -> Result<Self> {
        let key = document_key(collection);
        let on = merging.on.clone().unwrap_or_else(|| key.clone());
        let allows_null = check_unique(collection, &on, environment.collator().map(AsRef::as_ref))?;
        let by_document_key = same(&on, &key);
        // Shard key and `_id` are compared bytewise, without a collation.
        let collator = environment.collator().filter(|_| !by_document_key).cloned();
        let collation = collator.as_deref().map(Collator::definition);
        let filter_environment = Environment::of_statement(collation, None, session::session())?;
        let stages = merging.matched.stages().map(|stages| {
            let text = stages.to_string();
            (stages, text)
        });
        Ok(Self {
            target,
            merging,
            on,
            by_document_key,
            environment,
            collator,
            allows_null,
            filter_environment,
            stages,
        })
    }

    fn run(&self, documents: &mut Results) -> Result<()> {
        loop {
            let (mut items, mut bytes) = (Vec::new(), 0);
            while items.len() < BATCH_DOCUMENTS && bytes < BATCH_BYTES {
                let Some(document) = documents.next_bytes()? else { break };
                bytes += document.len();
                items.push(self.item(document)?);
            }
            if items.is_empty() {
                return Ok(());
            }
            self.write(items)?;
            // If another client has dropped the unique index, documents may have been inserted that match existing ones: an error.
            let allows_null = check_unique(
                cache::find(&self.target)?.as_deref(),
                &self.on,
                self.environment.collator().map(AsRef::as_ref),
            )?;
            if self.allows_null && !allows_null {
                return Err(not_unique());
            }
            fault::point("merge.written")?;
        }
    }

    fn item(&self, document: &[u8]) -> Result<Item> {
        let new = Storable::new(document)?;
        let has_id = object(document)?.get("_id").is_some() || self.on.iter().any(|path| path == "_id");
        let given = (!has_id).then(|| document.to_vec());
        let document = object(given.as_deref().unwrap_or(&new.bytes))?;
        let (filter, key) = target_filter(document, &self.on, self.allows_null, self.collator.as_deref())?;
        let completed = if self.allows_null { with_nulls(document, &self.on)? } else { None };
        let Some(completed) = completed else {
            return Ok(Item { new, given, filter, key });
        };
        let given = Some(given.unwrap_or_else(|| new.bytes.clone()));
        Ok(Item { new: Storable::new(&write::value(&completed)?)?, given, filter, key })
    }

    fn write(&self, items: Vec<Item>) -> Result<()> {
        match (&self.merging.matched, self.merging.not_matched) {
            (WhenMatched::Fail, _) => {
                insert::insert_all(&self.target, items.into_iter().map(|item| item.new).collect())?;
            }
            (_, WhenNotMatched::Insert) => {
                // One statement must not insert two documents of one key.
                let mut keys = HashSet::new();
                let (first, mut others): (Vec<usize>, Vec<usize>) =
                    (0..items.len()).partition(|at| keys.insert(&items[*at].key));
                let documents: Vec<&Storable> = first.iter().map(|at| &items[*at].new).collect();
                let taken = insert::insert_free(&self.target, &documents).map_err(conflict)?;
                others.extend(taken.iter().map(|index| first[*index]));
                others.sort_unstable();
                let others: Vec<&Item> = others.iter().map(|at| &items[*at]).collect();
                for (item, changed) in others.iter().zip(self.change_all(&others)?) {
                    if !changed {
                        self.change_or_insert(item)?;
                    }
                }
            }
            (_, otherwise) => {
                let changed = self.change_all(&items.iter().collect::<Vec<_>>())?;
                if otherwise == WhenNotMatched::Fail && changed.contains(&false) {
                    let message = "$merge could not find a matching document in the target collection for at \
                                   least one document in the source collection";
                    return Err(Error::new(Kind::MergeStageNoMatchingDocument, message));
                }
            }
        }
        Ok(())
    }

    /// Writes a document that was not inserted because its key existed, and whose target was not found afterwards: the document with that key
    /// has been deleted, or does not match.
    fn change_or_insert(&self, item: &Item) -> Result<()> {
        let update = self.update(item)?;
        let mut attempts = 0;
        while !self.change(&update)? {
            let Some(refused) = insert::insert_unordered(&self.target, &[&item.new])?.pop() else { break };
            attempts += 1;
            if attempts == ATTEMPTS {
                let is_of_on = |duplicate: &DuplicateKey| {
                    let paths: Vec<String> = duplicate.fields.iter().map(|(path, _)| path.clone()).collect();
                    same(&self.on, &paths)
                };
                // A duplicate in `on` that the update did not match: the statement's snapshot does not show the other document.
                let is_invisible = refused.error.duplicate.as_deref().is_some_and(is_of_on);
                return Err(if is_invisible { conflict(refused.error) } else { refused.error });
            }
        }
        Ok(())
    }

    /// Changes the targets of these documents; returns for each document whether there is a target.
    fn change_all(&self, items: &[&Item]) -> Result<Vec<bool>> {
        let mut changed = Vec::with_capacity(items.len());
        while let Some(rest) = items.get(changed.len()..).filter(|rest| !rest.is_empty()) {
            // The stages and the variables of an update may be much larger than the document.
            let (mut updates, mut bytes) = (Vec::new(), 0);
            for item in rest {
                let update = self.update(item)?;
                bytes += update.query.text().len() + update.modification.text.len();
                updates.push(update);
                if bytes >= BATCH_BYTES {
                    break;
                }
            }
            changed.extend(self.change_batch(&updates)?);
        }
        Ok(changed)
    }

    fn change_batch(&self, updates: &[KeyedUpdate]) -> Result<Vec<bool>> {
        let keeps_fields =
            |update: &KeyedUpdate| self.on.iter().all(|path| update.modification.update.pipeline_keeps(path));
        if !self.by_document_key && !updates.iter().all(keeps_fields) {
            return updates.iter().map(|update| self.change(update)).collect();
        }
        let outcomes = keyed_updates::update(&self.target, updates)?;
        let changed = |(update, outcome): (&KeyedUpdate, KeyedOutcome)| match outcome {
            KeyedOutcome::Matched => Ok(true),
            KeyedOutcome::Missing => Ok(false),
            KeyedOutcome::NotKeyed => self.change(update),
        };
        updates.iter().zip(outcomes).map(changed).collect()
    }

    /// Changes the matching document; returns false if there is none.
    fn change(&self, update: &KeyedUpdate) -> Result<bool> {
        let write = Write::of_one(&update.query, Some(&update.modification));
        Ok(modify::write(&self.target, &write)?.matched > 0)
    }

    /// Returns the update of a document's target.
    fn update(&self, item: &Item) -> Result<KeyedUpdate> {
        let now = session::now();
        let query = Query::of(&item.filter, &item.filter.to_string(), self.filter_environment.clone())?;
        let modification = match &self.stages {
            // The update changes nothing: it only finds out whether there is a target.
            _ if self.merging.matched == WhenMatched::KeepExisting => Modification::keeping_key(
                r#"{"$set":{}}"#,
                &json!({"$set": {}}),
                Style::Operators,
                &Environment::default(),
                now,
            ),
            Some((stages, text)) => {
                let variables = self.merging.variables(item.object()?, self.environment)?;
                let environment = self.environment.and(variables)?;
                Modification::keeping_key(text, stages, Style::Operators, &environment, now)
            }
            None => {
                let document = ext_json::to_typed_json(&Value::from_raw(RawValue::Object(item.object()?)));
                let style = if self.merging.matched == WhenMatched::Merge { Style::Merge } else { Style::Replacement };
                Modification::keeping_key(&document.to_string(), &document, style, &Environment::default(), now)
            }
        }?;
        Ok(KeyedUpdate { query, modification })
    }
}

/// Returns the paths whose combination is unique in every collection: the shard key and `_id`.
fn document_key(collection: Option<&Collection>) -> Vec<String> {
    let fields = collection.into_iter().flat_map(|collection| &collection.key.fields);
    let mut paths: Vec<String> = fields.map(|(path, _)| path.clone()).collect();
    if !paths.iter().any(|path| path == "_id") {
        paths.push("_id".to_owned());
    }
    paths
}

fn same(some: &[String], others: &[String]) -> bool {
    some.len() == others.len() && some.iter().all(|path| others.contains(path))
}

/// Turns a duplicate key error into a write conflict: another client has inserted a document with a key that was free, or a document that the
/// snapshot does not show.
fn conflict(error: Error) -> Error {
    match error.duplicate {
        Some(_) => error!(Kind::WriteConflict, "could not serialize access: {}", error.message)
            .with_hint("Run the transaction again."),
        None => error,
    }
}

fn not_unique() -> Error {
    Error::new(Kind::Location(51183), "Cannot find index to verify that join fields will be unique").with_hint(
        "'on' must be the fields of a unique index that is not partial, has the statement's collation, and holds the \
         shard key.",
    )
}

/// Fails with `Location51183` if two documents of the collection may have equal values at all of these paths. True if at most one document has no
/// value, or null, at all of them.
fn check_unique(collection: Option<&Collection>, on: &[String], collator: Option<&Collator>) -> Result<bool> {
    if same(on, &document_key(collection)) {
        return Ok(false);
    }
    if let Some(collection) = collection {
        let key: Vec<String> = collection.key.fields.iter().map(|(path, _)| path.clone()).collect();
        let mut indexes = unique_indexes(collection, &key, on, collator).peekable();
        let is_unique_key = collection.unique && collator.is_none() && same(on, &key);
        if is_unique_key || indexes.peek().is_some() {
            return Ok(indexes.any(|index| !index.sparse));
        }
    }
    Err(not_unique())
}

/// The unique indexes of exactly these paths that are not partial. `key`: the paths of the shard key.
fn unique_indexes<'c>(
    collection: &'c Collection,
    key: &[String],
    on: &[String],
    collator: Option<&Collator>,
) -> impl Iterator<Item = &'c Index> {
    collection.indexes.iter().filter(move |index| {
        let fields: Vec<String> = index.fields().iter().map(|(path, _)| path.clone()).collect();
        index.unique
            && index.partial_filter().is_none()
            && index.keys.wildcard.is_none()
            && index.collation().map(|own| own.definition()) == collator.map(Collator::definition)
            && same(on, &fields)
            && key.iter().all(|path| on.contains(path))
    })
}
