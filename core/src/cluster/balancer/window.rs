//! The balancer's window: the part of each day in which it may work, possibly across midnight.

/// A part of each day, in minutes since midnight: from `start` up to but not including `stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// the first minute inside
    pub start: u16,
    /// the first minute after
    pub stop: u16,
}

impl Window {
    /// True if that minute of the day lies inside. A window that stops when it starts is the whole day.
    pub const fn contains(self, minute: u16) -> bool {
        if self.start < self.stop {
            self.start <= minute && minute < self.stop
        } else {
            self.start <= minute || minute < self.stop
        }
    }
}

/// Parses a time such as `07:30` into the minute of the day.
pub fn time_of_day(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str, below: u16| {
        let good = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|n| good && *n < below)
    };
    Some(number(hours, 24)? * 60 + number(minutes, 60)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_may_reach_over_midnight() {
        let at = |text| time_of_day(text).unwrap();
        let window = |start, stop| Window { start: at(start), stop: at(stop) };
        for (start, stop, inside, outside) in [
            ("08:00", "17:30", ["08:00", "17:29"], ["07:59", "17:30"]),
            ("23:00", "06:00", ["23:00", "05:59"], ["06:00", "22:59"]),
            ("23:59", "00:01", ["23:59", "00:00"], ["00:01", "12:00"]),
        ] {
            for time in inside {
                assert!(window(start, stop).contains(at(time)), "{start} {stop} {time}");
            }
            for time in outside {
                assert!(!window(start, stop).contains(at(time)), "{start} {stop} {time}");
            }
        }
        assert!((0..1440).all(|minute| window("05:00", "05:00").contains(minute)));
    }

    #[test]
    fn times_have_two_digits_each() {
        for text in ["", "7:30", "07:3", "24:00", "12:60", "12", "12:00:00", "+1:00", "ab:cd", "12-00"] {
            assert_eq!(time_of_day(text), None, "{text}");
        }
        assert_eq!((time_of_day("00:00"), time_of_day("23:59")), (Some(0), Some(1439)));
    }
}
