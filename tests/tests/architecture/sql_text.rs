//! No SQL text calls a higher layer: below the SQL functions, no statement names a function or a view of schema `docshard`, which
//! they define; below the store, none names a relation of `docshard_catalog`.
//!
//! The tables of `docshard_catalog` and `docshard_data` are named by their owners alone: see [`OWNERS`].
//!
//! `known_sql_calls.txt` lists the existing exceptions. The list may only shrink.

use super::LAYERS;
use super::source::{Source, StringLiteral, Violations, is_word};
use std::fmt::Write;
use std::path::Path;

const KNOWN: &str = include_str!("known_sql_calls.txt");

/// What SQL text has, and a message that merely names a function has not.
const SQL_WORDS: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE", "FROM", "CALL", "EXECUTE"];

/// Schemas, the folders that have what is in them, and names in them that everything may use: the type of documents.
const OWNERS: &[(&str, &[&str], &[&str])] = &[
    ("docshard", &["src/api"], &["document"]),
    ("docshard_catalog", &["src/store"], &[]),
    // A shard's own tables: the statements that other nodes run on them, and those of the shard itself.
    ("docshard_data", &["core/src/routing/protocol", "src/shard"], &[]),
];

/// The file that has the schema's name as a constant, for the names of collections' relations.
const NAMES: &str = "core/src/routing/names.rs";

/// The layer of a file or a folder, the lowest is core.
fn layer(path: &Path) -> Option<usize> {
    let module = path.iter().nth(1)?.to_str()?.trim_end_matches(".rs");
    match path.starts_with("core") {
        true => Some(0),
        false => LAYERS.iter().position(|layer| layer.contains(&module)).map(|layer| layer + 1),
    }
}

/// The names in schemas of higher layers that a statement in a file or a folder names, `schema.name`.
fn calls_up(path: &Path, text: &str) -> Vec<String> {
    let is_sql = text.split(|c| !is_word(c)).any(|word| SQL_WORDS.contains(&word));
    let Some(own) = layer(path).filter(|_| is_sql) else { return Vec::new() };
    let mut calls = Vec::new();
    for (schema, _, common) in
        OWNERS.iter().filter(|(_, owners, _)| owners.iter().all(|owner| layer(owner.as_ref()) > Some(own)))
    {
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

fn sources() -> Vec<Source> {
    ["core/src", "src"].into_iter().flat_map(Source::read_without_tests).collect()
}

#[test]
fn no_statement_calls_up() {
    let mut found = Vec::new();
    let mut wrong = String::new();
    let known: Vec<_> = KNOWN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    for source in sources() {
        for StringLiteral { line, text, .. } in &source.strings {
            for call in calls_up(&source.path, text) {
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

/// True for text that has the name of an object of a schema, or the schema as a value.
fn names_object_of(schema: &str, text: &str) -> bool {
    text.match_indices(schema).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + schema.len()..]);
        let is_value = before.ends_with('\'') && after.starts_with('\'');
        // A schema is also named where privileges on it are granted.
        !before.ends_with(|c| is_word(c) || c == '.') && (after.starts_with('.') || is_value || text == schema)
    })
}

/// Only a table's owners, and the scripts in `sql/`, spell its name; so only they know its columns.
#[test]
fn owners_alone_name_their_tables() {
    let mut violations = Violations::default();
    let sources = sources();
    for (schema, owners, _) in OWNERS.iter().filter(|(schema, ..)| *schema != "docshard") {
        let mut found = vec![0; owners.len()];
        for source in &sources {
            let owner = owners.iter().position(|owner| source.path.starts_with(owner));
            for literal in source.strings.iter().filter(|literal| names_object_of(schema, &literal.text)) {
                match owner {
                    Some(owner) => found[owner] += 1,
                    None if source.path.ends_with(NAMES) && literal.text == *schema => {}
                    None => violations.add(source, literal.line, &format!("names an object of {schema}: see OWNERS")),
                }
            }
        }
        assert!(found.iter().all(|count| *count > 5), "{schema}: {found:?}; does this test still read its owners?");
    }
    violations.check();
}

#[test]
fn names_of_objects_are_told_from_schemas() {
    let is_named = |text| names_object_of("docshard_data", text);
    for text in [
        "SELECT FROM docshard_data.node",
        "the table docshard_data.c{id}",
        "relnamespace = 'docshard_data'::regnamespace",
    ] {
        assert!(is_named(text), "{text}");
    }
    assert!(is_named("docshard_data"), "a value of its own");
    for text in
        ["GRANT USAGE ON SCHEMA docshard, docshard_data TO a", "my_docshard_data.node", "schema docshard_data is"]
    {
        assert!(!is_named(text), "{text}");
    }
}

#[test]
fn calls_are_told_from_messages_and_settings() {
    assert_eq!(
        calls_up("src/router".as_ref(), "SELECT docshard.find($1)::docshard.document, now()"),
        ["docshard.find"]
    );
    assert_eq!(calls_up("src/command".as_ref(), "SELECT * FROM docshard.chunks"), ["docshard.chunks"]);
    assert_eq!(calls_up("src/remote".as_ref(), "DELETE FROM docshard_catalog.rotation"), ["docshard_catalog.rotation"]);
    assert_eq!(calls_up("src/command".as_ref(), "SELECT has('docshard.find(text)', 'EXECUTE')"), ["docshard.find"]);
    assert_eq!(
        calls_up("core/src/routing/plan/mod.rs".as_ref(), "SELECT FROM docshard_catalog.shards"),
        ["docshard_catalog.shards"]
    );
    assert!(calls_up("src/api".as_ref(), "SELECT docshard.find($1)").is_empty());
    assert!(
        calls_up("src/catalog".as_ref(), "SELECT * FROM docshard_catalog.shards, docshard_internal.f()").is_empty()
    );
    assert!(calls_up("src/router".as_ref(), "docshard.remove_shard() takes it out").is_empty());
    assert!(calls_up("src/router".as_ref(), "SELECT set_config('docshard.notablescan', 'off', true)").is_empty());
}

/// Everything else writes these functions' names through core's `routing::protocol`, so that one place says what nodes ask of each other.
#[test]
fn the_shard_protocol_is_spelled_in_one_module() {
    let mut violations = Violations::default();
    for source in sources() {
        let may = ["src/in_backend.rs", "core/src/routing/protocol"].iter().any(|may| source.path.starts_with(may));
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
