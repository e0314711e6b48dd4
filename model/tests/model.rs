//! Checks the model of a migration in every order of events; and that each mechanism, switched off, violates a property.

use docshard_model::world::Op::{Delete, Insert, Update};
use docshard_model::{Mechanism, Protocol};
use stateright::{Checker, Model};

/// Checks all states: no property is violated, and both outcomes occur.
fn holds(what: &str, protocol: &Protocol) {
    let checker = protocol.clone().checker().threads(2).spawn_bfs().join();
    println!("{what}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

fn resolves(what: &str, protocol: &Protocol) {
    let (states, stuck) = protocol.stuck();
    println!("{what}: {states} states, each with a way to its end");
    assert!(stuck.is_none(), "{what}: no way out of {stuck:#?}");
}

#[test]
fn three_writers_and_a_crash() {
    for (writers, present) in
        [([Update, Update, Insert], false), ([Update, Insert, Update], false), ([Update, Update, Delete], true)]
    {
        let protocol = Protocol { writers: writers.to_vec(), present, crashes: 1, ..Protocol::default() };
        holds(&format!("{writers:?}, one crash"), &protocol);
    }
}

#[test]
fn two_writers_and_two_crashes() {
    for (writers, present) in [([Update, Insert], false), ([Update, Update], false), ([Update, Delete], true)] {
        let protocol = Protocol { writers: writers.to_vec(), present, crashes: 2, ..Protocol::default() };
        holds(&format!("{writers:?}, two crashes"), &protocol);
    }
}

#[test]
fn a_writer_and_a_reader_and_two_crashes() {
    for scatter in [false, true] {
        for (op, present) in [(Update, false), (Insert, false), (Delete, true)] {
            let protocol =
                Protocol { writers: vec![op], reader: true, scatter, present, crashes: 2, ..Protocol::default() };
            holds(&format!("{op:?}, scatter {scatter}, two crashes"), &protocol);
        }
    }
}

#[test]
fn two_writers_and_a_scatter_and_a_crash() {
    for (writers, present) in [([Update, Insert], false), ([Update, Delete], true)] {
        let protocol = Protocol {
            writers: writers.to_vec(),
            reader: true,
            scatter: true,
            present,
            crashes: 1,
            ..Protocol::default()
        };
        holds(&format!("{writers:?}, scatter, one crash"), &protocol);
    }
}

/// Another chunk moves between two other shards at the same time, and a scatter reads all four with one map.
#[test]
fn a_second_move_under_a_scatter() {
    for (writers, present, crashes) in
        [(vec![Update], false, 1), (vec![Insert], false, 0), (vec![Delete], true, 0), (vec![], false, 2)]
    {
        let what = format!("{writers:?}, a second move, scatter, {crashes} crashes");
        let protocol =
            Protocol { writers, reader: true, scatter: true, second: true, present, crashes, ..Protocol::default() };
        holds(&what, &protocol);
    }
}

#[test]
fn crashes_of_the_recovery_too() {
    let protocol = Protocol { writers: vec![Update], crashes: 4, ..Protocol::default() };
    holds("Update, four crashes", &protocol);
}

#[test]
fn a_coordinator_that_was_taken_for_dead() {
    for scatter in [false, true] {
        for op in [Update, Insert] {
            let protocol = Protocol {
                writers: vec![op],
                reader: true,
                scatter,
                crashes: 2,
                take_over: true,
                ..Protocol::default()
            };
            holds(&format!("{op:?}, scatter {scatter}, a coordinator that comes back, two crashes"), &protocol);
        }
    }
    let protocol = Protocol { writers: vec![Update, Insert], crashes: 1, take_over: true, ..Protocol::default() };
    holds("two writers, a coordinator that comes back, a crash", &protocol);
}

/// Without clients, as their last writes may be lost.
#[test]
fn failovers_to_asynchronous_standbys() {
    for (crashes, take_over) in [(0, false), (1, false), (0, true)] {
        let protocol = Protocol { failovers: 2, crashes, take_over, present: true, ..Protocol::default() };
        holds(&format!("two failovers, {crashes} crashes, taken over {take_over}"), &protocol);
        resolves("two failovers", &protocol);
    }
}

/// A router with an old catalog takes over, in which the move runs.
#[test]
fn restores_of_an_old_catalog() {
    for (writers, reader, present, crashes) in [
        (vec![Update], true, false, 0),
        (vec![Update, Insert], false, false, 0),
        (vec![Update, Delete], false, true, 0),
        (vec![Insert], false, false, 1),
    ] {
        let what = format!("{writers:?}, reader {reader}, {crashes} crashes, a restored catalog");
        let protocol = Protocol { writers, reader, present, crashes, restores: 1, ..Protocol::default() };
        holds(&what, &protocol);
    }
    let protocol = Protocol { writers: vec![Update], restores: 2, ..Protocol::default() };
    holds("Update, two restored catalogs", &protocol);
}

/// The router fails over to a standby that lacks the decision.
#[test]
fn failovers_of_the_router_to_a_standby_without_the_decision() {
    for (writers, reader, present, crashes) in [
        (vec![Update], true, false, 0),
        (vec![Update, Insert], false, false, 0),
        (vec![Update, Delete], false, true, 0),
        (vec![Insert], false, false, 1),
    ] {
        let what = format!("{writers:?}, reader {reader}, {crashes} crashes, a failover of the router");
        let protocol =
            Protocol { writers, reader, present, crashes, restores: 1, promotes: true, ..Protocol::default() };
        holds(&what, &protocol);
    }
    let protocol = Protocol { writers: vec![Update], restores: 1, promotes: true, ..Protocol::default() };
    resolves("a failover of the router", &protocol);
}

#[test]
fn every_move_resolves() {
    for (what, protocol) in [
        ("two writers", Protocol { writers: vec![Update, Insert], ..Protocol::default() }),
        ("a crash", Protocol { writers: vec![Update], crashes: 1, reader: true, ..Protocol::default() }),
        ("two crashes", Protocol { writers: vec![Update], crashes: 2, ..Protocol::default() }),
        ("a scatter", Protocol { reader: true, scatter: true, crashes: 1, ..Protocol::default() }),
        ("a second move", Protocol { reader: true, scatter: true, second: true, ..Protocol::default() }),
        ("a coordinator that comes back", Protocol { crashes: 1, take_over: true, ..Protocol::default() }),
        ("a restored catalog", Protocol { writers: vec![Update], crashes: 1, restores: 1, ..Protocol::default() }),
    ] {
        resolves(what, &protocol);
    }
}

/// Checks that without these mechanisms the property is violated in some order.
fn breaks(off: &[Mechanism], property: &'static str, protocol: Protocol) {
    let protocol = Protocol { off: off.to_vec(), ..protocol };
    let checker = protocol.clone().checker().threads(2).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("nothing breaks without {off:?}"));
    println!("without {off:?}: {property}:");
    for event in path.into_actions() {
        println!("    {event:?}");
    }
}

const WRITES: &str = "no acknowledged write is lost or done twice";
const ANSWERS: &str = "no client gets a wrong answer";
const LEFTOVERS: &str = "no leftovers remain";
const TOGETHER: &str = "rows and version change together";

#[test]
fn without_the_version_check() {
    let protocol = Protocol { writers: vec![Update], reader: true, ..Protocol::default() };
    breaks(&[Mechanism::VersionCheck], ANSWERS, protocol);
}

#[test]
fn without_the_check_inside_the_statement() {
    // The check of a read.
    let protocol = Protocol { reader: true, ..Protocol::default() };
    breaks(&[Mechanism::CheckInStatement], ANSWERS, protocol);
    // The check of a write that looks for a capture directly after T has removed it.
    let protocol = Protocol { writers: vec![Insert], ..Protocol::default() };
    breaks(&[Mechanism::CheckInStatement], TOGETHER, protocol);
}

#[test]
fn without_the_writers_lock() {
    let protocol = Protocol { writers: vec![Update], ..Protocol::default() };
    breaks(&[Mechanism::WritersLock], ANSWERS, protocol);
    let protocol = Protocol { writers: vec![Insert], ..Protocol::default() };
    breaks(&[Mechanism::WritersLock], TOGETHER, protocol);
}

#[test]
fn without_the_capture() {
    let protocol = Protocol { writers: vec![Update], ..Protocol::default() };
    breaks(&[Mechanism::Capture], WRITES, protocol);
    // For inserted and deleted documents the count would reveal it.
    let protocol = Protocol { writers: vec![Insert], ..Protocol::default() };
    breaks(&[Mechanism::Capture, Mechanism::Count], WRITES, protocol.clone());
    let counted = Protocol { off: vec![Mechanism::Capture], ..protocol };
    counted.checker().spawn_bfs().join().assert_no_discovery(WRITES);
}

#[test]
fn without_waiting_for_earlier_writers() {
    let protocol = Protocol { writers: vec![Update], ..Protocol::default() };
    breaks(&[Mechanism::AwaitWriters], WRITES, protocol);
}

#[test]
fn with_a_watermark_in_the_log() {
    let protocol = Protocol { writers: vec![Update, Insert], ..Protocol::default() };
    breaks(&[Mechanism::ExactLog], WRITES, protocol);
}

#[test]
fn without_the_donors_commit_first() {
    let protocol = Protocol::default();
    breaks(&[Mechanism::DonorFirst], "never do both own the chunk", protocol);
    // With a map that changes together with the recipient: a write there, and a read at the donor.
    let protocol = Protocol { writers: vec![Update], reader: true, ..Protocol::default() };
    breaks(&[Mechanism::DonorFirst, Mechanism::FlipLast], ANSWERS, protocol);
}

#[test]
fn without_compare_and_set() {
    let protocol = Protocol { take_over: true, ..Protocol::default() };
    breaks(&[Mechanism::CompareAndSet], "no decision is lost", protocol);
}

#[test]
fn without_ending_the_sessions() {
    let protocol = Protocol { crashes: 1, ..Protocol::default() };
    breaks(&[Mechanism::EndSessions], LEFTOVERS, protocol);
}

#[test]
fn without_waiting_for_all_answers_of_a_scatter() {
    let protocol = Protocol { reader: true, scatter: true, ..Protocol::default() };
    breaks(&[Mechanism::ConfirmFirst], ANSWERS, protocol);
}

#[test]
fn without_waiting_for_standbys() {
    let protocol = Protocol { failovers: 1, ..Protocol::default() };
    breaks(&[Mechanism::AwaitStandbys], WRITES, protocol.clone());
    // Recovery looks at what the shards have.
    breaks(&[Mechanism::AwaitStandbys], "no decision is lost", Protocol { crashes: 1, ..protocol });
}

#[test]
fn without_the_outcome_in_the_sweep() {
    let protocol = Protocol { failovers: 1, ..Protocol::default() };
    breaks(&[Mechanism::SweepByOutcome], WRITES, protocol);
}

#[test]
fn without_looking_at_the_shards_after_a_take_over() {
    let protocol = Protocol { restores: 1, ..Protocol::default() };
    breaks(&[Mechanism::LookAfterTakeOver], WRITES, protocol.clone());
    breaks(&[Mechanism::LookAfterTakeOver], WRITES, Protocol { promotes: true, ..protocol });
}
