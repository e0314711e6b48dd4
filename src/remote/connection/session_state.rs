//! Role and settings of a shard's session. If a statement needs other values than the session has, `SET` commands precede the
//! statement in its pipeline.
//!
//! The router logs in as the service role, which is a member of every application role at the shard, and sets the caller's role.
//! Transactions are prepared as the service role: PostgreSQL lets only the role that prepared a transaction end it, and after a crash a
//! worker must end it.
//!
//! Invariants: a `SET` command that was sent counts as confirmed; [`SessionState::rolled_back`] is called for everything that can undo
//! it. PostgreSQL undoes a `SET` with its transaction or savepoint, so after a rollback all settings are sent again.

use super::super::param::Role;
use crate::pg::security::bypass;
use crate::pg::server;
use docshard_core::sql::quote::quote_ident;
use std::cell::Cell;
use std::ffi::CString;

thread_local! {
    static GRANTS: Cell<u64> = const { Cell::new(0) };
}

/// Called when grants may have changed: a shard may have dropped a role and created another one of the same name. A session keeps the
/// dropped role until `SET ROLE` is sent again.
pub fn grants_changed() {
    GRANTS.set(GRANTS.get().wrapping_add(1));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    role: Role,
    /// the value of `GRANTS` when the role was set; 0 for the service role
    grants: u64,
    /// milliseconds; 0: the shard's own setting
    lock_timeout: u64,
    /// commits are at least as durable as with `synchronous_commit = on`
    durable: bool,
    /// writes bypass the validators of collections
    bypasses: bool,
}

impl Settings {
    /// The settings of a new connection.
    const DEFAULT: Self = Self { role: Role::Service, grants: 0, lock_timeout: 0, durable: false, bypasses: false };

    /// The settings that the next statement needs.
    fn wanted(role: Role) -> Self {
        let grants = if role == Role::Service { 0 } else { GRANTS.get() };
        Self {
            role,
            grants,
            lock_timeout: server::lock_timeout_ms(),
            bypasses: bypass::is_requested(),
            ..Self::DEFAULT
        }
    }
}

/// Raises `synchronous_commit` to `on`; does not change `remote_apply`.
const DURABLE: &str = "SELECT pg_catalog.set_config('synchronous_commit', 'on', false) \
    WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')";

#[derive(Debug)]
pub(super) struct SessionState {
    /// None: unknown
    confirmed: Option<Settings>,
    /// the open transaction has changed settings
    changed: bool,
    /// the session has bypassed validators
    has_bypassed: bool,
}

impl SessionState {
    pub(super) fn new() -> Self {
        Self { confirmed: Some(Settings::DEFAULT), changed: false, has_bypassed: false }
    }

    /// True if the session has the settings that the next statement needs.
    pub(super) fn is_as_wanted(&self, role: Role) -> bool {
        self.confirmed == Some(Settings::wanted(role))
    }

    /// The commands to send in front of a statement.
    pub(super) fn steps(&mut self, role: Role) -> Vec<CString> {
        if self.is_as_wanted(role) { Vec::new() } else { self.change(Settings::wanted(role)) }
    }

    /// SQL text that runs a command which ends the transaction, as the service role and with durable commits.
    pub(super) fn durably(&mut self, command: &str) -> String {
        let steps = self.change(Settings { durable: true, ..Settings::wanted(Role::Service) });
        let steps = steps.iter().map(|step| format!("{}; ", step.to_string_lossy()));
        steps.chain([command.to_owned()]).collect()
    }

    fn change(&mut self, to: Settings) -> Vec<CString> {
        let mut steps = Vec::new();
        if self.confirmed.is_none_or(|from| (from.role, from.grants) != (to.role, to.grants)) {
            steps.push(match to.role {
                Role::Service => "SET ROLE NONE".to_owned(),
                // The shard refuses the name of a dropped role.
                Role::Application(role) => {
                    let name = server::user_name(role);
                    let dropped = || format!("dropped role {}", role.to_u32());
                    format!("SET ROLE {}", quote_ident(&if name.is_empty() { dropped() } else { name }))
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
        if from.map_or(to.bypasses || self.has_bypassed, |from| from.bypasses != to.bypasses) {
            self.has_bypassed |= to.bypasses;
            steps.push(format!("SET {} = {}", bypass::SETTING, if to.bypasses { "on" } else { "off" }));
        }
        steps.into_iter().map(|sql| CString::new(sql).unwrap_or_default()).collect()
    }

    /// Called when the remote transaction, or a batch outside one, has committed or was prepared.
    pub(super) fn committed(&mut self) {
        self.changed = false;
    }

    /// Called when a privilege was missing. The role may have been dropped and created again, so all settings are sent again.
    pub(super) fn refused(&mut self) {
        self.confirmed = None;
    }

    /// Called when the remote transaction was rolled back, in whole or in part, or a batch has failed.
    pub(super) fn rolled_back(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.confirmed = None;
        }
    }
}
