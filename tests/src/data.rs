//! Real documents and cases, which lie beside the project where it is developed and not inside it.

use crate::process::project;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// A file or folder beside the project. Where it is absent, as on a user's machine, says that the test is skipped.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let path = project().parent()?.join("shared").join(path);
    if path.exists() {
        return Some(path);
    }
    // Not by eprintln!, which a test that passes does not show.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: there is no {}", path.display());
    None
}

/// The folder of real documents. Where it is absent, as on a user's machine, says that the test is skipped.
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
