//! The cluster's settings: one table of names, defaults and bounds. The catalog stores only values that differ from the default.

use crate::catalog::{cache, change};
use crate::pg::error::Result;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::store::settings as store;
use docshard_core::cluster::balancer::{Window, time_of_day};
use docshard_core::error::{Kind, bail, error};
use serde_json::json;

/// A setting.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    /// the value if it is not set
    pub default: &'static str,
    /// the values it takes
    pub kind: SettingKind,
    /// what it does
    pub description: &'static str,
}

/// The values a setting takes.
#[derive(Debug)]
pub enum SettingKind {
    /// an integer within bounds
    Integer(i64, i64),
    /// true or false
    Boolean,
    /// a time of day
    Time,
    /// one of these
    Choice(&'static [&'static str]),
}

/// The setting that switches the balancer on and off.
pub const BALANCER: &str = "balancer_enabled";

/// Every setting.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "chunk_size_mb",
        default: "128",
        kind: SettingKind::Integer(1, 1024),
        description: "chunks larger than this many MiB are split",
    },
    Setting {
        name: BALANCER,
        default: "true",
        kind: SettingKind::Boolean,
        description: "the balancer may move chunks: start_balancer(), stop_balancer()",
    },
    Setting {
        name: "balancer_mode",
        default: "bytes",
        kind: SettingKind::Choice(&["bytes", "load"]),
        description: "what the balancer evens out between shards: bytes of each collection, or operations a second (docshard.hot_chunks)",
    },
    Setting {
        name: "move_wait_ms",
        default: "60000",
        kind: SettingKind::Integer(100, 86_400_000),
        description: "how long a move waits for transactions that write to the collection before it gives up, in milliseconds",
    },
    Setting {
        name: "move_waits_for_standbys",
        default: "true",
        kind: SettingKind::Boolean,
        description: "a move is decided only when the standbys that stream from its two shards have what these have prepared",
    },
    Setting {
        name: "balancer_interval_ms",
        default: "10000",
        kind: SettingKind::Integer(100, 3_600_000),
        description: "how long the balancer rests between rounds that found nothing to do, in milliseconds",
    },
    Setting {
        name: "active_window_start",
        default: "",
        kind: SettingKind::Time,
        description: "the balancer works from this time of day (HH:MM, in the server's time zone) until active_window_stop",
    },
    Setting {
        name: "active_window_stop",
        default: "",
        kind: SettingKind::Time,
        description: "the time of day until which the balancer works (HH:MM); may be after midnight; both ends must be set",
    },
    Setting {
        name: "parallel_moves",
        default: "8",
        kind: SettingKind::Integer(1, 1000),
        description: "largest number of concurrent moves by the balancer; moves share no shard",
    },
    Setting {
        name: "throttle_mb_per_s",
        default: "0",
        kind: SettingKind::Integer(0, 1_000_000),
        description: "largest average rate of copying by all moves of the balancer, in MiB per second; 0: no limit",
    },
    Setting {
        name: "pause_ms",
        default: "0",
        kind: SettingKind::Integer(0, 86_400_000),
        description: "pause of the balancer after each move, in milliseconds",
    },
    Setting {
        name: "load_delay_s",
        default: "300",
        kind: SettingKind::Integer(0, 86_400),
        description: "seconds for which a shard must have been busier than others before chunks leave it for their load",
    },
    Setting {
        name: "merge_delay_s",
        default: "3600",
        kind: SettingKind::Integer(0, 31_536_000),
        description: "seconds after which neighbouring chunks that stay very small are merged",
    },
    Setting {
        name: "ttl_interval_s",
        default: "60",
        kind: SettingKind::Integer(1, 86_400),
        description: "interval at which expired documents (expireAfterSeconds) are deleted, in seconds",
    },
    Setting {
        name: "shard_count_interval_ms",
        default: "5000",
        kind: SettingKind::Integer(1000, 3_600_000),
        description: "interval at which the worker advances each shard's counter, in milliseconds; a restore or failover \
                              that loses only later writes is not detected",
    },
    Setting {
        name: "changelog_days",
        default: "365",
        kind: SettingKind::Integer(0, 36_500),
        description: "days to keep entries of the changelog; 0: for ever",
    },
    Setting {
        name: "migrations_days",
        default: "90",
        kind: SettingKind::Integer(0, 36_500),
        description: "days to show ended moves in docshard.migrations; 0: for ever",
    },
    Setting {
        name: "samples_days",
        default: "7",
        kind: SettingKind::Integer(1, 3650),
        description: "days for which sampled statements are kept (configure_query_analyzer); of each collection at most 100,000",
    },
];

/// The current value of every setting, in the order of [`SETTINGS`].
/// Errors: `Unauthorized` for a role to which nothing was granted.
pub fn all() -> Result<Vec<(&'static Setting, String)>> {
    cache::require_access()?;
    SETTINGS.iter().map(|setting| Ok((setting, get(setting.name)?))).collect()
}

fn setting(name: &str) -> Result<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
        let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        error!(Kind::InvalidOptions, "unknown setting \"{name}\"")
            .with_hint(format!("Settings are: {}.", names.join(", ")))
    })
}

/// A setting's value.
/// Errors: `InvalidOptions` for an unknown name.
pub fn get(name: &str) -> Result<String> {
    let setting = setting(name)?;
    let _snapshot = ActiveSnapshot::latest();
    Ok(store::read(name)?.unwrap_or_else(|| setting.default.to_owned()))
}

/// An integer setting's value.
/// Errors: those of [`get`]; `InternalError` if the stored value is not a number.
pub fn integer(name: &str) -> Result<i64> {
    let value = get(name)?;
    value.parse().map_err(|_| error!(Kind::InternalError, "setting \"{name}\" is not an integer: \"{value}\""))
}

/// The size in bytes above which chunks are split, for collections that have no such size of their own.
pub fn chunk_bytes() -> Result<i64> {
    Ok(integer("chunk_size_mb")? * 1024 * 1024)
}

/// A boolean setting's value.
pub fn boolean(name: &str) -> Result<bool> {
    Ok(get(name)? == "true")
}

/// The time window of the balancer; None if it may always work.
pub fn active_window() -> Result<Option<Window>> {
    let (start, stop) = (time_of_day(&get("active_window_start")?), time_of_day(&get("active_window_stop")?));
    Ok(start.zip(stop).map(|(start, stop)| Window { start, stop }))
}

/// Sets a setting; None restores the default.
/// Errors: `InvalidOptions` for an unknown name or a value out of bounds.
pub fn set(name: &str, value: Option<&str>) -> Result<()> {
    let setting = setting(name)?;
    let Some(value) = value else { return changed(name, None, store::delete(name)?) };
    let good = match setting.kind {
        SettingKind::Integer(least, most) => value.parse().is_ok_and(|n: i64| (least..=most).contains(&n)),
        SettingKind::Boolean => matches!(value, "true" | "false"),
        SettingKind::Time => time_of_day(value).is_some(),
        SettingKind::Choice(values) => values.contains(&value),
    };
    if !good {
        let wanted = match setting.kind {
            SettingKind::Integer(least, most) => format!("an integer from {least} to {most}"),
            SettingKind::Boolean => "true or false".to_owned(),
            SettingKind::Time => "a time of day as HH:MM".to_owned(),
            SettingKind::Choice(values) => values.join(" or "),
        };
        bail!(Kind::InvalidOptions, "setting \"{name}\" takes {wanted}, not \"{value}\"");
    }
    changed(name, Some(value), store::set(name, value)?)
}

/// Logs the change of a setting, and announces it. The balancer's switch is not logged: see the [changelog](crate::store::changelog).
fn changed(name: &str, value: Option<&str>, is_new: bool) -> Result<()> {
    if is_new && name != BALANCER {
        change::log("setSetting", None, &json!({"name": name, "value": value}))?;
    }
    change::announce();
    Ok(())
}
