//! Checks the model of a change of a collection's layout in every order of events; and that each mechanism, switched off, violates a
//! property.

use docshard_model::resharding::{Mechanism, Protocol, Reading};
use stateright::{Checker, Model};

const WRITES: &str = "no committed write is lost or done twice";
const ANSWERS: &str = "no client gets a wrong answer";
const LEFTOVERS: &str = "no leftovers remain";

/// Checks all states: no property is violated, and both outcomes occur.
fn holds(what: &str, protocol: &Protocol) {
    let checker = protocol.clone().checker().threads(2).spawn_bfs().join();
    println!("{what}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Checks that the property is violated without the mechanism, and not with it.
fn breaks(off: Mechanism, property: &'static str, protocol: Protocol) {
    holds(&format!("with {off:?}"), &protocol);
    let protocol = Protocol { off: vec![off], ..protocol };
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery(property).is_some(), "without {off:?}: \"{property}\" is never violated");
}

fn base() -> Protocol {
    Protocol { abort: true, ..Protocol::default() }
}

#[test]
fn two_writers_and_a_crash() {
    for writers in [[&[0][..], &[1]], [&[0], &[0]], [&[0, 2], &[1]], [&[2, 0], &[2]]] {
        holds(&format!("{writers:?}, one crash"), &Protocol { writers: writers.to_vec(), crashes: 1, ..base() });
    }
}

#[test]
fn a_writer_and_a_reader_and_a_crash() {
    for reading in [Reading::Statement, Reading::OldSnapshot] {
        for documents in [&[0][..], &[2], &[0, 2]] {
            let protocol = Protocol { writers: vec![documents], reader: Some(reading), crashes: 1, ..base() };
            holds(&format!("{documents:?}, {reading:?}, one crash"), &protocol);
        }
    }
}

#[test]
fn crashes_of_the_recovery_too() {
    holds("four crashes", &Protocol { writers: vec![&[0]], crashes: 4, ..base() });
}

#[test]
fn a_restored_router() {
    holds("restored", &Protocol { writers: vec![&[0], &[2]], restore: true, ..base() });
    holds("restored, a crash", &Protocol { writers: vec![&[0, 2]], restore: true, crashes: 1, ..base() });
}

#[test]
fn without_the_capture() {
    breaks(Mechanism::Capture, WRITES, Protocol { writers: vec![&[0]], ..base() });
}

#[test]
fn without_waiting_for_writers() {
    breaks(Mechanism::AwaitWriters, WRITES, Protocol { writers: vec![&[0]], ..base() });
}

#[test]
fn without_the_exact_log() {
    breaks(Mechanism::ExactLog, WRITES, Protocol { writers: vec![&[0], &[1]], ..base() });
}

#[test]
fn without_excluding_writers() {
    breaks(Mechanism::ExcludeWriters, WRITES, Protocol { writers: vec![&[0]], ..base() });
}

#[test]
fn without_the_last_round() {
    breaks(Mechanism::LastRound, WRITES, Protocol { writers: vec![&[0]], ..base() });
}

#[test]
fn without_writing_to_the_disks() {
    breaks(Mechanism::Flush, WRITES, Protocol { crashes: 1, ..base() });
}

#[test]
fn without_preparing_first() {
    breaks(Mechanism::PrepareFirst, WRITES, Protocol { crashes: 1, ..base() });
}

#[test]
fn without_the_locks_of_the_dropped_tables() {
    let protocol = Protocol { writers: vec![&[2]], reader: Some(Reading::Statement), ..base() };
    breaks(Mechanism::LockUntilCommit, ANSWERS, protocol);
}

#[test]
fn without_the_version_in_the_snapshot() {
    let protocol = Protocol { reader: Some(Reading::OldSnapshot), ..base() };
    breaks(Mechanism::VersionCheck, ANSWERS, protocol);
}

#[test]
fn without_compare_and_set() {
    breaks(Mechanism::CompareAndSet, "an aborted change leaves the old layout", base());
}

#[test]
fn without_ending_sessions() {
    breaks(Mechanism::EndSessions, LEFTOVERS, Protocol { crashes: 1, ..base() });
}

#[test]
fn without_the_decision_that_shards_show() {
    breaks(Mechanism::ShardsShowDecision, WRITES, Protocol { restore: true, ..base() });
    breaks(Mechanism::OneShardShows, WRITES, Protocol { restore: true, ..base() });
    breaks(Mechanism::LeaveParts, ANSWERS, Protocol { restore: true, ..base() });
    breaks(Mechanism::AwaitDecision, WRITES, Protocol { writers: vec![&[0]], restore: true, ..base() });
}
