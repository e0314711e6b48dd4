//! Elementary functions of real numbers, to more digits than a decimal128 has.
//!
//! Arguments and results are `BigDecimal`s. Inside, the functions compute in fixed point, with integers as multiples of
//! 2^-[`BITS`], and the number of steps is bounded, whatever the argument. Arguments have 34 digits and exponents from -6176
//! to 6144, as decimal128 has, or are results of these functions.
//!
//! INVARIANT: a result's relative error is below 10^-75, or below 10^-59 where a term that is negligible beside 1 or pi is
//! left out. Where a function tends to 0 with its argument, the error of a sum could exceed the value. There the value is
//! computed as the argument times a factor near 1 ([`near_zero`]).

use crate::budget;
use bigdecimal::num_bigint::{BigInt, Sign};
use bigdecimal::{BigDecimal, One, Signed, ToPrimitive, Zero};
use std::sync::OnceLock;

/// The bits after the point of fixed-point numbers: 120 decimal digits. The logarithm of a number next to 1 begins at the 34th,
/// so 86 remain for its digits.
const BITS: usize = 400;

/// The decimal digits of [`BITS`].
const DIGITS: u32 = 120;

/// Below this power of ten an argument is near zero.
const SMALL: i64 = -20;

/// Beside a number above this power of ten, 1 is negligible; beside 1, a number below the inverse.
const LARGE: i64 = 60;

/// Above this power of ten, an argument's exponential is certainly beyond all decimals, or nearer to zero than all of
/// them.
const MAX_EXP: i64 = 5;

/// A power of ten beyond those of all decimals.
const BEYOND: i64 = 7000;

fn power_of_10(exponent: u32) -> BigInt {
    BigInt::from(10).pow(exponent)
}

fn integer(value: i64) -> BigDecimal {
    BigDecimal::from(value)
}

/// The least `n` such that the magnitude is below 10^`n`; 0 for 0.
pub(super) fn exponent(value: &BigDecimal) -> i64 {
    if value.is_zero() { 0 } else { (value.digits() as i64).saturating_sub(value.fractional_digit_count()) }
}

/// The value as a multiple of 2^-`bits`, rounded towards zero. For a tiny value this is 0 without computing a large power of
/// ten.
fn to_fixed(value: &BigDecimal, bits: usize) -> BigInt {
    let (digits, scale) = value.as_bigint_and_scale();
    let shifted = digits.into_owned() << bits;
    match u32::try_from(scale.unsigned_abs()) {
        _ if exponent(value) < -(bits as i64) => BigInt::zero(),
        Ok(power) if scale > 0 => shifted / power_of_10(power),
        Ok(power) => shifted * power_of_10(power),
        Err(_) => BigInt::zero(),
    }
}

fn from_fixed(value: &BigInt) -> BigDecimal {
    BigDecimal::new((value * power_of_10(DIGITS)) >> BITS, i64::from(DIGITS))
}

fn one() -> BigInt {
    BigInt::one() << BITS
}

fn product(a: &BigInt, b: &BigInt) -> BigInt {
    budget::step();
    (a * b) >> BITS
}

/// The integer nearest to `a / b`.
fn nearest(a: &BigInt, b: &BigInt) -> BigInt {
    let half = if a.is_negative() { -b } else { b.clone() };
    (a * 2 + half) / (b * 2)
}

fn ratio(a: &BigInt, b: &BigInt) -> BigInt {
    budget::step();
    (a << BITS) / b
}

/// A double of a magnitude below 4, truncated to 60 bits after the point.
fn of_f64(value: f64) -> BigInt {
    const DOUBLE_BITS: i32 = 60;
    BigInt::from((value * 2f64.powi(DOUBLE_BITS)) as i64) << (BITS - DOUBLE_BITS as usize)
}

fn to_f64(value: &BigInt) -> f64 {
    value.to_f64().unwrap_or(0.0) / 2f64.powi(BITS as i32)
}

/// Sums a series from `first` until a term is 0. `next` computes a term from the previous one and the term's number, which
/// starts at 1. The terms must decrease so fast that one of the next [`BITS`] is 0.
fn series(first: BigInt, next: impl Fn(BigInt, i64) -> BigInt) -> BigInt {
    let mut sum = first.clone();
    let mut term = first;
    for number in 1..=BITS as i64 {
        budget::step();
        term = next(term, number);
        if term.is_zero() {
            break;
        }
        sum += &term;
    }
    sum
}

/// pi as a multiple of 2^-`bits`, by Machin's formula.
fn compute_pi(bits: usize) -> BigInt {
    const GUARD_BITS: usize = 32;
    let arctangent_of_inverse = |divisor: i64| {
        let mut power = (BigInt::one() << (bits + GUARD_BITS)) / divisor;
        let mut sum = power.clone();
        let mut number = 1;
        while !power.is_zero() {
            budget::bytes(bits / 8);
            power /= -divisor * divisor;
            number += 2;
            sum += &power / number;
        }
        sum
    };
    (arctangent_of_inverse(5) * 16 - arctangent_of_inverse(239) * 4) >> GUARD_BITS
}

/// pi as a multiple of 2^-`bits`.
fn pi_fixed(bits: usize) -> BigInt {
    /// The bits that the largest decimal128 needs.
    const MAX_BITS: usize = BITS + 20_600;
    static SHORT: OnceLock<BigInt> = OnceLock::new();
    static LONG: OnceLock<BigInt> = OnceLock::new();
    let (kept, computed) = if bits <= BITS { (&SHORT, BITS) } else { (&LONG, MAX_BITS) };
    kept.get_or_init(|| compute_pi(computed)) >> computed.saturating_sub(bits)
}

fn ln_10() -> &'static BigInt {
    static LN_10: OnceLock<BigInt> = OnceLock::new();
    // 10 = 2^3 * 5/4, and `ln_fixed` computes the logarithms of 2 and 5/4 without that of 10.
    LN_10.get_or_init(|| ln_fixed(&(one() * 2)) * 3 + ln_fixed(&(one() * 5 / 4)))
}

/// The exponential of a number of a magnitude below 2.
fn exp_fixed(value: &BigInt) -> BigInt {
    const HALVINGS: usize = 8;
    let part = value >> HALVINGS;
    let mut result = series(one(), |term, number| product(&term, &part) / number);
    for _ in 0..HALVINGS {
        result = product(&result, &result);
    }
    result
}

/// The logarithm of a number from 0.25 to 4. Halley's method starts with a double, and triples the correct digits with each
/// step.
fn ln_fixed(value: &BigInt) -> BigInt {
    let mut result = of_f64(to_f64(value).ln());
    for _ in 0..2 {
        let power = exp_fixed(&result);
        result += ratio(&((value - &power) * 2), &(value + &power));
    }
    result
}

/// sin(x) / x and cos(x) of a number x of a magnitude below 2, from its square.
fn sine_factor_and_cosine(square: &BigInt) -> (BigInt, BigInt) {
    let from = |shift: i64| {
        series(one(), |term, number| -product(&term, square) / ((2 * number + shift - 1) * (2 * number + shift)))
    };
    (from(1), from(0))
}

/// The value times `1 + a z + b z^2`, where `z` is the square of the value: near zero, later terms of a power series are
/// negligible. A coefficient is a numerator and a denominator.
fn near_zero(value: &BigDecimal, coefficients: [(i64, i64); 2]) -> BigDecimal {
    let fixed = to_fixed(value, BITS);
    let square = product(&fixed, &fixed);
    let [(a, of_a), (b, of_b)] = coefficients;
    let factor = one() + &square * a / of_a + product(&square, &square) * b / of_b;
    value * from_fixed(&factor)
}

fn is_near_zero(value: &BigDecimal) -> bool {
    value.is_zero() || exponent(value) < SMALL
}

/// The quotient to at least [`DIGITS`] digits, truncated.
pub(super) fn divided(a: &BigDecimal, b: &BigDecimal) -> BigDecimal {
    let places = (i64::from(DIGITS) + b.digits() as i64 - a.digits() as i64).max(0);
    let (dividend, dividend_scale) = a.as_bigint_and_scale();
    let (divisor, divisor_scale) = b.as_bigint_and_scale();
    let power = power_of_10(u32::try_from(places).unwrap_or(0));
    BigDecimal::new(dividend.into_owned() * power / &*divisor, dividend_scale - divisor_scale + places)
}

/// The square root of a number that is not negative, to at least `digits` digits, and a sticky digit: 0 if the root is exact,
/// else 1. So rounding the result to fewer digits is correct.
pub(super) fn square_root(value: &BigDecimal, digits: u32) -> BigDecimal {
    let (integer, scale) = value.as_bigint_and_scale();
    let missing = (2 * i64::from(digits) - value.digits() as i64).max(0);
    // The scale must be even, to be halved.
    let places = missing + (missing + scale).rem_euclid(2);
    let radicand = integer.into_owned() * power_of_10(u32::try_from(places).unwrap_or(0));
    let root = radicand.sqrt();
    let rest = u8::from(&root * &root != radicand);
    BigDecimal::new(root * 10 + rest, (scale + places) / 2 + 1)
}

fn root(value: &BigDecimal) -> BigDecimal {
    square_root(value, DIGITS)
}

pub(super) fn pi() -> BigDecimal {
    from_fixed(&pi_fixed(BITS))
}

/// A number beyond all decimals.
fn beyond() -> BigDecimal {
    BigDecimal::new(BigInt::one(), -BEYOND)
}

/// The exponential. If it is beyond all decimals, or nearer to zero than all of them, the result is another such number, which
/// is rounded to the same decimal.
pub(super) fn exp(value: &BigDecimal) -> BigDecimal {
    if exponent(value) > MAX_EXP {
        return if value.is_negative() { BigDecimal::new(BigInt::one(), BEYOND) } else { beyond() };
    }
    let value = to_fixed(value, BITS);
    let power = nearest(&value, ln_10());
    let (digits, scale) = from_fixed(&exp_fixed(&(value - &power * ln_10()))).into_bigint_and_scale();
    BigDecimal::new(digits, scale - power.to_i64().unwrap_or(0))
}

/// The logarithm of a positive number.
pub(super) fn ln(value: &BigDecimal) -> BigDecimal {
    // value = part * 10^power, where part is from 0.3 to 3. For a value near 1, power is 0, so that the sum does not cancel
    // leading digits.
    let mut power = exponent(value) - 1;
    let (digits, scale) = value.as_bigint_and_scale();
    let mut part = to_fixed(&BigDecimal::new(digits.into_owned(), scale + power), BITS);
    if part > one() * 3 {
        part /= 10;
        power += 1;
    }
    from_fixed(&(ln_fixed(&part) + ln_10() * power))
}

/// The logarithm to base ten of a positive number.
pub(super) fn log10(value: &BigDecimal) -> BigDecimal {
    divided(&ln(value), &from_fixed(ln_10()))
}

/// The number of quarter turns, modulo 4, and the remaining angle, from -pi/4 to pi/4.
fn turned(value: &BigDecimal) -> (u8, BigDecimal) {
    if value.abs() < BigDecimal::new(78.into(), 2) {
        return (0, value.clone());
    }
    // A digit before the point is less than 10/3 bits.
    let bits = BITS + 4 + usize::try_from(exponent(value).max(0) * 10 / 3).unwrap_or(0);
    budget::bytes(bits / 8);
    let quarter = pi_fixed(bits) >> 1;
    let fixed = to_fixed(value, bits);
    let turns = nearest(&fixed, &quarter);
    let rest = fixed - &turns * quarter;
    let turns = (turns & BigInt::from(3)).to_u8().unwrap_or(0);
    (turns, from_fixed(&(rest >> (bits - BITS))))
}

/// Sine and cosine.
fn sin_cos(value: &BigDecimal) -> (BigDecimal, BigDecimal) {
    let (turns, rest) = turned(value);
    let fixed = to_fixed(&rest, BITS);
    let (factor, cosine) = sine_factor_and_cosine(&product(&fixed, &fixed));
    let (sine, cosine) = (rest * from_fixed(&factor), from_fixed(&cosine));
    match turns {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

pub(super) fn sin(value: &BigDecimal) -> BigDecimal {
    sin_cos(value).0
}

pub(super) fn cos(value: &BigDecimal) -> BigDecimal {
    sin_cos(value).1
}

pub(super) fn tan(value: &BigDecimal) -> BigDecimal {
    let (sine, cosine) = sin_cos(value);
    divided(&sine, &cosine)
}

pub(super) fn atan(value: &BigDecimal) -> BigDecimal {
    if is_near_zero(value) {
        return near_zero(value, [(-1, 3), (1, 5)]);
    }
    if value.abs() > BigDecimal::one() {
        let quarter = if value.is_negative() { -half(pi()) } else { half(pi()) };
        return quarter - atan(&divided(&BigDecimal::one(), value));
    }
    // atan(value) = nearest + atan(rest), where nearest is computed as a double, and rest is the tangent of its small
    // error, by the subtraction theorem.
    let value = to_fixed(value, BITS);
    let nearest = of_f64(to_f64(&value).atan());
    let (factor, cosine) = sine_factor_and_cosine(&product(&nearest, &nearest));
    let sine = product(&factor, &nearest);
    let rest = ratio(&(product(&value, &cosine) - &sine), &(cosine + product(&value, &sine)));
    let square = product(&rest, &rest);
    let power = |power: BigInt| -product(&power, &square);
    let cubed = power(rest.clone());
    let fifth = power(cubed.clone());
    let seventh = power(fifth.clone());
    from_fixed(&(nearest + rest + cubed / 3 + fifth / 5 + seventh / 7))
}

/// The angle of the point (`x`, `y`), from -pi to pi; 0 for the origin.
pub(super) fn atan2(y: &BigDecimal, x: &BigDecimal) -> BigDecimal {
    if x.is_zero() {
        return match y.sign() {
            Sign::NoSign => BigDecimal::zero(),
            Sign::Plus => half(pi()),
            Sign::Minus => -half(pi()),
        };
    }
    let angle = atan(&divided(y, x));
    match (x.is_negative(), y.is_negative()) {
        (false, _) => angle,
        // A very small angle, which may have thousands of digits after the point, is negligible beside pi and left out.
        (true, is_below) => {
            let angle = if is_near_zero(&angle) && exponent(&angle) < -LARGE { BigDecimal::zero() } else { angle };
            if is_below { angle - pi() } else { angle + pi() }
        }
    }
}

/// The root of `1 - value^2`: the cosine of an angle whose sine is the value, or its sine if the value is the cosine.
fn opposite(value: &BigDecimal) -> BigDecimal {
    if exponent(value) < -LARGE { BigDecimal::one() } else { root(&(BigDecimal::one() - value.square())) }
}

/// The arcsine of a number from -1 to 1.
pub(super) fn asin(value: &BigDecimal) -> BigDecimal {
    if is_near_zero(value) { near_zero(value, [(1, 6), (3, 40)]) } else { atan2(value, &opposite(value)) }
}

/// The arccosine of a number from -1 to 1.
pub(super) fn acos(value: &BigDecimal) -> BigDecimal {
    if value.is_zero() || exponent(value) < -LARGE { half(pi()) } else { atan2(&opposite(value), value) }
}

fn half(value: BigDecimal) -> BigDecimal {
    value * BigDecimal::new(5.into(), 1)
}

/// Half the sum or the difference, by `combine`, of the exponentials of `|value|` and `-|value|`.
fn mean_exp(value: &BigDecimal, combine: fn(BigDecimal, BigDecimal) -> BigDecimal) -> BigDecimal {
    let power = exp(&value.abs());
    // The inverse is negligible beside a large power.
    let inverse = if exponent(&power) > LARGE { BigDecimal::zero() } else { divided(&BigDecimal::one(), &power) };
    half(combine(power, inverse))
}

fn with_sign_of(value: &BigDecimal, magnitude: BigDecimal) -> BigDecimal {
    if value.is_negative() { -magnitude } else { magnitude }
}

pub(super) fn sinh(value: &BigDecimal) -> BigDecimal {
    match is_near_zero(value) {
        true => near_zero(value, [(1, 6), (1, 120)]),
        false => with_sign_of(value, mean_exp(value, |power, inverse| power - inverse)),
    }
}

pub(super) fn cosh(value: &BigDecimal) -> BigDecimal {
    mean_exp(value, |power, inverse| power + inverse)
}

pub(super) fn tanh(value: &BigDecimal) -> BigDecimal {
    if is_near_zero(value) {
        return near_zero(value, [(-1, 3), (2, 15)]);
    }
    let square = exp(&(value.abs() * integer(2)));
    // For a large square, the result differs from 1 by less than 10^-59.
    let magnitude = match exponent(&square) > LARGE {
        true => BigDecimal::one(),
        false => divided(&(&square - integer(1)), &(&square + integer(1))),
    };
    with_sign_of(value, magnitude)
}

/// The logarithm of `value + sqrt(value^2 + one)`, where the value is positive and `one` is 1 or -1.
fn ln_with_root(value: &BigDecimal, one: i64) -> BigDecimal {
    match exponent(value) > LARGE {
        true => ln(&(value * integer(2))),
        false => ln(&(value + root(&(value.square() + integer(one))))),
    }
}

pub(super) fn asinh(value: &BigDecimal) -> BigDecimal {
    match is_near_zero(value) {
        true => near_zero(value, [(-1, 6), (3, 40)]),
        false => with_sign_of(value, ln_with_root(&value.abs(), 1)),
    }
}

/// The inverse of the hyperbolic cosine, of a number from 1 on.
pub(super) fn acosh(value: &BigDecimal) -> BigDecimal {
    ln_with_root(value, -1)
}

/// The inverse of the hyperbolic tangent, of a number from -1 to 1.
pub(super) fn atanh(value: &BigDecimal) -> BigDecimal {
    match is_near_zero(value) {
        true => near_zero(value, [(1, 3), (1, 5)]),
        false if value.abs().is_one() => with_sign_of(value, beyond()),
        false => half(ln(&divided(&(integer(1) + value), &(integer(1) - value)))),
    }
}

/// A positive number to the power of another number. Beyond all decimals the result is as for [`exp`].
pub(super) fn power(base: &BigDecimal, exponent: &BigDecimal) -> BigDecimal {
    exact_power(base, exponent).unwrap_or_else(|| exp(&(ln(base) * exponent)))
}

/// The power for an integer exponent, by multiplication: exact, or for a negative exponent a quotient of [`divided`]. None for
/// another exponent, and if the product could have more than `MAX_DIGITS` digits, unless the base is a power of ten.
fn exact_power(base: &BigDecimal, exponent: &BigDecimal) -> Option<BigDecimal> {
    const MAX_DIGITS: u64 = 400;
    let times = exponent.is_integer().then(|| exponent.to_i64()).flatten()?;
    let (digits, scale) = base.normalized().into_bigint_and_scale();
    let scale = scale.checked_mul(times)?;
    if digits.is_one() {
        return Some(BigDecimal::new(digits, scale.clamp(-BEYOND, BEYOND)));
    }
    let factors = u32::try_from(times.unsigned_abs()).ok()?;
    if BigDecimal::new(digits.clone(), 0).digits().saturating_mul(u64::from(factors)) > MAX_DIGITS {
        return None;
    }
    let product = digits.pow(factors);
    Some(match times < 0 {
        true => {
            let quotient = divided(&BigDecimal::one(), &BigDecimal::new(product, 0));
            let (digits, places) = quotient.into_bigint_and_scale();
            BigDecimal::new(digits, places + scale)
        }
        false => BigDecimal::new(product, scale),
    })
}
