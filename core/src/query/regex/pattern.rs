//! Regular expressions with PCRE's syntax and semantics.
//!
//! A pattern is translated into the engine's dialect by `dialect`; `engine` bounds the searches.

use super::dialect::{Options, translated};
use super::engine::{Engine, GivenUp};
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
    /// for texts beyond ASCII, compiled for the first such text, with None inside if the compiled pattern is too large; None if
    /// `first` is right for all texts
    any_text: Option<OnceLock<Option<Engine>>>,
}

impl Pattern {
    /// Compiles a pattern.
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
        let translated = translated(source, options_of(options), false).map_err(invalid)?;
        let any_text = translated.is_for_ascii.then(OnceLock::new);
        let engine = Engine::new(translated).map_err(|why| invalid(&why))?;
        let mut sorted: Vec<char> = options.chars().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let prefix = if has('i') || has('m') || has('x') { String::new() } else { literal_prefix(source) };
        Ok(Pattern {
            source: source.to_owned(),
            options: sorted.into_iter().collect(),
            engines: Arc::new(Engines { first: engine, any_text }),
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

    /// True if the pattern is found in the text. False for a search that is given up, for which [`watched`] then returns an error.
    pub fn is_found_in(&self, text: &str) -> bool {
        self.search(text).unwrap_or_else(|_| {
            GIVEN_UP.set(true);
            false
        })
    }

    /// True if the pattern is found in the text.
    ///
    /// # Errors
    /// `Location51156` for a search that is given up.
    pub fn search(&self, text: &str) -> Result<bool> {
        budget::steps(1 + text.len() / BYTES_A_STEP);
        self.engine(text).and_then(|engine| engine.is_found_in(text)).map_err(|GivenUp| given_up())
    }

    /// The pattern in the engine's dialect, and true if groups of it match a final newline.
    #[cfg(test)]
    pub(super) fn reading(&self) -> (&str, bool) {
        self.engines.first.reading()
    }

    /// The engine for a text.
    fn engine(&self, text: &str) -> std::result::Result<&Engine, GivenUp> {
        let any_text = match &self.engines.any_text {
            Some(any_text) if !text.is_ascii() => any_text,
            _ => return Ok(&self.engines.first),
        };
        let compile = || Engine::new(translated(&self.source, options_of(&self.options), true).ok()?).ok();
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

/// The options of these letters.
fn options_of(letters: &str) -> Options {
    let has = |letter: char| letters.contains(letter);
    Options {
        case_insensitive: has('i'),
        multi_line: has('m'),
        dot_matches_new_line: has('s'),
        extended: has('x'),
        ..Options::default()
    }
}

/// The literal text after a leading `^` or `\A`; empty for a pattern with groups or alternatives, since a match may then lack
/// the text.
fn literal_prefix(source: &str) -> String {
    let Some(rest) = source.strip_prefix('^').or_else(|| source.strip_prefix("\\A")) else { return String::new() };
    if source.contains(['|', '(']) {
        return String::new();
    }
    let is_literal = |c: &char| c.is_alphanumeric() || " _-/:@,;=<>!\"'%&~#`".contains(*c);
    let mut prefix: String = rest.chars().take_while(is_literal).collect();
    // A quantifier applies to the last character, which then may be absent in a match. Marks of quotations may stand between the two.
    let after = &rest[prefix.len()..];
    if after.starts_with(['?', '*', '{']) || after.starts_with("\\E") || after.starts_with("\\Q") {
        prefix.pop();
    }
    prefix
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
        // The Kelvin sign and the long s are not ASCII, though the option `i` folds them to k and s.
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
        // `\1` is a backreference. `\10` is one only if at least ten groups precede it; otherwise it is an octal character code.
        check(r"^(a)\1$", "", &["aa"], &["a\u{1}"]);
        check(&format!("^{}\\10$", "(a)".repeat(10)), "", &[&"a".repeat(11)], &["aaaaaaaaaa\u{8}"]);
        check(&format!("^{}\\10$", "(a)".repeat(9)), "", &["aaaaaaaaa\u{8}"], &[&"a".repeat(10)]);
        check(r"^(?:a)(?=a|$)(?<n>a)\12$", "", &["aa\n"], &["aaa"]);
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

    /// The match's text and those of its groups.
    fn found(source: &str, options: &str, text: &str) -> Option<Vec<Option<String>>> {
        let pattern = Pattern::new(source, options).unwrap_or_else(|error| panic!("{source}: {error}"));
        let groups = pattern.captures_in(text).next()?.unwrap();
        Some(groups.into_iter().map(|group| group.map(|(start, end)| text[start..end].to_owned())).collect())
    }

    #[track_caller]
    fn check_groups(source: &str, options: &str, text: &str, expected: &[Option<&str>]) {
        let expected: Vec<_> = expected.iter().map(|group| group.map(str::to_owned)).collect();
        assert_eq!(found(source, options, text), Some(expected), "/{source}/{options} in {text:?}");
    }

    /// `$` and `\Z` match before a final newline, but do not consume it: they add it to no group, and what follows can match it.
    #[test]
    fn an_end_consumes_nothing() {
        check("ab$\n", "", &["ab\n"], &["ab", "ab\n\n"]);
        check(r"ab\Z\n\z", "m", &["ab\n"], &["ab"]);
        check("(?:a$|\n)*b", "", &["a\nb", "b"], &[]);
        check(r"(?:^|x)(a$)?\n", "", &["a\n", "\n"], &["ab\n"]);
        check_groups("e$", "", "line\n", &[Some("e")]);
        check_groups(r"=(\w+$)", "", "key=val\n", &[Some("=val"), Some("val")]);
        check_groups(r"(a$|b\Z)()|(c)", "", "b\n", &[Some("b"), Some("b"), Some(""), None]);
        check_groups(r"(a|(b)$|c$)", "", "c\n", &[Some("c"), Some("c"), None]);
        check_groups(r"(\s*$)", "", "a\n", &[Some("\n"), Some("\n")]);
        check_groups("(a$)?", "", "a\n", &[Some("a"), Some("a")]);
        check_groups(r"(a)(?=\n)$", "", "a\n", &[Some("a"), Some("a")]);
        // The engine does not backtrack for this pattern, so `BACKTRACK_LIMIT` does not apply.
        let pattern = Pattern::new(r"(\w+$)", "").unwrap();
        let text = format!("{}ab\n", ". ".repeat(600_000));
        let groups = pattern.captures_in(&text).next().unwrap().unwrap();
        assert_eq!(groups, [Some((1_200_000, 1_200_002)); 2]);
    }

    /// Options inside a pattern hold up to the end of their group.
    #[test]
    fn options_in_patterns() {
        let (lines, nothing) = (["ab\ncd"], []);
        check("(?m)ab$", "", &lines, &nothing);
        check("(?m:ab$)", "", &lines, &nothing);
        check("(?-m)ab$", "m", &["ab"], &lines);
        check("(?-m:ab$)", "m", &["ab"], &lines);
        check("(?im)^CD$", "", &["ab\ncd\nef"], &nothing);
        check("(?xm)^ b $", "", &["a\nb\nc"], &nothing);
        check("(a(?m))b$", "", &["ab"], &["ab\nc"]);
        check("(a(?i)b|c)d", "", &["aBd", "Cd"], &["abD", "Abd"]);
        check("(?i:a)b", "", &["Ab"], &["aB"]);
        check("(?^)A", "i", &["A"], &["a"]);
        check("(?^i)A.", "s", &["ab"], &["a\n"]);
        check("(?x) a # b\n c (?-x) d", "", &["ac d"], &["acd"]);
        check("(?xx)[a b]", "", &["b"], &[" "]);
        check("(?s).(?-s:.)", "", &["\na"], &["\n\n"]);
        check("a+ +a", "x", &[], &["aaa"]);
        check_groups("(?U)a+(b?)", "", "aab", &[Some("a"), Some("")]);
        check_groups("(?U)a*+", "", "aab", &[Some("aa")]);
        check_groups("(?n)(a)(?<n>b)", "", "ab", &[Some("ab"), Some("b")]);
    }

    /// With `m`, `^` does not match at the end of a text, unless that is empty.
    #[test]
    fn starts_of_lines() {
        check("^$", "m", &["", "a\n\nb", "\n"], &["text\n", "text"]);
        check("\n^", "m", &["a\nb", "\n\n"], &["a\n"]);
        check("(?:^)*b|\n^", "m", &["b"], &["a\n"]);
        check("^(?:a|bc)+$", "m", &["\nabc\n"], &["x\n"]);
        check("(?=b\n^)b", "m", &["b\na"], &["b\n"]);
        let pattern = Pattern::new("^", "m").unwrap();
        let found: Vec<_> = pattern.captures_in("a\nb\n").map(|found| found.unwrap()[0]).collect();
        assert_eq!(found, [Some((0, 0)), Some((2, 2))]);
    }

    #[test]
    fn any_newline_is_not_divided() {
        check(r"\R\R", "", &["\r\n\n", "\n\r"], &["\r\n"]);
        check(r"\R\n", "", &["\r\n\n"], &["\r\n"]);
        check(r"^\R{2}$", "", &["\n\n"], &["\r\n"]);
        check(r"^\R+$", "", &["\r\n", "\r\n\u{2028}"], &["a"]);
    }

    /// A group may be repeated even if it has only assertions or options, or nothing.
    #[test]
    fn repetitions_of_nothing() {
        for source in ["(?=a)*ab", "(?=a){2,3}ab", "(?:(?=a))?ab", "(?:)*ab", "(?:(?i))+ab", "(?:^)*ab", "(?!b){0}ab"] {
            check(source, "", &["ab"], &["b"]);
        }
        check("(?:(?<=a)){1,2}b", "", &["ab"], &["b"]);
        check("(?<=c|ab)?b", "", &["b"], &["a"]);
        check("(?: )+ab", "x", &["ab"], &["b"]);
        check(r"(?:\G)*a", "", &["a"], &["b"]);
        check_groups("(?=(a))?", "", "a", &[Some(""), Some("a")]);
        check_groups("(?=(a))??", "", "a", &[Some(""), None]);
        check_groups("(?=(1){0})", "", "1", &[Some(""), None]);
        check_groups("a(?#b)+(c){0}", "", "aac", &[Some("aa"), None]);
    }

    #[test]
    fn more_of_pcre() {
        check(r"^\p{L&}[\p{L&}1]\P{L&}$", "", &["aǅ1", "A11"], &["1a1", "aa\u{aa}a"]);
        check(r"^\p{^Lu}[^\P{Xan}]$", "", &["aa"], &["Aa", "a."]);
        check("[[:<:]]ab[[:>:]]", "", &["ab", ".ab."], &["abc", "cab"]);
        check("(*pla:a)(*atomic:a|ab)c", "", &["ac"], &["abc", "bc"]);
        check("a|(*FAIL)", "", &["a"], &["b"]);
        check("^(a)?(?(1)|)$", "", &["", "a"], &["b"]);
        check(r"(x)?(?(1)a|b)(?(<n>)c|d)(?<n>e)?$", "", &["xad", "bde"], &["xb", "ac"]);
        check(r"[\Qa-z\E-]\Q+\E+", "", &["-+", "z++"], &["b+"]);
        check("[[:a]b:]]", "", &["ab:]]", "[b:]]"], &["b:]]"]);
    }

    /// The option `i` is for characters, not for properties and classes of ASCII.
    #[test]
    fn classes_of_both_cases() {
        check(r"^\p{Lu}$", "i", &["A"], &["a"]);
        check(r"^\P{Lu}$", "i", &["a"], &["A"]);
        check(r"^\p{Greek}$", "i", &["α"], &["µ"]);
        check(r"^\w$", "i", &["a", "K"], &["\u{17F}", "\u{212A}"]);
        check(r"^\W$", "i", &["\u{17F}", "\u{212A}"], &["a"]);
        check(r"^[\wé]$", "i", &["a", "É", "é"], &["\u{17F}"]);
        check(r"^[^\wé]$", "i", &["\u{17F}", "!"], &["a", "É", "é"]);
        check(r"^[^\w.-]$", "i", &["\u{17F}", "!"], &["a", ".", "-"]);
        check(r"^[^\Wk]$", "i", &["a"], &["K", "k", "\u{212A}", "."]);
        check(r"^[\dA-C\x{e9}]$", "i", &["b", "C", "1", "É"], &["d"]);
        check("^[[:alpha:]]$", "i", &["a"], &["\u{17F}"]);
        check("^[[:lower:]]$", "i", &["a", "A"], &["\u{17F}", "1"]);
        check("^[[:^upper:]]$", "i", &["1"], &["a", "A"]);
        check("(*UCP)^[[:upper:]]$", "i", &["A", "É"], &["a"]);
        check("(*UCP)^[[:graph:]]$", "", &["é", "!"], &[" ", "\u{a0}", "\u{2066}"]);
        check("(*UCP)^[[:^print:]]$", "", &["\n"], &["é", " "]);
        check(r"(*UCP)^\s$", "", &["\u{180E}", "\u{a0}"], &["a"]);
        check(r"(?<=[\wé])x", "i", &["Éx", "ax"], &["!x"]);
        check("^[s]$", "i", &["s", "S", "\u{17F}"], &["k"]);
    }

    /// Patterns that take more than a megabyte when they are compiled.
    #[test]
    fn large_patterns() {
        let long = |text: &str, times: usize| text.repeat(times);
        for (source, yes, no) in [
            (r"^.{1,1024}$", long("ä", 1024), long("ä", 1025)),
            (r"^.{0,4000}$", String::new(), long("a", 4001)),
            (r"^[^<>]{1,1000}$", long("a", 1000), long("a", 999) + "<"),
            (r"^[\s\S]{1,2000}$", long("\n", 2000), long("b", 2001)),
            (r"^[\p{L} ]{1,100}$", long("é ", 50), long("é ", 51)),
            (r"^\p{L}{1,255}$", long("é", 255), "a1".to_owned()),
            (r"(*UCP)^\w{1,255}$", long("é", 255), long("é", 256)),
            (r"^(\p{L}{1,64})@(\p{L}{1,64})$", "é@é".to_owned(), "é@".to_owned()),
        ] {
            let pattern = Pattern::new(source, "").unwrap_or_else(|error| panic!("{source}: {error}"));
            assert!(pattern.search(&yes).unwrap(), "{source}");
            assert!(!pattern.search(&no).unwrap(), "{source}");
            let groups = pattern.captures_in(&yes).next().transpose().unwrap();
            assert_eq!(groups.map(|groups| groups[0]), Some(Some((0, yes.len()))), "{source}");
        }
        let error = Pattern::new(".{60000}", "").unwrap_err();
        assert_eq!(
            (error.kind.code(), &*error.message),
            (51091, "Regular expression is invalid: regular expression is too large")
        );
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
            (r"^ab\E*$", "", "a"),
            (r"^ab\Q\E?", "", "a"),
            (r"^ab\E\Q\E{0,1}", "", "a"),
            (r"^ab\Qc\E*", "", "a"),
            (r"^ab\E*$", "", "a"),
            (r"^ab\Q\E?", "", "a"),
            (r"^ab\E\Q\E{0,1}", "", "a"),
            (r"^ab\Qc\E*", "", "a"),
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
            ("[[:foo:]]", "", 51091),
            ("[[.a.]]", "", 51091),
            ("[[=a=]]", "", 51091),
            ("[:alpha:]", "", 51091),
            ("(?<n>a)(?<n>b)", "", 51091),
            ("(?<1a>x)", "", 51091),
            ("(?<a-b>x)", "", 51091),
            ("(?<abcdefghijabcdefghijabcdefghijabc>x)", "", 51091),
            ("(?(1)a|b)", "", 51091),
            ("(?(n)a|b)", "", 51091),
            ("(?(1)a|b|c)(x)", "", 51091),
            ("a(?#", "", 51091),
            (r"\u0061", "", 51091),
            (r"\y", "", 51091),
            (r"[\B]", "", 51091),
            (r"^(a\1?){3}$", "", 51091),
            (r"(?:(b|(?<n>\k<n>x|a))){2}", "", 51091),
            (r"(a(?(1)b|c))+", "", 51091),
            (r"(?=a\Kb)", "", 51091),
            (r"^a*\G", "", 51091),
            (r"(?:\G|a)b", "", 51091),
            (r"a|\Gb", "", 51091),
            (r"[\w-.]", "", 51091),
            (r"[a-\d]", "", 51091),
            ("^*a", "", 51091),
            ("a**", "", 51091),
            ("a|*", "", 51091),
            ("(?i)*a", "", 51091),
            ("(?|(a)|(b))", "", 51091),
            ("(?J)a", "", 51091),
            ("(?C1)a", "", 51091),
            ("a(*ACCEPT)", "", 51091),
            ("a(*COMMIT)", "", 51091),
            (r"\X", "", 51091),
            (r"\C", "", 51091),
            ("(?R)", "", 51091),
            ("(a)(?1)", "", 51091),
            ("(a)(?-1)", "", 51091),
            ("a)", "", 51091),
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
        // Each state has room for all groups, so a pattern with many groups must have small parts.
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
