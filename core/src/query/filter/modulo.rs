//! `$mod`: the remainder of a division of integers.

use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::operand::truncated;
use crate::values::document::element::Element;
use crate::values::document::raw::RawValue;
use crate::values::document::value::Value;

/// `[divisor, remainder]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modulo {
    /// not zero
    divisor: i64,
    remainder: i64,
}

impl Modulo {
    /// Reads `[divisor, remainder]`; numbers are truncated to integers.
    ///
    /// # Errors
    /// `BadValue` for anything else, and for a divisor that is zero.
    pub fn parse(argument: &Value) -> Result<Modulo> {
        let Value::Array(parts) = argument else { bail!(Kind::BadValue, "malformed mod, needs to be an array") };
        let (divisor, remainder) = match &**parts {
            [] | [_] => bail!(Kind::BadValue, "malformed mod, not enough elements"),
            [divisor, remainder] => (part("divisor", divisor)?, part("remainder", remainder)?),
            _ => bail!(Kind::BadValue, "malformed mod, too many elements"),
        };
        ensure!(divisor != 0, Kind::BadValue, "divisor cannot be 0");
        Ok(Modulo { divisor, remainder })
    }

    /// True for a number within 64 bits whose integral part has the remainder.
    pub fn accepts(self, raw: RawValue<'_>) -> bool {
        match Element::of(raw) {
            Element::Number(number) => {
                truncated(&number).is_some_and(|value| value.wrapping_rem(self.divisor) == self.remainder)
            }
            _ => false,
        }
    }
}

fn part(name: &str, value: &Value) -> Result<i64> {
    let Value::Number(number) = value else { bail!(Kind::BadValue, "malformed mod, {name} not a number") };
    truncated(number).ok_or_else(|| {
        let why = if number.to_f64().is_finite() {
            "Out of bounds coercing to integral value"
        } else {
            "Unable to coerce NaN/Inf to integral type"
        };
        error!(Kind::BadValue, "malformed mod, {name} value is invalid :: caused by :: {why}")
    })
}
