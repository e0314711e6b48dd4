//! Checks the model of the router's own part of a change of layout, in every order of events; and that each mechanism, switched off, loses
//! a change.

use docshard_model::own_part::{Mechanism, Protocol};
use stateright::{Checker, Model};

const BASE: Protocol = Protocol { changes: 3, attempts: 3, off: Vec::new() };

#[test]
fn a_standby_completes_what_it_has() {
    BASE.checker().spawn_bfs().join().assert_properties();
}

fn breaks(off: Mechanism) {
    let checker = Protocol { off: vec![off], ..BASE }.checker().spawn_bfs().join();
    assert!(checker.discovery("no change is lost").is_some(), "without {off:?} no change is lost");
}

#[test]
fn attempts_of_one_version() {
    breaks(Mechanism::OwnVersion);
}

#[test]
fn a_version_before_the_last_change() {
    breaks(Mechanism::VersionLast);
}
