//! The layers of the source: which module may use which, and where `unsafe` may stand.
//!
//! The compiler keeps the extension out of `core`, as `core` doesn't depend on pgrx; this test reads the sources for the
//! rest. Violations are reported by file and line, all of them at once.

use docshard_tests::faults::names;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `src/`, lowest first. A module may use those of lower layers, and those beside it as long as these
/// don't use it in turn, directly or by way of others.
const LAYERS: &[&[&str]] = &[
    &["pg"],
    &["storage"],
    &["remote"],
    &["ownership"],
    &["catalog"],
    &["router", "migration", "balancer", "transactions"],
    &["indexing"],
    &["worker"],
    &["status", "command"],
    &["api"],
];

/// What a module must not use though the layers would allow it: the balancer works on the catalog, not through the
/// router.
const FORBIDDEN: &[(&str, &str)] = &[("balancer", "router")];

/// Crates that `core` must not name: it runs without a server.
const SERVER_CRATES: &[&str] = &["pgrx", "pgrx_tests", "pg_sys", "pq_sys", "postgres", "tokio_postgres", "libpq"];

/// Where `unsafe` may stand.
const UNSAFE_MODULES: &[&str] = &["pg", "storage", "remote"];

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A source file, its comments and the contents of its strings blanked out, so that what is left is code.
struct Source {
    path: PathBuf,
    code: String,
}

impl Source {
    fn read_all(folder: &str) -> Vec<Self> {
        let mut sources = Vec::new();
        let mut folders = vec![project().join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let code = blank_out(&fs::read_to_string(&path).unwrap());
                    sources.push(Self { path: path.strip_prefix(project()).unwrap().to_owned(), code });
                }
            }
        }
        assert!(!sources.is_empty(), "no sources in {folder}/");
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        sources
    }

    /// The module directly under `src/` that it belongs to: `router` for `src/router/scatter.rs` and `src/router.rs`.
    fn module(&self) -> String {
        let second = self.path.iter().nth(1).unwrap().to_str().unwrap();
        second.trim_end_matches(".rs").to_owned()
    }

    /// Every word of the code, with the line it stands in and the code that follows it.
    fn words(&self) -> impl Iterator<Item = (usize, &str, &str)> {
        let mut rest = self.code.as_str();
        let mut line = 1;
        std::iter::from_fn(move || {
            let start = rest.find(is_word)?;
            line += rest[..start].matches('\n').count();
            rest = &rest[start..];
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, following) = rest.split_at(end);
            rest = following;
            Some((line, word, following))
        })
    }

    /// The modules that it names by `crate::…`, alone or in braces, each with its line.
    fn uses(&self) -> Vec<(usize, String)> {
        let mut uses = Vec::new();
        for (line, word, following) in self.words() {
            let Some(path) = following.strip_prefix("::").filter(|_| word == "crate") else { continue };
            uses.extend(first_segments(path).into_iter().map(|(lines, name)| (line + lines, name)));
        }
        uses
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first names of what follows `crate::`: `[a]` of `a::b`, `[a, c]` of `{a::{b, x}, c}`; each with the number of
/// line ends before it.
fn first_segments(path: &str) -> Vec<(usize, String)> {
    let name_of = |text: &str| text.chars().take_while(|&c| is_word(c)).collect::<String>();
    if !path.starts_with('{') {
        return vec![(0, name_of(path))];
    }
    let mut names = Vec::new();
    let (mut depth, mut lines, mut expected) = (0, 0, false);
    for (at, c) in path.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            '\n' => lines += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(c, '{' | ',') {
            expected = true;
        } else if expected && is_word(c) {
            names.push((lines, name_of(&path[at..])));
            expected = false;
        }
    }
    names
}

/// The text of a source with its comments, strings and characters replaced by spaces; line ends stay.
fn blank_out(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if c == '"' {
            1 + string_end(&rest[1..])
        } else if let Some(length) = raw_string(rest).filter(|_| !code.ends_with(is_word)) {
            length
        } else if c == '\'' {
            character(rest)
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[length..];
    }
    code
}

/// The length of a block comment, which may contain others.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of the rest of a string, after its opening quote.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw string, if one begins here: `r"…"`, `r#"…"#`, `br"…"`, `cr"…"`.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(text.len() - body.len() + length)
}

/// The length of a character literal, or of the quote alone where it begins a lifetime.
fn character(text: &str) -> usize {
    let mut inside = text[1..].char_indices();
    match inside.next() {
        Some((_, '\\')) => text[1..].char_indices().skip(2).find(|&(_, c)| c == '\'').map_or(1, |(at, _)| at + 2),
        Some(_) => inside.next().filter(|&(_, c)| c == '\'').map_or(1, |(at, _)| at + 2),
        None => 1,
    }
}

#[derive(Default)]
struct Violations(String);

impl Violations {
    fn add(&mut self, source: &Source, line: usize, what: &str) {
        writeln!(self.0, "{}:{line}: {what}", source.path.display()).unwrap();
    }

    fn check(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}

#[test]
fn core_does_not_name_the_server() {
    let mut violations = Violations::default();
    for source in Source::read_all("core/src") {
        for (line, word, following) in source.words() {
            let crate_name = following.starts_with("::") || following.starts_with(';');
            if crate_name && SERVER_CRATES.contains(&word) {
                violations.add(&source, line, &format!("core names `{word}`"));
            }
        }
    }
    let manifest = fs::read_to_string(project().join("core/Cargo.toml")).unwrap();
    for (number, text) in manifest.lines().enumerate() {
        let name = text.split(['=', '.']).next().unwrap().trim().replace('-', "_");
        if SERVER_CRATES.contains(&name.as_str()) {
            writeln!(violations.0, "core/Cargo.toml:{}: core depends on `{name}`", number + 1).unwrap();
        }
    }
    violations.check();
}

#[test]
fn unsafe_stands_at_the_edge_only() {
    let mut violations = Violations::default();
    for source in Source::read_all("src").into_iter().chain(Source::read_all("core/src")) {
        let allowed = source.path.starts_with("src") && UNSAFE_MODULES.contains(&source.module().as_str());
        for (line, _, _) in source.words().filter(|&(_, word, _)| word == "unsafe" && !allowed) {
            violations.add(&source, line, "`unsafe` outside src/pg, src/storage and src/remote");
        }
    }
    violations.check();
}

/// Everything goes through `spi::plan_with` and `spi::run_script`, which pin the search path and check names.
#[test]
fn statements_are_prepared_in_one_place() {
    let preparing = [
        "SPI_prepare",
        "SPI_prepare_cursor",
        "SPI_prepare_extended",
        "SPI_prepare_params",
        "SPI_execute",
        "SPI_exec",
        "SPI_execute_extended",
        "SPI_execute_with_args",
        "SPI_cursor_open_with_args",
        "SPI_cursor_parse_open",
        "Spi",
    ];
    let mut violations = Violations::default();
    let mut found = 0;
    for source in Source::read_all("src") {
        let is_spi = source.path.ends_with("src/pg/spi.rs");
        for (line, word, _) in source.words().filter(|(_, word, _)| preparing.contains(word)) {
            found += usize::from(is_spi);
            if !is_spi && source.module() != "in_backend" {
                violations.add(&source, line, &format!("`{word}` outside src/pg/spi.rs"));
            }
        }
    }
    assert!(found >= 2, "it prepares statements");
    violations.check();
}

#[test]
fn imports_go_down() {
    let layer = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let mut violations = Violations::default();
    let sources = Source::read_all("src");
    // The root puts everything together, and tests may look at anything.
    let exempt = ["lib", "in_backend"];
    let sources: Vec<_> = sources.iter().filter(|source| !exempt.contains(&source.module().as_str())).collect();
    let mut sideways = Vec::new();
    for source in &sources {
        let module = source.module();
        let Some(own) = layer(&module) else {
            violations.add(source, 1, &format!("module `{module}` is in no layer: see LAYERS"));
            continue;
        };
        for (line, used) in source.uses() {
            let Some(other) = layer(&used).filter(|_| used != module) else { continue };
            if other > own {
                violations.add(source, line, &format!("`{module}` uses `{used}`, which is above it"));
            } else if FORBIDDEN.contains(&(&module, &used)) {
                violations.add(source, line, &format!("`{module}` must not use `{used}`"));
            } else if other == own {
                sideways.push((module.clone(), used, *source, line));
            }
        }
    }
    for (module, used, source, line) in &sideways {
        if leads_to(&sideways, used, module) {
            violations.add(source, *line, &format!("`{module}` uses `{used}`, which uses it in turn"));
        }
    }
    violations.check();
}

/// True if there is a chain of uses from one module to another.
fn leads_to(uses: &[(String, String, &Source, usize)], from: &str, to: &str) -> bool {
    let (mut found, mut next) = (vec![from], 0);
    while next < found.len() {
        for (user, used, ..) in uses {
            if user == found[next] && !found.contains(&used.as_str()) {
                found.push(used);
            }
        }
        next += 1;
    }
    found.contains(&to)
}

#[test]
fn the_reader_of_sources_reads_them() {
    let source = |text: &str| Source { path: "src/router/find.rs".into(), code: blank_out(text) };
    let code = "use crate::{\n    pg::{spi, locks},\n    api,\n};\nuse crate::remote::Connection;\n\
                // crate::balancer\nfn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' || crate::status::g(r#\"crate::x\"#) }\n\
                /* crate::y /* crate::z */ */ const S: &str = \"crate::\\\"q\"; const T: char = '\\u{41}';";
    let uses = source(code).uses();
    let names: Vec<_> = uses.iter().map(|(line, name)| (*line, name.as_str())).collect();
    assert_eq!(names, [(2, "pg"), (3, "api"), (5, "remote"), (7, "status")]);
    assert_eq!(source("").module(), "router");
}

/// The names that sources give to `fault::point` and `fault::is_off`, with the function.
fn fault_names() -> Vec<(&'static str, String)> {
    let mut names = Vec::new();
    for source in Source::read_all("src") {
        let text = fs::read_to_string(project().join(&source.path)).unwrap();
        for (kind, call) in [("point", "fault::point(\""), ("mechanism", "fault::is_off(\"")] {
            let found = text.split(call).skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
            names.extend(found.map(|name| (kind, name.to_owned())));
        }
    }
    names
}

#[test]
fn every_fault_point_is_in_the_table_once() {
    let mut used = fault_names();
    used.sort();
    let mut listed: Vec<_> = ["point", "mechanism"]
        .iter()
        .flat_map(|&kind| ["router", "shard"].map(|place| (kind, place)))
        .flat_map(|(kind, place)| names(kind, place).into_iter().map(move |name| (kind, name.to_owned())))
        .collect();
    listed.sort();
    let points = |names: &[(&'static str, String)]| -> Vec<String> {
        names.iter().filter(|(kind, _)| *kind == "point").map(|(_, name)| name.clone()).collect()
    };
    // A mechanism may be looked at in several places, a point is one place.
    assert_eq!(points(&used), points(&listed), "points in the sources, and in src/pg/fault_points.txt");
    used.dedup();
    assert_eq!(used, listed, "names in the sources, and in src/pg/fault_points.txt");
}
