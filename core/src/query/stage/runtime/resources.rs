//! What stages use while they run: memory and other collections.

use super::stream::{Input, Memory};
use crate::error::{Kind, Result, bail};
use crate::query::environment::Environment;
use serde_json::Value as Json;
use std::rc::Rc;

/// The collections of the database in which a pipeline runs.
pub trait Collections {
    /// Streams the results of a pipeline over a collection, or over no collection if it begins with `$documents`. A collection that
    /// does not exist has no documents. The collation is the environment's, not the collection's own.
    ///
    /// # Errors
    /// Those of parsing the stages and of reading.
    fn read(&self, collection: Option<&str>, stages: &[Json], environment: &Environment) -> Result<Input<'static>>;
}

/// Refuses to read collections: for stages at a shard.
#[derive(Clone, Copy, Debug)]
pub struct NoCollections;

impl Collections for NoCollections {
    fn read(&self, collection: Option<&str>, _: &[Json], _: &Environment) -> Result<Input<'static>> {
        match collection {
            Some(name) => bail!(Kind::IllegalOperation, "a stage cannot read the collection {name} at a shard"),
            None => bail!(Kind::IllegalOperation, "a stage cannot run a pipeline of its own at a shard"),
        }
    }
}

/// What the stages of a pipeline use.
#[derive(Clone)]
pub struct Resources {
    /// where stages keep documents
    pub memory: Rc<dyn Memory>,
    /// the other collections
    pub collections: Rc<dyn Collections>,
}

impl Resources {
    /// Returns resources without access to other collections.
    pub fn of_memory(memory: &Rc<dyn Memory>) -> Resources {
        Resources { memory: Rc::clone(memory), collections: Rc::new(NoCollections) }
    }
}
