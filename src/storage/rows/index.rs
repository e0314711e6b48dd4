//! Computes the index entries of a row. Expressions that call functions of the [`Owner`] are computed directly, because PostgreSQL's
//! executor would prepare them again for each statement.

use super::owner::{DirectFunction, FunctionResult, Owner};
use super::row::DOC;
use crate::pg::datum::jsonb::new_varlena;
use crate::pg::object::lookup_cache::LookupCache;
use pgrx::{IntoDatum, PgList, pg_sys};
use std::cell::RefCell;
use std::ffi::CStr;
use std::rc::Rc;

/// The values of an index's columns, and which of them are null.
pub(super) type Values = ([pg_sys::Datum; pg_sys::INDEX_MAX_KEYS as usize], [bool; pg_sys::INDEX_MAX_KEYS as usize]);

/// A row in a slot, and the bytes of its document.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pub(super) slot: *mut pg_sys::TupleTableSlot,
    pub(super) doc: &'a [u8],
}

/// An open index of a table that is open for writing.
pub(super) struct Index {
    pub(super) rel: pg_sys::Relation,
    pub(super) info: *mut pg_sys::IndexInfo,
    /// None: the executor computes the entries
    functions: Option<Rc<Functions>>,
}

/// The columns and the conditions of an index, all of which call functions of the owner.
struct Functions {
    columns: Vec<Box<dyn DirectFunction>>,
    conditions: Vec<Box<dyn DirectFunction>>,
}

thread_local! {
    /// The functions by the index's OID. An index's expressions never change.
    static FUNCTIONS: RefCell<LookupCache<u32, Option<Rc<Functions>>>> = const { RefCell::new(LookupCache::NONE) };
}

impl Index {
    /// # Safety
    /// The index and its info belong to an open table, and stay valid as long as this is used.
    pub(super) unsafe fn new(rel: pg_sys::Relation, info: *mut pg_sys::IndexInfo, owner: &Owner) -> Self {
        // SAFETY: promised by the caller.
        let functions = unsafe {
            let has_expressions = !(*info).ii_Expressions.is_null();
            let look_up = || Some(Functions::of(info, owner).map(Rc::new));
            has_expressions.then(|| FUNCTIONS.with(|known| LookupCache::get(known, (*rel).rd_id.to_u32(), look_up)))
        };
        Self { rel, info, functions: functions.flatten().flatten() }
    }

    /// True if new rows get entries.
    pub(super) fn is_ready(&self) -> bool {
        // SAFETY: see `new`.
        unsafe { (*self.info).ii_ReadyForInserts }
    }

    /// True if the row gets an entry; false only for a partial index.
    ///
    /// # Safety
    /// The row is the table's, the executor's state the writer's, and the current memory context that of a row.
    pub(super) unsafe fn holds(&self, row: Held<'_>, estate: *mut pg_sys::EState) -> bool {
        if let Some(functions) = &self.functions {
            return functions
                .conditions
                .iter()
                .all(|condition| matches!(condition.answer(row.doc), FunctionResult::Bool(true)));
        }
        let info = self.info;
        // SAFETY: promised by the caller; the prepared predicate lives as long as the state, as the executor keeps it.
        unsafe {
            if (*info).ii_Predicate.is_null() {
                return true;
            }
            if (*info).ii_PredicateState.is_null() {
                (*info).ii_PredicateState = pg_sys::ExecPrepareQual((*info).ii_Predicate, estate);
            }
            let context = pg_sys::MakePerTupleExprContext(estate);
            (*context).ecxt_scantuple = row.slot;
            let predicate = (*info).ii_PredicateState;
            let mut is_null = false;
            let evaluate = (*predicate).evalfunc.expect("a prepared expression");
            evaluate(predicate, context, &mut is_null).value() != 0
        }
    }

    /// Returns the values of the index's columns, in the current memory context.
    ///
    /// # Safety
    /// The same as for [`Index::holds`], which must have returned true.
    pub(super) unsafe fn values(&self, row: Held<'_>, estate: *mut pg_sys::EState) -> Values {
        let mut values = [pg_sys::Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
        let mut nulls = [true; pg_sys::INDEX_MAX_KEYS as usize];
        match &self.functions {
            Some(functions) => {
                for (at, column) in functions.columns.iter().enumerate() {
                    (values[at], nulls[at]) = (datum(column.answer(row.doc)), false);
                }
            }
            // SAFETY: promised by the caller; the arrays have room for the columns of any index.
            None => unsafe {
                (*pg_sys::MakePerTupleExprContext(estate)).ecxt_scantuple = row.slot;
                pg_sys::FormIndexDatum(self.info, row.slot, estate, values.as_mut_ptr(), nulls.as_mut_ptr());
            },
        }
        (values, nulls)
    }

    /// True only if both documents have equal entries, or none. May be false for equal entries, where only computing the entries would show
    /// that they are equal.
    pub(super) fn sees_same(&self, one: &[u8], other: &[u8]) -> bool {
        let same = |all: &Rc<Functions>| all.columns.iter().chain(&all.conditions).all(|f| f.sees_same(one, other));
        self.functions.as_ref().is_some_and(same)
    }
}

impl Functions {
    /// # Safety
    /// The info describes an index with expressions.
    unsafe fn of(info: *mut pg_sys::IndexInfo, owner: &Owner) -> Option<Self> {
        // SAFETY: promised by the caller.
        unsafe {
            let columns = &(&(*info).ii_IndexAttrNumbers)[..(*info).ii_NumIndexAttrs as usize];
            if columns.iter().any(|column| *column != 0) {
                return None;
            }
            let functions =
                |list| PgList::<pg_sys::Node>::from_pg(list).iter_ptr().map(|e| function(e, owner)).collect();
            let (columns, conditions): (Option<_>, Option<_>) =
                (functions((*info).ii_Expressions), functions((*info).ii_Predicate));
            Some(Self { columns: columns?, conditions: conditions? })
        }
    }
}

/// Returns the owner's function that an expression calls; None if the expression is anything else.
///
/// # Safety
/// It is an expression over a row of the owner's table.
unsafe fn function(node: *mut pg_sys::Node, owner: &Owner) -> Option<Box<dyn DirectFunction>> {
    // SAFETY: promised by the caller; a node's tag says what it is; names are null or end with a zero byte.
    unsafe {
        if (*node).type_ != pg_sys::NodeTag::T_FuncExpr {
            return None;
        }
        let call = node.cast::<pg_sys::FuncExpr>();
        let arguments = PgList::<pg_sys::Node>::from_pg((*call).args);
        if !arguments.get_ptr(0).is_some_and(|node| is_document(node)) || arguments.len() > 3 {
            return None;
        }
        let text = constant(arguments.get_ptr(1)?, pg_sys::TEXTOID)?;
        let text = <&str as pgrx::FromDatum>::from_datum(text, false)?;
        let number = match arguments.get_ptr(2) {
            Some(node) => Some(constant(node, pg_sys::INT4OID)?.value() as i32),
            None => None,
        };
        let schema = pg_sys::get_namespace_name(pg_sys::get_func_namespace((*call).funcid));
        let name = pg_sys::get_func_name((*call).funcid);
        if schema.is_null() || name.is_null() || CStr::from_ptr(schema) != owner.schema {
            return None;
        }
        (owner.function)(CStr::from_ptr(name).to_str().ok()?, text, number)
    }
}

/// True for the document's column, whose type may be a domain over jsonb.
///
/// # Safety
/// The node is part of an expression.
unsafe fn is_document(mut node: *mut pg_sys::Node) -> bool {
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        if (*node).type_ == pg_sys::NodeTag::T_RelabelType {
            node = (*node.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        (*node).type_ == pg_sys::NodeTag::T_Var
            && usize::try_from((*node.cast::<pg_sys::Var>()).varattno) == Ok(DOC + 1)
    }
}

/// Returns the value of a constant; None if it is null or of another type, or if the node is not a constant.
///
/// # Safety
/// The same as for [`is_document`].
unsafe fn constant(node: *mut pg_sys::Node, kind: pg_sys::Oid) -> Option<pg_sys::Datum> {
    // SAFETY: promised by the caller; a node's tag says what it is.
    unsafe {
        let constant = node.cast::<pg_sys::Const>();
        let is_wanted = (*node).type_ == pg_sys::NodeTag::T_Const && (*constant).consttype == kind;
        (is_wanted && !(*constant).constisnull).then(|| (*constant).constvalue)
    }
}

fn datum(answer: FunctionResult) -> pg_sys::Datum {
    match answer {
        FunctionResult::Bool(value) => value.into(),
        FunctionResult::Bytes(bytes) => new_varlena(&bytes).into(),
        FunctionResult::BytesArray(items) => items.into_datum().expect("an array is not null"),
    }
}
