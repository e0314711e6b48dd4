//! Collections in memory, for tests and fuzzers.

use super::pipeline::Pipeline;
use super::runtime::resources::{Collections, Resources};
use super::runtime::stream::{InMemory, Input, IterStream};
use crate::error::Result;
use crate::query::environment::Environment;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::rc::Rc;

/// The documents of collections, by their names.
#[derive(Clone, Debug)]
pub struct Database {
    /// jsonb documents
    pub collections: Rc<HashMap<String, Vec<Vec<u8>>>>,
    /// the memory of the pipelines that read them
    pub memory: InMemory,
}

impl Collections for Database {
    fn read(&self, collection: Option<&str>, stages: &[Json], environment: &Environment) -> Result<Input<'static>> {
        let documents = collection.and_then(|name| self.collections.get(name)).cloned().unwrap_or_default();
        let resources = Resources { memory: Rc::new(self.memory), collections: Rc::new(self.clone()) };
        let pipeline = Pipeline::parse(stages, environment)?.rearranged()?;
        pipeline.run_with(Box::new(IterStream::new(documents)), &resources)
    }
}
