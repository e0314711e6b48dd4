//! jsonb datums as the bytes that `docshard_core::values::document` reads and writes.

use crate::pg::error::{Error, Raise as _};
use docshard_core::error::Kind;
use docshard_core::values::document::{MAX_RECURSION, raw};
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, UnboxDatum};
use pgrx::pgrx_sql_entity_graph::impl_sql_translatable;
use pgrx::{FromDatum, IntoDatum, pg_sys};
use std::ffi::CString;
use std::ptr::null_mut;

/// True if a datum is neither compressed nor stored externally, whether its header has four bytes or one.
///
/// # Safety
/// The pointer is a varlena's.
#[inline]
pub(crate) unsafe fn is_plain(datum: *const pg_sys::varlena) -> bool {
    // SAFETY: promised by the caller.
    unsafe { pgrx::varatt_is_4b_u(datum) || pgrx::varatt_is_1b(datum) && !pgrx::varatt_is_1b_e(datum) }
}

/// Returns the bytes after the header of a plain datum.
///
/// # Safety
/// The same as for [`is_plain`], which must have returned true; the datum stays where it is as long as the bytes are used.
#[inline]
pub(crate) unsafe fn plain_bytes<'d>(datum: *const pg_sys::varlena) -> &'d [u8] {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(pgrx::vardata_any(datum).cast(), pgrx::varsize_any_exhdr(datum)) }
}

/// Returns the bytes of a varlena. If it is compressed or external, they are a copy in the current memory context.
///
/// # Safety
/// A varlena that is not null, and stays in place as long as the bytes are used.
#[inline]
pub(crate) unsafe fn detoasted_bytes<'d>(datum: pg_sys::Datum) -> &'d [u8] {
    // SAFETY: promised by the caller.
    unsafe { plain_bytes(pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr())) }
}

/// Returns the datum itself if it is plain, else a plain copy.
///
/// # Safety
/// The pointer is a varlena's.
#[inline]
unsafe fn plain(datum: *mut pg_sys::varlena) -> *mut pg_sys::varlena {
    // SAFETY: promised by the caller.
    unsafe { if is_plain(datum) { datum } else { pg_sys::pg_detoast_datum(datum) } }
}

/// A jsonb datum, neither compressed nor external, valid as long as its memory context.
///
/// INVARIANT: the value is nested at most [`MAX_RECURSION`] levels deep, so that functions can recurse into it. A deeper argument is an
/// ERROR.
#[derive(Clone, Copy, Debug)]
pub struct RawJsonb(*mut pg_sys::varlena);

impl RawJsonb {
    /// The root container's bytes, behind the varlena header.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pointer is a plain varlena's (`plain`, or `from_bytes`).
        unsafe { plain_bytes(self.0) }
    }

    /// Takes a datum that any caller may have made.
    ///
    /// # Safety
    /// The pointer is a varlena's.
    unsafe fn of_argument(datum: *mut pg_sys::varlena) -> Self {
        // SAFETY: promised by the caller.
        let jsonb = RawJsonb(unsafe { plain(datum) });
        if !raw::nests_within(jsonb.bytes(), MAX_RECURSION) {
            let message = format!("a value of type jsonb is nested more than {MAX_RECURSION} levels deep");
            Error::new(Kind::DocumentTooDeep, message).raise();
        }
        jsonb
    }

    /// Makes a jsonb datum of JSON text; an ERROR for text that jsonb cannot hold.
    pub fn of_text(text: &str) -> Self {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: jsonb's input function, which takes a C string; its result is a jsonb in the current memory context.
        unsafe {
            let datum = pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(text.as_ptr().into())]);
            RawJsonb::of_argument(datum.map_or(null_mut(), |datum| datum.cast_mut_ptr()))
        }
    }

    /// Makes a jsonb datum in the current memory context. The bytes must be a container as PostgreSQL writes it, nested at most
    /// [`MAX_RECURSION`] levels deep.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        RawJsonb(new_varlena(bytes))
    }
}

/// Makes a varlena with a 4-byte header in the current memory context.
pub fn new_varlena(bytes: &[u8]) -> *mut pg_sys::varlena {
    let size = bytes.len() + pg_sys::VARHDRSZ;
    // SAFETY: palloc gives `size` bytes, aligned; it raises rather than returning null.
    unsafe {
        let varlena: *mut pg_sys::varlena = pg_sys::palloc(size).cast();
        pgrx::set_varsize_4b(varlena, i32::try_from(size).expect("smaller than palloc's limit"));
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), varlena.cast::<u8>().add(pg_sys::VARHDRSZ), bytes.len());
        varlena
    }
}

impl FromDatum for RawJsonb {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _: pg_sys::Oid) -> Option<Self> {
        if is_null {
            return None;
        }
        // SAFETY: a non-null jsonb datum is a varlena.
        Some(unsafe { RawJsonb::of_argument(datum.cast_mut_ptr()) })
    }
}

impl IntoDatum for RawJsonb {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.0.into())
    }
    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

// SAFETY: converts by `FromDatum` above, which detoasts.
unsafe impl<'fcx> ArgAbi<'fcx> for RawJsonb {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        let index = arg.index();
        // SAFETY: the SQL type is jsonb, by impl_sql_translatable.
        unsafe { arg.unbox_arg_using_from_datum().unwrap_or_else(|| panic!("argument {index} must not be null")) }
    }
}

// SAFETY: the datum is a jsonb varlena.
unsafe impl UnboxDatum for RawJsonb {
    type As<'src> = RawJsonb;
    unsafe fn unbox<'src>(datum: Datum<'src>) -> Self::As<'src>
    where
        Self: 'src,
    {
        // SAFETY: a non-null jsonb datum is a varlena.
        unsafe { RawJsonb::of_argument(datum.sans_lifetime().cast_mut_ptr()) }
    }
}

// SAFETY: returns a jsonb varlena in PostgreSQL's memory.
unsafe impl BoxRet for RawJsonb {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the datum is a palloc'd jsonb.
        unsafe { fcinfo.return_raw_datum(self.0.into()) }
    }
}

impl_sql_translatable!(RawJsonb, "jsonb");
