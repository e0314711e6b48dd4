//! json arguments as their text, which keeps the order of keys.
//!
//! An argument of the type `docshard.any_json` has the same form. Its cast from jsonb, in which the order of keys is lost, puts
//! [`UNORDERED`] before the text: see sql/any_json.sql.

use crate::pg::error::Result as Fallible;
use docshard_core::query::specification::{self, Role};
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::impl_sql_translatable;
use pgrx::{FromDatum, IntoDatum, pg_sys};
use std::borrow::Cow;

/// White space before a text that comes from jsonb.
const UNORDERED: &str = "\t\r\t\r";

/// The text of a json argument.
#[derive(Clone, Debug)]
pub struct Json {
    text: Cow<'static, str>,
    /// the argument comes from jsonb, so the order of keys is lost
    unordered: bool,
}

impl Default for Json {
    fn default() -> Self {
        Self { text: Cow::Borrowed(EMPTY), unordered: false }
    }
}

const EMPTY: &str = "{}";

impl Json {
    pub fn new(text: String) -> Self {
        Self { text: Cow::Owned(text), unordered: false }
    }

    /// Parses the text, whose syntax PostgreSQL has checked.
    ///
    /// # Errors
    /// `FailedToParse` if the value is nested too deeply; `BadValue` if the order of several fields counts, but the argument comes from jsonb.
    pub fn parse(&self, role: Role) -> Fallible<serde_json::Value> {
        let value = specification::read(&self.text, role)?.0;
        if self.unordered {
            specification::check_unordered(&value, role)?;
        }
        Ok(value)
    }

    /// Returns the text of a specification of this role.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse), if the argument comes from jsonb.
    pub fn text(&self, role: Role) -> Fallible<&str> {
        if self.unordered {
            self.parse(role)?;
        }
        Ok(&self.text)
    }

    /// Returns the text of a document, in which the order of fields does not count.
    pub fn document_text(&self) -> &str {
        &self.text
    }

    /// True for the text of an object without fields, if it has no blanks.
    pub fn is_empty(&self) -> bool {
        self.text == EMPTY
    }

    /// True if the argument comes from jsonb, so that the order of keys is lost.
    pub fn is_unordered(&self) -> bool {
        self.unordered
    }
}

impl FromDatum for Json {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, typoid: pg_sys::Oid) -> Option<Self> {
        // SAFETY: json has the representation of text.
        let text = unsafe { String::from_polymorphic_datum(datum, is_null, typoid) }?;
        Some(match text.strip_prefix(UNORDERED) {
            Some(text) => Json { text: Cow::Owned(text.to_owned()), unordered: true },
            None => Json::new(text),
        })
    }
}

impl IntoDatum for Json {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        self.text.into_owned().into_datum()
    }
    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONOID
    }
}

// SAFETY: converts by `FromDatum` above.
unsafe impl<'fcx> ArgAbi<'fcx> for Json {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // Only the options of a function for users can be null (see `nulls`). Other functions with a required argument are STRICT.
        // SAFETY: the SQL type is json, by impl_sql_translatable.
        unsafe { arg.unbox_arg_using_from_datum().unwrap_or_default() }
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
