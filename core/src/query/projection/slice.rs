//! `$slice` in a projection: the range of an array's elements that is kept.

use crate::error::{Result, bail, error};
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::Value as Json;

/// A range of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// how many elements to skip; if negative, the range begins that many elements before the end
    skip: i64,
    /// the most elements to keep
    limit: usize,
}

impl Slice {
    /// Parses a count, which is negative for the last elements, or `[skip, limit]`.
    ///
    /// # Errors
    /// `Location28667` and `Location28724` for other arguments.
    pub(super) fn parse(argument: &Json) -> Result<Slice> {
        let argument = ext_json::from_json(argument)?;
        let misfit = |count: usize| {
            error!(
                // Three arguments are meant for the expression `$slice`, whose first argument is an array.
                if count == 3 { 28724 } else { 28667 },
                "Invalid $slice syntax: $slice only supports numbers and [skip, limit] arrays, but {count} arguments \
                     were passed in"
            )
        };
        match &argument {
            Value::Number(count) => match count.to_i64_truncated() {
                count if count < 0 => Ok(Slice { skip: count, limit: usize::MAX }),
                count => Ok(Slice { skip: 0, limit: usize::try_from(count).unwrap_or(usize::MAX) }),
            },
            Value::Array(arguments) => match &**arguments {
                [Value::Number(skip), Value::Number(limit)] => match usize::try_from(limit.to_i64_truncated()) {
                    Ok(limit) if limit > 0 => Ok(Slice { skip: skip.to_i64_truncated(), limit }),
                    _ => bail!(
                        28724,
                        "The second argument to $slice must be a positive number: the limit in [skip, limit]"
                    ),
                },
                other => Err(misfit(other.len())),
            },
            _ => Err(misfit(1)),
        }
    }

    /// The numbers of elements to skip and to keep in an array of this length.
    pub(super) fn of(self, length: usize) -> (usize, usize) {
        let distance = usize::try_from(self.skip.unsigned_abs()).unwrap_or(usize::MAX);
        (if self.skip < 0 { length.saturating_sub(distance) } else { distance }, self.limit)
    }
}
