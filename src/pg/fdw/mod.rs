//! A foreign-data wrapper of PostgreSQL, for code without `unsafe`.
//!
//! The layer above implements [`Wrapper`], [`Table`], [`Scan`] and [`Modify`], and hands a wrapper to [`handler`]. This module converts
//! PostgreSQL's planner nodes to [`clause::Clause`], and datums to [`value::SqlValue`].
//!
//! * The planner's callbacks: [`plan`], [`upper`], [`join`] and [`scan_plan`]; [`marks`] comes before the planner.
//! * The executor's callbacks: [`scan`] and [`batched`] read; [`modify`] and [`direct`] write.
//! * [`target`] describes the rows that a scan returns for a write; [`collected`] reads all of them before the first one is written.
//!
//! INVARIANTS: A condition that the table cannot evaluate exactly as PostgreSQL would is evaluated again here, in the planner's order. So
//! no user's function sees a row before the conditions of a security-barrier view. A scan runs as the user whose privileges PostgreSQL
//! checks for the relation. The resources of a scan are released with the executor's memory, also after an ERROR.

mod analyze;
mod barrier;
mod batched;
pub mod clause;
mod collected;
mod define;
mod direct;
mod import;
mod interface;
mod join;
mod marks;
mod modify;
mod plan;
mod scan;
mod scan_plan;
mod target;
mod upper;
pub mod value;

pub use interface::*;
pub use marks::init;

use crate::pg::error::Result;
use pgrx::pg_sys;

/// Returns the callbacks of the wrapper, in the current memory context, as a datum.
pub fn handler(wrapper: &'static dyn Wrapper) -> pg_sys::Datum {
    interface::set_wrapper(wrapper);
    join::install();
    let routine = pg_sys::FdwRoutine {
        type_: pg_sys::NodeTag::T_FdwRoutine,
        GetForeignRelSize: Some(plan::size),
        GetForeignPaths: Some(plan::paths),
        GetForeignPlan: Some(scan_plan::plan),
        GetForeignUpperPaths: Some(upper::paths),
        BeginForeignScan: Some(scan::begin),
        IterateForeignScan: Some(scan::iterate),
        ReScanForeignScan: Some(scan::rescan),
        EndForeignScan: Some(scan::end),
        ExplainForeignScan: Some(scan::explain),
        AnalyzeForeignTable: Some(analyze::analyze),
        ImportForeignSchema: Some(import::import),
        AddForeignUpdateTargets: Some(modify::add_targets),
        PlanForeignModify: Some(modify::plan),
        BeginForeignModify: Some(modify::begin),
        ExecForeignInsert: Some(modify::insert),
        ExecForeignBatchInsert: Some(modify::insert_batch),
        GetForeignModifyBatchSize: Some(modify::batch_size),
        ExecForeignUpdate: Some(modify::update),
        ExecForeignDelete: Some(modify::delete),
        EndForeignModify: Some(modify::end),
        PlanDirectModify: Some(direct::plan),
        BeginDirectModify: Some(scan::begin),
        IterateDirectModify: Some(direct::iterate),
        EndDirectModify: Some(scan::end),
        ExplainDirectModify: Some(scan::explain),
        BeginForeignInsert: Some(modify::begin_insert),
        EndForeignInsert: Some(modify::end),
        ExecForeignTruncate: Some(modify::truncate),
        ..pg_sys::FdwRoutine::default()
    };
    // SAFETY: a copy in the current memory context, as handlers return.
    unsafe {
        let copy: *mut pg_sys::FdwRoutine = pg_sys::palloc(size_of::<pg_sys::FdwRoutine>()).cast();
        copy.write(routine);
        copy.into()
    }
}

/// Checks options. The arguments are those of a validator function: an array of `name=value`, and the catalog of the object that has the
/// options.
pub fn validate(wrapper: &'static dyn Wrapper, options: &[Option<String>], catalog: pg_sys::Oid) -> Result<()> {
    let owner = match catalog {
        pg_sys::ForeignDataWrapperRelationId => Owner::Wrapper,
        pg_sys::ForeignServerRelationId => Owner::Server,
        pg_sys::UserMappingRelationId => Owner::UserMapping,
        pg_sys::ForeignTableRelationId => Owner::Table,
        _ => Owner::Column,
    };
    let pair = |option: &Option<String>| {
        let (name, value) = option.as_deref()?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    wrapper.validate(owner, &options.iter().filter_map(pair).collect::<Vec<_>>())
}
