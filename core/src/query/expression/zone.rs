//! Time zones: local dates and times of instants, and back.
//!
//! The instants of the library `jiff` leave out about a day at each end of its calendar, and its offsets are limited to 26
//! hours. The rules of a zone repeat with the calendar, so an instant beyond the library's is looked up [`CYCLE_YEARS`] nearer
//! to year 0. Fixed offsets are added without the library, so they are not limited.

use crate::error::{Error, Kind, Result, error};
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Years after which the calendar repeats, with its days of the week.
const CYCLE_YEARS: i16 = 400;
/// The length of [`CYCLE_YEARS`].
const CYCLE_MILLIS: i64 = 146_097 * 86_400_000;
/// The last year of the calendar, and negated the first: some of their dates are beyond the library's instants.
const LAST_YEAR: u16 = 9999;

/// The text of a date must not name an offset from UTC of this size or larger.
const FAR_MILLIS: i64 = 26 * 3_600_000;

const EPOCH: DateTime = Date::constant(1970, 1, 1).at(0, 0, 0, 0);

/// A time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Zone {
    Named(TimeZone),
    /// the distance from UTC, in milliseconds
    Fixed(i64),
}

impl Zone {
    pub const UTC: Zone = Zone::Named(TimeZone::UTC);

    /// A zone at a fixed distance from UTC.
    pub fn of_minutes(minutes: i64) -> Zone {
        Zone::Fixed(minutes.saturating_mul(60_000))
    }

    /// Parses a name such as `Europe/Berlin`, or an offset such as `+02:00`, `+0200`, `+02`, up to `+99:99`.
    pub fn parse(name: &str) -> Result<Zone> {
        if name == "UTC" {
            return Ok(Zone::UTC);
        }
        let unknown = || error!(40485, "unrecognized time zone identifier: \"{name}\"");
        if name.starts_with(['+', '-']) {
            return offset(name.as_bytes()).map(Zone::of_minutes).ok_or_else(unknown);
        }
        // Names are case-sensitive, though the library finds them in any case.
        let zone = TimeZone::get(name).ok().filter(|zone| zone.iana_name() == Some(name));
        zone.map(Zone::Named).ok_or_else(unknown)
    }

    /// True if the text of a date may name the zone: its offset from UTC is less than 26 hours.
    pub fn is_near(&self) -> bool {
        !matches!(self, Zone::Fixed(offset) if offset.abs() >= FAR_MILLIS)
    }

    /// The local date and time at an instant.
    pub fn local(&self, millis: i64) -> Result<DateTime> {
        if let (Zone::Named(zone), Ok(instant)) = (self, Timestamp::from_millisecond(millis)) {
            return Ok(zone.to_datetime(instant));
        }
        civil(millis.checked_add(self.offset_millis(millis)?).ok_or_else(out_of_range)?)
    }

    /// The instant of a local date and time. A time that the clock skips is shifted by the skipped length; of a time that occurs
    /// twice, the first instant is returned.
    pub fn millis_at(&self, local: DateTime) -> Result<i64> {
        let zone = match self {
            Zone::Named(zone) => zone,
            Zone::Fixed(offset) => return millis_of(local).checked_sub(*offset).ok_or_else(out_of_range),
        };
        let instant = |local: DateTime| zone.to_timestamp(local).map(Timestamp::as_millisecond);
        if local.year().unsigned_abs() < LAST_YEAR {
            return instant(local).map_err(|_| out_of_range());
        }
        let sign = local.year().signum();
        let nearer = local.with().year(local.year() - sign * CYCLE_YEARS).build().and_then(instant);
        nearer.map(|millis| millis + i64::from(sign) * CYCLE_MILLIS).map_err(|_| out_of_range())
    }

    /// The distance from UTC at an instant.
    pub fn offset_millis(&self, millis: i64) -> Result<i64> {
        let zone = match self {
            Zone::Named(zone) => zone,
            Zone::Fixed(offset) => return Ok(*offset),
        };
        let nearer = || Timestamp::from_millisecond(millis - millis.signum() * CYCLE_MILLIS);
        let instant = Timestamp::from_millisecond(millis).or_else(|_| nearer()).map_err(|_| out_of_range())?;
        Ok(i64::from(zone.to_offset(instant).seconds()) * 1000)
    }
}

/// The minutes of an offset such as `+02:00`.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match text {
        [sign, hours @ ..] if hours.len() == 2 => (sign, hours, &b"00"[..]),
        [sign, h1, h2, b':', minutes @ ..] if minutes.len() == 2 => (sign, &[*h1, *h2][..], minutes),
        [sign, digits @ ..] if digits.len() == 4 => (sign, &digits[..2], &digits[2..]),
        _ => return None,
    };
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
    };
    let minutes = number(hours)? * 60 + number(minutes)?;
    Some(if *sign == b'-' { -minutes } else { minutes })
}

/// The date and time in UTC; only years from -9999 to 9999 have calendar dates.
pub(super) fn civil(millis: i64) -> Result<DateTime> {
    EPOCH.checked_add(SignedDuration::from_millis(millis)).map_err(|_| out_of_range())
}

fn millis_of(local: DateTime) -> i64 {
    i64::try_from(local.duration_since(EPOCH).as_millis()).unwrap_or_default()
}

pub(super) fn out_of_range() -> Error {
    error!(Kind::Overflow, "the date is out of range")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last and first moments of the calendar lie about a day beyond the library's instants.
    #[test]
    fn the_calendar_ends_with_its_last_year() {
        let last = Date::constant(9999, 12, 31).at(23, 59, 59, 999_000_000);
        let first = Date::constant(-9999, 1, 1).at(0, 0, 0, 0);
        assert_eq!(Zone::UTC.millis_at(last).unwrap(), 253_402_300_799_999);
        assert!(civil(253_402_300_800_000).is_err());
        for zone in ["UTC", "Europe/Berlin", "America/New_York", "Australia/Sydney", "-00:00", "+00"] {
            let zone = Zone::parse(zone).unwrap();
            for day in 0..400 {
                for moment in [last - jiff::Span::new().days(day), first + jiff::Span::new().days(day)] {
                    let millis = zone.millis_at(moment).unwrap();
                    assert_eq!(zone.local(millis).unwrap(), moment, "{zone:?} {millis}");
                }
            }
        }
        assert!(Zone::parse("Asia/Tokyo").unwrap().local(253_402_300_799_999).is_err());
    }

    #[test]
    fn offsets_have_two_digits_of_hours_and_minutes() {
        for (text, minutes) in [("+99:99", 6039), ("-9999", -6039), ("+02", 120), ("-00:01", -1), ("+0130", 90)] {
            assert_eq!(Zone::parse(text).unwrap(), Zone::of_minutes(minutes), "{text}");
        }
        for text in
            ["+", "+1", "+1:00", "+123", "+12:3", "+12:345", "+12345", "+1a", "+１２", "+:1:00", "++1", "+-1:00", ""]
        {
            assert_eq!(Zone::parse(text).unwrap_err().kind, Kind::Location(40485), "{text}");
        }
        let noon = Date::constant(2020, 1, 1).at(12, 0, 0, 0);
        let zone = Zone::parse("+99:99").unwrap();
        assert_eq!(civil(zone.millis_at(noon).unwrap()).unwrap().to_string(), "2019-12-28T07:21:00");
    }
}
