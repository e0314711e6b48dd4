//! Everything that a state of the model consists of: what is durable on the router and two shards, what sessions and
//! processes hold, and what clients have been told.

use docshard_core::cluster::migration::{Part, State};

/// The chunk has room for two documents: `A`, which is there from the start and is only updated, and `B`, which comes or
/// goes.
pub const A: usize = 0;
/// See [`A`].
pub const B: usize = 1;

/// The documents of the chunk in a table: for each, how often it was incremented.
pub type Rows = [Option<u8>; 2];

/// A transaction of the move on a shard.
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
    /// given out when the row was written, not when it was committed
    pub seq: u8,
    /// which document changed
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

/// What a shard holds.
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
    /// the coordinator died when it had sent PREPARE: that may yet arrive
    pub prepare_in_flight: bool,
}

/// What a writer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// increments `A`
    Update,
    /// inserts `B`
    Insert,
    /// deletes `B`
    Delete,
}

/// Where a writer is. `new` is the map that it goes by, `logs` what it knows of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// has no map
    Idle,
    /// has a map, perhaps for long
    Mapped {
        /// the map says that the recipient owns the chunk
        new: bool,
    },
    /// shares the collection's lock at its shard, and has checked the version
    Locked {
        /// as above
        new: bool,
    },
    /// has looked for captures
    Looked {
        /// as above
        new: bool,
        /// there is one
        logs: bool,
    },
    /// holds all its locks, and has checked under them
    Checked {
        /// as above
        new: bool,
        /// as above
        logs: bool,
    },
    /// its statement has a snapshot in which the version was right
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
        /// the document that it has written
        key: usize,
        /// what becomes of it
        value: Option<u8>,
        /// the number of its row in the log
        logged: Option<u8>,
    },
    /// was acknowledged
    Acknowledged,
    /// was told of an error, and has written nothing
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

    /// It shares the move's lock.
    pub fn shares_moves_lock(self) -> bool {
        matches!(
            self,
            Writer::Checked { logs: true, .. }
                | Writer::Snapped { logs: true, .. }
                | Writer::Written { logged: Some(_), .. }
        )
    }

    /// It has come to its end.
    pub fn has_ended(self) -> bool {
        matches!(self, Writer::Acknowledged | Writer::Failed)
    }
}

/// What a client may know when it asks: acknowledged writes, which it must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Floor {
    /// increments of `A`
    pub increments: u8,
    /// `B` is there for certain (true), or not (false); None: a writer is at it
    pub present: Option<bool>,
}

/// What a part of a scatter answered: None, not yet; an error, that the map is stale; or the rows.
pub type Answer = Option<Result<Rows, ()>>;

/// What others see of a second move, of another chunk of the collection between two other shards, at the same time. How it
/// gets there is as with the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Second {
    /// before its decision
    Running,
    /// decided: both of its shards have prepared
    Committed,
    /// its donor has committed
    DonorDone,
    /// its recipient has, too
    BothDone,
    /// the map says so
    Moved,
    /// taken back
    Aborted,
}

impl Second {
    /// Its decision stands, and the map does not yet say so.
    pub fn is_decided(self) -> bool {
        matches!(self, Second::Committed | Second::DonorDone | Second::BothDone)
    }

    /// Its shard is at the version of the move, rows and all.
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

    /// The next of its steps that others see; None at its end.
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

/// What a scatter has from the shards of the second move: whether the document is there, or an error, that the map is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Others {
    /// the map says that the second move is over
    pub new: bool,
    /// what its donor answered
    pub donor: Option<Result<bool, ()>>,
    /// what its recipient answered
    pub recipient: Option<Result<bool, ()>>,
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// there is none, or it is content
    Done,
    /// has no map
    Idle,
    /// has a map, perhaps for long
    Mapped {
        /// as a writer's
        new: bool,
        /// of the same moment: the second move is over
        second: bool,
    },
    /// a point read has been asked for
    Asked {
        /// as a writer's
        new: bool,
        /// what it must see
        floor: Floor,
        /// the version was looked at before the statement's snapshot
        checked: bool,
    },
    /// a scatter has been asked for
    Scattered {
        /// as a writer's
        new: bool,
        /// what it must see
        floor: Floor,
        /// what the donor answered
        donor: Answer,
        /// what the recipient answered
        recipient: Answer,
        /// what the other shards answered, if there is a second move
        others: Option<Others>,
    },
}

/// The coordinator's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pc {
    /// commit the capture
    Capture,
    /// note who holds the collection's lock
    ListWriters,
    /// wait for them: a set of writers
    AwaitWriters(u8),
    /// read and load a document, by number
    Clone(usize),
    /// read the log with the documents
    Pull,
    /// apply that
    Apply,
    /// forget these rows of the log
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
    /// T: compare the counts, set the version, forget the capture, PREPARE
    PrepareDonor,
    /// the catalog: running to committed
    Decide,
    /// COMMIT PREPARED
    CommitDonor,
    /// COMMIT PREPARED
    CommitRecipient,
    /// the map
    Flip,
    /// the rest is recovery's, in its own hands
    Settle,
    /// it has died, and its lock is free
    Dead,
}

/// What recovery, whoever runs it, has in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// nobody is at it
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
    /// a move of another chunk, if there is one
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
    /// which documents T has deleted
    pub deleted: [bool; 2],
    /// T has got as far as deleting
    pub deleting: bool,
    /// R's rows
    pub loaded: Rows,
    /// a round on its way: the log's row and the document then
    pub staged: Vec<(Logged, Option<u8>)>,
    /// the coordinator
    pub pc: Pc,
    /// rounds so far
    pub rounds: u8,
    /// whoever recovers
    pub recovery: Recovery,
    /// somebody took the coordinator for dead
    pub taken_over: bool,
    /// clients that write
    pub writers: Vec<Writer>,
    /// a client that reads
    pub reader: Reader,
    /// what clients were told: increments of `A`
    pub increments: u8,
    /// what clients were told: `B` is there
    pub present: bool,
    /// how many crashes may come
    pub crashes: u8,
    /// a client was told something wrong
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

    /// What a shard's part looks like to recovery.
    pub fn part(&self, side: Side) -> Part {
        let shard = self.shard(side);
        match (shard.txn, shard.moved) {
            (Txn::Prepared, _) => Part::Prepared,
            (_, true) => Part::Committed,
            (_, false) => Part::Nothing,
        }
    }

    /// T excludes writers.
    pub fn is_frozen(&self) -> bool {
        matches!(self.donor.txn, Txn::Open | Txn::Prepared)
    }

    /// The chunk's documents, wherever they are: a moment without owner belongs to who is about to be it.
    pub fn documents(&self) -> Rows {
        match (self.donor.moved, self.recipient.moved) {
            (false, _) => self.donor.rows,
            (true, true) => self.recipient.rows,
            (true, false) => self.loaded,
        }
    }

    /// What a client may rely on that asks now.
    pub fn floor(&self, ops: &[Op]) -> Floor {
        let at_it = self.writers.iter().zip(ops).any(|(writer, op)| *op != Op::Update && !writer.has_ended());
        Floor { increments: self.increments, present: (!at_it).then_some(self.present) }
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

    /// T or R is rolled back, if it is not prepared or that is meant.
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

    /// A shard crashes and starts again: its sessions, and what they had not committed or prepared, are gone.
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

    /// The coordinator dies, by itself or with its router. Its sessions notice, sooner or later.
    pub fn kill_coordinator(&mut self) {
        let (recipient, donor) = (self.pc == Pc::PrepareRecipient, self.pc == Pc::PrepareDonor);
        self.recipient.prepare_in_flight |= recipient && self.recipient.txn == Txn::Open;
        self.donor.prepare_in_flight |= donor && self.donor.txn == Txn::Open;
        self.pc = Pc::Dead;
    }
}
