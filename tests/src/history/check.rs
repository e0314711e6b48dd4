//! Checks a [`History`]: could an unsharded database have answered like this?
//!
//! - An acknowledged write has its effect exactly once, one of unknown outcome at most once, and one that failed never.
//! - A read of a key has every write that was acknowledged before the read began, none that was sent after the read ended,
//!   and no fewer than an earlier read.
//! - A count or a scan has every document that was there throughout, none that was never there, and none twice.
//! - The writes of one transaction have their effects all or not at all.
//!
//! One snapshot over several shards is not promised: what one statement read of two documents may be of two points in time,
//! both between its beginning and its end.
//!
//! Each life of a key begins and ends at an unknown time. Every acknowledgement and every read narrows the interval in which
//! that time must be; an empty interval is a violation. Every list of writes that was read must be a prefix of the document's
//! longest list, which is the order of its writes. So no search over orders is needed, only sorting.

use crate::history::{Action, Document, DocumentState, History, Key, NEVER, Observed, Outcome, Range, Tick, Write};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Something that no unsharded database could have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its kind.
    pub kind: Kind,
    /// The key, if it concerns only one.
    pub key: Option<Key>,
    /// What happened, for a person.
    pub message: String,
}

/// Kinds of violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An acknowledged write has no effect.
    Lost,
    /// A write has its effect twice, or a document was read twice.
    Duplicate,
    /// A read lacks what was acknowledged, or read, before.
    Stale,
    /// A read has a write that does not exist, has failed, or was not yet sent.
    Phantom,
    /// A document was read after its deletion.
    Resurrected,
    /// A count is outside its bounds.
    Count,
    /// A transaction took effect in part.
    Torn,
    /// Writes took effect in an order that contradicts their times.
    Order,
}

/// An unknown time after `after` and not after `until`.
#[derive(Clone, Copy, Debug)]
struct Interval {
    after: Tick,
    until: Tick,
}

/// What is known of one life of a key.
#[derive(Debug)]
struct Life<'a> {
    document: Document,
    /// The document at the history's beginning, if it was there.
    initial: Option<&'a DocumentState>,
    insert: Option<&'a Write>,
    deletes: Vec<&'a Write>,
    appends: Vec<(&'a Write, i64)>,
    reads: Vec<(Tick, Tick, &'a DocumentState)>,
    present: Vec<(Tick, Tick)>,
    absent: Vec<(Tick, Tick)>,
    begins: Interval,
    ends: Interval,
}

impl<'a> Life<'a> {
    fn new(document: Document) -> Self {
        let unknown = Interval { after: NEVER, until: NEVER };
        Self {
            document,
            initial: None,
            insert: None,
            deletes: Vec::new(),
            appends: Vec::new(),
            reads: Vec::new(),
            present: Vec::new(),
            absent: Vec::new(),
            begins: unknown,
            ends: unknown,
        }
    }

    /// True if the document was surely there throughout.
    fn surely_within(&self, began: Tick, ended: Tick) -> bool {
        self.begins.until < began && self.ends.after > ended
    }

    /// True if the document may have been there at some time.
    fn perhaps_within(&self, began: Tick, ended: Tick) -> bool {
        self.begins.after < ended && self.ends.until > began
    }

    fn longest(&self) -> &'a [u64] {
        let initial = self.initial.map(|found| &found.ops[..]).unwrap_or_default();
        let lists = self.reads.iter().map(|(_, _, found)| &found.ops[..]);
        lists.chain([initial]).max_by_key(|list| list.len()).unwrap_or_default()
    }
}

/// All violations of a history; none if it is sound.
pub fn check(history: &History) -> Vec<Violation> {
    let mut checker = Checker { history, violations: Vec::new(), lives: BTreeMap::new(), many: Vec::new() };
    checker.collect_writes();
    checker.collect_observations();
    let mut lives = std::mem::take(&mut checker.lives);
    for life in lives.values_mut() {
        checker.bound(life);
    }
    checker.order_lives(&mut lives);
    for life in lives.values() {
        checker.check_list(life);
    }
    checker.check_many(&lives);
    checker.check_counts(&lives);
    checker.check_transactions(&lives);
    checker.violations
}

struct Checker<'a> {
    history: &'a History,
    violations: Vec<Violation>,
    lives: BTreeMap<Document, Life<'a>>,
    /// Writes to ranges.
    many: Vec<(&'a Write, Range, i64)>,
}

impl<'a> Checker<'a> {
    fn report(&mut self, kind: Kind, key: impl Into<Option<Key>>, message: String) {
        self.violations.push(Violation { kind, key: key.into(), message });
    }

    fn life(&mut self, document: Document) -> &mut Life<'a> {
        self.lives.entry(document).or_insert_with(|| Life::new(document))
    }

    /// The time from which every read must see a write; [`NEVER`] if none must.
    fn visible(&self, write: &Write) -> Tick {
        match write.outcome {
            Outcome::Done => write.ended,
            Outcome::Decided => self.history.settled.unwrap_or(NEVER),
            Outcome::Failed | Outcome::Maybe => NEVER,
        }
    }

    fn collect_writes(&mut self) {
        let history = self.history;
        for (key, found) in &history.initial {
            let life = self.life(Document { key: *key, life: found.life });
            life.initial = Some(found);
        }
        let mut numbers = HashSet::new();
        for write in &history.writes {
            if !numbers.insert(write.id) {
                self.report(Kind::Duplicate, None, format!("two writes have the number {}", write.id));
            }
            for action in &write.actions {
                match *action {
                    Action::Insert(document) => {
                        if let Some(before) = self.life(document).insert.replace(write) {
                            let message = format!("writes {} and {} insert {document:?}", before.id, write.id);
                            self.report(Kind::Duplicate, document.key, message);
                        }
                    }
                    Action::Append(document, delta) => self.life(document).appends.push((write, delta)),
                    Action::Delete(document) => self.life(document).deletes.push(write),
                    Action::AppendMany(range, delta) => self.many.push((write, range, delta)),
                }
            }
        }
    }

    fn collect_observations(&mut self) {
        let history = self.history;
        // First the documents that were read: the second pass needs all lives.
        for observation in &history.observations {
            let at = (observation.began, observation.ended);
            match &observation.observed {
                Observed::Read(key, Some(found)) => {
                    let life = self.life(Document { key: *key, life: found.life });
                    life.present.push(at);
                    life.reads.push((at.0, at.1, found));
                }
                Observed::Present(document) => self.life(*document).present.push(at),
                Observed::Scan(_, documents) => {
                    let mut keys = HashSet::new();
                    for document in documents {
                        self.life(*document).present.push(at);
                        if !keys.insert(document.key) {
                            let message = format!("the scan at {}–{} found it twice", at.0, at.1);
                            self.report(Kind::Duplicate, document.key, message);
                        }
                    }
                }
                Observed::Read(_, None) | Observed::Absent(_) | Observed::Count(..) => {}
            }
        }
        for observation in &history.observations {
            let at = (observation.began, observation.ended);
            match &observation.observed {
                Observed::Read(key, found) => {
                    let other = |document: &Document| found.as_ref().is_none_or(|found| found.life != document.life);
                    self.absent(at, all_of(*key), other);
                }
                Observed::Absent(document) => self.absent(at, *document..=*document, |_| true),
                Observed::Scan(range, documents) => {
                    let found: HashSet<_> = documents.iter().collect();
                    self.absent(at, all_in(range), |document| !found.contains(document));
                }
                Observed::Present(_) | Observed::Count(..) => {}
            }
        }
    }

    fn absent(
        &mut self,
        at: (Tick, Tick),
        among: std::ops::RangeInclusive<Document>,
        which: impl Fn(&Document) -> bool,
    ) {
        for (document, life) in self.lives.range_mut(among) {
            // A life that may not have begun yet may be absent.
            if which(document) && (life.initial.is_some() || life.insert.is_some_and(|w| w.began < at.1)) {
                life.absent.push(at);
            }
        }
    }

    /// Narrows the times at which a life began and ended, and checks that neither interval is empty.
    fn bound(&mut self, life: &mut Life<'a>) {
        let (document, key) = (life.document, life.document.key);
        let seen = life.present.iter().map(|(_, ended)| *ended).min();
        match (life.initial, life.insert) {
            (Some(_), _) => life.begins = Interval { after: 0, until: 0 },
            (None, Some(write)) if write.outcome != Outcome::Failed => {
                life.begins = Interval { after: write.began, until: self.visible(write).min(seen.unwrap_or(NEVER)) };
                if let Some(seen) = seen.filter(|&seen| seen < write.began) {
                    let message = format!("{document:?} was seen at {seen}, before its insertion at {}", write.began);
                    self.report(Kind::Phantom, key, message);
                }
            }
            (None, insert) => {
                if let Some(seen) = seen {
                    let why = insert.map_or("nobody inserted it".to_owned(), |w| format!("write {} failed", w.id));
                    self.report(Kind::Phantom, key, format!("{document:?} was seen at {seen}, but {why}"));
                }
                return;
            }
        }
        let possible: Vec<&Write> =
            life.deletes.iter().copied().filter(|write| write.outcome != Outcome::Failed).collect();
        let mut done = possible.iter().filter(|write| matches!(write.outcome, Outcome::Done | Outcome::Decided));
        let first = done.next();
        if let (Some(first), Some(second)) = (first, done.next()) {
            let message = format!("writes {} and {} both deleted {document:?}", first.id, second.id);
            self.report(Kind::Duplicate, key, message);
        }
        let last_seen = life.present.iter().map(|(began, _)| *began).max().unwrap_or(0);
        if let Some(earliest) = possible.iter().map(|write| write.began).min() {
            life.ends.after = earliest.max(last_seen).max(life.begins.after);
        }
        life.ends.until = first.map_or(NEVER, |write| self.visible(write));
        if last_seen > life.ends.until {
            let message = format!("{document:?} was deleted by {}, and seen again after {last_seen}", life.ends.until);
            self.report(Kind::Resurrected, key, message);
            return;
        }
        // A read that missed it after it had begun shows that it had ended.
        for &(began, ended) in life.absent.iter().filter(|(began, _)| *began > life.begins.until) {
            let deleting = possible.iter().any(|write| write.began < ended);
            let since = life.begins.until;
            if !deleting {
                let kind = if life.present.iter().any(|(began, _)| *began > ended) { Kind::Stale } else { Kind::Lost };
                let message = format!(
                    "{document:?} has been there since {since} and nobody had deleted it, but at {began}–{ended} it was \
                     not found"
                );
                self.report(kind, key, message);
                return;
            }
            if let Some(later) = life.present.iter().find(|(began, _)| *began > ended) {
                let message = format!(
                    "{document:?}, there since {since}, was not found at {began}–{ended}, but again at {}–{}",
                    later.0, later.1
                );
                self.report(Kind::Resurrected, key, message);
                return;
            }
            life.ends.until = life.ends.until.min(ended);
        }
    }

    /// A key has one life at a time: each must have ended when the next one began.
    fn order_lives(&mut self, lives: &mut BTreeMap<Document, Life<'a>>) {
        let keys: BTreeSet<Key> = lives.keys().map(|document| document.key).collect();
        for key in keys {
            let of_key: Vec<Document> = lives.range(all_of(key)).map(|(document, _)| *document).collect();
            for pair in of_key.windows(2) {
                let next = lives[&pair[1]].begins;
                let life = lives.get_mut(&pair[0]).expect("it was there a moment ago");
                if next.until == NEVER || life.begins.until >= next.after {
                    continue;
                }
                life.ends.until = life.ends.until.min(next.until);
                if life.ends.after > next.until {
                    let message = format!(
                        "{:?} began at {next:?}, while {:?} was still there: {:?}",
                        pair[1], pair[0], life.ends
                    );
                    self.report(Kind::Duplicate, key, message);
                }
            }
        }
    }

    /// Checks every list of writes that was read of a document.
    fn check_list(&mut self, life: &Life<'a>) {
        let (document, key) = (life.document, life.document.key);
        let longest = life.longest();
        let (base, base_sum) = life.initial.map_or((&[][..], 0), |found| (&found.ops[..], found.n));
        // The writes that may be in the list, and what they add.
        let mut appends: HashMap<u64, (&Write, i64)> =
            life.appends.iter().map(|(write, delta)| (write.id, (*write, *delta))).collect();
        let many = self.many.iter().filter(|(_, range, _)| range.contains(key));
        appends.extend(many.map(|(write, _, delta)| (write.id, (*write, *delta))));
        let mut position: HashMap<u64, usize> = HashMap::new();
        let mut sums = Vec::with_capacity(longest.len() + 1);
        let mut sum = 0;
        sums.push(0);
        for (place, id) in longest.iter().enumerate() {
            if position.insert(*id, place).is_some() {
                self.report(Kind::Duplicate, key, format!("write {id} changed {document:?} twice: {longest:?}"));
            }
            if place < base.len() {
                sum = if place + 1 == base.len() { base_sum } else { 0 };
            } else {
                match appends.get(id) {
                    Some((write, delta)) if write.outcome != Outcome::Failed => sum += delta,
                    found => {
                        let why = found.map_or("is not known".to_owned(), |(w, _)| format!("failed at {}", w.ended));
                        self.report(Kind::Phantom, key, format!("write {id}, which {why}, changed {document:?}"));
                    }
                }
            }
            sums.push(sum);
        }
        // Each read has a prefix of the list, with every acknowledged write and none that was not yet sent.
        let mut reads = life.reads.clone();
        reads.sort_by_key(|(began, _, _)| *began);
        let sent_last: Vec<Tick> = running_max(longest.iter().map(|id| appends.get(id).map_or(0, |(w, _)| w.began)));
        let mut acknowledged: Vec<(Tick, u64)> = life
            .appends
            .iter()
            .map(|(write, _)| (self.visible(write), write.id))
            .filter(|(visible, _)| *visible != NEVER)
            .collect();
        acknowledged.sort_unstable();
        let mut by_end: Vec<(Tick, usize)> = reads.iter().map(|(_, ended, found)| (*ended, found.ops.len())).collect();
        by_end.sort_unstable();
        let (mut due, mut seen, mut due_next, mut seen_next) = ((base.len(), 0), 0, 0, 0);
        for (began, ended, found) in reads {
            let length = found.ops.len();
            if !longest.starts_with(&found.ops) || length < base.len() {
                let message = format!("{:?} and {longest:?} were both seen of {document:?}", found.ops);
                self.report(Kind::Order, key, message);
                continue;
            }
            if length > base.len() && found.n != sums[length] || length == base.len() && found.n != base_sum {
                let message = format!(
                    "the sum of {document:?} at {began}–{ended} was {} instead of {}: {:?}",
                    found.n, sums[length], found.ops
                );
                self.report(Kind::Duplicate, key, message);
            }
            if length > 0 && sent_last[length - 1] > ended {
                let message =
                    format!("{document:?} at {began}–{ended} had a write that was sent later: {:?}", found.ops);
                self.report(Kind::Phantom, key, message);
            }
            while let Some(&(_, id)) = acknowledged.get(due_next).filter(|(visible, _)| *visible < began) {
                due = due.max((position.get(&id).map_or(usize::MAX, |place| place + 1), id));
                due_next += 1;
            }
            if length < due.0 {
                let kind = if due.0 == usize::MAX { Kind::Lost } else { Kind::Stale };
                let message = format!(
                    "write {} to {document:?} was acknowledged, but the read at {began}–{ended} found {:?}",
                    due.1, found.ops
                );
                self.report(kind, key, message);
            }
            while let Some(&(_, length)) = by_end.get(seen_next).filter(|(end, _)| *end < began) {
                seen = seen.max(length);
                seen_next += 1;
            }
            if length < seen {
                let message = format!(
                    "of {document:?} {seen} writes had been seen, but the read at {began}–{ended} found {length}"
                );
                self.report(Kind::Stale, key, message);
            }
        }
        // Of two writes that do not overlap in time the earlier one comes first.
        for (place, id) in longest.iter().enumerate().skip(1) {
            let ended = appends.get(id).map_or(NEVER, |(write, _)| self.visible(write));
            if ended < sent_last[place - 1] {
                let message = format!(
                    "write {id} to {document:?} was acknowledged at {ended}, but comes after a later one: {longest:?}"
                );
                self.report(Kind::Order, key, message);
            }
        }
    }

    /// Checks that a write to a range is on every document that was there throughout.
    fn check_many(&mut self, lives: &BTreeMap<Document, Life<'a>>) {
        for (write, range, _) in self.many.clone() {
            let visible = self.visible(write);
            if visible == NEVER {
                continue;
            }
            for (document, life) in lives.range(all_in(&range)) {
                if !life.surely_within(write.began, write.ended) {
                    continue;
                }
                let without =
                    life.reads.iter().find(|(began, _, found)| *began > visible && !found.ops.contains(&write.id));
                if let Some((began, ended, found)) = without {
                    let later = life.longest().contains(&write.id);
                    let message = format!(
                        "write {} to {range:?} was acknowledged, but {document:?} at {began}–{ended} was {:?}",
                        write.id, found.ops
                    );
                    self.report(if later { Kind::Stale } else { Kind::Lost }, document.key, message);
                }
            }
        }
    }

    fn check_counts(&mut self, lives: &BTreeMap<Document, Life<'a>>) {
        for observation in &self.history.observations {
            let Observed::Count(range, count) = &observation.observed else { continue };
            let (began, ended) = (observation.began, observation.ended);
            let (mut least, mut most) = (0, 0);
            let mut last: Option<Key> = None;
            for (document, life) in lives.range(all_in(range)) {
                // A count may include either of two lives of a key, but not both.
                if life.surely_within(began, ended) {
                    least += 1;
                }
                if life.perhaps_within(began, ended) && last != Some(document.key) {
                    most += 1;
                    last = Some(document.key);
                }
            }
            if !(least..=most).contains(count) {
                let message = format!("a count of {range:?} at {began}–{ended} was {count}, not {least} to {most}");
                self.report(Kind::Count, None, message);
            }
        }
    }

    /// Finds transactions of which one write surely took effect and another one surely did not.
    fn check_transactions(&mut self, lives: &BTreeMap<Document, Life<'a>>) {
        let Some(settled) = self.history.settled else { return };
        for write in self.history.writes.iter().filter(|write| write.outcome == Outcome::Maybe) {
            let (mut effects, mut gaps) = (Vec::new(), Vec::new());
            for action in &write.actions {
                let effect = match action {
                    Action::AppendMany(range, _) => {
                        for (_, life) in lives.range(all_in(range)) {
                            let there = life.surely_within(write.began, settled);
                            note(
                                appended(life, write, settled).filter(|effect| *effect || there),
                                life,
                                &mut effects,
                                &mut gaps,
                            );
                        }
                        continue;
                    }
                    Action::Append(document, _) => {
                        lives.get(document).map(|life| (appended(life, write, settled), life))
                    }
                    Action::Insert(document) => lives.get(document).map(|life| (inserted(life, settled), life)),
                    Action::Delete(document) => lives.get(document).map(|life| (deleted(life, write, settled), life)),
                };
                if let Some((effect, life)) = effect {
                    note(effect, life, &mut effects, &mut gaps);
                }
            }
            if !effects.is_empty() && !gaps.is_empty() {
                let message = format!("write {} took effect on {effects:?}, but not on {gaps:?}", write.id);
                self.report(Kind::Torn, effects[0].key, message);
            }
        }
    }
}

fn note(effect: Option<bool>, life: &Life<'_>, effects: &mut Vec<Document>, gaps: &mut Vec<Document>) {
    match effect {
        Some(true) => effects.push(life.document),
        Some(false) => gaps.push(life.document),
        None => {}
    }
}

/// Whether a write is in a document's list; None if that is unknown.
fn appended(life: &Life<'_>, write: &Write, settled: Tick) -> Option<bool> {
    if life.longest().contains(&write.id) {
        return Some(true);
    }
    life.reads.iter().any(|(began, _, _)| *began > settled).then_some(false)
}

/// Whether a life began; None if that is unknown.
fn inserted(life: &Life<'_>, settled: Tick) -> Option<bool> {
    if !life.present.is_empty() {
        return Some(true);
    }
    let deleted = life.deletes.iter().any(|write| write.outcome != Outcome::Failed);
    (!deleted && life.absent.iter().any(|(began, _)| *began > settled)).then_some(false)
}

/// Whether a write ended a life; None if that is unknown.
fn deleted(life: &Life<'_>, write: &Write, settled: Tick) -> Option<bool> {
    if life.present.iter().any(|(began, _)| *began > settled) {
        return Some(false);
    }
    let alone = life.deletes.iter().all(|other| other.outcome == Outcome::Failed || other.id == write.id);
    let ended = life.begins.until != NEVER && life.absent.iter().any(|(began, _)| *began > life.begins.until);
    (alone && ended).then_some(true)
}

fn all_of(key: Key) -> std::ops::RangeInclusive<Document> {
    Document { key, life: 0 }..=Document { key, life: u32::MAX }
}

/// All documents of a range that is not empty.
fn all_in(range: &Range) -> std::ops::RangeInclusive<Document> {
    let key = |k| Key { collection: range.collection, k };
    Document { key: key(range.from), life: 0 }..=Document { key: key(range.to.saturating_sub(1)), life: u32::MAX }
}

fn running_max(values: impl Iterator<Item = Tick>) -> Vec<Tick> {
    values
        .scan(0, |most, value| {
            *most = value.max(*most);
            Some(*most)
        })
        .collect()
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
