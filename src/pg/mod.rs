//! The edge to the PostgreSQL server this code runs in: errors, datums, locks, SPI, settings, callbacks.

pub mod error;
