//! No file of `src/` looks for a meaning in an error's texts: kind, SQLSTATE, shards and `retry` say what it means.

use super::source::{Source, Violations};

/// The fields of an error that are texts.
const TEXTS: &[&str] = &["message", "detail", "hint", "context"];

/// What looks for something in a text.
const SEARCHES: &[&str] = &[
    "starts_with",
    "ends_with",
    "contains",
    "strip_prefix",
    "strip_suffix",
    "find",
    "split",
    "split_once",
    "rsplit_once",
];

/// What may stand between a text and the search.
const BETWEEN: &[&str] =
    &["as_deref", "as_str", "as_ref", "unwrap_or_default", "is_some_and", "is_none_or", "and_then", "trim"];

/// This file reads what only PostgreSQL's texts have: the index and the key of a unique violation, in any language.
const READS_POSTGRESQL: &str = "src/catalog/collections/duplicate.rs";

/// True if the code after a text's name searches the text, or compares it.
fn reads_text(mut code: &str) -> bool {
    loop {
        code = code.trim_start();
        if code.starts_with("==") || code.starts_with("!=") {
            return true;
        }
        let Some(call) = code.trim_start_matches(['?', ')']).trim_start().strip_prefix('.') else { return false };
        let end = call.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(call.len());
        let (name, rest) = call.split_at(end);
        if SEARCHES.contains(&name) {
            return true;
        }
        if !BETWEEN.contains(&name) {
            return false;
        }
        let Some(inside) = rest.strip_prefix('(') else { return false };
        // A closure names the text once more: `|text| text.starts_with("…")`.
        code = match inside.strip_prefix('|').and_then(|closure| closure.split_once('|')) {
            Some((text, body)) => body.trim_start().strip_prefix(text).unwrap_or_default(),
            None => inside.strip_prefix(')').unwrap_or_default(),
        };
    }
}

#[test]
fn errors_are_told_apart_by_what_they_are() {
    let mut violations = Violations::default();
    let mut is_seen = false;
    for source in Source::read_without_tests("src") {
        let may = source.path.ends_with(READS_POSTGRESQL);
        for text in TEXTS {
            for (at, field) in source.code.match_indices(&format!(".{text}")) {
                let after = &source.code[at + field.len()..];
                if !reads_text(after) {
                    continue;
                }
                is_seen |= may;
                if !may {
                    let line = source.code[..at].matches('\n').count() + 1;
                    violations.add(&source, line, &format!("reads an error's `{text}`: give the error a field"));
                }
            }
        }
    }
    assert!(is_seen, "{READS_POSTGRESQL} is seen to read texts");
    violations.check();
}

#[test]
fn searches_are_told_from_other_uses() {
    for code in [
        ".starts_with(s)",
        ".as_deref()?.strip_prefix(s)",
        " == other.detail",
        ".as_deref().is_some_and(|text| text.contains(s))",
        "\n    .as_deref()\n    .and_then(|t| t.split_once(s))",
    ] {
        assert!(reads_text(code), "{code}");
    }
    for code in
        [".clone()", ");", ".as_deref().map(str::to_owned)", ".trim().lines()", ", more.contains(x)", "s.contains(x)"]
    {
        assert!(!reads_text(code), "{code}");
    }
}
