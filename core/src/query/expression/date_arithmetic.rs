//! Dates shifted, compared and cut by units of time.
//!
//! Days and longer units go by the clocks of a time zone; hours and shorter ones by time that passes.

use super::date::{self, local, millis_at, millis_of, offset_millis};
use super::node::Call;
use super::parse::{Arguments, Operator, Parameter, Refusal};
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::operand::Operand;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Unit as SpanUnit};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$dateAdd", SHIFT_ARGUMENTS, |call| shift(call, 1)),
    Operator::new("$dateSubtract", SHIFT_ARGUMENTS, |call| shift(call, -1)),
    Operator::new(
        "$dateDiff",
        Arguments::Named(
            &[
                Parameter::required("startDate", Kind::Location(5166303)),
                Parameter::required("endDate", Kind::Location(5166304)),
                Parameter::required("unit", Kind::Location(5166305)),
                Parameter::optional("timezone"),
                Parameter::optional("startOfWeek"),
            ],
            Refusal { object: Kind::Location(5166301), name: Kind::Location(5166302) },
        ),
        difference,
    ),
    Operator::new(
        "$dateTrunc",
        Arguments::Named(
            &[
                Parameter::required("date", Kind::Location(5439009)),
                Parameter::required("unit", Kind::Location(5439010)),
                Parameter::optional("binSize"),
                Parameter::optional("timezone"),
                Parameter::optional("startOfWeek"),
            ],
            Refusal { object: Kind::Location(5439007), name: Kind::Location(5439008) },
        ),
        truncate,
    ),
];

const SHIFT_ARGUMENTS: Arguments = Arguments::Named(
    &[
        Parameter::required("startDate", Kind::Location(5166402)),
        Parameter::required("unit", Kind::Location(5166402)),
        Parameter::required("amount", Kind::Location(5166402)),
        Parameter::optional("timezone"),
    ],
    Refusal { object: Kind::Location(5166400), name: Kind::Location(5166401) },
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Year,
    Quarter,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
}

const UNITS: &[(&str, Unit)] = &[
    ("year", Unit::Year),
    ("quarter", Unit::Quarter),
    ("month", Unit::Month),
    ("week", Unit::Week),
    ("day", Unit::Day),
    ("hour", Unit::Hour),
    ("minute", Unit::Minute),
    ("second", Unit::Second),
    ("millisecond", Unit::Millisecond),
];

impl Unit {
    /// Milliseconds of a unit that always has as many.
    fn millis(self) -> i64 {
        match self {
            Unit::Hour => 3_600_000,
            Unit::Minute => 60_000,
            Unit::Second => 1000,
            _ => 1,
        }
    }
}

/// A unit's name; None if it is null.
fn unit(call: &Call<'_>, index: usize, kind: Kind) -> Result<Option<Unit>> {
    let operand = call.argument(index)?;
    if operand.is_nullish() {
        return Ok(None);
    }
    let Some(name) = operand.text() else {
        bail!(kind, "{} requires 'unit' to be a string, but got {}", call.name, operand.type_name())
    };
    match UNITS.iter().find(|(known, _)| *known == name) {
        Some((_, unit)) => Ok(Some(*unit)),
        None => bail!(Kind::FailedToParse, "{}: unknown time unit value: {name}", call.name),
    }
}

/// The day that weeks begin with; None if it is null.
fn start_of_week(call: &Call<'_>, index: usize) -> Result<Option<Weekday>> {
    if !call.given(index) {
        return Ok(Some(Weekday::Sunday));
    }
    let operand = call.argument(index)?;
    if operand.is_nullish() {
        return Ok(None);
    }
    let Some(name) = operand.text() else {
        bail!(5439015, "{} requires 'startOfWeek' to be a string, but got {}", call.name, operand.type_name())
    };
    Ok(Some(match name.to_ascii_lowercase().as_str() {
        "mon" | "monday" => Weekday::Monday,
        "tue" | "tuesday" => Weekday::Tuesday,
        "wed" | "wednesday" => Weekday::Wednesday,
        "thu" | "thursday" => Weekday::Thursday,
        "fri" | "friday" => Weekday::Friday,
        "sat" | "saturday" => Weekday::Saturday,
        "sun" | "sunday" => Weekday::Sunday,
        _ => bail!(5439016, "{}: unknown day of week value: {name}", call.name),
    }))
}

fn shift(call: &Call<'_>, sign: i64) -> Result<Operand<'static>> {
    let (start, amount) = (call.argument(0)?, call.argument(2)?);
    let unit_name = call.argument(1)?.shown();
    let Some(unit) = unit(call, 1, Kind::Location(5166404)).map_err(|error| {
        if start.is_nullish() || millis_of(&start).is_some() { error } else { no_date(call, &start) }
    })?
    else {
        return Ok(Operand::NULL);
    };
    let Some(zone) = date::zone(call, 3, Kind::Location(40517))? else { return Ok(Operand::NULL) };
    if start.is_nullish() || amount.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(millis) = millis_of(&start) else { return Err(no_date(call, &start)) };
    let Some(count) = amount.number().and_then(|number| number.as_i64()) else {
        bail!(5166405, "{} expects integer amount of time units", call.name)
    };
    let invalid = || error!(6045000, "invalid {} 'amount' parameter value: {count} {unit_name}", call.name);
    let amount = count.checked_mul(sign).ok_or_else(invalid)?;
    let span = |amount: i64| match unit {
        Unit::Year => Span::new().try_years(amount),
        Unit::Quarter => Span::new().try_months(amount.saturating_mul(3)),
        Unit::Month => Span::new().try_months(amount),
        Unit::Week => Span::new().try_weeks(amount),
        _ => Span::new().try_days(amount),
    };
    let shifted = match unit {
        Unit::Year | Unit::Quarter | Unit::Month | Unit::Week | Unit::Day => {
            let span = span(amount).map_err(|_| invalid())?;
            let shifted = local(millis, &zone)?.checked_add(span).map_err(|_| invalid())?;
            millis_at(shifted, &zone)?
        }
        unit => {
            let shifted =
                amount.checked_mul(unit.millis()).and_then(|by| millis.checked_add(by)).ok_or_else(invalid)?;
            date::instant(shifted).map_err(|_| invalid())?;
            shifted
        }
    };
    Ok(Operand::date_of(shifted))
}

fn no_date(call: &Call<'_>, found: &Operand<'_>) -> Error {
    error!(5166403, "{} requires startDate to be convertible to a date, found {}", call.name, found.type_name())
}

/// Whole days since 1970.
fn day_number(date: Date) -> i64 {
    let start = Date::constant(1970, 1, 1);
    date.since((SpanUnit::Day, start)).map_or(0, |span| i64::from(span.get_days()))
}

/// The number of the week that a day is in.
fn week_number(day: i64, start: Weekday) -> i64 {
    // 1970-01-01 was a Thursday.
    let shift = i64::from(Weekday::Thursday.since(start));
    (day + shift).div_euclid(7)
}

fn month_number(local: DateTime) -> i64 {
    i64::from(local.year()) * 12 + i64::from(local.month()) - 1
}

fn difference(call: &Call<'_>) -> Result<Operand<'static>> {
    let (start, end) = (call.argument(0)?, call.argument(1)?);
    let Some(unit) = unit(call, 2, Kind::Location(5439013))? else { return Ok(Operand::NULL) };
    let Some(zone) = date::zone(call, 3, Kind::Location(40517))? else { return Ok(Operand::NULL) };
    let first_day = if unit == Unit::Week { start_of_week(call, 4)? } else { Some(Weekday::Sunday) };
    let Some(first_day) = first_day else { return Ok(Operand::NULL) };
    if start.is_nullish() || end.is_nullish() {
        return Ok(Operand::NULL);
    }
    let millis = |operand: &Operand<'_>, name: &str| {
        millis_of(operand).ok_or_else(|| {
            let found = operand.type_name();
            error!(5166307, "$dateDiff requires '{name}' to be a date, but got {found}")
        })
    };
    let (start, end) = (millis(&start, "startDate")?, millis(&end, "endDate")?);
    let passed = |unit: Unit| -> Result<i64> {
        // Hours are counted where the clocks' hours begin.
        let offset = if unit == Unit::Hour { offset_millis(start, &zone)? } else { 0 };
        let number = |millis: i64| (i128::from(millis) + i128::from(offset)).div_euclid(i128::from(unit.millis()));
        i64::try_from(number(end) - number(start)).map_err(|_| error!(5166308, "$dateDiff overflowed"))
    };
    let count = match unit {
        Unit::Hour | Unit::Minute | Unit::Second | Unit::Millisecond => passed(unit)?,
        unit => {
            let (start, end) = (local(start, &zone)?, local(end, &zone)?);
            let number = |local: DateTime| match unit {
                Unit::Year => i64::from(local.year()),
                Unit::Quarter => month_number(local).div_euclid(3),
                Unit::Month => month_number(local),
                Unit::Week => week_number(day_number(local.date()), first_day),
                _ => day_number(local.date()),
            };
            number(end) - number(start)
        }
    };
    Ok(Operand::int(count))
}

fn truncate(call: &Call<'_>) -> Result<Operand<'static>> {
    let date = call.argument(0)?;
    let Some(unit) = unit(call, 1, Kind::Location(5439013)).map_err(|error| {
        if date.is_nullish() || millis_of(&date).is_some() { error } else { not_truncatable(&date) }
    })?
    else {
        return Ok(Operand::NULL);
    };
    let size = call.argument(2)?;
    if call.given(2) && size.is_nullish() {
        return Ok(Operand::NULL);
    }
    let size = if call.given(2) {
        let Some(size) = size.number().and_then(|number| number.as_i64()) else {
            bail!(
                5439017,
                "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '{}' of type {}",
                size.shown(),
                size.type_name()
            )
        };
        ensure!(size > 0, 5439018, "$dateTrunc requires 'binSize' to be greater than 0, but got value {size}");
        size
    } else {
        1
    };
    let Some(zone) = date::zone(call, 3, Kind::Location(40517))? else { return Ok(Operand::NULL) };
    let first_day = if unit == Unit::Week { start_of_week(call, 4)? } else { Some(Weekday::Sunday) };
    let Some(first_day) = first_day else { return Ok(Operand::NULL) };
    if date.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(millis) = millis_of(&date) else { return Err(not_truncatable(&date)) };
    truncated(millis, unit, size, &zone, first_day).map(Operand::date_of)
}

fn not_truncatable(found: &Operand<'_>) -> Error {
    error!(5439012, "$dateTrunc requires 'date' to be a date, but got {}", found.type_name())
}

/// Bins are counted from the start of the year 2000.
fn truncated(millis: i64, unit: Unit, size: i64, zone: &TimeZone, first_day: Weekday) -> Result<i64> {
    let overflow = || error!(5439003, "$dateTrunc overflowed");
    let floor = |number: i64, reference: i64| {
        let distance = number - reference;
        (distance.div_euclid(size)).checked_mul(size).and_then(|bins| bins.checked_add(reference)).ok_or_else(overflow)
    };
    let reference = Date::constant(2000, 1, 1);
    let local_start = |date: Date| millis_at(date.at(0, 0, 0, 0), zone);
    let of_day = |day: i64| {
        Date::constant(1970, 1, 1)
            .checked_add(Span::new().try_days(day).map_err(|_| overflow())?)
            .map_err(|_| overflow())
    };
    let of_month = |month: i64| {
        let year = i16::try_from(month.div_euclid(12)).map_err(|_| overflow())?;
        Date::new(year, month.rem_euclid(12) as i8 + 1, 1).map_err(|_| overflow())
    };
    let shown = local(millis, zone)?;
    match unit {
        Unit::Year => local_start(of_month(floor(i64::from(shown.year()), 2000)?.saturating_mul(12))?),
        Unit::Quarter => local_start(of_month(floor(month_number(shown).div_euclid(3), 8000)?.saturating_mul(3))?),
        Unit::Month => local_start(of_month(floor(month_number(shown), 24_000)?)?),
        Unit::Day => local_start(of_day(floor(day_number(shown.date()), day_number(reference))?)?),
        Unit::Week => {
            // The first week that begins in the year 2000.
            let first = day_number(reference) + i64::from(first_day.since(reference.weekday()));
            let weeks = (day_number(shown.date()) - first).div_euclid(7);
            local_start(of_day(first + floor(weeks, 0)?.saturating_mul(7))?)
        }
        unit => {
            let length = unit.millis().checked_mul(size).ok_or_else(overflow)?;
            let offset = offset_millis(millis, zone)?;
            let reference = day_number(reference) * 86_400_000;
            let wall = millis + offset;
            Ok(reference + (wall - reference).div_euclid(length) * length - offset)
        }
    }
}
