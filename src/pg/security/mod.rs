//! Users, privileges, credentials and the search path.

pub mod bypass;
pub mod credentials;
pub mod function;
pub mod permission;
pub mod pinned;
pub(in crate::pg) mod search_path;
pub mod user;
