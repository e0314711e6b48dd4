//! Reads libpq's messages about connections.

use docshard_core::error::sqlstate::INVALID_PASSWORD;

/// True if libpq's message repeats a message of the server, with its SQLSTATE.
pub(super) fn is_of_server(message: &str) -> bool {
    message.lines().any(|line| line.split_once(":  ").is_some_and(|(_, rest)| rest.get(5..7) == Some(": ")))
}

/// Returns the message without the SQLSTATE and the source location that libpq's verbose form has, and true if the password
/// was refused.
pub(super) fn without_sqlstate(message: &str) -> (String, bool) {
    let code = std::str::from_utf8(&INVALID_PASSWORD).expect("ASCII");
    let refused = message.contains(&format!(" {code}: "));
    let text = |line: &str| match line.split_once(":  ") {
        Some((severity, rest)) if rest.get(5..7) == Some(": ") => format!("{severity}:  {}", &rest[7..]),
        _ => line.to_owned(),
    };
    let lines = message.lines().filter(|line| !line.trim_start().starts_with("LOCATION:")).map(text);
    (lines.collect::<Vec<_>>().join("\n"), refused)
}

/// Returns libpq's message without its hints. It has one part for each host that was tried.
pub(super) fn one_line(message: &str) -> String {
    let is_hint = |line: &&str| {
        line.is_empty()
            || ["Is the server", "This probably", "before or while"].iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<_> = message.lines().map(str::trim).filter(|line| !is_hint(line)).collect();
    lines.join("; ")
}
