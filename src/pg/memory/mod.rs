//! The allocator, its limit, and state that outlives a call.

pub mod aggregate_state;
pub mod allocator;
mod bounded_sorter;
pub mod budget;
pub mod call_state;
pub mod recently_used;
mod rows;
mod sorter;
pub mod stages;
