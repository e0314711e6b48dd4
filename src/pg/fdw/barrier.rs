//! Conditions of a view with `security_barrier`, and those that its reader adds.
//!
//! A reader's condition is leakproof if it cannot tell anything about a row. PostgreSQL adds such a condition to those of the view, at the
//! same security level. If shards evaluated it before a condition of the view that is evaluated here, EXPLAIN ANALYZE would count hidden
//! rows for which it is true. The view's definition in the statement tells which conditions are the view's. A condition that is not found
//! there, because the planner has changed it, counts as the reader's.

use pgrx::{PgList, pg_sys};
use std::ptr::null_mut;

/// Tells apart the conditions of a sub-query that is in or below a view with `security_barrier`.
pub(super) struct Barrier {
    /// the conditions of each view that the sub-query may be; empty if it is none itself
    views: Vec<*mut pg_sys::List>,
}

impl Barrier {
    /// Returns None if no view hides rows from the reader of the planner's query.
    ///
    /// # Safety
    /// The planner's state.
    pub(super) unsafe fn above(root: *mut pg_sys::PlannerInfo) -> Option<Self> {
        // SAFETY: promised by the caller; a sub-query is planned while the query above it is.
        unsafe {
            let mut above = (*root).parent_root;
            let views = views(root, above);
            let mut is_hidden = !views.is_empty();
            while !above.is_null() && !is_hidden {
                above = (*above).parent_root;
                is_hidden = !self::views(root, above).is_empty();
            }
            is_hidden.then_some(Self { views })
        }
    }

    /// True if a condition is the view's own, whichever view it is.
    ///
    /// # Safety
    /// An expression of the planner's query.
    pub(super) unsafe fn has(&self, condition: *mut pg_sys::Node) -> bool {
        // SAFETY: promised by the caller.
        let has = |view: &*mut pg_sys::List| unsafe { pg_sys::list_member(*view, condition.cast()) };
        !self.views.is_empty() && self.views.iter().all(has)
    }
}

/// The conditions of each view with `security_barrier` in the query `above`, as the planner would have them.
///
/// # Safety
/// The planner's states of a query, and of one above it or null.
unsafe fn views(root: *mut pg_sys::PlannerInfo, above: *mut pg_sys::PlannerInfo) -> Vec<*mut pg_sys::List> {
    let mut views = Vec::new();
    // SAFETY: promised by the caller. The planner keeps the definition as it was, and plans a copy.
    unsafe {
        if above.is_null() {
            return views;
        }
        for entry in PgList::<pg_sys::RangeTblEntry>::from_pg((*(*above).parse).rtable).iter_ptr() {
            if (*entry).rtekind != pg_sys::RTEKind::RTE_SUBQUERY || !(*entry).security_barrier {
                continue;
            }
            let mut conditions = null_mut();
            if let Some(query) = (*entry).subquery.as_ref()
                && !query.jointree.is_null()
                && !(*query.jointree).quals.is_null()
            {
                let copy = pg_sys::copyObjectImpl((*query.jointree).quals.cast());
                let folded = pg_sys::eval_const_expressions(root, copy.cast());
                conditions = pg_sys::make_ands_implicit(pg_sys::canonicalize_qual(folded.cast(), false));
            }
            views.push(conditions);
        }
    }
    views
}
