//! Several shards' rows as one stream, in order. Memory holds one row a shard.

use super::dispatch::{Answer, RowStream};
use super::statement::Order;
use crate::pg::error::Result;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A shard's next row, waiting for its turn.
struct Head {
    key: Vec<u8>,
    row: Answer,
    stream: usize,
    descending: bool,
}

impl Ord for Head {
    /// The heap's greatest is the row to hand out next; among equals the shard that comes first, so results are stable.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = if self.descending { self.key.cmp(&other.key) } else { other.key.cmp(&self.key) };
        by_key.then_with(|| other.stream.cmp(&self.stream))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// The merged stream.
pub struct Merged {
    streams: Vec<RowStream>,
    order: Order,
    heads: BinaryHeap<Head>,
    primed: bool,
    current: usize,
}

impl Merged {
    /// Merges streams whose rows come in `order`. One stream needs no key column.
    pub fn new(streams: Vec<RowStream>, order: Order) -> Self {
        let order = if streams.len() < 2 { Order::None } else { order };
        Self { streams, order, heads: BinaryHeap::new(), primed: false, current: 0 }
    }

    /// The next row.
    ///
    /// # Errors
    /// A shard's.
    pub fn next_row(&mut self) -> Result<Option<Answer>> {
        if self.order == Order::None {
            while let Some(stream) = self.streams.get_mut(self.current) {
                if let Some(row) = stream.next_row()? {
                    return Ok(Some(row));
                }
                self.current += 1;
            }
            return Ok(None);
        }
        if !self.primed {
            self.primed = true;
            for stream in 0..self.streams.len() {
                self.refill(stream)?;
            }
        }
        let Some(head) = self.heads.pop() else { return Ok(None) };
        self.refill(head.stream)?;
        Ok(Some(head.row))
    }

    fn refill(&mut self, stream: usize) -> Result<()> {
        if let Some(row) = self.streams[stream].next_row()? {
            let key = row.get(1).unwrap_or_default().to_vec();
            self.heads.push(Head { key, row, stream, descending: self.order == Order::Descending });
        }
        Ok(())
    }
}
