//! Regular expressions in PCRE's syntax, with searches of bounded time and memory.
//!
//! * [`pattern`] is a pattern, and searches with it; [`dialect`] translates it into the engine's dialect, with [`escapes`] and
//!   [`characters`].
//! * [`engine`] bounds a search's time and memory; [`stepwise`] is a search that can be interrupted.

mod stepwise;

mod characters;

mod dialect;

mod escapes;

mod engine;

mod pattern;

pub(crate) use pattern::{Pattern, watched};
