//! Regular expressions in PCRE's syntax, whose searches cannot run away.
//!
//! * [`pattern`] translates a pattern into the engine's dialect and searches with it.
//! * [`engine`] bounds what a search may take, [`stepwise`] is the search that can be ended.

mod stepwise;

mod engine;
mod pattern;

pub(crate) use pattern::{Pattern, watched};
