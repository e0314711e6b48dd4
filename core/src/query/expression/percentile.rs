//! `$percentile` and `$median` over an array of numbers.

use super::node::Call;
use super::parse::{Arguments, Operator, required};
use crate::error::{Kind, Result, bail, error};
use crate::query::operand::Operand;
use crate::values::document::number::Number;
use crate::values::document::value::Value;

const MEDIAN: Arguments =
    Arguments::Named(&[required("input", 40414), required("method", 40414)], [7436100, Kind::UnknownOption.code()]);

const PERCENTILE: Arguments = Arguments::Named(
    &[required("input", 40414), required("method", 40414), required("p", 40414)],
    [7429703, Kind::UnknownOption.code()],
);

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$median", MEDIAN, |call| {
        let method = Method::of(call)?;
        Ok(method.of_sorted(&numbers(call)?, 0.5).map_or(Operand::NULL, Operand::double))
    }),
    Operator::new("$percentile", PERCENTILE, |call| {
        let (method, wanted) = (Method::of(call)?, wanted(call)?);
        let numbers = numbers(call)?;
        let of =
            |p: f64| method.of_sorted(&numbers, p).map_or(Value::Null, |number| Value::Number(Number::Double(number)));
        Ok(Operand::array(wanted.into_iter().map(of).collect()))
    }),
];

/// What a percentile between two values is.
#[derive(Clone, Copy)]
enum Method {
    /// the upper one; what MongoDB calls approximate is exact for what fits into one document
    Discrete,
    /// in proportion between both
    Continuous,
}

impl Method {
    fn of(call: &Call<'_>) -> Result<Method> {
        let method = call.argument(1)?;
        match method.text() {
            Some("approximate" | "discrete") => Ok(Method::Discrete),
            Some("continuous") => Ok(Method::Continuous),
            _ => bail!(Kind::BadValue, "a percentile's 'method' must be 'approximate', 'discrete' or 'continuous'"),
        }
    }

    /// The value that the part `p` of all is not above; None of no values.
    fn of_sorted(self, values: &[f64], p: f64) -> Option<f64> {
        let (last, count) = (values.len().checked_sub(1)?, values.len() as f64);
        // Both ranks are from 0 to the last, as p is from 0 to 1.
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

/// The parts that are asked for, each from 0 to 1.
fn wanted(call: &Call<'_>) -> Result<Vec<f64>> {
    let refuse = |code: i32| error!(code, "The $percentile 'p' field must be an array of numbers from 0.0 to 1.0");
    let items = call.argument(2)?.into_items().filter(|items| !items.is_empty());
    let part = |item: &Operand<'_>| {
        let p = item.number().ok_or_else(|| refuse(7750302))?.to_f64();
        if (0.0..=1.0).contains(&p) { Ok(p) } else { Err(refuse(7750301)) }
    };
    items.ok_or_else(|| refuse(7750301))?.iter().map(part).collect()
}

/// The numbers of the input, sorted; what is no number does not count, nor does NaN.
fn numbers(call: &Call<'_>) -> Result<Vec<f64>> {
    let input = call.argument(0)?;
    let items = if input.is_array() { input.into_items().unwrap_or_default() } else { vec![input] };
    let mut numbers: Vec<f64> = items.iter().filter_map(Operand::number).map(|number| number.to_f64()).collect();
    numbers.retain(|number| !number.is_nan());
    numbers.sort_by(f64::total_cmp);
    Ok(numbers)
}
