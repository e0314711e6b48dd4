//! Percentiles of numbers. All numbers are kept, so results are exact where MongoDB approximates.

use super::state::{Accumulator, damaged, grow_by};
use crate::error::{Error, Kind, Result, bail, error};
use crate::query::operand::Operand;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::order::Strings;

/// How a percentile between two values is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// the least value such that at least the share `p` of all values are at or below it; MongoDB's `approximate` is computed like this, too
    #[default]
    Discrete,
    /// interpolated linearly
    Continuous,
}

impl Method {
    /// Reads the name of a method.
    ///
    /// # Errors
    /// `BadValue` for any other.
    pub(crate) fn parse(name: Option<&str>) -> Result<Method> {
        match name {
            Some("approximate" | "discrete") => Ok(Method::Discrete),
            Some("continuous") => Ok(Method::Continuous),
            _ => bail!(Kind::BadValue, "a percentile's 'method' must be 'approximate', 'discrete' or 'continuous'"),
        }
    }

    /// Returns the percentile `p`, from 0 to 1, of sorted values; null if there are none.
    pub(crate) fn of_sorted(self, values: &[f64], p: f64) -> Value {
        let found = self.found(values, p);
        found.map_or(Value::Null, |number| Value::Number(Number::Double(number)))
    }

    fn found(self, values: &[f64], p: f64) -> Option<f64> {
        let (last, count) = (values.len().checked_sub(1)?, values.len() as f64);
        // Ranks are at most the last, as p is at most 1. The discrete rank of p = 0 is -1, which counts as 0.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let at = |rank: f64| (rank.max(0.0) as usize).min(last);
        match self {
            Method::Discrete => values.get(at((p * count).ceil() - 1.0)).copied(),
            Method::Continuous => {
                let rank = p * (count - 1.0);
                let (below, above) = (values[at(rank.floor())], values[at(rank.ceil())]);
                Some(if below == above { below } else { below + (above - below) * rank.fract() })
            }
        }
    }
}

/// Reads the argument `p` of `$percentile`: the requested percentiles, each from 0 to 1.
///
/// # Errors
/// `Location7750301` unless `p` is a non-empty array; `Location7750302` for an element that is not a number, `Location7750303` for one
/// out of range.
pub(crate) fn wanted_parts(parts: Operand<'_>) -> Result<Vec<f64>> {
    let refuse =
        |code: i32| -> Error { error!(code, "The $percentile 'p' field must be an array of numbers from 0.0 to 1.0") };
    let items = parts.into_items().filter(|items| !items.is_empty());
    let part = |item: &Operand<'_>| {
        let p = item.number().ok_or_else(|| refuse(7750302))?.to_f64();
        if (0.0..=1.0).contains(&p) { Ok(p) } else { Err(refuse(7750303)) }
    };
    items.ok_or_else(|| refuse(7750301))?.iter().map(part).collect()
}

/// Returns a value as a double; None for NaN and values that are not numbers.
fn counted(value: &Operand<'_>) -> Option<f64> {
    value.number().map(|number| number.to_f64()).filter(|number| !number.is_nan())
}

/// Returns the numbers other than NaN, sorted.
pub(crate) fn sorted_numbers<'o, 'v: 'o>(values: impl Iterator<Item = &'o Operand<'v>>) -> Vec<f64> {
    let mut numbers: Vec<f64> = values.filter_map(counted).collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// All numbers of a group, for its percentiles or its median.
#[derive(Clone, Debug, Default)]
pub(crate) struct Percentiles {
    method: Method,
    /// None for the median
    parts: Option<Vec<f64>>,
    numbers: Vec<f64>,
    bytes: usize,
}

impl Percentiles {
    pub(super) fn median(method: Method) -> Self {
        Self { method, ..Self::default() }
    }

    pub(super) fn at(method: Method, parts: Vec<f64>) -> Self {
        Self { parts: Some(parts), ..Self::median(method) }
    }

    fn put(&mut self, number: f64) -> Result<()> {
        grow_by(&mut self.bytes, size_of::<f64>(), "$percentile")?;
        self.numbers.push(number);
        Ok(())
    }
}

impl<'a> Accumulator<'a> for Percentiles {
    fn wants(&self, value: &Operand<'_>, _: Strings<'_>) -> bool {
        value.is_number()
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        counted(&value).map_or(Ok(()), |number| self.put(number))
    }

    fn merge(&mut self, later: Self, _: Strings<'_>) -> Result<()> {
        later.numbers.into_iter().try_for_each(|number| self.put(number))
    }

    fn finish(mut self) -> Operand<'a> {
        self.numbers.sort_by(f64::total_cmp);
        let at = |p: f64| self.method.of_sorted(&self.numbers, p);
        match &self.parts {
            None => Operand::Made(at(0.5)),
            Some(parts) => Operand::Made(Value::fixed_array(parts.iter().map(|p| at(*p)).collect())),
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    /// The state is binary data with eight bytes for each number.
    fn state(&self) -> Value {
        Value::Binary(0, self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        let Value::Binary(_, bytes) = state else { return Err(damaged()) };
        let (numbers, rest) = bytes.as_chunks::<8>();
        let numbers: Vec<f64> = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        if !rest.is_empty() || numbers.iter().any(|number| number.is_nan()) {
            return Err(damaged());
        }
        Ok(Self { numbers, ..Self::default() })
    }
}
