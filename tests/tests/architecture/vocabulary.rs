//! The names of operators, stages and accumulators are listed only in the tables of the language; docs/query-language.md has exactly
//! those names, and docs/sql-reference.md a signature of each public function.

use super::source::{Source, Violations, project};
use docshard_core::query::vocabulary;
use std::collections::BTreeSet;
use std::fs;

/// So many names side by side are a second list: in the source, and in tests, which choose some as cases.
const MOST_IN_SOURCES: usize = 4;
const MOST_IN_TESTS: usize = 20;

/// The longest run of names in a file that only commas separate, with its line: the rows of a table have more between them.
fn longest_list(source: &Source, names: &BTreeSet<&str>) -> (usize, usize) {
    let (mut longest, mut length) = ((0, 0), 0);
    for string in &source.strings {
        let goes_on = length > 0 && string.before.trim() == ",";
        length = match names.contains(string.text.as_str()) {
            true if goes_on => length + 1,
            known => usize::from(known),
        };
        if length > longest.0 {
            longest = (length, string.line);
        }
    }
    longest
}

#[test]
fn no_vocabulary_is_listed_twice() {
    let names = vocabulary::names();
    assert!(names.len() > 200, "the tables are read");
    let mut violations = Violations::default();
    let folders = [
        ("src", MOST_IN_SOURCES),
        ("core/src", MOST_IN_SOURCES),
        ("core/fuzz/src", MOST_IN_SOURCES),
        ("tests/src", MOST_IN_SOURCES),
        ("core/tests", MOST_IN_TESTS),
        ("tests/tests", MOST_IN_TESTS),
    ];
    let mut tables = 0;
    for (folder, most) in folders {
        for source in Source::read_all(folder) {
            let (length, line) = longest_list(&source, &names);
            // Names of values, and of parts of arguments, have no table but these lists.
            if ["ext_json.rs", "vocabulary.rs"]
                .iter()
                .any(|name| source.path.starts_with("core/src") && source.path.ends_with(name))
            {
                tables += 1;
            } else if length > most {
                violations.add(
                    &source,
                    line,
                    &format!("{length} names of operators in a row: take them from their table"),
                );
            }
        }
    }
    assert_eq!(tables, 2);
    violations.check();
}

#[test]
fn a_list_is_told_from_a_table() {
    let names = BTreeSet::from(["$a", "$b", "$c"]);
    let longest = |text: &str| longest_list(&Source::new("src/x.rs", text), &names).0;
    assert_eq!(longest("const L: &[&str] = &[\"$a\", \"$b\",\n \"$c\"];"), 3);
    assert_eq!(longest("const T: &[Row] = &[row(\"$a\", f), row(\"$b\", g), row(\"$c\", h)];"), 1);
    assert_eq!(longest("f(\"$a\", \"x\", \"$b\", \"$c\")"), 2);
}

/// The names in backquotes of a section of a page.
fn named(page: &str, section: &str) -> BTreeSet<String> {
    let text = page.split(&format!("\n## {section}\n")).nth(1).unwrap_or_else(|| panic!("no section {section}"));
    let text = text.split("\n## ").next().unwrap_or_default();
    let names = text.split('`').skip(1).step_by(2);
    names.filter(|code| code.starts_with('$') && !code.starts_with("$$")).map(str::to_owned).collect()
}

#[test]
fn docs_query_language_names_every_operator() {
    let page = fs::read_to_string(project().join("docs/query-language.md")).unwrap();
    let words = vocabulary::names();
    for (section, mut operators) in [
        ("Filters", vocabulary::filter_operators().collect::<BTreeSet<_>>()),
        ("Updates", vocabulary::update_operators().collect()),
        ("Stages", vocabulary::stages().map(|(name, _)| name).collect()),
        ("Expressions", vocabulary::expression_operators().collect()),
        ("Accumulators", vocabulary::accumulators().collect()),
    ] {
        // It is known, and refused.
        operators.remove("$where");
        let named = named(&page, section);
        let missing: Vec<_> = operators.iter().filter(|name| !named.contains(**name)).collect();
        assert!(missing.is_empty(), "{section}: not in docs/query-language.md: {missing:?}");
        // `$` alone, `$[]` and `$[name]` are parts of paths.
        let is_operator = |name: &&String| name.len() > 1 && !name.starts_with("$[");
        let unknown: Vec<_> = named.iter().filter(is_operator).filter(|name| !words.contains(name.as_str())).collect();
        assert!(unknown.is_empty(), "{section}: not in the language: {unknown:?}");
    }
}

#[test]
fn docs_sql_reference_has_a_signature_of_every_function() {
    let page = fs::read_to_string(project().join("docs/sql-reference.md")).unwrap();
    let table = fs::read_to_string(project().join("tests/privileges.txt")).unwrap();
    let functions: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("docshard.")?.split_once('('))
        .map(|(name, _)| name.trim_matches('"'))
        .collect();
    assert!(functions.len() > 50, "the functions are read");
    let missing: Vec<_> = functions.iter().filter(|name| !page.contains(&format!("\n`{name}("))).collect();
    assert!(missing.is_empty(), "not in docs/sql-reference.md: {missing:?}");
}
