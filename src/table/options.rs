//! Options of foreign tables and their columns.

use crate::catalog::collections::namespace;
use crate::pg::error::Result;
use crate::pg::fdw::{Owner, Setting};
use docshard_core::error::{Kind, bail, ensure, error};

/// What to do with a value that does not fit its column: raise an error, or read it as NULL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMismatch {
    #[default]
    Error,
    Null,
}

#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    pub namespace: String,
    pub on_mismatch: OnMismatch,
    /// INSERT stores NULL as null; otherwise it omits the field
    pub null_as_null: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnOptions {
    /// the dotted path; empty: the whole document; None: the column's name
    pub path: Option<String>,
    /// the column holds ObjectIds
    pub is_object_id: bool,
}

const OF_TABLES: &[&str] = &["namespace", "on_mismatch", "null_as"];
const OF_COLUMNS: &[&str] = &["path", "type"];
/// The largest number of fields in a path.
const MAX_STEPS: usize = 100;

/// Checks options of any object.
pub fn validate(owner: Owner, settings: &[Setting]) -> Result<()> {
    match owner {
        Owner::Table => table(settings).map(|_| ()),
        Owner::Column => column(settings).map(|_| ()),
        Owner::Wrapper | Owner::Server | Owner::UserMapping => match settings.first() {
            Some((name, _)) => Err(unknown(name, &[])),
            None => Ok(()),
        },
    }
}

fn unknown(name: &str, known: &[&str]) -> crate::pg::error::Error {
    let error = error!(Kind::InvalidOptions, "invalid option \"{name}\"");
    error.with_hint(match known {
        [] => "There are no options here.".to_owned(),
        known => format!("Valid options are: {}.", known.join(", ")),
    })
}

/// Reads the options of a table.
pub fn table(settings: &[Setting]) -> Result<TableOptions> {
    let mut options = TableOptions::default();
    for (name, value) in settings {
        match (name.as_str(), value.as_str()) {
            ("namespace", _) => {
                namespace::split(value)?;
                options.namespace.clone_from(value);
            }
            ("on_mismatch", "error") => options.on_mismatch = OnMismatch::Error,
            ("on_mismatch", "null") => options.on_mismatch = OnMismatch::Null,
            ("on_mismatch", _) => bail!(Kind::BadValue, "on_mismatch must be error or null, not \"{value}\""),
            ("null_as", "missing") => options.null_as_null = false,
            ("null_as", "null") => options.null_as_null = true,
            ("null_as", _) => bail!(Kind::BadValue, "null_as must be missing or null, not \"{value}\""),
            _ => return Err(unknown(name, OF_TABLES)),
        }
    }
    if options.namespace.is_empty() {
        let error = error!(Kind::InvalidOptions, "a foreign table of docshard needs the option \"namespace\"");
        return Err(error.with_hint("OPTIONS (namespace 'database.collection')"));
    }
    Ok(options)
}

/// Reads the options of a column.
pub fn column(settings: &[Setting]) -> Result<ColumnOptions> {
    let mut options = ColumnOptions::default();
    for (name, value) in settings {
        match (name.as_str(), value.as_str()) {
            ("path", _) => {
                if !value.is_empty() {
                    check_path(value)?;
                }
                options.path = Some(value.clone());
            }
            ("type", "objectId") => options.is_object_id = true,
            ("type", _) => bail!(Kind::BadValue, "the type of a column can only be objectId, not \"{value}\""),
            _ => return Err(unknown(name, OF_COLUMNS)),
        }
    }
    Ok(options)
}

/// Checks a dotted path of field names.
pub fn check_path(path: &str) -> Result<()> {
    ensure!(
        path.split('.').count() <= MAX_STEPS,
        Kind::BadValue,
        "the path of a column has more than {MAX_STEPS} fields"
    );
    for step in path.split('.') {
        ensure!(!step.is_empty(), Kind::BadValue, "the path \"{path}\" has an empty field name");
        ensure!(!step.starts_with('$'), Kind::BadValue, "the field name \"{step}\" must not begin with \"$\"");
    }
    Ok(())
}
