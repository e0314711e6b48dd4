//! Interruptible searches: byte by byte through an automaton that is built lazily, by the library that the regular expression engine
//! itself uses. The engine is faster for short texts and small patterns, but a large pattern can take minutes in a long text, and
//! a call of the engine cannot be interrupted.
//!
//! This search finds whether and where a pattern matches, but not its groups. It supports only patterns that need no
//! backtracking.

use crate::budget;
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{NFA, WhichCaptures};
use regex_automata::{Anchored, Input, MatchKind};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Largest compiled size of a part of a pattern, in bytes.
pub(super) const MAX_COMPILED_BYTES: usize = 1 << 20;

/// The number of the pattern's states that count as an additional step for each byte.
const STATES_A_STEP: usize = 64;

/// Size of the cache of an automaton's states, in bytes.
const CACHE_BYTES: usize = 2 << 20;

/// A pattern as an automaton.
pub(super) struct Stepwise {
    pattern: String,
    /// the largest size of an automaton
    bytes: usize,
    forward: Automaton,
    /// the automaton that searches backwards from the end of a match; built when it is first needed
    backward: OnceLock<Option<Automaton>>,
}

struct Automaton {
    dfa: DFA,
    cache: Mutex<Cache>,
    states: usize,
}

impl fmt::Debug for Stepwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stepwise({} states)", self.forward.states)
    }
}

impl Stepwise {
    /// Compiles a pattern in the engine's dialect to at most `bytes` bytes; None if it needs backtracking.
    pub(super) fn new(pattern: &str, bytes: usize) -> Option<Stepwise> {
        // The library would read the engine's possessive quantifiers as nested repetitions, so it must not see them.
        if ["++", "*+", "?+", "}+"].iter().any(|possessive| pattern.contains(possessive)) {
            return None;
        }
        let forward = Automaton::new(pattern, false, bytes)?;
        Some(Stepwise { pattern: pattern.to_owned(), bytes, forward, backward: OnceLock::new() })
    }

    /// Upper bound on the engine's work to search `bytes` bytes: one unit for each byte and state of the pattern.
    pub(super) fn work(&self, bytes: usize) -> usize {
        self.forward.states.saturating_mul(bytes)
    }

    /// True if the pattern matches a text; None if the automaton cannot decide that.
    pub(super) fn is_found_in(&self, text: &str) -> Option<bool> {
        Some(self.forward.end(text, 0, true)?.is_some())
    }

    /// The first match from a position on; None if the automaton cannot decide that.
    pub(super) fn span(&self, text: &str, from: usize) -> Option<Option<(usize, usize)>> {
        let Some(end) = self.forward.end(text, from, false)? else { return Some(None) };
        let backward = self.backward.get_or_init(|| Automaton::new(&self.pattern, true, self.bytes)).as_ref()?;
        let start = backward.start(text, from, end)?;
        (text.is_char_boundary(start) && text.is_char_boundary(end)).then_some(Some((start, end)))
    }
}

impl Automaton {
    fn new(pattern: &str, backward: bool, bytes: usize) -> Option<Automaton> {
        let config = NFA::config().reverse(backward).which_captures(WhichCaptures::None).nfa_size_limit(Some(bytes));
        let nfa = NFA::compiler().configure(config).build(pattern).ok()?;
        let states = nfa.states().len();
        // Backwards from the end of a match, the automaton finds its earliest start.
        let config = DFA::config()
            .match_kind(if backward { MatchKind::All } else { MatchKind::LeftmostFirst })
            .cache_capacity(CACHE_BYTES)
            .skip_cache_capacity_check(true)
            .unicode_word_boundary(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa).ok()?;
        let cache = Mutex::new(dfa.create_cache());
        Some(Automaton { dfa, cache, states })
    }

    /// The state after a byte; None if the automaton cannot continue.
    fn next(&self, cache: &mut Cache, state: LazyStateID, byte: u8) -> Option<LazyStateID> {
        budget::steps(1 + self.states / STATES_A_STEP);
        self.dfa.next_state(cache, state, byte).ok().filter(|state| !state.is_quit())
    }

    /// The end of the first match from a position on, or with `any` that of any match; Some(None) without a match.
    fn end(&self, text: &str, from: usize, any: bool) -> Option<Option<usize>> {
        // An interrupted search poisons the lock, but leaves a valid cache, since states are added one by one.
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let input = Input::new(text).range(from..);
        let mut state = self.dfa.start_state_forward(&mut cache, &input).ok()?;
        let mut end = None;
        for (at, byte) in text.bytes().enumerate().skip(from) {
            state = self.next(&mut cache, state, byte)?;
            if state.is_match() {
                // The automaton reports a match one byte late, so the match ends before this byte.
                end = Some(at);
                if any {
                    return Some(end);
                }
            } else if state.is_dead() {
                return Some(end);
            }
        }
        let is_match = self.dfa.next_eoi_state(&mut cache, state).ok()?.is_match();
        Some(if is_match { Some(text.len()) } else { end })
    }

    /// The earliest start, from a position on, of a match with this end.
    fn start(&self, text: &str, from: usize, end: usize) -> Option<usize> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let input = Input::new(text).range(from..end).anchored(Anchored::Yes);
        let mut state = self.dfa.start_state_reverse(&mut cache, &input).ok()?;
        let mut start = None;
        for (at, byte) in text.as_bytes()[..end].iter().enumerate().skip(from).rev() {
            state = self.next(&mut cache, state, *byte)?;
            if state.is_match() {
                start = Some(at + 1);
            } else if state.is_dead() {
                return start;
            }
        }
        let last = match text.as_bytes()[..from].last() {
            Some(byte) => self.next(&mut cache, state, *byte)?,
            None => self.dfa.next_eoi_state(&mut cache, state).ok()?,
        };
        if last.is_match() { Some(from) } else { start }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Pattern;
    use super::{MAX_COMPILED_BYTES, Stepwise};
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    /// Patterns of what the dialect has, short and often matching.
    fn pattern() -> impl Strategy<Value = String> {
        let atom = prop::sample::select(vec![
            "a",
            "b",
            "ż",
            ".",
            "\\d",
            "\\w",
            "\\s",
            "\\b",
            "\\B",
            "^",
            "$",
            "[ab]",
            "[^a]",
            "\\z",
            "\\A",
            "(a|b)",
            "(?:ab)",
            "\\n",
            "(?i)A",
            "x",
            "\\Z",
            "[[:alpha:]]",
            "\\D",
            "\\W",
            "(?=a)",
            "(?!b)",
            "(a)\\1",
            "(?>a|ab)",
        ]);
        let repeated =
            (atom, prop::sample::select(vec!["", "", "*", "+", "?", "{2}", "{1,3}", "*?", "+?", "++", "*+"]));
        prop::collection::vec(repeated.prop_map(|(atom, times)| format!("{atom}{times}")), 1..5)
            .prop_map(|all| all.concat())
    }

    #[test]
    fn it_finds_what_the_engine_finds() {
        let config = ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() };
        let case = (pattern(), "[imsx]{0,2}", "[abż1 \nA]{0,8}");
        let check = |(source, options, text): (String, String, String)| {
            let Ok(pattern) = Pattern::new(&source, &options) else { return Ok(()) };
            let (reading, has_ends) = pattern.reading();
            let Some(stepwise) = Stepwise::new(reading, MAX_COMPILED_BYTES) else { return Ok(()) };
            if let Some(found) = stepwise.is_found_in(&text) {
                prop_assert_eq!(found, pattern.search(&text).unwrap(), "{} as {}", source, reading);
            }
            let mut from = 0;
            for found in pattern.captures_in(&text) {
                let span = found.unwrap()[0];
                match stepwise.span(&text, from) {
                    // A final newline before which `$` matches has been removed from the match.
                    Some(Some((start, end))) if has_ends && text[start..end].ends_with('\n') => {
                        let at = (start.min(text.len() - 1), text.len() - 1);
                        prop_assert!(span == Some((start, end)) || span == Some(at), "{} as {}", source, reading);
                    }
                    Some(stepped) => prop_assert_eq!(stepped, span, "{} as {} from {}", source, reading, from),
                    None => break,
                }
                let (start, end) = span.unwrap();
                from = end + if start == end { text[end..].chars().next().map_or(1, char::len_utf8) } else { 0 };
            }
            if from < text.len()
                && let Some(stepped) = stepwise.span(&text, from)
            {
                prop_assert_eq!(stepped, None, "{} as {} from {}", source, reading, from);
            }
            Ok(())
        };
        TestRunner::new(config).run(&case, check).unwrap();
    }
}
