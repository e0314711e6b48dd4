//! An attempt to move a chunk: its catalog row, its range, and its sessions, which docs/architecture/migration.md describes.

use super::record::Record;
use super::shard::ShardSession;
use super::standbys::{Both, Standbys};
use crate::pg::error::Result;
use docshard_core::routing::protocol::shard_tables::TableRange;
use std::time::Instant;

pub(super) struct Attempt {
    pub(super) record: Record,
    /// The upper bound in statements for shards: None for the last chunk.
    pub(super) end: Option<Vec<u8>>,
    /// The donor session.
    pub(super) donor: ShardSession,
    /// The load session, at the recipient.
    pub(super) loader: ShardSession,
    /// The pull session, at the recipient.
    pub(super) puller: ShardSession,
    pub(super) standbys: Both,
    /// A snapshot of the donor: the recipient knows the numbered writes of all transactions that are visible in it.
    pub(super) copied_snapshot: String,
    /// Documents that have changed come with the order of their fields.
    pub(super) keeps_order: bool,
}

impl Attempt {
    /// Remembers the standbys that are connected at the beginning.
    pub(super) fn see_standbys(&mut self) -> Result<()> {
        self.standbys.look(&mut self.donor, &mut self.puller)
    }

    /// See [`Both::wait`]. The load session may be in a transaction, so the recipient is asked in the pull session.
    pub(super) fn await_standbys(&mut self, must_stay: bool, deadline: Instant) -> Result<Standbys> {
        self.standbys.wait(&mut self.donor, &mut self.puller, must_stay, deadline)
    }
}

/// The range of a move with this upper bound, in statements for shards.
pub(super) fn range<'a>(record: &'a Record, end: Option<&'a [u8]>) -> TableRange<'a> {
    TableRange { collection: record.collection, lo: &record.min, hi: end }
}
