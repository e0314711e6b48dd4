//! Real documents, which lie beside the project where it is developed and not inside it.

use crate::process::project;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// The folder of real documents. Where it is absent, as on a user's machine, says that the test is skipped.
pub fn shared_data() -> Option<PathBuf> {
    let folder = project().parent()?.join("shared/data");
    if folder.is_dir() {
        return Some(folder);
    }
    // Not by eprintln!, which a test that passes does not show.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: there is no {}", folder.display());
    None
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
