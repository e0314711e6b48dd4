//! int, long, double and decimal: comparison by value, arithmetic with MongoDB's promotions.

use bigdecimal::BigDecimal;
use std::cmp::Ordering;

/// A number. jsonb's numeric without a fraction that fits 64 bits is `Int` (int or long by its size); another numeric
/// is `Double`; NaN and infinities are `Double` too; `{"$numberDecimal": …}` is `Decimal`.
#[derive(Clone, Debug)]
pub enum Number {
    /// int (fits 32 bits) or long
    Int(i64),
    /// double
    Double(f64),
    /// decimal128
    Decimal(Decimal),
}

/// A decimal128's value; its exponent (trailing zeros) is kept for printing, and ignored in comparison.
#[derive(Clone, Debug)]
pub enum Decimal {
    /// a finite value
    Finite(Box<BigDecimal>),
    /// -Infinity or Infinity
    Infinity {
        /// true for -Infinity
        negative: bool,
    },
    /// NaN
    NaN,
}

/// Compares by value across the types; NaN equals NaN and is below every other number.
pub fn compare(_a: &Number, _b: &Number) -> Ordering {
    todo!()
}
