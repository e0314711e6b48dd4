//! Earlier releases of docshard, whose libraries and install scripts `.ci/release` puts into the private PostgreSQL.

use crate::installation::Installation;

/// A release.
#[derive(Debug, Clone)]
pub struct Release {
    /// such as `0.1.0`
    pub version: String,
    /// where its library is, in PostgreSQL's folder of libraries; None: the working tree's is there
    pub(crate) folder: Option<String>,
}

impl Release {
    /// The releases in `tests/releases.txt` that support the PostgreSQL in use, the oldest first.
    ///
    /// # Panics
    /// If a line of the file names no version.
    pub fn all() -> Vec<Self> {
        let lines = include_str!("../releases.txt").lines().filter(|line| !line.starts_with('#'));
        let lines: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
        assert!(!lines.is_empty(), "no releases");
        let major = Installation::private().major().to_string();
        lines.iter().filter(|line| line[2..].contains(&major.as_str())).map(|line| Self::earlier(line[0])).collect()
    }

    fn earlier(version: &str) -> Self {
        Self { version: version.to_owned(), folder: Some(format!("docshard-{version}")) }
    }

    /// The working tree.
    pub fn present() -> Self {
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), folder: None }
    }

    /// The last commit, as if it were released after the working tree.
    ///
    /// # Panics
    /// If the version does not consist of three numbers.
    pub fn next() -> Self {
        let (start, patch) = env!("CARGO_PKG_VERSION").rsplit_once('.').expect("numbers with dots");
        let patch: u32 = patch.parse().expect("a number");
        Self { version: format!("{start}.{}", patch + 1), folder: Some("docshard-next".to_owned()) }
    }

    /// True if nodes of this release and of later ones work together; before, all of them are stopped for an upgrade.
    pub fn is_upgraded_node_by_node(&self) -> bool {
        self.version != "0.1.0"
    }
}
