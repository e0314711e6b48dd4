//! Operators on the parts of dates, in the calendar and by ISO weeks.

use super::node::{Call, ExpressionNode};
use super::parse::{Arguments, Operator, Parser, field, named, optional, required};
use super::zone::{Zone, civil, out_of_range};
use crate::error::{Result, bail, ensure, error};
use crate::query::operand::Operand;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use jiff::Span;
use jiff::civil::{Date, DateTime, ISOWeekDate, Weekday};
use serde_json::Value as Json;

macro_rules! part {
    ($name:literal, $part:expr) => {
        part!($name, $part, Operand::int)
    };
    ($name:literal, $part:expr, $made:expr) => {
        Operator::new($name, Arguments::Special(parse_part), |call| part(call, $part, $made))
    };
}

pub(super) const OPERATORS: &[Operator] = &[
    part!("$year", |local| i64::from(local.year())),
    part!("$month", |local| i64::from(local.month())),
    part!("$dayOfMonth", |local| i64::from(local.day())),
    part!("$dayOfYear", |local| i64::from(local.date().day_of_year())),
    part!("$dayOfWeek", |local| i64::from(local.weekday().to_sunday_one_offset())),
    part!("$week", week),
    part!("$isoWeek", |local| i64::from(local.date().iso_week_date().week())),
    part!("$isoWeekYear", |local| i64::from(local.date().iso_week_date().year()), Operand::long),
    part!("$isoDayOfWeek", |local| i64::from(local.weekday().to_monday_one_offset())),
    part!("$hour", |local| i64::from(local.hour())),
    part!("$minute", |local| i64::from(local.minute())),
    part!("$second", |local| i64::from(local.second())),
    part!("$millisecond", |local| i64::from(local.millisecond())),
    Operator::new(
        "$dateToParts",
        Arguments::Named(&[required("date", 40522), optional("timezone"), optional("iso8601")], [40524, 40520]),
        to_parts,
    ),
    Operator::new("$dateFromParts", Arguments::Special(parse_parts), from_parts),
    Operator::unary("$tsSecond", |call, value| Ok(Operand::long(timestamp(call, value, 5687301)?.0.into()))),
    Operator::unary("$tsIncrement", |call, value| Ok(Operand::long(timestamp(call, value, 5687302)?.1.into()))),
];

/// The time zone in an argument; UTC if it is not given, None if it is null.
pub(super) fn zone(call: &Call<'_>, index: usize) -> Result<Option<Zone>> {
    if !call.is_given(index) {
        return Ok(Some(Zone::UTC));
    }
    let name = call.argument(index)?;
    if name.is_nullish() {
        return Ok(None);
    }
    Zone::parse(call.text(&name, "'timezone'", 40517)?).map(Some)
}

/// The milliseconds since 1970 of a date, a timestamp or an ObjectId.
pub(super) fn millis_of(operand: &Operand<'_>) -> Option<i64> {
    match operand.date() {
        Some(millis) => Some(millis),
        None => match operand.clone().into_option()? {
            Value::Timestamp(t, _) => Some(i64::from(t) * 1000),
            Value::ObjectId(id) => Some(i64::from(i32::from_be_bytes([id[0], id[1], id[2], id[3]])) * 1000),
            _ => None,
        },
    }
}

pub(super) fn coerced(operand: &Operand<'_>) -> Result<i64> {
    millis_of(operand).ok_or_else(|| error!(16006, "can't convert from BSON type {} to Date", operand.type_name()))
}

/// The week of the year. Weeks begin on Sunday; days before the first Sunday are in week 0.
pub(super) fn week(local: DateTime) -> i64 {
    let day = i64::from(local.date().day_of_year()) - 1;
    (day + 7 - i64::from(local.weekday().to_sunday_zero_offset())) / 7
}

/// Parses the date and the time zone.
fn parse_part(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let (date, zone) = match argument {
        Json::Object(fields) if !fields.keys().any(|name| name.starts_with('$')) => {
            named(operator, argument, |name| ["date", "timezone"].contains(&name), [40535, 40535])?;
            (field(operator, fields, "date", 40539)?, fields.get("timezone"))
        }
        Json::Array(items) => {
            ensure!(items.len() == 1, 40536, "{operator} takes one argument if given an array, not {}", items.len());
            (&items[0], None)
        }
        date => (date, None),
    };
    Ok(vec![parser.node(date)?, zone.map_or(Ok(ExpressionNode::Absent), |zone| parser.node(zone))?])
}

fn part(call: &Call<'_>, part: fn(DateTime) -> i64, made: fn(i64) -> Operand<'static>) -> Result<Operand<'static>> {
    let Some(date) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let millis = coerced(&date)?;
    let Some(zone) = zone(call, 1)? else { return Ok(Operand::NULL) };
    Ok(made(part(zone.local(millis)?)))
}

fn timestamp(call: &Call<'_>, value: Operand<'_>, code: i32) -> Result<(u32, u32)> {
    match value.clone().into_value() {
        Value::Timestamp(seconds, increment) => Ok((seconds, increment)),
        _ => Err(call.wrong_type(&value, "its argument", "a timestamp", code)),
    }
}

fn to_parts(call: &Call<'_>) -> Result<Operand<'static>> {
    let date = call.argument(0)?;
    let Some(zone) = zone(call, 1)? else { return Ok(Operand::NULL) };
    let Some(iso) = (if call.is_given(2) { call.argument(2)? } else { Operand::bool(false) }).non_null() else {
        return Ok(Operand::NULL);
    };
    let is_iso = iso.as_bool().ok_or_else(|| call.wrong_type(&iso, "'iso8601'", "a bool", 40521))?;
    if date.is_nullish() {
        return Ok(Operand::NULL);
    }
    let local = zone.local(coerced(&date)?)?;
    let week = local.date().iso_week_date();
    let day = if is_iso {
        [
            ("isoWeekYear", i64::from(week.year())),
            ("isoWeek", i64::from(week.week())),
            ("isoDayOfWeek", i64::from(week.weekday().to_monday_one_offset())),
        ]
    } else {
        [("year", i64::from(local.year())), ("month", i64::from(local.month())), ("day", i64::from(local.day()))]
    };
    let time = [
        ("hour", i64::from(local.hour())),
        ("minute", i64::from(local.minute())),
        ("second", i64::from(local.second())),
        ("millisecond", i64::from(local.millisecond())),
    ];
    let fields = day.into_iter().chain(time);
    let fields = fields.map(|(name, value)| (name.to_owned(), Value::Number(Number::int(value))));
    Operand::object(fields.collect())
}

/// The arguments of `$dateFromParts`: name, default, and true if the value must fit into 16 bits.
const PARTS: [(&str, i64, bool); 11] = [
    ("year", 1970, false),
    ("month", 1, true),
    ("day", 1, true),
    ("hour", 0, true),
    ("minute", 0, true),
    ("second", 0, false),
    ("millisecond", 0, false),
    ("timezone", 0, false),
    ("isoWeekYear", 1970, false),
    ("isoWeek", 1, true),
    ("isoDayOfWeek", 1, true),
];

/// Parses the parts, in the order of [`PARTS`]: those of a date in the calendar, or by ISO weeks.
fn parse_parts(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let fields = named(operator, argument, |name| PARTS.iter().any(|(known, ..)| *known == name), [40519, 40518])?;
    let has = |names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
    ensure!(has(&["year", "isoWeekYear"]), 40516, "{operator} requires either 'year' or 'isoWeekYear' to be present");
    let mixed = || format!("{operator} does not allow mixing natural dates with ISO dates");
    ensure!(!has(&["year"]) || !has(&["isoWeekYear", "isoWeek", "isoDayOfWeek"]), 40489, "{}", mixed());
    ensure!(!has(&["isoWeekYear"]) || !has(&["month", "day"]), 40525, "{}", mixed());
    let part =
        |(name, ..): &(&str, i64, bool)| fields.get(*name).map_or(Ok(ExpressionNode::Absent), |json| parser.node(json));
    PARTS.iter().map(part).collect()
}

/// The parts of a date in the arguments at these positions; None if one is null.
fn parts<const N: usize>(call: &Call<'_>, indexes: [usize; N]) -> Result<Option<[i64; N]>> {
    let mut parts = [0; N];
    for (part, index) in parts.iter_mut().zip(indexes) {
        let (name, default, is_small) = PARTS[index];
        *part = default;
        if call.is_given(index) {
            let value = call.argument(index)?;
            if value.is_nullish() {
                return Ok(None);
            }
            *part = value.int64().ok_or_else(|| call.wrong_type(&value, name, "an integer", 40515))?;
        }
        if is_small && i16::try_from(*part).is_err() {
            bail!(31034, "'{name}' must evaluate to a value in the range [-32768, 32767]: {part}");
        }
    }
    Ok(Some(parts))
}

fn from_parts(call: &Call<'_>) -> Result<Operand<'static>> {
    let iso = call.is_given(8);
    let Some([hour, minute, second, millisecond]) = parts(call, [3, 4, 5, 6])? else { return Ok(Operand::NULL) };
    let Some(zone) = zone(call, 7)? else { return Ok(Operand::NULL) };
    let Some([year, week_or_month, day]) = parts(call, if iso { [8, 9, 10] } else { [0, 1, 2] })? else {
        return Ok(Operand::NULL);
    };
    let code = if iso { 31095 } else { 40523 };
    let year = i16::try_from(year).ok().filter(|year| (1..=9999).contains(year));
    let year = year.ok_or_else(|| error!(code, "the year of $dateFromParts must be an integer from 1 to 9999"))?;
    let overflow = |_| out_of_range();
    let day = if iso {
        let first = ISOWeekDate::new(year, 1, Weekday::Monday).map_err(overflow)?.date();
        first.checked_add(Span::new().days((week_or_month - 1) * 7 + day - 1)).map_err(overflow)?
    } else {
        let month = Date::new(year, 1, 1).and_then(|first| first.checked_add(Span::new().months(week_or_month - 1)));
        month.and_then(|first| first.checked_add(Span::new().days(day - 1))).map_err(overflow)?
    };
    // Hours, minutes and seconds out of range carry over into other days.
    let time = i128::from((hour * 60 + minute) * 60_000) + i128::from(second) * 1000 + i128::from(millisecond);
    let start = i128::from(Zone::UTC.millis_at(day.at(0, 0, 0, 0))?);
    let shown = i64::try_from(start + time).map_err(|_| out_of_range())?;
    Ok(Operand::date_of(zone.millis_at(civil(shown)?)?))
}
