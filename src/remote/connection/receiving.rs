//! Receives the answers to a batch, in the order of `steps`.
//!
//! The error of a statement is returned at the end of the batch, after the other answers were read, so that the connection is usable again.
//! A lost connection, a protocol violation and a timeout are returned at once.

use super::watch::{self, Watch};
use super::{Connection, MAX_UNREAD_ROWS, Step, Stop};
use crate::pg::error::{Error, Raise as _};
use crate::remote::ffi::{self, Xact};
use crate::remote::login;
use crate::remote::row::RemoteRow;
use crate::remote::wire::{Limit, Lost};
use docshard_core::cluster::frontend::{Answer, Report};
use docshard_core::error::sqlstate::{self, READ_ONLY};

type Receipt<T> = std::result::Result<T, Stop>;

/// Counters that limit what a shard may send in answer to a batch.
#[derive(Default)]
struct Received {
    /// rows of statements other than the main one
    unread: u32,
    /// results that ended where a synchronisation point was expected
    ends_at_sync: usize,
}

impl Connection {
    /// The next row of the main statement; None at the end of the batch.
    pub(in crate::remote) fn next(&mut self, limit: Limit) -> Receipt<Option<RemoteRow>> {
        self.end_feed();
        let mut received = Received::default();
        let mut watch = None;
        while let Some(step) = self.next_step()? {
            match self.await_answer(limit, &mut watch)? {
                None => self.ended_result(step, &mut received)?,
                Some(Answer::Row(columns)) if step == Step::Main => return Ok(Some(RemoteRow::of(columns))),
                Some(answer) => self.receive(step, answer, &mut received)?,
            }
        }
        self.batch_ended().map(|()| None)
    }

    /// The step whose answer is next; None at the end of the batch.
    fn next_step(&mut self) -> Receipt<Option<Step>> {
        // After an error in an implicit transaction, the synchronisation point is sent only now.
        if self.steps.is_empty() && self.state.take_sync_due() {
            self.send_sync(&[])?;
        }
        Ok(self.steps.front().copied())
    }

    /// Waits for an answer; None at the end of a statement's answers. A long wait is reported, as it may be part of a deadlock.
    fn await_answer(&mut self, limit: Limit, watch: &mut Option<Watch>) -> Receipt<Option<Answer>> {
        loop {
            let patience = match self.patience(limit) {
                // A read is watched, too: it holds locks for which changes of the table wait.
                Limit::Served if !self.wire.has_arrived() => {
                    Limit::ServedUntil(watch.get_or_insert_with(Watch::new).next_check())
                }
                Limit::Outcome => Limit::OutcomeUntil(watch.get_or_insert_with(Watch::new).next_check()),
                limit => limit,
            };
            match (self.wire.result(patience), &mut *watch) {
                (Ok(answer), _) => return Ok(answer),
                (Err(Lost::Late), watch) if matches!(patience, Limit::OutcomeUntil(_)) => {
                    self.watch_decision(watch.get_or_insert_with(Watch::new));
                }
                (Err(Lost::Late), Some(watch)) if !self.is_deciding() => {
                    if watch.is_chosen() {
                        watch::deadlock().raise();
                    }
                    watch.report(false);
                }
                (Err(Lost::Late), _) if !self.is_deciding() || matches!(limit, Limit::Until(_)) => {
                    return Err(Stop::Late);
                }
                (Err(lost), _) => return Err(self.break_down(&lost).into()),
            }
        }
    }

    /// Called from time to time while the shard decides about the transaction. This wait, too, may be part of a deadlock, because the session
    /// may hold locks at the router.
    fn watch_decision(&mut self, watch: &mut Watch) {
        // Called first, because it also sets the time of the next check.
        let is_chosen = watch.is_chosen();
        if ffi::cancel_is_due() {
            self.pass_cancel_on(false);
        } else if is_chosen && !self.is_victim() {
            self.pass_cancel_on(true);
        } else {
            watch.report(true);
        }
    }

    /// The answers of a statement have ended.
    fn ended_result(&mut self, step: Step, received: &mut Received) -> Receipt<()> {
        if !self.wire.pg.is_good() {
            return Err(self.lost().into());
        }
        if step != Step::Sync {
            self.steps.pop_front();
            return Ok(());
        }
        received.ends_at_sync += 1;
        if received.ends_at_sync > 1 {
            return Err(self.violated("no answer to a synchronisation point"));
        }
        Ok(())
    }

    /// Processes an answer other than a row of the main statement.
    fn receive(&mut self, step: Step, answer: Answer, received: &mut Received) -> Receipt<()> {
        match answer {
            Answer::Row(columns) => {
                received.unread += 1;
                if received.unread > MAX_UNREAD_ROWS {
                    return Err(self.violated("rows that no statement returns"));
                }
                if step == Step::Handshake {
                    self.handshake.receive(RemoteRow::of(columns));
                }
            }
            Answer::Skipped => {}
            Answer::Done(_) => self.succeeded(step, &answer),
            Answer::Sync => {
                self.steps.pop_front();
                if !self.wire.pg.exit_pipeline() {
                    return Err(self.lost().into());
                }
            }
            Answer::Error(report) => self.refused(step, &report)?,
        }
        Ok(())
    }

    fn violated(&mut self, how: &str) -> Stop {
        self.break_down(&Lost::Violation(how.into())).into()
    }

    /// Keeps the error of a statement for the end of the batch, unless it ends the connection.
    fn refused(&mut self, step: Step, report: &Report) -> Receipt<()> {
        let error = self.wire.report(report);
        if report.is_fatal() || !self.wire.pg.is_good() {
            // Only an error report from the shard itself proves that nothing was committed.
            let in_doubt = self.is_deciding() && !report.is_fatal();
            let lost = self.break_down(&Lost::Broken(String::new()));
            return Err(if in_doubt { lost } else { error }.into());
        }
        self.failure.get_or_insert(error);
        if step == Step::Handshake {
            self.state.refuse();
        }
        if self.state.roll_back_implicit(self.batch.fresh) {
            self.state.set_sync_due();
        }
        Ok(())
    }

    /// Called when all answers have arrived. Returns the error of the batch, if there was one.
    fn batch_ended(&mut self) -> Receipt<()> {
        self.current = None;
        for number in self.preparing.drain(..) {
            self.prepared.forget(number);
        }
        let Some(mut error) = self.failure.take() else {
            if self.state.depth() == 0 {
                self.session.committed();
            }
            self.decided(true);
            return Ok(());
        };
        let is_victim = self.is_victim();
        self.failed(&error);
        self.handshake.unanswered();
        if self.state.is_refused() {
            self.state.set_broken();
            let ahead = error.sqlstate == READ_ONLY;
            let has_other = !ahead && login::pass_over(self.server, self.wire.host, &error.message);
            error = error.of_handshake(has_other);
        }
        self.decided(false);
        Err(if is_victim && error.sqlstate == sqlstate::QUERY_CANCELED { watch::deadlock() } else { error }.into())
    }

    fn succeeded(&mut self, step: Step, result: &Answer) {
        self.state.answered();
        match step {
            Step::Open(depth) => self.state.opened(depth),
            Step::Outlived(level) => self.state.outlived(level),
            Step::Prepare(number) => self.preparing.retain(|n| *n != number),
            Step::Main => {
                self.affected = if self.batch.write { result.affected() } else { 0 };
                if self.batch.write && !self.is_deciding() {
                    self.state.written();
                }
            }
            Step::Fed => self.state.written(),
            Step::Handshake => {
                if let Err(error) = self.handshake.answered() {
                    self.failure.get_or_insert(error);
                    self.state.refuse();
                }
            }
            Step::Silent | Step::Sync => {}
        }
    }

    fn failed(&mut self, error: &Error) {
        self.session.rolled_back();
        if error.sqlstate == sqlstate::INSUFFICIENT_PRIVILEGE {
            self.session.refused();
        }
        // The shard does not know the statement, or its table has changed: prepare it again next time.
        if [sqlstate::UNDEFINED_STATEMENT, sqlstate::FEATURE_NOT_SUPPORTED].contains(&error.sqlstate) {
            self.prepared.clear();
            self.purge = true;
        }
        if self.xact() == Xact::Idle {
            self.ended();
        } else if self.xact() == Xact::Failed {
            self.undo();
            // Only for reads: a write is always awaited, so the client has seen its error.
            if self.state.depth() > 0 && !self.batch.write {
                self.abort_cause.get_or_insert_with(|| (error.clone(), self.batch.user));
            }
        }
    }
}
