//! Sending statements to shards, in this process or over libpq.
//!
//! On the shard `local`, which is this database, the version is checked before the statement runs, in the same snapshot. The other shards
//! check their version inside the statement. Requests to all remote targets are sent before the local one runs, and no answer is used
//! before all have confirmed their version.

mod fan_out;
pub mod feed;
pub mod reading;
pub mod writing;
