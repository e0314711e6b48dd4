//! Lines of the log that clients can cause: of each kind at most ten a second are written, and then the number of omitted ones.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use tokio::time::{Duration, Instant};

const MOST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Log {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

/// Clients that break a rule.
pub static CLIENTS: Log = Log::new();

/// Logins that are refused. They have a limit of their own, so that clients cannot hide them by other lines.
pub static LOGINS: Log = Log::new();

/// Connections that cannot be accepted.
pub static ACCEPTS: Log = Log::new();

/// Whether a line is written, and the number of omitted lines to be reported before it.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    No,
    Yes { left_out: u64 },
}

impl Log {
    const fn new() -> Self {
        Self { state: Mutex::new(State { since: None, written: 0, left_out: 0 }) }
    }

    pub fn line(&self, line: impl Display) {
        if let Line::Yes { left_out } = self.admit(Instant::now()) {
            told(left_out);
            eprintln!("docshard-gateway: {}", printable(&line.to_string()));
        }
    }

    /// Writes how many lines were left out, if no other line has done so.
    pub fn flush(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        told(std::mem::take(&mut state.left_out));
    }

    fn admit(&self, now: Instant) -> Line {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (state.since, state.written) = (Some(now), 0);
        }
        if state.written == MOST {
            state.left_out += 1;
            return Line::No;
        }
        state.written += 1;
        Line::Yes { left_out: std::mem::take(&mut state.left_out) }
    }
}

/// The length of the longest line, in bytes.
const MAX_LINE: usize = 1_000;

/// The text as one line, with control characters escaped: text of a client, such as a name, cannot forge a line or control a terminal.
fn printable(text: &str) -> String {
    let mut line = String::new();
    for character in text.chars() {
        if line.len() >= MAX_LINE {
            line.push('…');
            break;
        }
        match character {
            '"' | '\'' | '\\' => line.push(character),
            _ => line.extend(character.escape_debug()),
        }
    }
    line
}

fn told(left_out: u64) {
    if left_out > 0 {
        eprintln!("docshard-gateway: {left_out} more such lines were left out");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(printable("login of \"märz\\\": 'x'"), "login of \"märz\\\": 'x'");
        assert_eq!(
            printable("x\ndocshard-gateway: forged\r\x1b[2J\u{2028}"),
            "x\\ndocshard-gateway: forged\\r\\u{1b}[2J\\u{2028}"
        );
        assert_eq!(printable(&"x".repeat(5_000)).chars().count(), MAX_LINE + 1);
    }

    #[test]
    fn ten_a_second_are_written() {
        let (log, began) = (Log::new(), Instant::now());
        for number in 0..1000u64 {
            let admitted = log.admit(began + Duration::from_micros(number));
            assert_eq!(admitted, if number < 10 { Line::Yes { left_out: 0 } } else { Line::No });
        }
        assert_eq!(log.admit(began + WINDOW), Line::Yes { left_out: 990 });
        assert_eq!(log.admit(began + WINDOW), Line::Yes { left_out: 0 });
    }
}
