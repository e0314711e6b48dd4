//! Options of reads (sort, projection, skip, limit, hint), and the environment in which all parts of a statement are evaluated:
//! its collation, variables and time.

use crate::error::Result;
use crate::query::environment::Environment;
use crate::query::index::Bounds;
use crate::query::sort::Sort;
use serde_json::{Value as Json, json};

/// What a statement takes from the session that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// milliseconds since 1970
    pub now: i64,
    /// the names of the roles that the current user is a member of, with its own
    pub roles: fn() -> Result<Vec<String>>,
}

impl Session {
    /// Adds to an environment what texts of the statement use and it lacks: the present time for `$$NOW`, and the current user's roles
    /// for `$$USER_ROLES`. The router does this, so that both are the same on all shards, which run statements as another role.
    pub fn complete<'t>(&self, environment: &mut Option<Json>, texts: impl Iterator<Item = &'t str>) -> Result<()> {
        let (mut timed, mut with_roles) = (false, false);
        for text in texts {
            timed |= text.contains("$$NOW");
            with_roles |= text.contains("$$USER_ROLES");
        }
        let lacks =
            |environment: &Option<Json>, field| environment.as_ref().is_none_or(|json| json.get(field).is_none());
        if timed && lacks(environment, "now") {
            environment.get_or_insert_with(|| json!({}))["now"] = self.now.into();
        }
        if with_roles && lacks(environment, "roles") {
            environment.get_or_insert_with(|| json!({}))["roles"] = (self.roles)()?.into();
        }
        Ok(())
    }
}

/// The environment of its JSON; None is the empty one.
pub fn parsed_environment(json: Option<&Json>) -> Result<Environment> {
    Ok(json.map(Environment::parse).transpose()?.unwrap_or_default())
}

#[derive(Clone, Debug, Default)]
pub struct FindOptions {
    /// the sort, and its text, which is sent to shards
    pub sort: Option<(Sort, String)>,
    /// None: whole documents
    pub projection: Option<String>,
    /// the projection depends on which array element the filter matched
    pub positional: bool,
    /// the paths of an inclusion projection
    pub included: Option<Vec<String>>,
    /// collation, variables and time, as `Environment::to_json` writes them
    pub environment: Option<Json>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub hint: Option<Json>,
    /// `min` and `max`
    pub bounds: Option<Bounds>,
    /// shards that cannot be reached are left out
    pub allow_partial: bool,
}

#[derive(Debug, Default)]
pub struct CountOptions {
    pub skip: u64,
    pub limit: Option<u64>,
}
