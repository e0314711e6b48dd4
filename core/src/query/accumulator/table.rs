//! The table of accumulators, and the state of one accumulator for one group.

use super::choice::{Extreme, FirstOrLast};
use super::collection::{List, Merged, Set};
use super::numbers::{Average, Count, Deviation};
use super::percentile::{Method, Percentiles};
use super::several::{FirstOrLastN, Ranked};
use super::state::{Accumulator, damaged};
use super::sum::Sum;
use crate::budget::{self, Evaluation};
use crate::error::{Kind, Result, error};
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::raw::{self, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::order::Strings;
use std::fmt;
use std::sync::Arc;

/// A row of the table: the name of an accumulator, its properties, and its initial state.
pub struct AccumulatorOperator {
    /// such as `$sum`
    pub name: &'static str,
    /// the form of its argument
    pub argument: Argument,
    /// true if the result depends on the order of the values
    pub depends_on_order: bool,
    begin: fn(&Parameters) -> Box<dyn State>,
}

/// The form of an accumulator's argument, and the value that is added for a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// an expression: its value
    Expression,
    /// `{}`: the value is ignored
    Nothing,
    /// `{input: expression, n: count}`: the value of `input`
    Several,
    /// `{sortBy: specification, output: expression}`: an array of the sort key, as binary data, and the value of `output`
    Sorted,
    /// as `Sorted`, with `n: count`
    SeveralSorted,
    /// `{input: expression, method: name}`: the value of `input`
    Median,
    /// as `Median`, with `p: parts`
    Percentiles,
}

/// The parts of an argument that are constant within a group.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    /// the argument `n`: the number of values that are kept
    pub count: usize,
    /// the argument `p`: the requested percentiles, each from 0 to 1
    pub parts: Vec<f64>,
    /// how a percentile between two values is computed
    pub method: Method,
}

impl fmt::Debug for AccumulatorOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl AccumulatorOperator {
    /// An accumulator of an expression.
    const fn new<A: Accumulator<'static> + Clone + fmt::Debug + Default + 'static>(name: &'static str) -> Self {
        Self::begun(name, Argument::Expression, |_| Box::new(A::default()))
    }

    /// An accumulator with parameters, or with another form of argument.
    const fn begun(name: &'static str, argument: Argument, begin: fn(&Parameters) -> Box<dyn State>) -> Self {
        Self { name, argument, depends_on_order: false, begin }
    }

    const fn depending_on_order(self) -> Self {
        Self { depends_on_order: true, ..self }
    }
}

/// All supported accumulators.
pub const ACCUMULATORS: &[AccumulatorOperator] = &[
    AccumulatorOperator::new::<Sum>("$sum"),
    AccumulatorOperator::new::<Average>("$avg"),
    AccumulatorOperator::new::<Extreme<'static, false>>("$min"),
    AccumulatorOperator::new::<Extreme<'static, true>>("$max"),
    AccumulatorOperator::new::<FirstOrLast<'static, false>>("$first").depending_on_order(),
    AccumulatorOperator::new::<FirstOrLast<'static, true>>("$last").depending_on_order(),
    AccumulatorOperator::begun("$firstN", Argument::Several, |p| Box::new(FirstOrLastN::first(p.count)))
        .depending_on_order(),
    AccumulatorOperator::begun("$lastN", Argument::Several, |p| Box::new(FirstOrLastN::last(p.count)))
        .depending_on_order(),
    AccumulatorOperator::begun("$minN", Argument::Several, |p| Box::new(Ranked::least(p.count))),
    AccumulatorOperator::begun("$maxN", Argument::Several, |p| Box::new(Ranked::greatest(p.count))),
    AccumulatorOperator::begun("$top", Argument::Sorted, |_| Box::new(Ranked::top(1).single())),
    AccumulatorOperator::begun("$topN", Argument::SeveralSorted, |p| Box::new(Ranked::top(p.count))),
    AccumulatorOperator::begun("$bottom", Argument::Sorted, |_| Box::new(Ranked::bottom(1).single())),
    AccumulatorOperator::begun("$bottomN", Argument::SeveralSorted, |p| Box::new(Ranked::bottom(p.count))),
    AccumulatorOperator::begun("$count", Argument::Nothing, |_| Box::new(Count::default())),
    AccumulatorOperator::new::<List<false>>("$push").depending_on_order(),
    AccumulatorOperator::new::<Set<false>>("$addToSet"),
    AccumulatorOperator::new::<List<true>>("$concatArrays").depending_on_order(),
    AccumulatorOperator::new::<Set<true>>("$setUnion"),
    AccumulatorOperator::new::<Merged>("$mergeObjects").depending_on_order(),
    AccumulatorOperator::new::<Deviation<false>>("$stdDevPop"),
    AccumulatorOperator::new::<Deviation<true>>("$stdDevSamp"),
    AccumulatorOperator::begun("$median", Argument::Median, |p| Box::new(Percentiles::median(p.method))),
    AccumulatorOperator::begun("$percentile", Argument::Percentiles, |p| {
        Box::new(Percentiles::at(p.method, p.parts.clone()))
    }),
];

/// MongoDB's accumulators that are not supported.
const NOT_SUPPORTED: &[&str] = &["$accumulator"];

/// An [`Accumulator`] as a trait object, whose state is a value.
trait State: fmt::Debug {
    fn add(&mut self, value: Operand<'_>, strings: Strings<'_>) -> Result<()>;
    fn merge(&mut self, later: Value, strings: Strings<'_>) -> Result<()>;
    fn finish(self: Box<Self>) -> Value;
    fn result(&self) -> Value;
    fn state(&self) -> Value;
    fn size(&self) -> usize;
}

impl<A: Accumulator<'static> + Clone + fmt::Debug + 'static> State for A {
    fn add(&mut self, value: Operand<'_>, strings: Strings<'_>) -> Result<()> {
        if self.add_lent(&value) || !self.wants(&value, strings) {
            return Ok(());
        }
        Accumulator::add(self, value.into_owned(), strings)
    }

    fn merge(&mut self, later: Value, strings: Strings<'_>) -> Result<()> {
        Accumulator::merge(self, A::from_state(later, strings)?, strings)
    }

    fn finish(self: Box<Self>) -> Value {
        Accumulator::finish(*self).into_value()
    }

    fn result(&self) -> Value {
        Accumulator::finish(self.clone()).into_value()
    }

    fn state(&self) -> Value {
        Accumulator::state(self)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + Accumulator::bytes(self)
    }
}

/// The state of one accumulator for one group.
#[derive(Debug)]
pub struct Accumulation {
    operator: &'static AccumulatorOperator,
    state: Box<dyn State>,
    collator: Option<Arc<Collator>>,
}

impl Accumulation {
    /// Returns the initial state, with a collation.
    pub fn begin(
        operator: &'static AccumulatorOperator,
        parameters: &Parameters,
        collator: Option<Arc<Collator>>,
    ) -> Self {
        Self { operator, state: (operator.begin)(parameters), collator }
    }

    /// The table's row.
    pub fn operator(&self) -> &'static AccumulatorOperator {
        self.operator
    }

    /// Adds the value of the next document; None if it is missing.
    ///
    /// # Errors
    /// Those of the operator; `ExceededMemoryLimit` if this state grows above 100 MiB.
    pub fn add(&mut self, value: Option<RawValue<'_>>) -> Result<()> {
        self.add_operand(value.map_or(Operand::Missing, Operand::Stored))
    }

    /// Adds a value that is not in a document.
    ///
    /// # Errors
    /// Those of [`add`](Self::add).
    pub fn add_value(&mut self, value: &Value) -> Result<()> {
        self.add_operand(Operand::Given(value))
    }

    pub(crate) fn add_operand(&mut self, value: Operand<'_>) -> Result<()> {
        let _evaluation = Evaluation::begin();
        self.state.add(value, self.collator.as_deref())
    }

    /// Merges the state of a later part of the group's documents, as [`state`](Self::state) returned it.
    ///
    /// # Errors
    /// Those of [`add`](Self::add); `BadValue` if it cannot be a state of this accumulator.
    pub fn merge_state(&mut self, later: Value) -> Result<()> {
        let _evaluation = Evaluation::begin();
        self.state.merge(later, self.collator.as_deref())
    }

    /// Merges a later state as jsonb, as [`to_bytes`](Self::to_bytes) returned it.
    ///
    /// # Errors
    /// Those of [`merge_state`](Self::merge_state).
    pub fn merge(&mut self, later: &[u8]) -> Result<()> {
        self.merge_state(read(later)?)
    }

    /// The result.
    pub fn finish(self) -> Value {
        self.state.finish()
    }

    /// Returns the result over the values so far; more can be added.
    pub(crate) fn result(&self) -> Value {
        let _evaluation = Evaluation::begin();
        budget::copying(|| self.state.result())
    }

    /// Returns the approximate memory of the state, in bytes.
    pub fn size(&self) -> usize {
        self.state.size()
    }

    /// The state as a value, without the accumulator's name, parameters and collation.
    pub fn state(&self) -> Value {
        self.state.state()
    }

    /// The state as jsonb.
    ///
    /// # Errors
    /// `BSONObjectTooLarge` beyond what jsonb can hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        write::answer(&Part::Array(vec![Part::Owned(self.state())]))
    }
}

/// Finds an accumulator by its name.
///
/// # Errors
/// `Location15952` for an unknown name; `NotImplemented` for an accumulator of MongoDB that is not supported.
pub fn find(name: &str) -> Result<&'static AccumulatorOperator> {
    let found = ACCUMULATORS.iter().find(|operator| operator.name == name);
    found.ok_or_else(|| match NOT_SUPPORTED.contains(&name) {
        true => error!(Kind::NotImplemented, "the accumulator {name} is not supported"),
        false => error!(15952, "unknown group operator '{name}'"),
    })
}

fn read(bytes: &[u8]) -> Result<Value> {
    raw::validate(bytes)?;
    match Value::from_raw(raw::root(bytes)) {
        Value::Array(only) if only.len() == 1 => only.into_iter().next().ok_or_else(damaged),
        _ => Err(damaged()),
    }
}
