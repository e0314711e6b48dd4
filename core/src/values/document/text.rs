//! Parses and formats the texts inside Extended JSON: hexadecimal ObjectIds, UUIDs, ISO 8601 dates.

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// Dates count from this instant, in UTC.
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// The length of a date with nanoseconds, without its zone. Further digits of the fraction are not parsed.
const MAX_LENGTH: usize = "1970-01-01T00:00:00.000000000".len();

/// Parses 24 hexadecimal digits.
pub(crate) fn parse_object_id(text: &str) -> Option<[u8; 12]> {
    let mut id = [0; 12];
    hex::decode_to_slice(text, &mut id).ok()?;
    Some(id)
}

/// Parses a UUID in its form of 8-4-4-4-12 hexadecimal digits.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    // Of the forms that the library takes, only this one has this length.
    Uuid::try_parse(text).ok().filter(|_| text.len() == Hyphenated::LENGTH).map(Uuid::into_bytes)
}

/// Parses a binary's subtype: one or two hexadecimal digits.
pub(super) fn parse_subtype(text: &str) -> Option<u8> {
    let is_hex = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// True if the text has no upper-case letter. Hexadecimal digits are stored in lower case.
pub(super) fn has_no_uppercase(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Milliseconds since 1970 of a date in ISO 8601, or as PostgreSQL writes dates and timestamps: `YYYY-MM-DD`, perhaps with `T` or a
/// blank and `HH:MM[:SS[.fff…]]`, and then perhaps with `Z`, `+HH:MM`, `+HHMM`, `+HH` or `+HH:MM:SS`. Without a zone it is in UTC,
/// whatever a session's settings are. Digits behind the milliseconds are truncated.
pub(crate) fn parse_date(text: &str) -> Option<i64> {
    // Fast path: most dates that clients send are in the stored form.
    if let Some(millis) = parse_stored_date(text) {
        return Some(millis);
    }
    let (date, time) = text.split_at_checked(10)?;
    let (clock, zone) = match time {
        "" => ("T00:00", "Z"),
        time => time.split_at(time.find(['Z', '+', '-']).unwrap_or(time.len())),
    };
    // The library also accepts other separators, hours alone, leap seconds and signed years.
    let has_accepted_form = date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
        && clock.bytes().enumerate().all(|(at, byte)| match at {
            0 => byte == b'T' || byte == b' ',
            3 | 6 => byte == b':',
            9 => byte == b'.',
            _ => byte.is_ascii_digit(),
        })
        && (clock.len() == 6 || clock.len() == 9 || clock.len() > 10)
        && clock.get(7..9) != Some("60");
    if !has_accepted_form {
        return None;
    }
    let local: DateTime = text.get(..text.len().min(date.len() + clock.len()).min(MAX_LENGTH))?.parse().ok()?;
    let since_epoch = local.duration_since(EPOCH) - SignedDuration::from_secs(offset_seconds(zone)?);
    // Truncating digits rounds towards the past, also before the epoch, where the duration is negative: hence `div_euclid`.
    Some(since_epoch.as_secs() * 1000 + i64::from(since_epoch.subsec_nanos().div_euclid(1_000_000)))
}

/// Parses `Z`, `+HH:MM`, `+HHMM`, `+HH`, or `+HH:MM:SS`, as PostgreSQL writes offsets of local mean time. An empty string means UTC.
fn offset_seconds(zone: &str) -> Option<i64> {
    let (sign, digits) = match zone.as_bytes() {
        b"Z" | b"" => return Some(0),
        [sign @ (b'+' | b'-'), h1, h2] => (sign, [*h1, *h2, b'0', b'0', b'0', b'0']),
        [sign @ (b'+' | b'-'), h1, h2, m1, m2] | [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            (sign, [*h1, *h2, *m1, *m2, b'0', b'0'])
        }
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2, b':', s1, s2] => (sign, [*h1, *h2, *m1, *m2, *s1, *s2]),
        _ => return None,
    };
    let [h1, h2, m1, m2, s1, s2] = digits.map(|digit| digit.is_ascii_digit().then(|| i64::from(digit - b'0')));
    let (hours, minutes, seconds) = (h1? * 10 + h2?, m1? * 10 + m2?, s1? * 10 + s2?);
    let offset = (hours * 60 + minutes) * 60 + seconds;
    (hours < 24 && minutes < 60 && seconds < 60).then_some(if *sign == b'-' { -offset } else { offset })
}

/// Formats a date from 1970 to 9999 as it is stored, with milliseconds unless they are zero; None outside these years.
pub(crate) fn format_date(millis: i64) -> Option<String> {
    let utc = EPOCH.checked_add(SignedDuration::from_millis(millis)).ok().filter(|_| millis >= 0)?;
    // By default the library omits trailing zeros of the fraction.
    Some(match millis % 1000 {
        0 => format!("{utc}Z"),
        _ => format!("{utc:.3}Z"),
    })
}

/// Like [`parse_date`], for exactly the texts that [`format_date`] writes. It runs whenever a stored date is read, so it takes the
/// digits from fixed positions; the library checks that the date exists.
pub(super) fn parse_stored_date(text: &str) -> Option<i64> {
    let (clock, rest) = text.as_bytes().split_at_checked("1970-01-01T00:00:00".len())?;
    let millis = match rest {
        [b'Z'] => 0,
        [b'.', digits @ .., b'Z'] if digits.len() == 3 => number(digits).filter(|millis| *millis > 0)?,
        _ => return None,
    };
    let [y @ .., b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', min1, min2, b':', s1, s2] = clock else { return None };
    let (year, month, day) = (number(y)?, number(&[*m1, *m2])?, number(&[*d1, *d2])?);
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*min1, *min2])?, number(&[*s1, *s2])?);
    let small = |number: i16| i8::try_from(number).ok();
    let [month, day, hour, minute, second] = [month, day, hour, minute, second].map(small);
    let local = DateTime::new(year, month?, day?, hour?, minute?, second?, 0).ok()?;
    let millis = local.duration_since(EPOCH).as_secs() * 1000 + i64::from(millis);
    (millis >= 0).then_some(millis)
}

/// Up to four decimal digits.
fn number(digits: &[u8]) -> Option<i16> {
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_in_every_accepted_form() {
        for text in [
            "2009-04-01T07:00:00.000Z",
            "2009-04-01T07:00:00Z",
            "2009-04-01T07:00Z",
            "2009-04-01T00:00:00.000-0700",
            "2009-04-01T00:00:00-07:00",
            "2009-04-01T00:00:00-07",
            "2009-04-01T09:00:00.0000000+0200",
            "2009-04-01T07:00:00",
            "2009-04-01T07:00",
            "2009-04-01 07:00:00",
            "2009-04-01 07:00:00.000000",
            "2009-04-01 09:00:00+02",
            "2009-04-01 12:30:00+05:30",
            "2009-04-01T07:00:00.000000+00:00",
            "2009-04-01 07:53:28+00:53:28",
            "2009-04-01 06:06:32-00:53:28",
        ] {
            assert_eq!(parse_date(text), Some(1_238_569_200_000), "{text}");
        }
        for (text, expected) in [
            ("1970-01-01", 0),
            ("2026-07-01", 1_782_864_000_000),
            ("0001-01-01", -62_135_596_800_000),
            ("1969-12-31 23:59:59.9999", -1),
            ("9999-12-31 23:59:59.999999-15:59", 253_402_358_339_999),
        ] {
            assert_eq!(parse_date(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "2009",
            "2009-02-29T00:00:00Z",
            "2009-04-01T24:00:00Z",
            "2009-04-01T00:00:00.Z",
            "2009-04-01T00:00:00+02:",
            "2009-04-01T00:00:00+02:00:60",
            "2009-04-01T00:00:00+020000",
            "2009-04-01 ",
            "2009-04-01Z",
            "2009-04-01 00",
            "2009-04-01  00:00:00",
            "2009-04-01 00:00:00 +02",
            "2009-04-01 00:00:00 UTC",
            "2009-04-01 00:00:00 BC",
            "04/01/2009",
            "01.04.2009",
            "infinity",
            "-infinity",
            "12009-04-01",
            "now",
            "2009-04-01T00:00:00+2",
            "2009-04-01T00:00:60Z",
            "2009-04-01T00:00:00,5Z",
            "2009-04-01T00:00:00z",
            "2009-04-01t00:00:00Z",
            "2009-04-01T00:00:00Z[UTC]",
            "2009-04-01T00:00:00[UTC]",
            "+02009-04-01T00:00:00Z",
            "2009-W14-3T00:00:00Z",
            "20090401T000000Z",
            "2009-04-01T00Z",
            "2009-04-01T00:00:00-00:60",
            "2009-04-31",
            "é009-04-01T00:00:00Z",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
    }

    #[test]
    fn stored_dates_read_back() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.001Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(format_date(millis).as_deref(), Some(text));
            assert_eq!(parse_stored_date(text), Some(millis));
        }
        assert_eq!(format_date(-1), None);
        assert_eq!(format_date(253_402_300_800_000), None);
        for text in [
            "1970-01-01T00:00:00.000Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00+00:00",
            "2009-02-29T00:00:00Z",
            "2009-04-31T00:00:00Z",
            "2009-13-01T00:00:00Z",
            "2009-04-01T24:00:00Z",
            "2009-04-01T00:60:00Z",
            "2009-04-01T00:00:60Z",
            "2009-04-01T00:00:00.12Z",
            "2009-04-01T00:00:00.+12Z",
            "2009-04-01T00:00:00,120Z",
            "2009-04-01T00:00:0éZ",
            "+009-04-01T00:00:00Z",
            "2009-04-01 00:00:00Z",
            "2009-04-01T00:00:00",
            "2009-04-01T00:00:00Z ",
            "",
        ] {
            assert_eq!(parse_stored_date(text), None, "{text}");
        }
        for millis in (0..=253_402_300_799_999).step_by(7_777_777_777) {
            let text = format_date(millis).expect("in range");
            assert_eq!(parse_stored_date(&text), Some(millis), "{text}");
        }
    }

    #[test]
    fn hexadecimal() {
        assert_eq!(parse_subtype("0"), Some(0));
        assert_eq!(parse_subtype("fF"), Some(255));
        assert_eq!(parse_subtype("fff"), None);
        assert!(parse_uuid("00112233-4455-6677-8899-aabbccddeeff").is_some());
        assert!(parse_uuid("00112233-44556-677-8899-aabbccddeeff").is_none());
        assert!(parse_object_id("5f").is_none());
    }
}
