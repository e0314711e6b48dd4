//! The times in replies, `operationTime` and `$clusterTime`, by which drivers order the operations of causally consistent sessions.
//!
//! All reads and writes go to primaries, so each command sees everything that was acknowledged before it began, whatever time its
//! client sends. Therefore the times need only increase. The times of several gateways differ as much as their clocks; a driver
//! keeps the latest one.

use crate::command::end;
use crate::reply::Reply;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A timestamp: seconds, and a counter in the lower 32 bits.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// The present time, or the least time after the last one if that is later.
    fn tick(&self) -> u64 {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let now = (seconds << 32) | 1;
        let last = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(now.max(last + 1)));
        last.map_or(now, |last| now.max(last + 1))
    }

    /// The reply with both times.
    pub fn stamp(&self, mut reply: Reply) -> Reply {
        let time = self.tick().to_le_bytes();
        reply.pop();
        append_timestamp(&mut reply, "operationTime", time);
        reply.extend(b"\x03$clusterTime\0");
        let cluster = reply.len();
        reply.extend([0; 4]);
        append_timestamp(&mut reply, "clusterTime", time);
        // Clients send `$clusterTime` back. Nobody checks its signature, so it has MongoDB's empty one.
        reply.extend(b"\x03signature\0");
        let signature = reply.len();
        reply.extend([0; 4]);
        reply.extend(b"\x05hash\0\x14\0\0\0\0");
        reply.extend([0; 20]);
        reply.extend(b"\x12keyId\0");
        reply.extend([0; 8]);
        end(&mut reply, signature);
        end(&mut reply, cluster);
        end(&mut reply, 0);
        reply
    }
}

fn append_timestamp(out: &mut Vec<u8>, name: &str, time: [u8; 8]) {
    out.push(0x11);
    out.extend(name.as_bytes());
    out.push(0);
    out.extend(time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply;
    use bson::{Binary, Document, doc, spec::BinarySubtype};

    #[test]
    fn replies_have_times_that_grow() {
        let clock = Clock::default();
        let mut last = 0;
        for _ in 0..3 {
            let reply = Document::from_reader(clock.stamp(reply::ok(doc! { "n": 1 })).as_slice()).unwrap();
            let time = reply.get_timestamp("operationTime").unwrap();
            let hash = Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] };
            let cluster = doc! { "clusterTime": time, "signature": { "hash": hash, "keyId": 0i64 } };
            assert_eq!(reply, doc! { "n": 1, "ok": 1.0, "operationTime": time, "$clusterTime": cluster });
            let now = u64::from(time.time) << 32 | u64::from(time.increment);
            assert!(now > last && time.time > 1_700_000_000);
            last = now;
        }
        assert_eq!(Clock(AtomicU64::new(u64::MAX >> 1)).tick(), (u64::MAX >> 1) + 1);
    }
}
