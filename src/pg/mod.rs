//! The edge to the PostgreSQL server this code runs in: errors, datums, SPI, snapshots, locks, caches.
//!
//! With `remote`, the only place with `unsafe`. Nothing here knows collections or shards.
#![allow(unsafe_code)]

pub mod aggregate;
pub mod background;
pub mod budget;
pub mod credentials;
pub mod drop_guard;
pub mod durability;
pub mod epoch;
pub mod error;
pub mod extension;
pub mod fault;
pub mod fn_cache;
pub mod held;
pub mod invalidation;
pub mod json;
pub mod jsonb;
pub mod known;
pub mod memory;
pub mod output;
pub mod param;
pub mod permission;
pub mod process;
pub mod recent;
mod search_path;
pub mod serializable;
pub mod server;
pub mod server_log;
pub mod snapshot;
pub mod spi;
pub mod sql;
pub mod subtransaction;
pub mod timeout;
pub mod transaction;
pub mod user;
pub mod utility;
pub mod wal;
pub mod whole;
