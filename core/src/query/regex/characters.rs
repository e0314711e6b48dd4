//! What escapes and names of PCRE stand for, in the engine's dialect.

/// PCRE's largest number of repetitions in a quantifier.
const MAX_REPETITIONS: u64 = 65_535;

/// White space, with `(*UCP)`.
const UNICODE_SPACE: &str = r"\p{Z}\t\n\x0B\f\r\x{85}\x{180E}";

/// Unicode properties that only PCRE has, as members of a class.
const PCRE_PROPERTIES: &[(&str, &str)] = &[
    ("Xan", r"\p{L}\p{N}"),
    ("Xwd", r"\p{L}\p{N}_"),
    ("Xps", UNICODE_SPACE),
    ("Xsp", UNICODE_SPACE),
    ("L&", r"\p{Lu}\p{Ll}\p{Lt}"),
];

/// POSIX's classes in Unicode's properties.
const UNICODE_CLASSES: &[(&str, &str)] = &[
    ("alpha", r"\p{L}"),
    ("lower", r"\p{Ll}"),
    ("upper", r"\p{Lu}"),
    ("alnum", r"\p{L}\p{N}"),
    ("digit", r"\p{Nd}"),
    ("word", r"\p{L}\p{N}_"),
    ("space", UNICODE_SPACE),
    ("blank", r"\p{Zs}\t\x{180E}"),
    ("graph", r"[\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}]--[\x{61C}\x{180E}\x{2066}-\x{2069}]"),
    ("print", r"[\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Zs}]--[\x{61C}\x{180E}\x{2066}-\x{2069}]"),
    ("cntrl", r"\p{Cc}"),
    ("punct", r"\p{P}$+<=>^`|~"),
];

/// The names of POSIX's character classes. The engine has the same ones.
const POSIX_CLASSES: &[&str] = &[
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// The members of the class of an escaped letter such as `d`, and true if the class is negated; None if the letter has no class.
pub(super) fn shorthand(letter: char, unicode: bool) -> Option<(&'static str, bool)> {
    let members = match letter.to_ascii_lowercase() {
        'd' if unicode => r"\p{Nd}",
        'w' if unicode => r"\p{L}\p{N}_",
        's' if unicode => UNICODE_SPACE,
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => r"\t\n\x0B\f\r\x20",
        'h' => r"\t\x20\x{A0}\x{1680}\x{180E}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}",
        'v' => r"\n\x0B\f\r\x{85}\x{2028}\x{2029}",
        _ => return None,
    };
    Some((members, letter.is_ascii_uppercase()))
}

/// The members of a property that only PCRE has.
pub(super) fn property(name: &str) -> Option<&'static str> {
    PCRE_PROPERTIES.iter().find(|(property, _)| *property == name).map(|(_, members)| *members)
}

/// The class of a name of POSIX, with brackets; None for an unknown name. With the option `i`, ASCII's `lower` and `upper` are all letters.
pub(super) fn posix_class(name: &str, is_negated: bool, unicode: bool, case_insensitive: bool) -> Option<String> {
    let name = if case_insensitive && !unicode && matches!(name, "lower" | "upper") { "alpha" } else { name };
    let caret = if is_negated { "^" } else { "" };
    match UNICODE_CLASSES.iter().find(|(class, _)| unicode && *class == name) {
        Some((_, members)) => Some(format!("[{caret}{members}]")),
        None => POSIX_CLASSES.contains(&name).then(|| format!("[:{caret}{name}:]")),
    }
}

/// For a name such as `[:alpha:]`, `[.a.]` or `[=a=]` whose `[` has been read, the position of the mark (`:`, `.` or `=`) before
/// the final `]`; None if the text is no such name.
pub(super) fn posix_end(rest: &str) -> Option<usize> {
    let mark = rest.bytes().next().filter(|mark| b":.=".contains(mark))?;
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at + 1 < bytes.len() {
        match (bytes[at], bytes[at + 1]) {
            (b'\\', b']' | b'\\') => at += 1,
            (b'[', next) if next == mark => return None,
            (b']', _) => return None,
            (this, b']') if this == mark => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

/// White space that the option `x` skips.
pub(super) fn is_ignored(character: char) -> bool {
    matches!(character, '\t'..='\r' | ' ' | '\u{85}' | '\u{200E}' | '\u{200F}' | '\u{2028}' | '\u{2029}')
}

/// The least and the largest number of repetitions of a quantifier at the start of the text, and the quantifier's length; None if there is
/// no quantifier.
pub(super) fn repetitions(rest: &str) -> Option<(u64, u64, usize)> {
    match rest.bytes().next()? {
        b'*' => Some((0, u64::MAX, 1)),
        b'+' => Some((1, u64::MAX, 1)),
        b'?' => Some((0, 1, 1)),
        b'{' => {
            let inside =
                &rest[1..1 + rest[1..].bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b',').count()];
            if !rest[1 + inside.len()..].starts_with('}') {
                return None;
            }
            let number = |digits: &str| digits.parse().unwrap_or(u64::MAX);
            let (least, most) = match inside.split_once(',') {
                _ if !inside.starts_with(|first: char| first.is_ascii_digit()) => return None,
                None => (number(inside), number(inside)),
                Some((least, "")) => (number(least), MAX_REPETITIONS),
                Some((_, most)) if most.contains(',') => return None,
                Some((least, most)) => (number(least), number(most)),
            };
            Some((least, most, inside.len() + 2))
        }
        _ => None,
    }
}

/// The error in the bounds of a quantifier in braces.
pub(super) fn fault_of(least: u64, most: u64) -> Option<&'static str> {
    if least.max(most) > MAX_REPETITIONS {
        Some("number too big in {} quantifier")
    } else if least > most {
        Some("numbers out of order in {} quantifier")
    } else {
        None
    }
}

/// Writes a character that stands for itself.
pub(super) fn push_literal(literal: char, out: &mut String) {
    match literal {
        c if c.is_ascii_punctuation() && c != '<' && c != '>' => out.extend(['\\', c]),
        ' ' => out.push_str(r"\x20"),
        '\t' => out.push_str(r"\t"),
        '\n' => out.push_str(r"\n"),
        c => out.push(c),
    }
}
