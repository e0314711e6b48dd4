//! MongoDB's semantics by example: cases from public test suites, run over real clusters.
//!
//! * [`case`](Case) is one case of `documents.jsonl`.
//! * [`shell`](Shell) runs MongoDB's commands through docshard's SQL functions.
//! * [`stage`](Stage) creates the collections: unsharded, hashed, in ranges.
//! * [`spec`] is a test of MongoDB's CRUD specification, `crud_spec.jsonl`.
//! * [`verdict`] says whether an answer is the expected one, by [`compare`].
//! * [`excuses`](Excuses) reads the cases that are expected to fail.
//! * [`report`](Report) counts outcomes by kind and by operator.
//! * [`selection`](Selection) is the cases that a test runs.

mod case;
pub mod compare;
mod excuses;
mod report;
mod selection;
mod shell;
pub mod spec;
mod stage;
mod verdict;

pub use case::{Case, Expected, Kind, collected};
pub use excuses::{Class, Excuses};
pub use report::{Outcome, Report};
pub use selection::Selection;
pub use shell::{Answer, Door, Failure, Shell};
pub use stage::{Stage, Way};
pub use verdict::verdict;

use crate::process::project;
use std::path::PathBuf;

/// A file of cases. Where it is absent, as on a user's machine, says that the test is skipped.
pub fn cases_file(name: &str) -> Option<PathBuf> {
    crate::data::shared(&format!("cases/{name}"))
}

/// A file of this package with information about the cases.
pub fn list_file(name: &str) -> PathBuf {
    project().join("tests/conformance").join(name)
}

/// True if a way runs a case: the first way runs all, and each case is run in one of three others, unless there is time for all.
pub fn is_run(way: usize, case: usize) -> bool {
    way == 0 || crate::is_thorough() || case % 3 == (way - 1) % 3
}
