//! What came out, counted by kind and by operator.

use super::excuses::Class;
use super::{Case, Way};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What came out of one case, run one way.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// as expected
    Passed,
    /// not applicable, or excused
    Excused(Class),
    /// something else
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
    kinds: BTreeMap<&'static str, BTreeMap<Way, Counts>>,
    operators: BTreeMap<String, Counts>,
    ways: BTreeMap<Way, Counts>,
    all: Counts,
    /// what failed although nothing excuses it, and excuses that no longer hold
    pub complaints: Vec<String>,
}

impl Report {
    /// Takes an outcome into account.
    pub fn add(&mut self, case: &Case, way: Way, outcome: &Outcome) {
        self.count(case.kind.name(), &case.operators, way, outcome);
        if let Outcome::Failed(what) = outcome {
            self.complaints.push(format!("{} @{}: {what}", case.id, way.name()));
        }
    }

    /// Counts an outcome.
    pub fn count(&mut self, kind: &'static str, operators: &[String], way: Way, outcome: &Outcome) {
        self.kinds.entry(kind).or_default().entry(way).or_default().add(outcome);
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

    /// How many passed.
    pub fn passed(&self) -> usize {
        self.all.passed
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
