//! An UPDATE or DELETE that shards execute alone, as one `update_many` or `delete_many`, without sending rows here.
//!
//! It has the same effect as reading the rows and writing each: all conditions are exact, and the new values are known before. A
//! document with a value that does not fit a column of a condition must be an error, as it is when it is read. So if [`unproven`]
//! names columns, a find first looks for such a document, and the write excludes such documents. If a document changes between
//! find and write, its shard evaluates the write's filter again after locking it.

use super::column::Layout;
use super::fitting::{fits, unproven};
use super::modify::{arrays_on_the_way, changes, shared};
use super::scan::{CollectionScan, Request};
use super::sorting;
use crate::operation::request_parts::Specification;
use crate::operation::writing::DocumentWrite;
use crate::pg::error::Result;
use crate::pg::fdw::value::SqlValue;
use crate::pg::fdw::{DirectWrite, Misfit, Scan, ScanPlan};
use crate::router::reads::find;
use docshard_core::query::update::Style;
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

/// True if it can be checked that values fit the columns `compared`, and the columns `set` can be set in many documents at once.
/// `key`: the fields of the shard key.
pub fn can(layout: &Layout, compared: &[i16], set: &[i16], key: &[&str]) -> bool {
    let is_within =
        |path: &str, other: &str| path == other || path.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'));
    let can_set = |number: &i16| {
        layout.column(*number).is_some_and(|column| {
            let path = &column.path;
            let identifies = |field: &&str| is_within(path, field) || is_within(field, path);
            !path.is_empty() && arrays_on_the_way(path).next().is_none() && !key.iter().chain(&["_id"]).any(identifies)
        })
    };
    let can_check = |number: &i16| layout.column(*number).is_some_and(|column| fits(column).is_some());
    compared.iter().all(can_check) && set.iter().all(can_set)
}

pub struct DirectScan {
    scan: CollectionScan,
    write: DirectWrite,
    written: i64,
}

/// Adds a condition to a filter that was made of conditions on columns, and so has no `$expr` yet.
fn with_expression(filter: &Json, expression: Json) -> Json {
    let mut filter: Map<String, Json> = filter.as_object().cloned().unwrap_or_default();
    filter.insert("$expr".to_owned(), expression);
    filter.into()
}

impl DirectScan {
    pub fn new(layout: Rc<Layout>, plan: &ScanPlan, write: &DirectWrite, is_of_other_user: bool) -> Result<Self> {
        let scan = CollectionScan::new(layout, plan, &plan.columns, is_of_other_user)?;
        Ok(Self { scan, write: write.clone(), written: 0 })
    }

    /// The update in MongoDB's form; None: the documents are deleted.
    fn update(&self, operands: &[Option<SqlValue>]) -> Result<Option<Json>> {
        let layout = self.scan.layout();
        let Some(set) = &self.write.set else { return Ok(None) };
        let value = |(number, operand): &(i16, usize)| Ok((layout.valid_column(*number)?, operands.get(*operand)));
        let new = set.iter().map(value).collect::<Result<Vec<_>>>()?;
        changes(new.into_iter().map(|(column, value)| (column, value.and_then(Option::as_ref)))).map(Some)
    }
}

impl Scan for DirectScan {
    fn start(&mut self, operands: Vec<Option<SqlValue>>, limit: Option<u64>) -> Result<()> {
        let namespace = self.scan.layout().options.namespace.clone();
        find::check(&namespace)?;
        let update = self.update(&operands)?;
        let Some(Request { filter, options }) = self.scan.request(&operands, limit)? else { return Ok(()) };
        let expressions: Vec<Json> = unproven(&self.scan)?.into_iter().filter_map(fits).collect();
        if !expressions.is_empty() {
            let misfits = with_expression(&filter, json!({"$not": [{"$and": expressions}]}));
            self.scan.find(&Request { filter: misfits, options })?;
            while self.scan.next_row(&mut |_, _| Ok(()))? {
                if let Some(misfit) = self.scan.take_misfit() {
                    return Err(misfit.error);
                }
            }
        }
        let filter = match &*expressions {
            [] => filter,
            expressions => with_expression(&filter, json!({"$and": expressions})),
        };
        let write = DocumentWrite {
            filter: Specification::Value(&filter),
            update: update.as_ref().map(|update| (Specification::Value(update), Style::Operators)),
            many: true,
            // As in SQL, a row that has the new values already is locked, too. So if another transaction changes it meanwhile, it is updated.
            locks: update.is_some(),
            shared: shared(&namespace)?,
            ..DocumentWrite::default()
        };
        self.written = write.run(&namespace)?.matched;
        Ok(())
    }

    fn next_row(&mut self, _put: &mut dyn FnMut(i16, SqlValue) -> Result<()>) -> Result<bool> {
        Ok(false)
    }

    fn written(&self) -> Option<u64> {
        self.written.try_into().ok()
    }

    fn refuse_newer(&self, command: u32) -> Result<()> {
        self.scan.refuse_newer(command)
    }

    fn take_misfit(&mut self) -> Option<Misfit> {
        None
    }

    fn stop(&mut self) {
        self.scan.stop();
    }

    fn explain(
        &self,
        operands: Vec<Option<SqlValue>>,
        limit: Option<u64>,
        verbose: bool,
    ) -> Result<Vec<(String, String)>> {
        let first = self.write.set.iter().flatten().map(|(_, operand)| *operand).min();
        let compared = operands.iter().take(first.unwrap_or(operands.len())).cloned().collect();
        let mut shown = self.scan.explain(compared, limit, verbose)?;
        shown.extend(self.update(&operands)?.map(|update| ("Update at Shards".to_owned(), sorting::readable(&update))));
        Ok(shown)
    }
}
