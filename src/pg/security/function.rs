//! Runs code with the rights of an SQL function, without a statement that calls it.
//!
//! INVARIANT: this allows no more than `SELECT docshard.<function>(…)`, except for [`Executable::granted`]. As PostgreSQL does for that
//! statement, [`Executable`] checks the caller's privileges on the schema and the function, and runs the code as the function's current
//! definition says: as its owner if it is SECURITY DEFINER, with its settings, in a new snapshot.

use super::user::Restore;
use crate::pg::error::Result;
use crate::pg::transaction::setting;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::version;
use docshard_core::error::{Kind, error};
use pgrx::pg_sys;
use std::ffi::CString;

/// A function that the current user may execute.
pub struct Executable {
    /// the owner of a SECURITY DEFINER function; None for other functions
    owner: Option<pg_sys::Oid>,
    settings: *mut pg_sys::ArrayType,
    /// the user needs no privilege on the function
    granted: bool,
}

impl Executable {
    /// Looks up the C function of that name in schema `docshard`, as a statement of the current user would. Raises PostgreSQL's
    /// error (42501) if the user has no privilege. If a function has two forms (sql/any_json.sql), the one with json arguments is used.
    pub fn find(name: &str) -> Result<Self> {
        Self::look_up(name, false)
    }

    /// Like [`find`](Self::find), for a user to whom the extension itself has granted what the caller then does: the privileges on the schema
    /// and the function are not checked.
    pub fn granted(name: &str) -> Result<Self> {
        Self::look_up(name, true)
    }

    fn look_up(name: &str, granted: bool) -> Result<Self> {
        /// The language C, in every database.
        const C: pg_sys::Oid = pg_sys::Oid::from_u32(13);
        let lost = || error!(Kind::InternalError, "there is no function docshard.{name}");
        let (c_name, path) = (CString::new(name), CString::new(format!("docshard.{name}")));
        let (Ok(c_name), Ok(path)) = (c_name, path) else { return Err(lost()) };
        // SAFETY: the names outlive the look-up, which checks the schema's privileges; rows of the system cache are read before they
        // are released. ERRORs pass through frames of C alone.
        unsafe {
            let names = version::qualified_name(path.as_ptr());
            let mut found = pg_sys::FuncnameGetCandidates(names, -1, std::ptr::null_mut(), false, false, false, true);
            while let Some(candidate) = found.as_ref() {
                let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
                let row = pg_sys::SearchSysCache1(cache, candidate.oid.into());
                if row.is_null() {
                    break;
                }
                let form = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_proc>();
                let types = candidate.args.as_slice(usize::try_from(candidate.nargs).unwrap_or_default());
                let is_ours = form.prolang == C && !types.contains(&pg_sys::VARCHAROID);
                let (is_definer, owner) = (form.prosecdef, form.proowner);
                let mut is_null = true;
                let settings = pg_sys::SysCacheGetAttr(cache, row, pg_sys::Anum_pg_proc_proconfig as i16, &mut is_null);
                let settings =
                    if is_null { std::ptr::null_mut() } else { pg_sys::pg_detoast_datum_copy(settings.cast_mut_ptr()) };
                pg_sys::ReleaseSysCache(row);
                if is_ours {
                    if !granted {
                        let user = pg_sys::GetUserId();
                        let answer = version::may_execute(candidate.oid, user);
                        if answer != pg_sys::AclResult::ACLCHECK_OK {
                            pg_sys::aclcheck_error(answer, pg_sys::ObjectType::OBJECT_FUNCTION, c_name.as_ptr());
                        }
                    }
                    return Ok(Self { owner: is_definer.then_some(owner), settings: settings.cast(), granted });
                }
                found = candidate.next;
            }
            Err(lost())
        }
    }

    /// Runs `work` with the function's owner, settings and snapshot.
    pub fn run<T>(self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _user = self.owner.map(Restore::after_becoming);
        let _settings = Settings::apply(self.settings);
        if self.granted {
            // PostgreSQL would check the owner's privilege on the tablespace that the user has chosen, not the user's.
            setting::set_for_level(c"default_tablespace", c"");
        }
        let _snapshot = ActiveSnapshot::of_statement();
        let answer = work()?;
        // SAFETY: in a transaction. Makes the changes visible, as after a statement.
        unsafe { pg_sys::CommandCounterIncrement() };
        Ok(answer)
    }
}

/// Applies a function's settings until it is dropped.
struct Settings(i32);

impl Settings {
    fn apply(settings: *mut pg_sys::ArrayType) -> Self {
        // SAFETY: an array of a row of pg_proc, in memory of this statement; settings of this level are undone by `drop`, or by the abort
        // of the transaction after an ERROR. The context, superuser or user, is chosen as PostgreSQL does for a function's settings.
        unsafe {
            let level = pg_sys::NewGUCNestLevel();
            if !settings.is_null() {
                let context =
                    if pg_sys::superuser() { pg_sys::GucContext::PGC_SUSET } else { pg_sys::GucContext::PGC_USERSET };
                pg_sys::ProcessGUCArray(
                    settings,
                    context,
                    pg_sys::GucSource::PGC_S_SESSION,
                    pg_sys::GucAction::GUC_ACTION_SAVE,
                );
            }
            Self(level)
        }
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: pairs with NewGUCNestLevel; levels above it have ended.
            unsafe { pg_sys::AtEOXact_GUC(true, self.0) };
        }
    }
}
