//! Writes, and the search for the documents that they write.
//!
//! * [`once`]: claims the numbers of writes that are executed once.
//! * [`insert`] inserts documents. [`modify`] updates, replaces and deletes them: [`modification`] has the parsed updates, [`target`] finds
//!   shards and documents; [`locked`], [`skip_locked`], [`upsert`] are special cases. [`keyed_updates`] updates many documents by key.
//! * [`clear`] deletes all documents, [`expiry`] those that have expired.

pub mod clear;
pub mod expiry;
pub mod insert;
pub mod keyed_updates;
pub mod locked;
pub mod modification;
pub mod modify;
pub mod once;
mod skip_locked;
pub mod target;
pub mod upsert;
