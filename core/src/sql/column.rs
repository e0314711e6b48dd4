//! The columns of a statement's rows, as its sender declares them. Each row is compared with them when it is decoded, so its readers need
//! no checks for a column that is missing, NULL or of another length.

use std::borrow::Cow;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// the length of its values; None: any
    width: Option<usize>,
    nullable: bool,
}

/// The columns of a statement's rows; None if the rows are not used, and so not compared.
pub type Columns = Option<Cow<'static, [Column]>>;

impl Column {
    /// Values of any length: text, bytea, json. The value of a function that returns nothing is empty.
    pub const BYTES: Self = Self { width: None, nullable: false };
    /// bool
    pub const BOOL: Self = Self { width: Some(1), nullable: false };
    /// int4 and oid
    pub const INT4: Self = Self { width: Some(4), nullable: false };
    /// int8
    pub const INT8: Self = Self { width: Some(8), nullable: false };

    /// The column if it may be NULL.
    #[must_use]
    pub const fn or_null(self) -> Self {
        Self { nullable: true, ..self }
    }

    /// Checks a value's length, None for NULL.
    fn check(self, length: Option<usize>) -> Result<(), String> {
        match (length, self.width) {
            (None, _) if !self.nullable => Err("is NULL".to_owned()),
            (Some(length), Some(width)) if length != width => Err(format!("has {length} bytes, not {width}")),
            _ => Ok(()),
        }
    }
}

/// Validates the columns of a row, and compares them with the declared ones. `count`: as the row says.
pub(crate) fn check(columns: &[u8], count: u16, declared: Option<&[Column]>) -> Result<(), String> {
    let count = usize::from(count);
    if let Some(declared) = declared.filter(|declared| declared.len() != count) {
        return Err(format!("a row has {count} columns, not {}", declared.len()));
    }
    let malformed = || "malformed row".to_owned();
    let mut rest = columns;
    for at in 0..count {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
        let length = match i32::from_be_bytes(*length) {
            -1 => None,
            length => Some(usize::try_from(length).map_err(|_| malformed())?),
        };
        rest = tail.get(length.unwrap_or(0)..).ok_or_else(malformed)?;
        if let Some(column) = declared.and_then(|declared| declared.get(at)) {
            column.check(length).map_err(|what| format!("column {} of a row {what}", at + 1))?;
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(malformed()) }
}
