//! The allocator and its limit, own memory contexts, state that outlives a call, and the sorts and row stores of pipelines.

pub mod aggregate_state;
pub mod allocator;
mod bounded_sorter;
pub mod budget;
pub mod call_state;
pub mod context;
mod rows;
pub mod small_cache;
mod sorter;
pub mod stages;
