//! The layers of the source: the allowed imports of each module, and the modules that may use `unsafe`.
//!
//! The compiler keeps `core` independent of the extension, since `core` does not depend on pgrx; this test reads the sources for
//! the rest. It reports all violations at once, by file and line.
//!
//! * [`source`] reads sources.
//! * [`imports`] finds the imports of each file.
//! * [`cycles`]: there are no import cycles.
//! * [`sql_text`]: no SQL text calls a higher layer.
//! * [`vocabulary`]: operators' names are listed only in their tables.
//! * [`errors`]: no file looks for a meaning in an error's texts.

mod cycles;
mod errors;
mod imports;
mod source;
mod sql_text;
mod vocabulary;

use docshard_tests::faults::names;
use source::{Source, Violations, project};
use std::fmt::Write;
use std::fs;

/// The modules of `src/`, lowest first. A module may use those of lower layers, and those beside it as long as these
/// don't use it in turn, directly or by way of others.
const LAYERS: &[&[&str]] = &[
    &["pg"],
    &["storage"],
    &["remote"],
    &["store"],
    &["shard"],
    &["catalog"],
    &["router", "migration", "balancer", "transactions", "resharding"],
    &["indexing"],
    &["worker"],
    &["status", "operation"],
    &["command"],
    &["api", "table"],
];

/// What a module must not use though the layers would allow it: the balancer works on the catalog, not through the
/// router; an SQL function calls an operation, never the router itself.
const FORBIDDEN: &[(&str, &str)] = &[("balancer", "router"), ("api", "router")];

/// Crates that `core` must not name: it runs without a server.
const SERVER_CRATES: &[&str] = &["pgrx", "pgrx_tests", "pg_sys", "pq_sys", "postgres", "tokio_postgres", "libpq"];

/// Where `unsafe` may stand.
const UNSAFE_MODULES: &[&str] = &["pg", "storage", "remote"];

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

/// One file has the differences between versions of PostgreSQL.
#[test]
fn one_file_asks_for_the_version_of_postgresql() {
    let mut violations = Violations::default();
    let mut asked = 0;
    for source in Source::read_all("src") {
        let own = source.path.ends_with("src/pg/version.rs");
        let is_feature =
            |text: &str| text.strip_prefix("pg").is_some_and(|version| version.bytes().all(|b| b.is_ascii_digit()));
        for literal in source.strings.iter().filter(|literal| is_feature(&literal.text)) {
            if !own {
                violations.add(&source, literal.line, &format!("`{}` outside src/pg/version.rs", literal.text));
            }
            asked += usize::from(own);
        }
    }
    assert!(asked > 0, "src/pg/version.rs asks for no version");
    violations.check();
}

/// The PostgreSQL edge is generic: what knows collections, chunks or shards stands above it.
#[test]
fn the_edge_does_not_know_what_is_sharded() {
    let mut violations = Violations::default();
    for source in Source::read_all("src/pg") {
        for (line, word, _) in source.words() {
            // The extension's own name, and Rust's library.
            let plain = word.to_lowercase().replace("docshard", "").replace("collections", "");
            if ["collection", "chunk", "shard", "router"].iter().any(|name| plain.contains(name)) {
                violations.add(&source, line, &format!("`{word}` in src/pg"));
            }
        }
    }
    violations.check();
}

/// The first statement of a script that a superuser runs in a session of his own.
const PIN: &str = "SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);";

#[test]
fn scripts_say_first_what_names_mean() {
    let folder = project().join("sql");
    let names: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let scripts = names.iter().filter(|name| name.starts_with("docshard--") || *name == "schemas.sql");
    let mut read = 0;
    for name in scripts {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("--"));
        assert_eq!(first, Some(PIN), "the first statement of sql/{name}");
        read += 1;
    }
    assert!(read >= 2, "{names:?}");
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
        let is_spi = source.path.ends_with("src/pg/spi/mod.rs");
        for (line, word, _) in source.words().filter(|(_, word, _)| preparing.contains(word)) {
            found += usize::from(is_spi);
            if !is_spi && source.module() != "in_backend" {
                violations.add(&source, line, &format!("`{word}` outside src/pg/spi/mod.rs"));
            }
        }
    }
    assert!(found >= 2, "it prepares statements");
    violations.check();
}

/// What owns a memory context is dropped when PostgreSQL chooses, and PostgreSQL may have deleted the context before.
#[test]
fn memory_contexts_have_one_owner() {
    let own = ["AllocSetContextCreateInternal", "GenerationContextCreate", "SlabContextCreate"];
    let is_own = |word: &str| own.contains(&word) || word.starts_with("MemoryContextDelete");
    let mut violations = Violations::default();
    let mut found = 0;
    for source in Source::read_all("src") {
        let is_owner = source.path.ends_with("src/pg/memory/context.rs");
        for (line, word, _) in source.words().filter(|&(_, word, _)| is_own(word)) {
            found += usize::from(is_owner);
            if !is_owner {
                violations.add(&source, line, &format!("`{word}` outside src/pg/memory/context.rs"));
            }
        }
    }
    assert!(found >= 2, "it creates and deletes contexts");
    violations.check();
}

/// Rows of collections' tables are written in the sink, which captures them for moves. The compiler keeps its parts private;
/// this keeps PostgreSQL's own functions there.
#[test]
fn rows_are_written_in_one_place() {
    let writers = |word: &str| {
        let kinds = ["insert", "update", "delete"].iter().any(|kind| word.to_lowercase().ends_with(kind));
        let prefixes = ["heap_", "simple_heap_", "simple_table_", "table_tuple_", "table_multi_", "ExecSimpleRelation"];
        kinds && prefixes.iter().any(|prefix| word.starts_with(prefix)) || word.starts_with("CatalogTuple")
    };
    let mut violations = Violations::default();
    let mut found = 0;
    for source in Source::read_all("src") {
        for (line, word, _) in source.words().filter(|(_, word, _)| writers(word)) {
            let is_sink = source.path.starts_with("src/storage/rows");
            // Docshard's own tables, of which `scan::insert` is for the sink's log alone.
            let is_own_table = word == "CatalogTupleInsert" && source.path.ends_with("src/storage/scan.rs");
            found += usize::from(is_sink);
            if !is_sink && !is_own_table {
                violations.add(&source, line, &format!("`{word}` outside src/storage/rows"));
            }
        }
    }
    assert!(found >= 7, "the sink writes rows");
    violations.check();
}

/// The layers that people read about, in the page and at the root of the source, are those of [`LAYERS`].
#[test]
fn the_page_and_the_root_name_the_same_layers() {
    let rank = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));

    let page = fs::read_to_string(project().join("docs/architecture.md")).unwrap();
    let rows = page
        .lines()
        .filter(|line| line.strip_prefix("| ").is_some_and(|row| row.starts_with(|c: char| c.is_ascii_digit())));
    let mut shown: Vec<(usize, &str)> = Vec::new();
    for row in rows {
        let (number, rest) = row[2..].split_once(',').expect("the number of a layer");
        let folders =
            rest.split("`src/").skip(1).filter_map(|folder| folder.split_once("/`")).map(|(folder, _)| folder);
        shown.extend(folders.map(|folder| (number.parse().expect("a number"), folder)));
    }
    let mut named: Vec<&str> = shown.iter().map(|(_, module)| *module).collect();
    named.sort_unstable();
    let mut known: Vec<&str> = LAYERS.iter().flat_map(|layer| layer.iter().copied()).collect();
    known.sort_unstable();
    assert_eq!(named, known, "the modules in the page's table of layers");
    for (low, lower) in &shown {
        for (high, higher) in &shown {
            assert!(rank(lower) >= rank(higher) || low <= high, "the page has {lower} above {higher}");
        }
    }

    let root = fs::read_to_string(project().join("src/lib.rs")).unwrap();
    let header: String = root.lines().take_while(|line| line.starts_with("//!")).collect();
    let links = header.split("[`").skip(1).filter_map(|link| link.split_once("`]")).map(|(module, _)| module);
    let ranks: Vec<_> = links.map(|module| rank(module).unwrap_or_else(|| panic!("{module} is in no layer"))).collect();
    assert!(ranks.len() >= 10 && ranks.is_sorted(), "the layers of src/lib.rs: {ranks:?}");
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
