//! The textual forms inside Extended JSON: hexadecimal ObjectIds, UUIDs, ISO 8601 dates.

const MILLIS_PER_DAY: i64 = 86_400_000;

/// Twenty-four hexadecimal digits.
pub(crate) fn parse_object_id(text: &str) -> Option<[u8; 12]> {
    let mut id = [0; 12];
    parse_hex(text.as_bytes(), &mut id).then_some(id)
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 0xF)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// A UUID in its form of 8-4-4-4-12 hexadecimal digits.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 || [8, 13, 18, 23].iter().any(|&at| bytes.get(at) != Some(&b'-')) {
        return None;
    }
    let digits: Vec<u8> = bytes.iter().copied().filter(|&byte| byte != b'-').collect();
    let mut uuid = [0; 16];
    parse_hex(&digits, &mut uuid).then_some(uuid)
}

/// One or two hexadecimal digits: a binary's subtype.
pub(super) fn parse_subtype(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [low] => nibble(*low),
        [high, low] => Some(nibble(*high)? << 4 | nibble(*low)?),
        _ => None,
    }
}

/// True if there is no upper-case hexadecimal digit: the form that is stored.
pub(super) fn is_lower_hex(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn parse_hex(digits: &[u8], out: &mut [u8]) -> bool {
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() || pairs.len() != out.len() {
        return false;
    }
    for (byte, [high, low]) in out.iter_mut().zip(pairs) {
        let (Some(high), Some(low)) = (nibble(*high), nibble(*low)) else { return false };
        *byte = high << 4 | low;
    }
    true
}

/// Milliseconds since 1970 of `YYYY-MM-DDTHH:MM[:SS[.fff…]]` with `Z`, `+HH:MM`, `+HHMM` or `+HH`. Digits behind the
/// milliseconds are cut.
pub(super) fn parse_date(text: &str) -> Option<i64> {
    let mut rest = text.as_bytes();
    let year = take_number(&mut rest, 4)?;
    take(&mut rest, b'-')?;
    let month = take_number(&mut rest, 2).filter(|month| (1..=12).contains(month))?;
    take(&mut rest, b'-')?;
    let day = take_number(&mut rest, 2).filter(|day| (1..=days_in_month(year, month)).contains(day))?;
    take(&mut rest, b'T')?;
    let hour = take_number(&mut rest, 2).filter(|hour| *hour < 24)?;
    take(&mut rest, b':')?;
    let minute = take_number(&mut rest, 2).filter(|minute| *minute < 60)?;
    let (mut second, mut millis) = (0, 0);
    if take(&mut rest, b':').is_some() {
        second = take_number(&mut rest, 2).filter(|second| *second < 60)?;
        if take(&mut rest, b'.').is_some() {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (fraction, behind) = rest.split_at_checked(digits).filter(|_| digits > 0)?;
            let digit = |index: usize| i64::from(fraction.get(index).map_or(0, |byte| byte - b'0'));
            millis = digit(0) * 100 + digit(1) * 10 + digit(2);
            rest = behind;
        }
    }
    let offset_minutes = match rest {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), zone @ ..] => {
            let mut zone = zone;
            let hours = take_number(&mut zone, 2).filter(|hours| *hours < 24)?;
            let colon = take(&mut zone, b':').is_some();
            let minutes = if zone.is_empty() && !colon { 0 } else { take_number(&mut zone, 2)? };
            if !zone.is_empty() || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let minutes = hour * 60 + minute - offset_minutes;
    Some(days_from_civil(year, month, day) * MILLIS_PER_DAY + minutes * 60_000 + second * 1000 + millis)
}

/// A date from 1970 to 9999 as it is stored, with milliseconds only if there are any; None outside these years.
pub(crate) fn format_date(millis: i64) -> Option<String> {
    let (days, time) = (millis.div_euclid(MILLIS_PER_DAY), millis.rem_euclid(MILLIS_PER_DAY));
    if millis < 0 || millis >= days_from_civil(10_000, 1, 1) * MILLIS_PER_DAY {
        return None;
    }
    let (year, month, day) = civil_from_days(days);
    let (seconds, millis) = (time / 1000, time % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"))
}

/// As [`parse_date`], of exactly the texts that [`format_date`] writes.
pub(super) fn parse_stored_date(text: &str) -> Option<i64> {
    let in_form = match text.len() {
        20 => true,
        24 => text.as_bytes().get(19) == Some(&b'.') && !text.ends_with(".000Z"),
        _ => false,
    };
    if !in_form || !text.ends_with('Z') {
        return None;
    }
    parse_date(text).filter(|millis| *millis >= 0)
}

fn take(rest: &mut &[u8], byte: u8) -> Option<()> {
    *rest = rest.strip_prefix(&[byte])?;
    Some(())
}

fn take_number(rest: &mut &[u8], width: usize) -> Option<i64> {
    let (digits, behind) = rest.split_at_checked(width)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    *rest = behind;
    Some(digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar, counted in years that start in March.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
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
        ] {
            assert_eq!(parse_date(text), Some(1_238_569_200_000), "{text}");
        }
        for text in [
            "",
            "2009",
            "2009-02-29T00:00:00Z",
            "2009-04-01T24:00:00Z",
            "2009-04-01T00:00:00",
            "2009-04-01 00:00:00Z",
            "2009-04-01T00:00:00.Z",
            "2009-04-01T00:00:00+02:",
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
        for text in ["1970-01-01T00:00:00.000Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00+00:00"] {
            assert_eq!(parse_stored_date(text), None, "{text}");
        }
        for day in (0..3_000_000).step_by(97) {
            let (year, month, date) = civil_from_days(day);
            assert_eq!(days_from_civil(year, month, date), day);
        }
    }

    #[test]
    fn hexadecimal() {
        assert_eq!(hex(&[0, 0x7f, 0xff]), "007fff");
        assert_eq!(parse_subtype("0"), Some(0));
        assert_eq!(parse_subtype("fF"), Some(255));
        assert_eq!(parse_subtype("fff"), None);
        assert!(parse_uuid("00112233-4455-6677-8899-aabbccddeeff").is_some());
        assert!(parse_uuid("00112233-44556-677-8899-aabbccddeeff").is_none());
        assert!(parse_object_id("5f").is_none());
    }
}
