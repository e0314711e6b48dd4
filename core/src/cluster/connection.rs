//! The state of a router's cached connection to a shard: the shard's transaction, unanswered statements, and whether the
//! connection can be used. Pure, so that every transition is tested without a server.
//!
//! ```text
//! None ──► Implicit ──► Open ──► None           an open pipeline becomes a block, or commits
//!   │          └──────► RolledBack ──► None     an error ends it
//!   └────────────────► Open ──► None            BEGIN, savepoints
//! ```
//!
//! # Invariants
//! - The depth is what the shard has confirmed: 0 outside a transaction, 1 in it, n + 1 with n savepoints.
//! - A transaction that has written has a depth above 0.
//! - A broken connection is never used again and awaits no answer; its transaction stays, so that a commit fails.

/// The shard's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transaction {
    None,
    /// the statements since the last synchronisation point of an open pipeline, outside a transaction block
    Implicit {
        /// true if the shard has answered a statement
        confirmed: bool,
        wrote: bool,
    },
    /// a transaction block, or an implicit transaction whose synchronisation point was sent
    Open {
        depth: i32,
        wrote: bool,
        /// savepoints from this one on belong to committed subtransactions; None: no savepoints do
        release_from: Option<i32>,
    },
    /// an error has rolled back an implicit transaction
    RolledBack {
        depth: i32,
        /// true if it had written, so that the local transaction must not commit
        void: bool,
    },
}

/// The current activity of the connection, apart from awaiting answers to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    None,
    /// the batch in flight may get further statements; its synchronisation point has not been sent
    Feeding,
    /// a text command is unanswered
    Text,
    /// after an error in an implicit transaction: its synchronisation point has yet to be sent
    SyncDue,
}

/// How far the connection can be used, from fully to not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    Good,
    /// its options changed: it is closed as soon as no transaction needs it
    Doomed,
    /// the shard has refused the handshake: broken at the end of the batch
    Refused,
    Broken,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionState {
    transaction: Transaction,
    activity: Activity,
    link: Link,
}

impl ConnectionState {
    /// The state of a new connection.
    pub const NEW: Self = Self { transaction: Transaction::None, activity: Activity::None, link: Link::Good };

    /// The depth of the shard's transaction.
    pub const fn depth(&self) -> i32 {
        match self.transaction {
            Transaction::None => 0,
            Transaction::Implicit { confirmed, .. } => confirmed as i32,
            Transaction::Open { depth, .. } | Transaction::RolledBack { depth, .. } => depth,
        }
    }

    /// True if the transaction has written, or had before it was rolled back.
    pub const fn has_written(&self) -> bool {
        match self.transaction {
            Transaction::None => false,
            Transaction::Implicit { wrote, .. } | Transaction::Open { wrote, .. } => wrote,
            Transaction::RolledBack { void, .. } => void,
        }
    }

    /// True if the transaction is an open pipeline.
    pub const fn is_implicit(&self) -> bool {
        matches!(self.transaction, Transaction::Implicit { .. })
    }

    /// True if an error has rolled back writes.
    pub const fn is_void(&self) -> bool {
        matches!(self.transaction, Transaction::RolledBack { void: true, .. })
    }

    /// True if further statements belong to the batch in flight.
    pub fn is_feeding(&self) -> bool {
        self.activity == Activity::Feeding
    }

    /// True if a text command is unanswered.
    pub fn awaits_text(&self) -> bool {
        self.activity == Activity::Text
    }

    /// True if a statement is unanswered or a synchronisation point is due; `awaited`: answers to a batch are due.
    pub fn is_busy(&self, awaited: bool) -> bool {
        !self.is_broken() && (awaited || matches!(self.activity, Activity::Text | Activity::SyncDue))
    }

    /// True if the shard has refused the handshake.
    pub fn is_refused(&self) -> bool {
        self.link == Link::Refused
    }

    /// True if the connection must not be used again.
    pub fn is_broken(&self) -> bool {
        self.link == Link::Broken
    }

    /// True if the connection is to be closed as soon as no transaction needs it.
    pub fn is_to_be_closed(&self) -> bool {
        matches!(self.link, Link::Doomed | Link::Broken)
    }

    /// Marks the connection to be closed as soon as no transaction needs it.
    pub fn doom(&mut self) {
        self.link = self.link.max(Link::Doomed);
    }

    /// The shard has refused the handshake.
    pub fn refuse(&mut self) {
        self.link = self.link.max(Link::Refused);
    }

    /// Marks the connection as broken. The activity stays.
    pub fn set_broken(&mut self) {
        self.link = Link::Broken;
    }

    /// The connection is lost: no more answers arrive. The transaction stays.
    pub fn break_down(&mut self) {
        self.link = Link::Broken;
        self.activity = Activity::None;
        self.end_pipeline();
    }

    /// A batch is sent outside a transaction block.
    pub fn begin_implicit(&mut self) {
        if !self.is_implicit() {
            self.transaction = Transaction::Implicit { confirmed: false, wrote: false };
        }
    }

    /// Turns an implicit transaction into a block, for which `BEGIN` is sent; false if the transaction is not implicit.
    pub fn make_block(&mut self) -> bool {
        let Transaction::Implicit { wrote, .. } = self.transaction else { return false };
        self.transaction = Transaction::Open { depth: 1, wrote, release_from: None };
        true
    }

    /// The synchronisation point is sent, which ends an implicit transaction.
    pub fn end_pipeline(&mut self) {
        if let Transaction::Implicit { confirmed, wrote } = self.transaction {
            self.transaction = match confirmed {
                true => Transaction::Open { depth: 1, wrote, release_from: None },
                false => Transaction::None,
            };
        }
    }

    /// An error rolls an implicit transaction back; false if the transaction is not implicit. `fresh`: the transaction had not written
    /// before.
    pub fn roll_back_implicit(&mut self, fresh: bool) -> bool {
        if !self.is_implicit() {
            return false;
        }
        self.transaction = match self.depth() {
            0 if fresh => Transaction::None,
            depth => Transaction::RolledBack { depth, void: !fresh },
        };
        true
    }

    /// The synchronisation point is due.
    pub fn set_sync_due(&mut self) {
        self.activity = Activity::SyncDue;
    }

    /// True if the synchronisation point was due; the caller sends it.
    pub fn take_sync_due(&mut self) -> bool {
        self.take(Activity::SyncDue)
    }

    /// The shard has opened the transaction, or a savepoint, to this depth.
    pub fn opened(&mut self, depth: i32) {
        let (wrote, release_from) = (self.has_written(), self.release_from());
        self.transaction = Transaction::Open { depth, wrote, release_from };
    }

    /// The shard has answered a statement without error.
    pub fn answered(&mut self) {
        if let Transaction::Implicit { confirmed, .. } = &mut self.transaction {
            *confirmed = true;
        }
    }

    /// The shard has written.
    pub fn written(&mut self) {
        if let Transaction::Implicit { wrote, .. } | Transaction::Open { wrote, .. } = &mut self.transaction {
            *wrote = true;
        }
    }

    /// The transaction is over.
    pub fn ended(&mut self) {
        self.transaction = Transaction::None;
    }

    const fn release_from(&self) -> Option<i32> {
        match self.transaction {
            Transaction::Open { release_from, .. } => release_from,
            _ => None,
        }
    }

    /// The first savepoint to be released with the next statement, if any.
    pub fn take_release(&mut self) -> Option<i32> {
        match &mut self.transaction {
            Transaction::Open { release_from, .. } => release_from.take(),
            _ => None,
        }
    }

    /// True if savepoints are to be released.
    pub const fn has_release(&self) -> bool {
        self.release_from().is_some()
    }

    /// The savepoint of this level belongs to a committed subtransaction, and is released later.
    pub fn outlived(&mut self, level: i32) {
        if let Transaction::Open { release_from, .. } = &mut self.transaction {
            *release_from = Some(release_from.map_or(level, |from| from.min(level)));
        }
    }

    /// The subtransaction of this level has committed. The next statement releases its savepoint first.
    pub fn commit_sub(&mut self, level: i32) {
        if self.depth() >= level {
            self.outlived(level);
            self.set_depth(level - 1);
        }
    }

    /// The subtransaction of this level is rolled back, and with it the savepoints inside.
    pub fn abort_sub(&mut self, level: i32) {
        if let Transaction::Open { release_from, .. } = &mut self.transaction {
            *release_from = release_from.filter(|from| *from < level);
        }
    }

    /// The shard has rolled the subtransaction of this level back.
    pub fn aborted_sub(&mut self, level: i32) {
        self.set_depth(level - 1);
    }

    fn set_depth(&mut self, to: i32) {
        if let Transaction::Open { depth, .. } | Transaction::RolledBack { depth, .. } = &mut self.transaction {
            *depth = to;
        }
    }

    /// More statements of the batch follow.
    pub fn begin_feed(&mut self) {
        self.activity = Activity::Feeding;
    }

    /// The batch is complete; false if no more statements were expected.
    pub fn end_feed(&mut self) -> bool {
        self.take(Activity::Feeding)
    }

    /// A text command is sent.
    pub fn send_text(&mut self) {
        self.activity = Activity::Text;
    }

    /// A text command is answered.
    pub fn text_answered(&mut self) {
        self.take(Activity::Text);
    }

    fn take(&mut self, activity: Activity) -> bool {
        let is = self.activity == activity;
        if is {
            self.activity = Activity::None;
        }
        is
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Event = fn(&mut ConnectionState);

    /// The events of a connection.
    const EVENTS: &[(&str, Event)] = &[
        ("implicit", |s| {
            if s.depth() == 0 || s.is_implicit() {
                s.begin_implicit();
            }
        }),
        ("begin", |s| {
            if s.depth() == 0 && !s.is_implicit() {
                s.opened(1);
            }
        }),
        ("block", |s| _ = s.make_block()),
        ("savepoint", |s| {
            if s.depth() > 0 && !s.is_implicit() && !s.is_void() {
                s.opened(s.depth() + 1);
            }
        }),
        ("answer", |s| s.answered()),
        ("write", |s| {
            s.answered();
            if s.depth() > 0 && !s.is_void() {
                s.written();
            }
        }),
        ("error", |s| {
            if s.roll_back_implicit(!s.has_written()) {
                s.set_sync_due();
            }
        }),
        ("sync", |s| {
            s.take_sync_due();
            s.end_pipeline();
        }),
        ("commit of 2", |s| s.commit_sub(2)),
        ("abort of 2", |s| {
            if s.depth() >= 2 {
                s.abort_sub(2);
                s.aborted_sub(2);
            }
        }),
        ("text", |s| s.send_text()),
        ("text answered", |s| s.text_answered()),
        ("end", |s| s.ended()),
        ("doom", |s| s.doom()),
        ("refuse", |s| s.refuse()),
        ("lost", |s| s.break_down()),
    ];

    /// Every state that some order of events leads to keeps the invariants.
    #[test]
    fn invariants_hold_in_every_state() {
        let (mut seen, mut next) = (vec![ConnectionState::NEW], 0);
        while let Some(&state) = seen.get(next) {
            next += 1;
            for (name, event) in EVENTS {
                let mut after = state;
                event(&mut after);
                if after.depth() > 4 || seen.contains(&after) {
                    continue;
                }
                assert!(after.depth() > 0 || !after.has_written(), "{state:?}, {name}: {after:?}");
                assert!(!after.is_void() || after.has_written(), "{state:?}, {name}: {after:?}");
                assert!(!after.is_broken() || !after.is_busy(true), "{state:?}, {name}: {after:?}");
                assert!(!state.is_broken() || after.is_broken(), "{state:?}, {name}: {after:?}");
                let release = after.release_from();
                assert!(release.is_none_or(|from| from <= after.depth() + 1), "{state:?}, {name}: {after:?}");
                seen.push(after);
            }
        }
        assert!(seen.len() > 100, "{} states", seen.len());
    }

    #[test]
    fn an_implicit_transaction_commits_by_its_end() {
        let mut state = ConnectionState::NEW;
        state.begin_implicit();
        assert_eq!((state.depth(), state.is_implicit()), (0, true));
        state.written();
        state.answered();
        assert_eq!((state.depth(), state.has_written()), (1, true));
        state.end_pipeline();
        assert_eq!((state.depth(), state.has_written(), state.is_implicit()), (1, true, false));
        state.ended();
        assert_eq!(state, ConnectionState::NEW);
    }

    #[test]
    fn an_error_voids_an_implicit_transaction_that_had_written() {
        let mut fresh = ConnectionState::NEW;
        fresh.begin_implicit();
        let mut written = fresh;
        written.answered();
        written.written();
        assert!(fresh.roll_back_implicit(true) && written.roll_back_implicit(false));
        assert_eq!((fresh.is_void(), fresh.depth()), (false, 0));
        assert_eq!((written.is_void(), written.depth(), written.has_written()), (true, 1, true));
        assert!(!written.roll_back_implicit(false), "it is no longer implicit");
        written.set_sync_due();
        assert!(written.is_busy(false) && written.take_sync_due() && !written.is_busy(false));
        written.ended();
        assert_eq!(written, ConnectionState::NEW);
    }

    #[test]
    fn savepoints_of_committed_subtransactions_are_released_later() {
        let mut state = ConnectionState::NEW;
        state.begin_implicit();
        state.answered();
        state.written();
        assert!(state.make_block() && !state.make_block());
        state.opened(2);
        state.opened(3);
        state.commit_sub(3);
        state.commit_sub(2);
        assert_eq!((state.depth(), state.has_release(), state.has_written()), (1, true, true));
        assert_eq!((state.take_release(), state.take_release()), (Some(2), None));
        state.opened(2);
        state.outlived(3);
        state.abort_sub(2);
        state.aborted_sub(2);
        assert_eq!((state.depth(), state.take_release()), (1, None));
    }

    #[test]
    fn a_lost_connection_keeps_its_transaction() {
        let mut state = ConnectionState::NEW;
        state.begin_implicit();
        state.answered();
        state.written();
        state.begin_feed();
        state.doom();
        state.break_down();
        assert!(state.is_broken() && !state.is_busy(true) && !state.is_feeding());
        assert_eq!((state.depth(), state.has_written(), state.is_implicit()), (1, true, false));
        state.doom();
        state.refuse();
        assert!(state.is_broken() && state.is_to_be_closed(), "a broken connection stays broken");
    }

    #[test]
    fn a_refused_connection_breaks_at_the_end_of_its_batch() {
        let mut state = ConnectionState::NEW;
        state.doom();
        assert!(state.is_to_be_closed());
        state.refuse();
        assert!(state.is_refused() && !state.is_broken() && state.is_busy(true));
        state.set_broken();
        assert!(!state.is_refused() && state.is_broken());
    }
}
