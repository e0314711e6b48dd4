//! Settings of a shard's session that follow this process's: what a statement wants, against what the shard has confirmed.
//! They are sent in front of a statement, in its pipeline, where the two differ.
//!
//! Whose privileges count is one of them: the router logs in as the service role, which is a member of every application
//! role at the shard. Transactions are prepared as the service role, since PostgreSQL lets only the role that has prepared a
//! transaction end it, and after a crash that is a worker.
//!
//! # Invariants
//! - What was sent counts as confirmed at once: whatever undoes it ends in [`SessionState::rolled_back`].
//! - A `SET` inside a transaction goes with the transaction. So after a rollback of one that sent any, even to a savepoint,
//!   nothing is known, and all is sent again.

use super::super::ffi;
use super::super::param::Role;
use crate::pg::spi::quote::quote_ident;
use std::ffi::CString;

/// What a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    role: Role,
    /// milliseconds; 0: whatever the shard has for the role
    lock_timeout: i32,
    /// commits are at least as durable as `synchronous_commit = on` makes them; otherwise as the shard has it for the role
    durable: bool,
}

impl Settings {
    /// Those of a connection that was just opened.
    const DEFAULT: Self = Self { role: Role::Service, lock_timeout: 0, durable: false };

    /// What a statement of the local transaction wants, now.
    fn wanted(role: Role) -> Self {
        Self { role, lock_timeout: ffi::lock_timeout(), ..Self::DEFAULT }
    }
}

/// `remote_apply` stays.
const DURABLE: &str = "SELECT pg_catalog.set_config('synchronous_commit', 'on', false) \
    WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')";

#[derive(Debug)]
pub(super) struct SessionState {
    /// None: unknown
    confirmed: Option<Settings>,
    /// the transaction that is open has changed some
    changed: bool,
}

impl SessionState {
    /// Of a connection that was just opened.
    pub(super) fn new() -> Self {
        Self { confirmed: Some(Settings::DEFAULT), changed: false }
    }

    /// True if the session has what a statement wants.
    pub(super) fn is_as_wanted(&self, role: Role) -> bool {
        self.confirmed == Some(Settings::wanted(role))
    }

    /// The commands that give the session what a statement wants, to be sent in front of it.
    pub(super) fn steps(&mut self, role: Role) -> Vec<CString> {
        if self.is_as_wanted(role) { Vec::new() } else { self.change(Settings::wanted(role)) }
    }

    /// The text that runs a command as the service role, with commits durable, until the next statement; the command ends the
    /// transaction.
    pub(super) fn durably(&mut self, command: &str) -> String {
        let steps = self.change(Settings { durable: true, ..Settings::wanted(Role::Service) });
        let steps = steps.iter().map(|step| format!("{}; ", step.to_string_lossy()));
        steps.chain([command.to_owned()]).collect()
    }

    fn change(&mut self, to: Settings) -> Vec<CString> {
        let mut steps = Vec::new();
        if self.confirmed.is_none_or(|from| from.role != to.role) {
            steps.push(match to.role {
                Role::Service => "SET ROLE NONE".to_owned(),
                // The shard refuses a name that is none.
                Role::Application(role) => {
                    let name = ffi::user_name(role).unwrap_or_else(|| format!("dropped role {}", role.to_u32()));
                    format!("SET ROLE {}", quote_ident(&name))
                }
            });
        }
        let from = self.confirmed.replace(to);
        self.changed = true;
        if from.is_none_or(|from| from.lock_timeout != to.lock_timeout) {
            steps.push(match to.lock_timeout {
                0 => "RESET lock_timeout".to_owned(),
                ms => format!("SET lock_timeout = {ms}"),
            });
        }
        if from.is_none_or(|from| from.durable != to.durable) {
            steps.push(if to.durable { DURABLE } else { "RESET synchronous_commit" }.to_owned());
        }
        steps.into_iter().map(|sql| CString::new(sql).unwrap_or_default()).collect()
    }

    /// The remote transaction has committed or was prepared, or the batch was none of a transaction.
    pub(super) fn committed(&mut self) {
        self.changed = false;
    }

    /// A privilege was lacking: maybe as the role is another one now, of the same name.
    pub(super) fn refused(&mut self) {
        self.confirmed = None;
    }

    /// The remote transaction was rolled back, in whole or in part, or a batch has failed.
    pub(super) fn rolled_back(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.confirmed = None;
        }
    }
}
