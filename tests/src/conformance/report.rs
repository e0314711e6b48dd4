//! Counts the outcomes of cases by kind and by operator.

use super::excuses::Class;
use super::{Excuses, Way};
use crate::process::project;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;

/// The outcome of one case, run in one way.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// as expected
    Passed,
    /// not applicable, or excused
    Excused(Class),
    /// failed
    Failed(String),
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    declared: usize,
    not_applicable: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed(_) | Outcome::Excused(Class::Known) => self.failed += 1,
            Outcome::Excused(Class::Declared | Class::MongoDb) => self.declared += 1,
            Outcome::Excused(Class::Scope | Class::Shape) => self.not_applicable += 1,
        }
    }

    fn share(&self) -> f64 {
        let applicable = self.passed + self.failed;
        if applicable == 0 { 1.0 } else { self.passed as f64 / applicable as f64 }
    }
}

/// All outcomes.
#[derive(Debug, Default)]
pub struct Report {
    kinds: BTreeMap<String, BTreeMap<Way, Counts>>,
    operators: BTreeMap<String, Counts>,
    ways: BTreeMap<Way, Counts>,
    all: Counts,
    /// cases that failed without an excuse, and excuses that no longer hold
    pub complaints: Vec<String>,
    /// known failures that pass now, whose lines can be deleted
    pub notes: Vec<String>,
    /// cases are run in some of their ways only, so that an excuse may be needed in others
    pub is_sample: bool,
}

impl Report {
    /// Counts the outcomes of a case, with its excuses.
    pub fn add_all(
        &mut self,
        (id, kind, operators): (&str, &str, &[String]),
        excuses: &Excuses,
        outcomes: impl IntoIterator<Item = (Way, Outcome)>,
    ) {
        let mut classes = Vec::new();
        // An excuse is stale if all ways that it covers have passed.
        let mut needed = false;
        for (way, outcome) in outcomes {
            let outcome = match (excuses.of(id, way), outcome) {
                (Some(class), Outcome::Failed(_)) => {
                    needed = true;
                    Outcome::Excused(class)
                }
                (class, outcome) => {
                    classes.extend(class);
                    outcome
                }
            };
            self.count(kind, operators, way, &outcome);
            if let Outcome::Failed(what) = outcome {
                self.complaints.push(format!("{id} @{}: {what}", way.name()));
            }
        }
        let stale = !needed && !classes.is_empty() && !self.is_sample;
        if stale && classes.contains(&Class::Known) {
            self.notes.push(format!("{id}: passes now"));
        } else if stale {
            self.complaints.push(format!("{id}: passes, and need not be excused"));
        }
    }

    fn count(&mut self, kind: &str, operators: &[String], way: Way, outcome: &Outcome) {
        self.kinds.entry(kind.to_owned()).or_default().entry(way).or_default().add(outcome);
        self.ways.entry(way).or_default().add(outcome);
        self.all.add(outcome);
        for operator in operators {
            self.operators.entry(operator.clone()).or_default().add(outcome);
        }
    }

    /// The share of applicable cases that passed.
    pub fn share(&self) -> f64 {
        self.all.share()
    }

    /// Prints the tables, writes them with all complaints to `target/conformance-NAME.txt`, and fails if there are complaints.
    ///
    /// # Panics
    /// If there are complaints, or a smaller share than `aim` passed.
    pub fn conclude(&self, name: &str, aim: f64) {
        let table = self.table();
        let complaints = self.complaints.join("\n");
        let path = project().join(format!("target/conformance-{name}.txt"));
        let notes = self.notes.join("\n");
        let _ = fs::write(&path, format!("{table}\n{complaints}\n{notes}\n"));
        // Not by eprintln!, whose output cargo hides for a test that passes.
        let _ = writeln!(std::io::stderr(), "{table}");
        assert!(self.complaints.is_empty(), "{} complaints:\n{complaints}", self.complaints.len());
        assert!(self.share() >= aim, "only {:.2} % of the applicable cases pass", 100.0 * self.share());
    }

    /// The tables.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:24} {:>7} {:>7} {:>8} {:>15}",
            "kind @way", "passed", "failed", "excused", "not applicable"
        );
        let mut line = |name: &str, counts: &Counts| {
            let Counts { passed, failed, declared, not_applicable } = counts;
            let _ = writeln!(text, "{name:24} {passed:7} {failed:7} {declared:8} {not_applicable:15}");
        };
        for (kind, ways) in &self.kinds {
            for (way, counts) in ways {
                line(&format!("{kind} @{}", way.name()), counts);
            }
        }
        for (way, counts) in &self.ways {
            line(&format!("all @{}", way.name()), counts);
        }
        line("all", &self.all);
        for (operator, counts) in &self.operators {
            line(operator, counts);
        }
        let _ = writeln!(text, "{:.2} % of the applicable cases pass", 100.0 * self.share());
        text
    }
}
