//! Dates: their parts, in the calendar and by ISO weeks.

use super::node::{Call, Node};
use super::parse::{Arguments, Operator, Parameter, Parser, Refusal};
use crate::error::{Kind, Result, bail, error};
use crate::query::operand::Operand;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use jiff::civil::{Date, DateTime, ISOWeekDate, Weekday};
use jiff::tz::{Offset, TimeZone};
use jiff::{Span, Timestamp};
use serde_json::Value as Json;

macro_rules! part {
    ($name:literal, $part:expr) => {
        Operator::new($name, Arguments::Special(|parser, json| parse_part(parser, json, $name)), |call| {
            part(call, $part)
        })
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
    part!("$isoWeekYear", |local| i64::from(local.date().iso_week_date().year())),
    part!("$isoDayOfWeek", |local| i64::from(local.weekday().to_monday_one_offset())),
    part!("$hour", |local| i64::from(local.hour())),
    part!("$minute", |local| i64::from(local.minute())),
    part!("$second", |local| i64::from(local.second())),
    part!("$millisecond", |local| i64::from(local.millisecond())),
    Operator::new(
        "$dateToParts",
        Arguments::Named(
            &[
                Parameter::required("date", Kind::Location(40522)),
                Parameter::optional("timezone"),
                Parameter::optional("iso8601"),
            ],
            Refusal { object: Kind::Location(40524), name: Kind::Location(40520) },
        ),
        to_parts,
    ),
    Operator::new(
        "$dateFromParts",
        Arguments::Named(
            &[
                Parameter::optional("year"),
                Parameter::optional("month"),
                Parameter::optional("day"),
                Parameter::optional("hour"),
                Parameter::optional("minute"),
                Parameter::optional("second"),
                Parameter::optional("millisecond"),
                Parameter::optional("timezone"),
                Parameter::optional("isoWeekYear"),
                Parameter::optional("isoWeek"),
                Parameter::optional("isoDayOfWeek"),
            ],
            Refusal { object: Kind::Location(40519), name: Kind::Location(40518) },
        ),
        from_parts,
    ),
    Operator::exactly("$tsSecond", 1, |call| timestamp(call, Kind::Location(5687301), |t, _| t)),
    Operator::exactly("$tsIncrement", 1, |call| timestamp(call, Kind::Location(5687302), |_, i| i)),
];

/// Coordinated universal time.
pub(super) fn utc() -> TimeZone {
    TimeZone::UTC
}

/// The time zone of a name such as `Europe/Berlin`, or of an offset such as `+02:00`, `+0200`, `+02`.
pub(super) fn zone_of(name: &str) -> Result<TimeZone> {
    if ["UTC", "GMT", "Z"].contains(&name) {
        return Ok(utc());
    }
    let unknown = || error!(40485, "unrecognized time zone identifier: \"{name}\"");
    if let Some(rest) = name.strip_prefix(['+', '-']) {
        let digits: String = match (rest.len(), rest.as_bytes().get(2)) {
            (5, Some(b':')) => format!("{}{}", &rest.get(..2).unwrap_or_default(), &rest.get(3..).unwrap_or_default()),
            (2 | 4, _) => rest.to_owned(),
            _ => return Err(unknown()),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) || digits.len() < 2 {
            return Err(unknown());
        }
        let hours: i32 = digits[..2].parse().map_err(|_| unknown())?;
        let minutes: i32 = if digits.len() == 4 { digits[2..].parse().map_err(|_| unknown())? } else { 0 };
        let seconds = (hours * 60 + minutes) * 60 * if name.starts_with('-') { -1 } else { 1 };
        return Ok(TimeZone::fixed(Offset::from_seconds(seconds).map_err(|_| unknown())?));
    }
    TimeZone::get(name).map_err(|_| unknown())
}

/// The time zone that an argument names; UTC if it is not given, None if it is null.
pub(super) fn zone(call: &Call<'_>, index: usize, kind: Kind) -> Result<Option<TimeZone>> {
    if !call.given(index) {
        return Ok(Some(utc()));
    }
    let operand = call.argument(index)?;
    if operand.is_nullish() {
        return Ok(None);
    }
    match operand.text() {
        Some(name) => zone_of(name).map(Some),
        None => bail!(
            kind,
            "{} requires a string for the timezone argument, but was given a {} ({})",
            call.name,
            operand.type_name(),
            operand.shown()
        ),
    }
}

/// The milliseconds since 1970 of a date, a timestamp or an ObjectId.
pub(super) fn millis_of(operand: &Operand<'_>) -> Option<i64> {
    match operand.date() {
        Some(millis) => Some(millis),
        None => match operand.clone().into_option()? {
            Value::Timestamp(t, _) => Some(i64::from(t) * 1000),
            Value::ObjectId(id) => Some(i64::from(u32::from_be_bytes([id[0], id[1], id[2], id[3]])) * 1000),
            _ => None,
        },
    }
}

pub(super) fn coerced(operand: &Operand<'_>) -> Result<i64> {
    millis_of(operand).map_or_else(|| bail!(16006, "can't convert from BSON type {} to Date", operand.type_name()), Ok)
}

/// The instant; only years from -9999 to 9999 have calendar dates here.
pub(super) fn instant(millis: i64) -> Result<Timestamp> {
    Timestamp::from_millisecond(millis)
        .map_err(|_| error!(Kind::Overflow, "value {millis} (milliseconds) is out of range for calendar dates"))
}

/// Date and time on the clocks of a zone.
pub(super) fn local(millis: i64, zone: &TimeZone) -> Result<DateTime> {
    Ok(zone.to_datetime(instant(millis)?))
}

/// The instant when clocks of a zone show this; in a gap they show what follows it.
pub(super) fn millis_at(local: DateTime, zone: &TimeZone) -> Result<i64> {
    match zone.to_timestamp(local) {
        Ok(timestamp) => Ok(timestamp.as_millisecond()),
        Err(_) => bail!(Kind::Overflow, "the date is out of range"),
    }
}

/// How far a zone's clocks are ahead at an instant, in milliseconds.
pub(super) fn offset_millis(millis: i64, zone: &TimeZone) -> Result<i64> {
    Ok(i64::from(zone.to_offset(instant(millis)?).seconds()) * 1000)
}

/// Weeks begin on Sunday; days before the first are in week 0.
pub(super) fn week(local: DateTime) -> i64 {
    let day = i64::from(local.date().day_of_year()) - 1;
    (day + 7 - i64::from(local.weekday().to_sunday_zero_offset())) / 7
}

/// The date, then the time zone.
fn parse_part(parser: &mut Parser<'_>, argument: &Json, name: &str) -> Result<Vec<Node>> {
    match argument {
        Json::Object(fields) if !fields.keys().any(|name| name.starts_with('$')) => {
            if let Some(unknown) = fields.keys().find(|name| !["date", "timezone"].contains(&name.as_str())) {
                bail!(40535, "unrecognized option to {name}: \"{unknown}\"");
            }
            let Some(date) = fields.get("date") else {
                bail!(40539, "missing 'date' argument to {name}, provided: {argument}")
            };
            let date = parser.node(date)?;
            let zone = fields.get("timezone").map_or(Ok(Node::Absent), |json| parser.node(json))?;
            Ok(vec![date, zone])
        }
        Json::Array(items) => match items.as_slice() {
            [date] => Ok(vec![parser.node(date)?, Node::Absent]),
            items => {
                bail!(40536, "{name} accepts exactly one argument if given an array, but was given {}", items.len())
            }
        },
        date => Ok(vec![parser.node(date)?, Node::Absent]),
    }
}

fn part(call: &Call<'_>, part: fn(DateTime) -> i64) -> Result<Operand<'static>> {
    let date = call.argument(0)?;
    let Some(zone) = zone(call, 1, Kind::Location(40533))? else { return Ok(Operand::NULL) };
    if date.is_nullish() {
        return Ok(Operand::NULL);
    }
    Ok(Operand::int(part(local(coerced(&date)?, &zone)?)))
}

fn timestamp(call: &Call<'_>, kind: Kind, part: fn(u32, u32) -> u32) -> Result<Operand<'static>> {
    let operand = call.argument(0)?;
    if operand.is_nullish() {
        return Ok(Operand::NULL);
    }
    match operand.into_value() {
        Value::Timestamp(t, i) => Ok(Operand::int(i64::from(part(t, i)))),
        other => bail!(kind, "Argument to {} must be a timestamp, but is {}", call.name, other.type_name()),
    }
}

fn to_parts(call: &Call<'_>) -> Result<Operand<'static>> {
    let date = call.argument(0)?;
    let iso = call.argument(2)?;
    if call.given(2) && iso.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(iso) = (if call.given(2) { iso.as_bool() } else { Some(false) }) else {
        bail!(40521, "iso8601 must evaluate to a bool, found {}", iso.type_name())
    };
    let Some(zone) = zone(call, 1, Kind::Location(40517))? else { return Ok(Operand::NULL) };
    if date.is_nullish() {
        return Ok(Operand::NULL);
    }
    let local = local(coerced(&date)?, &zone)?;
    let week = local.date().iso_week_date();
    let day = if iso {
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
    let fields = fields.map(|(name, value)| (name.to_owned(), Value::Number(Number::Int(value))));
    Ok(Operand::Made(Value::Object(fields.collect())))
}

/// A number among the parts of a date; None if it is null.
fn number(call: &Call<'_>, index: usize, name: &str, default: i64) -> Result<Option<i64>> {
    if !call.given(index) {
        return Ok(Some(default));
    }
    let operand = call.argument(index)?;
    if operand.is_nullish() {
        return Ok(None);
    }
    match operand.number().and_then(|number| number.as_i64()) {
        Some(value) => Ok(Some(value)),
        None => bail!(
            40515,
            "'{name}' must evaluate to an integer, found {} with value {}",
            operand.type_name(),
            operand.shown()
        ),
    }
}

/// As [`number`], within 16 bits.
fn small(call: &Call<'_>, index: usize, name: &str, default: i64) -> Result<Option<i64>> {
    let value = number(call, index, name, default)?;
    match value {
        Some(value) if i16::try_from(value).is_err() => bail!(
            31034,
            "'{name}' must evaluate to a value in the range [-32768, 32767]; value {value} is not in range"
        ),
        value => Ok(value),
    }
}

fn from_parts(call: &Call<'_>) -> Result<Operand<'static>> {
    let (natural, iso) = ((0..3).any(|index| call.given(index)), (8..11).any(|index| call.given(index)));
    if natural && iso {
        bail!(
            if call.given(0) { Kind::Location(40489) } else { Kind::Location(40525) },
            "$dateFromParts does not allow mixing natural dates with ISO dates"
        );
    }
    if !call.given(if iso { 8 } else { 0 }) {
        bail!(40516, "$dateFromParts requires either 'year' or 'isoWeekYear' to be present");
    }
    let Some(hour) = small(call, 3, "hour", 0)? else { return Ok(Operand::NULL) };
    let Some(minute) = small(call, 4, "minute", 0)? else { return Ok(Operand::NULL) };
    let Some(second) = number(call, 5, "second", 0)? else { return Ok(Operand::NULL) };
    let Some(millisecond) = number(call, 6, "millisecond", 0)? else { return Ok(Operand::NULL) };
    let zone = match call.given(7) {
        true if !call.argument(7)?.is_nullish() && call.argument(7)?.text().is_none() => {
            let found = call.argument(7)?;
            bail!(40517, "timezone must evaluate to a string, found {}", found.type_name());
        }
        _ => zone(call, 7, Kind::Location(40517))?,
    };
    let Some(zone) = zone else { return Ok(Operand::NULL) };
    let year_of = |value: i64, name: &str, kind: Kind| match i16::try_from(value) {
        Ok(year) if (1..=9999).contains(&year) => Ok(year),
        _ => bail!(kind, "'{name}' must evaluate to an integer in the range 1 to 9999, found {value}"),
    };
    let overflow = |_| error!(Kind::Overflow, "the date is out of range");
    let day = if iso {
        let Some(year) = number(call, 8, "isoWeekYear", 1970)? else { return Ok(Operand::NULL) };
        let Some(week) = small(call, 9, "isoWeek", 1)? else { return Ok(Operand::NULL) };
        let Some(day) = small(call, 10, "isoDayOfWeek", 1)? else { return Ok(Operand::NULL) };
        let year = year_of(year, "isoWeekYear", Kind::Location(31095))?;
        let first = ISOWeekDate::new(year, 1, Weekday::Monday).map_err(overflow)?.date();
        first.checked_add(Span::new().days((week - 1) * 7 + day - 1)).map_err(overflow)?
    } else {
        let Some(year) = number(call, 0, "year", 1970)? else { return Ok(Operand::NULL) };
        let Some(month) = small(call, 1, "month", 1)? else { return Ok(Operand::NULL) };
        let Some(day) = small(call, 2, "day", 1)? else { return Ok(Operand::NULL) };
        let year = year_of(year, "year", Kind::Location(40523))?;
        let first = Date::new(year, 1, 1).map_err(overflow)?;
        first
            .checked_add(Span::new().months(month - 1))
            .and_then(|first| first.checked_add(Span::new().days(day - 1)))
            .map_err(overflow)?
    };
    // What is too much for hours, minutes and seconds goes on to the next day.
    let time = i128::from((hour * 60 + minute) * 60_000) + i128::from(second) * 1000 + i128::from(millisecond);
    let start = i128::from(millis_at(day.at(0, 0, 0, 0), &utc())?);
    let shown = i64::try_from(start + time).map_err(|_| error!(Kind::Overflow, "the date is out of range"))?;
    Ok(Operand::date_of(millis_at(local(shown, &utc())?, &zone)?))
}
