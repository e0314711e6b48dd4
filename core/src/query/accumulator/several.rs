//! Accumulators that keep `n` values: the first, the last, the least or the greatest.

use super::state::{Accumulator, Parts, damaged, grow, size_of_value};
use crate::error::Result;
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::value::Value;
use crate::values::key::encode::encoded_under;
use crate::values::order::Strings;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// The first `count` values, or the last. A missing value counts as null.
#[derive(Clone, Debug)]
pub(crate) struct FirstOrLastN {
    count: usize,
    last: bool,
    values: VecDeque<Value>,
    bytes: usize,
}

impl FirstOrLastN {
    /// The first `count` values.
    pub(super) fn first(count: usize) -> Self {
        Self { count, last: false, values: VecDeque::new(), bytes: 0 }
    }

    /// The last `count` values.
    pub(super) fn last(count: usize) -> Self {
        Self { last: true, ..Self::first(count) }
    }

    fn put(&mut self, value: Value) -> Result<()> {
        if self.values.len() >= self.count {
            if !self.last {
                return Ok(());
            }
            if let Some(value) = self.values.pop_front() {
                self.bytes -= size_of_value(&value);
            }
        }
        grow(&mut self.bytes, &value, if self.last { "$lastN" } else { "$firstN" })?;
        self.values.push_back(value);
        Ok(())
    }
}

impl<'a> Accumulator<'a> for FirstOrLastN {
    fn wants(&self, _: &Operand<'_>, _: Strings<'_>) -> bool {
        self.last || self.values.len() < self.count
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        self.put(value.into_value())
    }

    fn merge(&mut self, later: Self, _: Strings<'_>) -> Result<()> {
        later.values.into_iter().try_for_each(|value| self.put(value))
    }

    fn finish(self) -> Operand<'a> {
        Operand::Made(Value::fixed_array(self.values.into()))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn state(&self) -> Value {
        Value::fixed_array(self.values.iter().cloned().collect())
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        let Value::Array(values) = state else { return Err(damaged()) };
        Ok(Self { values: values.into_vec().into(), ..Self::first(usize::MAX) })
    }
}

/// Which values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// the least values
    Least,
    /// the greatest values
    Greatest,
    /// the least sort keys; the earliest of equal ones
    Top,
    /// the greatest sort keys; the latest of equal ones. The result is in ascending order of the keys.
    Bottom,
}

/// The best `count` values by an [`Order`]. For `Least` and `Greatest`, the values themselves are compared, and null and missing ones are
/// ignored; for `Top` and `Bottom`, the sort keys that are paired with them.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    count: usize,
    order: Order,
    single: bool,
    /// a heap with the worst on top
    rows: BinaryHeap<RankedValue>,
    /// the number of values added so far
    seen: u64,
    bytes: usize,
}

/// A value with its rank. The smaller key is better; of equal keys, the smaller tie.
#[derive(Clone, Debug)]
struct RankedValue {
    key: Vec<u8>,
    tie: i128,
    value: Value,
}

impl PartialEq for RankedValue {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RankedValue {}

impl PartialOrd for RankedValue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RankedValue {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then(self.tie.cmp(&other.tie))
    }
}

impl Ranked {
    fn new(count: usize, order: Order) -> Self {
        Self { count, order, single: false, rows: BinaryHeap::new(), seen: 0, bytes: 0 }
    }

    pub(super) fn least(count: usize) -> Self {
        Self::new(count, Order::Least)
    }

    pub(super) fn greatest(count: usize) -> Self {
        Self::new(count, Order::Greatest)
    }

    pub(super) fn top(count: usize) -> Self {
        Self::new(count, Order::Top)
    }

    pub(super) fn bottom(count: usize) -> Self {
        Self::new(count, Order::Bottom)
    }

    /// Makes the result the best value instead of an array.
    pub(super) fn single(self) -> Self {
        Self { single: true, ..self }
    }

    fn has_sort_keys(&self) -> bool {
        matches!(self.order, Order::Top | Order::Bottom)
    }

    /// Returns the key by which a value is ranked, before it is inverted.
    fn encoded(&self, value: &Value, strings: Option<&Collator>) -> Vec<u8> {
        encoded_under(value, strings)
    }

    /// Adds a value. The key is not inverted yet.
    fn put(&mut self, mut key: Vec<u8>, value: Value) -> Result<()> {
        let mut tie = i128::from(self.seen);
        self.seen += 1;
        // Encodings are prefix-free: inverting their bytes inverts their order.
        if matches!(self.order, Order::Greatest | Order::Bottom) {
            key.iter_mut().for_each(|byte| *byte = !*byte);
        }
        if self.order == Order::Bottom {
            tie = -tie;
        }
        let row = RankedValue { key, tie, value };
        if self.rows.len() >= self.count {
            match self.rows.peek() {
                Some(worst) if row < *worst => {}
                _ => return Ok(()),
            }
            if let Some(worst) = self.rows.pop() {
                self.bytes -= size_of_value(&worst.value) + size_of::<RankedValue>() + worst.key.len();
            }
        }
        let name = self.name();
        self.bytes += size_of::<RankedValue>() + row.key.len();
        grow(&mut self.bytes, &row.value, name)?;
        self.rows.push(row);
        Ok(())
    }

    fn name(&self) -> &'static str {
        match self.order {
            Order::Least => "$minN",
            Order::Greatest => "$maxN",
            Order::Top => "$topN",
            Order::Bottom => "$bottomN",
        }
    }

    /// Adds a pair of a sort key and a value: see [`put`](Self::put).
    fn put_pair(&mut self, pair: Value) -> Result<()> {
        let Value::Array(pair) = pair else { return Err(damaged()) };
        match <[Value; 2]>::try_from(pair.into_vec()) {
            Ok([Value::Binary(_, key), value]) => self.put(key, value),
            _ => Err(damaged()),
        }
    }
}

impl<'a> Accumulator<'a> for Ranked {
    fn wants(&self, value: &Operand<'_>, _: Strings<'_>) -> bool {
        self.has_sort_keys() || !value.is_nullish()
    }

    fn add(&mut self, value: Operand<'a>, strings: Strings<'_>) -> Result<()> {
        let value = value.into_value();
        if self.has_sort_keys() {
            return self.put_pair(value);
        }
        let key = self.encoded(&value, strings);
        self.put(key, value)
    }

    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()> {
        // `later` comes from `from_state`: its rows have no keys, and their ties are the order in which the values were added.
        let mut rows = later.rows.into_vec();
        rows.sort_by_key(|row| row.tie);
        for row in rows {
            if self.has_sort_keys() {
                self.put_pair(row.value)?;
            } else {
                let key = self.encoded(&row.value, strings);
                self.put(key, row.value)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Operand<'a> {
        let (single, bottom) = (self.single, self.order == Order::Bottom);
        let mut values: Vec<Value> = self.rows.into_sorted_vec().into_iter().map(|row| row.value).collect();
        if bottom {
            values.reverse();
        }
        match single {
            true => values.pop().map_or(Operand::NULL, Operand::Made),
            false => Operand::Made(Value::fixed_array(values)),
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn state(&self) -> Value {
        let mut rows: Vec<&RankedValue> = self.rows.iter().collect();
        rows.sort_by_key(|row| row.tie.abs());
        let inverted = self.order == Order::Bottom;
        let key = |row: &RankedValue| row.key.iter().map(|byte| if inverted { !*byte } else { *byte }).collect();
        let shown = |row: &RankedValue| match self.has_sort_keys() {
            true => Value::fixed_array(vec![Value::Binary(0, key(row)), row.value.clone()]),
            false => row.value.clone(),
        };
        Value::fixed_array(rows.into_iter().map(shown).collect())
    }

    /// The rows get no keys here. [`merge`](Accumulator::merge) computes the keys.
    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        Parts::of(&state)?;
        let Value::Array(values) = state else { return Err(damaged()) };
        let row = |(tie, value)| RankedValue { key: Vec::new(), tie: tie as i128, value };
        let rows: BinaryHeap<RankedValue> = values.into_iter().enumerate().map(row).collect();
        Ok(Self { rows, ..Self::least(usize::MAX) })
    }
}
