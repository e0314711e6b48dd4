//! Lets routers sample the statements of a collection: MongoDB's configureQueryAnalyzer.

use super::arguments::{Arguments, number};
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::collections::{collection, namespace, views};
use crate::pg::error::Result;
use crate::pg::process;
use crate::router::sampling::{MAX_PER_SECOND, per_second};
use crate::worker;
use docshard_core::error::{Kind, bail, ensure};
use serde_json::{Value as Json, json};

/// Begins or ends the sampling of a collection's statements.
///
/// # Errors
/// `InvalidOptions` for a rate without mode *full*, and the reverse; `NamespaceNotFound`; `CommandNotSupportedOnView`; `IllegalOperation`
/// for an internal database.
pub fn configure(ns: &str, options: &Arguments<'_>) -> Result<Json> {
    check_may_change()?;
    namespace::split_of_users(ns)?;
    let every_us = interval(options)?;
    views::refuse(ns)?;
    if every_us.is_some() {
        worker::require_preloaded()?;
    }
    let before = collection::set_sampling(ns, every_us)?;
    process::wake_at_commit();
    Ok(json!({"ok": 1, "newConfiguration": shown(every_us), "oldConfiguration": shown(before)}))
}

/// The least number of microseconds between two samples; None: nothing is sampled.
fn interval(options: &Arguments<'_>) -> Result<Option<i64>> {
    let is_on = options.text("mode") != Some("off");
    let Some(given) = options.get("samplesPerSecond") else {
        ensure!(!is_on, Kind::InvalidOptions, "'samplesPerSecond' must be given if 'mode' is not \"off\"");
        return Ok(None);
    };
    ensure!(is_on, Kind::InvalidOptions, "'samplesPerSecond' cannot be given if 'mode' is \"off\"");
    let Some(rate) = number(given).map(|number| number.to_f64()) else {
        bail!(Kind::TypeMismatch, "'samplesPerSecond' must be a number, not {given}");
    };
    ensure!(
        rate > 0.0 && rate <= MAX_PER_SECOND,
        Kind::InvalidOptions,
        "'samplesPerSecond' must be greater than 0 and at most {MAX_PER_SECOND}, not {given}"
    );
    // Rounded up, so that no second has more than `rate`; at most a day.
    Ok(Some((1e6 / rate).ceil().min(86_400e6) as i64))
}

fn shown(every_us: Option<i64>) -> Json {
    match every_us {
        None => json!({"mode": "off"}),
        Some(every_us) => json!({"mode": "full", "samplesPerSecond": per_second(every_us)}),
    }
}
