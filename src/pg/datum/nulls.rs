//! Refuses null arguments of SQL functions for users.
//!
//! PostgreSQL does not call a STRICT function with a null: the statement returns null, and a write is lost in silence. So functions
//! for users are not STRICT, and their first parameter is an `Option<NoNulls>`, which has no counterpart in SQL. pgrx reads arguments in
//! order, so all arguments are checked when this parameter is read, before any other.
//!
//! INVARIANT: where a function has this parameter, the only argument that can be null is `options`, which counts as `{}`.

use crate::pg::error::{Error, Raise as _};
use pgrx::callconv::{Arg, ArgAbi};
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use std::ffi::CStr;
use std::ptr::null_mut;

/// The argument that may be null.
const OPTIONS: &str = "options";

/// A parameter whose presence shows that no argument of the call is null, except `options`.
#[derive(Clone, Copy, Debug)]
pub struct NoNulls;

// SAFETY: a virtual argument, which reads no datum.
unsafe impl<'fcx> ArgAbi<'fcx> for NoNulls {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: PostgreSQL's own structure of the running call, with `nargs` arguments behind it.
        unsafe {
            let call = pg_sys::FunctionCallInfo::unbox_arg_unchecked(arg);
            let count = usize::try_from((*call).nargs).unwrap_or_default();
            let arguments = (*call).args.as_slice(count);
            for (position, _) in arguments.iter().enumerate().filter(|(_, argument)| argument.isnull) {
                let name = name_of((*(*call).flinfo).fn_oid, position);
                if name != OPTIONS {
                    refuse(&name);
                }
            }
        }
        Self
    }

    fn is_virtual_arg() -> bool {
        true
    }
}

// SAFETY: has no argument in SQL, as `FunctionCallInfo`.
unsafe impl SqlTranslatable for NoNulls {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(NoNulls);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Err(ReturnsError::Datum);
}

/// Raises the error of a null argument.
fn refuse(name: &str) -> ! {
    Error::null_argument(name).raise()
}

/// Returns the name of a function's argument.
///
/// # Safety
/// The function exists, and has more arguments than `position`.
#[cold]
unsafe fn name_of(function: pg_sys::Oid, position: usize) -> String {
    // SAFETY: PostgreSQL's own row; the arrays are palloc'd, with an element for each argument. Input arguments are the first ones.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, function.into());
        if row.is_null() {
            return format!("{}", position + 1);
        }
        let (mut types, mut names, mut modes) = (null_mut(), null_mut(), null_mut());
        let count = pg_sys::get_func_arg_info(row, &raw mut types, &raw mut names, &raw mut modes);
        let is_named = !names.is_null() && usize::try_from(count).is_ok_and(|count| position < count);
        let name = if is_named { *names.add(position) } else { null_mut() };
        let name = if name.is_null() {
            format!("{}", position + 1)
        } else {
            CStr::from_ptr(name).to_string_lossy().into_owned()
        };
        pg_sys::ReleaseSysCache(row);
        name
    }
}
