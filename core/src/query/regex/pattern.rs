//! Regular expressions with PCRE's syntax and semantics.
//!
//! A pattern is translated into the engine's dialect: in PCRE `\d`, `\w`, `\s` are ASCII, `$` also matches before a final newline, and
//! in classes `[`, `&&`, `--` and `~~` are literals. [`SEPARATOR`] follows each quantifier. `engine` bounds the searches.

use super::engine::{Engine, GivenUp};
use super::stepwise::Options;
use crate::budget;
use crate::error::{Error, Kind, Result, bail, error};
use crate::values::document::element::Element;
use crate::values::document::raw::RawValue;
use crate::values::document::value::Value;
use std::cell::Cell;
use std::sync::Arc;

/// The number of bytes of a searched text that count as a step.
const BYTES_A_STEP: usize = 64;

/// The largest pattern: MongoDB's limit.
const MAX_PATTERN_BYTES: usize = 32_764;

/// Matches the empty string. The engine merges adjacent and nested repetitions, and some of them wrongly: it takes `a+b*a+` for
/// `a+(b+a+)?`, which matches "a". A separator between them prevents that.
const SEPARATOR: &str = "x{0}";

thread_local! {
    /// True if a search inside [`watched`] was given up.
    static GIVEN_UP: Cell<bool> = const { Cell::new(false) };
}

/// Runs tests of values, which cannot return errors, and returns an error if one of their searches was given up.
///
/// # Errors
/// `Location51156`.
#[inline]
pub(crate) fn watched<T>(test: impl FnOnce() -> T) -> Result<T> {
    GIVEN_UP.set(false);
    let answer = test();
    if GIVEN_UP.get() { Err(given_up()) } else { Ok(answer) }
}

#[cold]
fn given_up() -> Error {
    error!(51156, "Error occurred while executing regular expression: match limit exceeded")
}

/// MongoDB's options; `u` has no effect, since patterns are always UTF-8.
const OPTIONS: &str = "imsxu";

/// Unicode properties that only PCRE has, as classes.
const PCRE_PROPERTIES: &[(&str, &str)] =
    &[("Xan", r"[\p{L}\p{N}]"), ("Xwd", r"[\p{L}\p{N}_]"), ("Xps", r"[\s]"), ("Xsp", r"[\s]")];

/// A compiled regular expression.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    source: String,
    /// sorted
    options: String,
    engine: Arc<Engine>,
    prefix: String,
}

impl Pattern {
    /// Compiles.
    ///
    /// # Errors
    /// `Location51108` for an unknown option, `Location51091` for an invalid pattern, `BadValue` for a zero byte.
    pub fn new(source: &str, options: &str) -> Result<Pattern> {
        if source.contains('\0') || options.contains('\0') {
            bail!(Kind::BadValue, "Regular expression cannot contain an embedded null byte");
        }
        if let Some(option) = options.chars().find(|option| !OPTIONS.contains(*option)) {
            bail!(51108, "invalid flag in regex options: {option}");
        }
        let invalid = |why: &str| error!(51091, "Regular expression is invalid: {why}");
        if source.len() > MAX_PATTERN_BYTES {
            return Err(invalid("pattern string is longer than the limit set by the application"));
        }
        budget::steps(1 + source.len());
        let has = |option: char| options.contains(option);
        let translated = translated(source, has('m'), has('x')).map_err(invalid)?;
        let reading = Options {
            case_insensitive: has('i'),
            multi_line: has('m'),
            dot_matches_new_line: has('s'),
            ignore_whitespace: has('x'),
        };
        let engine = Engine::new(translated, reading).map_err(|error| invalid(&error.to_string()))?;
        let mut sorted: Vec<char> = options.chars().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let prefix = if has('i') || has('m') || has('x') { String::new() } else { literal_prefix(source) };
        Ok(Pattern {
            source: source.to_owned(),
            options: sorted.into_iter().collect(),
            engine: Arc::new(engine),
            prefix,
        })
    }

    /// A prefix of all strings that match.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The regular expression as a value.
    pub fn value(&self) -> Value {
        Value::Regex(self.source.clone(), self.options.clone())
    }

    /// True for a string that matches, and for the same regular expression.
    pub fn accepts(&self, raw: RawValue<'_>) -> bool {
        match raw {
            RawValue::String(text) => self.is_found_in(text),
            RawValue::Object(_) => match Element::of(raw) {
                Element::Symbol(text) => self.is_found_in(text),
                Element::Regex(source, options) => source == self.source && options == self.options,
                _ => false,
            },
            _ => false,
        }
    }

    /// True if the pattern is found in the text; false, which [`watched`] notices, for a search that is given up.
    pub fn is_found_in(&self, text: &str) -> bool {
        self.search(text).unwrap_or_else(|_| {
            GIVEN_UP.set(true);
            false
        })
    }

    /// As [`is_found_in`](Self::is_found_in).
    ///
    /// # Errors
    /// `Location51156` for a search that is given up.
    pub fn search(&self, text: &str) -> Result<bool> {
        budget::steps(1 + text.len() / BYTES_A_STEP);
        self.engine.is_found_in(text).map_err(|GivenUp| given_up())
    }

    /// The pattern in the engine's dialect, with its options.
    #[cfg(test)]
    pub(super) fn reading(&self) -> (&str, Options) {
        self.engine.reading()
    }

    /// All matches in order, each followed by its groups: starts and ends in bytes. A search that is given up ends with
    /// `Location51156`. As in MongoDB, an empty match may directly follow another one, and the end of a text that is not empty is not
    /// searched.
    pub fn captures_in<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Result<Vec<Option<(usize, usize)>>>> + 't {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            budget::step();
            let groups = match self.engine.captures_in(text, next.take()?) {
                Ok(groups) => groups?,
                Err(GivenUp) => return Some(Err(given_up())),
            };
            let (start, end) = groups.first().copied().flatten()?;
            let skipped = if start == end { text[end..].chars().next().map_or(1, char::len_utf8) } else { 0 };
            next = Some(end + skipped).filter(|position| *position < text.len());
            Some(Ok(groups))
        })
    }
}

/// The literal text after a leading `^` or `\A`; empty if an alternative may lack it.
fn literal_prefix(source: &str) -> String {
    let Some(rest) = source.strip_prefix('^').or_else(|| source.strip_prefix("\\A")) else { return String::new() };
    if source.contains(['|', '(']) {
        return String::new();
    }
    let is_literal = |c: &char| c.is_alphanumeric() || " _-/:@,;=<>!\"'%&~#`".contains(*c);
    let mut prefix: String = rest.chars().take_while(is_literal).collect();
    // A quantifier applies to the last character, which may be absent in a match.
    if rest[prefix.len()..].starts_with(['?', '*', '{']) {
        prefix.pop();
    }
    prefix
}

/// PCRE's largest number of repetitions in a quantifier.
const MAX_REPETITIONS: u64 = 65_535;

/// Translates a pattern into the engine's dialect, or returns PCRE's error for a quantifier that the engine would accept.
fn translated(source: &str, multi_line: bool, extended: bool) -> std::result::Result<String, &'static str> {
    // These verbs have no effect: patterns and texts are always UTF-8.
    let rest = ["(*UTF8)", "(*UTF)"].iter().find_map(|verb| source.strip_prefix(verb)).unwrap_or(source);
    let mut translation = Translation { rest, out: String::with_capacity(source.len() + 16), fault: None };
    translation.pattern(multi_line, extended);
    translation.fault.map_or(Ok(translation.out), Err)
}

struct Translation<'p> {
    rest: &'p str,
    out: String,
    fault: Option<&'static str>,
}

impl Translation<'_> {
    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next()?;
        self.rest = chars.as_str();
        Some(next)
    }

    fn pattern(&mut self, multi_line: bool, extended: bool) {
        while let Some(next) = self.next() {
            match next {
                '\\' => self.escape(),
                '[' => self.class(),
                '$' if !multi_line => self.out.push_str(r"(?:\n?\z)"),
                '{' if !is_quantifier(self.rest) => self.out.push_str(r"\{"),
                '{' => {
                    self.fault = self.fault.or_else(|| fault_of(self.rest));
                    let end = self.rest.find('}').map_or(self.rest.len(), |end| end + 1);
                    self.out.push('{');
                    self.out.push_str(&self.rest[..end]);
                    self.rest = &self.rest[end..];
                    self.quantified(extended);
                }
                '*' | '+' | '?' => {
                    self.out.push(next);
                    self.quantified(extended);
                }
                '}' => self.out.push_str(r"\}"),
                '#' if extended => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                '(' if self.rest.starts_with("?#") => {
                    let end = self.rest.find(')').map_or(self.rest.len(), |end| end + 1);
                    self.rest = &self.rest[end..];
                }
                // The characters that follow are not quantifiers.
                '(' => {
                    if self.rest.starts_with("?P>") {
                        self.refuse_call();
                    }
                    let plain = self.rest.trim_start_matches(['?', '*', '+']);
                    self.out.push('(');
                    self.out.push_str(&self.rest[..self.rest.len() - plain.len()]);
                    self.rest = plain;
                }
                other => self.out.push(other),
            }
        }
    }

    /// Copies what may follow a quantifier, `?` or `+`, and adds the separator unless another quantifier follows.
    fn quantified(&mut self, extended: bool) {
        if let Some(how) = self.rest.chars().next().filter(|how| ['?', '+'].contains(how)) {
            self.out.push(how);
            self.rest = &self.rest[1..];
        }
        let next = if extended { self.rest.trim_start() } else { self.rest };
        if !next.starts_with(['*', '+', '?']) && !next.strip_prefix('{').is_some_and(is_quantifier) {
            self.out.push_str(SEPARATOR);
        }
    }

    fn escape(&mut self) {
        match self.next() {
            None => self.out.push('\\'),
            Some('Q') => {
                let end = self.rest.find("\\E").unwrap_or(self.rest.len());
                for literal in self.rest[..end].chars() {
                    push_literal(literal, &mut self.out);
                }
                self.rest = self.rest[end..].strip_prefix("\\E").unwrap_or_default();
            }
            Some('E') => {}
            Some('Z') => self.out.push_str(r"(?:\n?\z)"),
            Some('R') => self.out.push_str(r"(?:\r\n|[\n\x0B\f\r\x{85}\x{2028}\x{2029}])"),
            Some('N') => self.out.push_str(r"[^\n]"),
            Some(letter @ ('g' | 'k')) => self.reference(letter),
            Some(letter) => match shorthand(letter) {
                Some((members, negated)) => {
                    self.out.push_str(if negated { "[^" } else { "[" });
                    self.out.push_str(members);
                    self.out.push(']');
                }
                None => self.copy_escape(letter),
            },
        }
    }

    /// A backreference: `\\g1`, `\\g{-1}`, `\\k<name>`.
    fn reference(&mut self, letter: char) {
        let within = |open, close| self.rest.strip_prefix(open)?.split_once(close);
        let named =
            within('{', '}').or_else(|| if letter == 'k' { within('<', '>').or(within('\'', '\'')) } else { None });
        let digits = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        match named.or_else(|| (letter == 'g' && digits > 0).then(|| self.rest.split_at(digits))) {
            Some((number, rest)) if number.parse::<u16>().is_ok() => {
                self.rest = rest;
                self.out.push_str(&format!("(?:\\{number})"));
            }
            Some((name, rest)) => {
                self.rest = rest;
                self.out.push_str(&format!("\\k<{name}>"));
            }
            None if letter == 'g' => self.refuse_call(),
            None => self.copy_escape(letter),
        }
    }

    /// Refuses a call of a group. The engine copies the group for each call, recursively, so pattern and stack could grow without
    /// bound.
    fn refuse_call(&mut self) {
        self.fault = self.fault.or(Some("calls of groups are not supported"));
    }

    /// Copies an escape with the same meaning in both dialects. In PCRE a letter without a meaning is a literal.
    fn copy_escape(&mut self, letter: char) {
        if letter == 'p'
            && let Some((property, rest)) = self.rest.strip_prefix('{').and_then(|rest| rest.split_once('}'))
            && let Some((_, members)) = PCRE_PROPERTIES.iter().find(|(name, _)| *name == property)
        {
            self.rest = rest;
            return self.out.push_str(members);
        }
        if (letter == 'x' || letter == 'p' || letter == 'P') && self.rest.starts_with('{') {
            self.out.push('\\');
            self.out.push(letter);
            while let Some(next) = self.next() {
                self.out.push(next);
                if next == '}' {
                    break;
                }
            }
            return;
        }
        if letter.is_ascii_punctuation() || letter.is_whitespace() {
            return push_literal(letter, &mut self.out);
        }
        self.out.push('\\');
        self.out.push(letter);
    }

    fn class(&mut self) {
        self.out.push('[');
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            self.out.push('^');
        }
        let mut first = true;
        while let Some(next) = self.next() {
            match next {
                ']' if !first => {
                    self.out.push(']');
                    return;
                }
                '[' if self.rest.starts_with(':') && self.rest.contains(":]") => {
                    let end = self.rest.find(":]").map_or(0, |end| end + 2);
                    self.out.push('[');
                    self.out.push_str(&self.rest[..end]);
                    self.rest = &self.rest[end..];
                }
                '\\' => match self.next() {
                    None => self.out.push('\\'),
                    Some('b') => self.out.push_str(r"\x08"),
                    Some(letter) => match shorthand(letter) {
                        Some((members, true)) => {
                            self.out.push_str("[^");
                            self.out.push_str(members);
                            self.out.push(']');
                        }
                        Some((members, false)) => self.out.push_str(members),
                        None => self.copy_escape(letter),
                    },
                },
                '[' | ']' | '&' | '~' | '#' | ' ' => push_literal(next, &mut self.out),
                '-' if self.rest.starts_with('-') => push_literal(next, &mut self.out),
                other => self.out.push(other),
            }
            first = false;
        }
    }
}

/// The members of the class of an escaped letter, and true if the class is negated.
fn shorthand(letter: char) -> Option<(&'static str, bool)> {
    let members = match letter.to_ascii_lowercase() {
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => r"\t\n\x0B\f\r\x20",
        'h' => r"\t\x20\x{A0}\x{1680}\x{180E}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}",
        'v' => r"\n\x0B\f\r\x{85}\x{2028}\x{2029}",
        _ => return None,
    };
    Some((members, letter.is_ascii_uppercase()))
}

/// The error in the bounds of a quantifier at the start of the text.
fn fault_of(rest: &str) -> Option<&'static str> {
    let (bounds, _) = rest.split_once('}')?;
    let number = |digits: &str| digits.parse().unwrap_or(u64::MAX);
    let (least, most) = match bounds.split_once(',') {
        None => (number(bounds), number(bounds)),
        Some((least, "")) => (number(least), MAX_REPETITIONS),
        Some((least, most)) => (number(least), number(most)),
    };
    if least.max(most) > MAX_REPETITIONS {
        Some("number too big in {} quantifier")
    } else if least > most {
        Some("numbers out of order in {} quantifier")
    } else {
        None
    }
}

/// True if the text after a `{` makes it a quantifier.
fn is_quantifier(rest: &str) -> bool {
    let Some((inside, _)) = rest.split_once('}') else { return false };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    !least.is_empty() && [least, most].iter().all(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn push_literal(literal: char, out: &mut String) {
    match literal {
        c if c.is_ascii_punctuation() && c != '<' && c != '>' => out.extend(['\\', c]),
        ' ' => out.push_str(r"\x20"),
        '\t' => out.push_str(r"\t"),
        '\n' => out.push_str(r"\n"),
        c => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, options: &str, yes: &[&str], no: &[&str]) {
        let pattern = Pattern::new(source, options).unwrap_or_else(|error| panic!("{source}: {error}"));
        for text in yes {
            assert!(pattern.is_found_in(text), "/{source}/{options} should be found in {text:?}: {:?}", pattern.engine);
            assert!(text.starts_with(pattern.prefix()), "{text} lacks the prefix of {source}");
        }
        for text in no {
            assert!(!pattern.is_found_in(text), "/{source}/{options} should not be found in {text:?}");
        }
    }

    #[test]
    fn means_what_it_means_in_pcre() {
        check("a.c", "", &["xabcx"], &["a\nc", "ac"]);
        check("a.c", "s", &["a\nc"], &[]);
        check("ABC", "i", &["xabcx", "aBc"], &[]);
        check("ä", "i", &["Ä"], &[]);
        check("^b", "", &["b"], &["a\nb"]);
        check("^b", "m", &["a\nb"], &["ab"]);
        check("a$", "", &["a", "a\n"], &["a\n\n", "ab"]);
        check("a$", "m", &["a\nb"], &["ab"]);
        check(r"a\Z", "", &["a", "a\n"], &["a\nb"]);
        check(r"a\z", "", &["a"], &["a\n"]);
        check("a b # comment", "x", &["ab"], &["a b"]);
        check("a b", "", &["a b"], &["ab"]);
        check(r"^\d+$", "", &["123"], &["١٢"]);
        check(r"^\w$", "", &["a", "_"], &["ä"]);
        check(r"^[\w-]+$", "", &["a-b"], &["ä"]);
        check(r"^[^\W]$", "", &["a"], &["ä"]);
        check(r"^\s$", "", &[" ", "\t", "\u{b}"], &["\u{a0}"]);
        check("a{,2}b", "", &["a{,2}b"], &["aab"]);
        check("a{2}b", "", &["aab"], &["ab"]);
        check("a{2,}b", "", &["aaab"], &["ab"]);
        check("{a}", "", &["{a}"], &["a"]);
        check("[]a]", "", &["]", "a"], &["b"]);
        check("[^]a]", "", &["b"], &["]", "a"]);
        check("[[a]", "", &["[", "a"], &["b"]);
        check("[a&&b]", "", &["&", "a", "b"], &["c"]);
        check("[[:alpha:]_]", "", &["a", "_"], &["1"]);
        check(r"\Qa.b\E.", "", &["a.bc"], &["axbc"]);
        check(r"\x41\x{42}", "", &["AB"], &[]);
        check(r"a\/b\-c\:", "", &["a/b-c:"], &[]);
        check("(?i)abc", "", &["ABC"], &[]);
        check("a(?#nothing)b", "", &["ab"], &[]);
        check("(?<n>a)b", "", &["ab"], &[]);
        check(r"(a)\1", "", &["aa"], &["ab"]);
        check("a(?!b)", "", &["ac"], &["ab"]);
        check("(?<=a)b", "", &["ab"], &["cb"]);
        check("a++b", "", &["aab"], &["b"]);
        check(r"\bcat\b", "", &["a cat sat"], &["concat"]);
        check(r"^\p{Xan}+$", "", &["kyle", "박정수"], &["a_b"]);
        check("", "", &["", "x"], &[]);
        check("a|^b", "", &["xa", "b"], &["xb"]);
        check(r"(a)\g1-\g{1}0(?<n>b)\k{n}\k'n'\k<n>\g{n}\g{-1}", "", &["aa-a0bbbbbb"], &["aa-a0bbbbb"]);
        check(r"\(?+a", "", &["a", "(a"], &["b"]);
        check("a+ b ? c* d", "x", &["acccd"], &["cd"]);
    }

    /// The engine joins such repetitions, and finds too much or too little.
    #[test]
    fn repetitions_that_stand_together() {
        check(r"^\d+\.?\d+$", "", &["12", "1.5"], &["5"]);
        check("^a+b*a+$", "", &["aa", "aba"], &["a"]);
        check("^a{1,}b*?a{1,}$", "", &["aa", "aba"], &["a"]);
        check("(?=x|)a+b*a+c", "", &["aac"], &["ac"]);
        let found = |source: &str, text| {
            let pattern = Pattern::new(source, "").unwrap();
            pattern.captures_in(text).next().unwrap().unwrap()
        };
        assert_eq!(found("(a+?)*", "aaa"), [Some((0, 3)), Some((2, 3))]);
        assert_eq!(found("a*b??a*", "bb"), [Some((0, 0))]);
    }

    #[test]
    fn prefixes() {
        for (source, options, prefix) in [
            ("^abc", "", "abc"),
            (r"\Aabc", "", "abc"),
            ("^abc.*", "", "abc"),
            ("^abc*", "", "ab"),
            ("^ab+", "", "ab"),
            ("^abc?d", "", "ab"),
            ("^abc{0}", "", "ab"),
            ("^abc|d", "", ""),
            ("^(abc|d)", "", ""),
            ("abc", "", ""),
            ("^abc", "i", ""),
            ("^abc", "m", ""),
            ("^abc", "s", "abc"),
            (r"^a\.b", "", "a"),
            ("^ä?", "", ""),
            ("^", "", ""),
        ] {
            assert_eq!(Pattern::new(source, options).unwrap().prefix(), prefix, "{source}");
        }
    }

    #[test]
    fn refusals() {
        for (source, options, code) in [
            ("(", "", 51091),
            ("[a", "", 51091),
            ("*", "", 51091),
            ("a", "g", 51108),
            ("a\0", "", 2),
            ("\\", "", 51091),
            ("a{2,1}", "", 51091),
            ("a{65536}", "", 51091),
            ("(ab{1,70000})", "", 51091),
            (r"(?<a>x)\g<a>", "", 51091),
            (r"(?<a>x)(?P>a)", "", 51091),
            (r"(x)\g'1'", "", 51091),
        ] {
            assert_eq!(Pattern::new(source, options).unwrap_err().kind.code(), code, "{source}");
        }
        assert_eq!(Pattern::new(&"a".repeat(40_000), "").unwrap_err().kind.code(), 51091);
        assert_eq!(Pattern::new("(a{1000}){1000}{1000}", "").unwrap_err().kind.code(), 51091);
    }

    /// A call of a group copies the group into the compiled pattern: a chain of calls grows exponentially, a deep one overflows the
    /// stack.
    #[test]
    fn compiling_cannot_run_away() {
        let doubled: String = (1..60).map(|n| format!(r"(?<a{n}>\g<a{0}>\g<a{0}>)", n - 1)).collect();
        let circle: String = (0..1_000).map(|n| format!(r"(?<a{n}>x\g<a{}>?y)", (n + 1) % 1_000)).collect();
        for source in [format!("(?<a0>x){doubled}"), circle] {
            assert_eq!(Pattern::new(&source, "").unwrap_err().kind.code(), 51091);
        }
        // Each state of a part has room for all groups.
        assert!(Pattern::new(&format!("{}[ab]{{20000}}", "(a)".repeat(2_000)), "").is_err());
        assert!(Pattern::new(&"(?=a)".repeat(6_000), "").is_ok());
    }

    #[test]
    fn a_search_that_gives_up_is_an_error() {
        let text = "a".repeat(5000);
        let pattern = Pattern::new(r"(a+)+\1b", "").unwrap();
        assert_eq!(pattern.search(&text).unwrap_err().kind, Kind::Location(51156));
        assert_eq!(watched(|| pattern.is_found_in(&text)).unwrap_err().kind, Kind::Location(51156));
        assert!(watched(|| pattern.is_found_in("aa")).is_ok(), "an error is reported once");
    }
}
