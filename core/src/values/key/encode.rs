//! The order-preserving encoding of values: encodings compare bytewise as their values do.
//!
//! Every encoding starts with the byte of its [`Class`](crate::values::order::Class) and is prefix-free, so the concatenation of
//! several is a compound key that compares field by field. After the class follow:
//!
//! * number: the value rounded to a double towards zero, as eight bytes that sort as doubles do; then a marker. `EXACT` means that
//!   the value equals the double. For other values, which are longs beyond 2^53 and decimals, `BEYOND` and the decimal digits follow,
//!   or for negative ones `BELOW` and the inverted digits. So 2, 2.0 and decimal 2.00 have the same encoding.
//! * string, symbol: UTF-8 and a byte 0; inside, 0 becomes 1 1, and 1 becomes 1 2.
//! * object: for each field in jsonb's order the class of its value, its name as a string, and the rest of the value's encoding; then
//!   a byte 0. Array: the elements' encodings and a byte 0. (Classes are above 0.)
//! * binary: length, subtype, bytes. ObjectId, bool, date, timestamp: big-endian with their own width, the sign of a
//!   date inverted. Regex: two strings. Pointer: string and ObjectId. Code: string, and the scope as an object.
//! * MinKey, null, MaxKey: nothing.
//!
//! A hash, as a field of a key, has a class of its own between numbers and strings: `HASH`.

use crate::error::{Error, Kind, Result};
use crate::values::document::MAX_RECURSION;
use crate::values::document::element::Element;
use crate::values::document::nested::Nested;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::value::{self, Value};
use crate::values::order::{Class, Strings};
use crate::values::view::{Child, Fields, Items, View};
use bigdecimal::num_bigint::BigInt;
use bigdecimal::{BigDecimal, Signed};
use xxhash_rust::xxh64::xxh64;

/// The longest `skey` plus `id`, in bytes, that fits into a b-tree page of PostgreSQL in any case.
pub const MAX_KEY_BYTES: usize = 2600;

/// First byte of a hash; above MinKey and below MaxKey.
const HASH: u8 = 0x38;
/// Ends strings, objects, arrays and digits.
const END: u8 = 0;
/// Escapes a byte of a string that is an [`END`] or an [`ESCAPE`].
const ESCAPE: u8 = 1;
/// The value is below the preceding double.
const BELOW: u8 = 1;
/// The value equals the preceding double.
const EXACT: u8 = 2;
/// The value is above the preceding double.
const BEYOND: u8 = 3;
/// Added to a decimal exponent to make it positive.
const EXPONENT_BIAS: i64 = 1 << 15;
const SIGN_BIT: u64 = 1 << 63;

/// Appends the encoding of a value.
pub fn encode(element: &Element<'_>, out: &mut Vec<u8>) {
    encode_with(&View::of_element(element), MAX_RECURSION, None, out);
}

/// Appends the encoding of an owned value.
pub fn encode_value(value: &Value, out: &mut Vec<u8>) {
    encode_with(&View::of_value(value), MAX_RECURSION, None, out);
}

/// Like [`encode`]. Under a collation, the sort keys of strings take their places: this encoding cannot be decoded, and only
/// indexes with that collation store it.
pub(crate) fn encode_under(element: &Element<'_>, strings: Strings<'_>, out: &mut Vec<u8>) {
    encode_with(&View::of_element(element), MAX_RECURSION, strings, out);
}

/// Like [`encode_under`], of an owned value.
pub(crate) fn encode_value_under(value: &Value, strings: Strings<'_>, out: &mut Vec<u8>) {
    encode_with(&View::of_value(value), MAX_RECURSION, strings, out);
}

/// The encoding of an owned value; see [`encode_under`].
pub(crate) fn encoded_under(value: &Value, strings: Strings<'_>) -> Vec<u8> {
    // This suffices for most encodings.
    let mut key = Vec::with_capacity(32);
    encode_value_under(value, strings, &mut key);
    key
}

fn encode_with(view: &View<'_>, levels: usize, strings: Strings<'_>, out: &mut Vec<u8>) {
    out.push(view.class() as u8);
    encode_rest(view, levels, strings, out);
}

/// Appends the encoding after the class. Values nested deeper than `levels`, which is more than in any document, are omitted.
fn encode_rest(view: &View<'_>, levels: usize, strings: Strings<'_>, out: &mut Vec<u8>) {
    match view {
        View::MinKey | View::Null | View::MaxKey => {}
        View::Number(number) => encode_number(number, out),
        View::String(value) => match strings {
            None => encode_string(value, out),
            Some(collator) => {
                let mut key = Vec::new();
                collator.sort_key(value, &mut key);
                encode_bytes(&key, out);
            }
        },
        View::Code(value) => encode_string(value, out),
        View::Object(fields) => encode_fields(*fields, levels, strings, out),
        View::Array(items) => encode_items(*items, levels, strings, out),
        View::Binary(subtype, bytes) => {
            out.extend((bytes.len() as u32).to_be_bytes());
            out.push(*subtype);
            out.extend(*bytes);
        }
        View::ObjectId(id) => out.extend(*id),
        View::Bool(value) => out.push(u8::from(*value)),
        View::Date(millis) => out.extend(ordered(*millis)),
        View::Timestamp(t, i) => {
            out.extend(t.to_be_bytes());
            out.extend(i.to_be_bytes());
        }
        View::Regex(pattern, options) => {
            encode_string(pattern, out);
            encode_string(options, out);
        }
        View::DbPointer(namespace, id) => {
            encode_string(namespace, out);
            out.extend(*id);
        }
        View::CodeWithScope(code, scope) => {
            encode_string(code, out);
            encode_fields(*scope, levels, strings, out);
        }
    }
}

fn encode_string(value: &str, out: &mut Vec<u8>) {
    encode_bytes(value.as_bytes(), out);
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.iter().all(|&byte| byte > ESCAPE) {
        out.extend(bytes);
    } else {
        for &byte in bytes {
            if byte <= ESCAPE {
                out.extend([ESCAPE, byte + 1]);
            } else {
                out.push(byte);
            }
        }
    }
    out.push(END);
}

fn encode_fields(fields: Fields<'_>, levels: usize, strings: Strings<'_>, out: &mut Vec<u8>) {
    if levels > 0 {
        fields.with_sorted(|fields| {
            for (name, child) in fields {
                child.with_view(|view| {
                    out.push(view.class() as u8);
                    encode_string(name, out);
                    encode_rest(&view, levels - 1, strings, out);
                });
            }
        });
    }
    out.push(END);
}

fn encode_items(items: Items<'_>, levels: usize, strings: Strings<'_>, out: &mut Vec<u8>) {
    if levels > 0 {
        items.iter().for_each(|child: Child<'_>| child.with_view(|view| encode_with(&view, levels - 1, strings, out)));
    }
    out.push(END);
}

/// An integer as bytes that compare as signed integers do.
fn ordered(value: i64) -> [u8; 8] {
    (value as u64 ^ SIGN_BIT).to_be_bytes()
}

/// A double as bytes that compare as doubles do; NaN is below all others, and -0 equals 0.
fn double_image(value: f64) -> [u8; 8] {
    if value.is_nan() {
        return [0; 8];
    }
    let bits = (value + 0.0).to_bits();
    let image = if bits & SIGN_BIT != 0 { !bits } else { bits | SIGN_BIT };
    image.to_be_bytes()
}

fn double_of_image(image: u64) -> f64 {
    match image {
        0 => f64::NAN,
        image if image & SIGN_BIT != 0 => f64::from_bits(image & !SIGN_BIT),
        image => f64::from_bits(!image),
    }
}

fn encode_number(number: &Number, out: &mut Vec<u8>) {
    let (double, is_exact) = number.truncated();
    out.extend(double_image(double));
    // The exact value is computed only if it is needed: most numbers are doubles.
    match if is_exact { None } else { number.exact() } {
        Some(value) => encode_digits(&value, out),
        None => out.push(EXACT),
    }
}

/// Appends exponent and digits of a value that no double equals, two digits a byte. The value is
/// `0.d1d2d3… * 10^exponent`, without zeros at the end.
fn encode_digits(value: &BigDecimal, out: &mut Vec<u8>) {
    let start = out.len();
    out.push(BEYOND);
    let (integer, scale) = value.normalized().into_bigint_and_scale();
    let digits = integer.magnitude().to_string();
    let exponent = (digits.len() as i64 - scale + EXPONENT_BIAS).clamp(0, i64::from(u16::MAX)) as u16;
    out.extend(exponent.to_be_bytes());
    for pair in digits.as_bytes().chunks(2) {
        out.push((pair[0] - b'0') * 10 + pair.get(1).map_or(0, |digit| digit - b'0') + 1);
    }
    out.push(END);
    if value.is_negative() {
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
        out[start] = BELOW;
    }
}

/// Decoding refuses a number with more digits: a decimal128 has at most 34.
const MAX_DIGITS: i64 = 36;

/// Decodes one value, and returns it with the rest. Equal numbers of different types decode to the same type.
///
/// # Errors
/// `BadValue` for bytes that no encoding produces.
pub fn decode(bytes: &[u8]) -> Result<(Value, &[u8])> {
    let mut rest = bytes;
    let value = Decoder { rest: &mut rest, lossy: false }.value(MAX_RECURSION);
    value.map(|value| (value, rest)).ok_or_else(|| Error::new(Kind::BadValue, "Invalid encoded key"))
}

/// Splits off the first of several encodings, which may have a collation; None for bytes that no encoding produces.
pub fn split_first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = bytes;
    Decoder { rest: &mut rest, lossy: true }.value(MAX_RECURSION)?;
    bytes.split_at_checked(bytes.len() - rest.len())
}

struct Decoder<'r, 'a> {
    rest: &'r mut &'a [u8],
    /// true if strings may be sort keys, which are not decoded
    lossy: bool,
}

impl<'a> Decoder<'_, 'a> {
    fn value(&mut self, levels: usize) -> Option<Value> {
        let class = self.byte()?;
        self.rest(class, levels)
    }

    fn rest(&mut self, class: u8, levels: usize) -> Option<Value> {
        Some(match class {
            HASH => Value::Number(Number::int(self.ordered()?)),
            class if class == Class::MinKey as u8 => Value::MinKey,
            class if class == Class::Null as u8 => Value::Null,
            class if class == Class::Number as u8 => Value::Number(self.number()?),
            class if class == Class::String as u8 => Value::String(self.string()?),
            class if class == Class::Object as u8 => Value::Object(self.fields(levels)?),
            class if class == Class::Array as u8 => {
                let levels = levels.checked_sub(1)?;
                let mut items = Vec::new();
                loop {
                    match self.byte()? {
                        END => break Value::fixed_array(items),
                        class => items.push(self.rest(class, levels)?),
                    }
                }
            }
            class if class == Class::Binary as u8 => {
                let length = u32::from_be_bytes(self.array()?) as usize;
                let subtype = self.byte()?;
                Value::Binary(subtype, self.bytes(length)?.to_vec())
            }
            class if class == Class::ObjectId as u8 => Value::ObjectId(self.array()?),
            class if class == Class::Bool as u8 => match self.byte()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return None,
            },
            class if class == Class::Date as u8 => Value::Date(self.ordered()?),
            class if class == Class::Timestamp as u8 => {
                Value::Timestamp(u32::from_be_bytes(self.array()?), u32::from_be_bytes(self.array()?))
            }
            class if class == Class::Regex as u8 => Value::Regex(self.string()?, self.string()?),
            class if class == Class::DbPointer as u8 => Value::DbPointer(self.string()?, self.array()?),
            class if class == Class::Code as u8 => Value::Code(self.string()?),
            class if class == Class::CodeWithScope as u8 => {
                Value::CodeWithScope(self.string()?, Box::new(self.fields(levels)?))
            }
            class if class == Class::MaxKey as u8 => Value::MaxKey,
            _ => return None,
        })
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        *self.rest = rest;
        Some(*first)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        *self.rest = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        *self.rest = rest;
        Some(*bytes)
    }

    fn ordered(&mut self) -> Option<i64> {
        Some((u64::from_be_bytes(self.array()?) ^ SIGN_BIT) as i64)
    }

    fn string(&mut self) -> Option<String> {
        let end = self.rest.iter().position(|&byte| byte == END)?;
        let encoded = self.bytes(end)?;
        self.byte()?;
        let mut bytes = Vec::with_capacity(end);
        let mut encoded = encoded.iter();
        while let Some(&byte) = encoded.next() {
            if byte == ESCAPE {
                bytes.push(encoded.next().filter(|escaped| (1..=2).contains(*escaped))? - 1);
            } else {
                bytes.push(byte);
            }
        }
        if self.lossy { Some(String::new()) } else { String::from_utf8(bytes).ok() }
    }

    fn fields(&mut self, levels: usize) -> Option<value::Fields> {
        let levels = levels.checked_sub(1)?;
        let mut fields = Vec::new();
        loop {
            match self.byte()? {
                END => return Some(Nested::fixed(fields)),
                class => fields.push((self.string()?, self.rest(class, levels)?)),
            }
        }
    }

    fn number(&mut self) -> Option<Number> {
        let double = double_of_image(u64::from_be_bytes(self.array()?));
        let negative = match self.byte()? {
            EXACT => return Some(integer_or_double(double)),
            BEYOND => false,
            BELOW => true,
            _ => return None,
        };
        let flip = if negative { 0xFF } else { 0 };
        let exponent: [u8; 2] = self.array()?;
        let exponent = i64::from(u16::from_be_bytes(exponent.map(|byte| byte ^ flip))) - EXPONENT_BIAS;
        let (mut digits, mut count) = (BigInt::ZERO, 0);
        loop {
            match self.byte()? ^ flip {
                END => break,
                pair @ 1..=100 => digits = digits * 100 + (pair - 1),
                _ => return None,
            }
            count += 2;
            // A number with more digits is neither a decimal128 nor a 64-bit integer.
            if count > MAX_DIGITS {
                return None;
            }
        }
        let decimal = BigDecimal::new(if negative { -digits } else { digits }, count - exponent).normalized();
        let number = Number::Decimal(Decimal::Finite(Box::new(decimal)));
        Some(number.as_i64().map_or(number, Number::int))
    }
}

/// The number of an exact double: an integral value decodes as int or long, its most frequent type.
fn integer_or_double(value: f64) -> Number {
    Number::Double(value).as_i64().map_or(Number::Double(value), Number::int)
}

/// The 64-bit hash of a value for hashed sharding: xxHash (seed 0) of its encoding, as a signed integer.
pub fn hash(element: &Element<'_>) -> i64 {
    let mut encoding = Vec::new();
    encode(element, &mut encoding);
    hash_encoded(&encoding)
}

/// Like [`hash`], of a value that is encoded already.
pub fn hash_encoded(encoding: &[u8]) -> i64 {
    xxh64(encoding, 0) as i64
}

/// Appends a hash as a field of a key, between MinKey and MaxKey, in the order of the signed integer.
pub fn encode_hash(hash: i64, out: &mut Vec<u8>) {
    out.push(HASH);
    out.extend(ordered(hash));
}

/// The smallest byte string above every string that starts with `prefix`; None if there is none.
pub fn prefix_successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte < 0xFF)?;
    let mut successor = prefix[..=last].to_vec();
    if let Some(byte) = successor.last_mut() {
        *byte += 1;
    }
    Some(successor)
}
