//! Strings.

use super::array::{int32, search_bounds};
use super::convert;
use super::node::Call;
use super::parse::{Arguments, Operator, Parameter, Refusal};
use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::operand::Operand;
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
    Operator::exactly("$strLenBytes", 1, |call| length(call, Kind::Location(34473), str::len)),
    Operator::exactly("$strLenCP", 1, |call| length(call, Kind::Location(34471), |text| text.chars().count())),
    Operator::exactly("$split", 2, split),
    Operator::new("$trim", TRIM_ARGUMENTS, |call| trim(call, true, true)),
    Operator::new("$ltrim", TRIM_ARGUMENTS, |call| trim(call, true, false)),
    Operator::new("$rtrim", TRIM_ARGUMENTS, |call| trim(call, false, true)),
    Operator::new("$indexOfBytes", Arguments::Positional(2, 4), index_of_bytes),
    Operator::new("$indexOfCP", Arguments::Positional(2, 4), index_of_points),
    Operator::new("$replaceOne", REPLACE_ARGUMENTS, |call| replace(call, 1)),
    Operator::new("$replaceAll", REPLACE_ARGUMENTS, |call| replace(call, usize::MAX)),
    Operator::exactly("$binarySize", 1, binary_size),
];

const TRIM_ARGUMENTS: Arguments = Arguments::Named(
    &[Parameter::required("input", Kind::Location(50695)), Parameter::optional("chars")],
    Refusal { object: Kind::Location(50696), name: Kind::Location(50694) },
);

const REPLACE_ARGUMENTS: Arguments = Arguments::Named(
    &[
        Parameter::required("input", Kind::Location(51749)),
        Parameter::required("find", Kind::Location(51748)),
        Parameter::required("replacement", Kind::Location(51747)),
    ],
    Refusal { object: Kind::Location(51751), name: Kind::Location(51750) },
);

/// What `$trim` takes away where no characters are given. Source: MongoDB's manual, `$trim`.
const WHITESPACE: &[char] = &[
    '\u{0000}', ' ', '\t', '\n', '\u{000B}', '\u{000C}', '\r', '\u{00A0}', '\u{1680}', '\u{2000}', '\u{2001}',
    '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}', '\u{200A}',
];

/// The text of a value that older operators take for a string; null and missing are the empty one.
fn coerced(operand: &Operand<'_>) -> Result<String> {
    if operand.is_nullish() {
        return Ok(String::new());
    }
    if let Some(text) = operand.text() {
        return Ok(text.to_owned());
    }
    match operand.clone().into_value() {
        Value::Symbol(text) | Value::Code(text) => Ok(text),
        value @ (Value::Number(_) | Value::Date(_) | Value::Timestamp(..)) => Ok(convert::text_of(&value)),
        other => bail!(16007, "can't convert from BSON type {} to String", other.type_name()),
    }
}

fn concat(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut all = String::new();
    let mut null = false;
    for operand in call.arguments() {
        let operand = operand?;
        match operand.text() {
            Some(text) => {
                budget::room_for(text.len());
                budget::bytes(text.len());
                all.push_str(text);
            }
            None if operand.is_nullish() => {
                null = true;
                break;
            }
            None => bail!(16702, "$concat only supports strings, not {}", operand.type_name()),
        }
    }
    Ok(if null { Operand::NULL } else { Operand::string(all) })
}

fn substring_bytes(call: &Call<'_>) -> Result<Operand<'static>> {
    let (text, start, length) = (call.argument(0)?, call.argument(1)?, call.argument(2)?);
    let text = coerced(&text)?;
    let whole = |operand: &Operand<'_>, kind: Kind, what: &str| match operand.number() {
        Some(number) => Ok(number.as_i64().unwrap_or_else(|| number.to_f64() as i64)),
        None => bail!(kind, "{}:  {what} must be a numeric type (is BSON type {})", call.name, operand.type_name()),
    };
    let start = whole(&start, Kind::Location(16034), "starting index")?;
    let length = whole(&length, Kind::Location(16035), "length")?;
    let Ok(start) = usize::try_from(start) else {
        bail!(50752, "{}:  starting index must be non-negative (got: {start})", call.name)
    };
    if start >= text.len() {
        return Ok(Operand::string(""));
    }
    let end = usize::try_from(length).map_or(text.len(), |length| start.saturating_add(length).min(text.len()));
    if !text.is_char_boundary(start) {
        bail!(28656, "{}:  Invalid range, starting index is a UTF-8 continuation byte.", call.name);
    }
    match text.get(start..end) {
        Some(part) => Ok(Operand::string(part)),
        None => bail!(28657, "{}:  Invalid range, ending index is in the middle of a UTF-8 character.", call.name),
    }
}

fn substring_points(call: &Call<'_>) -> Result<Operand<'static>> {
    let text = coerced(&call.argument(0)?)?;
    let index = |position: usize, what: &str, kinds: [Kind; 3]| -> Result<usize> {
        let operand = call.argument(position)?;
        if operand.number().is_none() {
            bail!(kinds[0], "$substrCP: {what} must be a numeric type (is BSON type {})", operand.type_name());
        }
        let Some(value) = int32(&operand) else {
            bail!(kinds[1], "$substrCP: {what} cannot be represented as a 32-bit integral value: {}", operand.shown())
        };
        usize::try_from(value).map_err(|_| error!(kinds[2], "$substrCP: {what} must be a nonnegative integer."))
    };
    let start = index(1, "starting index", [Kind::Location(34450), Kind::Location(34451), Kind::Location(34455)])?;
    let length = index(2, "length", [Kind::Location(34452), Kind::Location(34453), Kind::Location(34454)])?;
    Ok(Operand::string(text.chars().skip(start).take(length).collect::<String>()))
}

fn length(call: &Call<'_>, kind: Kind, measure: fn(&str) -> usize) -> Result<Operand<'static>> {
    let operand = call.argument(0)?;
    match operand.text() {
        Some(text) => Ok(Operand::int(measure(text) as i64)),
        None => bail!(kind, "{} requires a string argument, found: {}", call.name, operand.type_name()),
    }
}

fn split(call: &Call<'_>) -> Result<Operand<'static>> {
    let (text, separator) = (call.argument(0)?, call.argument(1)?);
    if text.is_nullish() || separator.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(text) = text.text() else {
        bail!(
            40085,
            "$split requires an expression that evaluates to a string as a first argument, found: {}",
            text.type_name()
        )
    };
    let Some(separator) = separator.text() else {
        bail!(
            40086,
            "$split requires an expression that evaluates to a string as a second argument, found: {}",
            separator.type_name()
        )
    };
    ensure!(!separator.is_empty(), 40087, "$split requires a non-empty separator");
    let part = |part: &str| {
        budget::bytes(part.len());
        Value::String(part.to_owned())
    };
    Ok(Operand::array(text.split(separator).map(part).collect()))
}

fn trim(call: &Call<'_>, left: bool, right: bool) -> Result<Operand<'static>> {
    let input = call.argument(0)?;
    if input.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(mut text) = input.text() else {
        bail!(
            50699,
            "{} requires its input to be a string, got {} (of type {}) instead.",
            call.name,
            input.shown(),
            input.type_name()
        )
    };
    let mut characters = WHITESPACE.to_vec();
    if call.given(1) {
        let given = call.argument(1)?;
        if given.is_nullish() {
            return Ok(Operand::NULL);
        }
        let Some(given) = given.text() else {
            bail!(
                50700,
                "{} requires 'chars' to be a string, got {} (of type {}) instead.",
                call.name,
                given.shown(),
                given.type_name()
            )
        };
        characters = given.chars().collect();
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

/// Both strings of a search; None if the first is null.
fn search_texts<'s>(call: &Call<'s>, kinds: [Kind; 2]) -> Result<Option<(Operand<'s>, Operand<'s>)>> {
    let text = call.argument(0)?;
    if text.is_nullish() {
        return Ok(None);
    }
    let wanted = call.argument(1)?;
    for (operand, kind, which) in [(&text, kinds[0], "first"), (&wanted, kinds[1], "second")] {
        if operand.text().is_none() {
            bail!(kind, "{} requires a string as the {which} argument, found: {}", call.name, operand.type_name());
        }
    }
    Ok(Some((text, wanted)))
}

fn index_of_bytes(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some((text, wanted)) = search_texts(call, [Kind::Location(40091), Kind::Location(40092)])? else {
        return Ok(Operand::NULL);
    };
    let (text, wanted) = (text.text().unwrap_or_default(), wanted.text().unwrap_or_default());
    let (from, to) = search_bounds(call)?;
    let to = to.min(text.len());
    if from > to {
        return Ok(Operand::int(-1));
    }
    budget::bytes(to - from);
    let found = memmem::find(&text.as_bytes()[from..to], wanted.as_bytes());
    Ok(Operand::int(found.map_or(-1, |at| (from + at) as i64)))
}

fn index_of_points(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some((text, wanted)) = search_texts(call, [Kind::Location(40093), Kind::Location(40094)])? else {
        return Ok(Operand::NULL);
    };
    let (text, wanted) = (text.text().unwrap_or_default(), wanted.text().unwrap_or_default());
    let (from, to) = search_bounds(call)?;
    budget::bytes(text.len());
    let length = text.chars().count();
    let to = to.min(length);
    if from > to {
        return Ok(Operand::int(-1));
    }
    let byte = |point: usize| text.char_indices().nth(point).map_or(text.len(), |(at, _)| at);
    let within = &text[byte(from)..byte(to)];
    let found = within.find(wanted).map(|at| within[..at].chars().count());
    Ok(Operand::int(found.map_or(-1, |at| (from + at) as i64)))
}

fn replace(call: &Call<'_>, most: usize) -> Result<Operand<'static>> {
    let parts =
        [("input", Kind::Location(51746)), ("find", Kind::Location(51745)), ("replacement", Kind::Location(51744))];
    let mut texts = Vec::with_capacity(parts.len());
    for (index, (name, kind)) in parts.into_iter().enumerate() {
        let operand = call.argument(index)?;
        if operand.text().is_none() && !operand.is_nullish() {
            bail!(kind, "{} requires that '{name}' be a string, found: {}", call.name, operand.shown());
        }
        texts.push(operand);
    }
    let [Some(input), Some(find), Some(replacement)] = [0, 1, 2].map(|index| texts[index].text()) else {
        return Ok(Operand::NULL);
    };
    budget::bytes(input.len());
    let times = input.matches(find).take(most).count();
    budget::room_for(input.len().saturating_add(times.saturating_mul(replacement.len())));
    Ok(Operand::string(budget::copying(|| input.replacen(find, replacement, most))))
}

fn binary_size(call: &Call<'_>) -> Result<Operand<'static>> {
    let operand = call.argument(0)?;
    if operand.is_nullish() {
        return Ok(Operand::NULL);
    }
    match operand.clone().into_value() {
        Value::String(text) => Ok(Operand::int(text.len() as i64)),
        Value::Binary(_, bytes) => Ok(Operand::int(bytes.len() as i64)),
        other => bail!(51276, "$binarySize requires a string or BinData argument, found: {}", other.type_name()),
    }
}
