//! Translates patterns from PCRE's syntax into the engine's dialect.
//!
//! In PCRE `\d`, `\w`, `\s` and `\b` are ASCII's unless the pattern begins with `(*UCP)`, `$` also matches before a final newline, and in
//! classes `[`, `&&`, `--` and `~~` are literals. [`SEPARATOR`] follows each quantifier.

/// Matches the empty string. The engine merges adjacent and nested repetitions, and some of them wrongly: it takes `a+b*a+` for
/// `a+(b+a+)?`, which matches "a". A separator between them prevents that.
const SEPARATOR: &str = "x{0}";

/// Unicode properties that only PCRE has, as classes.
const PCRE_PROPERTIES: &[(&str, &str)] =
    &[("Xan", r"[\p{L}\p{N}]"), ("Xwd", r"[\p{L}\p{N}_]"), ("Xps", r"[\s]"), ("Xsp", r"[\s]")];

/// PCRE's largest number of repetitions in a quantifier.
const MAX_REPETITIONS: u64 = 65_535;

/// How a pattern is translated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    pub multi_line: bool,
    /// spaces and comments are skipped
    pub extended: bool,
    /// word boundaries are written for any text. The engine's own are Unicode's, which are the same for ASCII texts, and faster.
    pub any_text: bool,
}

/// A pattern in the engine's dialect.
#[derive(Debug)]
pub(super) struct Translated {
    pub pattern: String,
    /// the pattern has a word boundary of ASCII, and is right for ASCII texts only
    pub is_for_ascii: bool,
}

/// Verbs at the start of a pattern without an effect: patterns and texts are always UTF-8.
const UTF_VERBS: &[&str] = &["(*UTF8)", "(*UTF)"];
/// The verb by which classes and word boundaries are those of Unicode.
const UNICODE_VERB: &str = "(*UCP)";

/// Translates a pattern into the engine's dialect, or returns PCRE's error for what the engine would accept.
pub(super) fn translated(source: &str, dialect: Dialect) -> std::result::Result<Translated, &'static str> {
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

    /// A character by its octal digits: `first`, which has been read, and up to `most` more.
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
