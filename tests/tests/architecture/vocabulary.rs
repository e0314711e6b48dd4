//! The names of operators, stages and accumulators stand in the tables of the language alone: nothing lists them a second time,
//! and the documentation's lists are those of the tables.

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

/// The names in backquotes after a word of a document, up to the next dot or word that is none.
fn listed(text: &str, after: &str) -> BTreeSet<String> {
    let start = text.find(after).unwrap_or_else(|| panic!("no {after:?}")) + after.len();
    let list = text[start..].split('`').nth(1).unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_documentation_lists_what_the_tables_have() {
    let text = fs::read_to_string(project().join("docs/differences.md")).unwrap();
    let of = |names: &mut dyn Iterator<Item = &'static str>| -> BTreeSet<String> { names.map(str::to_owned).collect() };
    let mut filters = of(&mut vocabulary::filter_operators());
    // Neither stands by itself: the one is refused, the other belongs to `$regex`.
    ["$where", "$options"].iter().for_each(|name| assert!(filters.remove(*name)));
    assert_eq!(listed(&text, "- Filters: "), filters);
    assert_eq!(listed(&text, "Updates: "), of(&mut vocabulary::update_operators()));
    let in_updates = of(&mut vocabulary::stages().filter(|(_, in_updates)| *in_updates).map(|(name, _)| name));
    assert_eq!(listed(&text, "pipelines of "), in_updates);
}
