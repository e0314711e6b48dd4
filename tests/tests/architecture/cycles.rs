//! There are no import cycles between files.

use super::imports::Imports;
use super::source::Source;
use std::fmt::Write;

/// The cycles that there are, import by import.
fn violations(imports: &Imports) -> String {
    let mut wrong = String::new();
    let mut told: Vec<String> = Vec::new();
    for file in imports.uses.keys() {
        let Some(cycle) = imports.chain(file, file).filter(|cycle| !cycle.iter().any(|file| told.contains(file)))
        else {
            continue;
        };
        for pair in cycle.windows(2) {
            let line = imports.uses[&pair[0]][&pair[1]];
            writeln!(wrong, "{}:{line}: uses {}, a cycle", pair[0], pair[1]).unwrap();
        }
        told.extend(cycle);
    }
    wrong
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let mut wrong = String::new();
    for root in ["core/src", "src", "model/src", "gateway/src"] {
        let mut imports = Imports::of(root, &Source::read_without_tests(root));
        // The root puts everything together, and these tests may look at anything.
        imports
            .uses
            .retain(|file, _| !["src/lib.rs", "src/in_backend.rs", "gateway/src/main.rs"].contains(&file.as_str()));
        assert!(
            imports.uses.values().map(|uses| uses.len()).sum::<usize>() > imports.uses.len() / 2,
            "imports are seen"
        );
        wrong += &violations(&imports);
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn a_cycle_is_found() {
    let violations_of = |last: &str| {
        let sources = [
            Source::new("src/a.rs", "use crate::b::X;"),
            Source::new("src/b.rs", "fn f() { crate::c::g() }"),
            Source::new("src/c.rs", last),
            Source::new("src/d.rs", "use super::a::Y;"),
        ];
        violations(&Imports::of("src", &sources))
    };
    let all = violations_of("use super::a::Y;");
    assert_eq!(all.lines().count(), 3, "{all}");
    assert_eq!(violations_of(""), "");
}

/// What is wrong with the order of a crate's modules: a file that uses a module which stands below its own in the list of the
/// module that has both.
fn out_of_order(root: &str, sources: &[Source]) -> String {
    let modules_of = |source: &Source| -> Vec<String> {
        let mut words = source.words();
        std::iter::from_fn(|| {
            let (_, _, following) = words.find(|(_, word, following)| *word == "mod" && following.starts_with(' '))?;
            let name: String = following[1..].chars().take_while(|&c| super::source::is_word(c)).collect();
            Some(name)
        })
        .collect()
    };
    // By the folder that a module's children are in.
    let lists: std::collections::HashMap<_, _> =
        sources.iter().map(|source| (source.folder_of_modules(), modules_of(source))).collect();
    let mut wrong = String::new();
    for (user, uses) in Imports::of(root, sources).uses {
        for (used, line) in uses {
            let (user_path, used_path) = (std::path::Path::new(&user), std::path::Path::new(&used));
            let shared = user_path.iter().zip(used_path).take_while(|(one, other)| one == other).count();
            let folder: std::path::PathBuf = user_path.iter().take(shared).collect();
            let place = |path: &std::path::Path| {
                let child = path.iter().nth(shared)?.to_str()?.trim_end_matches(".rs").to_owned();
                lists.get(&folder)?.iter().position(|module| *module == child)
            };
            if let (Some(own), Some(other)) = (place(user_path), place(used_path))
                && other > own
            {
                writeln!(wrong, "{user}:{line}: uses {used}, which is below it in the list of {}", folder.display())
                    .unwrap();
            }
        }
    }
    wrong
}

#[test]
fn core_uses_what_its_lists_of_modules_name_earlier() {
    let wrong = out_of_order("core/src", &Source::read_without_tests("core/src"));
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn an_import_of_a_later_module_is_found() {
    let sources = [
        Source::new("src/lib.rs", "pub mod a;\nmod b;\n"),
        Source::new("src/a/mod.rs", "mod x;\n\nmod y;\n"),
        Source::new("src/a/x.rs", "use super::y::Y;\n"),
        Source::new("src/a/y.rs", "use crate::b::B;\n"),
        Source::new("src/b.rs", "use crate::a::x::X;\n"),
    ];
    let wrong = out_of_order("src", &sources);
    assert_eq!(wrong.lines().count(), 2, "{wrong}");
    assert!(
        wrong.contains("src/a/x.rs:1: uses src/a/y.rs") && wrong.contains("src/a/y.rs:1: uses src/b.rs"),
        "{wrong}"
    );
}
