//! The interface to the PostgreSQL server that this code runs in. With `storage` and `remote` the only place with `unsafe`. It knows
//! no collections, chunks or shards.
#![allow(unsafe_code)]

pub mod client;
pub mod datum;
pub mod error;
pub mod fault;
pub mod memory;
pub mod object;
pub mod process;
pub mod security;
pub mod server;
pub mod spi;
pub mod transaction;
mod utility;
