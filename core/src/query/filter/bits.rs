//! `$bitsAllSet`, `$bitsAllClear`, `$bitsAnySet`, `$bitsAnyClear`: bits of integers and binary values.

use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::values::document::element::Element;
use crate::values::document::number::Number;
use crate::values::document::raw::RawValue;
use crate::values::document::value::Value;
use std::borrow::Cow;

/// A condition on bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    /// ascending, each once
    positions: Vec<u32>,
    /// true if the bits must be set, false if clear
    set: bool,
    /// true for all bits, false for at least one
    all: bool,
}

/// BSON's subtype of binary data that has its length twice.
const OLD_BINARY: u8 = 2;

/// The sign bit of an integer; all further bits are equal to it.
const SIGN: u32 = 63;

impl Bits {
    /// Reads a mask (a number or a binary value) or a list of positions.
    ///
    /// # Errors
    /// `FailedToParse` for a mask that is negative or not an integer, `BadValue` for a position that is negative, not an integer or too
    /// large, and for a value of another type.
    pub fn parse(name: &str, path: &str, argument: &Value, all: bool, set: bool) -> Result<Bits> {
        let mut positions = match argument {
            Value::Array(positions) => positions.iter().map(position).collect::<Result<Vec<_>>>()?,
            Value::Number(mask) => {
                let mask = mask.as_i64().ok_or_else(|| failed(path, "Expected an integer", mask))?;
                if mask < 0 {
                    return Err(failed(path, "Expected a non-negative number in", &Number::int(mask)));
                }
                (0..SIGN).filter(|bit| mask >> bit & 1 == 1).collect()
            }
            Value::Binary(subtype, bytes) => {
                let bytes = content(*subtype, bytes);
                (0..bytes.len() as u32 * 8).filter(|bit| bit_of_bytes(&bytes, *bit)).collect()
            }
            other => bail!(
                Kind::BadValue,
                "{name} takes an Array, a number, or a BinData but received: {}",
                other.type_name()
            ),
        };
        positions.sort_unstable();
        positions.dedup();
        Ok(Bits { positions, set, all })
    }

    /// True if the bits of a number or a binary value satisfy the condition. A decimal is rounded. Doubles with a fraction, numbers beyond
    /// 64 bits, NaN and the infinities have no bits, and satisfy no condition.
    pub fn accept(&self, raw: RawValue<'_>) -> bool {
        match Element::of(raw) {
            Element::Number(number) => {
                integer(&number).is_some_and(|value| self.test(|bit| value >> bit.min(SIGN) & 1 == 1))
            }
            Element::Binary(subtype, bytes) => {
                let bytes = content(subtype, &bytes);
                self.test(|bit| bit_of_bytes(&bytes, bit))
            }
            _ => false,
        }
    }

    fn test(&self, bit: impl Fn(u32) -> bool) -> bool {
        let mut positions = self.positions.iter();
        let fits = |position: &u32| bit(*position) == self.set;
        if self.all { positions.all(fits) } else { positions.any(fits) }
    }
}

fn integer(number: &Number) -> Option<i64> {
    match number {
        Number::Decimal(decimal) => decimal.to_i64_rounded(),
        number => number.as_i64(),
    }
}

/// The bytes of binary data as BSON has them: those of the old subtype 2 begin with their length.
fn content(subtype: u8, bytes: &[u8]) -> Cow<'_, [u8]> {
    match subtype {
        OLD_BINARY => Cow::Owned([&(bytes.len() as u32).to_le_bytes(), bytes].concat()),
        _ => Cow::Borrowed(bytes),
    }
}

/// Least significant bit of the first byte first; clear beyond the end.
fn bit_of_bytes(bytes: &[u8], bit: u32) -> bool {
    bytes.get((bit / 8) as usize).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
}

fn position(value: &Value) -> Result<u32> {
    let Value::Number(number) = value else {
        bail!(Kind::BadValue, "bit positions must be an integer but got: {}", value.type_name())
    };
    let shown = number.to_f64();
    let position =
        number.as_i64().ok_or_else(|| error!(Kind::BadValue, "bit positions must be an integer but got: {shown}"))?;
    ensure!(position >= 0, Kind::BadValue, "bit positions must be >= 0 but got: {position}");
    match i32::try_from(position) {
        Ok(position) => Ok(position.unsigned_abs()),
        Err(_) => {
            bail!(Kind::BadValue, "bit positions cannot be represented as a 32-bit signed integer: {position}")
        }
    }
}

fn failed(path: &str, what: &str, number: &Number) -> Error {
    error!(Kind::FailedToParse, "{what}: {path}: {}", number.to_f64())
}
