//! json and jsonb values as arguments and results.

pub mod json;
pub mod jsonb;
pub mod nulls;
