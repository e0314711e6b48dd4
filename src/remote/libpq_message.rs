//! What libpq's messages about a connection say, beside their text.

/// SQLSTATE of a password that was refused.
pub(super) const INVALID_PASSWORD: [u8; 5] = *b"28P01";

/// True if a message of libpq's repeats one of the server, with its SQLSTATE in it.
pub(super) fn is_of_server(message: &str) -> bool {
    message.lines().any(|line| line.split_once(":  ").is_some_and(|(_, rest)| rest.get(5..7) == Some(": ")))
}

/// What a server says that refuses a login, without its SQLSTATE (libpq tells that only in its most verbose messages), and
/// whether that was about the password.
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

/// libpq's message without its advice: one part for each host that was tried.
pub(super) fn one_line(message: &str) -> String {
    let advice = |line: &&str| {
        line.is_empty()
            || ["Is the server", "This probably", "before or while"].iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<_> = message.lines().map(str::trim).filter(|line| !advice(line)).collect();
    lines.join("; ")
}
