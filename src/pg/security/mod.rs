//! Who runs statements, what they may do, and what names in them mean.

pub mod credentials;
pub mod function;
pub mod permission;
pub(in crate::pg) mod search_path;
pub mod user;
