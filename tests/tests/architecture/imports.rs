//! The imports of each file: every path in the code that leads to a module of the same crate.
//!
//! A path belongs to the file of its longest prefix that is a module. `use` declarations with braces, globs and renames, paths
//! inside code, `super`, `self` and modules inside a file are supported; the output of macros is not.

use super::source::{Source, block, is_word};
use std::collections::{BTreeMap, HashMap};

/// A path of modules below the crate's root, such as `["query", "filter"]`.
type Module = Vec<String>;

/// The files of a crate, and for each which others it uses, with the first line that does.
pub struct Imports {
    pub uses: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Imports {
    /// Reads them from the sources of a crate whose root is this folder.
    pub fn of(root: &str, sources: &[Source]) -> Self {
        let files: HashMap<Module, String> =
            sources.iter().map(|source| (module_of(root, source), source.path.to_str().unwrap().to_owned())).collect();
        let mut uses = BTreeMap::new();
        for source in sources {
            let mut reader = Reader { files: &files, names: HashMap::new(), found: BTreeMap::new() };
            let module = module_of(root, source);
            reader.read(&source.code, 1, &module);
            let file = &files[&module];
            reader.found.remove(file);
            uses.insert(file.clone(), reader.found);
        }
        Self { uses }
    }

    /// True if there is a chain of uses from one file to another.
    pub fn leads_to(&self, from: &str, to: &str) -> bool {
        self.chain(from, to).is_some()
    }

    /// The shortest chain of uses from one file to another, both included.
    pub fn chain(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut reached: Vec<(&str, usize)> = vec![(from, 0)];
        let mut next = 0;
        while let Some(&(file, _)) = reached.get(next) {
            for used in self.uses.get(file).into_iter().flat_map(|uses| uses.keys()) {
                if used == to {
                    let mut chain = vec![to.to_owned()];
                    let mut at = next;
                    while at != 0 {
                        chain.push(reached[at].0.to_owned());
                        at = reached[at].1;
                    }
                    chain.push(from.to_owned());
                    chain.reverse();
                    return Some(chain);
                }
                if !reached.iter().any(|(known, _)| known == used) {
                    reached.push((used, next));
                }
            }
            next += 1;
        }
        None
    }
}

/// The module that a file is.
fn module_of(root: &str, source: &Source) -> Module {
    let path = source.path.strip_prefix(root).unwrap().with_extension("");
    let mut module: Module = path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if module.last().is_some_and(|last| last == "mod" || (module.len() == 1 && last == "lib")) {
        module.pop();
    }
    module
}

/// Reads one file.
struct Reader<'a> {
    files: &'a HashMap<Module, String>,
    /// modules that `use` has given a name in this file
    names: HashMap<String, Module>,
    found: BTreeMap<String, usize>,
}

/// A path as it is written, and the name that `as` gives it.
struct Path {
    segments: Vec<String>,
    name: Option<String>,
}

impl Reader<'_> {
    fn read(&mut self, code: &str, first_line: usize, module: &[String]) {
        // `use` first: names may be used above it.
        self.pass(code, first_line, module, true);
        self.pass(code, first_line, module, false);
    }

    fn pass(&mut self, code: &str, first_line: usize, module: &[String], imports: bool) {
        let mut at = 0;
        while let Some(start) = code[at..].find(is_word).map(|start| at + start) {
            let end = start + code[start..].find(|c| !is_word(c)).unwrap_or(code.len() - start);
            let (word, after) = (&code[start..end], code[end..].trim_start());
            let line = || first_line + code[..start].matches('\n').count();
            if word == "mod" && starts_block(after) {
                // Inside, `super` is this file.
                let open = code.len() - after.len() + after.find('{').unwrap();
                let length = block(&code[open..]);
                let mut inner = module.to_vec();
                inner.push(after.chars().take_while(|&c| is_word(c)).collect());
                let line = first_line + code[..open].matches('\n').count();
                self.pass(&code[open + 1..open + length], line, &inner, imports);
                at = open + length;
            } else if word == "use" && !after.starts_with(['<', '(']) {
                let length = code[end..].find(';').unwrap_or(code.len() - end);
                if imports {
                    let mut paths = Vec::new();
                    paths_of(&code[end..end + length], &[], &mut paths);
                    for path in paths {
                        self.import(path, line(), module);
                    }
                }
                at = end + length;
            } else {
                let path: String = code[start..].chars().take_while(|&c| is_word(c) || c == ':').collect::<String>();
                let segments: Vec<String> =
                    path.split("::").take_while(|segment| !segment.is_empty()).map(str::to_owned).collect();
                // After "pub(in" it says who may see what follows, and uses nothing.
                let continues = code[..start].ends_with(['.', ':']) || code[..start].ends_with("pub(in ");
                if !imports && !continues && segments.len() > 1 && !segments.iter().any(|part| part.contains(':')) {
                    self.add(&segments, line(), module);
                }
                at = start + path.len().max(word.len());
            }
        }
    }

    /// A path in a `use`: the name of a module is no use of it yet, but those of what is in it are.
    fn import(&mut self, path: Path, line: usize, module: &[String]) {
        let Some(absolute) = self.absolute(&path.segments, module) else { return };
        if self.files.contains_key(&absolute) {
            let name = path.name.or_else(|| absolute.last().cloned());
            self.names.extend(name.map(|name| (name, absolute)));
        } else {
            self.add(&path.segments, line, module);
        }
    }

    fn add(&mut self, segments: &[String], line: usize, module: &[String]) {
        let Some(absolute) = self.absolute(segments, module) else { return };
        let file = (0..=absolute.len()).rev().find_map(|length| self.files.get(&absolute[..length]));
        self.found.entry(file.expect("the crate has a root").clone()).or_insert(line);
    }

    /// The path from the crate's root; None for one into another crate, or to a thing that is no module's.
    fn absolute(&self, segments: &[String], module: &[String]) -> Option<Module> {
        let first = segments.first()?.as_str();
        let child = || [module, &segments[..1]].concat();
        let (mut absolute, rest) = match first {
            "crate" => (Vec::new(), &segments[1..]),
            "self" | "super" => (module.to_vec(), segments),
            _ if self.files.contains_key(&child()) => (module.to_vec(), segments),
            _ => (self.names.get(first)?.clone(), &segments[1..]),
        };
        for segment in rest {
            match segment.as_str() {
                "self" => {}
                "super" => drop(absolute.pop()),
                other => absolute.push(other.to_owned()),
            }
        }
        Some(absolute)
    }
}

/// True if a name and an opening brace follow.
fn starts_block(code: &str) -> bool {
    code.starts_with(is_word) && code.trim_start_matches(is_word).trim_start().starts_with('{')
}

/// The paths of a `use` tree: `a::b`, `a::{b, c::d as e}`, `a::*`.
fn paths_of(tree: &str, before: &[String], paths: &mut Vec<Path>) {
    let tree = tree.trim();
    let (path, group) = tree.split_once('{').map_or((tree, None), |(path, group)| (path, group.strip_suffix('}')));
    let (path, name) =
        path.split_once(" as ").map_or((path, None), |(path, name)| (path, Some(name.trim().to_owned())));
    let segments = path.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned);
    let segments: Vec<String> = before.iter().cloned().chain(segments).collect();
    let Some(group) = group else {
        if !segments.is_empty() {
            paths.push(Path { segments, name });
        }
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                paths_of(&group[start..at], &segments, paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !group[start..].trim().is_empty() {
        paths_of(&group[start..], &segments, paths);
    }
}

#[test]
fn every_way_to_name_a_file_is_seen() {
    let sources = [
        Source::new("src/lib.rs", "mod a;\nmod b;\nfn start() { a::run(); }"),
        Source::new(
            "src/a/mod.rs",
            "mod c;\nmod d;\npub fn run() {}\nuse crate::{b::{self, One}, a::d::Two as Other};",
        ),
        Source::new(
            "src/a/c.rs",
            "use super::d::{\n    self,\n    inner::{x, y as z},\n};\nuse std::fmt;\nfn f() { fmt::x(); }\npub(in crate::a) fn g() {}",
        ),
        Source::new(
            "src/a/d.rs",
            "mod imp {\n    use super::super::run;\n    fn f() { super::g(); crate::b::h(); }\n}\nfn g() {}",
        ),
        Source::new("src/b.rs", "use crate::a;\nfn f() -> a::c::X { a::c::X::new(|c| c.d()) }\nfn g() { a::d::f() }"),
    ];
    let imports = Imports::of("src", &sources);
    let used = |file: &str| -> Vec<(&str, usize)> {
        imports.uses[file].iter().map(|(used, line)| (used.as_str(), *line)).collect()
    };
    assert_eq!(used("src/lib.rs"), [("src/a/mod.rs", 3)]);
    assert_eq!(used("src/a/mod.rs"), [("src/a/d.rs", 4), ("src/b.rs", 4)]);
    assert_eq!(used("src/a/c.rs"), [("src/a/d.rs", 1)]);
    assert_eq!(used("src/a/d.rs"), [("src/a/mod.rs", 2), ("src/b.rs", 3)]);
    assert_eq!(used("src/b.rs"), [("src/a/c.rs", 2), ("src/a/d.rs", 3)]);
    assert_eq!(imports.chain("src/b.rs", "src/b.rs").unwrap(), ["src/b.rs", "src/a/d.rs", "src/b.rs"]);
    assert!(!imports.leads_to("src/b.rs", "src/lib.rs"));
}
