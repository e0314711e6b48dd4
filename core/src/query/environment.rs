//! The environment of a statement: its collation, its variables and its time.

use crate::values::collation::Collator;
use crate::values::document::value::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// The collation, the variables of `let` and the time, shared by a statement's filters, projections, sorts and updates.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub(super) collator: Option<Arc<Collator>>,
    pub(super) variables: HashMap<String, Value>,
    /// in milliseconds since 1970
    pub(super) now: Option<i64>,
}

impl Environment {
    /// The collation; None for `simple`.
    pub fn collator(&self) -> Option<&Arc<Collator>> {
        self.collator.as_ref()
    }

    /// The statement's time, in milliseconds since 1970, if it is given.
    pub(crate) fn now(&self) -> Option<i64> {
        self.now
    }

    /// The same with further variables.
    pub(crate) fn with(&self, variables: impl IntoIterator<Item = (String, Value)>) -> Environment {
        let mut environment = self.clone();
        environment.variables.extend(variables);
        environment
    }

    /// A variable of `let`.
    pub(crate) fn variable(&self, name: &str) -> Option<&Value> {
        self.variables.get(name)
    }
}
