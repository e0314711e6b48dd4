//! Runs every example of README.md, docs/, docs/architecture/ and docs/patterns/, and compares its output with the page.
//!
//! Each page gets its own database on a router and two shards, initially without docshard. Its blocks marked `sql` are run in
//! order by psql, each in its own session. A block that directly follows one, separated only by blank lines, is the expected
//! output: marked `text` as psql prints it, marked `json` as rows without header, alignment and footer. Without such a block the
//! example must raise no error. Other blocks (`sh`, `console`, `ini` …) are not run.
//!
//! In expected output `…` matches any text within a line, and a line of its own matches any lines; blanks count as one, and are
//! ignored at the end of a line. In the pages the shards are `db0.example` and `db1.example`, with the database `docs`.

use docshard_tests::{Cluster, Node, shared_data};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the pages about data modelling. Their test has a cluster of its own.
const PATTERNS: &str = "docs/patterns";

/// A fenced block.
#[derive(Debug)]
struct Block {
    language: String,
    /// of its opening fence, from 1
    line: usize,
    text: String,
    /// only blank lines stand between the block before and this one
    follows: bool,
}

/// The output that an example must print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rendering {
    Table,
    Rows,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    let mut only_blank = false;
    for (at, line) in page.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                open = Some(Block { language, line: at + 1, text: String::new(), follows: only_blank });
            }
            (Some(_), Some(_)) => {
                blocks.extend(open.take());
                only_blank = true;
            }
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => only_blank &= line.trim().is_empty(),
        }
    }
    assert!(open.is_none(), "a block that is never closed");
    blocks
}

/// Lines without trailing blanks, runs of blanks and of dashes as one, and without empty lines.
fn lines(text: &str) -> Vec<String> {
    let squeeze = |line: &str| {
        let mut out = String::new();
        for c in line.trim_end().chars() {
            if !(matches!(c, ' ' | '-') && out.ends_with(c)) {
                out.push(c);
            }
        }
        out.trim().to_owned()
    };
    text.lines().map(squeeze).filter(|line| !line.is_empty()).collect()
}

fn matches_line(expected: &str, found: &str) -> bool {
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = found.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

fn matches(expected: &[String], found: &[String]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((any, behind)) if any == "…" => (0..=found.len()).any(|at| matches(behind, &found[at..])),
        Some((line, behind)) => {
            found.split_first().is_some_and(|(first, rest)| matches_line(line, first) && matches(behind, rest))
        }
    }
}

/// The pages, README first.
fn pages() -> Vec<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut pages: Vec<_> = ["docs", "docs/architecture", PATTERNS]
        .iter()
        .flat_map(|folder| fs::read_dir(project.join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort();
    pages.insert(0, project.join("README.md"));
    pages
}

/// Names in the pages, with their replacements in this test.
fn names(cluster: &Cluster, database: &str) -> Vec<(String, String)> {
    let mut names = vec![("dbname=docs".to_owned(), format!("dbname={database}"))];
    names.extend(shared_data().map(|folder| ("/srv/data".to_owned(), folder.to_string_lossy().into_owned())));
    for (number, shard) in cluster.shards.iter().enumerate() {
        let host = format!("db{number}.example");
        names.push((format!("host={host}"), format!("host=127.0.0.1 port={}", shard.port)));
        names.push((format!("{host}:5432/docs"), format!("127.0.0.1:{}/{database}", shard.port)));
    }
    names
}

fn run_page(cluster: &Cluster, path: &Path, failures: &mut String) -> usize {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let database = format!("docs_{}", path.file_stem().unwrap().to_string_lossy().to_lowercase().replace('-', "_"));
    let nodes = || std::iter::once(&cluster.router).chain(&cluster.shards);
    nodes().for_each(|node: &Node| drop(node.psql(&format!("CREATE DATABASE {database}"))));
    let names = names(cluster, &database);
    let page = fs::read_to_string(path).unwrap();
    let blocks = blocks(&page);
    let mut examples = 0;
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "sql") {
        examples += 1;
        let expected = blocks.get(at + 1).filter(|next| next.follows).and_then(|next| match next.language.as_str() {
            "text" => Some((Rendering::Table, &next.text)),
            "json" => Some((Rendering::Rows, &next.text)),
            _ => None,
        });
        let options: &[&str] = match expected {
            Some((Rendering::Table, _)) => &[],
            _ => &["-A", "-t"],
        };
        // A hanging example shall fail, not hang.
        let mut script = "SET statement_timeout = '60s';\n".to_owned();
        script.push_str(&block.text);
        names.iter().for_each(|(there, here)| script = script.replace(there, here));
        let mut found = cluster.router.psql_script(&database, options, &script);
        names.iter().for_each(|(there, here)| found = found.replace(here, there));
        let good = match expected {
            Some((_, expected)) => matches(&lines(expected), &lines(&found)),
            None => !found.contains("ERROR:") && !found.contains("FATAL:"),
        };
        if !good {
            let expected = expected.map_or("no error", |(_, text)| text.as_str());
            let _ = writeln!(
                failures,
                "---- {name}:{}\n{}---- expected\n{expected}\n---- found\n{found}",
                block.line, block.text
            );
        }
    }
    examples
}

/// Runs the examples of those pages whose path `wanted` accepts.
fn run_pages(wanted: impl Fn(&Path) -> bool) {
    let mut cluster = Cluster::servers(2);
    // Each page has a database, and that a worker.
    cluster.router.configure("max_worker_processes = 32");
    cluster.router.stop();
    cluster.router.start();
    let mut failures = String::new();
    let runs = |page: &String| page.contains("```sql") && (shared_data().is_some() || !page.contains("/srv/data"));
    for page in pages().iter().filter(|path| wanted(path) && runs(&fs::read_to_string(path).unwrap())) {
        let examples = run_page(&cluster, page, &mut failures);
        let name = page.file_name().unwrap().to_string_lossy();
        println!("{name}: {examples} examples");
    }
    assert!(failures.is_empty(), "examples that print something else:\n{failures}");
}

fn is_pattern(page: &Path) -> bool {
    page.parent().is_some_and(|folder| folder.ends_with(PATTERNS))
}

#[test]
fn examples_of_the_documentation_print_what_it_says() {
    run_pages(|page| !is_pattern(page));
}

#[test]
fn examples_of_the_patterns_print_what_their_pages_say() {
    run_pages(is_pattern);
}

/// Each page about a pattern is in the index, has the sections that a reader expects, shows a plan, and compares a figure.
#[test]
fn pages_about_patterns_are_complete() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(PATTERNS);
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    let pages: Vec<_> = pages().into_iter().filter(|page| is_pattern(page) && !page.ends_with("README.md")).collect();
    assert!(pages.len() > 10, "only {}", pages.len());
    for path in pages {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let page = fs::read_to_string(&path).unwrap();
        assert!(index.contains(&format!("]({name})")), "{name} is not in the index");
        for part in ["**Use it**", "**Do not use it**", "\n## Statements\n", "\n## How it shards\n", "\n## Measured\n"]
        {
            assert!(page.contains(part), "{name} lacks {part:?}");
        }
        for (heading, needed) in [("How it shards", "docshard.explain("), ("Measured", "```")] {
            let section =
                page.split(&format!("\n## {heading}\n")).nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
            let shows = blocks(section).windows(2).any(|pair| pair[0].language == "sql" && pair[1].follows);
            assert!(shows && section.contains(needed), "{name}: the section {heading:?} shows no result");
        }
        assert!(page.lines().count() <= 140, "{name} is too long");
    }
}

/// The tests that hold the lines of docs/security.md are there.
#[test]
fn tests_that_the_security_page_names_exist() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(project.join("docs/security.md")).unwrap();
    let mut named = 0;
    for code in page.split('`').skip(1).step_by(2) {
        let exists = match code.split_once("::") {
            Some((file, _)) if file.contains('<') => continue,
            Some((file, test)) => {
                let mut files = vec![project.join(format!("tests/tests/{file}.rs"))];
                let folder = fs::read_dir(project.join("tests/tests").join(file)).into_iter().flatten();
                files.extend(folder.map(|entry| entry.unwrap().path()));
                let definition = format!("#[test]\nfn {test}()");
                files.iter().any(|path| fs::read_to_string(path).is_ok_and(|source| source.contains(&definition)))
            }
            None if code.ends_with(".sql") => project.join("pg_regress/sql").join(code).exists(),
            None => continue,
        };
        assert!(exists, "{code}");
        named += 1;
    }
    assert!(named > 20, "only {named}");
}

/// Links between the pages lead somewhere: to a file, and to a heading where they name one.
#[test]
fn links_between_pages_lead_somewhere() {
    let mut dead = String::new();
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let found = if heading.is_empty() {
                target.exists()
            } else {
                fs::read_to_string(&target).is_ok_and(|text| headings(&text).any(|slug| slug == heading))
            };
            if !found {
                let _ = writeln!(dead, "{}: {link}", path.display());
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{dead}");
}

/// Source files and folders that the pages about the architecture name exist, and every paragraph is short.
#[test]
fn architecture_pages_name_existing_files_in_short_paragraphs() {
    const ROOTS: [&str; 10] =
        ["src/", "core/", "model/", "tests/", "sql/", "bench/", "pg_regress/", ".ci/", "docs/", ".github/"];
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut wrong = String::new();
    let mut named = 0;
    for path in pages().iter().filter(|path| path.to_string_lossy().contains("architecture")) {
        let page = fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        for code in page.split('`').skip(1).step_by(2) {
            if ROOTS.iter().any(|root| code.starts_with(root)) && !code.contains(['<', '*', ' ']) {
                named += 1;
                if !project.join(code).exists() {
                    let _ = writeln!(wrong, "{name}: no file {code}");
                }
            }
        }
        for paragraph in page.split("\n\n").filter(|text| text.starts_with(|c: char| c.is_alphabetic() || c == '*')) {
            if paragraph.lines().count() > 8 {
                let _ = writeln!(wrong, "{name}: more than eight lines: {}", paragraph.lines().next().unwrap());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(named > 100, "only {named}");
}

/// The names by which a page's headings are linked to.
fn headings(page: &str) -> impl Iterator<Item = String> {
    page.lines().filter(|line| line.starts_with('#')).map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .collect::<String>()
            .replace(' ', "-")
    })
}

#[test]
fn wildcards_match_within_a_line_and_over_lines() {
    let all = |expected: &str, found: &str| matches(&lines(expected), &lines(found));
    assert!(all("a … c", "a  b c  \n"));
    assert!(!all("a … c", "a b d"));
    assert!(all("x\n…\nz", "x\ny\ny\nz"));
    assert!(all("…", ""));
    assert!(!all("x", "x\ny"));
    assert!(all("----+---", "------+-----------"));
}
