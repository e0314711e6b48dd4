//! Values as PostgreSQL passes them to functions.

pub mod json;
pub mod jsonb;
