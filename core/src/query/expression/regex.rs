//! Operators that search strings by regular expressions.

use super::node::Call;
use super::parse::{Arguments, Operator, optional, required};
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::operand::Operand;
use crate::query::regex::Pattern;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use std::cell::RefCell;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$regexMatch", ARGUMENTS, |call| {
        searched(call, Value::Bool(false), |pattern, text| pattern.search(text).map(Value::Bool))
    }),
    Operator::new("$regexFind", ARGUMENTS, |call| {
        searched(call, Value::Null, |pattern, text| Ok(matches(pattern, text, 1)?.pop().unwrap_or(Value::Null)))
    }),
    Operator::new("$regexFindAll", ARGUMENTS, |call| {
        searched(call, Value::fixed_array(Vec::new()), |pattern, text| {
            matches(pattern, text, usize::MAX).map(Value::fixed_array)
        })
    }),
];

const ARGUMENTS: Arguments =
    Arguments::Named(&[required("input", 31022), required("regex", 31023), optional("options")], [51103, 31024]);

thread_local! {
    /// The last compiled pattern with its source and options: usually the pattern is the same for all documents.
    static LAST: RefCell<Option<(String, String, Pattern)>> = const { RefCell::new(None) };
}

fn searched(call: &Call<'_>, none: Value, search: fn(&Pattern, &str) -> Result<Value>) -> Result<Operand<'static>> {
    let (input, regex, options) = (call.argument(0)?, call.argument(1)?, call.argument(2)?);
    let text_or_null = |value: &Operand<'_>, which: &str, code: i32| match value.is_nullish() {
        true => Ok(()),
        false => call.text(value, which, code).map(|_| ()),
    };
    if !regex.is_nullish() && !matches!(regex.type_name(), "string" | "regex") {
        return Err(call.wrong_type(&regex, "'regex'", "a string or a regex", 51105));
    }
    text_or_null(&options, "'options'", 51106)?;
    let given = options.text();
    let (source, options) = match regex.clone().into_value() {
        Value::String(source) => (source, given.unwrap_or_default().to_owned()),
        Value::Regex(_, own) if !own.is_empty() && given.is_some() => {
            bail!(51107, "{}: found regex option(s) specified in both 'regex' and 'option' fields", call.name)
        }
        Value::Regex(source, own) => (source, given.map_or(own, str::to_owned)),
        _ => return text_or_null(&input, "'input'", 51104).map(|()| Operand::Made(none)),
    };
    for (text, code, what) in [(&source, 51109, "expression"), (&options, 51110, "options")] {
        ensure!(!text.contains('\0'), code, "{}: the regex {what} cannot contain an embedded null byte", call.name);
    }
    LAST.with_borrow_mut(|last| {
        let known = last.as_ref().is_some_and(|(s, o, _)| *s == source && *o == options);
        if !known {
            let pattern = Pattern::new(&source, &options).map_err(|error| match error.kind {
                Kind::Location(51091) => error!(51111, "Invalid Regex in {}: {}", call.name, error.message),
                _ => error,
            })?;
            *last = Some((source, options, pattern));
        }
        text_or_null(&input, "'input'", 51104)?;
        match (input.text(), last.as_ref()) {
            (Some(text), Some((_, _, pattern))) => search(pattern, text).map(Operand::Made),
            _ => Ok(Operand::Made(none)),
        }
    })
}

/// The matches, each with text, position in code points and captures.
fn matches(pattern: &Pattern, text: &str, most: usize) -> Result<Vec<Value>> {
    let (mut position, mut counted) = (0, 0);
    pattern
        .captures_in(text)
        .take(most)
        .map(|captures| {
            let captures = captures?;
            let (start, end) = captures.first().copied().flatten().unwrap_or((0, 0));
            position += text[counted..start].chars().count();
            counted = start;
            let part = |range: &Option<(usize, usize)>| {
                range.map_or(Value::Null, |(start, end)| Value::String(text[start..end].to_owned()))
            };
            Ok(Value::fixed_object(vec![
                ("match".to_owned(), Value::String(text[start..end].to_owned())),
                ("idx".to_owned(), Value::Number(Number::int(position as i64))),
                ("captures".to_owned(), Value::fixed_array(captures.iter().skip(1).map(part).collect())),
            ]))
        })
        .collect()
}
