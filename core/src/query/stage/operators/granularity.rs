//! Series of preferred numbers, to which `$bucketAuto` rounds its boundaries.
//!
//! A series has the numbers of a base times all powers of ten. A power is computed by repeated multiplication or division by ten, as
//! decimals if a decimal is rounded, otherwise as doubles. MongoDB does the same, so doubles equal MongoDB's to the last digit.

use crate::error::Result;
use crate::values::document::number::{self, Decimal, Number, quotient};

/// A series of preferred numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::query::stage) enum Granularity {
    /// these numbers, in ascending order, times powers of ten
    Numbers(&'static [i64]),
    /// the terms of a geometric progression that divides the range from 100 to 1000 into this number of parts, rounded to integers,
    /// times powers of ten
    Parts(i32),
    /// powers of two
    Two,
}

const R5: &[i64] = &[10, 16, 25, 40, 63];
const R10: &[i64] = &[100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
const R20: &[i64] =
    &[100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800, 900];
/// As in MongoDB, without 335.
const R40: &[i64] = &[
    100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280, 300, 315, 355, 375,
    400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850, 900, 950,
];
/// As in MongoDB, without the numbers of R40.
const R80: &[i64] = &[
    103, 109, 115, 122, 128, 136, 145, 155, 165, 175, 185, 195, 206, 218, 230, 243, 258, 272, 290, 307, 325, 345, 365,
    387, 412, 437, 462, 487, 515, 545, 575, 615, 650, 690, 730, 775, 825, 875, 925, 975,
];
const E6: &[i64] = &[10, 15, 22, 33, 47, 68];
const E12: &[i64] = &[10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82];
const E24: &[i64] = &[10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91];

const SERIES: &[(&str, Granularity)] = &[
    ("R5", Granularity::Numbers(R5)),
    ("R10", Granularity::Numbers(R10)),
    ("R20", Granularity::Numbers(R20)),
    ("R40", Granularity::Numbers(R40)),
    ("R80", Granularity::Numbers(R80)),
    ("1-2-5", Granularity::Numbers(&[10, 20, 50])),
    ("E6", Granularity::Numbers(E6)),
    ("E12", Granularity::Numbers(E12)),
    ("E24", Granularity::Numbers(E24)),
    ("E48", Granularity::Parts(48)),
    ("E96", Granularity::Parts(96)),
    ("E192", Granularity::Parts(192)),
    ("POWERSOF2", Granularity::Two),
];

impl Granularity {
    /// The series of that name.
    pub fn find(name: &str) -> Option<Granularity> {
        SERIES.iter().find(|(known, _)| *known == name).map(|(_, series)| *series)
    }

    /// Returns the least number of the series that is greater than a positive number. Zero and infinity are returned unchanged.
    ///
    /// # Errors
    /// None for numbers that are not negative.
    pub fn above(self, number: &Number) -> Result<Number> {
        let double = number.to_f64();
        if double == 0.0 || double.is_infinite() {
            return Ok(number.clone());
        }
        let Some(base) = self.base() else { return Ok(in_type_of(number, double.log2().floor().exp2() * 2.0)) };
        let is_above = |other: &Number| number::compare(other, number).is_gt();
        let mut power = in_type_of(number, 1.0);
        let mut series = scaled(&base, &power)?;
        while !series.last().is_none_or(is_above) {
            power = power.multiply(&Number::int(10))?;
            series = scaled(&base, &power)?;
        }
        while let Some(first) = series.first().filter(|first| is_above(first)).cloned() {
            power = quotient(&power, &Number::int(10));
            series = scaled(&base, &power)?;
            if !series.last().is_some_and(is_above) {
                return Ok(first);
            }
        }
        Ok(series.into_iter().find(is_above).unwrap_or_else(|| number.clone()))
    }

    /// Returns the greatest number of the series that is less than a positive number, or 0. Zero and infinity are returned unchanged.
    ///
    /// # Errors
    /// None for numbers that are not negative.
    pub fn below(self, number: &Number) -> Result<Number> {
        let double = number.to_f64();
        if double == 0.0 || double.is_infinite() {
            return Ok(number.clone());
        }
        let Some(base) = self.base() else { return Ok(in_type_of(number, double.log2().ceil().exp2() / 2.0)) };
        let is_below = |other: &Number| number::compare(other, number).is_lt();
        let mut power = in_type_of(number, 1.0);
        let mut series = scaled(&base, &power)?;
        while !series.first().is_none_or(is_below) {
            power = quotient(&power, &Number::int(10));
            series = scaled(&base, &power)?;
        }
        // The power is 0 if the number is less than all doubles of the series.
        while let Some(last) = series.last().filter(|last| is_below(last)).cloned() {
            power = power.multiply(&Number::int(10))?;
            series = scaled(&base, &power)?;
            if power.to_f64() == 0.0 || !series.first().is_some_and(is_below) {
                return Ok(last);
            }
        }
        Ok(series.into_iter().rev().find(is_below).unwrap_or_else(|| number.clone()))
    }

    /// The numbers that, multiplied by powers of ten, are the whole series. None for powers of two.
    fn base(self) -> Option<Vec<i64>> {
        match self {
            Granularity::Numbers(numbers) => Some(numbers.to_vec()),
            Granularity::Parts(parts) => Some((0..parts).map(|part| progression(part, parts)).collect()),
            Granularity::Two => None,
        }
    }
}

/// Returns a term of the geometric progression from 100 to 1000, rounded to an integer.
fn progression(part: i32, parts: i32) -> i64 {
    match (parts, part) {
        // The only number of the E192 series that differs from the rounded progression.
        (192, 185) => 920,
        _ => Number::Double((10f64.powf(f64::from(part) / f64::from(parts)) * 100.0).round()).to_i64_truncated(),
    }
}

fn scaled(base: &[i64], power: &Number) -> Result<Vec<Number>> {
    base.iter().map(|number| Number::int(*number).multiply(power)).collect()
}

/// Returns the value as a decimal if the number is one, otherwise as a double.
fn in_type_of(number: &Number, value: f64) -> Number {
    match number {
        Number::Decimal(_) => Number::Decimal(Decimal::of_result(value)),
        _ => Number::Double(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours(name: &str, number: &Number) -> (Number, Number) {
        let series = Granularity::find(name).unwrap();
        (series.below(number).unwrap(), series.above(number).unwrap())
    }

    #[test]
    fn neighbours_in_a_series() {
        for (name, number, below, above) in [
            ("R5", 10.0, 63.0 * 0.1, 16.0),
            ("R5", 11.0, 10.0, 16.0),
            ("1-2-5", 0.3, 20.0 * (1.0 / 10.0 / 10.0), 50.0 * (1.0 / 10.0 / 10.0)),
            ("1-2-5", 99.0, 50.0, 100.0),
            ("1-2-5", 1000.0, 500.0, 2000.0),
            ("E192", 9.19, 909.0 * (1.0 / 10.0 / 10.0), 920.0 * (1.0 / 10.0 / 10.0)),
            ("E48", 1.05, 1.0, 110.0 * (1.0 / 10.0 / 10.0)),
            ("R40", 320.0, 315.0, 355.0),
            ("R80", 100.0, 97.5, 103.0),
            ("R80", 110.0, 109.0, 115.0),
            ("R80", 5e-324, 0.0, 1.02e-321),
            ("POWERSOF2", 8.0, 4.0, 16.0),
            ("POWERSOF2", 9.0, 8.0, 16.0),
            ("POWERSOF2", 0.3, 0.25, 0.5),
            ("R80", 0.0, 0.0, 0.0),
            ("R5", f64::INFINITY, f64::INFINITY, f64::INFINITY),
        ] {
            let (found_below, found_above) = neighbours(name, &Number::Double(number));
            assert_eq!((found_below.to_f64(), found_above.to_f64()), (below, above), "{name} {number}");
        }
        assert_eq!(Granularity::find("R6"), None);
    }

    #[test]
    fn decimals_are_rounded_as_decimals() {
        let decimal = |text: &str| Number::Decimal(Decimal::parse(text).unwrap());
        for (name, number, below, above) in [
            ("R5", "1E+30", "6.3E+29", "1.6E+30"),
            ("E6", "0.8", "0.68", "1.0"),
            ("R20", "0.3", "0.28", "0.315"),
            ("POWERSOF2", "5", "4", "8"),
        ] {
            let (found_below, found_above) = neighbours(name, &decimal(number));
            for (found, expected) in [(found_below, below), (found_above, above)] {
                assert!(matches!(found, Number::Decimal(_)));
                assert!(number::compare(&found, &decimal(expected)).is_eq(), "{name} {number}: {found:?}");
            }
        }
    }
}
