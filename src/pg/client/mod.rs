//! The client's statement: whether a call is all of it, and how its rows are sent.

pub mod sole_call;
pub mod text_output;
