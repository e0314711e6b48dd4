//! Runs the regular expression engine such that a search can be interrupted, or ends within about a second.
//!
//! A call of the engine cannot be interrupted, so its work is bounded: the number of bytes times the number of the pattern's states.
//! If the work could be large:
//! - [`Stepwise`] searches for a pattern without lookaround, backreferences and possessive quantifiers; the engine only finds the
//!   groups within the match;
//! - the engine searches for other patterns by backtracking, up to [`BACKTRACK_LIMIT`] times, and reads the text through
//!   [`Watched`], which counts steps. The engine divides such a pattern into parts that it can match without
//!   backtracking. It reads the text through [`Watched`] between two parts only, and may compare one part with the whole text in
//!   between. So the larger a pattern's parts are, the shorter the text must be.
//!
//! All other searches are given up.
//!
//! Every pattern keeps caches of some megabytes for later searches. All caches together may take as much memory as one
//! evaluation.

use super::dialect::Translated;
use super::stepwise::{MAX_COMPILED_BYTES, Stepwise};
use crate::budget;
use fancy_regex::{CompileError, Input, Regex, RegexBuilder, RegexInput};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Largest number of backtracking steps of a search.
const BACKTRACK_LIMIT: usize = 500_000;

/// Largest number of instructions of a pattern, without its parts.
const MAX_INSTRUCTIONS: usize = 1 << 16;

/// Largest compiled size of a pattern without lookaround, backreferences and possessive quantifiers, in bytes. Above
/// [`MAX_COMPILED_BYTES`] [`Stepwise`] searches first, also in short texts.
const MAX_LARGE_BYTES: usize = 16 << 20;

/// Number of groups above which a pattern's parts must be smaller: each state stores all groups.
const MANY_GROUPS: usize = 32;

/// Least size of a state of a compiled pattern, in bytes.
const BYTES_A_STATE: usize = 24;

/// Largest text that the engine searches for any pattern, in bytes.
const SHORT_BYTES: usize = 4096;

/// Work above which [`Stepwise`] is preferred to the engine.
const PREFERRED_WORK: usize = 1 << 27;

/// Most work of a single call of the engine, which takes about a second.
const MAX_WORK: usize = 1 << 28;

/// Largest text that is searched for a pattern that [`Stepwise`] does not support, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// The number of bytes that count as a step, each time the engine reads the text.
const BYTES_A_STEP: usize = 8;

/// The error for a search that backtracked too often, or would have taken too long.
#[derive(Debug)]
pub(super) struct GivenUp;

/// The position of a group; None if it did not match.
pub(super) type Group = Option<(usize, usize)>;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Engine {
    /// in the engine's dialect
    pattern: String,
    regex: Regex,
    /// the numbers of the groups that match a final newline
    ends: Vec<usize>,
    /// the number of groups, without the match itself
    groups: usize,
    /// compiled for the first long text; None for a pattern that only the engine supports
    stepwise: OnceLock<Option<Stepwise>>,
    /// for a pattern that only the engine supports, the largest text that is searched, in bytes
    longest: OnceLock<usize>,
    /// the pattern is so large that `stepwise` searches first, also in short texts; without `stepwise`, searches are given up
    is_large: bool,
    /// size of the pattern's caches, in bytes
    kept: AtomicUsize,
}

/// Total size of all patterns' caches, in bytes.
static KEPT: AtomicUsize = AtomicUsize::new(0);

impl Drop for Engine {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.kept.load(Relaxed), Relaxed);
    }
}

/// When dropped, adds the memory allocated since its creation to a pattern's caches.
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

fn compiled(pattern: &str, part_bytes: usize) -> fancy_regex::Result<Regex> {
    RegexBuilder::new(pattern)
        .backtrack_limit(BACKTRACK_LIMIT)
        .max_prog_size(MAX_INSTRUCTIONS)
        .delegate_size_limit(part_bytes)
        .build()
}

fn is_too_large(error: &fancy_regex::Error) -> bool {
    match error {
        fancy_regex::Error::CompileError(error) => match &**error {
            CompileError::InnerError(error) => error.size_limit().is_some(),
            CompileError::PatternTooComplex => true,
            _ => false,
        },
        _ => false,
    }
}

impl Engine {
    /// Compiles a pattern in the engine's dialect.
    pub(super) fn new(translated: Translated) -> Result<Engine, String> {
        let Translated { pattern, ends, is_hard, .. } = translated;
        // An upper bound of the number of groups, and of the parts between which the engine backtracks.
        let parts = pattern.bytes().filter(|byte| b"(".contains(byte) || is_hard && b"\\+^$".contains(byte)).count();
        let most = MAX_COMPILED_BYTES * MANY_GROUPS / (1 + parts);
        let mut limit = most.min(MAX_COMPILED_BYTES);
        let mut regex = compiled(&pattern, limit);
        if !is_hard && most > limit && regex.as_ref().is_err_and(is_too_large) {
            limit = most.min(MAX_LARGE_BYTES);
            regex = compiled(&pattern, limit);
        }
        // Compiling cannot be interrupted, but takes only milliseconds: the check for an interrupt follows.
        budget::steps(budget::INTERVAL);
        let regex = regex.map_err(|error| match error {
            error if is_too_large(&error) => "regular expression is too large".to_owned(),
            error => error.to_string(),
        })?;
        let groups = regex.captures_len() - 1;
        Ok(Engine {
            pattern,
            regex,
            ends,
            groups,
            stepwise: OnceLock::new(),
            longest: OnceLock::new(),
            is_large: limit > MAX_COMPILED_BYTES,
            kept: AtomicUsize::new(0),
        })
    }

    /// The pattern, and true if groups of it match a final newline.
    #[cfg(test)]
    pub(super) fn reading(&self) -> (&str, bool) {
        (&self.pattern, !self.ends.is_empty())
    }

    /// True if the pattern is found in the text.
    pub(super) fn is_found_in(&self, text: &str) -> Result<bool, GivenUp> {
        self.keeping(|| self.has_match(text))
    }

    /// Runs a search, and checks the size of all caches afterwards.
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
        if text.len() > SHORT_BYTES || self.is_large {
            match self.stepwise() {
                Some(stepwise) if self.is_large || stepwise.work(text.len()) > PREFERRED_WORK => {
                    if let Some(found) = stepwise.is_found_in(text) {
                        return Ok(found);
                    }
                    self.permit(stepwise.work(text.len()))?;
                }
                Some(_) => {}
                None if self.is_large => return Err(GivenUp),
                None => self.permit_length(text.len())?,
            }
        }
        self.regex.is_match(&Watched(text)).map_err(|_| GivenUp)
    }

    /// The first match from a position on, followed by its groups: starts and ends in bytes.
    pub(super) fn captures_in(&self, text: &str, from: usize) -> Result<Option<Vec<Group>>, GivenUp> {
        let mut groups = Vec::with_capacity(1 + self.groups);
        let found = self.keeping(|| self.find_groups(text, from, &mut groups))?;
        if found {
            self.end_before_newline(&mut groups);
        }
        Ok(found.then_some(groups))
    }

    /// Removes the groups that match a final newline, and the newline from all others.
    fn end_before_newline(&self, groups: &mut Vec<Group>) {
        let newline = self.ends.iter().filter_map(|end| groups[*end]).find(|(start, end)| start < end);
        let (mut ends, mut index) = (self.ends.iter().peekable(), 0..);
        groups.retain(|_| index.next() != ends.peek().map(|end| **end) || ends.next().is_none());
        if let Some((newline, _)) = newline {
            for (start, end) in groups.iter_mut().flatten() {
                (*start, *end) = ((*start).min(newline), (*end).min(newline));
            }
        }
    }

    /// True if there is a match, whose groups are appended to `groups`.
    fn find_groups(&self, text: &str, from: usize, groups: &mut Vec<Group>) -> Result<bool, GivenUp> {
        let watched = Watched(text);
        let mut input = RegexInput::new(&watched).from_pos(from);
        // A state is copied together with its groups, so the work also grows with their number.
        let weight = 1 + self.groups / 2;
        let length = (text.len() - from).saturating_mul(weight);
        if length > SHORT_BYTES || self.is_large {
            match self.stepwise() {
                Some(stepwise) if self.is_large || stepwise.work(length) > PREFERRED_WORK => {
                    match stepwise.span(text, from) {
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
                    }
                }
                Some(_) => {}
                None if self.is_large => return Err(GivenUp),
                None => self.permit_length(text.len().saturating_mul(weight))?,
            }
        }
        let captures = self.regex.captures_input(input).map_err(|_| GivenUp)?;
        groups.extend(captures.iter().flat_map(|captures| captures.iter()));
        Ok(captures.is_some())
    }

    fn bytes(&self) -> usize {
        if self.is_large { MAX_LARGE_BYTES } else { MAX_COMPILED_BYTES }
    }

    fn stepwise(&self) -> Option<&Stepwise> {
        self.stepwise.get_or_init(|| Stepwise::new(&self.pattern, self.bytes())).as_ref()
    }

    fn permit(&self, work: usize) -> Result<(), GivenUp> {
        if work > MAX_WORK { Err(GivenUp) } else { Ok(()) }
    }

    /// Refuses a text that is too long for this pattern: the engine may match one part of the pattern against the whole text in a
    /// single call, which cannot be interrupted.
    fn permit_length(&self, length: usize) -> Result<(), GivenUp> {
        // If the pattern compiles within this size, no part has more than `MAX_WORK / length` states.
        let is_small = |length: &usize| compiled(&self.pattern, MAX_WORK / length * BYTES_A_STATE).is_ok();
        let longest = self.longest.get_or_init(|| {
            let lengths = std::iter::successors(Some(MAX_BYTES), |length| Some(length / 4));
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
