//! Bitwise operators, over int and long.

use super::node::Call;
use super::parse::Operator;
use crate::error::{Kind, Result, bail};
use crate::query::operand::Operand;
use crate::values::document::number::Number;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$bitAnd", |call| combined(call, -1, |a, b| a & b)),
    Operator::any("$bitOr", |call| combined(call, 0, |a, b| a | b)),
    Operator::any("$bitXor", |call| combined(call, 0, |a, b| a ^ b)),
    Operator::exactly("$bitNot", 1, |call| {
        let operand = call.argument(0)?;
        match operand.number() {
            _ if operand.is_nullish() => Ok(Operand::NULL),
            Some(Number::Int(value)) => Ok(Operand::int(!value)),
            _ => bail!(Kind::TypeMismatch, "$bitNot only supports int and long, not: {}.", operand.type_name()),
        }
    }),
];

fn combined(call: &Call<'_>, start: i64, combine: fn(i64, i64) -> i64) -> Result<Operand<'static>> {
    let mut bits = start;
    let mut null = false;
    for operand in call.arguments() {
        let operand = operand?;
        match operand.number() {
            Some(Number::Int(value)) => bits = combine(bits, value),
            None if operand.is_nullish() => null = true,
            _ => bail!(Kind::TypeMismatch, "{} only supports int and long operands.", call.name),
        }
    }
    Ok(if null { Operand::NULL } else { Operand::int(bits) })
}
