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
use std::sync::{Arc, OnceLock};

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
    engines: Arc<Engines>,
    prefix: String,
}

/// The compiled forms of a pattern.
#[derive(Debug)]
struct Engines {
    first: Engine,
    /// for texts beyond ASCII, if the first is right for ASCII texts only; compiled for the first such text, None if it is too large
    any_text: Option<OnceLock<Option<Engine>>>,
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
        let dialect = Dialect { multi_line: has('m'), extended: has('x'), any_text: false };
        let Translated { pattern, is_for_ascii } = translated(source, dialect).map_err(invalid)?;
        let reading = Options {
            case_insensitive: has('i'),
            multi_line: has('m'),
            dot_matches_new_line: has('s'),
            ignore_whitespace: has('x'),
        };
        let engine = Engine::new(pattern, reading).map_err(|error| invalid(&error.to_string()))?;
        let mut sorted: Vec<char> = options.chars().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let prefix = if has('i') || has('m') || has('x') { String::new() } else { literal_prefix(source) };
        Ok(Pattern {
            source: source.to_owned(),
            options: sorted.into_iter().collect(),
            engines: Arc::new(Engines { first: engine, any_text: is_for_ascii.then(OnceLock::new) }),
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
        self.engine(text).and_then(|engine| engine.is_found_in(text)).map_err(|GivenUp| given_up())
    }

    /// The pattern in the engine's dialect, with its options.
    #[cfg(test)]
    pub(super) fn reading(&self) -> (&str, Options) {
        self.engines.first.reading()
    }

    /// The engine for a text.
    fn engine(&self, text: &str) -> std::result::Result<&Engine, GivenUp> {
        let any_text = match &self.engines.any_text {
            Some(any_text) if !text.is_ascii() => any_text,
            _ => return Ok(&self.engines.first),
        };
        let compile = || {
            let dialect = Dialect {
                multi_line: self.options.contains('m'),
                extended: self.options.contains('x'),
                any_text: true,
            };
            let translated = translated(&self.source, dialect).ok()?;
            Engine::new(translated.pattern, self.engines.first.options()).ok()
        };
        any_text.get_or_init(compile).as_ref().ok_or(GivenUp)
    }

    /// All matches in order, each followed by its groups: starts and ends in bytes. A search that is given up ends with
    /// `Location51156`. As in MongoDB, an empty match may directly follow another one, and the end of a text that is not empty is not
    /// searched.
    pub fn captures_in<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Result<Vec<Option<(usize, usize)>>>> + 't {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            budget::step();
            let from = next.take()?;
            let groups = match self.engine(text).and_then(|engine| engine.captures_in(text, from)) {
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

/// How a pattern is translated.
#[derive(Clone, Copy, Debug)]
struct Dialect {
    multi_line: bool,
    /// spaces and comments are skipped
    extended: bool,
    /// word boundaries are written for any text. The engine's own are Unicode's, which are the same for ASCII texts, and faster.
    any_text: bool,
}

/// A pattern in the engine's dialect.
#[derive(Debug)]
struct Translated {
    pattern: String,
    /// the pattern has a word boundary of ASCII, and is right for ASCII texts only
    is_for_ascii: bool,
}

/// Verbs at the start of a pattern without an effect: patterns and texts are always UTF-8.
const UTF_VERBS: &[&str] = &["(*UTF8)", "(*UTF)"];
/// The verb by which classes and word boundaries are those of Unicode.
const UNICODE_VERB: &str = "(*UCP)";

/// Translates a pattern into the engine's dialect, or returns PCRE's error for what the engine would accept.
fn translated(source: &str, dialect: Dialect) -> std::result::Result<Translated, &'static str> {
    let (mut rest, mut unicode) = (source, false);
    while let Some((verb, after)) =
        UTF_VERBS.iter().chain([&UNICODE_VERB]).find_map(|verb| rest.strip_prefix(verb).map(|after| (*verb, after)))
    {
        unicode |= verb == UNICODE_VERB;
        rest = after;
    }
    let mut translation = Translation {
        rest,
        out: String::with_capacity(source.len() + 16),
        dialect,
        unicode,
        groups: Vec::new(),
        captures: 0,
        is_for_ascii: false,
        fault: None,
    };
    translation.pattern();
    match translation.fault {
        None => Ok(Translated { pattern: translation.out, is_for_ascii: translation.is_for_ascii }),
        Some(fault) => Err(fault),
    }
}

/// An open group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// a lookbehind; true if it must not match
    LookBehind(bool),
    Other,
}

struct Translation<'p> {
    rest: &'p str,
    out: String,
    dialect: Dialect,
    /// classes and word boundaries are Unicode's
    unicode: bool,
    groups: Vec<Group>,
    /// the capturing groups so far
    captures: usize,
    is_for_ascii: bool,
    fault: Option<&'static str>,
}

impl Translation<'_> {
    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next()?;
        self.rest = chars.as_str();
        Some(next)
    }

    fn refuse(&mut self, why: &'static str) {
        self.fault = self.fault.or(Some(why));
    }

    fn pattern(&mut self) {
        let Dialect { multi_line, extended, .. } = self.dialect;
        while let Some(next) = self.next() {
            match next {
                '\\' => self.escape(),
                '[' => self.class(),
                '$' if !multi_line => self.end_of_text(),
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
                '(' => self.open(),
                ')' => match self.groups.pop() {
                    Some(Group::LookBehind(_)) => self.out.push_str("))"),
                    _ => self.out.push(')'),
                },
                // The engine wants one length of a lookbehind, PCRE one of each alternative.
                '|' => match self.groups.last() {
                    Some(Group::LookBehind(negated)) => {
                        let negated = *negated;
                        self.out.push_str(if negated { ")" } else { ")|" });
                        self.look_behind(negated);
                    }
                    _ => self.out.push('|'),
                },
                other => self.out.push(other),
            }
        }
    }

    /// Copies the start of a group.
    fn open(&mut self) {
        if self.rest.starts_with("?P>") {
            self.refuse_call();
        }
        let behind = [("?<=", false), ("?<!", true)].iter().find(|(start, _)| self.rest.starts_with(start));
        if let Some((start, negated)) = behind {
            self.groups.push(Group::LookBehind(*negated));
            self.out.push_str("(?:");
            self.look_behind(*negated);
            self.rest = &self.rest[start.len()..];
            return;
        }
        self.groups.push(Group::Other);
        let is_named = ["?<", "?P<", "?'"].iter().any(|start| self.rest.starts_with(start));
        self.captures += usize::from(is_named || !self.rest.starts_with(['?', '*']));
        // The characters that follow are not quantifiers.
        let plain = self.rest.trim_start_matches(['?', '*', '+']);
        self.out.push('(');
        self.out.push_str(&self.rest[..self.rest.len() - plain.len()]);
        self.rest = plain;
    }

    /// Starts a lookbehind. With the separator the engine does not look into a group that is the whole of it, for alternatives.
    fn look_behind(&mut self, negated: bool) {
        self.out.push_str(if negated { "(?<!" } else { "(?<=" });
        self.out.push_str(SEPARATOR);
    }

    /// The end of the text, or before a newline at its end. In a lookbehind, whose length counts, the newline is not consumed.
    fn end_of_text(&mut self) {
        let is_behind = self.groups.iter().any(|group| *group != Group::Other);
        self.out.push_str(if is_behind { r"(?=\n?\z)" } else { r"(?:\n?\z)" });
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
            Some('Z') => self.end_of_text(),
            Some('R') => self.out.push_str(r"(?:\r\n|[\n\x0B\f\r\x{85}\x{2028}\x{2029}])"),
            Some('N') if !self.rest.starts_with("{U+") => self.out.push_str(r"[^\n]"),
            Some(letter @ ('b' | 'B')) => self.boundary(letter),
            Some(letter @ ('g' | 'k')) => self.reference(letter),
            Some(digit @ '1'..='9') => self.number(digit),
            Some(letter) => match self.shorthand(letter) {
                Some((members, negated)) => {
                    self.out.push_str(if negated { "[^" } else { "[" });
                    self.out.push_str(members);
                    self.out.push(']');
                }
                None if self.character(letter) => {}
                None => self.copy_escape(letter),
            },
        }
    }

    /// A word boundary, or with `B` none.
    fn boundary(&mut self, letter: char) {
        if self.unicode || !self.dialect.any_text {
            self.is_for_ascii |= !self.unicode;
            self.out.push('\\');
            return self.out.push(letter);
        }
        self.out.push_str(if letter == 'b' {
            r"(?-i:(?<![0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<=[0-9A-Za-z_])(?![0-9A-Za-z_]))"
        } else {
            r"(?-i:(?<![0-9A-Za-z_])(?![0-9A-Za-z_])|(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_]))"
        });
    }

    /// Digits after a backslash: a backreference if it has one digit, begins with 8 or 9, or if there are as many groups before it,
    /// otherwise up to three octal digits of a character.
    fn number(&mut self, first: char) {
        let more = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest[..more].bytes().fold(u32::from(first) - u32::from('0'), |number, digit| {
            number.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
        });
        if more == 0 || first >= '8' || number as usize <= self.captures {
            self.rest = &self.rest[more..];
            return self.out.push_str(&format!("(?:\\{number})"));
        }
        self.octal(first, 2);
    }

    /// A character by its octal digits: the first one, and at most so many others.
    fn octal(&mut self, first: char, most: usize) {
        let digits = self.rest.bytes().take(most).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
        let number = self.rest[..digits]
            .bytes()
            .fold(u32::from(first) - u32::from('0'), |number, digit| number * 8 + u32::from(digit - b'0'));
        self.rest = &self.rest[digits..];
        self.push_code(Some(number));
    }

    /// Translates an escape that is a character by its number: `\0…`, `\o{…}`, `\x…`, `\N{U+…}`, `\c…`. False for any other escape.
    fn character(&mut self, letter: char) -> bool {
        match letter {
            '0' => self.octal('0', 2),
            'o' => self.braced("{", 8),
            'x' if self.rest.starts_with('{') => self.braced("{", 16),
            'N' if self.rest.starts_with("{U+") => self.braced("{U+", 16),
            'x' => {
                let digits = self.rest.bytes().take(2).take_while(u8::is_ascii_hexdigit).count();
                let code = u32::from_str_radix(&self.rest[..digits], 16).unwrap_or(0);
                self.rest = &self.rest[digits..];
                self.push_code(Some(code));
            }
            'c' => match self.next() {
                Some(control @ ' '..='~') => self.push_code(Some(u32::from(control.to_ascii_uppercase()) ^ 0x40)),
                _ => self.refuse(r"\c must be followed by a printable ASCII character"),
            },
            _ => return false,
        }
        true
    }

    /// A character's number in braces, behind this start.
    fn braced(&mut self, start: &str, radix: u32) {
        let inside = self.rest.strip_prefix(start).and_then(|rest| rest.split_once('}'));
        let Some((digits, rest)) = inside.filter(|(digits, _)| digits.chars().all(|digit| digit.is_digit(radix)))
        else {
            return self.refuse(r"non-octal or non-hexadecimal character in \o{}, \x{} or \N{U+}");
        };
        self.rest = rest;
        self.push_code(u32::from_str_radix(digits, radix).ok());
    }

    fn push_code(&mut self, code: Option<u32>) {
        match code.and_then(char::from_u32) {
            Some(character) => self.out.push_str(&format!(r"\x{{{:X}}}", u32::from(character))),
            None => self.refuse("character code point value is too large or not allowed"),
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
        if (letter == 'p' || letter == 'P') && self.rest.starts_with('{') {
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

    fn shorthand(&self, letter: char) -> Option<(&'static str, bool)> {
        shorthand(letter, self.unicode)
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
                    let name = self.rest[..end].trim_matches([':', ']', '^']);
                    let is_negated = self.rest.starts_with(":^");
                    match UNICODE_CLASSES.iter().find(|(class, _)| self.unicode && *class == name) {
                        Some((_, members)) => {
                            self.out.push_str(if is_negated { "[^" } else { "[" });
                            self.out.push_str(members);
                            self.out.push(']');
                        }
                        None => {
                            self.out.push('[');
                            self.out.push_str(&self.rest[..end]);
                        }
                    }
                    self.rest = &self.rest[end..];
                }
                '\\' => match self.next() {
                    None => self.out.push('\\'),
                    Some('b') => self.out.push_str(r"\x08"),
                    Some(digit @ '1'..='7') => self.octal(digit, 2),
                    Some(digit @ '8'..='9') => self.out.push(digit),
                    Some(letter) => match self.shorthand(letter) {
                        Some((members, true)) => {
                            self.out.push_str("[^");
                            self.out.push_str(members);
                            self.out.push(']');
                        }
                        Some((members, false)) => self.out.push_str(members),
                        None if self.character(letter) => {}
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

/// POSIX's classes in Unicode's properties.
const UNICODE_CLASSES: &[(&str, &str)] = &[
    ("alpha", r"\p{L}"),
    ("lower", r"\p{Ll}"),
    ("upper", r"\p{Lu}"),
    ("alnum", r"\p{L}\p{N}"),
    ("digit", r"\p{Nd}"),
    ("word", r"\p{L}\p{N}_"),
    ("space", r"\p{Z}\t\n\x0B\f\r\x{85}"),
    ("blank", r"\p{Zs}\t"),
    ("cntrl", r"\p{Cc}"),
    ("punct", r"\p{P}$+<=>^`|~"),
];

/// The members of the class of an escaped letter, and true if the class is negated.
fn shorthand(letter: char, unicode: bool) -> Option<(&'static str, bool)> {
    let members = match letter.to_ascii_lowercase() {
        'd' if unicode => r"\p{Nd}",
        'w' if unicode => r"\p{L}\p{N}_",
        's' if unicode => r"\p{Z}\t\n\x0B\f\r\x{85}",
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
            assert!(
                pattern.is_found_in(text),
                "/{source}/{options} should be found in {text:?}: {:?}",
                pattern.engines
            );
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

    /// Word boundaries are those of ASCII, whatever the text, unless the pattern begins with `(*UCP)`.
    #[test]
    fn word_boundaries() {
        check(r"\byster", "", &["Blue Öyster Cult", "a yster"], &["oyster"]);
        check(r"\bcat\b", "", &["cat", "ä cat", "äcat", "a cat ö"], &["concat", "ä concat"]);
        check(r"\Bcat", "", &["concat", "ä concat"], &["cat", "äcat", "ä cat"]);
        check(r"^\b", "", &["a", "ab ä"], &["ä", " a", " a ä"]);
        check(r"(?<=\bfoo)bar", "", &["foobar", "ä foobar"], &["afoobar", "ä afoobar"]);
        // No letter beyond ASCII is a K or an s.
        check(r"\bx", "i", &["\u{212A}X", "\u{17F}x"], &["kx", "kx ä"]);
        check(r"(*UCP)\byster", "", &["a yster", "ä yster"], &["Blue Öyster Cult", "oyster"]);
        check(r"(*UTF)(*UCP)^\w+$", "", &["café", "你好", "a_1"], &["a b", ""]);
        check(r"(*UCP)^\d+$", "", &["123", "١٢"], &["a"]);
        check(r"(*UCP)^[\w-]+\s[^\W]$", "", &["ä-b\u{a0}ö"], &["ä-b\u{a0}!"]);
        check("(*UCP)^[[:alpha:]]+$", "", &["hello", "café"], &["1", "a1"]);
        check("(*UCP)^[[:^alpha:]_]+$", "", &["1_"], &["é"]);
        check("^[[:alpha:]]+$", "", &["hello"], &["café"]);
        let pattern = Pattern::new(r"\b(ä?)\b", "").unwrap();
        let found: Vec<_> = pattern.captures_in("äb").map(|found| found.unwrap()[0]).collect();
        assert_eq!(found, [Some((2, 2))]);
        let long = "ä".repeat(10_000);
        assert!(Pattern::new(r"\bx", "").unwrap().search(&format!("{long}x")).unwrap());
        assert!(!Pattern::new(r"\bx", "").unwrap().search(&format!("{long}ax")).unwrap());
    }

    #[test]
    fn characters_by_number() {
        for escape in
            [r"\x61", r"\x{61}", r"\x{0061}", r"\141", r"\o{141}", r"\o{0000000141}", r"\N{U+61}", r"\N{U+0061}"]
        {
            check(&format!("^{escape}$"), "", &["a"], &["b", escape]);
            check(&format!("^[{escape}]+$"), "", &["aa"], &["b"]);
            check(&format!("^{escape}{{2}}$"), "x", &["aa"], &["a"]);
        }
        check(r"^\cA\cz\c[$", "", &["\u{1}\u{1a}\u{1b}"], &["A"]);
        check(r"^\x6g$", "", &["\u{6}g"], &["6g"]);
        check(r"^a\xg", "", &[], &["axg"]);
        check(r"^\0\01\012$", "", &["\0\u{1}\n"], &["000"]);
        check(r"^\0123$", "", &["\n3"], &[]);
        check(r"^\101\777$", "", &["A\u{1FF}"], &[]);
        check(r"^[\8\9]+$", "", &["89"], &["7"]);
        check(r"^[\1-\3]+$", "", &["\u{1}\u{2}\u{3}"], &["1"]);
        check(r"^\x{1F600}$", "", &["😀"], &[]);
        // One digit is a backreference, and so are more if there are as many groups before.
        check(r"^(a)\1$", "", &["aa"], &["a\u{1}"]);
        check(&format!("^{}\\10$", "(a)".repeat(10)), "", &[&"a".repeat(11)], &["aaaaaaaaaa\u{8}"]);
        check(&format!("^{}\\10$", "(a)".repeat(9)), "", &["aaaaaaaaa\u{8}"], &[&"a".repeat(10)]);
        check(&format!("^{}\\12$", "(?:a)(?=a|$)(?<n>a)".repeat(1)), "", &["aa\n"], &["aaa"]);
    }

    /// Each alternative of a lookbehind has one length.
    #[test]
    fn lookbehinds() {
        check("(?<=a|bcd)x", "", &["ax", "bcdx"], &["cdx", "x"]);
        check("(?<!a|bcd)x", "", &["cdx", "x"], &["ax", "bcdx"]);
        check("(?<=a{2}|[b-d]e)x", "", &["aax", "cex"], &["ax", "ex"]);
        check("(?<=(?:ab|cd)e)x", "", &["abex", "cdex"], &["ex"]);
        check(r"(?<=a$)\n", "", &["a\n"], &["b\n"]);
        check(r"(?<=^|,)x", "", &["x", "a,x"], &["ax"]);
        check("(?<=ä|€u)x", "", &["äx", "€ux"], &["ux"]);
        let pattern = Pattern::new("(?<=(a)|(bc))(x)", "").unwrap();
        let found = pattern.captures_in("bcx").next().unwrap().unwrap();
        assert_eq!(found, [Some((2, 3)), None, Some((0, 2)), Some((2, 3))]);
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
            ("(?<=a+)b", "", 51091),
            ("(?<!a*)b", "", 51091),
            ("(?<=a{1,3})b", "", 51091),
            ("(?<=a?)b", "", 51091),
            ("(?<=ab(?:c|de))x", "", 51091),
            ("(?<=(?:c|de))x", "", 51091),
            (r"(?<=\R)x", "", 51091),
            (r"\o{8}", "", 51091),
            (r"\o{", "", 51091),
            (r"\o141", "", 51091),
            (r"\x{110000}", "", 51091),
            (r"\x{D800}", "", 51091),
            (r"\x{61", "", 51091),
            (r"\N{U+}", "", 51091),
            (r"\N{U+6g}", "", 51091),
            (r"[\N{U+110000}]", "", 51091),
            (r"\c", "", 51091),
            (r"\cä", "", 51091),
            (r"\1", "", 51091),
            (r"\8", "", 51091),
            (r"(a)\9", "", 51091),
            ("(*UCPX)a", "", 51091),
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
