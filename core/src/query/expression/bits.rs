//! Bitwise operators, over int and long.

use super::node::Call;
use super::parse::Operator;
use crate::error::{Kind, Result};
use crate::query::operand::Operand;
use crate::values::document::number::Number;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$bitAnd", |call| combined(call, -1, |a, b| a & b)),
    Operator::any("$bitOr", |call| combined(call, 0, |a, b| a | b)),
    Operator::any("$bitXor", |call| combined(call, 0, |a, b| a ^ b)),
    Operator::unary("$bitNot", |call, value| {
        let (bits, is_long) = integer(call, &value)?;
        Ok(Operand::number_of(Number::integer(!bits, is_long)))
    }),
];

/// The bits, and whether the value is a long.
fn integer(call: &Call<'_>, value: &Operand<'_>) -> Result<(i64, bool)> {
    match value.number() {
        Some(number @ Number::Int(bits, _)) => Ok((bits, number.is_long())),
        _ => Err(call.wrong_type(value, "its arguments", "int or long", Kind::TypeMismatch.code())),
    }
}

fn combined(call: &Call<'_>, start: i64, combine: fn(i64, i64) -> i64) -> Result<Operand<'static>> {
    let (mut bits, mut is_long) = (start, false);
    for value in call.arguments() {
        let Some(value) = value?.non_null() else { return Ok(Operand::NULL) };
        let (more, long) = integer(call, &value)?;
        (bits, is_long) = (combine(bits, more), is_long || long);
    }
    Ok(Operand::number_of(Number::integer(bits, is_long)))
}
