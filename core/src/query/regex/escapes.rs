//! Translates escapes, backreferences and classes of PCRE into the engine's dialect.

use super::characters::{posix_class, posix_end, property, push_literal, repetitions, shorthand};
use super::dialect::{MAX_GROUPS, Translation, is_name};

/// The kind of a member of a class: one character, or a set of several.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Character,
    Several,
}

impl Translation<'_> {
    /// Reads an escape, whose backslash has been read.
    pub(super) fn escape(&mut self) {
        match self.next() {
            None => self.refuse(r"\ at end of pattern"),
            Some('Q') => self.is_quoted = true,
            Some('Z') => self.end_of_text(),
            Some('A') => self.assertion(r"\A"),
            Some('z') => self.assertion(r"\z"),
            // If `\G` fails, the engine does not retry with a shorter match of what precedes it: only `\G` at the start works.
            Some('G') if self.is_after_solid() => self.refuse(r"\G is only supported at the start"),
            Some('G') => self.hard_assertion(r"\G"),
            Some('K') if self.is_in_lookaround() => self.refuse(r"\K is not allowed in lookarounds"),
            Some('K') => self.hard_assertion(r"\K"),
            Some(letter @ ('b' | 'B')) => self.boundary(letter),
            Some('R') => {
                // The group is atomic, so that a carriage return and a newline are not divided.
                self.is_hard = true;
                self.out.push_str(r"(?>\r\n|[\n\x0B\f\r\x{85}\x{2028}\x{2029}])");
                self.atom(true);
            }
            Some('N') if !self.rest.starts_with('{') || repetitions(self.rest).is_some() => {
                self.out.push_str(r"[^\n]");
                self.atom(true);
            }
            Some(letter @ ('g' | 'k')) => self.reference(letter),
            Some(digit @ '1'..='9') => self.number(digit),
            Some(letter) => {
                if matches!(letter, 'p' | 'P') || shorthand(letter, self.unicode).is_some() {
                    self.exactly(|translation| match shorthand(letter, translation.unicode) {
                        Some((members, negated)) => translation.push_class(members, negated),
                        None => translation.property(letter == 'P'),
                    });
                } else {
                    self.character_or_property(letter);
                }
                self.atom(true);
            }
        }
    }

    /// Writes something to which the option `i` does not apply.
    fn exactly(&mut self, write: impl FnOnce(&mut Self)) {
        if !self.options.case_insensitive {
            return write(self);
        }
        self.out.push_str("(?-i:");
        write(self);
        self.out.push(')');
    }

    fn push_class(&mut self, members: &str, negated: bool) {
        self.out.push_str(if negated { "[^" } else { "[" });
        self.out.push_str(members);
        self.out.push(']');
    }

    /// Writes an escape that means the same inside and outside of classes. The callers handle the classes of [`shorthand`].
    fn character_or_property(&mut self, letter: char) -> Member {
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
            'p' | 'P' => {
                self.property(letter == 'P');
                return Member::Several;
            }
            'a' | 'e' | 'f' | 'n' | 'r' | 't' => self.out.extend(['\\', letter]),
            'C' | 'X' => self.refuse(r"\C and \X are not supported"),
            'F' | 'L' | 'l' | 'N' | 'U' | 'u' => self.refuse(r"\F, \L, \l, \N{name}, \U, or \u are not supported"),
            letter if letter.is_ascii_alphanumeric() => self.refuse(r"unrecognized character follows \"),
            literal => push_literal(literal, &mut self.out),
        }
        Member::Character
    }

    /// Reads and writes a property: a letter, or a name in braces.
    fn property(&mut self, negated: bool) {
        let (name, rest) = match self.rest.strip_prefix('{') {
            Some(inside) => inside.split_once('}').unwrap_or_default(),
            None => self.rest.split_at(self.rest.chars().next().map_or(0, char::len_utf8)),
        };
        self.rest = rest;
        let (name, negated) = match name.strip_prefix('^') {
            Some(name) => (name, !negated),
            None => (name, negated),
        };
        if name.is_empty() {
            return self.refuse(r"malformed \P or \p sequence");
        }
        match property(name) {
            Some(members) => self.push_class(members, negated),
            None => self.out.push_str(&format!(r"\{}{{{name}}}", if negated { 'P' } else { 'p' })),
        }
    }

    /// Reads digits after a backslash. They are a backreference if there is only one digit, if the first is 8 or 9, or if at least that
    /// many groups have begun before; otherwise up to three octal digits of a character.
    fn number(&mut self, first: char) {
        let more = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest[..more].bytes().fold(u32::from(first) - u32::from('0'), |number, digit| {
            number.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
        });
        if more == 0 || first >= '8' || number as usize <= self.captures {
            self.rest = &self.rest[more..];
            return self.push_reference(Some(number as usize), &format!(r"\{number}"));
        }
        self.octal(first, 2);
        self.atom(true);
    }

    fn push_reference(&mut self, number: Option<usize>, reference: &str) {
        self.refuse_within(number);
        self.is_hard = true;
        self.out.push_str("(?:");
        self.out.push_str(reference);
        self.out.push(')');
        self.atom(false);
    }

    /// Reads and writes a character by its octal digits: `first`, which has been read, and up to `most` more.
    fn octal(&mut self, first: char, most: usize) {
        let digits = self.rest.bytes().take(most).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
        let number = self.rest[..digits]
            .bytes()
            .fold(u32::from(first) - u32::from('0'), |number, digit| number * 8 + u32::from(digit - b'0'));
        self.rest = &self.rest[digits..];
        self.push_code(Some(number));
    }

    /// Reads a character's number in braces after `start`, which includes the opening brace, and writes the character.
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

    /// Reads a backreference: `\g1`, `\g{-1}`, `\k<name>`.
    fn reference(&mut self, letter: char) {
        let within = |open, close| self.rest.strip_prefix(open)?.split_once(close);
        let named =
            within('{', '}').or_else(|| if letter == 'k' { within('<', '>').or(within('\'', '\'')) } else { None });
        let signed = self.rest.strip_prefix(['+', '-']).unwrap_or(self.rest);
        let digits = signed.trim_start_matches(|c: char| c.is_ascii_digit());
        let plain =
            (letter == 'g' && digits.len() < signed.len()).then(|| self.rest.split_at(self.rest.len() - digits.len()));
        match named.or(plain) {
            Some((name, rest)) => {
                self.rest = rest;
                self.refer(name);
            }
            None if letter == 'g' => self.refuse_call(),
            None => self.refuse(r"\k is not followed by a braced, angle-bracketed, or quoted name"),
        }
    }

    /// Writes a backreference to a group's number or name.
    pub(super) fn refer(&mut self, name: &str) {
        match self.number_of(name) {
            Some(number) if (1..=MAX_GROUPS).contains(&number) => {
                self.push_reference(Some(number), &format!(r"\{number}"));
            }
            Some(_) => self.refuse("reference to non-existent subpattern"),
            None if is_name(name) => self.push_reference(self.named(name), &format!(r"\k<{name}>")),
            None => self.refuse("syntax error in subpattern name (missing terminator?)"),
        }
    }

    /// Reads a class, or a word boundary such as `[[:<:]]`, whose first bracket has been read.
    pub(super) fn bracket(&mut self) {
        if posix_end(self.rest).is_some() {
            self.refuse("POSIX named classes are supported only within a class");
        } else if self.reads("[:<:]]") {
            self.boundary('b');
            self.hard_assertion("(?=[0-9A-Za-z_])");
        } else if self.reads("[:>:]]") {
            self.boundary('b');
            self.hard_assertion("(?<=[0-9A-Za-z_])");
        } else {
            self.class();
            self.atom(true);
        }
    }

    fn class(&mut self) {
        let negated = self.reads("^");
        let before = self.out.len();
        // The members to which the option `i` applies, and the other ones.
        let (mut folded, mut exact) = (String::new(), String::new());
        let mut is_first = true;
        while self.skip_in_class() {
            if !is_first && !self.is_quoted && self.reads("]") {
                return self.write_class(negated, &folded, &exact);
            }
            is_first = false;
            let start = self.member();
            let mut is_range = false;
            // A hyphen before the end is a member.
            if !self.is_quoted && self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                if start == Member::Several {
                    return self.refuse("invalid range in character class");
                }
                self.reads("-");
                self.out.push('-');
                if !self.skip_in_class() {
                    break;
                }
                if !self.is_quoted && self.rest.starts_with(']') {
                    self.out.insert(self.out.len() - 1, '\\');
                } else if self.member() == Member::Several {
                    return self.refuse("invalid range in character class");
                } else {
                    is_range = true;
                }
            }
            let written = self.out.split_off(before);
            let has_case = start == Member::Character && (is_range || has_case(&written));
            if has_case { &mut folded } else { &mut exact }.push_str(&written);
        }
        self.refuse("missing terminating ] for character class");
    }

    /// Writes a class. With the option `i`, the engine ignores the case of all members, PCRE only that of single characters and ranges.
    fn write_class(&mut self, negated: bool, folded: &str, exact: &str) {
        let caret = if negated { "^" } else { "" };
        if exact.is_empty() || !self.options.case_insensitive {
            self.out.push_str(&format!("[{caret}{folded}{exact}]"));
        } else if folded.is_empty() {
            self.out.push_str(&format!("(?-i:[{caret}{exact}])"));
        } else if negated {
            self.is_hard = true;
            self.out.push_str(&format!("(?:(?![{folded}])(?-i:[^{exact}]))"));
        } else {
            self.out.push_str(&format!("(?:[{folded}]|(?-i:[{exact}]))"));
        }
    }

    /// Skips what matches nothing in a class; false at the end of the pattern.
    fn skip_in_class(&mut self) -> bool {
        loop {
            if self.reads("\\E") {
                self.is_quoted = false;
            } else if !self.is_quoted && self.reads("\\Q") {
                self.is_quoted = true;
            } else if self.is_quoted || !self.options.extended_more || !(self.reads(" ") || self.reads("\t")) {
                return !self.rest.is_empty();
            }
        }
    }

    /// Reads a member of a class.
    fn member(&mut self) -> Member {
        match self.next() {
            Some('\\') if !self.is_quoted => self.escaped_member(),
            Some('[') if !self.is_quoted => match posix_end(self.rest) {
                Some(end) => self.posix(end),
                None => self.literal_member('['),
            },
            Some(literal) => self.literal_member(literal),
            None => Member::Character,
        }
    }

    fn literal_member(&mut self, literal: char) -> Member {
        push_literal(literal, &mut self.out);
        Member::Character
    }

    /// Reads and writes a named class of POSIX. `end`: the position of the mark before the last bracket.
    fn posix(&mut self, end: usize) -> Member {
        let (name, rest) = self.rest.split_at(end);
        self.rest = &rest[2..];
        let Some(name) = name.strip_prefix(':') else {
            self.refuse("POSIX collating elements are not supported");
            return Member::Several;
        };
        let (name, is_negated) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
        match posix_class(name, is_negated, self.unicode, self.options.case_insensitive) {
            Some(class) => self.out.push_str(&class),
            None => self.refuse("unknown POSIX class name"),
        }
        Member::Several
    }

    fn escaped_member(&mut self) -> Member {
        match self.next() {
            None => self.refuse(r"\ at end of pattern"),
            Some('b') => self.out.push_str(r"\x08"),
            Some(digit @ '1'..='7') => self.octal(digit, 2),
            Some(digit @ '8'..='9') => self.out.push(digit),
            Some('A' | 'B' | 'G' | 'K' | 'R' | 'X' | 'Z' | 'g' | 'k' | 'z') => {
                self.refuse("escape sequence is invalid in character class");
            }
            Some(letter) => match shorthand(letter, self.unicode) {
                Some((members, negated)) => {
                    if negated {
                        self.push_class(members, true);
                    } else {
                        self.out.push_str(members);
                    }
                    return Member::Several;
                }
                None => return self.character_or_property(letter),
            },
        }
        Member::Character
    }
}

/// False for a member of a class that is certainly no letter.
fn has_case(member: &str) -> bool {
    match member.strip_prefix('\\') {
        Some(escape) if escape.starts_with(['a', 'e', 'f', 'n', 'r', 't']) => false,
        Some(_) | None => member.chars().any(char::is_alphabetic),
    }
}
