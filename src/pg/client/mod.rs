//! The client's statement: whether it consists of a single call, and how its rows are sent.

pub mod sole_call;
pub mod text_output;
