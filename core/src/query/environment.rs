//! The environment of a statement: its collation, its variables, its time and the roles of its user.

use crate::values::collation::Collator;
use crate::values::document::value::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// The value of a variable of `let`.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    /// a value
    Value(Value),
    /// no value, as of a field that is not there
    Missing,
    /// a value that is known only when the pipeline runs: expressions are checked, but not evaluated
    Open,
}

/// The collation, the variables of `let`, the time and the roles, shared by a statement's filters, projections, sorts and updates.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub(super) collator: Option<Arc<Collator>>,
    pub(super) variables: HashMap<String, Binding>,
    /// in milliseconds since 1970
    pub(super) now: Option<i64>,
    /// the names of the roles that the user is a member of
    pub(super) roles: Option<Vec<String>>,
    /// the expressions are those of `$group`
    pub(super) in_group: bool,
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

    /// The value of `$$USER_ROLES`, if the roles are given: documents in MongoDB's form, all of the database `admin`.
    pub(crate) fn roles(&self) -> Option<Value> {
        let field = |name: &str, value: &str| (name.to_owned(), Value::String(value.to_owned()));
        let document = |role: &String| {
            Value::fixed_object(vec![field("db", "admin"), field("_id", &format!("admin.{role}")), field("role", role)])
        };
        self.roles.as_ref().map(|roles| Value::fixed_array(roles.iter().map(document).collect()))
    }

    /// Returns a copy of the environment for the expressions of `$group`.
    pub(crate) fn in_group(&self) -> Environment {
        Environment { in_group: true, ..self.clone() }
    }

    /// Returns a copy of the environment with more variables.
    pub(crate) fn with(&self, variables: impl IntoIterator<Item = (String, Value)>) -> Environment {
        self.with_bindings(variables.into_iter().map(|(name, value)| (name, Binding::Value(value))))
    }

    /// Returns a copy of the environment with more variables. A variable may be bound to no value.
    pub(crate) fn with_bindings(&self, variables: impl IntoIterator<Item = (String, Binding)>) -> Environment {
        let mut environment = self.clone();
        environment.variables.extend(variables);
        environment
    }

    /// A variable of `let`.
    pub(crate) fn variable(&self, name: &str) -> Option<&Binding> {
        self.variables.get(name)
    }
}
