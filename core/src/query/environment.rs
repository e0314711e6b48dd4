//! The environment of a statement: its collation, its variables, its time and the roles of its user.
//!
//! The router takes time and roles from its session, so that both are the same on all shards, which run statements as another role. It
//! sends them only with statements that use them: an environment records whether an expression that was parsed in it uses the time or the
//! roles.

use crate::error::Result;
use crate::values::collation::Collator;
use crate::values::document::value::Value;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What a statement takes from the session that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// milliseconds since 1970
    pub now: i64,
    /// the names of the roles that the current user is a member of, with its own
    pub roles: fn() -> Result<Vec<String>>,
}

/// The session's time and roles, and which of the two the parts of a statement use.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) session: Session,
    pub(super) uses_now: AtomicBool,
    /// set when they are first used
    pub(super) roles: OnceLock<Vec<String>>,
    /// the JSON of the statement's collation and variables
    pub(super) given: Option<Json>,
}

/// The value of a variable of `let`.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    /// a value
    Value(Value),
    /// no value, as for a missing field
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
    /// the session that gives the time and the roles if the environment does not have its own
    pub(super) offer: Option<Arc<Offer>>,
    /// true if the expressions are those of `$group`
    pub(super) in_group: bool,
}

impl Environment {
    /// The collation; None for `simple`.
    pub fn collator(&self) -> Option<&Arc<Collator>> {
        self.collator.as_ref()
    }

    /// The statement's time, in milliseconds since 1970; None if the environment has neither a time nor a session.
    pub(crate) fn now(&self) -> Option<i64> {
        self.now.or_else(|| {
            let offer = self.offer.as_ref()?;
            offer.uses_now.store(true, Ordering::Relaxed);
            Some(offer.session.now)
        })
    }

    /// True if a part that was parsed in this environment has used the time of the session.
    pub(crate) fn uses_now(&self) -> bool {
        self.offer.as_ref().is_some_and(|offer| offer.uses_now.load(Ordering::Relaxed))
    }

    /// The value of `$$USER_ROLES`: documents in MongoDB's form, all of the database `admin`. None if the environment has neither roles nor
    /// a session.
    ///
    /// # Errors
    /// Those of [`Session::roles`].
    pub(crate) fn roles(&self) -> Result<Option<Value>> {
        let field = |name: &str, value: &str| (name.to_owned(), Value::String(value.to_owned()));
        let document = |role: &String| {
            Value::fixed_object(vec![field("db", "admin"), field("_id", &format!("admin.{role}")), field("role", role)])
        };
        let roles = match (&self.roles, &self.offer) {
            (Some(roles), _) => roles,
            (None, Some(offer)) => match offer.roles.get() {
                Some(roles) => roles,
                None => {
                    let roles = (offer.session.roles)()?;
                    offer.roles.get_or_init(|| roles)
                }
            },
            (None, None) => return Ok(None),
        };
        Ok(Some(Value::fixed_array(roles.iter().map(document).collect())))
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

    /// A variable of `let`; None if it is not defined.
    pub(crate) fn variable(&self, name: &str) -> Option<&Binding> {
        self.variables.get(name)
    }
}
