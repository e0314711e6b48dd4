//! Creates and stores passwords without putting one into a statement: PostgreSQL logs the text of failed statements, and other
//! extensions store texts. So `CREATE USER MAPPING` and `ALTER ROLE` are executed by calling PostgreSQL's functions, without
//! parsing.

use crate::pg::error::Result;
use crate::pg::object::drop_guard;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use docshard_core::error::{Kind, bail, error};
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::{PgList, pg_sys};
use std::ffi::{CStr, CString, c_char};

/// The number of random bytes in a password.
const BYTES: usize = 24;

// Not in pgrx's bindings (libpq/scram.h); called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn pg_be_scram_build_secret(password: *const c_char) -> *mut c_char;
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| error!(Kind::BadValue, "a name or password contains NUL"))
}

/// Returns random bytes that cannot be guessed.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the buffer is as long as said.
    if unsafe { pg_sys::pg_strong_random(bytes.as_mut_ptr().cast(), N) } {
        Ok(bytes)
    } else {
        Err(error!(Kind::InternalError, "could not generate random numbers"))
    }
}

/// Returns 192 random bits, as letters, digits, `-` and `_`.
pub fn random_password() -> Result<String> {
    Ok(URL_SAFE_NO_PAD.encode(random_bytes::<BYTES>()?))
}

/// Returns the SCRAM-SHA-256 verifier of a password. Nobody can log in with a verifier.
pub fn scram_verifier(password: &str) -> Result<String> {
    let password = c_string(password)?;
    // SAFETY: PostgreSQL returns a palloc'd C string, which is copied.
    unsafe {
        let verifier = pg_guard_ffi_boundary(|| pg_be_scram_build_secret(password.as_ptr()));
        Ok(CStr::from_ptr(verifier).to_string_lossy().into_owned())
    }
}

/// Copies a text into PostgreSQL's memory.
///
/// # Safety
/// Inside a transaction.
unsafe fn palloc(text: &str) -> Result<*mut c_char> {
    let text = c_string(text)?;
    // SAFETY: a C string that is copied.
    unsafe { Ok(pg_sys::pstrdup(text.as_ptr())) }
}

/// # Safety
/// Inside a transaction.
unsafe fn options(options: &[(&str, &str)]) -> Result<*mut pg_sys::List> {
    let mut list = PgList::<pg_sys::DefElem>::new();
    for (name, value) in options {
        // SAFETY: palloc'd parts of a palloc'd node.
        unsafe {
            let value = pg_sys::makeString(palloc(value)?);
            list.push(pg_sys::makeDefElem(palloc(name)?, value.cast(), -1));
        }
    }
    Ok(list.into_pg())
}

/// # Safety
/// Inside a transaction.
unsafe fn role_spec(role: &str) -> Result<*mut pg_sys::RoleSpec> {
    // SAFETY: a node of its own kind, palloc'd.
    unsafe {
        let spec = pg_sys::palloc0(size_of::<pg_sys::RoleSpec>()).cast::<pg_sys::RoleSpec>();
        (*spec).type_ = pg_sys::NodeTag::T_RoleSpec;
        (*spec).roletype = pg_sys::RoleSpecType::ROLESPEC_CSTRING;
        (*spec).rolename = palloc(role)?;
        (*spec).location = -1;
        Ok(spec)
    }
}

/// Creates or replaces a user mapping, with the rights of the current user.
pub fn set_user_mapping(server: &str, role: &str, login: &[(&str, &str)]) -> Result<()> {
    // SAFETY: complete nodes of the kinds that these functions take, as the parser makes them; inside a transaction.
    unsafe {
        let old = pg_sys::palloc0(size_of::<pg_sys::DropUserMappingStmt>()).cast::<pg_sys::DropUserMappingStmt>();
        (*old).type_ = pg_sys::NodeTag::T_DropUserMappingStmt;
        (*old).user = role_spec(role)?;
        (*old).servername = palloc(server)?;
        (*old).missing_ok = true;
        let cache = pg_sys::SysCacheIdentifier::USERMAPPINGUSERSERVER as i32;
        let user = pg_sys::get_role_oid((*(*old).user).rolename, false);
        let at = pg_sys::get_foreign_server_oid((*old).servername, false);
        let zero = pg_sys::Datum::from(0);
        if pg_sys::SearchSysCacheExists(cache, user.into(), at.into(), zero, zero) {
            drop_guard::unguarded(|| pg_sys::RemoveUserMapping(old));
            pg_sys::CommandCounterIncrement();
        }
        let new = pg_sys::palloc0(size_of::<pg_sys::CreateUserMappingStmt>()).cast::<pg_sys::CreateUserMappingStmt>();
        (*new).type_ = pg_sys::NodeTag::T_CreateUserMappingStmt;
        (*new).user = role_spec(role)?;
        (*new).servername = palloc(server)?;
        (*new).options = options(login)?;
        pg_sys::CreateUserMapping(new);
        pg_sys::CommandCounterIncrement();
    }
    Ok(())
}

/// Sets the password of a role by its verifier, with the rights of the current user. `BadValue` if the text is not a verifier.
pub fn set_password(role: &str, verifier: &str) -> Result<()> {
    let text = c_string(verifier)?;
    // PostgreSQL would store any other text as the password itself.
    // SAFETY: reads the text.
    if unsafe { pg_sys::get_password_type(text.as_ptr()) } != pg_sys::PasswordType::PASSWORD_TYPE_SCRAM_SHA_256 {
        bail!(Kind::BadValue, "the value is not a SCRAM-SHA-256 verifier of a password");
    }
    // SAFETY: complete nodes of the kinds that the function takes; inside a transaction.
    unsafe {
        let alter = pg_sys::palloc0(size_of::<pg_sys::AlterRoleStmt>()).cast::<pg_sys::AlterRoleStmt>();
        (*alter).type_ = pg_sys::NodeTag::T_AlterRoleStmt;
        (*alter).role = role_spec(role)?;
        (*alter).options = options(&[("password", verifier)])?;
        (*alter).action = 1;
        let state = pg_sys::make_parsestate(std::ptr::null_mut());
        pg_sys::AlterRole(state, alter);
        pg_sys::CommandCounterIncrement();
    }
    Ok(())
}
