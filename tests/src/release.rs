//! Earlier releases of docshard, whose libraries and install scripts `.ci/release` puts into the private PostgreSQL.

/// A release.
#[derive(Debug, Clone)]
pub struct Release {
    /// such as `0.1.0`
    pub version: String,
    /// where its library is, in PostgreSQL's folder of libraries; None: the working tree's is there
    pub(crate) folder: Option<String>,
}

impl Release {
    /// All of `tests/releases.txt`, the oldest first.
    pub fn all() -> Vec<Self> {
        let lines = include_str!("../releases.txt").lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.split(' ').next()).map(Self::earlier).collect()
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
    /// If the version is no three numbers.
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
