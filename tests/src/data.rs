//! Real documents and cases, which are stored beside the project's development tree and not inside it.

use crate::process::project;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// A file or folder beside the project. If it is absent, as on a user's machine, prints that the test is skipped.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let path = project().parent()?.join("shared").join(path);
    if path.exists() {
        return Some(path);
    }
    // Not by eprintln!, whose output cargo hides for a test that passes.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: there is no {}", path.display());
    None
}

/// The folder of real documents. If it is absent, as on a user's machine, prints that the test is skipped.
pub fn shared_data() -> Option<PathBuf> {
    shared("data")
}

/// The documents of a file of [`shared_data`], one a line, as JSON text.
///
/// # Panics
/// If the folder is there, but not the file.
pub fn docs(file: &str) -> Option<Vec<String>> {
    let path = shared_data()?.join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Some(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
}
