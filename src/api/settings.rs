//! The cluster's settings.

use super::{answer, required};
use crate::catalog::cluster::check_may_change;
use crate::catalog::settings;
use crate::pg::datum::json::Json;
use crate::pg::process;
use pgrx::prelude::*;
use serde_json::json;

/// Sets a setting of the cluster; null goes back to the default. The view docshard.settings describes them.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn set_setting(name: Option<&str>, value: Option<&str>) -> Json {
    answer(|| {
        let name = required(name, "name")?;
        check_may_change()?;
        settings::set(name, value)?;
        process::wake_at_commit();
        Ok(json!({"name": name, "value": value, "ok": 1}))
    })
}
