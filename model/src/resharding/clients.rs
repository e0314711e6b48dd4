//! The steps of the clients' statements while a collection's layout changes.

use super::{DOCUMENTS, DONOR, Logged, Mechanism, Protocol, RECIPIENT, Reader, Reading, Seen, World, Writer};

impl Protocol {
    /// The shard of a document in a layout.
    fn place(document: usize, new: bool) -> usize {
        if new { RECIPIENT[document] } else { DONOR[document] }
    }

    /// True if an open transaction of a writer has been at a shard.
    pub(super) fn touches(&self, world: &World, number: usize, at: usize) -> bool {
        let (new, reached) = match &world.writers[number] {
            Writer::Locked { new, logged } => (*new, logged.len() + 1),
            Writer::Written { new, logged } => (*new, logged.len()),
            _ => return false,
        };
        self.writers[number][..reached].iter().any(|document| Self::place(*document, new) == at)
    }

    /// True if a writer holds the old table's lock at a shard.
    pub(super) fn holds_at(&self, world: &World, number: usize, at: usize) -> bool {
        match &world.writers[number] {
            Writer::Locked { new: false, .. } | Writer::Written { new: false, .. } => self.touches(world, number, at),
            Writer::Committing { new: false, committed, .. } => {
                self.writers[number][*committed..].iter().any(|document| DONOR[*document] == at)
            }
            _ => false,
        }
    }

    pub(super) fn holds(&self, world: &World, number: usize) -> bool {
        (0..2).any(|shard| self.holds_at(world, number, shard))
    }

    /// The next step of a writer; None if it has to wait.
    pub(super) fn write(&self, world: &World, number: usize) -> Option<World> {
        let mut next = world.clone();
        let documents = self.writers[number];
        next.writers[number] = match world.writers[number].clone() {
            // It is not known whether the lost router has decided the change.
            Writer::Idle if world.is_undecided() && !self.is_off(Mechanism::AwaitDecision) => return None,
            Writer::Idle => Writer::Mapped { new: world.map },
            // The gate is that of the old layout.
            Writer::Mapped { new: false } if world.gate => return None,
            Writer::Mapped { new } => Writer::Passed { new },
            Writer::Passed { new } => self.lock(world, new, documents[0], Vec::new())?,
            Writer::Locked { new, mut logged } => {
                let document = documents[logged.len()];
                if self.is_locked_row(world, number, new, document) {
                    return None;
                }
                let logs = !new && world.shards[DONOR[document]].capture && !self.is_off(Mechanism::Capture);
                logged.push(logs.then_some(world.seq));
                next.seq += u8::from(logs);
                Writer::Written { new, logged }
            }
            Writer::Written { new, logged } if logged.len() < documents.len() => {
                self.lock(world, new, documents[logged.len()], logged)?
            }
            Writer::Written { new, logged } => Writer::Committing { new, logged, committed: 0 },
            Writer::Committing { new, logged, committed } => {
                let document = documents[committed];
                Self::commit_row(&mut next, new, document, logged[committed])?;
                if committed + 1 < documents.len() {
                    Writer::Committing { new, logged, committed: committed + 1 }
                } else {
                    documents.iter().for_each(|document| next.acknowledged[*document] += 1);
                    Writer::Acknowledged
                }
            }
            Writer::Acknowledged | Writer::Failed => return None,
        };
        Some(next)
    }

    /// Takes the lock for a document; a stale map is loaded anew, and fails a transaction that has written. None: it waits.
    fn lock(&self, world: &World, new: bool, document: usize, logged: Vec<Option<u8>>) -> Option<Writer> {
        let shard = &world.shards[Self::place(document, new)];
        let is_stale = shard.decided != new;
        let is_blocked = !new
            && (shard.txn && !self.is_off(Mechanism::ExcludeWriters)
                || shard.prepared && !self.is_off(Mechanism::LockUntilCommit));
        match (is_blocked, is_stale) {
            (true, _) => None,
            (false, true) if !logged.is_empty() => Some(Writer::Failed),
            // There is no newer map yet.
            (false, true) if world.map == new => None,
            (false, true) => Some(Writer::Idle),
            (false, false) => Some(Writer::Locked { new, logged }),
        }
    }

    /// True if another transaction has changed the row.
    fn is_locked_row(&self, world: &World, number: usize, new: bool, document: usize) -> bool {
        world.writers.iter().enumerate().any(|(other, writer)| {
            let (others, from, to) = match writer {
                Writer::Locked { new, logged } | Writer::Written { new, logged } => (*new, 0, logged.len()),
                Writer::Committing { new, logged, committed } => (*new, *committed, logged.len()),
                _ => return false,
            };
            other != number && others == new && self.writers[other][from..to].contains(&document)
        })
    }

    /// Commits a changed row, and its row of the log.
    fn commit_row(next: &mut World, new: bool, document: usize, logged: Option<u8>) -> Option<()> {
        let shard = &mut next.shards[Self::place(document, new)];
        next.committed[document] += 1;
        if new {
            if let Some(value) = shard.copy.as_mut().and_then(|copy| copy[document].as_mut()) {
                *value += 1;
            } else {
                next.wrong = Some("a write did not find its document");
            }
        } else if let Some(old) = &mut shard.old {
            old[document] += 1;
            if let Some(seq) = logged {
                shard.log.push(Logged { seq, document });
                shard.log.sort_unstable();
            }
        } else {
            next.wrong = Some("a write was committed to a table that is gone");
        }
        Some(())
    }

    /// The next step of the reader at a shard; None if it has to wait.
    pub(super) fn read(&self, world: &World, at: usize) -> Option<World> {
        let mut next = world.clone();
        let floor = world.acknowledged;
        let begin = |floor, seen| Reader::Reading { new: world.map, floor, seen, found: [None, None] };
        next.reader = match world.reader.clone() {
            Reader::Idle if at == 0 && self.reader == Some(Reading::OldSnapshot) => {
                let see = |shard: &super::Shard| Seen { copy: shard.copy, decided: shard.decided };
                Reader::Snapped { floor, seen: [see(&world.shards[0]), see(&world.shards[1])] }
            }
            Reader::Idle if at == 0 => begin(floor, None),
            Reader::Snapped { floor, seen } if at == 0 => begin(floor, Some(seen)),
            Reader::Reading { new, floor, seen, mut found } if found[at].is_none() => {
                let is_old = seen.is_some();
                match self.answer(world, new, at, seen.as_ref().map(|seen| &seen[at]))? {
                    Some(answer) => found[at] = Some(answer),
                    // The map is stale; an old snapshot cannot have a newer one.
                    None => {
                        next.reader = if is_old { Reader::Done } else { Reader::Idle };
                        return (is_old || world.map != new).then_some(next);
                    }
                }
                if let [Some(one), Some(other)] = found {
                    next.wrong = next.wrong.or(judge(floor, one, other));
                    Reader::Done
                } else {
                    Reader::Reading { new, floor, seen, found }
                }
            }
            _ => return None,
        };
        Some(next)
    }

    /// A shard's answer: the documents; None: stale. The outer None: it waits.
    #[expect(clippy::option_option, reason = "waiting and being stale are different")]
    fn answer(
        &self,
        world: &World,
        new: bool,
        at: usize,
        seen: Option<&Seen>,
    ) -> Option<Option<[Option<u8>; DOCUMENTS]>> {
        let shard = &world.shards[at];
        if new {
            let now = Seen { copy: shard.copy, decided: shard.decided };
            let seen = seen.unwrap_or(&now);
            let is_current = seen.decided || self.is_off(Mechanism::VersionCheck);
            return Some(if is_current { seen.copy } else { None });
        }
        if shard.prepared && !self.is_off(Mechanism::LockUntilCommit) {
            return None;
        }
        let of_shard = |old: [u8; DOCUMENTS]| {
            let mut found = [None; DOCUMENTS];
            (0..DOCUMENTS).filter(|document| DONOR[*document] == at).for_each(|d| found[d] = Some(old[d]));
            found
        };
        Some(shard.old.map(of_shard))
    }
}

/// The error in the answer of both shards.
fn judge(floor: [u8; DOCUMENTS], one: [Option<u8>; DOCUMENTS], other: [Option<u8>; DOCUMENTS]) -> Option<&'static str> {
    (0..DOCUMENTS).find_map(|document| match (one[document], other[document]) {
        (Some(value), None) | (None, Some(value)) if value >= floor[document] => None,
        (Some(_), None) | (None, Some(_)) => Some("a read missed an acknowledged write"),
        _ => Some("a read saw a document twice, or not at all"),
    })
}
