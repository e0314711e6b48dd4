//! Changes a pipeline before it runs, by the properties of its stages in the [table](super::table).
//!
//! * [`rearrange`] reorders stages so that they process fewer documents; [`joins`] moves them ahead of stages
//!   that read other collections, or into their pipelines.
//! * [`division`] divides them between shards and router.

pub mod conjunction;
pub mod division;
pub mod joins;
pub mod rearrange;
