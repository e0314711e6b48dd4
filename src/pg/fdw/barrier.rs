//! Conditions of a view with `security_barrier`, and those that its reader adds.
//!
//! A reader's condition is leakproof if it cannot tell anything about a row. PostgreSQL adds such a condition to those of the view, at the
//! same security level. If shards evaluated it before a condition of the view that is evaluated here, EXPLAIN ANALYZE would count hidden
//! rows for which it is true. [`super::marks`] tells which conditions are the view's. A condition that the planner has made of others
//! counts as the view's if all of them are; one that is not recognised counts as the reader's.
//!
//! The view's conditions also hide rows with values that do not fit. The planner decides which conditions select rows of a table: in a left
//! join, those of ON select rows of the nullable side alone.
//!
//! INVARIANT: a row that the view may omit above its scan raises no error that depends on a reader's condition: see [`Misfits`].

use super::marks::Mark;
use super::target;
use pgrx::{PgList, pg_sys};
use std::ptr::null_mut;

/// What becomes of a row with a value that does not fit a column which the statement reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Misfits {
    /// It is an error: the view shows each row that passes the conditions of the scan.
    Shown,
    /// The row is hidden: a join, or another view, may omit it above the scan.
    Hidden,
    /// It is an error, whatever conditions the reader adds: if the row were hidden, another one could appear.
    Fixed,
}

/// Tells the conditions of a view with `security_barrier` from its reader's, for a query in or below the view.
pub(super) struct Barrier {
    /// None: the query was not marked, because the library was loaded later, or because PostgreSQL has inlined a function
    mark: Option<Mark>,
    /// the query is a view, and no other view with `security_barrier` is around it
    is_outermost: bool,
    /// the view's conditions, if the query is the view itself, after the planner has inlined their functions
    definition: *mut pg_sys::List,
}

impl Barrier {
    /// Returns None if no view hides rows from the reader of the planner's query.
    ///
    /// # Safety
    /// The planner's state.
    pub(super) unsafe fn above(root: *mut pg_sys::PlannerInfo) -> Option<Self> {
        // SAFETY: promised by the caller; a sub-query is planned while the query above it is.
        unsafe {
            let mark = Mark::of((*root).parse);
            let mut above = (*root).parent_root;
            // Every query in or below a view that was marked is marked, too.
            let is_unmarked = |entry: &pg_sys::RangeTblEntry| {
                entry.security_barrier && (entry.subquery.is_null() || Mark::of(entry.subquery).is_none())
            };
            let mut is_below = mark.is_some();
            while !above.is_null() && !is_below {
                is_below = entries(above).any(is_unmarked);
                above = (*above).parent_root;
            }
            if !is_below {
                return None;
            }
            let (mut is_outermost, mut definition) = (false, null_mut());
            if let Some(view) = view_of(root, mark) {
                is_outermost = Mark::of((*(*root).parent_root).parse).is_none();
                add_conditions(root, (*view.subquery).jointree.cast(), &raw mut definition);
            }
            Some(Self { mark, is_outermost, definition })
        }
    }

    /// What becomes of the table's rows with values that do not fit.
    ///
    /// # Safety
    /// A base relation of the planner's query.
    pub(super) unsafe fn misfits(&self, root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> Misfits {
        // SAFETY: promised by the caller; a sub-query is planned while the query above it is.
        unsafe {
            let parse = &*(*root).parse;
            let is_one_table = pg_sys::bms_membership((*root).all_baserels) == pg_sys::BMS_Membership::BMS_SINGLETON;
            if self.is_outermost && is_one_table && !omits_results(parse) {
                return Misfits::Shown;
            }
            let mut is_fixed = self.mark.is_none() || is_partner(root, rel);
            let mut query = root;
            while !query.is_null()
                && !is_fixed
                && let Some(mark) = Mark::of((*query).parse)
            {
                let parse = &*(*query).parse;
                let combines = parse.hasAggs || parse.hasWindowFuncs || !parse.groupingSets.is_null();
                // It is not known which table of a query above contains this one, so any outer join there counts.
                is_fixed = !mark.hides || combines || omits_results(parse) || query != root && has_partners(query);
                query = (*query).parent_root;
            }
            if is_fixed { Misfits::Fixed } else { Misfits::Hidden }
        }
    }

    /// True if a condition is the view's own.
    ///
    /// # Safety
    /// A restriction of the planner's query, or an expression.
    pub(super) unsafe fn has(&self, condition: *mut pg_sys::Node) -> bool {
        // SAFETY: promised by the caller.
        unsafe {
            if (*condition).type_ != pg_sys::NodeTag::T_RestrictInfo {
                return self.has_expression(condition);
            }
            let restriction = &*condition.cast::<pg_sys::RestrictInfo>();
            self.has_expression(restriction.clause.cast()) || self.has_derived(restriction)
        }
    }

    /// # Safety
    /// An expression of the planner's query.
    unsafe fn has_expression(&self, expression: *mut pg_sys::Node) -> bool {
        // SAFETY: promised by the caller.
        unsafe {
            if pg_sys::list_member(self.definition, expression.cast()) {
                return true;
            }
            if (*expression).type_ != pg_sys::NodeTag::T_BoolExpr {
                return self.mark.is_some_and(|mark| mark.has(expression));
            }
            pg_sys::check_stack_depth();
            let parts = (*expression.cast::<pg_sys::BoolExpr>()).args;
            PgList::<pg_sys::Node>::from_pg(parts).iter_ptr().all(|part| self.has_expression(part))
        }
    }

    /// True for an equality that the planner has derived from others, if all of these are the view's, or if the view has the same equality.
    ///
    /// # Safety
    /// A restriction of the planner's query.
    unsafe fn has_derived(&self, restriction: &pg_sys::RestrictInfo) -> bool {
        // SAFETY: promised by the caller.
        unsafe {
            let mut class = restriction.parent_ec;
            if class.is_null() && restriction.left_ec == restriction.right_ec {
                class = restriction.left_ec;
            }
            while !class.is_null() && !(*class).ec_merged.is_null() {
                class = (*class).ec_merged;
            }
            if class.is_null() || (*class).ec_sources.is_null() {
                return false;
            }
            let sources: Vec<_> = PgList::<pg_sys::RestrictInfo>::from_pg((*class).ec_sources).iter_ptr().collect();
            let is_own = |source: &*mut pg_sys::RestrictInfo| self.has_expression((**source).clause.cast());
            let is_same =
                |source: &*mut pg_sys::RestrictInfo| pg_sys::equal((**source).clause.cast(), restriction.clause.cast());
            sources.iter().all(is_own) || sources.iter().any(|source| is_own(source) && is_same(source))
        }
    }

    /// The columns of the view's conditions that select rows of a table, as PostgreSQL's set of columns. A row with a value that does not
    /// fit one of them is hidden from the view's readers.
    ///
    /// # Safety
    /// A base relation of the planner.
    pub(super) unsafe fn hiding(
        &self,
        root: *mut pg_sys::PlannerInfo,
        rel: *mut pg_sys::RelOptInfo,
    ) -> *mut pg_sys::Bitmapset {
        // SAFETY: promised by the caller.
        unsafe {
            if self.mark.is_some_and(|mark| !mark.hides) || is_excluded_from(root, rel) {
                return null_mut();
            }
            // The planner keeps equalities that hold for all rows in classes, and derives other equalities from them. These are the
            // sources, with the columns of the parent of a partition or child.
            let classes = PgList::<pg_sys::EquivalenceClass>::from_pg((*root).eq_classes);
            let sources: Vec<_> = classes
                .iter_ptr()
                .flat_map(|class| {
                    PgList::<pg_sys::RestrictInfo>::from_pg((*class).ec_sources).iter_ptr().collect::<Vec<_>>()
                })
                .filter(|source| self.has(source.cast()))
                .collect();
            let mut columns = columns_of(root, (*rel).relid, &sources);
            let mut add = |restriction: *mut pg_sys::RestrictInfo| {
                if self.has(restriction.cast()) {
                    pg_sys::pull_varattnos((*restriction).clause.cast(), (*rel).relid, &raw mut columns);
                }
            };
            PgList::from_pg((*rel).baserestrictinfo).iter_ptr().for_each(&mut add);
            let joins = PgList::<pg_sys::RestrictInfo>::from_pg((*rel).joininfo);
            joins.iter_ptr().filter(|join| pg_sys::join_clause_is_movable_to(*join, rel)).for_each(&mut add);
            columns
        }
    }
}

/// The columns of a table that conditions compare, also by the columns of its parents.
///
/// # Safety
/// The planner's state, with a table of its query.
unsafe fn columns_of(
    root: *mut pg_sys::PlannerInfo,
    table: pg_sys::Index,
    conditions: &[*mut pg_sys::RestrictInfo],
) -> *mut pg_sys::Bitmapset {
    let mut columns = null_mut();
    // SAFETY: promised by the caller.
    unsafe {
        for condition in conditions {
            pg_sys::pull_varattnos((**condition).clause.cast(), table, &raw mut columns);
        }
        let children = (*root).append_rel_array;
        let child = if children.is_null() { null_mut() } else { *children.add(table as usize) };
        if child.is_null() {
            return columns;
        }
        let of_parent = columns_of(root, (*child).parent_relid, conditions);
        for (at, column) in PgList::<pg_sys::Node>::from_pg((*child).translated_vars).iter_ptr().enumerate() {
            if !column.is_null() && pg_sys::bms_is_member(target::member(at as i16 + 1), of_parent) {
                pg_sys::pull_varattnos(column, table, &raw mut columns);
            }
        }
    }
    columns
}

/// The tables of a query.
///
/// # Safety
/// The planner's state.
unsafe fn entries<'a>(root: *mut pg_sys::PlannerInfo) -> impl Iterator<Item = &'a pg_sys::RangeTblEntry> {
    // SAFETY: promised by the caller; the entries live as long as the planner's state.
    unsafe {
        let list = PgList::<pg_sys::RangeTblEntry>::from_pg((*(*root).parse).rtable);
        list.iter_ptr().map(|entry| &*entry).collect::<Vec<_>>().into_iter()
    }
}

/// True for a table whose rows exclude rows of another: `NOT EXISTS` as a join. A hidden row would make another one visible.
///
/// # Safety
/// A base relation of the planner.
unsafe fn is_excluded_from(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let tables = joined(rel);
        PgList::<pg_sys::SpecialJoinInfo>::from_pg((*root).join_info_list).iter_ptr().any(|join| {
            (*join).jointype == pg_sys::JoinType::JOIN_ANTI && pg_sys::bms_overlap(tables, (*join).syn_righthand)
        })
    }
}

/// True for a query that omits some of its rows, or results, after its joins.
fn omits_results(query: &pg_sys::Query) -> bool {
    query.hasDistinctOn || !query.havingQual.is_null() || !query.limitCount.is_null() || !query.limitOffset.is_null()
}

/// True for a table on the nullable side of an outer join, or of `NOT EXISTS` as a join: there a row of the other side appears because a
/// row of this table is absent.
///
/// # Safety
/// A base relation of the planner.
unsafe fn is_partner(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let tables = joined(rel);
        PgList::<pg_sys::SpecialJoinInfo>::from_pg((*root).join_info_list).iter_ptr().any(|join| {
            has_partner(join)
                && (pg_sys::bms_overlap(tables, (*join).syn_righthand)
                    || (*join).jointype == pg_sys::JoinType::JOIN_FULL
                        && pg_sys::bms_overlap(tables, (*join).syn_lefthand))
        })
    }
}

/// # Safety
/// The planner's state.
unsafe fn has_partners(root: *mut pg_sys::PlannerInfo) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        PgList::<pg_sys::SpecialJoinInfo>::from_pg((*root).join_info_list).iter_ptr().any(|join| has_partner(join))
    }
}

/// True for a join that returns rows of one side that have no partner.
///
/// # Safety
/// A join of the planner.
unsafe fn has_partner(join: *mut pg_sys::SpecialJoinInfo) -> bool {
    use pg_sys::JoinType::{JOIN_ANTI, JOIN_FULL, JOIN_LEFT};
    // SAFETY: promised by the caller.
    unsafe { [JOIN_LEFT, JOIN_FULL, JOIN_ANTI].contains(&(*join).jointype) }
}

/// The table as a join has it: the parent of a partition or child.
///
/// # Safety
/// A base relation of the planner.
unsafe fn joined(rel: *mut pg_sys::RelOptInfo) -> pg_sys::Relids {
    // SAFETY: promised by the caller.
    unsafe { if (*rel).top_parent_relids.is_null() { (*rel).relids } else { (*rel).top_parent_relids } }
}

/// If the planner's query is a marked view, the view's entry in the query above, which has the definition. None for a query inside a view.
///
/// # Safety
/// The planner's state.
unsafe fn view_of<'a>(root: *mut pg_sys::PlannerInfo, mark: Option<Mark>) -> Option<&'a pg_sys::RangeTblEntry> {
    // SAFETY: promised by the caller. The planner keeps the definition as it was, and plans a copy.
    unsafe {
        if (*root).parent_root.is_null() || mark.is_none() {
            return None;
        }
        let is_view = |entry: &&pg_sys::RangeTblEntry| {
            entry.security_barrier && !entry.subquery.is_null() && Mark::of(entry.subquery) == mark
        };
        entries((*root).parent_root).find(is_view)
    }
}

/// Adds the conditions of a tree of joins that hold for all its rows: not those of outer joins, nor those on their nullable sides.
///
/// # Safety
/// The planner's state, a part of a query's tree, and a list.
unsafe fn add_conditions(root: *mut pg_sys::PlannerInfo, tree: *mut pg_sys::Node, list: *mut *mut pg_sys::List) {
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        pg_sys::check_stack_depth();
        if tree.is_null() {
            return;
        }
        let quals = match (*tree).type_ {
            pg_sys::NodeTag::T_FromExpr => {
                let from = &*tree.cast::<pg_sys::FromExpr>();
                PgList::from_pg(from.fromlist).iter_ptr().for_each(|part| add_conditions(root, part, list));
                from.quals
            }
            pg_sys::NodeTag::T_JoinExpr => {
                let join = &*tree.cast::<pg_sys::JoinExpr>();
                let is_inner = join.jointype == pg_sys::JoinType::JOIN_INNER;
                if is_inner || join.jointype == pg_sys::JoinType::JOIN_LEFT {
                    add_conditions(root, join.larg, list);
                }
                if is_inner {
                    add_conditions(root, join.rarg, list);
                }
                if is_inner { join.quals } else { null_mut() }
            }
            _ => null_mut(),
        };
        if !quals.is_null() {
            let folded = pg_sys::eval_const_expressions(root, pg_sys::copyObjectImpl(quals.cast()).cast());
            let parts = pg_sys::make_ands_implicit(pg_sys::canonicalize_qual(folded.cast(), false));
            *list = pg_sys::list_concat(*list, parts);
        }
    }
}
