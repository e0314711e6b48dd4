//! No SQL text calls a higher layer: below the SQL functions, no statement names a function or a view of schema `docshard`, which
//! they define; below the store, none names a relation of `docshard_catalog`.
//!
//! `known_sql_calls.txt` lists the existing exceptions. The list may only shrink.

use super::LAYERS;
use super::source::{Source, StringLiteral, Violations, is_word};
use std::fmt::Write;

const KNOWN: &str = include_str!("known_sql_calls.txt");

/// What SQL text has, and a message that merely names a function has not.
const SQL_WORDS: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE", "FROM", "CALL", "EXECUTE"];

/// Schemas, the module that has what is in them, and names in them that everything may use: the type of documents.
const OWNERS: &[(&str, &str, &[&str])] = &[("docshard", "api", &["document"]), ("docshard_catalog", "store", &[])];

/// The names in schemas of higher layers that a statement in a module names, `schema.name`.
fn calls_up(module: &str, text: &str) -> Vec<String> {
    let layer = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let is_sql = text.split(|c| !is_word(c)).any(|word| SQL_WORDS.contains(&word));
    let Some(own) = layer(module).filter(|_| is_sql) else { return Vec::new() };
    let mut calls = Vec::new();
    for (schema, _, common) in OWNERS.iter().filter(|(_, owner, _)| layer(owner) > Some(own)) {
        for (at, _) in text.match_indices(&format!("{schema}.")) {
            let (before, after) = (&text[..at], &text[at + schema.len() + 1..]);
            let end = after.find(|c| !is_word(c)).unwrap_or(after.len());
            // A quoted name is a setting's, unless it is a function's with its arguments.
            let is_setting = before.ends_with('\'') && !after[end..].starts_with('(');
            if !before.ends_with(|c| is_word(c) || c == '.') && !is_setting && !common.contains(&&after[..end]) {
                calls.push(format!("{schema}.{}", &after[..end]));
            }
        }
    }
    calls
}

#[test]
fn no_statement_calls_up() {
    let mut found = Vec::new();
    let mut wrong = String::new();
    let known: Vec<_> = KNOWN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    for source in Source::read_without_tests("src") {
        for StringLiteral { line, text, .. } in &source.strings {
            for call in calls_up(&source.module(), text) {
                let entry = format!("{} {call}", source.path.display());
                if !known.contains(&entry.as_str()) {
                    writeln!(wrong, "{}:{line}: {call} is of a higher layer", source.path.display()).unwrap();
                }
                found.push(entry);
            }
        }
    }
    for entry in known {
        if !found.iter().any(|call| call == entry) {
            writeln!(wrong, "known_sql_calls.txt: {entry}: is not called (any more): remove this line").unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Only a table's store, and the scripts in `sql/`, spell its name; so only they know its columns.
#[test]
fn the_store_alone_names_catalog_tables() {
    let mut wrong = String::new();
    let mut found = 0;
    for source in Source::read_without_tests("src") {
        let is_store = source.module() == "store";
        for StringLiteral { line, text, .. } in &source.strings {
            // A schema is also named where privileges on it are granted.
            if !text.contains("docshard_catalog.") && text != "docshard_catalog" {
                continue;
            }
            found += 1;
            if !is_store {
                writeln!(wrong, "{}:{line}: names a table of the catalog", source.path.display()).unwrap();
            }
        }
    }
    assert!(found > 100, "only {found} statements found: does this test still read the store?");
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn calls_are_told_from_messages_and_settings() {
    assert_eq!(calls_up("router", "SELECT docshard.find($1)::docshard.document, now()"), ["docshard.find"]);
    assert_eq!(calls_up("command", "SELECT * FROM docshard.chunks"), ["docshard.chunks"]);
    assert_eq!(calls_up("remote", "DELETE FROM docshard_catalog.rotation"), ["docshard_catalog.rotation"]);
    assert_eq!(calls_up("command", "SELECT has('docshard.find(text)', 'EXECUTE')"), ["docshard.find"]);
    assert!(calls_up("api", "SELECT docshard.find($1)").is_empty());
    assert!(calls_up("catalog", "SELECT * FROM docshard_catalog.shards, docshard_internal.f()").is_empty());
    assert!(calls_up("router", "docshard.remove_shard() takes it out").is_empty());
    assert!(calls_up("router", "SELECT set_config('docshard.notablescan', 'off', true)").is_empty());
}

/// Everything else writes these functions' names through core's `routing::protocol`, so that one place says what nodes ask of each other.
#[test]
fn the_shard_protocol_is_spelled_in_one_module() {
    let mut violations = Violations::default();
    for source in Source::read_without_tests("src") {
        let may = ["in_backend"].contains(&source.module().as_str());
        for literal in source.strings.iter().filter(|literal| !may && literal.text.contains("docshard_internal.")) {
            violations.add(
                &source,
                literal.line,
                "names a function of docshard_internal: see core/src/routing/protocol",
            );
        }
    }
    violations.check();
}
