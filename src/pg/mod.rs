//! The interface to the PostgreSQL server in which this code runs. Only this module, `storage` and `remote` have `unsafe` code.
//! It knows no collections, chunks or shards.
#![allow(unsafe_code)]

pub mod client;
pub mod datum;
pub mod error;
pub mod events;
pub mod fault;
pub mod fdw;
pub mod memory;
pub mod object;
pub mod process;
pub mod security;
pub mod server;
pub mod spi;
pub mod stages;
pub mod transaction;
mod utility;
pub mod version;
