//! A state of the model: the durable state of the router and two shards, the state of sessions and processes, and the answers to
//! clients. T is the donor's transaction, which deletes the chunk; R is the recipient's, which loads it.

use docshard_core::cluster::migration::{Found, Part, State};

/// What a shard with this part shows a router that has replaced the coordinator's. No later migration is modelled.
pub fn found(part: Part) -> Found {
    match part {
        Part::Nothing => Found::Before,
        Part::Prepared => Found::Prepared,
        Part::Committed => Found::Committed,
    }
}

/// The chunk has two possible documents: `A` exists initially and is only updated, `B` is inserted or deleted.
pub const A: usize = 0;
/// See [`A`].
pub const B: usize = 1;

/// The documents of the chunk in a table, with the number of increments of each.
pub type Rows = [Option<u8>; 2];

/// A transaction of the migration on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Txn {
    /// not begun, or rolled back
    None,
    /// begun, in a living session
    Open,
    /// prepared: it outlives sessions and crashes
    Prepared,
    /// committed
    Committed,
}

/// A row of the donor's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Logged {
    /// assigned when the row was written, not when it was committed
    pub seq: u8,
    /// the changed document
    pub key: usize,
}

/// One of the two shards of the model, and their sides of the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// gives the chunk away
    Donor,
    /// takes it
    Recipient,
}

/// The state of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// committed documents of the chunk
    pub rows: Rows,
    /// true: at the version of the move
    pub moved: bool,
    /// T or R
    pub txn: Txn,
    /// the coordinator's sessions with it live
    pub session: bool,
    /// the coordinator died after sending PREPARE, which may still arrive
    pub prepare_in_flight: bool,
    /// its standby has what it has prepared
    pub replicated: bool,
}

/// A writer's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// increments `A`
    Update,
    /// inserts `B`
    Insert,
    /// deletes `B`
    Delete,
}

/// The state of a writer. `new`: its map names the recipient as the owner. `logs`: it has found a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// has no map
    Idle,
    /// has a map, which may be old
    Mapped {
        /// the map names the recipient as the owner of the chunk
        new: bool,
    },
    /// shares the collection's lock at its shard, and has checked the version
    Locked {
        /// as above
        new: bool,
    },
    /// has looked for a capture
    Looked {
        /// as above
        new: bool,
        /// it has found one
        logs: bool,
    },
    /// holds all its locks, and has checked the version again
    Checked {
        /// as above
        new: bool,
        /// as above
        logs: bool,
    },
    /// its statement has a snapshot with the right version
    Snapped {
        /// as above
        new: bool,
        /// as above
        logs: bool,
    },
    /// has written, and not committed
    Written {
        /// as above
        new: bool,
        /// the written document
        key: usize,
        /// its new value
        value: Option<u8>,
        /// the number of its row in the log
        logged: Option<u8>,
    },
    /// was acknowledged
    Acknowledged,
    /// got an error, and has written nothing
    Failed,
}

impl Writer {
    /// The shard at which it holds locks, true for the recipient.
    pub fn locks_at(self) -> Option<bool> {
        match self {
            Writer::Locked { new }
            | Writer::Looked { new, .. }
            | Writer::Checked { new, .. }
            | Writer::Snapped { new, .. }
            | Writer::Written { new, .. } => Some(new),
            _ => None,
        }
    }

    /// It shares the migration's lock.
    pub fn shares_moves_lock(self) -> bool {
        matches!(
            self,
            Writer::Checked { logs: true, .. }
                | Writer::Snapped { logs: true, .. }
                | Writer::Written { logged: Some(_), .. }
        )
    }

    /// It has its answer.
    pub fn has_ended(self) -> bool {
        matches!(self, Writer::Acknowledged | Writer::Failed)
    }
}

/// The acknowledged writes at the time of a client's request, which the client must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Floor {
    /// increments of `A`
    pub increments: u8,
    /// whether `B` exists; None: a writer is changing that
    pub present: Option<bool>,
}

/// The answer of a shard to a scatter: None before it arrives, an error for a stale map, or the rows.
pub type Answer = Option<Result<Rows, ()>>;

/// The externally visible states of a second migration, which moves another chunk of the collection between two other shards at the
/// same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Second {
    /// before its decision
    Running,
    /// decided: both of its shards have prepared
    Committed,
    /// its donor has committed
    DonorDone,
    /// its recipient has committed, too
    BothDone,
    /// the map has changed
    Moved,
    /// aborted
    Aborted,
}

impl Second {
    /// It is decided, and the map has not changed yet.
    pub fn is_decided(self) -> bool {
        matches!(self, Second::Committed | Second::DonorDone | Second::BothDone)
    }

    /// Its shard has the version and the rows of the migration.
    pub fn has_moved(self, at: Side) -> bool {
        match at {
            Side::Donor => matches!(self, Second::DonorDone | Second::BothDone | Second::Moved),
            Side::Recipient => matches!(self, Second::BothDone | Second::Moved),
        }
    }

    /// The only document of its chunk is in the table of that shard.
    pub fn has_document(self, at: Side) -> bool {
        self.has_moved(at) == (at == Side::Recipient)
    }

    /// Its next visible state; None at the end.
    pub fn next(self) -> Option<Self> {
        Some(match self {
            Second::Running => Second::Committed,
            Second::Committed => Second::DonorDone,
            Second::DonorDone => Second::BothDone,
            Second::BothDone => Second::Moved,
            Second::Moved | Second::Aborted => return None,
        })
    }
}

/// The answers of the second migration's shards to a scatter: whether the document was found, or an error for a stale map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Others {
    /// the map includes the second migration
    pub new: bool,
    /// the answer of its donor
    pub donor: Option<Result<bool, ()>>,
    /// the answer of its recipient
    pub recipient: Option<Result<bool, ()>>,
}

/// The state of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// there is none, or it has its answer
    Done,
    /// has no map
    Idle,
    /// has a map, which may be old
    Mapped {
        /// as a writer's
        new: bool,
        /// the map includes the second migration
        second: bool,
    },
    /// a point read was requested
    Asked {
        /// as a writer's
        new: bool,
        /// the writes that it must see
        floor: Floor,
        /// the version was checked before the statement's snapshot
        checked: bool,
    },
    /// a scatter was requested
    Scattered {
        /// as a writer's
        new: bool,
        /// the writes that it must see
        floor: Floor,
        /// the donor's answer
        donor: Answer,
        /// the recipient's answer
        recipient: Answer,
        /// the other shards' answers, if there is a second migration
        others: Option<Others>,
    },
}

/// The coordinator's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pc {
    /// commit the capture
    Capture,
    /// list the holders of the collection's lock
    ListWriters,
    /// wait for them: a set of writers
    AwaitWriters(u8),
    /// read and load a document, by number
    Clone(usize),
    /// read the log with the documents
    Pull,
    /// apply these changes
    Apply,
    /// delete these rows of the log
    Forget,
    /// T: exclude writers
    Freeze,
    /// T: delete the range
    Delete,
    /// the last round: read
    LastPull,
    /// and apply
    LastApply,
    /// R: set the version, PREPARE
    PrepareRecipient,
    /// T: compare the counts, set the version, end the capture, PREPARE
    PrepareDonor,
    /// wait until the standbys have what both have prepared
    AwaitStandbys,
    /// the catalog: running to committed
    Decide,
    /// COMMIT PREPARED
    CommitDonor,
    /// COMMIT PREPARED
    CommitRecipient,
    /// change the map
    Flip,
    /// leave the rest to recovery
    Settle,
    /// it has crashed, and its lock is free
    Dead,
}

/// The state of recovery, in any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// not running
    Idle,
    /// the catalog's row and the shards' parts have been read
    Loaded {
        /// the row's state
        state: State,
        /// the donor's part
        donor: Part,
        /// the recipient's
        recipient: Part,
    },
    /// one shard is clean
    DonorClean {
        /// what the row said
        state: State,
    },
    /// both shards are clean
    BothClean {
        /// what the row said
        state: State,
    },
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// the catalog's row
    pub state: State,
    /// the map says that the recipient owns the chunk
    pub map: bool,
    /// a migration of another chunk
    pub second: Option<Second>,
    /// the donor
    pub donor: Shard,
    /// the recipient
    pub recipient: Shard,
    /// the donor's capture row
    pub capture: bool,
    /// the donor's log, in the order of its numbers
    pub log: Vec<Logged>,
    /// the next number
    pub seq: u8,
    /// the documents that T has deleted
    pub deleted: [bool; 2],
    /// T has reached the deletion
    pub deleting: bool,
    /// R's rows
    pub loaded: Rows,
    /// changes that were read from the donor and are not yet applied: rows of the log, with the documents when they were read
    pub staged: Vec<(Logged, Option<u8>)>,
    /// the coordinator
    pub pc: Pc,
    /// rounds so far
    pub rounds: u8,
    /// recovery
    pub recovery: Recovery,
    /// recovery has started although the coordinator was alive
    pub taken_over: bool,
    /// the router is another one than that of the coordinator, with an older catalog
    pub replaced: bool,
    /// the catalog lost its last commits in a failover of the router
    pub promoted: bool,
    /// clients that write
    pub writers: Vec<Writer>,
    /// a client that reads
    pub reader: Reader,
    /// acknowledged increments of `A`
    pub increments: u8,
    /// `B` exists, as acknowledged
    pub present: bool,
    /// the number of crashes that may still happen
    pub crashes: u8,
    /// the number of failovers that may still happen
    pub failovers: u8,
    /// how often the catalog may still be restored
    pub restores: u8,
    /// a client got a wrong answer
    pub wrong: Option<&'static str>,
    /// recovery found that a prepared transaction was gone
    pub lost: bool,
}

impl World {
    /// A shard.
    pub fn shard(&self, side: Side) -> &Shard {
        if side == Side::Donor { &self.donor } else { &self.recipient }
    }

    /// As [`World::shard`].
    pub fn shard_mut(&mut self, side: Side) -> &mut Shard {
        if side == Side::Donor { &mut self.donor } else { &mut self.recipient }
    }

    /// A shard's part in the hand-over, as recovery sees it.
    pub fn part(&self, side: Side) -> Part {
        let shard = self.shard(side);
        match (shard.txn, shard.moved) {
            (Txn::Prepared, _) => Part::Prepared,
            (_, true) => Part::Committed,
            (_, false) => Part::Nothing,
        }
    }

    /// Only an administrator can end the migration.
    pub fn is_in_doubt(&self) -> bool {
        let are_prepared = [&self.donor, &self.recipient].iter().all(|shard| shard.txn == Txn::Prepared);
        self.replaced && self.state == State::Running && are_prepared
    }

    /// T excludes writers.
    pub fn is_frozen(&self) -> bool {
        matches!(self.donor.txn, Txn::Open | Txn::Prepared)
    }

    /// The chunk's documents, at their owner; between the two commits, at the recipient.
    pub fn documents(&self) -> Rows {
        match (self.donor.moved, self.recipient.moved) {
            (false, _) => self.donor.rows,
            (true, true) => self.recipient.rows,
            (true, false) => self.loaded,
        }
    }

    /// The acknowledged writes that a request at this time must see.
    pub fn floor(&self, ops: &[Op]) -> Floor {
        let is_changing = self.writers.iter().zip(ops).any(|(writer, op)| *op != Op::Update && !writer.has_ended());
        Floor { increments: self.increments, present: (!is_changing).then_some(self.present) }
    }

    /// T or R commits.
    pub fn commit(&mut self, side: Side) {
        if self.shard(side).txn != Txn::Prepared {
            return;
        }
        match side {
            Side::Donor => {
                for key in [A, B] {
                    if self.deleted[key] {
                        self.donor.rows[key] = None;
                    }
                }
                self.capture = false;
                self.log.clear();
            }
            Side::Recipient => {
                for key in [A, B] {
                    if self.loaded[key].is_some() {
                        self.recipient.rows[key] = self.loaded[key];
                    }
                }
            }
        }
        let shard = self.shard_mut(side);
        shard.moved = true;
        shard.txn = Txn::Committed;
    }

    /// Rolls back T or R; a prepared transaction only with `prepared_too`.
    pub fn roll_back(&mut self, side: Side, prepared_too: bool) {
        let txn = self.shard(side).txn;
        if txn == Txn::Open || (txn == Txn::Prepared && prepared_too) {
            self.shard_mut(side).txn = Txn::None;
            match side {
                Side::Donor => {
                    self.deleted = [false; 2];
                    self.deleting = false;
                }
                Side::Recipient => self.loaded = [None; 2],
            }
        }
    }

    /// A shard crashes and restarts, which ends its sessions and their open transactions.
    pub fn crash_shard(&mut self, side: Side) {
        self.roll_back(side, false);
        let shard = self.shard_mut(side);
        shard.session = false;
        shard.prepare_in_flight = false;
        if side == Side::Recipient {
            self.staged.clear();
        }
        for writer in &mut self.writers {
            if writer.locks_at() == Some(side == Side::Recipient) {
                *writer = Writer::Failed;
            }
        }
    }

    /// A shard crashes, and a standby is promoted that lacks the commit of the migration's part, and, unless it was waited for, what was
    /// prepared.
    pub fn fail_over(&mut self, side: Side) {
        self.crash_shard(side);
        if !matches!(self.shard(side).txn, Txn::Prepared | Txn::Committed) {
            return;
        }
        if self.shard(side).moved {
            match side {
                Side::Donor => {
                    for key in [A, B] {
                        if self.deleted[key] {
                            self.donor.rows[key] = self.loaded[key];
                        }
                    }
                    self.capture = true;
                }
                Side::Recipient => self.recipient.rows = [None; 2],
            }
        }
        let shard = self.shard_mut(side);
        shard.moved = false;
        shard.txn = Txn::Prepared;
        if !shard.replicated {
            self.roll_back(side, true);
        }
    }

    /// A catalog in which the migration runs is restored, and its router takes the shards over: they end all sessions of the former one.
    /// Clients come back to the new one.
    pub fn restore(&mut self) {
        self.restores -= 1;
        self.replaced = true;
        (self.state, self.map, self.pc, self.recovery) = (State::Running, false, Pc::Dead, Recovery::Idle);
        for side in [Side::Donor, Side::Recipient] {
            self.roll_back(side, false);
            let shard = self.shard_mut(side);
            (shard.session, shard.prepare_in_flight) = (false, false);
        }
        for writer in &mut self.writers {
            *writer = match writer {
                Writer::Idle | Writer::Mapped { .. } => Writer::Idle,
                Writer::Acknowledged => Writer::Acknowledged,
                _ => Writer::Failed,
            };
        }
        if self.reader != Reader::Done {
            self.reader = Reader::Idle;
        }
    }

    /// The router fails over to a standby whose catalog lacks the decision. The sessions of the former coordinator end some time later.
    pub fn promote(&mut self) {
        self.restores -= 1;
        self.promoted = true;
        self.kill_coordinator();
        (self.state, self.map, self.recovery) = (State::Running, false, Recovery::Idle);
        for writer in &mut self.writers {
            *writer = match writer {
                Writer::Idle | Writer::Mapped { .. } => Writer::Idle,
                Writer::Acknowledged => Writer::Acknowledged,
                _ => Writer::Failed,
            };
        }
        if self.reader != Reader::Done {
            self.reader = Reader::Idle;
        }
    }

    /// The coordinator crashes, alone or with its router. Its sessions end some time later.
    pub fn kill_coordinator(&mut self) {
        let (recipient, donor) = (self.pc == Pc::PrepareRecipient, self.pc == Pc::PrepareDonor);
        self.recipient.prepare_in_flight |= recipient && self.recipient.txn == Txn::Open;
        self.donor.prepare_in_flight |= donor && self.donor.txn == Txn::Open;
        self.pc = Pc::Dead;
    }
}
