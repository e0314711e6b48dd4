//! Collections' documents as PostgreSQL stores them: rows, scans, indexes and access methods, locks; what goes round the
//! executor because it is on a hot path.
//!
//! It knows tables and their columns, not shards, chunks or routers.
#![allow(unsafe_code)]

pub mod bulk;
pub mod counting;
pub mod covering;
pub mod gin;
pub mod lock;
pub mod matching;
pub mod planning;
pub mod rows;
pub mod scan;
pub mod trigger;
mod unique;
