//! Runs plans of reads.

use super::dispatch::reading;
use super::lost_shards::LostShards;
use super::merged_rows::MergedRows;
use super::rows::{Observed, RowStream, ShardRow};
use super::session;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Result;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::order::Order;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::routing::plan::{AccessPath, Allowed, Plan, pipeline};
use std::rc::Rc;
use std::time::Instant;

/// The result of a find.
pub struct Documents {
    rows: MergedRows,
    skip: u64,
    left: u64,
    lost: Option<Rc<LostShards>>,
}

impl Documents {
    /// Returns at most `left` rows of the streams, in any order.
    pub fn of_streams(streams: Vec<RowStream>, left: u64) -> Self {
        Self { rows: MergedRows::new(streams, Order::None), skip: 0, left, lost: None }
    }

    /// Returns the rows of a plan's streams, in its order and within its limits.
    pub fn of_plan(streams: Vec<RowStream>, plan: &Plan) -> Self {
        let rows = MergedRows::new(streams, plan.order);
        Self { rows, skip: plan.skip, left: plan.limit.unwrap_or(u64::MAX), lost: None }
    }

    /// The rows as the shards return them: `skip` and `limit` are not applied.
    pub fn into_rows(self) -> MergedRows {
        self.rows
    }

    /// Reads the shards' rows to the end, and discards them.
    pub fn drain(&mut self) -> Result<()> {
        self.rows.drain()
    }

    /// True if documents of unreachable shards are missing in the rows that were returned so far.
    pub fn is_partial(&self) -> bool {
        self.lost.as_deref().is_some_and(|lost| !lost.is_empty())
    }

    pub fn next_document(&mut self) -> Result<Option<RawJsonb>> {
        Ok(self.next_row()?.and_then(|row| row.get(0).map(RawJsonb::from_bytes)))
    }

    /// Returns the next row, whose first column is a document. Its bytes have been validated, and can be read as jsonb.
    pub fn next_row(&mut self) -> Result<Option<ShardRow>> {
        while self.skip > 0 {
            self.skip -= 1;
            if self.rows.next_row()?.is_none() {
                (self.skip, self.left) = (0, 0);
            }
        }
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let Some(row) = self.rows.next_row()? else { return Ok(None) };
        // NULL, which only a read by a document's key returns, means that there is no document. Such a read goes to one shard, so
        // no other row follows.
        let is_found = row.document(0)?.is_some();
        Ok(is_found.then_some(row))
    }
}

/// Returns one stream for each destination, or None if a shard declined, which only [`AccessPath::IndexRange`] allows.
pub fn rows(collection: &Collection, plan: &Plan) -> Result<Option<Vec<RowStream>>> {
    rows_unless_lost(collection, plan, None)
}

fn rows_unless_lost(
    collection: &Collection,
    plan: &Plan,
    lost: Option<&Rc<LostShards>>,
) -> Result<Option<Vec<RowStream>>> {
    let Plan { destinations, path, statement, .. } = plan;
    let streams = match path {
        AccessPath::Nothing => Vec::new(),
        AccessPath::BoundedSort { .. } => {
            let streams = reading::read_ahead(collection, destinations, statement, lost)?;
            streams.into_iter().map(RowStream::in_parts).collect()
        }
        _ => reading::read_unless_lost(collection, destinations, statement, lost)?,
    };
    let AccessPath::IndexRange { finds, .. } = path else { return Ok(Some(streams)) };
    let mut answers = Vec::with_capacity(streams.len());
    for mut stream in streams {
        let answer = stream.next_row()?.filter(|answer| answer.get(0).is_some());
        while stream.next_row()?.is_some() {}
        answers.push(answer);
    }
    let answers: Option<Vec<ShardRow>> = answers.into_iter().collect();
    if answers.is_none() {
        session::declined().note(*finds);
    }
    answers.map(|answers| answers.iter().map(RowStream::packed).collect()).transpose()
}

/// Returns the list in which unreachable shards are noted; None if an unreachable shard is an error.
fn lost(plan: &Plan) -> Option<Rc<LostShards>> {
    plan.allow_partial.then(Rc::default)
}

/// Like [`rows`], with the measurements of each destination; None if a shard declined. A destination's measurements are complete when its
/// stream has been read to the end.
pub fn observed_rows(collection: &Collection, plan: &Plan) -> Result<Option<Vec<(RowStream, Observed)>>> {
    let lost = lost(plan);
    if let Some(statement) = pipeline::explained(collection, plan)? {
        let streams = reading::read_ahead(collection, &plan.destinations, &statement, lost.as_ref())?;
        let observe = |rows| {
            let observed = Observed::default();
            (RowStream::observed(rows, Rc::clone(&observed)), observed)
        };
        return Ok(Some(streams.into_iter().map(observe).collect()));
    }
    let began = Instant::now();
    let count = |rows| {
        let observed = Observed::default();
        (RowStream::Counted(Box::new(rows), began, Rc::clone(&observed)), observed)
    };
    let streams = rows_unless_lost(collection, plan, lost.as_ref())?;
    Ok(streams.map(|streams| streams.into_iter().map(count).collect()))
}

/// Returns the rows of all destinations, merged in the plan's order.
pub fn merged(collection: &Collection, plan: &Plan) -> Result<MergedRows> {
    Ok(MergedRows::new(rows(collection, plan)?.unwrap_or_default(), plan.order))
}

/// Returns the result of a find; None if a shard declined.
pub fn documents(collection: &Collection, plan: &Plan) -> Result<Option<Documents>> {
    let lost = lost(plan);
    let Some(streams) = rows_unless_lost(collection, plan, lost.as_ref())? else { return Ok(None) };
    if let Some(lost) = &lost {
        lost.report();
    }
    Ok(Some(Documents { lost, ..Documents::of_plan(streams, plan) }))
}

/// A shard, and its measurements.
pub type Part = (ShardId, Observed);

/// Like [`documents`], with the measurements of each shard; None if a shard declined.
pub fn observed_documents(collection: &Collection, plan: &Plan) -> Result<Option<(Documents, Vec<Part>)>> {
    let Some(streams) = observed_rows(collection, plan)? else { return Ok(None) };
    let (streams, observed): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
    let parts = plan.destinations.iter().map(|to| to.shard).zip(observed).collect();
    Ok(Some((Documents::of_plan(streams, plan), parts)))
}

/// Returns the documents that stages at the shards make. Shards send them packed, several in each row.
pub fn in_parts(collection: &Collection, plan: &Plan) -> Result<Documents> {
    let streams = reading::read_ahead(collection, &plan.destinations, &plan.statement, None)?;
    let rows = MergedRows::new(streams.into_iter().map(RowStream::in_parts).collect(), plan.order);
    Ok(Documents { rows, skip: 0, left: u64::MAX, lost: None })
}

/// Runs a statement of [`AccessPath::Key`]; None if there is no such document.
pub fn document(collection: &Collection, destination: Destination, statement: &Statement) -> Result<Option<RawJsonb>> {
    let streams = reading::read(collection, &[destination], statement)?;
    Documents::of_streams(streams, 1).next_document()
}

/// Calls `attempt` with the access paths `first`. If it returns None, because a shard declined, calls it with those of
/// PostgreSQL's planner.
pub fn unless_declined<T>(first: Allowed<'_>, mut attempt: impl FnMut(Allowed<'_>) -> Result<Option<T>>) -> Result<T> {
    for allowed in [first, Allowed::Planned] {
        if let Some(done) = attempt(allowed)? {
            return Ok(done);
        }
    }
    Err(error!(Kind::InternalError, "every plan was declined"))
}
