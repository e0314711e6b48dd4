//! What is fuzzed. `core/tests/fuzz.rs` runs the same for a moment on any compiler.

pub mod source;
pub mod targets;
