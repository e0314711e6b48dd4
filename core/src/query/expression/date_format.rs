//! Operators that convert dates to strings and back.

use super::date::{self, week};
use super::node::Call;
use super::parse::{Arguments, Operator, lazy, optional, required};
use super::zone::Zone;
use crate::error::{Error, Kind, Result, bail, error};
use crate::query::operand::Operand;
use jiff::civil::{Date, DateTime, ISOWeekDate, Time, Weekday};
use jiff::fmt::strtime::BrokenDownTime;
use std::borrow::Cow;
use std::fmt::Write;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new(
        "$dateToString",
        Arguments::Named(
            &[required("date", 18628), optional("format"), optional("timezone"), lazy("onNull")],
            [18629, 18534],
        ),
        to_string,
    ),
    Operator::new(
        "$dateFromString",
        Arguments::Named(
            &[required("dateString", 40542), optional("format"), optional("timezone"), lazy("onError"), lazy("onNull")],
            [40540, 40541],
        ),
        from_string,
    ),
];

/// The date in UTC, as ISO 8601 writes it, with milliseconds.
pub(super) fn iso(millis: i64) -> Result<String> {
    format_date(millis, &Zone::UTC, "%Y-%m-%dT%H:%M:%S.%LZ")
}

/// A timestamp, as operators such as `$toUpper` write it.
pub(super) fn timestamp(seconds: u32, increment: u32) -> String {
    let date = format_date(i64::from(seconds) * 1000, &Zone::UTC, "%b %d %H:%M:%S").unwrap_or_default();
    format!("{date}:{increment:03x}")
}

/// The specifiers after `%` that a format of `$dateFromString` may have.
const READABLE: &str = "YmdHMSLjuVGBbzZ%";
/// The specifiers after `%` that a format of `$dateToString` may have.
const WRITABLE: &str = "YmdHMSLjwuUVGBbzZ%";

/// The argument `format`: a string with these specifiers, null, or not given.
fn format_of<'s>(call: &Call<'s>, specifiers: &str, code: i32) -> Result<Operand<'s>> {
    let format = call.argument(1)?;
    if !format.is_nullish() {
        let mut characters = call.text(&format, "'format'", code)?.chars();
        while characters.by_ref().any(|character| character == '%') {
            match characters.next() {
                None => bail!(18535, "Unmatched '%' at end of format string"),
                Some(specifier) if specifiers.contains(specifier) => {}
                Some(other) => bail!(18536, "Invalid format character '%{other}' in format string"),
            }
        }
    }
    Ok(format)
}

fn to_string<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let (date, format) = (call.argument(0)?, format_of(call, WRITABLE, 18533)?);
    let zone = date::zone(call, 2)?;
    if date.is_nullish() {
        return if call.is_given(3) { call.argument(3) } else { Ok(Operand::NULL) };
    }
    let Some(zone) = zone.filter(|_| !(call.is_given(1) && format.is_nullish())) else { return Ok(Operand::NULL) };
    let default = if zone == Zone::UTC { "%Y-%m-%dT%H:%M:%S.%LZ" } else { "%Y-%m-%dT%H:%M:%S.%L" };
    format_date(date::coerced(&date)?, &zone, format.text().unwrap_or(default)).map(Operand::string)
}

/// Writes a date in a format that [`format_of`] has checked.
fn format_date(millis: i64, zone: &Zone, format: &str) -> Result<String> {
    let shown = zone.local(millis)?;
    let iso_week = shown.date().iso_week_date();
    let mut text = String::with_capacity(format.len() + 8);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let year = |year: i16| match year {
            0..=9999 => Ok(year),
            _ => bail!(18537, "$dateToString is only defined on year 0-9999, tried to use year {year}"),
        };
        let Some(specifier) = characters.next() else { break };
        let written = match specifier {
            'Y' => write!(text, "{:04}", year(shown.year())?),
            'm' => write!(text, "{:02}", shown.month()),
            'd' => write!(text, "{:02}", shown.day()),
            'H' => write!(text, "{:02}", shown.hour()),
            'M' => write!(text, "{:02}", shown.minute()),
            'S' => write!(text, "{:02}", shown.second()),
            'L' => write!(text, "{:03}", shown.millisecond()),
            'j' => write!(text, "{:03}", shown.date().day_of_year()),
            'w' => write!(text, "{}", shown.weekday().to_sunday_one_offset()),
            'u' => write!(text, "{}", shown.weekday().to_monday_one_offset()),
            'U' => write!(text, "{:02}", week(shown)),
            'V' => write!(text, "{:02}", iso_week.week()),
            'G' => write!(text, "{:04}", year(iso_week.year())?),
            'B' => write!(text, "{}", shown.strftime("%B")),
            'b' => write!(text, "{}", shown.strftime("%b")),
            'z' | 'Z' => {
                let minutes = zone.offset_millis(millis)? / 60_000;
                if specifier == 'Z' {
                    write!(text, "{minutes}")
                } else {
                    let sign = if minutes < 0 { '-' } else { '+' };
                    write!(text, "{sign}{:02}{:02}", minutes.abs() / 60, minutes.abs() % 60)
                }
            }
            percent => write!(text, "{percent}"),
        };
        debug_assert!(written.is_ok());
    }
    Ok(text)
}

fn from_string<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let (text, format) = (call.argument(0)?, format_of(call, READABLE, 40684)?);
    let zone = date::zone(call, 2)?;
    if text.is_nullish() {
        return if call.is_given(4) { call.argument(4) } else { Ok(Operand::NULL) };
    }
    let zone = zone.filter(|_| !(call.is_given(1) && format.is_nullish()));
    let text = call.text(&text, "'dateString'", Kind::ConversionFailure.code());
    let parsed = text.and_then(|text| match (&zone, format.text()) {
        (None, _) => Ok(None),
        (Some(zone), None) => parse_date(text, zone).map(Some),
        (Some(zone), Some(format)) => parse_with(text, format, zone).map(Some),
    });
    match parsed {
        Err(error) if call.is_given(3) && error.kind == Kind::ConversionFailure => call.argument(3),
        other => Ok(other?.map_or(Operand::NULL, Operand::date_of)),
    }
}

/// The forms of a date that are tried, in this order, if no format is given. `%m/%d/%y` comes before `%m/%d/%Y`: of a year
/// with four digits `%y` reads only two, the rest is not a time, and so the next form is tried.
const DATES: &[&str] = &[
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%m/%d/%y",
    "%m/%d/%Y",
    "%Y%m%d",
    "%a, %d %b %Y",
    "%A, %d %B %Y",
    "%a %d %b %Y",
    "%A %d %B %Y",
    "%d %b %Y",
    "%d %B %Y",
    "%d-%b-%Y",
    "%Y-%b-%d",
    "%d-%m-%Y",
    "%d.%m.%Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%b %d %Y",
    "%B %d %Y",
    "%Y-%j",
    "%G-W%V-%u",
    "%Y-%m",
];

/// The forms of a time, which follows the date and precedes the time zone.
const TIMES: &[&str] =
    &["%H:%M:%S%.f", "%H:%M.%S%.f", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%I %p", "%H%M%S", "%H%M", "noon", "midnight"];

/// Parses a date in one of [`DATES`] with a time in one of [`TIMES`]; `zone` applies if the text names no zone. The text may name one only
/// if `zone` is UTC.
pub(super) fn parse_date(text: &str, zone: &Zone) -> Result<i64> {
    let plain = without_ordinals(text.trim());
    let begins_with_year = plain.bytes().take_while(u8::is_ascii_digit).count() >= 4;
    for form in DATES.iter().filter(|form| begins_with_year || !form.starts_with("%Y") && !form.starts_with("%G")) {
        let Ok((parsed, used)) = BrokenDownTime::parse_prefix(form, &plain) else { continue };
        // The day of a year must have three digits, though the library also reads fewer.
        if *form == "%Y-%j" && used != "2020-001".len() {
            continue;
        }
        let day = match (parsed.year(), parsed.month()) {
            (Some(year), Some(month)) if *form == "%Y-%m" => Date::new(year, month, 1),
            _ => parsed.to_date(),
        };
        let Ok(day) = day else { continue };
        let rest = &plain[used..];
        let (rest, carried) = carried(rest.strip_prefix('T').unwrap_or_else(|| rest.trim_start()));
        for (time, rest) in times_before(&rest) {
            let zone = match zone_suffix(rest) {
                None if rest.is_empty() => zone.clone(),
                None => continue,
                Some(_) if *zone != Zone::UTC => {
                    bail!(Kind::ConversionFailure, "'{text}' names a time zone, beside the argument 'timezone'")
                }
                Some(zone) => zone,
            };
            return Ok(zone.millis_at(DateTime::from_parts(day, time))? + carried);
        }
    }
    bail!(Kind::ConversionFailure, "Error parsing date string '{text}'")
}

/// Replaces hour 24 of a time by hour 0, and second 60 by second 59, and returns the milliseconds to be added for that. Any other text is
/// returned as it is.
fn carried(text: &str) -> (Cow<'_, str>, i64) {
    let (mut text, mut carried) = (Cow::Borrowed(text), 0);
    if text.starts_with("24:") {
        text.to_mut().replace_range(..2, "00");
        carried += 86_400_000;
    }
    let mark = |at: usize| text.as_bytes().get(at) == Some(&b':');
    if mark(2) && mark(5) && text.get(6..8) == Some("60") {
        text.to_mut().replace_range(6..8, "59");
        carried += 1_000;
    }
    (text, carried)
}

/// The times that a text may begin with, each with the rest of the text. The last is midnight with the whole text, for a date
/// without a time.
fn times_before(text: &str) -> impl Iterator<Item = (Time, &str)> {
    let found = TIMES.iter().filter_map(move |form| match *form {
        "noon" => Some((Time::constant(12, 0, 0, 0), text.strip_prefix("noon")?)),
        "midnight" => Some((Time::midnight(), text.strip_prefix("midnight")?)),
        form => {
            let (parsed, used) = BrokenDownTime::parse_prefix(form, text).ok()?;
            Some((parsed.to_time().ok()?, &text[used..]))
        }
    });
    found.chain([(Time::midnight(), text)]).map(|(time, rest)| (time, rest.trim_start()))
}

/// Removes the suffixes of ordinals such as `4th`, and separates `am` and `pm` from the hour.
fn without_ordinals(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = rest[start..].bytes().take_while(u8::is_ascii_digit).count();
        let end = start + digits;
        plain.push_str(&rest[..end]);
        rest = &rest[end..];
        let suffix = rest.get(..2).filter(|_| rest[2..].chars().next().is_none_or(|next| !next.is_alphanumeric()));
        match suffix.map(str::to_ascii_lowercase).as_deref() {
            Some("st" | "nd" | "rd" | "th") if digits < 3 => rest = &rest[2..],
            Some("am" | "pm") => plain.push(' '),
            _ => {}
        }
    }
    plain.push_str(rest);
    plain
}

/// Abbreviations of time zones that the text of a date may have, with their offsets from UTC in hours.
const ABBREVIATIONS: &[(&str, i8)] = &[
    ("BST", 1),
    ("CET", 1),
    ("CEST", 2),
    ("EET", 2),
    ("EEST", 3),
    ("MSK", 3),
    ("EST", -5),
    ("EDT", -4),
    ("CST", -6),
    ("CDT", -5),
    ("MST", -7),
    ("MDT", -6),
    ("PST", -8),
    ("PDT", -7),
];

/// The offset of a military time zone: `A` to `M` without `J` lie east of UTC, `N` to `Y` west.
fn military(letter: char) -> Option<i8> {
    match letter.to_ascii_uppercase() {
        letter @ 'A'..='I' => Some(letter as i8 - 'A' as i8 + 1),
        letter @ 'K'..='M' => Some(letter as i8 - 'A' as i8),
        letter @ 'N'..='Y' => Some('M' as i8 - letter as i8),
        _ => None,
    }
}

/// Parses the time zone after a date: `Z`, an offset, `GMT+02:00`, or an abbreviation, but no name of a place.
fn zone_suffix(text: &str) -> Option<Zone> {
    let offset = text.strip_prefix("GMT").or_else(|| text.strip_prefix("UTC")).filter(|rest| !rest.is_empty());
    let name = offset.unwrap_or(text);
    if name.eq_ignore_ascii_case("z") {
        return Some(Zone::UTC);
    }
    let abbreviated = ABBREVIATIONS.iter().find(|(short, _)| name.eq_ignore_ascii_case(short)).map(|(_, hours)| *hours);
    let mut letters = name.chars();
    let hours = abbreviated.or_else(|| letters.next().filter(|_| letters.next().is_none()).and_then(military));
    match hours {
        Some(hours) => Some(Zone::of_minutes(i64::from(hours) * 60)),
        None => match name {
            "UTC" | "GMT" => Some(Zone::UTC),
            offset if offset.starts_with(['+', '-']) => Zone::parse(offset).ok().filter(Zone::is_near),
            _ => None,
        },
    }
}

/// The parts of a date that a format has read.
#[derive(Default)]
struct Read {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    iso_year: Option<i64>,
    iso_week: Option<i64>,
    iso_day: Option<i64>,
    hour: i64,
    minute: i64,
    second: i64,
    millisecond: i64,
    zone: Option<Zone>,
}

/// Parses a date by a format that [`format_of`] has checked; `zone` as for [`parse_date`].
fn parse_with(text: &str, format: &str, zone: &Zone) -> Result<i64> {
    let error = |why: &str| error!(Kind::ConversionFailure, "Error parsing date string '{text}'; {why}");
    let mut read = Read::default();
    let mut rest = text;
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            rest = rest.strip_prefix(character).ok_or_else(|| error("Format literal not found"))?;
            continue;
        }
        let Some(specifier) = characters.next() else { break };
        let before = rest;
        let mut number = |width: usize| {
            let digits = before.bytes().take(width).take_while(u8::is_ascii_digit).count();
            let value = before[..digits].parse::<i64>().map_err(|_| error("A number could not be found"))?;
            rest = &before[digits..];
            Ok::<_, Error>(value)
        };
        match specifier {
            'Y' => read.year = Some(number(4)?),
            'm' => read.month = Some(number(2)?),
            'd' => read.day = Some(number(2)?),
            'H' => read.hour = number(2)?,
            'M' => read.minute = number(2)?,
            'S' => read.second = number(2)?,
            // The digits are a fraction of a second: 5 is half a second.
            'L' => {
                let value = number(3)?;
                read.millisecond = value * [100, 10, 1][(before.len() - rest.len()).clamp(1, 3) - 1];
            }
            'j' => read.day_of_year = Some(number(3)?),
            'G' => read.iso_year = Some(number(4)?),
            'V' => read.iso_week = Some(number(2)?),
            'u' => read.iso_day = Some(number(1)?),
            'b' | 'B' => {
                let (name, behind) = rest.split_at(rest.bytes().take_while(u8::is_ascii_alphabetic).count());
                read.month = Some(month_of(name).ok_or_else(|| error("A month could not be found"))?);
                rest = behind;
            }
            'z' | 'Z' => {
                if *zone != Zone::UTC {
                    return Err(error(
                        "you cannot pass in a date/time string with GMT offset together with a timezone argument",
                    ));
                }
                let end = rest.find(|c: char| !(c.is_alphanumeric() || "+-:/_".contains(c))).unwrap_or(rest.len());
                let (name, behind) = rest.split_at(end);
                read.zone = Some(zone_of(name, specifier == 'Z').map_err(error)?);
                rest = behind;
            }
            percent => rest = rest.strip_prefix(percent).ok_or_else(|| error("Format literal not found"))?,
        }
    }
    if !rest.is_empty() {
        return Err(error("Trailing data"));
    }
    let day = read.date().ok_or_else(|| {
        error("an incomplete date/time string has been found, with elements missing, or a date that does not exist")
    })?;
    let time = read.time().ok_or_else(|| error("the time does not exist"))?;
    read.zone.as_ref().unwrap_or(zone).millis_at(DateTime::from_parts(day, time))
}

/// The zone of a name. With `may_be_minutes`, as for `%Z`, the name may be a number of minutes. The error says why there is no zone.
fn zone_of(name: &str, may_be_minutes: bool) -> std::result::Result<Zone, &'static str> {
    match name.parse::<i64>() {
        Ok(minutes) if may_be_minutes && name.starts_with(['+', '-']) => {
            Some(Zone::of_minutes(minutes)).filter(Zone::is_near).ok_or("the offset is out of range")
        }
        _ => zone_suffix(name).ok_or("the zone could not be found"),
    }
}

/// The number of a month, by its name or the first three letters of it.
fn month_of(name: &str) -> Option<i64> {
    let is_name = |form: &str| BrokenDownTime::parse(form, name).ok()?.month();
    is_name("%B").or_else(|| is_name("%b")).map(i64::from)
}

impl Read {
    fn time(&self) -> Option<Time> {
        let narrow = |value: i64| i8::try_from(value).unwrap_or(i8::MAX);
        let nanoseconds = i32::try_from(self.millisecond * 1_000_000).unwrap_or(i32::MAX);
        Time::new(narrow(self.hour), narrow(self.minute), narrow(self.second), nanoseconds).ok()
    }

    fn date(&self) -> Option<Date> {
        let small = |value: i64| i8::try_from(value).ok();
        if let Some(year) = self.iso_year {
            // Parts of calendar dates and of ISO weeks cannot be combined.
            if self.year.or(self.month).or(self.day).or(self.day_of_year).is_some() {
                return None;
            }
            let day = Weekday::from_monday_one_offset(small(self.iso_day.unwrap_or(1))?).ok()?;
            let first = ISOWeekDate::new(i16::try_from(year).ok()?, 1, day).ok()?.date();
            // A week beyond the last one lies in the next year.
            return first.checked_add(jiff::Span::new().weeks(self.iso_week.unwrap_or(1) - 1)).ok();
        }
        let year = i16::try_from(self.year?).ok()?;
        match self.day_of_year {
            Some(day) => Date::new(year, 1, 1).ok()?.with().day_of_year(i16::try_from(day).ok()?).build().ok(),
            None => Date::new(year, small(self.month?)?, small(self.day?)?).ok(),
        }
    }
}
