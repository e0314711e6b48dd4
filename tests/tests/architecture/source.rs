//! Reads Rust sources as far as the rules of the architecture require: code without comments and strings, its words, and its
//! string literals.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A source file. Where text is left out, spaces stand for it, so that lines stay what they are.
pub struct Source {
    pub path: PathBuf,
    /// its text without comments and strings
    pub code: String,
    pub strings: Vec<StringLiteral>,
}

/// A string literal.
pub struct StringLiteral {
    pub line: usize,
    /// as it is written, without quotes
    pub text: String,
    /// the code between it and the one before
    pub before: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let (code, strings) = blank_out(text);
        Self { path: path.into(), code, strings }
    }

    /// Every Rust file in a folder and below, by path.
    pub fn read_all(folder: &str) -> Vec<Self> {
        let mut sources = Vec::new();
        let mut folders = vec![project().join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    sources.push(Self::new(path.strip_prefix(project()).unwrap().to_str().unwrap(), &text));
                }
            }
        }
        assert!(!sources.is_empty(), "no sources in {folder}/");
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        sources
    }

    /// Like [`read_all`](Self::read_all), without modules for tests, which may look at anything.
    pub fn read_without_tests(folder: &str) -> Vec<Self> {
        let mut sources = Self::read_all(folder);
        let of_tests: Vec<PathBuf> = sources.iter_mut().flat_map(Self::leave_out_tests).collect();
        sources.retain(|source| !of_tests.contains(&source.path));
        sources
    }

    /// Leaves out every module under `#[cfg(test)]`, or under a condition that names `test`. Returns the files of those that
    /// have one.
    fn leave_out_tests(&mut self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut from = 0;
        while let Some(at) = self.code[from..].find("#[cfg(").map(|at| from + at) {
            let end = at + self.code[at..].find(']').unwrap();
            from = end;
            let about_tests = Words::of(&self.code[at..end]).any(|(_, word, _)| word == "test");
            let Some((name, after)) = module_declared(&self.code[end + 1..]).filter(|_| about_tests) else { continue };
            let start = self.code.len() - after.len();
            if after.starts_with(';') {
                files.push(self.folder_of_modules().join(format!("{name}.rs")));
                continue;
            }
            let length = block(after);
            let lines = |text: &str| text.matches('\n').count() + 1;
            let (first, last) = (lines(&self.code[..start]), lines(&self.code[..start + length]));
            self.strings.retain(|string| !(first..=last).contains(&string.line));
            let blank: String = after[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            self.code.replace_range(start..start + length, &blank);
        }
        files
    }

    /// Where the files of the modules that it declares are.
    pub fn folder_of_modules(&self) -> PathBuf {
        match self.path.file_name().unwrap().to_str().unwrap() {
            "mod.rs" | "lib.rs" => self.path.parent().unwrap().to_owned(),
            _ => self.path.with_extension(""),
        }
    }

    /// The module directly under `src/` that it belongs to: `router` for `src/router/scatter.rs` and `src/router.rs`.
    pub fn module(&self) -> String {
        let second = self.path.iter().nth(1).unwrap().to_str().unwrap();
        second.trim_end_matches(".rs").to_owned()
    }

    /// Every word of the code, with the line it stands in and the code that follows it.
    pub fn words(&self) -> Words<'_> {
        Words::of(&self.code)
    }

    /// The modules that it names by `crate::…`, alone or in braces, each with its line.
    pub fn uses(&self) -> Vec<(usize, String)> {
        let mut uses = Vec::new();
        for (line, word, following) in self.words() {
            let Some(path) = following.strip_prefix("::").filter(|_| word == "crate") else { continue };
            uses.extend(first_segments(path).into_iter().map(|(lines, name)| (line + lines, name)));
        }
        uses
    }
}

/// The words of a piece of code.
pub struct Words<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Words<'a> {
    pub fn of(code: &'a str) -> Self {
        Self { rest: code, line: 1 }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = (usize, &'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.find(is_word)?;
        self.line += self.rest[..start].matches('\n').count();
        let word = &self.rest[start..];
        let (word, following) = word.split_at(word.find(|c| !is_word(c)).unwrap_or(word.len()));
        self.rest = following;
        Some((self.line, word, following))
    }
}

/// The name of the module that a declaration is of, and the code after the name and spaces: `;`, or a block. Attributes and
/// `pub` may stand before it.
fn module_declared(code: &str) -> Option<(&str, &str)> {
    let mut rest = code.trim_start();
    while rest.starts_with('#') {
        rest = rest[rest.find(']')? + 1..].trim_start();
    }
    let mut words = Words::of(rest).skip_while(|(_, word, _)| ["pub", "crate", "super"].contains(word));
    let (_, keyword, _) = words.next()?;
    let (_, name, after) = words.next()?;
    (keyword == "mod").then_some((name, after.trim_start()))
}

/// The length of the block that begins here, with its braces.
pub fn block(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

pub fn is_word(c: char) -> bool {
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

/// The text of a source with its comments, strings and characters replaced by spaces, and its strings.
fn blank_out(text: &str) -> (String, Vec<StringLiteral>) {
    let mut code = String::with_capacity(text.len());
    let mut strings = Vec::new();
    let (mut rest, mut line, mut ended) = (text, 1, 0);
    while let Some(c) = rest.chars().next() {
        let mut string = None;
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if c == '"' {
            let length = 1 + string_end(&rest[1..]);
            string = Some(rest[1..length].trim_end_matches('"'));
            length
        } else if let Some(length) = raw_string(rest).filter(|_| !code.ends_with(is_word)) {
            string = Some(rest[..length].trim_start_matches(['b', 'c', 'r']).trim_matches(['#', '"']));
            length
        } else if c == '\'' {
            character(rest)
        } else {
            code.push(c);
            line += usize::from(c == '\n');
            rest = &rest[c.len_utf8()..];
            continue;
        };
        if let Some(text) = string {
            strings.push(StringLiteral { line, text: text.to_owned(), before: code[ended..].to_owned() });
        }
        code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        if string.is_some() {
            ended = code.len();
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    (code, strings)
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

/// What was found to be wrong, line by line.
#[derive(Default)]
pub struct Violations(pub String);

impl Violations {
    pub fn add(&mut self, source: &Source, line: usize, what: &str) {
        writeln!(self.0, "{}:{line}: {what}", source.path.display()).unwrap();
    }

    pub fn check(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}

#[test]
fn the_reader_of_sources_reads_them() {
    let source = |text: &str| Source::new("src/router/find.rs", text);
    let code = "use crate::{\n    pg::{spi, locks},\n    api,\n};\nuse crate::remote::Connection;\n\
                // crate::balancer\nfn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' || crate::status::g(r#\"crate::x\"#) }\n\
                /* crate::y /* crate::z */ */ const S: &str = \"crate::\\\"q\"; const T: char = '\\u{41}';";
    let uses = source(code).uses();
    let names: Vec<_> = uses.iter().map(|(line, name)| (*line, name.as_str())).collect();
    assert_eq!(names, [(2, "pg"), (3, "api"), (5, "remote"), (7, "status")]);
    assert_eq!(source("").module(), "router");
    let strings = source(code).strings;
    let strings: Vec<_> = strings.iter().map(|string| (string.line, string.text.as_str())).collect();
    assert_eq!(strings, [(7, "crate::x"), (8, "crate::\\\"q")]);
}

#[test]
fn modules_for_tests_are_left_out() {
    let code = "#[cfg(test)]\nmod tests;\n#[cfg(any(test, feature = \"pg_test\"))]\n#[pgrx::pg_schema]\nmod inner {\n\
                fn f() { \"secret\"; }\n}\nfn g() { \"shown\"; }\n#[cfg(unix)]\nmod kept { fn h() {} }";
    let mut source = Source::new("src/a/b.rs", code);
    assert_eq!(source.leave_out_tests(), [Path::new("src/a/b/tests.rs")]);
    assert!(!source.code.contains("fn f") && source.code.contains("fn g") && source.code.contains("fn h"));
    let strings: Vec<_> = source.strings.iter().map(|string| string.text.as_str()).collect();
    assert_eq!(strings, ["pg_test", "shown"]);
}
