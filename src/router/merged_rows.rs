//! Merges the ordered rows of several shards into one stream. Memory holds one row of each shard.

use super::rows::{RowStream, ShardRow};
use crate::pg::error::Result;
use docshard_core::cluster::merge::Heads;
use docshard_core::routing::plan::order::Order;

pub struct MergedRows {
    streams: Vec<RowStream>,
    order: Order,
    heads: Heads<Vec<u8>, ShardRow>,
    primed: bool,
    current: usize,
}

impl MergedRows {
    /// Merges streams whose rows come in `order`. A single stream needs no key column.
    pub fn new(streams: Vec<RowStream>, order: Order) -> Self {
        let order = if streams.len() < 2 { Order::None } else { order };
        let heads = Heads::new(order == Order::Descending);
        Self { streams, order, heads, primed: false, current: 0 }
    }

    pub fn next_row(&mut self) -> Result<Option<ShardRow>> {
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
        let Some((stream, row)) = self.heads.pop() else { return Ok(None) };
        self.refill(stream)?;
        Ok(Some(row))
    }

    /// Adds up the first columns of all rows.
    pub fn sum(mut self) -> Result<i64> {
        let mut total = 0;
        while let Some(row) = self.next_row()? {
            total = i64::saturating_add(total, row.i64(0));
        }
        Ok(total)
    }

    /// Reads all streams to their ends, and discards the rows.
    pub fn drain(&mut self) -> Result<()> {
        for stream in &mut self.streams {
            while stream.next_row()?.is_some() {}
        }
        Ok(())
    }

    fn refill(&mut self, stream: usize) -> Result<()> {
        if let Some(row) = self.streams[stream].next_row()? {
            self.heads.push(stream, row.bytes(1).to_vec(), row);
        }
        Ok(())
    }
}
