//! The steps of the clients' statements, as in `src/ownership` and `src/router`.

use crate::world::{A, Answer, B, Floor, Logged, Op, Others, Reader, Rows, Second, Side, Txn, World, Writer};
use crate::{Mechanism, Protocol};
use docshard_core::cluster::migration::State;

fn side(new: bool) -> Side {
    if new { Side::Recipient } else { Side::Donor }
}

impl Protocol {
    /// True if a shard's version is that of the map.
    fn is_current(&self, world: &World, at: Side, new: bool) -> bool {
        world.shard(at).moved == new || self.is_off(Mechanism::VersionCheck)
    }

    /// The next step of a writer; None if it has to wait.
    pub(crate) fn write(&self, world: &World, number: usize) -> Option<World> {
        let mut next = world.clone();
        let op = self.writers[number];
        let shard = world.shard(Side::Donor);
        let after = match world.writers[number] {
            Writer::Idle => Writer::Mapped { new: world.map },
            // The map is stale: the writer loads the current one.
            Writer::Mapped { new } if !self.is_current(world, side(new), new) => {
                if world.map == new {
                    // There is no newer map yet.
                    return None;
                }
                Writer::Idle
            }
            Writer::Mapped { new } => Writer::Locked { new },
            Writer::Locked { new } => Writer::Looked { new, logs: !new && world.capture },
            Writer::Looked { new, logs } => {
                let locks = logs && !self.is_off(Mechanism::WritersLock);
                if locks && world.is_frozen() {
                    return None;
                }
                if locks && !self.is_current(world, side(new), new) {
                    Writer::Idle
                } else {
                    Writer::Checked { new, logs }
                }
            }
            // The statement takes its snapshot, and checks the version in it.
            Writer::Checked { new, logs } => {
                if self.is_current(world, side(new), new) || self.is_off(Mechanism::CheckInStatement) {
                    Writer::Snapped { new, logs }
                } else {
                    Writer::Idle
                }
            }
            Writer::Snapped { new, logs } => {
                let key = if op == Op::Update { A } else { B };
                // Another writer has an uncommitted change of the row.
                let other = world
                    .writers
                    .iter()
                    .any(|w| matches!(w, Writer::Written { new: n, key: k, .. } if *n == new && *k == key));
                let handing_over =
                    !new && world.deleted[key] && matches!(shard.txn, Txn::Open | Txn::Prepared) && world.deleting;
                if other || handing_over {
                    return None;
                }
                let rows = world.shard(side(new)).rows;
                let value = match (op, rows[key]) {
                    (Op::Update, Some(n)) => Some(n + 1),
                    (Op::Insert, None) => Some(0),
                    (Op::Delete, Some(_)) => None,
                    (Op::Insert, Some(_)) => {
                        next.wrong = Some("an insert found its document");
                        None
                    }
                    // The document exists, and must be found.
                    (Op::Update | Op::Delete, None) => {
                        next.wrong = Some("a write did not find its document");
                        None
                    }
                };
                let logs = logs && !self.is_off(Mechanism::Capture);
                let logged = logs.then_some(world.seq);
                next.seq += u8::from(logs);
                Writer::Written { new, key, value, logged }
            }
            Writer::Written { new, key, value, logged } => {
                next.shard_mut(side(new)).rows[key] = value;
                if let Some(seq) = logged {
                    next.log.push(Logged { seq, key });
                    next.log.sort_unstable();
                }
                match op {
                    Op::Update => next.increments += 1,
                    Op::Insert => next.present = true,
                    Op::Delete => next.present = false,
                }
                Writer::Acknowledged
            }
            Writer::Acknowledged | Writer::Failed => return None,
        };
        next.writers[number] = after;
        Some(next)
    }

    /// A writer without a map, or with a stale one, uses the map that results from a decided migration. It may do so in any state of the
    /// migration, since only the shards' versions reveal the state.
    pub(crate) fn foresee_write(&self, world: &World, number: usize) -> Option<World> {
        if world.state != State::Committed
            || !matches!(world.writers[number], Writer::Idle | Writer::Mapped { new: false })
        {
            return None;
        }
        let mut next = world.clone();
        next.writers[number] = Writer::Mapped { new: true };
        Some(next)
    }

    /// As [`Protocol::foresee_write`], for the reader and one or both of two decided migrations.
    pub(crate) fn foresee_read(&self, world: &World, first: bool, second: bool) -> Option<World> {
        let decided =
            (!first || world.state == State::Committed) && (!second || world.second.is_some_and(Second::is_decided));
        let may = matches!(
            world.reader,
            Reader::Idle | Reader::Mapped { new: false, .. } | Reader::Asked { new: false, checked: false, .. }
        );
        if !decided || !may {
            return None;
        }
        let mut next = world.clone();
        let moved = world.second == Some(Second::Moved);
        next.reader = Reader::Mapped { new: world.map || first, second: moved || second };
        Some(next)
    }

    /// The next step of the reader, for a scatter at that shard; None if it has to wait.
    pub(crate) fn read(&self, world: &World, at: Side) -> Option<World> {
        let mut next = world.clone();
        next.reader = match world.reader {
            Reader::Done => return None,
            Reader::Idle if at == Side::Donor => {
                Reader::Mapped { new: world.map, second: world.second == Some(Second::Moved) }
            }
            // The client sends its request now; the map may be old.
            Reader::Mapped { new, second } if at == Side::Donor => {
                let floor = world.floor(&self.writers);
                if self.scatter {
                    let others = world.second.map(|_| Others { new: second, donor: None, recipient: None });
                    Reader::Scattered { new, floor, donor: None, recipient: None, others }
                } else {
                    Reader::Asked { new, floor, checked: false }
                }
            }
            Reader::Asked { new, floor, checked } if at == Side::Donor => {
                let shard = world.shard(side(new));
                if !checked && !self.is_current(world, side(new), new) {
                    if world.map == new {
                        return None;
                    }
                    Reader::Idle
                } else if !checked && self.is_off(Mechanism::CheckInStatement) {
                    Reader::Asked { new, floor, checked: true }
                } else {
                    if shard.rows[A].is_none_or(|n| n < floor.increments) {
                        next.wrong = Some("a read missed an acknowledged write");
                    }
                    Reader::Done
                }
            }
            Reader::Scattered { new, floor, mut donor, mut recipient, others } => {
                let answer = if at == Side::Donor { &mut donor } else { &mut recipient };
                if answer.is_some() {
                    return None;
                }
                *answer = Some(if self.is_current(world, at, new) { Ok(world.shard(at).rows) } else { Err(()) });
                self.gather(&mut next, new, floor, donor, recipient, others)
            }
            _ => return None,
        };
        Some(next)
    }

    /// The next step of a scatter at a shard of the second migration.
    pub(crate) fn read_other(&self, world: &World, at: Side) -> Option<World> {
        let mut next = world.clone();
        let Reader::Scattered { new, floor, donor, recipient, others: Some(mut others) } = world.reader else {
            return None;
        };
        let second = world.second?;
        let answer = if at == Side::Donor { &mut others.donor } else { &mut others.recipient };
        if answer.is_some() {
            return None;
        }
        let current = second.has_moved(at) == others.new || self.is_off(Mechanism::VersionCheck);
        *answer = Some(if current { Ok(second.has_document(at)) } else { Err(()) });
        next.reader = self.gather(&mut next, new, floor, donor, recipient, Some(others));
        Some(next)
    }

    /// The state of a scatter with these answers: done, restarted, or waiting for more answers.
    fn gather(
        &self,
        next: &mut World,
        new: bool,
        floor: Floor,
        donor: Answer,
        recipient: Answer,
        others: Option<Others>,
    ) -> Reader {
        let waiting = Reader::Scattered { new, floor, donor, recipient, others };
        let (Some(donor), Some(recipient)) = (donor, recipient) else { return waiting };
        let (others_donor, others_recipient) = match others {
            // Without a second migration, its chunk counts as found.
            None => (Ok(true), Ok(false)),
            Some(Others { donor: Some(donor), recipient: Some(recipient), .. }) => (donor, recipient),
            Some(_) => return waiting,
        };
        let stale = donor.is_err() || recipient.is_err() || others_donor.is_err() || others_recipient.is_err();
        // One stale answer invalidates all of them, unless the mechanism is switched off.
        if stale && !self.is_off(Mechanism::ConfirmFirst) {
            return Reader::Idle;
        }
        let there = u8::from(others_donor == Ok(true)) + u8::from(others_recipient == Ok(true));
        next.wrong = next.wrong.or(judge(floor, donor.unwrap_or_default(), recipient.unwrap_or_default()));
        if there != 1 {
            next.wrong = next.wrong.or(Some("a scatter saw a document of another chunk twice, or not at all"));
        }
        Reader::Done
    }
}

/// The error in a scatter's answer.
fn judge(floor: crate::world::Floor, donor: Rows, recipient: Rows) -> Option<&'static str> {
    let times = |key: usize| usize::from(donor[key].is_some()) + usize::from(recipient[key].is_some());
    if times(A) != 1 {
        return Some("a scatter saw a document twice, or not at all");
    }
    if donor[A].or(recipient[A]).is_none_or(|n| n < floor.increments) {
        return Some("a scatter missed an acknowledged update");
    }
    match floor.present {
        Some(present) if times(B) != usize::from(present) => Some("a scatter missed an acknowledged insert or delete"),
        _ if times(B) > 1 => Some("a scatter saw a document twice"),
        _ => None,
    }
}
