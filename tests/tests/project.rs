//! The files that describe the project to people and to tools are correct: META.json, CONTRIBUTING.md, the pages, and the
//! workflow of continuous integration.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(project().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The targets of the Makefile.
fn targets() -> BTreeSet<String> {
    let makefile = read("Makefile");
    let rules = makefile.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let targets = rules.filter_map(|line| line.split_once(':')).map(|(target, _)| target.to_owned());
    targets.filter(|target| !target.contains(' ')).collect()
}

/// All code of a page: fenced blocks, and code within lines.
fn code(page: &str) -> Vec<&str> {
    let mut code = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        if number % 2 == 1 {
            code.push(part.split_once('\n').map_or("", |(_, block)| block));
        } else {
            code.extend(part.split('`').skip(1).step_by(2));
        }
    }
    code
}

/// The targets of the commands `make TARGET …` in a text, where variables may stand before `make`.
fn made(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', '#', ';', '&']).filter_map(|command| {
        let mut words = command.split_whitespace().skip_while(|word| word.contains('='));
        if words.next() == Some("make") { words.next() } else { None }
    })
}

fn pages() -> Vec<PathBuf> {
    let mut folders = vec![project().join("docs")];
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "bench/README.md"].map(|page| project().join(page)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The fields that PGXN requires of META.json are there, and agree with Cargo.toml and docshard.control.
#[test]
fn the_metadata_of_the_source_archive_is_valid() {
    let meta: Value = serde_json::from_str(&read("META.json")).expect("JSON");
    let text = |path: &str| meta.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("no {path}"));
    for field in ["/name", "/abstract", "/maintainer", "/license", "/release_status"] {
        assert!(!text(field).is_empty(), "{field}");
    }
    assert_eq!(text("/name"), "docshard");
    assert_eq!(text("/license"), "postgresql");
    assert!(["stable", "testing", "unstable"].contains(&text("/release_status")));
    assert_eq!(text("/meta-spec/version"), "1.0.0");
    for version in [text("/version"), text("/provides/docshard/version")] {
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }
    for file in ["/provides/docshard/file", "/provides/docshard/docfile"] {
        assert!(project().join(text(file)).is_file(), "{file}");
    }
    let semantic = |version: &str| {
        let numbers: Vec<_> = version.split('.').collect();
        numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
    };
    let required = meta.pointer("/prereqs/runtime/requires").and_then(Value::as_object).expect("prereqs");
    assert!(required.contains_key("PostgreSQL"));
    for (name, version) in required {
        assert!(version.as_str().is_some_and(semantic), "{name}: {version}");
    }
    let control = read("docshard.control");
    let requires = control.lines().find_map(|line| line.strip_prefix("requires = ")).expect("requires");
    for extension in requires.trim_matches('\'').split(", ") {
        assert!(required.contains_key(extension), "META.json does not require {extension}");
    }
}

/// The versions of PostgreSQL that docshard supports are the same everywhere.
#[test]
fn supported_versions_agree() {
    let tooling = read(".ci/lib.sh");
    let versions = tooling.lines().find_map(|line| line.strip_prefix("pg_supported=(")).expect("pg_supported");
    let mut versions: Vec<&str> = versions.trim_end_matches(')').split(' ').collect();
    versions.reverse();
    let manifest = read("Cargo.toml");
    let features = manifest.lines().filter_map(|line| line.strip_prefix("pg")?.split_once(" = [\"pgrx/pg"));
    assert_eq!(features.map(|(version, _)| version).collect::<Vec<_>>(), versions, "Cargo.toml");
    let least = format!("\"PostgreSQL\": \"{}.0.0\"", versions[0]);
    assert!(read("META.json").contains(&least), "META.json: {least}");
    let installations = read("tests/src/installation.rs");
    assert!(installations.contains(&format!("= [{}];", versions.join(", "))), "tests/src/installation.rs");
    let (newest, others) = versions.split_last().expect("versions");
    for page in ["README.md", "docs/operations.md", "docs/concepts.md"] {
        let list = |word: &str| format!("PostgreSQL {} {word} {newest}", others.join(", "));
        let text = read(page);
        assert!(text.contains(&list("or")) || text.contains(&list("and")), "{page}: {}", list("or"));
    }
}

/// Every `make TARGET` of the documentation and of continuous integration exists.
#[test]
fn targets_that_are_named_exist() {
    let (targets, mut named) = (targets(), 0);
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in code(&text).into_iter().flat_map(made) {
            assert!(targets.contains(target), "{}: make {target}", page.display());
            named += 1;
        }
    }
    assert!(named > 20, "only {named}");
    let workflow = read(".github/workflows/ci.yml");
    let commands = workflow.lines().find_map(|line| line.trim().strip_prefix("command: [")).expect("the commands");
    let commands: Vec<_> = commands.trim_end_matches(']').split(", ").collect();
    assert_eq!(commands, ["make demo", "make test"]);
}

/// Every path in CONTRIBUTING.md exists, and so do the tests and parts that it names.
#[test]
fn what_the_guide_for_contributors_names_exists() {
    let guide = read("CONTRIBUTING.md");
    let (mut paths, mut parts) = (0, 0);
    for code in code(&guide) {
        if !code.contains('\n')
            && !code.contains(['<', '…', ' ', '(', ':', '$', '='])
            && (code.contains('/') || code.contains(".md"))
        {
            assert!(project().join(code).exists(), "CONTRIBUTING.md: {code}");
            paths += 1;
        }
        for word in code.split_whitespace() {
            if word.starts_with(".ci/") {
                assert!(project().join(word).is_file(), "CONTRIBUTING.md: {word}");
            }
            if let Some(part) = word.strip_prefix("PART=") {
                let kinds = ["core", "model", "in-backend", "pg_regress"];
                let file = project().join(format!("tests/tests/{part}.rs"));
                let folder = project().join(format!("tests/tests/{part}"));
                assert!(kinds.contains(&part) || file.is_file() || folder.is_dir(), "CONTRIBUTING.md: {word}");
                parts += 1;
            }
        }
    }
    assert!(paths > 20 && parts > 3, "{paths} paths, {parts} parts");
    // The names of tests and tables.
    for (name, file) in [
        ("operators_mean_what_they_mean_in_mongodb", "core/tests/expression.rs"),
        ("stage()", "core/tests/stages.rs"),
        ("const OPERATORS", "core/src/query/expression/arithmetic.rs"),
        ("STAGES", "core/src/query/stage/table.rs"),
        ("OF_NO_FUNCTION", "tests/tests/privileges.rs"),
    ] {
        assert!(read(file).contains(name), "{file} has no {name}");
        assert!(guide.contains(name.trim_start_matches("const ")), "the guide does not name {name}");
    }
}

/// A command that stops reading early ends the one that writes to it by a signal, and `pipefail` makes that an error.
#[test]
fn commands_of_a_pipe_read_it_whole() {
    let mut checked = 0;
    for folder in [".ci", "bench", "docs/demo"] {
        for entry in fs::read_dir(project().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(script) = fs::read_to_string(&path) else { continue };
            let is_sourced = path.extension().is_some_and(|extension| extension == "sh");
            if !is_sourced && !script.starts_with("#!/usr/bin/env bash") {
                continue;
            }
            checked += 1;
            for line in script.lines() {
                for command in line.replace("||", "").split('|').skip(1) {
                    let words: Vec<_> = command.split_whitespace().collect();
                    let stops_early = match words.as_slice() {
                        ["head", ..] => true,
                        ["grep", options, ..] => options.starts_with('-') && options.contains('q'),
                        _ => false,
                    };
                    assert!(!stops_early, "{}: {line}", path.display());
                }
            }
        }
    }
    assert!(checked > 10, "{checked} scripts");
}

/// `make test` skips what tests/long_tests.txt names.
#[test]
fn long_tests_exist() {
    for line in read("tests/long_tests.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let file = words.next().unwrap();
        let path = project().join("tests/tests").join(file);
        let sources: Vec<_> = match fs::read_dir(&path) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => vec![path.with_extension("rs")],
        };
        let source: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        for word in words {
            let name = word.rsplit("::").next().unwrap();
            let is_there = ["fn", "mod"].iter().any(|kind| source.contains(&format!("{kind} {name}")));
            assert!(is_there, "{line}: no test of {file} is named {word}");
        }
    }
}
