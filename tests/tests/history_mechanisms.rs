//! The history checker finds violations when one of the mechanisms of a move is switched off, so a history without violations is
//! meaningful.

use docshard_tests::history::nemesis::{Accident, Injection, Role, Step};
use docshard_tests::history::run::Run;
use docshard_tests::history::workload::Size;
use std::time::{Duration, Instant};

const SIZE: Size = Size { clients: 6, keys: 60, fillers: 300 };

/// The time within which a violation must be found. It usually takes far less.
const PATIENCE: Duration = Duration::from_secs(120);

/// Moves chunks slowly until the history has a violation.
fn is_noticed(mechanisms: &[&str]) {
    let mut run = Run::start(1, SIZE);
    for mechanism in mechanisms {
        run.switch_off(mechanism);
    }
    let began = Instant::now();
    let mut found = Vec::new();
    for step in [Step::Clone, Step::CatchUp, Step::HandOver, Step::Settle].into_iter().cycle() {
        run.inject(Injection { accident: Accident::Delay(Role::Donor), step });
        found = run.check_now();
        if !found.is_empty() || began.elapsed() > PATIENCE {
            break;
        }
    }
    println!("{mechanisms:?}: after {:?}: {:?}", began.elapsed(), found.first());
    assert!(!found.is_empty(), "without {mechanisms:?} nothing was lost, doubled or stale:\n{}", run.report(&[]));
}

#[test]
fn changes_that_are_not_captured() {
    is_noticed(&["capture", "count"]);
}

#[test]
fn statements_that_do_not_check_their_version() {
    is_noticed(&["version_check"]);
}
