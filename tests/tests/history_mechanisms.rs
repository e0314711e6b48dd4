//! The history checker notices when one of the mechanisms that keep moves sound is switched off: in builds with fault
//! points only.

use docshard_tests::history_run::Run;
use docshard_tests::nemesis::{Accident, Step, Strike, Victim};
use docshard_tests::workload::Size;
use std::time::{Duration, Instant};

const SIZE: Size = Size { clients: 6, keys: 60, fillers: 300 };

/// Far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Moves chunks, slowly, until the history tells that something is wrong.
fn is_noticed(mechanisms: &[&str]) {
    let mut run = Run::start(1, SIZE);
    for mechanism in mechanisms {
        run.switch_off(mechanism);
    }
    let began = Instant::now();
    let mut found = Vec::new();
    for step in [Step::Clone, Step::CatchUp, Step::HandOver, Step::Settle].into_iter().cycle() {
        run.strike(Strike { accident: Accident::Delay(Victim::Donor), step });
        found = run.check_now();
        if !found.is_empty() || began.elapsed() > PATIENCE {
            break;
        }
    }
    println!("{mechanisms:?}: after {:?}: {:?}", began.elapsed(), found.first());
    assert!(!found.is_empty(), "without {mechanisms:?} nothing was lost, doubled or stale:\n{}", run.explain(&[]));
}

#[test]
fn changes_that_are_not_captured() {
    is_noticed(&["capture", "count"]);
}

#[test]
fn statements_that_do_not_check_their_version() {
    is_noticed(&["version_check"]);
}
