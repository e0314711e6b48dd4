//! Operators that shift, compare and truncate dates by units of time.
//!
//! Days and longer units follow the local time of a zone; hours and shorter ones count elapsed time.

use super::date::{self, millis_of};
use super::node::Call;
use super::parse::{Arguments, Operator, optional, required};
use super::zone::{Zone, civil};
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::operand::Operand;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::{Span, Unit as SpanUnit};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$dateAdd", SHIFT_ARGUMENTS, |call| shift(call, 1)),
    Operator::new("$dateSubtract", SHIFT_ARGUMENTS, |call| shift(call, -1)),
    Operator::new(
        "$dateDiff",
        Arguments::Named(
            &[
                required("startDate", 5166303),
                required("endDate", 5166304),
                required("unit", 5166305),
                optional("timezone"),
                optional("startOfWeek"),
            ],
            [5166301, 5166302],
        ),
        difference,
    ),
    Operator::new(
        "$dateTrunc",
        Arguments::Named(
            &[
                required("date", 5439009),
                required("unit", 5439010),
                optional("binSize"),
                optional("timezone"),
                optional("startOfWeek"),
            ],
            [5439007, 5439008],
        ),
        truncate,
    ),
];

const SHIFT_ARGUMENTS: Arguments = Arguments::Named(
    &[required("startDate", 5166402), required("unit", 5166402), required("amount", 5166402), optional("timezone")],
    [5166400, 5166401],
);

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
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
    /// The unit of that name.
    pub(crate) fn find(name: &str) -> Option<Unit> {
        UNITS.iter().find(|(known, _)| *known == name).map(|(_, unit)| *unit)
    }

    /// The length in milliseconds, in UTC; None for months and longer units, whose length varies.
    pub(crate) fn fixed_millis(self) -> Option<i64> {
        match self {
            Unit::Year | Unit::Quarter | Unit::Month => None,
            Unit::Week => Some(7 * 86_400_000),
            Unit::Day => Some(86_400_000),
            unit => Some(unit.millis()),
        }
    }

    /// The length of a unit of varying length, in months.
    fn months(self) -> i64 {
        match self {
            Unit::Year => 12,
            Unit::Quarter => 3,
            _ => 1,
        }
    }

    /// The length of a unit of fixed length in any time zone, in milliseconds.
    fn millis(self) -> i64 {
        match self {
            Unit::Hour => 3_600_000,
            Unit::Minute => 60_000,
            Unit::Second => 1000,
            _ => 1,
        }
    }

    /// A date plus a number of units, in UTC; None if the result is out of range.
    pub(crate) fn after(self, millis: i64, amount: i64) -> Option<i64> {
        self.after_in(millis, amount, &Zone::UTC).ok().flatten()
    }

    /// A date plus a number of units in a time zone; None if the result is out of range.
    fn after_in(self, millis: i64, amount: i64, zone: &Zone) -> Result<Option<i64>> {
        let span = match self {
            Unit::Year => Span::new().try_years(amount),
            Unit::Quarter => Span::new().try_months(amount.saturating_mul(3)),
            Unit::Month => Span::new().try_months(amount),
            Unit::Week => Span::new().try_weeks(amount),
            Unit::Day => Span::new().try_days(amount),
            unit => {
                let shifted = amount.checked_mul(unit.millis()).and_then(|by| millis.checked_add(by));
                return Ok(shifted.filter(|shifted| civil(*shifted).is_ok()));
            }
        };
        let start = zone.local(millis)?;
        match span.and_then(|span| start.checked_add(span)) {
            Ok(shifted) => zone.millis_at(shifted).map(Some),
            Err(_) => Ok(None),
        }
    }
}

/// The average length of a month, in milliseconds.
const MONTH_MILLIS: i64 = 2_629_746_000;

/// The unit in an argument that is not null.
fn unit(call: &Call<'_>, name: &Operand<'_>) -> Result<Unit> {
    let name = call.text(name, "'unit'", 5439013)?;
    Unit::find(name).ok_or_else(|| error!(Kind::FailedToParse, "{}: unknown time unit value: {name}", call.name))
}

/// The argument with the first day of the week: Sunday if it is not given, or if the unit is not a week; None if it is
/// null.
fn start_of_week<'s>(call: &Call<'s>, index: usize, unit: &Operand<'_>) -> Result<Option<Operand<'s>>> {
    if unit.text() != Some("week") || !call.is_given(index) {
        return Ok(Some(Operand::string("sunday")));
    }
    Ok(call.argument(index)?.non_null())
}

/// The day of the week that an argument names.
fn weekday(call: &Call<'_>, name: &Operand<'_>) -> Result<Weekday> {
    let name = call.text(name, "'startOfWeek'", 5439015)?;
    Ok(match name.to_ascii_lowercase().as_str() {
        "mon" | "monday" => Weekday::Monday,
        "tue" | "tuesday" => Weekday::Tuesday,
        "wed" | "wednesday" => Weekday::Wednesday,
        "thu" | "thursday" => Weekday::Thursday,
        "fri" | "friday" => Weekday::Friday,
        "sat" | "saturday" => Weekday::Saturday,
        "sun" | "sunday" => Weekday::Sunday,
        _ => bail!(5439016, "{}: unknown day of week value: {name}", call.name),
    })
}

/// The milliseconds of a date in an argument; the code is that for another type.
fn millis(call: &Call<'_>, date: &Operand<'_>, which: &str, code: i32) -> Result<i64> {
    millis_of(date).ok_or_else(|| call.wrong_type(date, which, "a date", code))
}

/// Adds units to a date, or subtracts them if `sign` is -1. A null argument makes the result null before the types of the
/// other arguments are checked.
fn shift(call: &Call<'_>, sign: i64) -> Result<Operand<'static>> {
    let Some(start) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let Some(unit_name) = call.argument(1)?.non_null() else { return Ok(Operand::NULL) };
    let Some(amount) = call.argument(2)?.non_null() else { return Ok(Operand::NULL) };
    let Some(zone) = date::zone(call, 3)? else { return Ok(Operand::NULL) };
    let start = millis(call, &start, "'startDate'", 5166403)?;
    let unit = unit(call, &unit_name)?;
    let count = amount.int64().ok_or_else(|| call.wrong_type(&amount, "'amount'", "an integer", 5166405))?;
    let shown = || unit_name.shown();
    let invalid = |code: i32| error!(code, "invalid {} 'amount' parameter value: {count} {}", call.name, shown());
    let amount = count.checked_mul(sign).ok_or_else(|| invalid(6045000))?;
    // MongoDB's limit of an amount: its milliseconds fit into 64 bits.
    let length = unit.fixed_millis().unwrap_or_else(|| unit.months() * MONTH_MILLIS);
    let fits = u128::from(amount.unsigned_abs()) * u128::from(length.unsigned_abs()) <= u128::from(u64::MAX);
    if !fits {
        return Err(invalid(5976500));
    }
    let shifted = unit.after_in(start, amount, &zone)?.ok_or_else(|| invalid(6045000))?;
    Ok(Operand::date_of(shifted))
}

/// Whole days since 1970.
fn day_number(date: Date) -> i64 {
    let start = Date::constant(1970, 1, 1);
    date.since((SpanUnit::Day, start)).map_or(0, |span| i64::from(span.get_days()))
}

/// The number of the week that a day is in, counted from 1970.
fn week_number(day: i64, start: Weekday) -> i64 {
    // 1970-01-01 was a Thursday.
    let shift = i64::from(Weekday::Thursday.since(start));
    (day + shift).div_euclid(7)
}

fn month_number(local: DateTime) -> i64 {
    i64::from(local.year()) * 12 + i64::from(local.month()) - 1
}

fn difference(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some(start) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let Some(end) = call.argument(1)?.non_null() else { return Ok(Operand::NULL) };
    let Some(unit_name) = call.argument(2)?.non_null() else { return Ok(Operand::NULL) };
    let Some(first_day) = start_of_week(call, 4, &unit_name)? else { return Ok(Operand::NULL) };
    let Some(zone) = date::zone(call, 3)? else { return Ok(Operand::NULL) };
    let start = millis(call, &start, "'startDate'", 5166307)?;
    let end = millis(call, &end, "'endDate'", 5166307)?;
    let unit = unit(call, &unit_name)?;
    let first_day = weekday(call, &first_day)?;
    if let Unit::Hour | Unit::Minute | Unit::Second | Unit::Millisecond = unit {
        return passed(start, end, unit, &zone).map(Operand::long);
    }
    let number = |millis: i64| {
        let local = zone.local(millis)?;
        Ok::<_, Error>(match unit {
            Unit::Year => i64::from(local.year()),
            Unit::Quarter => month_number(local).div_euclid(3),
            Unit::Month => month_number(local),
            Unit::Week => week_number(day_number(local.date()), first_day),
            _ => day_number(local.date()),
        })
    };
    Ok(Operand::long(number(end)? - number(start)?))
}

/// The number of hours, or of shorter units, that begin on the local clock between two instants. Changes of the offset from
/// UTC do not count.
fn passed(start: i64, end: i64, unit: Unit, zone: &Zone) -> Result<i64> {
    let offset = |millis: i64| match unit == Unit::Millisecond || *zone == Zone::UTC {
        true => Ok(0),
        false => zone.offset_millis(millis),
    };
    let (start_offset, end_offset, length) = (offset(start)?, offset(end)?, i128::from(unit.millis()));
    let number = |millis: i64, offset: i64| (i128::from(millis) + i128::from(offset)).div_euclid(length);
    // A change of the offset moves the clock, but no time passes.
    let skipped = i128::from(end_offset - start_offset) / length;
    let count = number(end, end_offset) - number(start, start_offset) - skipped;
    i64::try_from(count).map_err(|_| error!(5166308, "$dateDiff overflowed"))
}

/// The largest number of days, or longer units, in a bin.
const MAX_BIN: i64 = 100_000_000_000;

fn truncate(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some(date) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let Some(unit_name) = call.argument(1)?.non_null() else { return Ok(Operand::NULL) };
    let Some(size) = (if call.is_given(2) { call.argument(2)? } else { Operand::int(1) }).non_null() else {
        return Ok(Operand::NULL);
    };
    let Some(first_day) = start_of_week(call, 4, &unit_name)? else { return Ok(Operand::NULL) };
    let Some(zone) = date::zone(call, 3)? else { return Ok(Operand::NULL) };
    let millis = millis(call, &date, "'date'", 5166307)?;
    let unit = unit(call, &unit_name)?;
    let size = size.int64().ok_or_else(|| call.wrong_type(&size, "'binSize'", "an integer", 5439017))?;
    ensure!(size > 0, 5439018, "$dateTrunc requires 'binSize' to be greater than 0, but got value {size}");
    truncated(millis, unit, size, &zone, weekday(call, &first_day)?).map(Operand::date_of)
}

/// Returns the start of the bin that contains a date. Bins are counted from the start of the year 2000 in the time zone. Bins
/// of hours and shorter units all have the same length.
fn truncated(millis: i64, unit: Unit, size: i64, zone: &Zone, first_day: Weekday) -> Result<i64> {
    let overflow = || error!(5439003, "$dateTrunc overflowed");
    let is_long = !matches!(unit, Unit::Hour | Unit::Minute | Unit::Second | Unit::Millisecond);
    ensure!(!is_long || size <= MAX_BIN, 5439006, "$dateTrunc: a 'binSize' of {size} is not supported");
    let floor = |number: i64, reference: i64| {
        let distance = number - reference;
        (distance.div_euclid(size)).checked_mul(size).and_then(|bins| bins.checked_add(reference)).ok_or_else(overflow)
    };
    let reference = Date::constant(2000, 1, 1);
    let local_start = |date: Date| zone.millis_at(date.at(0, 0, 0, 0));
    let of_day = |day: i64| {
        Date::constant(1970, 1, 1)
            .checked_add(Span::new().try_days(day).map_err(|_| overflow())?)
            .map_err(|_| overflow())
    };
    let of_month = |month: i64| {
        let year = i16::try_from(month.div_euclid(12)).map_err(|_| overflow())?;
        Date::new(year, month.rem_euclid(12) as i8 + 1, 1).map_err(|_| overflow())
    };
    let shown = zone.local(millis)?;
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
            let length = unit.millis().checked_mul(size);
            let length = length.ok_or_else(|| error!(5439002, "$dateTrunc: a bin of {size} units is too large"))?;
            let reference = local_start(reference)?;
            Ok(millis - (millis - reference).rem_euclid(length))
        }
    }
}
