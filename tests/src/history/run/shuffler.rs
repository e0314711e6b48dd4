//! Splits, merges and moves chunks at random while the clients work.

use super::{MOVER, connect};
use crate::history::workload::NAMESPACES;
use fastrand::Rng;
use postgres::Client;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

/// What a run and the thread of its shuffler share.
#[derive(Debug)]
pub(super) struct Shuffler {
    pub(super) port: u16,
    pub(super) seed: u64,
    pub(super) keys: u32,
    /// The collection whose chunks are moved less often, as the run itself moves one of them.
    pub(super) reserved: AtomicU8,
    pub(super) pause: AtomicBool,
    pub(super) busy: AtomicBool,
    pub(super) stop: AtomicBool,
}

impl Shuffler {
    pub(super) fn run(&self) {
        let mut rng = Rng::with_seed(self.seed ^ 0x0005_4aff_1e00);
        let mut client: Option<Client> = None;
        while !self.stop.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(rng.u64(50..300)));
            self.busy.store(true, Ordering::SeqCst);
            if self.pause.load(Ordering::SeqCst) {
                client = None;
                self.busy.store(false, Ordering::SeqCst);
                continue;
            }
            if client.as_ref().is_none_or(Client::is_closed) {
                client = connect(self.port, MOVER).ok();
            }
            if let Some(client) = &mut client {
                let collection = rng.u8(0..NAMESPACES.len() as u8);
                let sql = if rng.u32(0..5) < 2 || (collection == self.reserved.load(Ordering::SeqCst) && rng.bool()) {
                    split_or_merge_sql(&mut rng, self.keys, collection)
                } else {
                    let to = ["local", "shard0", "shard1", "shard2"][rng.usize(0..4)];
                    let (ns, k) = (NAMESPACES[usize::from(collection)], rng.u32(0..self.keys));
                    format!("SELECT docshard.move_chunk('{ns}', '{{\"k\": {k}}}', '{to}')")
                };
                // It may fail: another change may be in progress.
                let _ = client.batch_execute(&sql);
            }
            self.busy.store(false, Ordering::SeqCst);
        }
    }
}

/// A statement that splits a chunk, or merges two neighbours on one shard.
pub(super) fn split_or_merge_sql(rng: &mut Rng, keys: u32, collection: u8) -> String {
    let (ns, k) = (NAMESPACES[usize::from(collection)], rng.u32(0..keys));
    if rng.u32(0..3) > 0 {
        return if collection == 0 && rng.bool() {
            format!("SELECT docshard.split_at('{ns}', '{{\"k\": {k}}}')")
        } else {
            format!("SELECT docshard.split_find('{ns}', '{{\"k\": {k}}}')")
        };
    }
    format!(
        "SELECT docshard.merge_chunks('{ns}', json_build_array(a.min, b.max)) FROM docshard.chunks a \
         JOIN docshard.chunks b ON b.namespace = a.namespace AND b.min_key = a.max_key AND b.shard = a.shard \
         WHERE a.namespace = '{ns}' ORDER BY a.min_key OFFSET {} LIMIT 1",
        k % 3
    )
}
