//! The cases of `documents.jsonl` that a test runs.

use super::case::load;
use super::{Case, Excuses, Kind, Report, cases_file, list_file};

/// The least share of applicable cases that must pass.
const AIM: f64 = 0.97;

/// The cases that a test runs, with their excuses.
#[derive(Debug)]
pub struct Selection {
    /// the cases
    pub cases: Vec<Case>,
    /// their excuses
    pub excuses: Excuses,
    aim: f64,
}

impl Selection {
    /// The cases of the document language; None if the file of cases is absent. `CONFORMANCE=part-of-an-id` selects only some of them,
    /// of which any share may pass.
    ///
    /// # Panics
    /// If cases are missing, or an excuse is for none of them.
    pub fn of_documents() -> Option<Selection> {
        Self::load("documents.txt", 700, |kind| !is_of_pipelines(kind))
    }

    /// Like [`of_documents`](Self::of_documents), the cases of pipelines and their expressions.
    ///
    /// # Panics
    /// The same as for [`of_documents`](Self::of_documents).
    pub fn of_pipelines() -> Option<Selection> {
        Self::load("pipelines.txt", 1000, is_of_pipelines)
    }

    /// Reads the cases of some kinds, of which there must be more than `least`, and their excuses from `list`.
    fn load(list: &str, least: usize, is_wanted: impl Fn(Kind) -> bool) -> Option<Selection> {
        let mut cases = load(&cases_file("documents.jsonl")?);
        cases.retain(|case| is_wanted(case.kind));
        assert!(cases.len() > least, "only {} cases", cases.len());
        let excuses = Excuses::load(&list_file(list));
        for id in excuses.ids() {
            assert!(cases.iter().any(|case| case.id == id), "{id} is excused, but there is no such case");
        }
        let part = std::env::var("CONFORMANCE").ok();
        if let Some(part) = &part {
            cases.retain(|case| case.id.contains(part.as_str()));
        }
        Some(Selection { cases, excuses, aim: if part.is_some() { 0.0 } else { AIM } })
    }

    /// Concludes a report about these cases: see [`Report::conclude`].
    ///
    /// # Panics
    /// The same as for [`Report::conclude`].
    pub fn conclude(&self, report: &Report, name: &str) {
        report.conclude(name, self.aim);
    }
}

fn is_of_pipelines(kind: Kind) -> bool {
    matches!(kind, Kind::Aggregate | Kind::Expr)
}
