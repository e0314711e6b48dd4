//! The fuzz targets. `core/tests/fuzz.rs` runs them briefly, with any compiler.

pub mod source;
pub mod targets;
