//! Fault points: named places where a test makes a process pause, fail or die, and mechanisms that it can switch off. Without the
//! feature `fault_points` the functions here are empty.
//!
//! `fault_points.txt` lists the names. A test arms a point by a file of that name in [`FOLDER`] of the data directory: every
//! process of the server sees it, it survives a crash, and it can be written while the server is down. The file's content is
//! the action: `pause` (until the test removes the file; serves interrupts), `error`, or `kill` (by SIGKILL).
//!
//! The first process that reaches the point renames the file to `<name>.reached` and writes its process id into it, so the
//! action is executed once. A mechanism is off while a file `<name>.off` exists.

use super::error::Result;

#[cfg(feature = "fault_points")]
const FOLDER: &str = "docshard_fault_points";

/// Executes the action that a test has set for this point; `OperationFailed` for `error`.
#[inline(always)]
pub fn point(_name: &'static str) -> Result<()> {
    #[cfg(feature = "fault_points")]
    imp::point(_name)?;
    Ok(())
}

/// True if a test has switched this mechanism off.
#[inline(always)]
pub fn is_off(_mechanism: &'static str) -> bool {
    #[cfg(feature = "fault_points")]
    {
        imp::is_off(_mechanism)
    }
    #[cfg(not(feature = "fault_points"))]
    false
}

/// Shows in a setting that this build has fault points. Called from `_PG_init`.
pub fn init() {
    #[cfg(feature = "fault_points")]
    imp::init();
}

#[cfg(feature = "fault_points")]
mod imp {
    use super::FOLDER;
    use crate::pg::error::Result;
    use crate::pg::server::sleep_ms;
    use docshard_core::error::{Kind, error};
    use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
    use std::fs;
    use std::path::PathBuf;

    const TABLE: &str = include_str!("fault_points.txt");

    static PRESENT: GucSetting<bool> = GucSetting::<bool>::new(true);

    pub(super) fn init() {
        GucRegistry::define_bool_guc(
            c"docshard.fault_points",
            c"This build of docshard has fault points, for tests: it must not be used for anything else.",
            c"",
            &PRESENT,
            GucContext::Internal,
            GucFlags::default(),
        );
    }

    fn file(kind: &str, name: &str, suffix: &str) -> PathBuf {
        let known = TABLE.lines().any(|line| {
            let mut fields = line.split('\t');
            fields.next() == Some(kind) && fields.next() == Some(name)
        });
        assert!(known, "the {kind} {name} is not in fault_points.txt");
        // A server's processes work in the data directory.
        PathBuf::from(format!("{FOLDER}/{name}{suffix}"))
    }

    pub(super) fn point(name: &str) -> Result<()> {
        let (armed, reached) = (file("point", name, ""), file("point", name, ".reached"));
        let Ok(order) = fs::read_to_string(&armed) else { return Ok(()) };
        if fs::rename(&armed, &reached).is_err() {
            return Ok(());
        }
        let failed = |e: std::io::Error| error!(Kind::InternalError, "fault point {name}: {e}");
        fs::write(&reached, std::process::id().to_string()).map_err(failed)?;
        match order.trim() {
            "pause" => {
                while reached.exists() {
                    sleep_ms(2);
                }
                Ok(())
            }
            "error" => Err(error!(Kind::OperationFailed, "fault point {name}")),
            "kill" => {
                // SAFETY: sends a signal to this very process, which does not survive it.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                unreachable!("SIGKILL cannot be caught")
            }
            other => Err(error!(Kind::InternalError, "fault point {name}: unknown action {other:?}")),
        }
    }

    pub(super) fn is_off(mechanism: &str) -> bool {
        file("mechanism", mechanism, ".off").exists()
    }
}
