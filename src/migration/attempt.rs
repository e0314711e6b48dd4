//! An attempt to move a chunk: its catalog row, its range, and the sessions *T*, *S* and *R* that the header of [`super`]
//! describes.

use super::record::Record;
use super::shard::ShardSession;

pub(super) struct Attempt {
    pub(super) record: Record,
    /// The upper bound in statements for shards: None for the last chunk.
    pub(super) end: Option<Vec<u8>>,
    /// T
    pub(super) donor: ShardSession,
    /// R
    pub(super) recipient: ShardSession,
    /// S
    pub(super) puller: ShardSession,
}
