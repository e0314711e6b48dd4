//! Regular expressions in PCRE's syntax, with searches of bounded time and memory.
//!
//! * [`pattern`] translates a pattern into the engine's dialect, and searches with it.
//! * [`engine`] bounds a search's time and memory; [`stepwise`] is a search that can be interrupted.

mod stepwise;

mod engine;
mod pattern;

pub(crate) use pattern::{Pattern, watched};
