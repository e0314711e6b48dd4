//! The requests and results of changes of a collection's layout.

use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::zone::ZoneRange;
use docshard_core::values::key::encode::hash_encoded;
use serde::{Deserialize, Serialize};

/// A request to change a collection's layout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub namespace: String,
    /// MongoDB's command for it
    pub command: String,
    pub target: Target,
    /// the collection's number and the text of its shard key when the caller decided; they must be the same when the change begins
    pub seen: (i32, String),
    /// for how long to wait for a moment in which writers are excluded only briefly, in milliseconds
    pub commit_timeout_ms: u64,
    /// true: an error if a recipient has not enough free space
    pub check_space: bool,
}

/// A zone's range: lower bound, upper bound, the zone's name.
pub type Range = (Vec<u8>, Vec<u8>, String);

/// The new layout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Target {
    /// sharded by this key, on all shards
    Key {
        /// the key's text
        key: String,
        unique: bool,
        /// true: an error if no index serves the key
        needs_index: bool,
        /// how many chunks; None: by the size of the collection
        chunks: Option<i64>,
        /// the ranges of zones, of the new key; None: none were given
        zones: Option<Vec<Range>>,
    },
    /// unsharded, on this shard
    Shard(ShardId),
    /// sharded by a key, given as text, that begins with the present one: the same chunks on the same shards
    Refined(String),
    /// the same chunks on the same shards
    Same,
}

impl Target {
    /// A hash of the target with all its options: equal targets have equal numbers.
    pub(super) fn number(&self) -> i64 {
        hash_encoded(format!("{self:?}").as_bytes())
    }

    /// The ranges of zones.
    pub(super) fn zones(zones: &[Range]) -> Vec<ZoneRange> {
        let range = |(min, max, zone): &Range| ZoneRange { min: min.clone(), max: max.clone(), zone: zone.clone() };
        zones.iter().map(range).collect()
    }
}

/// The result of a change of layout.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Resharded {
    pub documents: i64,
    pub bytes: i64,
    /// for how long writers waited
    pub stall_ms: i64,
    pub millis: i64,
}
