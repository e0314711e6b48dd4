//! json arguments as their text, which keeps the order of keys.

use crate::pg::error::Result as Fallible;
use docshard_core::query::specification::{self, Role};
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::impl_sql_translatable;
use pgrx::{FromDatum, IntoDatum, pg_sys};

#[derive(Clone, Debug)]
pub struct Json(pub String);

impl Json {
    /// Parses the text, whose syntax PostgreSQL has checked; `FailedToParse` if it is nested too deeply.
    pub fn parse(&self, role: Role) -> Fallible<serde_json::Value> {
        parse_as(&self.0, role).map(|(value, _)| value)
    }
}

/// Parses the text of a plain value: see [`parse_as`].
pub fn parse(text: &str) -> Fallible<serde_json::Value> {
    parse_as(text, Role::Plain).map(|(value, _)| value)
}

/// Parses a text and keeps the order of keys. Raises an ERROR if the value takes too much memory, as expressions do. If fields are
/// given twice, their meaning depends on the role, and the second part is the equal text without them: see [`specification`].
pub fn parse_as(text: &str, role: Role) -> Fallible<(serde_json::Value, Option<String>)> {
    Ok(specification::read(text, role)?)
}

impl FromDatum for Json {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, typoid: pg_sys::Oid) -> Option<Self> {
        // SAFETY: json has the representation of text.
        unsafe { String::from_polymorphic_datum(datum, is_null, typoid) }.map(Json)
    }
}

impl IntoDatum for Json {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        self.0.into_datum()
    }
    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONOID
    }
}

// SAFETY: the conversion above.
unsafe impl<'fcx> ArgAbi<'fcx> for Json {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        let index = arg.index();
        // SAFETY: the SQL type is json, by impl_sql_translatable.
        unsafe { arg.unbox_arg_using_from_datum().unwrap_or_else(|| panic!("argument {index} must not be null")) }
    }
}

// SAFETY: returns a text varlena in PostgreSQL's memory.
unsafe impl BoxRet for Json {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        match self.into_datum() {
            // SAFETY: the datum is a palloc'd json.
            Some(datum) => unsafe { fcinfo.return_raw_datum(datum) },
            None => fcinfo.return_null(),
        }
    }
}

impl_sql_translatable!(Json, "json");
