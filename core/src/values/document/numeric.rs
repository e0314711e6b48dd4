//! PostgreSQL's numeric, on disk: read in place, and written as `numeric_in` does, except for the marked integers of
//! `push_long`.
//!
//! The bytes behind the varlena header: a 16-bit header (short form) or two (long form: sign and display scale, then
//! the weight), then 16-bit digits in base 10000, most significant first, without leading or trailing zero digits.
//! The value is the sum of `digit[i] * 10000^(weight - i)`; the display scale is how many decimals are printed.
//! Source: PostgreSQL's `src/backend/utils/adt/numeric.c`.

use super::number::Number;
use super::raw::{RawNumeric, varlena_header};

const SIGN_MASK: u16 = 0xC000;
const NEGATIVE: u16 = 0x4000;
const SHORT: u16 = 0x8000;
const SPECIAL: u16 = 0xC000;
const POSITIVE_INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;
const LONG_SCALE_MASK: u16 = 0x3FFF;
const SHORT_NEGATIVE: u16 = 0x2000;
const SHORT_SCALE_MASK: u16 = 0x1F80;
const SHORT_SCALE_SHIFT: u32 = 7;
const SHORT_SCALE_MAX: u32 = 63;
const SHORT_WEIGHT_SIGN: u16 = 0x0040;
const SHORT_WEIGHT_MASK: u16 = 0x003F;
const SHORT_WEIGHTS: std::ops::RangeInclusive<i32> = -64..=63;

/// The number of decimal digits in a digit of base 10000.
const DIGIT_WIDTH: i32 = 4;

const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// The parts of a finite numeric.
struct Parts<'a> {
    negative: bool,
    weight: i32,
    scale: u32,
    digits: &'a [[u8; 2]],
}

impl Parts<'_> {
    fn digit(&self, index: usize) -> u16 {
        self.digits.get(index).map_or(0, |bytes| u16::from_ne_bytes(*bytes))
    }

    /// The number of decimals after the point without trailing zeros.
    fn fraction_digits(&self) -> i32 {
        let Some(last) = self.digits.last() else { return 0 };
        let last_weight = self.weight - (self.digits.len() as i32 - 1);
        let mut zeros = 0;
        let mut digit = u16::from_ne_bytes(*last);
        while zeros < DIGIT_WIDTH && digit.is_multiple_of(10) {
            digit /= 10;
            zeros += 1;
        }
        (-last_weight * DIGIT_WIDTH - zeros).max(0)
    }
}

impl RawNumeric<'_> {
    /// The bytes behind the varlena header.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0
    }

    fn header(&self) -> u16 {
        self.0.first_chunk::<2>().map_or(SPECIAL, |bytes| u16::from_ne_bytes(*bytes))
    }

    /// None for NaN, the infinities and damaged bytes.
    fn parts(&self) -> Option<Parts<'_>> {
        let header = self.header();
        let (words, _) = self.0.as_chunks::<2>();
        match header & SIGN_MASK {
            SPECIAL => None,
            SHORT => {
                let low = i32::from(header & SHORT_WEIGHT_MASK);
                Some(Parts {
                    negative: header & SHORT_NEGATIVE != 0,
                    weight: if header & SHORT_WEIGHT_SIGN != 0 { low - 64 } else { low },
                    scale: u32::from((header & SHORT_SCALE_MASK) >> SHORT_SCALE_SHIFT),
                    digits: words.get(1..)?,
                })
            }
            sign => Some(Parts {
                negative: sign == NEGATIVE,
                weight: i32::from(i16::from_ne_bytes(*words.get(1)?)),
                scale: u32::from(header & LONG_SCALE_MASK),
                digits: words.get(2..)?,
            }),
        }
    }

    /// The number of decimals that PostgreSQL prints; 0 for NaN and the infinities.
    pub fn scale(&self) -> u32 {
        self.parts().map_or(0, |parts| parts.scale)
    }

    /// The value if it is a 64-bit integer, with any number of zeros after the point.
    pub fn as_i64(&self) -> Option<i64> {
        self.parts().and_then(|parts| integer(&parts))
    }

    /// The nearest double; too large a value becomes an infinity.
    pub fn to_f64(&self) -> f64 {
        let Some(parts) = self.parts() else {
            return match self.header() {
                POSITIVE_INFINITY => f64::INFINITY,
                NEGATIVE_INFINITY => f64::NEG_INFINITY,
                _ => f64::NAN,
            };
        };
        double(&parts)
    }

    /// Converts to a number: an int or a long if the numeric has no decimals and fits 64 bits, otherwise a double.
    #[inline]
    pub fn to_number(&self) -> Number {
        if let Some(parts) = self.parts() {
            if parts.scale == 0
                && let Some(integer) = integer(&parts)
            {
                // PostgreSQL writes an integer of 64 bits in the short form. Only `push_long` writes one in the long form.
                return Number::integer(integer, self.header() & SIGN_MASK != SHORT);
            }
            return Number::Double(double(&parts));
        }
        Number::Double(self.to_f64())
    }

    /// Appends the text that PostgreSQL prints; None for NaN and the infinities, which jsonb lacks.
    pub(super) fn print(&self, out: &mut Vec<u8>) -> Option<()> {
        let parts = self.parts()?;
        if parts.negative {
            out.push(b'-');
        }
        // Digits of base 10000 before the point, the first without leading zeros.
        let whole = usize::try_from(parts.weight + 1).unwrap_or(0);
        for index in 0..whole.max(1) {
            let digits = if index < whole { four(parts.digit(index)) } else { [b'0'; 4] };
            let zeros = if index == 0 { digits[..3].iter().take_while(|digit| **digit == b'0').count() } else { 0 };
            out.extend_from_slice(&digits[zeros..]);
        }
        let mut decimals = parts.scale as usize;
        if decimals > 0 {
            out.push(b'.');
        }
        let mut index = parts.weight + 1;
        while decimals > 0 {
            let digits = usize::try_from(index).map_or([b'0'; 4], |index| four(parts.digit(index)));
            let few = decimals.min(digits.len());
            out.extend_from_slice(&digits[..few]);
            decimals -= few;
            index += 1;
        }
        Some(())
    }

    /// True if the numeric is stored unchanged: an integer within 64 bits without decimals, or a decimal with the digits of the shortest form of a
    /// double, with any number of trailing zeros.
    pub(super) fn is_stored_form(&self) -> bool {
        let Some(parts) = self.parts() else { return false };
        if parts.scale == 0 {
            return integer(&parts).is_some();
        }
        // Every decimal of at most 15 digits is the shortest form of its nearest double, away from the subnormals.
        let short = parts.digits.len() <= 3 || (parts.digits.len() == 4 && parts.digit(0) < 1000);
        if short && (-70..=70).contains(&parts.weight) {
            return true;
        }
        let double = double(&parts);
        if !double.is_finite() {
            return false;
        }
        let mut shortest = Vec::new();
        push_f64(double, &mut shortest);
        let shortest = RawNumeric(shortest.get(4..).unwrap_or_default());
        shortest.parts().is_some_and(|other| {
            other.digits == parts.digits && (other.digits.is_empty() || other.weight == parts.weight)
        })
    }

    /// True for an integer of 32 bits that a client has given as one of 64 bits: see [`push_long`].
    #[inline]
    pub(crate) fn is_marked_long(&self) -> bool {
        !matches!(self.header() & SIGN_MASK, SHORT | SPECIAL)
            && self.parts().is_some_and(|parts| parts.scale == 0 && integer(&parts).is_some_and(is_short_integer))
    }

    /// True if PostgreSQL's functions, or [`push_long`], would write these bytes for a finite value.
    pub(super) fn is_canonical(&self) -> bool {
        if !self.0.len().is_multiple_of(2) {
            return false;
        }
        let Some(parts) = self.parts() else { return false };
        let is_short = self.header() & SIGN_MASK == SHORT;
        let fits_short = parts.scale <= SHORT_SCALE_MAX && SHORT_WEIGHTS.contains(&parts.weight);
        let digits_in_range = parts.digits.iter().all(|digit| u16::from_ne_bytes(*digit) < 10000);
        let trimmed = match (parts.digits.first(), parts.digits.last()) {
            (Some(first), Some(last)) => *first != [0, 0] && *last != [0, 0],
            _ => parts.weight == 0 && !parts.negative,
        };
        (is_short == fits_short || self.is_marked_long())
            && digits_in_range
            && trimmed
            && parts.digits.len() <= 0x8000
            && parts.fraction_digits() <= parts.scale as i32
    }
}

/// A digit of base 10000 as text.
fn four(digit: u16) -> [u8; 4] {
    [1000, 100, 10, 1].map(|power| b'0' + (digit / power % 10) as u8)
}

fn integer(parts: &Parts<'_>) -> Option<i64> {
    if parts.digits.is_empty() {
        return Some(0);
    }
    if !(0..=4).contains(&parts.weight) || parts.digits.len() as i32 > parts.weight + 1 {
        return None;
    }
    let mut magnitude = 0u64;
    for index in 0..=parts.weight as usize {
        magnitude = magnitude.checked_mul(10000)?.checked_add(u64::from(parts.digit(index)))?;
    }
    if parts.negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

fn double(parts: &Parts<'_>) -> f64 {
    let magnitude = double_magnitude(parts);
    if parts.negative { -magnitude } else { magnitude }
}

fn double_magnitude(parts: &Parts<'_>) -> f64 {
    let count = parts.digits.len();
    let exponent = (parts.weight + 1 - count as i32) * DIGIT_WIDTH;
    // An integer below 2^53, multiplied or divided by an exact power of ten, is rounded only once, and so correctly.
    if count <= 4
        && let Some(&power) = EXACT_POWERS.get(exponent.unsigned_abs() as usize)
    {
        let integer = (0..count).fold(0u64, |sum, index| sum * 10000 + u64::from(parts.digit(index)));
        if integer < 1 << 53 {
            return if exponent < 0 { integer as f64 / power } else { integer as f64 * power };
        }
    }
    // Rust's parser rounds any number of digits correctly.
    let mut text = Vec::with_capacity(4 * count + 8);
    (0..count).for_each(|index| text.extend_from_slice(&four(parts.digit(index))));
    text.extend_from_slice(format!("e{exponent}").as_bytes());
    std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

fn is_short_integer(value: i64) -> bool {
    i32::try_from(value).is_ok()
}

/// Appends the numeric of an integer of 64 bits, varlena header included. An integer that fits 32 bits is marked: it is written in the long
/// form. PostgreSQL reads this form for every number, but since release 9.1 writes it only for larger ones.
pub(super) fn push_long(value: i64, out: &mut Vec<u8>) {
    let start = out.len();
    push_i64(value, out);
    let short = out.get(start + 4..start + 6).and_then(|header| header.try_into().ok()).map(u16::from_ne_bytes);
    let Some(short) = short.filter(|_| is_short_integer(value)) else { return };
    let sign = if short & SHORT_NEGATIVE != 0 { NEGATIVE } else { 0 };
    let weight = short & SHORT_WEIGHT_MASK;
    out.splice(start + 4..start + 6, sign.to_ne_bytes().into_iter().chain(weight.to_ne_bytes()));
    let size = out.len() - start;
    if let Some(header) = out.get_mut(start..start + 4) {
        header.copy_from_slice(&varlena_header(size));
    }
}

/// Appends the numeric of an integer, varlena header included.
pub(super) fn push_i64(value: i64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    let mut rest = value.unsigned_abs();
    while rest > 0 {
        start -= 1;
        digits[start] = (rest % 10) as u8;
        rest /= 10;
    }
    let digits = &digits[start..];
    push_decimal(value < 0, digits, digits.len() as i32 - 1, 0, out);
}

/// Appends the numeric of a finite double, varlena header included: its shortest form, with at least one decimal. Negative zero, NaN and
/// the infinities are written as zero.
pub(super) fn push_f64(value: f64, out: &mut Vec<u8>) {
    let finite = if value.is_finite() { value.abs() } else { 0.0 };
    let text = format!("{finite:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or(("0", "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).map(|digit| digit - b'0').collect();
    let scale = (digits.len() as i32 - 1 - exponent).max(1) as u32;
    push_decimal(value < 0.0, &digits, exponent, scale, out);
}

/// Appends `digits[0].digits[1]… * 10^exponent`, at most 20 digits, the first not zero. For zero: no digits, or only zeros.
fn push_decimal(negative: bool, digits: &[u8], exponent: i32, scale: u32, out: &mut Vec<u8>) {
    let significant = digits.iter().rposition(|&digit| digit != 0).map_or(0, |last| last + 1);
    let digits = &digits[..significant];
    let (negative, weight) = if digits.is_empty() { (false, 0) } else { (negative, exponent.div_euclid(DIGIT_WIDTH)) };
    let lead = (exponent.rem_euclid(DIGIT_WIDTH) + 1) as usize;
    let group = |digits: &[u8], width: usize| {
        (0..width).fold(0u16, |sum, index| sum * 10 + u16::from(digits.get(index).copied().unwrap_or(0)))
    };

    let start = out.len();
    out.extend([0; 4]);
    if scale <= SHORT_SCALE_MAX && SHORT_WEIGHTS.contains(&weight) {
        let header = SHORT
            | if negative { SHORT_NEGATIVE } else { 0 }
            | (scale as u16) << SHORT_SCALE_SHIFT
            | if weight < 0 { SHORT_WEIGHT_SIGN } else { 0 }
            | weight as u16 & SHORT_WEIGHT_MASK;
        out.extend(header.to_ne_bytes());
    } else {
        let header = if negative { NEGATIVE } else { 0 } | scale as u16 & LONG_SCALE_MASK;
        out.extend(header.to_ne_bytes());
        out.extend((weight as i16).to_ne_bytes());
    }
    if !digits.is_empty() {
        let (first, rest) = digits.split_at(lead.min(digits.len()));
        out.extend(group(first, lead).to_ne_bytes());
        for digits in rest.chunks(DIGIT_WIDTH as usize) {
            out.extend(group(digits, DIGIT_WIDTH as usize).to_ne_bytes());
        }
    }
    let size = out.len() - start;
    if let Some(header) = out.get_mut(start..start + 4) {
        header.copy_from_slice(&varlena_header(size));
    }
}
