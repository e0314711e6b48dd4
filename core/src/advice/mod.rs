//! Advice on shard keys: what a key would do to a collection, judged by a sample of its documents and of its statements.
//!
//! * [`sample`]: documents in the order in which they were inserted.
//! * [`characteristics`]: how many values a key has, how often the most common ones occur, and whether it ascends.
//! * [`statement`]: sampled statements, and which part of a collection each of them needs under a key.
//! * [`layout`]: the chunks that a collection would have, on shards.
//! * [`simulation`]: makes these chunks of the older sampled documents, then inserts the newest ones and runs the sampled statements.
//! * [`candidates`]: keys worth a simulation. [`verdict`]: ranks them, and says why.
//!
//! Nothing here asks a server. Loops over samples count steps, so that a statement can be cancelled.

pub mod sample;

pub mod characteristics;

pub mod statement;

pub mod layout;

pub mod simulation;

pub mod candidates;

pub mod verdict;
