//! Histories made by hand: each bad one is rejected for its own reason, and no good one is.

use super::*;
use crate::history::{Observation, Write};

/// A builder of histories with given times.
#[derive(Default)]
struct Builder(History);

const EVERYTHING: Range = Range { collection: 0, from: 0, to: 100 };

fn document(k: u32) -> Document {
    Document { key: Key { collection: 0, k }, life: 1 }
}

fn insert(k: u32) -> Action {
    Action::Insert(document(k))
}

fn append(k: u32) -> Action {
    Action::Append(document(k), 1)
}

fn delete(k: u32) -> Action {
    Action::Delete(document(k))
}

impl Builder {
    fn write(mut self, id: u64, began: Tick, ended: Tick, outcome: Outcome, actions: &[Action]) -> Self {
        self.0.writes.push(Write { id, client: 0, began, ended, outcome, actions: actions.to_vec() });
        self
    }

    fn acknowledged(self, id: u64, began: Tick, ended: Tick, actions: &[Action]) -> Self {
        self.write(id, began, ended, Outcome::Done, actions)
    }

    fn maybe(self, id: u64, began: Tick, actions: &[Action]) -> Self {
        self.write(id, began, NEVER, Outcome::Maybe, actions)
    }

    fn observe(mut self, began: Tick, ended: Tick, observed: Observed) -> Self {
        self.0.observations.push(Observation { client: 1, began, ended, observed });
        self
    }

    fn found(self, began: Tick, ended: Tick, k: u32, ops: &[u64]) -> Self {
        let found = DocumentState { life: 1, ops: ops.to_vec(), n: ops.len() as i64 };
        self.observe(began, ended, Observed::Read(document(k).key, Some(found)))
    }

    fn missed(self, began: Tick, ended: Tick, k: u32) -> Self {
        self.observe(began, ended, Observed::Read(document(k).key, None))
    }

    fn count(self, began: Tick, ended: Tick, count: u64) -> Self {
        self.observe(began, ended, Observed::Count(EVERYTHING, count))
    }

    fn scan(self, began: Tick, ended: Tick, keys: &[u32]) -> Self {
        self.observe(began, ended, Observed::Scan(EVERYTHING, keys.iter().map(|&k| document(k)).collect()))
    }

    fn settled(mut self, at: Tick) -> Self {
        self.0.settled = Some(at);
        self
    }

    #[track_caller]
    fn good(self) {
        let violations = check(&self.0);
        assert!(violations.is_empty(), "{violations:#?}");
    }

    #[track_caller]
    fn bad(self, kind: Kind) {
        let violations = check(&self.0);
        assert!(violations.iter().any(|violation| violation.kind == kind), "not {kind:?} but {violations:#?}");
    }
}

/// One document, inserted at 1 to 2.
fn one() -> Builder {
    Builder::default().acknowledged(1, 1, 2, &[insert(1)])
}

#[test]
fn an_ordinary_history_is_good() {
    one()
        .acknowledged(2, 3, 6, &[append(1)])
        .found(4, 5, 1, &[])
        .found(7, 8, 1, &[2])
        .count(9, 10, 1)
        .scan(11, 12, &[1])
        .acknowledged(3, 13, 16, &[delete(1)])
        .count(14, 15, 1)
        .count(17, 18, 0)
        .missed(19, 20, 1)
        .good();
}

#[test]
fn a_lost_insert() {
    one().missed(3, 4, 1).bad(Kind::Lost);
    one().scan(3, 4, &[]).bad(Kind::Lost);
    one().observe(3, 4, Observed::Absent(document(1))).bad(Kind::Lost);
    one().missed(3, 4, 1).found(5, 6, 1, &[]).bad(Kind::Stale);
}

#[test]
fn a_lost_append() {
    one().acknowledged(2, 3, 4, &[append(1)]).found(5, 6, 1, &[]).bad(Kind::Lost);
    // A later write does not hide the loss.
    one().acknowledged(2, 3, 4, &[append(1)]).acknowledged(3, 5, 6, &[append(1)]).found(7, 8, 1, &[3]).bad(Kind::Lost);
    one().acknowledged(2, 3, 4, &[Action::AppendMany(EVERYTHING, 1)]).found(5, 6, 1, &[]).bad(Kind::Lost);
}

#[test]
fn a_write_that_took_effect_twice() {
    one().acknowledged(2, 3, 4, &[append(1)]).found(5, 6, 1, &[2, 2]).bad(Kind::Duplicate);
    // The list and the sum were changed by one update: they must agree.
    let found = DocumentState { life: 1, ops: vec![2], n: 2 };
    one()
        .acknowledged(2, 3, 4, &[append(1)])
        .observe(5, 6, Observed::Read(document(1).key, Some(found)))
        .bad(Kind::Duplicate);
    one().scan(3, 4, &[1, 1]).bad(Kind::Duplicate);
    one().acknowledged(2, 3, 4, &[delete(1)]).acknowledged(3, 5, 6, &[delete(1)]).bad(Kind::Duplicate);
}

#[test]
fn a_document_in_two_lives_at_once() {
    let second = Document { life: 2, ..document(1) };
    one().acknowledged(2, 3, 4, &[Action::Insert(second)]).bad(Kind::Duplicate);
    one().acknowledged(2, 3, 4, &[delete(1)]).acknowledged(3, 5, 6, &[Action::Insert(second)]).good();
    let seen = Observed::Scan(EVERYTHING, vec![document(1), second]);
    one()
        .acknowledged(2, 3, 6, &[delete(1)])
        .acknowledged(3, 4, 8, &[Action::Insert(second)])
        .observe(5, 7, seen)
        .bad(Kind::Duplicate);
}

#[test]
fn a_stale_read() {
    one().acknowledged(2, 3, 4, &[append(1)]).found(5, 6, 1, &[]).found(7, 8, 1, &[2]).bad(Kind::Stale);
    // What one read has, a later read has too, even if it was never acknowledged.
    one().maybe(2, 3, &[append(1)]).found(4, 5, 1, &[2]).found(6, 7, 1, &[]).bad(Kind::Stale);
    one().maybe(2, 3, &[append(1)]).found(4, 5, 1, &[]).found(6, 7, 1, &[2]).good();
    one()
        .acknowledged(2, 3, 4, &[Action::AppendMany(EVERYTHING, 1)])
        .found(5, 6, 1, &[])
        .found(7, 8, 1, &[2])
        .bad(Kind::Stale);
    // While the write is in progress both answers are right.
    one().acknowledged(2, 3, 8, &[append(1)]).found(4, 5, 1, &[]).found(6, 7, 1, &[2]).good();
    one().acknowledged(2, 3, 8, &[append(1)]).found(4, 7, 1, &[2]).found(5, 6, 1, &[]).good();
}

#[test]
fn a_wrong_count() {
    one().count(3, 4, 0).bad(Kind::Count);
    one().count(3, 4, 2).bad(Kind::Count);
    let two = || one().acknowledged(2, 3, 6, &[insert(2)]);
    two().count(4, 5, 1).good();
    two().count(4, 5, 2).good();
    two().count(4, 5, 0).bad(Kind::Count);
    two().count(7, 8, 1).bad(Kind::Count);
    // A count may include an unacknowledged insert; it must once a read has had it.
    one().maybe(2, 3, &[insert(2)]).count(4, 5, 1).count(6, 7, 2).good();
    one().maybe(2, 3, &[insert(2)]).found(4, 5, 2, &[]).count(6, 7, 1).bad(Kind::Count);
    // An unacknowledged deletion cannot have happened before the document was read.
    one().maybe(2, 3, &[delete(1)]).count(4, 5, 0).good();
    one().maybe(2, 3, &[delete(1)]).count(4, 5, 0).found(6, 7, 1, &[]).bad(Kind::Count);
    // A failed one never counts.
    one().write(2, 3, 4, Outcome::Failed, &[insert(2)]).count(5, 6, 2).bad(Kind::Count);
    // A count includes at most one life of a key that is deleted and inserted again.
    let again = Action::Insert(Document { life: 2, ..document(1) });
    one().acknowledged(2, 3, 4, &[delete(1)]).acknowledged(3, 5, 9, &[again]).count(6, 8, 1).good();
    one().acknowledged(2, 3, 4, &[delete(1)]).maybe(3, 5, &[again]).count(6, 8, 2).bad(Kind::Count);
}

#[test]
fn a_resurrected_document() {
    one().acknowledged(2, 3, 4, &[delete(1)]).found(5, 6, 1, &[]).bad(Kind::Resurrected);
    one().acknowledged(2, 3, 4, &[delete(1)]).scan(5, 6, &[1]).bad(Kind::Resurrected);
    // A read without the document shows that the unacknowledged deletion took effect.
    one().maybe(2, 3, &[delete(1)]).missed(4, 5, 1).found(6, 7, 1, &[]).bad(Kind::Resurrected);
    one().maybe(2, 3, &[delete(1)]).found(4, 5, 1, &[]).missed(6, 7, 1).good();
    one().write(2, 3, 4, Outcome::Failed, &[delete(1)]).missed(5, 6, 1).bad(Kind::Lost);
    one().write(2, 3, 4, Outcome::Failed, &[delete(1)]).found(5, 6, 1, &[]).good();
}

#[test]
fn what_nobody_wrote() {
    one().found(3, 4, 2, &[]).bad(Kind::Phantom);
    one().found(3, 4, 1, &[9]).bad(Kind::Phantom);
    one().write(2, 3, 4, Outcome::Failed, &[append(1)]).found(5, 6, 1, &[2]).bad(Kind::Phantom);
    one().write(2, 3, 4, Outcome::Failed, &[insert(2)]).found(5, 6, 2, &[]).bad(Kind::Phantom);
    // The write was not yet sent: the read had uncommitted data.
    one().found(3, 4, 1, &[2]).acknowledged(2, 5, 6, &[append(1)]).bad(Kind::Phantom);
    Builder::default().found(1, 2, 1, &[]).acknowledged(1, 3, 4, &[insert(1)]).bad(Kind::Phantom);
}

#[test]
fn writes_in_an_impossible_order() {
    let two = || one().acknowledged(2, 3, 4, &[append(1)]).acknowledged(3, 5, 6, &[append(1)]);
    two().found(7, 8, 1, &[2, 3]).good();
    two().found(7, 8, 1, &[3, 2]).bad(Kind::Order);
    let both = || one().acknowledged(2, 3, 6, &[append(1)]).acknowledged(3, 4, 5, &[append(1)]);
    both().found(7, 8, 1, &[3, 2]).good();
    both().found(7, 8, 1, &[2, 3]).found(9, 10, 1, &[3, 2]).bad(Kind::Order);
}

#[test]
fn half_a_transaction() {
    let two = || one().acknowledged(2, 3, 4, &[insert(2)]).maybe(3, 5, &[append(1), append(2)]).settled(6);
    two().found(7, 8, 1, &[3]).found(9, 10, 2, &[3]).good();
    two().found(7, 8, 1, &[]).found(9, 10, 2, &[]).good();
    two().found(7, 8, 1, &[3]).found(9, 10, 2, &[]).bad(Kind::Torn);
    // Before the history has settled, the other write may still take effect.
    let mut unsettled = two();
    unsettled.0.settled = None;
    unsettled.found(7, 8, 1, &[3]).found(9, 10, 2, &[]).good();
    let mixed = || one().maybe(2, 3, &[delete(1), insert(2)]).settled(4);
    mixed().missed(5, 6, 1).found(7, 8, 2, &[]).good();
    mixed().found(5, 6, 1, &[]).missed(7, 8, 2).good();
    mixed().missed(5, 6, 1).missed(7, 8, 2).bad(Kind::Torn);
    mixed().found(5, 6, 1, &[]).found(7, 8, 2, &[]).bad(Kind::Torn);
    let many = || {
        let two = one().acknowledged(2, 3, 4, &[insert(2)]);
        two.maybe(3, 5, &[Action::AppendMany(EVERYTHING, 1)]).settled(6)
    };
    many().found(7, 8, 1, &[3]).found(9, 10, 2, &[3]).good();
    many().found(7, 8, 1, &[3]).found(9, 10, 2, &[]).bad(Kind::Torn);
}

#[test]
fn a_decision_that_is_still_under_way() {
    let decided = || one().write(2, 3, 4, Outcome::Decided, &[append(1)]);
    decided().found(5, 6, 1, &[]).found(7, 8, 1, &[2]).good();
    decided().settled(5).found(6, 7, 1, &[]).bad(Kind::Lost);
    decided().settled(5).found(6, 7, 1, &[2]).good();
    let inserted = || Builder::default().write(1, 1, 2, Outcome::Decided, &[insert(1)]);
    inserted().missed(3, 4, 1).settled(5).found(6, 7, 1, &[]).good();
    inserted().missed(3, 4, 1).settled(5).missed(6, 7, 1).bad(Kind::Lost);
    let deleted = || one().write(2, 3, 4, Outcome::Decided, &[delete(1)]);
    deleted().found(5, 6, 1, &[]).settled(7).missed(8, 9, 1).good();
    deleted().settled(7).found(8, 9, 1, &[]).bad(Kind::Resurrected);
}

#[test]
fn a_history_goes_on_where_another_ended() {
    let begun = || {
        let mut made = Builder::default();
        made.0.initial.insert(document(1).key, DocumentState { life: 1, ops: vec![7], n: 5 });
        made
    };
    let found = |ops: &[u64], n| Observed::Read(document(1).key, Some(DocumentState { life: 1, ops: ops.to_vec(), n }));
    begun().observe(1, 2, found(&[7], 5)).count(3, 4, 1).good();
    begun().acknowledged(8, 1, 2, &[append(1)]).observe(3, 4, found(&[7, 8], 6)).good();
    begun().observe(1, 2, found(&[7], 6)).bad(Kind::Duplicate);
    begun().observe(1, 2, found(&[], 5)).bad(Kind::Order);
    begun().missed(1, 2, 1).bad(Kind::Lost);
    begun().count(1, 2, 0).bad(Kind::Count);
}

#[test]
fn times_of_a_recorder_agree_with_its_order() {
    let recorder = crate::history::Recorder::default();
    let place = recorder.begin(recorder.number(), 0, vec![insert(1)]);
    let began = recorder.tick();
    recorder.observe(1, began, Observed::Read(document(1).key, None));
    assert!(check(&recorder.history()).is_empty(), "a write under way may have no effect yet");
    recorder.end(place, Outcome::Done, None);
    let began = recorder.tick();
    recorder.observe(1, began, Observed::Read(document(1).key, None));
    let violations = check(&recorder.history());
    assert_eq!(violations.first().map(|violation| violation.kind), Some(Kind::Lost), "{violations:?}");
    let tail = recorder.history().tail(10, Some(document(1).key));
    assert_eq!(tail.lines().count(), 3, "{tail}");
}
