//! Operators on strings.

use super::array::search_bounds;
use super::convert;
use super::node::Call;
use super::parse::{Arguments, Operator, optional, required};
use crate::budget;
use crate::error::{Result, bail, ensure, error};
use crate::query::operand::{Operand, truncated};
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use memchr::memmem;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$concat", concat),
    Operator::exactly("$toUpper", 1, |call| Ok(Operand::string(coerced(&call.argument(0)?)?.to_ascii_uppercase()))),
    Operator::exactly("$toLower", 1, |call| Ok(Operand::string(coerced(&call.argument(0)?)?.to_ascii_lowercase()))),
    Operator::exactly("$strcasecmp", 2, |call| {
        let (a, b) = (coerced(&call.argument(0)?)?, coerced(&call.argument(1)?)?);
        Ok(Operand::int(a.to_ascii_uppercase().cmp(&b.to_ascii_uppercase()) as i64))
    }),
    Operator::exactly("$substr", 3, substring_bytes),
    Operator::exactly("$substrBytes", 3, substring_bytes),
    Operator::exactly("$substrCP", 3, substring_points),
    Operator::exactly("$strLenBytes", 1, |call| {
        Ok(Operand::int(call.text(&call.argument(0)?, "its argument", 34473)?.len() as i64))
    }),
    Operator::exactly("$strLenCP", 1, |call| {
        Ok(Operand::int(call.text(&call.argument(0)?, "its argument", 34471)?.chars().count() as i64))
    }),
    Operator::binary("$split", split),
    Operator::new("$trim", TRIM_ARGUMENTS, |call| trim(call, true, true)),
    Operator::new("$ltrim", TRIM_ARGUMENTS, |call| trim(call, true, false)),
    Operator::new("$rtrim", TRIM_ARGUMENTS, |call| trim(call, false, true)),
    Operator::new("$indexOfBytes", Arguments::Positional(2, 4), index_of_bytes),
    Operator::new("$indexOfCP", Arguments::Positional(2, 4), index_of_points),
    Operator::new("$replaceOne", REPLACE_ARGUMENTS, |call| replace(call, 1)),
    Operator::new("$replaceAll", REPLACE_ARGUMENTS, |call| replace(call, usize::MAX)),
    Operator::unary("$binarySize", |call, value| match value.clone().into_value() {
        Value::String(text) => Ok(Operand::int(text.len() as i64)),
        Value::Binary(_, bytes) => Ok(Operand::int(bytes.len() as i64)),
        _ => Err(call.wrong_type(&value, "its argument", "a string or BinData", 51276)),
    }),
];

const TRIM_ARGUMENTS: Arguments = Arguments::Named(&[required("input", 50695), optional("chars")], [50696, 50694]);

const REPLACE_ARGUMENTS: Arguments = Arguments::Named(
    &[required("input", 51749), required("find", 51748), required("replacement", 51747)],
    [51751, 51750],
);

/// The characters that `$trim` removes by default. Source: MongoDB's manual, `$trim`.
const WHITESPACE: &[char] = &[
    '\u{0000}', ' ', '\t', '\n', '\u{000B}', '\u{000C}', '\r', '\u{00A0}', '\u{1680}', '\u{2000}', '\u{2001}',
    '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}', '\u{200A}',
];

/// The text of a value as operators such as `$toUpper` convert it; null and missing become the empty string.
fn coerced(operand: &Operand<'_>) -> Result<String> {
    if operand.is_nullish() {
        return Ok(String::new());
    }
    if let Some(text) = operand.text() {
        return Ok(text.to_owned());
    }
    match operand.clone().into_value() {
        Value::Symbol(text) | Value::Code(text) => Ok(text),
        Value::Number(Number::Double(number)) => Ok(general(number)),
        value @ (Value::Number(_) | Value::Date(_) | Value::Timestamp(..)) => convert::text_of(&value),
        other => bail!(16007, "can't convert from BSON type {} to String", other.type_name()),
    }
}

/// A double with six significant digits, as C's `%g` prints it. So MongoDB writes doubles in operators such as `$toUpper`, but
/// not in `$toString`.
fn general(number: f64) -> String {
    const DIGITS: i32 = 6;
    if !number.is_finite() {
        let text = if number.is_nan() { "nan" } else { "inf" };
        return if number.is_sign_negative() && !number.is_nan() { format!("-{text}") } else { text.to_owned() };
    }
    let scientific = format!("{number:.*e}", (DIGITS - 1) as usize);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    if (-4..DIGITS).contains(&exponent) {
        return trimmed(&format!("{number:.*}", (DIGITS - 1 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

fn concat(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut all = String::new();
    for operand in call.arguments() {
        let Some(operand) = operand?.non_null() else { return Ok(Operand::NULL) };
        let text = call.text(&operand, "its arguments", 16702)?;
        budget::room_for(text.len());
        budget::bytes(text.len());
        all.push_str(text);
    }
    Ok(Operand::string(all))
}

/// A position or a length in bytes. A double is truncated. A decimal is rounded half to even; NaN, the infinities and
/// decimals beyond 64 bits become `i64::MIN`.
fn bytes_of(call: &Call<'_>, number: &Number) -> Result<i64> {
    match number {
        Number::Decimal(decimal) => Ok(decimal.to_i64_rounded().unwrap_or(i64::MIN)),
        number => truncated(number)
            .ok_or_else(|| error!(31109, "{}: {} is out of range of a long", call.name, number.to_f64())),
    }
}

fn substring_bytes(call: &Call<'_>) -> Result<Operand<'static>> {
    let text = coerced(&call.argument(0)?)?;
    let start = call.number(&call.argument(1)?, "its start", 16034)?;
    let length = call.number(&call.argument(2)?, "its length", 16035)?;
    let start = bytes_of(call, &start)?;
    let refuse = |code: i32, why: &str| error!(code, "{}: the starting index {start} {why}", call.name);
    let start = usize::try_from(start).map_err(|_| refuse(50752, "is negative"))?;
    let length = bytes_of(call, &length)?;
    if start >= text.len() {
        return Ok(Operand::string(""));
    }
    let end = usize::try_from(length).map_or(text.len(), |length| start.saturating_add(length).min(text.len()));
    if !text.is_char_boundary(start) {
        return Err(refuse(28656, "is within a character"));
    }
    let part = text.get(start..end);
    part.map(Operand::string).ok_or_else(|| refuse(28657, "and the length lead into a character"))
}

fn substring_points(call: &Call<'_>) -> Result<Operand<'static>> {
    let text = coerced(&call.argument(0)?)?;
    let start = call.int32(&call.argument(1)?, "its start", [34450, 34451])?;
    let length = call.int32(&call.argument(2)?, "its length", [34452, 34453])?;
    let count = |value: i64, which: &str, code: i32| {
        usize::try_from(value).map_err(|_| error!(code, "$substrCP requires {which} not to be negative: {value}"))
    };
    let (length, start) = (count(length, "its length", 34454)?, count(start, "its start", 34455)?);
    Ok(Operand::string(text.chars().skip(start).take(length).collect::<String>()))
}

fn split(call: &Call<'_>, text: Operand<'_>, separator: Operand<'_>) -> Result<Operand<'static>> {
    let text = call.text(&text, "its first argument", 40085)?;
    let separator = call.text(&separator, "its second argument", 10503900)?;
    ensure!(!separator.is_empty(), 40087, "$split requires a non-empty separator");
    let part = |part: &str| {
        budget::bytes(part.len());
        Value::String(part.to_owned())
    };
    Operand::array(text.split(separator).map(part).collect())
}

fn trim(call: &Call<'_>, left: bool, right: bool) -> Result<Operand<'static>> {
    let Some(input) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let mut text = call.text(&input, "'input'", 50699)?;
    let mut characters = WHITESPACE.to_vec();
    if call.is_given(1) {
        let Some(given) = call.argument(1)?.non_null() else { return Ok(Operand::NULL) };
        characters = call.text(&given, "'chars'", 50700)?.chars().collect();
    }
    characters.sort_unstable();
    budget::bytes(text.len());
    let unwanted = |c: char| characters.binary_search(&c).is_ok();
    if left {
        text = text.trim_start_matches(unwanted);
    }
    if right {
        text = text.trim_end_matches(unwanted);
    }
    Ok(Operand::string(text))
}

/// The two strings of a search; None if the first is null.
fn search_texts<'s>(call: &Call<'s>, codes: [i32; 2]) -> Result<Option<(Operand<'s>, Operand<'s>)>> {
    let text = call.argument(0)?;
    if text.is_nullish() {
        return Ok(None);
    }
    let wanted = call.argument(1)?;
    call.text(&text, "its first argument", codes[0])?;
    call.text(&wanted, "its second argument", codes[1])?;
    Ok(Some((text, wanted)))
}

fn index_of_bytes(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some((text, wanted)) = search_texts(call, [40091, 40092])? else {
        return Ok(Operand::NULL);
    };
    let (text, wanted) = (text.text().unwrap_or_default(), wanted.text().unwrap_or_default());
    let (from, to) = search_bounds(call, [40096, 40097])?;
    let to = to.min(text.len());
    if from > to {
        return Ok(Operand::int(-1));
    }
    budget::bytes(to - from);
    let found = memmem::find(&text.as_bytes()[from..to], wanted.as_bytes());
    Ok(Operand::int(found.map_or(-1, |at| (from + at) as i64)))
}

fn index_of_points(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some((text, wanted)) = search_texts(call, [40093, 40094])? else {
        return Ok(Operand::NULL);
    };
    let (text, wanted) = (text.text().unwrap_or_default(), wanted.text().unwrap_or_default());
    let (from, to) = search_bounds(call, [40096, 40097])?;
    budget::bytes(text.len());
    if text.is_empty() && wanted.is_empty() && from == 0 {
        return Ok(Operand::int(0));
    }
    // The bounds apply to the start of the match, which may end after them.
    let found = text.char_indices().nth(from).and_then(|(first, _)| {
        let at = memmem::find(&text.as_bytes()[first..], wanted.as_bytes())?;
        Some(from + text[first..first + at].chars().count())
    });
    Ok(Operand::int(found.filter(|at| *at < to).map_or(-1, |at| at as i64)))
}

fn replace(call: &Call<'_>, most: usize) -> Result<Operand<'static>> {
    let texts = [call.argument(0)?, call.argument(1)?, call.argument(2)?];
    for (value, (which, code)) in
        texts.iter().zip([("'input'", 10503904), ("'find'", 10503901), ("'replacement'", 10503902)])
    {
        if !value.is_nullish() {
            call.text(value, which, code)?;
        }
    }
    let [Some(input), Some(find), Some(replacement)] = [0, 1, 2].map(|index| texts[index].text()) else {
        return Ok(Operand::NULL);
    };
    budget::bytes(input.len());
    let times = input.matches(find).take(most).count();
    budget::room_for(input.len().saturating_add(times.saturating_mul(replacement.len())));
    Ok(Operand::string(budget::copying(|| input.replacen(find, replacement, most))))
}
