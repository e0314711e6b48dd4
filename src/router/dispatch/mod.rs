//! Sending statements to shards, in this process or over libpq.
//!
//! The shard `local` is checked first and then read in the same snapshot, so a stale map raises no ERROR there. The other shards
//! check their version inside the statement. Requests to all remote targets are sent before the local one runs, and no answer is
//! used before all have confirmed their version.

mod fan_out;
pub mod feed;
pub mod reading;
pub mod writing;
