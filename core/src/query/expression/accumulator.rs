//! Accumulators as expressions: over the arguments, or over the elements of the only argument if it is an array.

use super::node::Call;
use super::parse::Operator;
use crate::error::Result;
use crate::query::accumulator::{Accumulator, Average, Deviation, Extreme, Merged, Sum};
use crate::query::operand::Operand;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$sum", |call| accumulated::<Sum>(call)),
    Operator::any("$avg", |call| accumulated::<Average>(call)),
    Operator::any("$min", |call| accumulated::<Extreme<'_, false>>(call)),
    Operator::any("$max", |call| accumulated::<Extreme<'_, true>>(call)),
    Operator::any("$stdDevPop", |call| accumulated::<Deviation<false>>(call)),
    Operator::any("$stdDevSamp", |call| accumulated::<Deviation<true>>(call)),
    Operator::any("$mergeObjects", |call| accumulated::<Merged>(call)),
];

fn accumulated<'s, A: Accumulator<'s> + Default>(call: &Call<'s>) -> Result<Operand<'s>> {
    let (mut state, strings) = (A::default(), call.scope.collator);
    if call.len() == 1 {
        let only = call.argument(0)?;
        if only.is_array() {
            only.into_items().unwrap_or_default().into_iter().try_for_each(|item| state.add(item, strings))?;
        } else {
            state.add(only, strings)?;
        }
    } else {
        call.arguments().try_for_each(|value| state.add(value?, strings))?;
    }
    Ok(state.finish())
}
