//! The accumulators, as a table, and the state of one while a group is read.

use super::choice::{End, Extreme};
use super::collection::{List, Merged, Set};
use super::numbers::{Average, Count, Deviation};
use super::state::{Accumulator, damaged};
use super::sum::Sum;
use crate::budget::Evaluation;
use crate::error::{Result, error};
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::raw::{self, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::order::Strings;
use std::fmt;
use std::sync::Arc;

/// An accumulator: `{name: expression}` in a group.
pub struct AccumulatorOperator {
    /// such as `$sum`
    pub name: &'static str,
    /// false if its argument is `{}`: it counts documents, whatever they are
    pub takes_expression: bool,
    /// true if the result depends on the order of the documents
    pub depends_on_order: bool,
    /// true if the state does not grow with the number of documents
    pub is_small: bool,
    begin: fn() -> Box<dyn State>,
    read: fn(Value, Strings<'_>) -> Result<Box<dyn State>>,
}

impl fmt::Debug for AccumulatorOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl AccumulatorOperator {
    /// A small one whose result does not depend on the order of documents.
    const fn new<A: Accumulator<'static> + fmt::Debug + Default + 'static>(name: &'static str) -> Self {
        Self {
            name,
            takes_expression: true,
            depends_on_order: false,
            is_small: true,
            begin: || Box::new(A::default()),
            read: |state, strings| Ok(Box::new(A::from_state(state, strings)?)),
        }
    }

    const fn ordered(self) -> Self {
        Self { depends_on_order: true, ..self }
    }

    const fn growing(self) -> Self {
        Self { is_small: false, ..self }
    }

    const fn of_documents(self) -> Self {
        Self { takes_expression: false, ..self }
    }
}

/// Every accumulator.
pub const ACCUMULATORS: &[AccumulatorOperator] = &[
    AccumulatorOperator::new::<Sum>("$sum"),
    AccumulatorOperator::new::<Average>("$avg"),
    AccumulatorOperator::new::<Extreme<'static, false>>("$min"),
    AccumulatorOperator::new::<Extreme<'static, true>>("$max"),
    AccumulatorOperator::new::<End<'static, false>>("$first").ordered(),
    AccumulatorOperator::new::<End<'static, true>>("$last").ordered(),
    AccumulatorOperator::new::<Count>("$count").of_documents(),
    AccumulatorOperator::new::<List>("$push").ordered().growing(),
    AccumulatorOperator::new::<Set>("$addToSet").growing(),
    AccumulatorOperator::new::<Merged>("$mergeObjects").ordered().growing(),
    AccumulatorOperator::new::<Deviation<0>>("$stdDevPop"),
    AccumulatorOperator::new::<Deviation<1>>("$stdDevSamp"),
];

/// An accumulator of any kind.
trait State: fmt::Debug {
    fn add(&mut self, value: Operand<'_>, strings: Strings<'_>) -> Result<()>;
    fn merge(&mut self, later: Value, strings: Strings<'_>) -> Result<()>;
    fn finish(self: Box<Self>) -> Value;
    fn state(&self) -> Value;
}

impl<A: Accumulator<'static> + fmt::Debug + 'static> State for A {
    fn add(&mut self, value: Operand<'_>, strings: Strings<'_>) -> Result<()> {
        if self.wants(&value, strings) { Accumulator::add(self, value.into_owned(), strings) } else { Ok(()) }
    }

    fn merge(&mut self, later: Value, strings: Strings<'_>) -> Result<()> {
        Accumulator::merge(self, A::from_state(later, strings)?, strings)
    }

    fn finish(self: Box<Self>) -> Value {
        Accumulator::finish(*self).into_value()
    }

    fn state(&self) -> Value {
        Accumulator::state(self)
    }
}

/// An accumulator's state over the values of a group that it has been given.
#[derive(Debug)]
pub struct Accumulation {
    operator: &'static AccumulatorOperator,
    state: Box<dyn State>,
    collator: Option<Arc<Collator>>,
}

impl Accumulation {
    /// Begins without values, under a collation.
    ///
    /// # Errors
    /// `Location15952` for a name that is no accumulator's.
    pub fn begin(name: &str, collator: Option<Arc<Collator>>) -> Result<Self> {
        let operator = find(name)?;
        Ok(Self { operator, state: (operator.begin)(), collator })
    }

    /// Reads what [`to_bytes`](Self::to_bytes) of this accumulator wrote.
    ///
    /// # Errors
    /// `BadValue` for what it cannot have written; `Location15952`.
    pub fn from_bytes(name: &str, collator: Option<Arc<Collator>>, bytes: &[u8]) -> Result<Self> {
        let operator = find(name)?;
        let state = (operator.read)(read(bytes)?, collator.as_deref())?;
        Ok(Self { operator, state, collator })
    }

    /// The table's row.
    pub fn operator(&self) -> &'static AccumulatorOperator {
        self.operator
    }

    /// Adds a value of the next document; None is a missing one.
    ///
    /// # Errors
    /// Those of the operator; `ExceededMemoryLimit` if the group's state grows above 100 MiB.
    pub fn add(&mut self, value: Option<RawValue<'_>>) -> Result<()> {
        self.add_operand(value.map_or(Operand::Missing, Operand::Stored))
    }

    /// As [`add`](Self::add), of a value that was made.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_value(&mut self, value: &Value) -> Result<()> {
        self.add_operand(Operand::Given(value))
    }

    fn add_operand(&mut self, value: Operand<'_>) -> Result<()> {
        let _evaluation = Evaluation::begin();
        self.state.add(value, self.collator.as_deref())
    }

    /// Adds what the state of a later part of the group's documents has, as [`to_bytes`](Self::to_bytes) wrote it.
    ///
    /// # Errors
    /// As [`add`](Self::add), and [`from_bytes`](Self::from_bytes).
    pub fn merge(&mut self, later: &[u8]) -> Result<()> {
        let _evaluation = Evaluation::begin();
        self.state.merge(read(later)?, self.collator.as_deref())
    }

    /// The result.
    pub fn finish(self) -> Value {
        self.state.finish()
    }

    /// The state: jsonb, without the accumulator's name and collation.
    ///
    /// # Errors
    /// `BSONObjectTooLarge` beyond what jsonb can hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        write::answer(&Part::Array(vec![Part::Owned(self.state.state())]))
    }
}

/// The accumulator of that name.
///
/// # Errors
/// `Location15952`.
fn find(name: &str) -> Result<&'static AccumulatorOperator> {
    let found = ACCUMULATORS.iter().find(|operator| operator.name == name);
    found.ok_or_else(|| error!(15952, "unknown group operator '{name}'"))
}

fn read(bytes: &[u8]) -> Result<Value> {
    raw::validate(bytes)?;
    match Value::from_raw(raw::root(bytes)) {
        Value::Array(mut only) if only.len() == 1 => Ok(only.remove(0)),
        _ => Err(damaged()),
    }
}
