//! Translates patterns from PCRE's syntax into the engine's dialect.
//!
//! In PCRE, unlike in the engine, `\d`, `\w`, `\s` and `\b` are ASCII's unless the pattern begins with `(*UCP)`, `$` also matches
//! before a final newline, `^` with `m` does not match after a final newline, and in classes `[`, `&&`, `--` and `~~` are
//! literals. The translated pattern has no white space that is skipped, no comments, and of the options only `i` and `U`.
//! [`SEPARATOR`] follows each quantifier.
//!
//! How `$` and `^` must be written depends on what follows them. So they are remembered as [`Place`]s, and written at the end.

use super::characters::{fault_of, is_ignored, push_literal, repetitions};
use std::collections::HashMap;

/// Matches the empty string. The engine merges adjacent and nested repetitions, and some of them wrongly: it takes `a+b*a+` for
/// `a+(b+a+)?`, which matches "a". A separator between them prevents that. Also, the engine repeats a group that has nothing but assertions
/// only if there is a separator in it.
const SEPARATOR: &str = "x{0}";

/// Largest depth of groups: PCRE's limit.
const MAX_DEPTH: usize = 250;

/// Largest number of bytes of a group's name: PCRE's limit.
const MAX_NAME_BYTES: usize = 32;

/// Largest number of places of one alternative that wait for what follows them.
const MAX_PENDING: usize = 64;

/// PCRE's largest number of groups.
pub(super) const MAX_GROUPS: usize = 65_535;

/// The options of a pattern, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub case_insensitive: bool,
    pub multi_line: bool,
    pub dot_matches_new_line: bool,
    /// spaces and comments are skipped
    pub extended: bool,
    /// spaces and tabs in classes are skipped, too
    pub extended_more: bool,
    /// a quantifier prefers the shortest match
    pub swaps_greed: bool,
    /// only groups with a name capture
    pub no_capture: bool,
}

/// A pattern in the engine's dialect.
#[derive(Debug)]
pub(super) struct Translated {
    pub pattern: String,
    /// The numbers, in order, of the capturing groups that the translation has added. Each matches the final newline before which a `$`
    /// matched. These groups, and the newline at the end of the match and of other groups, must be removed from the result.
    pub ends: Vec<usize>,
    /// the engine may have to backtrack
    pub is_hard: bool,
    /// the pattern has a word boundary of ASCII, and is right for ASCII texts only
    pub is_for_ascii: bool,
}

/// Verbs that may start a pattern, and have no effect: patterns and texts are always UTF-8.
const UTF_VERBS: &[&str] = &["(*UTF8)", "(*UTF)"];
/// The verb by which classes and word boundaries are those of Unicode.
const UNICODE_VERB: &str = "(*UCP)";

/// Translates a pattern into the engine's dialect. Returns an error for what PCRE refuses but the engine would accept, and
/// for what is not supported. Other errors are left to the engine.
///
/// With `any_text`, the word boundaries of ASCII are written as lookarounds, which is right for all texts. Without it, they are
/// written as the engine's `\b`, which is faster, but follows Unicode and so is right for ASCII texts only.
pub(super) fn translated(
    source: &str,
    options: Options,
    any_text: bool,
) -> std::result::Result<Translated, &'static str> {
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
        any_text,
        unicode,
        options,
        is_quoted: false,
        groups: vec![Group::new(Kind::Plain, options, 0)],
        places: Vec::new(),
        captures: 0,
        names: HashMap::new(),
        conditions: Vec::new(),
        highest_condition: 0,
        is_hard: false,
        is_for_ascii: false,
        fault: None,
    };
    if options.case_insensitive {
        translation.out.push_str("(?i)");
    }
    translation.pattern();
    translation.finished()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// a lookbehind; true if it is negative
    LookBehind(bool),
    LookAhead,
    Condition,
    Capture,
    /// also the whole pattern
    Plain,
}

/// An open group.
struct Group {
    kind: Kind,
    /// the options before the group
    options: Options,
    /// the index of the place before the group
    start: usize,
    /// the number of capturing groups before the group
    captures: usize,
    /// true if the group has more than assertions; the engine refuses to repeat groups of assertions only
    is_solid: bool,
    /// true if the present alternative consumes a character, whatever the text
    consumes: bool,
    /// true if each of the earlier alternatives consumes a character, whatever the text
    all_consume: bool,
    /// the places in the present alternative that wait: what follows may still set their `is_followed`
    pending: Vec<usize>,
    /// the places that still waited at the ends of the earlier alternatives
    ended: Vec<usize>,
    /// the number of `|`
    bars: usize,
}

/// A place in the translation where [`Translation::finished`] inserts text.
struct Place {
    at: usize,
    what: Insertion,
    /// the number of capturing groups before it
    captures: usize,
    /// for `$`: something follows; for `^`: something follows that consumes a character, whatever the text
    is_followed: bool,
}

enum Insertion {
    /// `$` without `m`, or `\Z`
    End,
    /// `^` with `m`
    LineStart,
    Text(&'static str),
}

pub(super) struct Translation<'p> {
    pub(super) rest: &'p str,
    pub(super) out: String,
    any_text: bool,
    /// classes and word boundaries are Unicode's
    pub(super) unicode: bool,
    pub(super) options: Options,
    /// inside `\Q…\E`
    pub(super) is_quoted: bool,
    /// the open groups; the first is the whole pattern
    groups: Vec<Group>,
    places: Vec<Place>,
    /// the number of capturing groups so far
    pub(super) captures: usize,
    /// the numbers of the groups that have a name
    names: HashMap<&'p str, usize>,
    /// the names of groups in conditions
    conditions: Vec<&'p str>,
    /// the highest number of a group in conditions
    highest_condition: usize,
    /// the pattern has something for which the engine must backtrack, so that an assertion for `$` does not make it slower
    pub(super) is_hard: bool,
    is_for_ascii: bool,
    fault: Option<&'static str>,
}

impl Group {
    fn new(kind: Kind, options: Options, start: usize) -> Group {
        Group {
            kind,
            options,
            start,
            captures: 0,
            is_solid: false,
            consumes: false,
            all_consume: true,
            pending: Vec::new(),
            ended: Vec::new(),
            bars: 0,
        }
    }
}

impl<'p> Translation<'p> {
    pub(super) fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next()?;
        self.rest = chars.as_str();
        Some(next)
    }

    /// Reads this text, if it is next.
    pub(super) fn reads(&mut self, text: &str) -> bool {
        self.rest.strip_prefix(text).map(|rest| self.rest = rest).is_some()
    }

    pub(super) fn refuse(&mut self, why: &'static str) {
        self.fault = self.fault.or(Some(why));
    }

    /// Skips what matches nothing: comments, white space with the option `x`, empty quotations, and the ends of quotations.
    fn skip(&mut self) {
        loop {
            if self.reads("\\E") {
                self.is_quoted = false;
            } else if self.is_quoted {
                return;
            } else if self.reads("\\Q\\E") {
            } else if self.rest.starts_with("(?#") {
                match self.rest.find(')') {
                    Some(end) => self.rest = &self.rest[end + 1..],
                    None => {
                        self.rest = "";
                        self.refuse("missing ) after (?# comment");
                    }
                }
            } else if self.options.extended && self.rest.starts_with('#') {
                self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
            } else if self.options.extended && self.rest.starts_with(is_ignored) {
                self.rest = self.rest.trim_start_matches(is_ignored);
            } else {
                return;
            }
        }
    }

    fn pattern(&mut self) {
        loop {
            self.skip();
            if self.fault.is_some() {
                return;
            }
            if !self.is_quoted && repetitions(self.rest).is_some() {
                return self.refuse("quantifier does not follow a repeatable item");
            }
            let Some(next) = self.next() else { return };
            match next {
                literal if self.is_quoted => {
                    push_literal(literal, &mut self.out);
                    self.atom(true);
                }
                '\\' => self.escape(),
                '[' => self.bracket(),
                '$' if self.options.multi_line => self.assertion("(?m:$)"),
                '$' => self.end_of_text(),
                '^' if self.options.multi_line => {
                    self.place(Insertion::LineStart);
                    self.assertion("");
                }
                '^' => self.assertion("^"),
                '.' => {
                    self.out.push_str(if self.options.dot_matches_new_line { "(?s:.)" } else { "." });
                    self.atom(true);
                }
                '{' | '}' => {
                    push_literal(next, &mut self.out);
                    self.atom(true);
                }
                '(' => self.open(),
                ')' => self.close(),
                '|' => self.alternative(),
                other => {
                    self.out.push(other);
                    self.atom(true);
                }
            }
        }
    }

    fn group(&mut self) -> &mut Group {
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    /// Marks a place, and returns its index. `$` and `^` wait for what follows.
    fn place(&mut self, what: Insertion) -> usize {
        let (index, waits) = (self.places.len(), !matches!(what, Insertion::Text(_)));
        self.places.push(Place { at: self.out.len(), what, captures: self.captures, is_followed: false });
        if waits {
            self.followed(false);
            self.wait(index, true);
        }
        index
    }

    /// Notes that an item follows the places that wait in this alternative. `consumes`: it consumes a character, whatever the text.
    fn followed(&mut self, consumes: bool) {
        let places = &mut self.places;
        let last = self.groups.len() - 1;
        let group = &mut self.groups[last];
        group.consumes |= consumes;
        group.pending.retain(|index| {
            let place = &mut places[*index];
            place.is_followed |= consumes || matches!(place.what, Insertion::End);
            !place.is_followed
        });
    }

    /// Writes an assertion, after which no quantifier is allowed.
    pub(super) fn assertion(&mut self, assertion: &str) {
        if !assertion.is_empty() {
            self.followed(false);
        }
        self.out.push_str(assertion);
    }

    /// True if anything but assertions precedes the escape that has just been read, or if the escape is in a group and more follows there.
    pub(super) fn is_after_solid(&self) -> bool {
        let is_only = self.groups.len() == 1 || self.rest.starts_with(')');
        !is_only || self.groups.iter().any(|group| group.is_solid)
    }

    /// Writes an assertion for which the engine backtracks.
    pub(super) fn hard_assertion(&mut self, assertion: &str) {
        self.is_hard = true;
        self.assertion(assertion);
    }

    pub(super) fn end_of_text(&mut self) {
        self.place(Insertion::End);
    }

    /// Ends an item that has been written: reads its quantifier. `consumes`: the item consumes a character, whatever the text.
    pub(super) fn atom(&mut self, consumes: bool) {
        self.group().is_solid = true;
        let least = self.quantifier().map_or(1, |(least, _)| least);
        self.followed(consumes && least > 0);
    }

    /// Copies a quantifier, with a `?` or `+` after it, and returns its bounds; None if there is no quantifier.
    fn quantifier(&mut self) -> Option<(u64, u64)> {
        let (least, most, text) = self.read_quantifier()?;
        self.out.push_str(text);
        self.greed();
        self.out.push_str(SEPARATOR);
        Some((least, most))
    }

    fn read_quantifier(&mut self) -> Option<(u64, u64, &'p str)> {
        self.skip();
        if self.is_quoted {
            return None;
        }
        let (least, most, length) = repetitions(self.rest)?;
        let (text, rest) = self.rest.split_at(length);
        if text.starts_with('{') {
            self.fault = self.fault.or_else(|| fault_of(least, most));
        }
        self.rest = rest;
        Some((least, most, text))
    }

    /// Copies a `?` or `+` after a quantifier.
    fn greed(&mut self) {
        self.skip();
        if self.is_quoted {
            return;
        }
        if self.reads("+") {
            self.is_hard = true;
            // A possessive quantifier is greedy, also with `U`.
            self.out.push_str(if self.options.swaps_greed { "?+" } else { "+" });
        } else if self.reads("?") {
            self.out.push('?');
        }
    }

    /// Reads the start of a group, whose parenthesis has been read.
    fn open(&mut self) {
        const STARTS: &[(&str, &str, Kind)] = &[
            ("?:", "(?:", Kind::Plain),
            ("?>", "(?>", Kind::Plain),
            ("*atomic:", "(?>", Kind::Plain),
            ("?=", "(?=", Kind::LookAhead),
            ("*pla:", "(?=", Kind::LookAhead),
            ("*positive_lookahead:", "(?=", Kind::LookAhead),
            ("?!", "(?!", Kind::LookAhead),
            ("*nla:", "(?!", Kind::LookAhead),
            ("*negative_lookahead:", "(?!", Kind::LookAhead),
            ("?<=", "(?:", Kind::LookBehind(false)),
            ("*plb:", "(?:", Kind::LookBehind(false)),
            ("*positive_lookbehind:", "(?:", Kind::LookBehind(false)),
            ("?<!", "(?:", Kind::LookBehind(true)),
            ("*nlb:", "(?:", Kind::LookBehind(true)),
            ("*negative_lookbehind:", "(?:", Kind::LookBehind(true)),
        ];
        if let Some((start, written, kind)) = STARTS.iter().find(|(start, ..)| self.rest.starts_with(start)) {
            self.rest = &self.rest[start.len()..];
            self.is_hard |= *written != "(?:" || *kind != Kind::Plain;
            self.push_group(*kind, written);
            if let Kind::LookBehind(negated) = kind {
                self.look_behind(*negated);
            }
        } else if self.reads("*FAIL)") || self.reads("*F)") {
            self.out.push_str(r"[^\s\S]");
            self.atom(true);
        } else if self.rest.starts_with('*') {
            self.refuse("this verb is not supported");
        } else if self.reads("?(") {
            self.condition();
        } else if self.reads("?P=") {
            match self.rest.split_once(')') {
                Some((name, rest)) => {
                    self.rest = rest;
                    self.refer(name);
                }
                None => self.refuse("missing closing parenthesis"),
            }
        } else if let Some(close) = ["?<", "?P<", "?'"].iter().find(|start| self.reads(start)) {
            self.name(if close.ends_with('<') { '>' } else { '\'' });
        } else if self.reads("?") {
            self.flags();
        } else if self.options.no_capture {
            self.push_group(Kind::Plain, "(?:");
        } else {
            self.push_group(Kind::Capture, "(");
        }
    }

    fn push_group(&mut self, kind: Kind, written: &str) {
        // The group follows the places that wait. Whether it consumes a character is known at its end.
        self.followed(false);
        if self.groups.len() > MAX_DEPTH {
            self.refuse("parentheses are too deeply nested");
        }
        let start = self.place(Insertion::Text(""));
        self.groups.push(Group { captures: self.captures, ..Group::new(kind, self.options, start) });
        self.captures += usize::from(kind == Kind::Capture);
        self.out.push_str(written);
    }

    /// Reads a group's name, and the mark that ends the name.
    fn name(&mut self, close: char) {
        let Some((name, rest)) = self.rest.split_once(close) else {
            return self.refuse("syntax error in subpattern name (missing terminator?)");
        };
        self.rest = rest;
        if !is_name(name) {
            return self
                .refuse("subpattern name must be of up to 32 letters, digits and _, and not start with a digit");
        }
        if self.names.insert(name, self.captures + 1).is_some() {
            return self.refuse("two named subpatterns have the same name");
        }
        self.push_group(Kind::Capture, "(?<");
        self.out.push_str(name);
        self.out.push('>');
    }

    /// Reads options: up to `)`, for the rest of the open group, or up to `:`, for the new group that begins there.
    fn flags(&mut self) {
        let mut options = self.options;
        let mut value = true;
        let is_reset = self.reads("^");
        if is_reset {
            options = Options { swaps_greed: options.swaps_greed, ..Options::default() };
        }
        loop {
            match self.next() {
                Some('i') => options.case_insensitive = value,
                Some('m') => options.multi_line = value,
                Some('s') => options.dot_matches_new_line = value,
                Some('x') => {
                    options.extended = value;
                    options.extended_more = self.reads("x") && value;
                }
                Some('n') => options.no_capture = value,
                Some('U') => options.swaps_greed = value,
                Some('-') if value && !is_reset && !self.rest.starts_with(|next: char| next.is_ascii_digit()) => {
                    value = false;
                }
                Some(')') => return self.set_options(options),
                Some(':') => {
                    self.push_group(Kind::Plain, "(?:");
                    return self.set_options(options);
                }
                Some('R' | '&' | 'P' | '0'..='9' | '+' | '-') => return self.refuse_call(),
                Some('|' | 'J' | 'C' | '*' | '<') => return self.refuse("this kind of group is not supported"),
                _ => return self.refuse("unrecognized character after (? or (?-"),
            }
        }
    }

    /// Sets the options, and writes the changes of those that the engine knows.
    fn set_options(&mut self, options: Options) {
        let before = std::mem::replace(&mut self.options, options);
        for (was, is, letter) in
            [(before.case_insensitive, options.case_insensitive, 'i'), (before.swaps_greed, options.swaps_greed, 'U')]
        {
            if was != is {
                self.out.push_str(if is { "(?" } else { "(?-" });
                self.out.push(letter);
                self.out.push(')');
            }
        }
    }

    /// Reads a condition, whose second parenthesis has been read: an assertion, a group's number or its name.
    fn condition(&mut self) {
        self.is_hard = true;
        self.push_group(Kind::Condition, "(?");
        if ["?=", "?!", "?<=", "?<!"].iter().any(|look| self.rest.starts_with(look)) {
            return self.open();
        }
        let Some((named, rest)) = self.rest.split_once(')') else {
            return self.refuse("missing closing parenthesis for condition");
        };
        self.rest = rest;
        let stripped = |open, close| named.strip_prefix(open)?.strip_suffix(close);
        let name = stripped('<', '>').or_else(|| stripped('\'', '\'')).unwrap_or(named);
        match self.number_of(name) {
            Some(number) => {
                if number == 0 || number > MAX_GROUPS {
                    return self.refuse("reference to non-existent subpattern");
                }
                self.refuse_within(Some(number));
                self.out.push_str(&format!("({number}){SEPARATOR}"));
                self.highest_condition = self.highest_condition.max(number);
            }
            None if !is_name(name) || name == "R" || name == "DEFINE" => {
                self.refuse("this condition is malformed or not supported");
            }
            None => {
                self.refuse_within(self.named(name));
                self.conditions.push(name);
                self.out.push_str(&format!("(<{name}>){SEPARATOR}"));
            }
        }
    }

    /// A group's number, which may be relative; None if the text is not a number.
    pub(super) fn number_of(&self, number: &str) -> Option<usize> {
        let digits = number.trim_start_matches(['+', '-']);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let value = digits.parse::<u16>().map_or(MAX_GROUPS + 1, usize::from);
        match &number[..number.len() - digits.len()] {
            "" => Some(value),
            "+" if value > 0 => Some(self.captures + value),
            "-" if value > 0 => Some((self.captures + 1).saturating_sub(value)),
            _ => None,
        }
    }

    /// The number of the group with this name, if it has been read already.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Refuses a reference to a group from inside the group: in PCRE such a reference stands for the group's match in the previous
    /// repetition, in the engine it does not.
    pub(super) fn refuse_within(&mut self, number: Option<usize>) {
        let mut captures = self.groups.iter().filter(|group| group.kind == Kind::Capture);
        if captures.any(|group| Some(group.captures + 1) == number) {
            self.refuse("references to a group from within it are not supported");
        }
    }

    pub(super) fn is_in_lookaround(&self) -> bool {
        self.groups.iter().any(|group| matches!(group.kind, Kind::LookBehind(_) | Kind::LookAhead))
    }

    /// Ends a group.
    fn close(&mut self) {
        if self.groups.len() == 1 {
            return self.refuse("unmatched closing parenthesis");
        }
        let Some(mut group) = self.groups.pop() else { return };
        self.set_options(group.options);
        let kind = group.kind;
        if kind == Kind::Condition && group.bars > 1 {
            self.refuse("conditional subpattern contains more than two branches");
        }
        let is_look = matches!(kind, Kind::LookBehind(_) | Kind::LookAhead);
        self.skip();
        let repeated = if self.is_quoted { None } else { repetitions(self.rest) };
        let is_never = matches!(repeated, Some((_, 0, _))) && self.captures > group.captures;
        if repeated.is_some() && !group.is_solid && !is_look {
            self.out.push_str(SEPARATOR);
        }
        self.out.push_str(if matches!(kind, Kind::LookBehind(_)) { "))" } else { ")" });
        if is_look || is_never {
            if let Some((least, ..)) = self.read_quantifier() {
                // An assertion is written only once, as repeating it changes nothing. Capturing groups that are repeated zero times remain,
                // so that the numbers of groups stay the same, but they never match.
                self.places[group.start].what = Insertion::Text(if is_never { r"(?:[^\s\S]" } else { "(?:" });
                self.out.push_str(SEPARATOR);
                self.out.push_str(if least > 0 { "){1}" } else { ")?" });
                self.greed();
                self.out.push_str(SEPARATOR);
            }
        } else {
            self.quantifier();
        }
        let consumes = group.all_consume && group.consumes && !is_look && kind != Kind::Condition;
        self.followed(consumes && repeated.is_none_or(|(least, ..)| least > 0));
        self.group().is_solid |= match kind {
            Kind::Capture | Kind::Condition => true,
            _ => repeated.is_some() || !is_look && group.is_solid,
        };
        group.ended.append(&mut group.pending);
        for index in group.ended {
            let is_apart = is_look || repeated.is_some() && matches!(self.places[index].what, Insertion::End);
            self.wait(index, !is_apart);
        }
    }

    /// Lets a place wait for what follows in this alternative. If it cannot wait, it is treated as a place that needs an assertion.
    fn wait(&mut self, index: usize, can_wait: bool) {
        let pending = &mut self.group().pending;
        if can_wait && pending.len() < MAX_PENDING {
            return pending.push(index);
        }
        let place = &mut self.places[index];
        place.is_followed = matches!(place.what, Insertion::End);
    }

    fn alternative(&mut self) {
        let group = self.group();
        group.bars += 1;
        group.all_consume &= std::mem::take(&mut group.consumes);
        let pending = std::mem::take(&mut group.pending);
        group.ended.extend(pending);
        match group.kind {
            // In the engine all alternatives of a lookbehind must have one length, in PCRE each may have its own. So each becomes a
            // lookbehind.
            Kind::LookBehind(negated) => {
                self.out.push_str(if negated { ")" } else { ")|" });
                self.look_behind(negated);
            }
            _ => self.out.push('|'),
        }
    }

    /// Starts a lookbehind. The separator keeps the engine from looking for alternatives inside a group that is the whole lookbehind.
    fn look_behind(&mut self, negated: bool) {
        self.out.push_str(if negated { "(?<!" } else { "(?<=" });
        self.out.push_str(SEPARATOR);
    }

    /// Returns the translation, with the texts of all places inserted, or the first error.
    fn finished(mut self) -> std::result::Result<Translated, &'static str> {
        if self.groups.len() > 1 {
            self.refuse("missing closing parenthesis");
        }
        if self.highest_condition > self.captures || self.conditions.iter().any(|name| !self.names.contains_key(name)) {
            self.refuse("reference to non-existent subpattern");
        }
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let needs_assertion = |place: &Place| match place.what {
            Insertion::End => place.is_followed,
            Insertion::LineStart => !place.is_followed,
            Insertion::Text(_) => false,
        };
        let is_hard = self.is_hard || self.places.iter().any(needs_assertion);
        let (mut pattern, mut written) = (String::with_capacity(self.out.len() + 16), 0);
        let mut ends = Vec::new();
        for place in &self.places {
            pattern.push_str(&self.out[written..place.at]);
            written = place.at;
            pattern.push_str(match place.what {
                Insertion::Text(text) => text,
                Insertion::LineStart if needs_assertion(place) => r"(?:\A|(?m:^)(?!\z))",
                Insertion::LineStart => "(?m:^)",
                Insertion::End if is_hard => r"(?=\n?\z)",
                Insertion::End => {
                    ends.push(place.captures + ends.len() + 1);
                    r"(\n?)\z"
                }
            });
        }
        pattern.push_str(&self.out[written..]);
        Ok(Translated { pattern, ends, is_hard, is_for_ascii: self.is_for_ascii })
    }

    /// Writes an assertion: for `b` that there is a word boundary, for `B` that there is none.
    pub(super) fn boundary(&mut self, letter: char) {
        if self.unicode || !self.any_text {
            self.is_for_ascii |= !self.unicode;
            return self.assertion(if letter == 'b' { r"\b" } else { r"\B" });
        }
        self.hard_assertion(if letter == 'b' {
            r"(?-i:(?<![0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<=[0-9A-Za-z_])(?![0-9A-Za-z_]))"
        } else {
            r"(?-i:(?<![0-9A-Za-z_])(?![0-9A-Za-z_])|(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_]))"
        });
    }

    /// Refuses a call of a group. The engine copies the group for each call, recursively, so pattern and stack could grow without
    /// bound.
    pub(super) fn refuse_call(&mut self) {
        self.refuse("calls of groups are not supported");
    }
}

/// True for what PCRE takes as a group's name.
pub(super) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && !name.starts_with(char::is_numeric)
        && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}
