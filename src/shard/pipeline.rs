//! Runs a shard's part of a pipeline: one process reads the documents, runs the stages and returns their results.
//!
//! A row has several results ([`docshard_core::values::document::packed`]), as a row for each would cost more than most stages. The first
//! row has one result, and each row up to four times as many as the row before, so that a reader of few results need not wait.

use super::accesses;
use super::placement::{Placement, check_read};
use super::stored::document;
use super::table::{self, DOC};
use crate::pg::error::Result;
use crate::pg::memory::stages::StageMemory;
use crate::pg::security::user;
use crate::pg::spi::cursor::{Cursor, ExecutedPlan};
use crate::pg::spi::{self};
use crate::pg::stages::{DocumentSource, StageResults};
use crate::storage::documents::DocumentScan;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::query::projection::Projection;
use docshard_core::query::specification;
use docshard_core::query::stage::{Measurements, Memory, Pipeline, Resources};
use docshard_core::routing::names;
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::pipeline::{
    PipelineMeasurements, PipelineRequest, PipelineSource, RunPipeline, StageMeasurements, milliseconds,
};
use docshard_core::routing::protocol::sql;
use docshard_core::sql::param::Param;
use docshard_core::values::document::field_order::Keeping;
use docshard_core::values::document::packed::Packer;
use docshard_core::values::document::{MAX_RECURSION, raw};
use pgrx::pg_sys;
use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

/// The size in bytes at which a part is complete; its last result may make it larger.
const MAX_PART: usize = 64 << 10;

/// The results of stages, in parts.
pub struct Parts {
    results: StageResults,
    /// the results are packed with the sort keys by which the router merges them
    keyed: bool,
    projection: Option<Projection>,
    /// the largest number of results of the next part
    most: usize,
    ended: bool,
}

/// Checks the version in the statement's snapshot, and begins to run the stages.
///
/// # Errors
/// `STALE`; those of the parsers; `NamespaceNotFound` if the shard has no table; 42501 without the privilege to read it.
pub fn run(call: &RunPipeline<'_>) -> Result<PipelineAnswer> {
    let &RunPipeline { collection, token, version, ref work } = call;
    let work = PipelineRequest::parse(work)?;
    check_read(collection, Placement { token, version })?;
    let environment = work.environment.as_ref().map(Environment::parse).transpose()?.unwrap_or_default();
    let _keeping = Keeping::order_if(work.ordered);
    let pipeline = Pipeline::parse_divided(&work.stages, &environment)?;
    let memory: Rc<dyn Memory> = Rc::new(StageMemory::new(work.on_disk));
    if matches!(work.source, PipelineSource::Scan { .. }) {
        accesses::read_at(collection, []);
    }
    let is_observed = work.explained || work.measured;
    let Found { documents, examined, plan } = find(call, &work.source, work.explained)?;
    let projection = match &work.projection {
        Some(projection) => Some(Projection::read(&specification::parse(projection)?)?),
        None => None,
    };
    let parts = |results| Box::new(Parts { results, keyed: work.keyed, projection, most: 1, ended: false });
    if !is_observed {
        let parts = parts(StageResults::over(documents, &pipeline, &memory)?);
        return Ok(PipelineAnswer { parts, observed: None, separated: false, ordered: work.ordered });
    }
    let (began, read) = (Instant::now(), Rc::<Cell<u64>>::default());
    let counted = Counted { documents, read: Rc::clone(&read) };
    let (results, measurements) = StageResults::measured(counted, &pipeline, &Resources::of_memory(&memory))?;
    let observed = Some(Box::new(Observed { began, read, examined, measurements, plan }));
    let mut answer = PipelineAnswer { parts: parts(results), observed, separated: false, ordered: work.ordered };
    if work.measured {
        // Discards the results, up to the empty row that separates them from the measurements.
        while answer.next_row()?.is_some_and(|row| !row.is_empty()) {}
    }
    Ok(answer)
}

/// The rows that the shard returns.
pub struct PipelineAnswer {
    parts: Box<Parts>,
    /// what the shard has measured; None if the request does not ask for it, or after it was returned
    observed: Option<Box<Observed>>,
    /// all results and the empty row after them have been returned
    separated: bool,
    /// results keep the order of fields
    ordered: bool,
}

impl PipelineAnswer {
    /// The next row: packed results, then an empty row and the measurements if the request asks for them. None after the last row.
    pub fn next_row(&mut self) -> Result<Option<Vec<u8>>> {
        let _keeping = Keeping::order_if(self.ordered);
        if !self.separated {
            if let Some(part) = self.parts.next_part()? {
                return Ok(Some(part));
            }
            self.separated = true;
            return Ok(self.observed.is_some().then(Vec::new));
        }
        let Some(observed) = self.observed.take() else { return Ok(None) };
        Ok(Some(serde_json::to_vec(&observed.run()?).unwrap_or_default()))
    }
}

/// The counters by which the work of a shard is measured.
struct Observed {
    began: Instant,
    read: Rc<Cell<u64>>,
    examined: Option<Rc<Cell<u64>>>,
    measurements: Measurements,
    plan: Option<ExecutedPlan>,
}

impl Observed {
    fn run(&self) -> Result<PipelineMeasurements> {
        Ok(PipelineMeasurements {
            read: self.read.get(),
            took_ms: milliseconds(self.began.elapsed()),
            stages: StageMeasurements::of(&self.measurements),
            examined: self.examined.as_ref().map(|examined| examined.get()),
            plan: self.plan.as_ref().map(ExecutedPlan::to_json).transpose()?.flatten(),
        })
    }
}

/// A source of documents that counts those read.
struct Counted {
    documents: Box<dyn DocumentSource>,
    read: Rc<Cell<u64>>,
}

impl DocumentSource for Counted {
    fn advance(&mut self) -> Result<bool> {
        let more = self.documents.advance()?;
        self.read.set(self.read.get() + u64::from(more));
        Ok(more)
    }

    fn bytes(&self) -> &[u8] {
        self.documents.bytes()
    }

    fn key(&self) -> &[u8] {
        self.documents.key()
    }
}

impl Parts {
    /// The next results, packed; None after the last ones.
    fn next_part(&mut self) -> Result<Option<Vec<u8>>> {
        let mut packer = Packer::default();
        let (mut count, mut bytes) = (0, 0);
        while !self.ended && count < self.most && bytes < MAX_PART {
            if !self.results.advance()? {
                self.ended = true;
                break;
            }
            let found = self.results.bytes();
            let projected = match &self.projection {
                Some(projection) => Cow::from(projection.apply(document(found)?)?),
                None => Cow::from(found),
            };
            packer.put(if self.keyed { self.results.key() } else { &[] }, &projected);
            count += 1;
            bytes += projected.len();
        }
        if count == 0 {
            return Ok(None);
        }
        self.most = self.most.saturating_mul(4);
        let part = packer.into_bytes();
        part.map(Some)
            .ok_or_else(|| error!(Kind::ExceededMemoryLimit, "a result of stages at a shard is too large to be sent"))
    }
}

/// The documents that the stages read.
struct Found {
    documents: Box<dyn DocumentSource>,
    /// counts the documents that a scan has examined; None if it is not explained, or for a statement
    examined: Option<Rc<Cell<u64>>>,
    /// the plan of a statement that is explained; None for a scan
    plan: Option<ExecutedPlan>,
}

fn find(call: &RunPipeline<'_>, source: &PipelineSource, explained: bool) -> Result<Found> {
    let collection = call.collection;
    match source {
        PipelineSource::Scan { filter } => {
            let parsed = filter.as_deref().map(|text| -> Result<Filter> { Filter::read(&specification::parse(text)?) });
            if let Some(scan) = DocumentScan::open(table::oid(collection)?, DOC, parsed.transpose()?) {
                let examined = explained.then(|| scan.examined());
                return Ok(Found { documents: Box::new(scan), examined, plan: None });
            }
            let mut statement = format!("SELECT {} FROM {} t", sql::pack("t.doc"), names::table(collection));
            if filter.is_some() {
                statement += &format!(" WHERE {}", sql::matches("t.doc", "$1"));
            }
            let params: Vec<_> = filter.iter().map(|filter| Param::Text(filter)).collect();
            Selected::find(&statement, &params, explained)
        }
        PipelineSource::Select { sql, params } => {
            require_router()?;
            let first = [Param::Int8(call.token), Param::Int8(call.version)];
            let params: Vec<_> = first.into_iter().chain(params.iter().map(Parameter::as_param)).collect();
            Selected::find(sql, &params, explained)
        }
    }
}

thread_local! {
    /// The number of active calls of [`as_router`].
    static ROUTER_READS: Cell<u32> = const { Cell::new(0) };
    /// The session's user, if it is known to be the service role.
    static SERVICE: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
}

/// Runs `fetch`, which fetches rows of a statement that the router in this same process has made, for documents of this database. `fetch`
/// must not run anything else.
pub fn as_router<T>(fetch: impl FnOnce() -> T) -> T {
    struct Left;
    impl Drop for Left {
        fn drop(&mut self) {
            ROUTER_READS.set(ROUTER_READS.get().saturating_sub(1));
        }
    }
    ROUTER_READS.set(ROUTER_READS.get() + 1);
    let _left = Left;
    fetch()
}

/// Refuses a request with the text of a statement unless a router sends it: any role may call `run_pipeline`.
fn require_router() -> Result<()> {
    if ROUTER_READS.get() > 0 || SERVICE.get() == user::session_user() {
        return Ok(());
    }
    let sql = "SELECT FROM docshard_data.service s JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) s.role \
               WHERE r.rolname OPERATOR(pg_catalog.=) SESSION_USER";
    // The caller may have no right to read the table.
    if user::as_extension_owner(|| spi::read(sql, &[]))?.is_empty() {
        return Err(error!(Kind::Unauthorized, "run_pipeline: only the router sends a statement")
            .with_hint("Call docshard.aggregate at the router."));
    }
    SERVICE.set(user::session_user());
    Ok(())
}

/// The documents that an SQL statement returns.
struct Selected {
    cursor: Cursor,
    row: Option<spi::SpiRow>,
}

impl Selected {
    fn find(sql: &str, params: &[Param<'_>], explained: bool) -> Result<Found> {
        let (cursor, plan) = match explained {
            true => Cursor::open_explained(sql, params)?,
            false => (Cursor::open(sql, params)?, None),
        };
        Ok(Found { documents: Box::new(Self { cursor, row: None }), examined: None, plan })
    }
}

impl DocumentSource for Selected {
    fn advance(&mut self) -> Result<bool> {
        self.row = self.cursor.next_row()?;
        let is_document = |bytes| raw::document(bytes).is_some() && raw::nests_within(bytes, MAX_RECURSION);
        if self.row.is_some() && !is_document(self.bytes()) {
            bail!(Kind::BadValue, "run_pipeline: the statement returns something else than documents");
        }
        Ok(self.row.is_some())
    }

    fn bytes(&self) -> &[u8] {
        self.row.as_ref().and_then(|row| row.get(0)).unwrap_or_default()
    }

    fn key(&self) -> &[u8] {
        self.row.as_ref().and_then(|row| row.get(1)).unwrap_or_default()
    }
}
