//! Sending statements to shards, in this process or over libpq.
//!
//! The shard `local` is checked first and then read in the very snapshot that was checked, so no ERROR is raised for a
//! stale map; the others check inside their statement. Requests to all remote targets are under way before the local
//! one runs, and no answer is used before all have confirmed.

pub mod feed;
pub mod reading;
mod request;
mod retry;
pub mod writing;
