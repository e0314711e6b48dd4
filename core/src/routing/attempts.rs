//! Decides whether a statement runs again after a shard has refused it, for example because its chunk map was stale: with which map, how
//! soon, and how often. It is pure: it learns about the catalog and the clock only from its [`Surroundings`], and asks each question, in
//! the order below, only when the answer is needed.
//!
//! ```text
//! the shard's first host was refused ───────► again, at once
//! the handshake was older than the shard ───► again, at once, up to REFUSED_AHEAD times
//! a shard has lost what the catalog has ────► fails
//! no move explains it, for 2 s ─────────────► fails for good
//! a move, for a minute ─────────────────────► fails; the client may run it again
//! the catalog has another map ──────────────► again, with that map
//! otherwise ────────────────────────────────► waits; again with the map that decided moves will make, if there are any
//! ```
//!
//! # Invariants
//! - A foreseen map is used for one attempt, and only while the catalog has the map from which it was made.
//! - A shard that refuses an attempt with a foreseen map is not suspected of having lost commits.

use crate::cluster::handshake::REFUSED_AHEAD;
use crate::error::sqlstate::{self, SqlState};
use crate::error::{Error, Result, Retry};
use std::time::Duration;

/// How long a statement waits at most for a move that is being decided.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a statement waits at most if the catalog knows of no move that could explain the disagreement.
pub const MISMATCH_PATIENCE: Duration = Duration::from_secs(2);
/// A statement that waits for a decided move tries to complete it this often.
const COMPLETION_INTERVAL: Duration = Duration::from_millis(500);
/// The first wait for a newer map, or for shards to accept the foreseen one. Without pauses, the statements that a move has blocked would
/// take the processors that the move needs to finish.
const FIRST_PAUSE_MS: u64 = 8;
const LAST_PAUSE_MS: u64 = 50;

/// SQLSTATE of a disagreement that no move explains. With 40001, clients would run the statement again for ever.
pub const LASTING: SqlState = sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE;

/// The map that decided moves will make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// the revision of the catalog's map from which it was made
    pub revision: i64,
    /// true if a move was decided so long ago that its coordinator may have ended
    pub is_late: bool,
}

/// What the attempts of a statement depend on.
pub trait Surroundings {
    /// The time since the statement began.
    fn elapsed(&self) -> Duration;

    /// Sleeps for some milliseconds.
    fn sleep(&mut self, ms: u64);

    /// True if the catalog had the collection when the attempt began.
    fn is_known(&self) -> bool;

    /// True if the catalog's map is the one that the attempt began with.
    fn is_assumed(&self) -> Result<bool>;

    /// True if moves of the collection are decided and not over.
    fn is_decided(&self) -> Result<bool>;

    /// True if the shards' versions may be about to become those of the catalog.
    fn may_change(&self) -> Result<bool>;

    /// Looks at the shards; an error if the refusal shows that one of them has lost commits.
    fn confirm_loss(&mut self, refusal: &Error) -> Result<()>;

    /// Looks for decided moves; an error if a shard has lost its part of one.
    fn foresee(&mut self) -> Result<Option<Foreseen>>;

    /// True if the foreseen map's moves are being committed. Until that is done, shards refuse the map.
    fn is_being_settled(&self) -> bool;

    /// Completes decided moves whose coordinator is gone.
    fn complete_moves(&mut self) -> Result<()>;

    /// The error of a statement that does not run again.
    fn disagreement(&self, refusal: &Error, sqlstate: SqlState) -> Error;
}

/// The attempts of a statement.
#[derive(Debug)]
pub struct Attempts {
    pause_ms: u64,
    /// when this statement last completed moves; None: not yet
    helped: Option<Duration>,
    handshakes: u32,
    foreseen: Option<Foreseen>,
    /// true if the last attempt used a foreseen map
    went_ahead: bool,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { pause_ms: FIRST_PAUSE_MS, helped: None, handshakes: 0, foreseen: None, went_ahead: false }
    }
}

impl Attempts {
    /// Begins an attempt, while the catalog has this revision of the map. True if it uses the foreseen map.
    pub fn begin(&mut self, revision: Option<i64>) -> bool {
        self.went_ahead = self.foreseen.take().is_some_and(|ahead| revision == Some(ahead.revision));
        self.went_ahead
    }

    /// Waits, after an attempt that a shard has refused, until it is time for the next one.
    ///
    /// # Errors
    /// The error with which the statement ends; those of [`Surroundings`].
    pub fn wait(&mut self, refusal: Error, asked: &mut impl Surroundings) -> Result<()> {
        match refusal.retry {
            Retry::OtherHost => return Ok(()),
            Retry::NewHandshake if self.handshakes == REFUSED_AHEAD => return Err(refusal),
            Retry::NewHandshake => {
                self.handshakes += 1;
                return Ok(());
            }
            Retry::NewMap | Retry::None | Retry::Transaction => {}
        }
        let is_known = asked.is_known();
        // Repeating does not help if a shard has lost what the catalog has.
        if is_known && !self.went_ahead && asked.is_assumed()? && !asked.is_decided()? {
            asked.confirm_loss(&refusal)?;
        }
        if is_known && asked.elapsed() > MISMATCH_PATIENCE && !asked.may_change()? && asked.is_assumed()? {
            return Err(asked.disagreement(&refusal, LASTING));
        }
        if asked.elapsed() > PATIENCE {
            return Err(asked.disagreement(&refusal, sqlstate::SERIALIZATION_FAILURE));
        }
        if !asked.is_assumed()? {
            return Ok(());
        }
        if is_known {
            self.foreseen = asked.foresee()?;
        }
        self.pause(asked)?;
        // Completion is repeated, since another process that completes the moves may die, too.
        let is_late = self.pause_ms == LAST_PAUSE_MS || self.foreseen.is_some_and(|ahead| ahead.is_late);
        let now = asked.elapsed();
        if is_late && self.helped.is_none_or(|at| now.saturating_sub(at) >= COMPLETION_INTERVAL) {
            self.helped = Some(now);
            asked.complete_moves()?;
        }
        Ok(())
    }

    /// Waits until the map in the catalog changes, until shards may accept the foreseen map, or until the pause is over. Reading the
    /// catalog is cheap, another request to the shards is not.
    fn pause(&mut self, asked: &mut impl Surroundings) -> Result<()> {
        let until = asked.elapsed() + Duration::from_millis(self.pause_ms);
        let has_no_other = self.went_ahead || self.foreseen.is_none();
        while asked.elapsed() < until && (has_no_other || asked.is_being_settled()) && asked.is_assumed()? {
            asked.sleep((self.pause_ms / 8).clamp(1, 5));
        }
        self.pause_ms = (self.pause_ms * 2).min(LAST_PAUSE_MS);
        Ok(())
    }
}
