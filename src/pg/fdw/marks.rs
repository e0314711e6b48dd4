//! Marks the conditions of views with `security_barrier`, before the planner mixes them with those of the views' readers.
//!
//! The planner pulls sub-queries up, moves conditions of HAVING to WHERE, and pushes conditions of a query into its sub-queries. All this
//! copies nodes. So a mark is kept in a field that only the parser uses: the location of an expression in the statement's text, and of a
//! sub-query. A mark is less than -1, which is "unknown". A reader cannot make one: the parser's locations are not negative, and nodes that
//! PostgreSQL stores, such as those of views, lose theirs.
//!
//! Each view of the statement has a number. A view inside a view has its own, because the conditions of the outer one are a reader's to it.
//! The columns that a view returns are not marked: a reader's condition is made of them.

use crate::pg::error::keeping_all;
use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

static NEXT: OnceLock<pg_sys::planner_hook_type> = OnceLock::new();

/// Sets the planner's hook. Called from `_PG_init`.
pub fn init() {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if NEXT.set(pg_sys::planner_hook).is_ok() {
            pg_sys::planner_hook = Some(plan);
        }
    }
}

/// What a marked query belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// the number of the view
    view: c_int,
    /// The absence of a row of its tables takes rows away from the view, or replaces them by NULL. Not so in an expression such as `NOT
    /// IN`, nor in EXCEPT, which would show more rows.
    pub hides: bool,
}

impl Mark {
    /// The mark of a query; None if it is not part of a view with `security_barrier`.
    ///
    /// # Safety
    /// A query of the planner.
    pub(super) unsafe fn of(query: *mut pg_sys::Query) -> Option<Self> {
        // SAFETY: promised by the caller.
        let code = unsafe { (*query).stmt_location };
        (code < -1).then(|| Self { view: -code / 2, hides: code % 2 == 0 })
    }

    fn of_query(self) -> c_int {
        -2 * self.view - c_int::from(!self.hides)
    }

    fn of_condition(self) -> c_int {
        -2 * self.view
    }

    /// True for a condition, or a part of one, that stands in the view's definition.
    ///
    /// # Safety
    /// An expression of the planner's query.
    pub(super) unsafe fn has(self, node: *mut pg_sys::Node) -> bool {
        // SAFETY: promised by the caller.
        unsafe { location(node).is_some_and(|location| *location == self.of_condition()) }
    }
}

/// The location of an expression that can be a condition. No constant: the planner evaluates conditions without columns elsewhere.
///
/// # Safety
/// A node.
unsafe fn location(node: *mut pg_sys::Node) -> Option<*mut c_int> {
    macro_rules! location {
        ($($tag:ident $type:ident,)*) => {
            match (*node).type_ {
                $(pg_sys::NodeTag::$tag => Some(&raw mut (*node.cast::<pg_sys::$type>()).location),)*
                _ => None,
            }
        };
    }
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        location! {
            T_Var Var,
            T_FuncExpr FuncExpr,
            T_OpExpr OpExpr,
            T_DistinctExpr OpExpr,
            T_NullIfExpr OpExpr,
            T_ScalarArrayOpExpr ScalarArrayOpExpr,
            T_NullTest NullTest,
            T_BooleanTest BooleanTest,
            T_CaseExpr CaseExpr,
            T_CoalesceExpr CoalesceExpr,
            T_RelabelType RelabelType,
            T_CoerceViaIO CoerceViaIO,
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn plan(
    query: *mut pg_sys::Query,
    text: *const c_char,
    options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: the arguments are PostgreSQL's, and passed on. The planner may change the query.
    unsafe {
        let mut views: c_int = 0;
        find_views(query, &raw mut views);
        keeping_all(|| match NEXT.get().copied().flatten() {
            Some(next) => pg_sys::ffi::pg_guard_ffi_boundary(|| next(query, text, options, parameters)),
            None => pg_sys::standard_planner(query, text, options, parameters),
        })
    }
}

/// Marks each view with `security_barrier` in or below a query.
///
/// # Safety
/// A query that was rewritten; `views` counts the views.
unsafe fn find_views(query: *mut pg_sys::Query, views: *mut c_int) {
    // SAFETY: promised by the caller.
    unsafe {
        pg_sys::check_stack_depth();
        for entry in PgList::<pg_sys::RangeTblEntry>::from_pg((*query).rtable).iter_ptr() {
            if (*entry).rtekind == pg_sys::RTEKind::RTE_SUBQUERY && !(*entry).subquery.is_null() {
                if (*entry).security_barrier {
                    *views += 1;
                    mark_query((*entry).subquery, Mark { view: *views, hides: true });
                }
                find_views((*entry).subquery, views);
            }
        }
        for with in PgList::<pg_sys::CommonTableExpr>::from_pg((*query).cteList).iter_ptr() {
            find_views((*with).ctequery.cast(), views);
        }
        if (*query).hasSubLinks {
            let others = pg_sys::QTW_IGNORE_RC_SUBQUERIES as c_int;
            pg_sys::query_tree_walker(query, Some(find_in_expression), views.cast(), others);
        }
    }
}

/// A walker that calls [`find_views`] for the queries in expressions.
#[pg_guard]
unsafe extern "C-unwind" fn find_in_expression(node: *mut pg_sys::Node, views: *mut c_void) -> bool {
    // SAFETY: called by PostgreSQL's walkers, with a node or null and with the count of `find_views`.
    unsafe {
        if node.is_null() {
            return false;
        }
        if (*node).type_ == pg_sys::NodeTag::T_Query {
            find_views(node.cast(), views.cast());
            return false;
        }
        pg_sys::expression_tree_walker(node, Some(find_in_expression), views)
    }
}

/// Marks a view's query, or one in it, and its conditions.
///
/// # Safety
/// A query that was rewritten.
unsafe fn mark_query(query: *mut pg_sys::Query, mut mark: Mark) {
    // SAFETY: promised by the caller.
    unsafe {
        pg_sys::check_stack_depth();
        (*query).stmt_location = mark.of_query();
        for conditions in [(*query).jointree.cast(), (*query).havingQual] {
            mark_conditions(conditions, &raw mut mark);
        }
        mark.hides &= !subtracts((*query).setOperations);
        for entry in PgList::<pg_sys::RangeTblEntry>::from_pg((*query).rtable).iter_ptr() {
            let is_inner = (*entry).rtekind == pg_sys::RTEKind::RTE_SUBQUERY && !(*entry).security_barrier;
            if is_inner && !(*entry).subquery.is_null() {
                mark_query((*entry).subquery, mark);
            }
        }
        for with in PgList::<pg_sys::CommonTableExpr>::from_pg((*query).cteList).iter_ptr() {
            mark_query((*with).ctequery.cast(), mark);
        }
    }
}

/// Marks all parts of conditions. A query in one of them hides nothing. The result is for PostgreSQL's walker, which it lets go on.
///
/// # Safety
/// A node or null; the mark lives as long as the call.
unsafe fn mark_conditions(node: *mut pg_sys::Node, mark: *mut Mark) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        if node.is_null() {
            return false;
        }
        if (*node).type_ == pg_sys::NodeTag::T_Query {
            mark_query(node.cast(), Mark { hides: false, ..*mark });
            return false;
        }
        if let Some(location) = location(node) {
            *location = (*mark).of_condition();
        }
        pg_sys::expression_tree_walker(node, Some(walk_conditions), mark.cast())
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn walk_conditions(node: *mut pg_sys::Node, mark: *mut c_void) -> bool {
    // SAFETY: called by PostgreSQL's walker, with what `mark_conditions` has given it.
    unsafe { mark_conditions(node, mark.cast()) }
}

/// True for set operations with EXCEPT among them.
///
/// # Safety
/// Set operations of a query, or null.
unsafe fn subtracts(node: *mut pg_sys::Node) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_SetOperationStmt {
            return false;
        }
        pg_sys::check_stack_depth();
        let operation = &*node.cast::<pg_sys::SetOperationStmt>();
        operation.op == pg_sys::SetOperation::SETOP_EXCEPT || subtracts(operation.larg) || subtracts(operation.rarg)
    }
}
