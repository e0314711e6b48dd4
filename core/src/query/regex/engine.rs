//! The engine of regular expressions, asked in a way that a search can be ended, or is over within about a second.
//!
//! Nobody can stop the engine itself, so what it does at once is bounded by its work: the bytes that it looks at, times the
//! pattern's states that it may have to compare each with. Where that could be much:
//! - a pattern without lookaround, backreferences and possessive quantifiers is searched for by [`Stepwise`], and the engine
//!   only has to find the groups in what was found;
//! - any other is searched for by the engine step by step, and it looks at the text through [`Watched`] in each step. It steps
//!   back up to [`BACKTRACK_LIMIT`] times. Between two looks one part of the pattern may be compared with the whole text: so
//!   the larger a pattern's parts, the shorter a text has to be.
//!
//! What cannot be done in these ways is given up.
//!
//! What searches have learned of a pattern is kept with it, up to some megabytes. All patterns together may keep as much as an
//! evaluation may take.

use super::stepwise::{MAX_COMPILED_BYTES, Options, Stepwise};
use crate::budget;
use fancy_regex::{Input, Regex, RegexBuilder, RegexInput};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How often a search may step back.
const BACKTRACK_LIMIT: usize = 500_000;

/// The most instructions of a pattern, without its parts.
const MAX_INSTRUCTIONS: usize = 1 << 16;

/// With more groups than these a pattern's parts must be smaller: each state has room for all of them.
const MANY_GROUPS: usize = 32;

/// What a compiled pattern takes for each of its states, at least.
const BYTES_A_STATE: usize = 24;

/// A text of so few bytes is searched by the engine, whatever the pattern.
const SHORT_BYTES: usize = 4096;

/// So much work the engine may do at once, if there is another way.
const MUCH: usize = 1 << 27;

/// So much work the engine may do at once: it takes about a second.
const MOST: usize = 1 << 28;

/// The longest text that is searched for a pattern that [`Stepwise`] does not know.
const LONGEST: usize = 16 << 20;

/// Each time the engine reads the text, this many bytes count as one step.
const BYTES_A_STEP: usize = 8;

/// A search that stepped back too often, or would have taken too long.
#[derive(Debug)]
pub(super) struct GivenUp;

/// Where a group is; None if it takes no part.
pub(super) type Group = Option<(usize, usize)>;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Engine {
    /// in the engine's dialect
    pattern: String,
    options: Options,
    regex: Regex,
    /// without the match itself
    groups: usize,
    /// made for the first long text; None for what only the engine can search for
    stepwise: OnceLock<Option<Stepwise>>,
    /// likewise, of a text that the engine may search for such a pattern
    longest: OnceLock<usize>,
    /// in bytes, beyond what it took at first
    kept: AtomicUsize,
}

/// What all patterns keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

impl Drop for Engine {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.kept.load(Relaxed), Relaxed);
    }
}

/// Notes when it is dropped what a pattern keeps more than before.
struct Keeping<'e>(&'e Engine, usize);

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        let more = budget::held().saturating_sub(self.1);
        if more > 0 {
            self.0.kept.fetch_add(more, Relaxed);
            KEPT.fetch_add(more, Relaxed);
        }
    }
}

fn compiled(pattern: &str, options: Options, part_bytes: usize) -> fancy_regex::Result<Regex> {
    RegexBuilder::new(pattern)
        .case_insensitive(options.case_insensitive)
        .multi_line(options.multi_line)
        .dot_matches_new_line(options.dot_matches_new_line)
        .ignore_whitespace(options.ignore_whitespace)
        .backtrack_limit(BACKTRACK_LIMIT)
        .max_prog_size(MAX_INSTRUCTIONS)
        .delegate_size_limit(part_bytes)
        .build()
}

impl Engine {
    /// Compiles a pattern in the engine's dialect.
    pub(super) fn new(pattern: String, options: Options) -> fancy_regex::Result<Engine> {
        // What opens a group, and a few more.
        let groups = pattern.matches('(').count();
        let part_bytes = MAX_COMPILED_BYTES.min(MAX_COMPILED_BYTES * MANY_GROUPS / (1 + groups));
        let regex = compiled(&pattern, options, part_bytes)?;
        // Nobody can end this either, but it takes milliseconds.
        budget::steps(budget::INTERVAL);
        let groups = regex.captures_len() - 1;
        Ok(Engine {
            pattern,
            options,
            regex,
            groups,
            stepwise: OnceLock::new(),
            longest: OnceLock::new(),
            kept: AtomicUsize::new(0),
        })
    }

    /// The pattern, and how it is read.
    #[cfg(test)]
    pub(super) fn reading(&self) -> (&str, Options) {
        (&self.pattern, self.options)
    }

    /// True if the pattern is found in the text.
    pub(super) fn is_found_in(&self, text: &str) -> Result<bool, GivenUp> {
        self.keeping(|| self.has_match(text))
    }

    /// Runs a search, and sees to it that not too much is kept.
    fn keeping<T>(&self, search: impl FnOnce() -> T) -> T {
        let keeping = Keeping(self, budget::held());
        let found = search();
        let before = KEPT.load(Relaxed);
        drop(keeping);
        let kept = KEPT.load(Relaxed);
        if kept > before {
            budget::check_kept(kept);
        }
        found
    }

    fn has_match(&self, text: &str) -> Result<bool, GivenUp> {
        if text.len() > SHORT_BYTES {
            match self.stepwise() {
                Some(stepwise) if stepwise.work(text.len()) > MUCH => {
                    if let Some(found) = stepwise.is_found_in(text) {
                        return Ok(found);
                    }
                    self.permit(stepwise.work(text.len()))?;
                }
                Some(_) => {}
                None => self.permit_length(text.len())?,
            }
        }
        self.regex.is_match(&Watched(text)).map_err(|_| GivenUp)
    }

    /// Where the pattern and its groups are found first, from a position on: starts and ends in bytes, the whole match first.
    pub(super) fn captures_in(&self, text: &str, from: usize) -> Result<Option<Vec<Group>>, GivenUp> {
        let mut groups = Vec::with_capacity(1 + self.groups);
        let found = self.keeping(|| self.find_groups(text, from, &mut groups))?;
        Ok(found.then_some(groups))
    }

    /// True if there is a match; its groups are added.
    fn find_groups(&self, text: &str, from: usize, groups: &mut Vec<Group>) -> Result<bool, GivenUp> {
        let watched = Watched(text);
        let mut input = RegexInput::new(&watched).from_pos(from);
        // A state is copied with its groups.
        let weight = 1 + self.groups / 2;
        let length = (text.len() - from).saturating_mul(weight);
        if length > SHORT_BYTES {
            match self.stepwise() {
                Some(stepwise) if stepwise.work(length) > MUCH => match stepwise.span(text, from) {
                    Some(None) => return Ok(false),
                    Some(Some(span)) if self.groups == 0 => {
                        groups.push(Some(span));
                        return Ok(true);
                    }
                    Some(Some((start, end))) => {
                        self.permit(stepwise.work((end - start).saturating_mul(weight)))?;
                        input = input.from_pos(start).range(start..end).anchored(true);
                    }
                    None => self.permit(stepwise.work(length))?,
                },
                Some(_) => {}
                None => self.permit_length(text.len().saturating_mul(weight))?,
            }
        }
        let captures = self.regex.captures_input(input).map_err(|_| GivenUp)?;
        groups.extend(captures.iter().flat_map(|captures| captures.iter()));
        Ok(captures.is_some())
    }

    fn stepwise(&self) -> Option<&Stepwise> {
        self.stepwise.get_or_init(|| Stepwise::new(&self.pattern, self.options)).as_ref()
    }

    fn permit(&self, work: usize) -> Result<(), GivenUp> {
        if work > MOST { Err(GivenUp) } else { Ok(()) }
    }

    /// Refuses a text that is too long for this pattern: the engine may match one part of the pattern against the whole text in a
    /// single call, which cannot be interrupted.
    fn permit_length(&self, length: usize) -> Result<(), GivenUp> {
        // A pattern that compiles within this size limit has no part with more states than it allows.
        let is_small = |length: &usize| compiled(&self.pattern, self.options, MOST / length * BYTES_A_STATE).is_ok();
        let longest = self.longest.get_or_init(|| {
            let lengths = std::iter::successors(Some(LONGEST), |length| Some(length / 4));
            lengths.take_while(|length| *length > SHORT_BYTES).find(is_small).unwrap_or(SHORT_BYTES)
        });
        if length > *longest { Err(GivenUp) } else { Ok(()) }
    }
}

/// A text that counts steps each time the engine reads from it.
struct Watched<'t>(&'t str);

impl Input for Watched<'_> {
    type Match<'t>
        = (usize, usize)
    where
        Self: 't;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn as_bytes(&self) -> &[u8] {
        budget::steps(1 + self.0.len() / BYTES_A_STEP);
        self.0.as_bytes()
    }

    fn is_char_boundary(&self, at: usize) -> bool {
        self.0.is_char_boundary(at)
    }

    fn is_ascii(&self) -> bool {
        self.0.is_ascii()
    }

    fn prev_codepoint_ix(&self, at: usize) -> usize {
        self.0[..at].char_indices().next_back().map_or(0, |(start, _)| start)
    }

    fn make_match(&self, start: usize, end: usize) -> (usize, usize) {
        (start, end)
    }

    fn advance_position(&self, at: usize) -> usize {
        at + self.0[at..].chars().next().map_or(1, char::len_utf8)
    }
}
