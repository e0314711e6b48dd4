//! Decimal128 in its binary integer form: a sign, an exponent of 14 bits, and an integer of 113 bits.
//! Source: IEEE 754-2008, 3.5.2.

use super::super::number::Decimal;

const BIAS: i64 = 6176;
const SIGN: u128 = 1 << 127;
const INFINITY: u128 = 0b11110 << 122;
const NAN: u128 = 0b11111 << 122;
const COEFFICIENT: u128 = (1 << 113) - 1;
const MAX_COEFFICIENT: u128 = 10u128.pow(34) - 1;

pub(super) fn read(bytes: [u8; 16]) -> Option<Decimal> {
    let bits = u128::from_le_bytes(bytes);
    let negative = bits & SIGN != 0;
    match bits & NAN {
        NAN => return Some(Decimal::NaN),
        INFINITY => return Some(Decimal::Infinity { negative }),
        _ => {}
    }
    // A coefficient of more than 34 digits stands for zero.
    let (exponent, coefficient) = match bits >> 125 & 3 {
        3 => (bits >> 111 & 0x3FFF, 0),
        _ => (bits >> 113 & 0x3FFF, Some(bits & COEFFICIENT).filter(|value| *value <= MAX_COEFFICIENT).unwrap_or(0)),
    };
    let sign = if negative { "-" } else { "" };
    Decimal::parse(&format!("{sign}{coefficient}E{}", i64::try_from(exponent).ok()? - BIAS)).ok()
}

/// None for a number that is not a decimal128.
pub(super) fn write(decimal: &Decimal) -> Option<[u8; 16]> {
    let bits = match decimal {
        Decimal::NaN => NAN,
        Decimal::Infinity { negative: false } => INFINITY,
        Decimal::Infinity { negative: true } => INFINITY | SIGN,
        Decimal::Finite(value) => {
            let (integer, scale) = value.as_bigint_and_scale();
            let coefficient: u128 = integer.magnitude().try_into().ok().filter(|value| *value <= MAX_COEFFICIENT)?;
            let exponent = u128::try_from(BIAS.checked_sub(scale)?).ok().filter(|exponent| *exponent < 0x3000)?;
            let sign = if integer.sign() == bigdecimal::num_bigint::Sign::Minus { SIGN } else { 0 };
            sign | exponent << 113 | coefficient
        }
    };
    Some(bits.to_le_bytes())
}
