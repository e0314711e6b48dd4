//! Reads the file of cases that are expected to fail, each with the reason.
//!
//! ```text
//! # a comment
//! [declared] jsonb loses the order of fields
//! some_case:12
//! other_case:7 @hashed @range
//! ```
//!
//! A case that is excused for only one way of running it names the way; an excuse for `local` holds for all unsharded ways. An
//! excused case that passes is an error, since the file must be right. Only a known failure that passes is merely reported, so that
//! a fix does not fail the test.

use super::Way;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The reason why a case is expected to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// it uses a feature that the project does not have: not applicable
    Scope,
    /// it cannot be run in this way, for example because an update has neither `_id` nor shard key: not applicable
    Shape,
    /// a documented difference from MongoDB
    Declared,
    /// the expectation contradicts MongoDB's own documentation
    MongoDb,
    /// a shortfall: it counts as failed
    Known,
}

impl Class {
    fn parse(name: &str) -> Option<Class> {
        Some(match name {
            "scope" => Class::Scope,
            "shape" => Class::Shape,
            "declared" => Class::Declared,
            "mongodb" => Class::MongoDb,
            "known" => Class::Known,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug)]
struct Excuse {
    class: Class,
    /// empty: all
    ways: Vec<Way>,
}

/// The file's content.
#[derive(Debug, Default)]
pub struct Excuses {
    cases: HashMap<String, Excuse>,
}

impl Excuses {
    /// Reads the file.
    ///
    /// # Panics
    /// If it cannot be read, is malformed, or names a case twice.
    pub fn load(path: &Path) -> Excuses {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Excuses::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn parse(text: &str) -> Result<Excuses, String> {
        let mut excuses = Excuses::default();
        let mut class = None;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(heading) = line.strip_prefix('[') {
                let (name, reason) = heading.split_once(']').ok_or_else(|| format!("no end of the class: {line}"))?;
                if reason.trim().is_empty() {
                    return Err(format!("no reason: {line}"));
                }
                class = Some(Class::parse(name).ok_or_else(|| format!("no such class: {line}"))?);
                continue;
            }
            let class = class.ok_or_else(|| format!("no class above {line}"))?;
            let mut words = line.split_whitespace();
            let id = words.next().unwrap_or_default();
            let ways = words
                .map(|word| word.strip_prefix('@').and_then(Way::parse).ok_or_else(|| format!("no such way: {line}")))
                .collect::<Result<Vec<_>, _>>()?;
            if excuses.cases.insert(id.to_owned(), Excuse { class, ways }).is_some() {
                return Err(format!("{id} is excused twice"));
            }
        }
        Ok(excuses)
    }

    /// The reason why the case is excused when it runs in this way; None if it is not.
    pub fn of(&self, id: &str, way: Way) -> Option<Class> {
        let excuse = self.cases.get(id)?;
        let named = |way| excuse.ways.contains(&way);
        let excused = excuse.ways.is_empty()
            || named(way)
            || matches!(way, Way::Command | Way::Indexed | Way::Remote) && named(Way::Local);
        excused.then_some(excuse.class)
    }

    /// The cases in the file.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.cases.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let excuses = Excuses::parse("# x\n[declared] order\na:1\nb:2 @hashed\n\n[known] later\nc:3").unwrap();
        assert_eq!(excuses.of("a:1", Way::Local), Some(Class::Declared));
        assert_eq!(excuses.of("b:2", Way::Hashed), Some(Class::Declared));
        assert_eq!(excuses.of("b:2", Way::Local), None);
        assert_eq!(excuses.of("c:3", Way::Range), Some(Class::Known));
        assert_eq!(excuses.ids().count(), 3);
    }

    #[test]
    fn mistakes_are_told() {
        for text in ["a:1", "[declared]\na:1", "[other] x\na:1", "[known] x\na:1\na:1", "[known] x\na:1 @elsewhere"] {
            assert!(Excuses::parse(text).is_err(), "{text}");
        }
    }
}
