//! Marks the conditions of views with `security_barrier`, before the planner mixes them with those of the views' readers.
//!
//! The planner pulls sub-queries up, moves conditions of HAVING to WHERE, and pushes conditions of a query into its sub-queries. All this
//! copies nodes. So a mark is kept in a field that only the parser uses: the location of an expression in the statement's text, and of a
//! sub-query. A mark is less than -1, which is "unknown". A reader cannot make one: the parser's locations are not negative, and nodes that
//! PostgreSQL stores, such as those of views, lose theirs.
//!
//! Each view of the statement has a number. A view inside a view has its own, because for the inner view the outer one is a reader.
//! The columns that a view returns are not marked: a reader's condition is made of them.
//!
//! INVARIANT: a query is marked as one that hides rows only if no row of the view appears because a row is absent from the query's result.
//! This module ensures it for queries that the planner plans separately. For a sub-query that the planner pulls up into the query around
//! it, the joins decide: see [`super::barrier`].

use crate::pg::error::keeping_all;
use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::{CStr, c_char, c_int, c_void};
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
    /// If a row of its tables is hidden, the view has fewer rows, or NULLs in its place. False in an expression such as `NOT IN`, in EXCEPT,
    /// and in a sub-query on the nullable side of an outer join: there the view could have more rows.
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

/// The location of an expression that can be a condition. Constants are left out: the planner evaluates conditions without columns
/// elsewhere.
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
                    mark_query((*entry).subquery, Mark { view: *views, hides: true }, &mut Scope::new());
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

/// The queries around a query of a view, from the outermost on, and the query itself at the end.
type Scope = Vec<*mut pg_sys::Query>;

/// Marks a view's query, or one in it, and its conditions.
///
/// # Safety
/// A query that was rewritten, and those around it in the view.
unsafe fn mark_query(query: *mut pg_sys::Query, mark: Mark, scope: &mut Scope) {
    // SAFETY: promised by the caller.
    unsafe {
        pg_sys::check_stack_depth();
        (*query).stmt_location = mark.of_query();
        scope.push(query);
        let withs: Vec<_> = PgList::<pg_sys::CommonTableExpr>::from_pg((*query).cteList)
            .iter_ptr()
            .map(|with| (*with).ctequery.cast::<pg_sys::Query>())
            .collect();
        withs.iter().for_each(|with| (**with).stmt_location = mark.of_query());
        // Marking one query may have changed the mark of another to which it refers: see `expose`.
        withs.iter().for_each(|with| mark_query(*with, Mark::of(*with).unwrap_or(mark), scope));
        for conditions in [(*query).jointree.cast(), (*query).havingQual] {
            mark_conditions(conditions, (&raw const mark).cast_mut().cast());
        }
        mark_entries(query, mark, scope);
        if (*query).hasSubLinks {
            let mut marking = (Mark { hides: false, ..mark }, &mut *scope);
            let others = pg_sys::QTW_IGNORE_RC_SUBQUERIES as c_int;
            pg_sys::query_tree_walker(query, Some(mark_in_expression), (&raw mut marking).cast(), others);
        }
        scope.pop();
    }
}

/// Marks the sub-queries in a query's FROM, and the queries of WITH to which it refers there. On the nullable side of an outer join they
/// hide nothing: `IS NULL` would show more rows. This does not concern sub-queries that are pulled up: see `is_excluded_from`.
///
/// # Safety
/// The last query of the scope.
unsafe fn mark_entries(query: *mut pg_sys::Query, mark: Mark, scope: &mut Scope) {
    // SAFETY: promised by the caller.
    unsafe {
        let subtracts = subtracts((*query).setOperations);
        let mut nullable = Vec::new();
        add_nullable((*query).jointree.cast(), false, &mut nullable);
        for (at, entry) in PgList::<pg_sys::RangeTblEntry>::from_pg((*query).rtable).iter_ptr().enumerate() {
            let mark = Mark { hides: mark.hides && !subtracts && !nullable.contains(&(at as c_int + 1)), ..mark };
            match (*entry).rtekind {
                pg_sys::RTEKind::RTE_SUBQUERY if !(*entry).security_barrier && !(*entry).subquery.is_null() => {
                    mark_query((*entry).subquery, mark, scope);
                }
                pg_sys::RTEKind::RTE_CTE if !mark.hides => expose(entry, mark, scope),
                _ => {}
            }
        }
    }
}

/// Marks a query of WITH as one that hides nothing, because it is referred to where another row appears if one of its rows is absent.
///
/// # Safety
/// An entry for a query of WITH, of the last query of the scope.
unsafe fn expose(entry: *mut pg_sys::RangeTblEntry, mark: Mark, scope: &Scope) {
    // SAFETY: promised by the caller.
    unsafe {
        // A query above the view cannot be referred to from inside.
        let Some(depth) = scope.len().checked_sub((*entry).ctelevelsup as usize + 1) else { return };
        let withs = PgList::<pg_sys::CommonTableExpr>::from_pg((*scope[depth]).cteList);
        let is_meant =
            |with: &*mut pg_sys::CommonTableExpr| CStr::from_ptr((**with).ctename) == CStr::from_ptr((*entry).ctename);
        let Some(with) = withs.iter_ptr().find(is_meant) else { return };
        let query: *mut pg_sys::Query = (*with).ctequery.cast();
        // The query may refer to itself.
        if Mark::of(query) != Some(mark) {
            mark_query(query, mark, &mut scope[..=depth].to_vec());
        }
    }
}

/// Adds the positions of the entries on the nullable sides of outer joins.
///
/// # Safety
/// A part of a query's tree of joins, or null.
unsafe fn add_nullable(tree: *mut pg_sys::Node, is_nullable: bool, nullable: &mut Vec<c_int>) {
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        if tree.is_null() {
            return;
        }
        pg_sys::check_stack_depth();
        match (*tree).type_ {
            pg_sys::NodeTag::T_FromExpr => {
                let parts = PgList::<pg_sys::Node>::from_pg((*tree.cast::<pg_sys::FromExpr>()).fromlist);
                parts.iter_ptr().for_each(|part| add_nullable(part, is_nullable, nullable));
            }
            pg_sys::NodeTag::T_JoinExpr => {
                use pg_sys::JoinType::{JOIN_FULL, JOIN_LEFT, JOIN_RIGHT};
                let join = &*tree.cast::<pg_sys::JoinExpr>();
                add_nullable(join.larg, is_nullable || [JOIN_RIGHT, JOIN_FULL].contains(&join.jointype), nullable);
                add_nullable(join.rarg, is_nullable || [JOIN_LEFT, JOIN_FULL].contains(&join.jointype), nullable);
            }
            pg_sys::NodeTag::T_RangeTblRef if is_nullable => {
                nullable.push((*tree.cast::<pg_sys::RangeTblRef>()).rtindex);
            }
            _ => {}
        }
    }
}

/// A walker that marks all parts of conditions, but not the queries in them. Its context points to the mark.
#[pg_guard]
unsafe extern "C-unwind" fn mark_conditions(node: *mut pg_sys::Node, mark: *mut c_void) -> bool {
    // SAFETY: called by `mark_query` and PostgreSQL's walker, with a node or null.
    unsafe {
        if node.is_null() || (*node).type_ == pg_sys::NodeTag::T_Query {
            return false;
        }
        if let Some(location) = location(node) {
            *location = (*mark.cast::<Mark>()).of_condition();
        }
        pg_sys::expression_tree_walker(node, Some(mark_conditions), mark)
    }
}

/// A walker that marks the queries in expressions, as queries that hide nothing. Its context points to the mark and the scope.
#[pg_guard]
unsafe extern "C-unwind" fn mark_in_expression(node: *mut pg_sys::Node, marking: *mut c_void) -> bool {
    // SAFETY: called by PostgreSQL's walkers, with a node or null, and with what `mark_query` has given it.
    unsafe {
        if node.is_null() {
            return false;
        }
        if (*node).type_ == pg_sys::NodeTag::T_Query {
            let (mark, scope) = &mut *marking.cast::<(Mark, &mut Scope)>();
            mark_query(node.cast(), *mark, scope);
            return false;
        }
        pg_sys::expression_tree_walker(node, Some(mark_in_expression), marking)
    }
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
