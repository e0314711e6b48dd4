//! Clients at work, chunks on the move, and accidents at every step of it: nothing is lost, doubled, stale or half done.
//!
//! `make soak SECONDS=…` lets the same go on for as long as one likes. A seed decides which accidents come in which order
//! and what each client does; it is printed, and `SEED=…` (of `make soak`, `DOCSHARD_SEED` of `cargo test`) draws the same
//! again. `HISTORY_VERBOSE=1` tells what happens while it does.

use docshard_tests::history_check::Violation;
use docshard_tests::history_run::Run;
use docshard_tests::nemesis::{Plan, Strike};
use docshard_tests::workload::Size;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const SIZE: Size = Size { clients: 6, keys: 120, fillers: 800 };

/// What an environment variable says, a number.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Fails, with all that helps to understand it, if something is wrong.
fn judge(run: &Run, seed: u64, violations: &[Violation]) {
    let surprises = run.workload.surprises();
    if violations.is_empty() && surprises.is_empty() {
        return;
    }
    panic!(
        "SEED={seed}: {} violations, {} surprises\n{}\n{}",
        violations.len(),
        surprises.len(),
        run.explain(violations),
        surprises.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n")
    );
}

/// Strikes until `goes_on` is false; everything comes to rest and is checked after every `round` strikes.
fn campaign(seed: u64, round: usize, mut goes_on: impl FnMut(&Run) -> bool) -> Run {
    println!("SEED={seed}");
    let mut run = Run::start(seed, SIZE);
    let mut plan = Plan::new(seed);
    let mut writes = 0;
    loop {
        let strikes: Vec<Strike> = plan.by_ref().take(round).collect();
        for strike in strikes {
            if !goes_on(&run) {
                break;
            }
            run.strike(strike);
            judge(&run, seed, &run.check_now());
        }
        let violations = run.check_at_rest();
        judge(&run, seed, &violations);
        assert!(run.workload.writes() > writes, "nobody could write any more");
        writes = run.workload.writes();
        if !goes_on(&run) {
            println!("{}\n{} pairs of accident and step", run.explain(&[]), run.hits.len());
            return run;
        }
    }
}

#[test]
fn nothing_is_lost_whatever_strikes_a_move() {
    const PAIRS: usize = 32;
    let run = campaign(number("DOCSHARD_SEED").unwrap_or(1), PAIRS / 2, |run| run.hits.len() < PAIRS);
    let steps: BTreeSet<_> = run.hits.keys().map(|strike| strike.step).collect();
    assert!(run.hits.len() >= 30 && steps.len() >= 6, "{:?}", run.hits);
}

/// As long as DOCSHARD_SOAK_SECONDS says; with a fresh seed unless one is given.
#[test]
#[ignore = "runs for as long as one likes: make soak SECONDS=600"]
fn soak() {
    let seconds = Duration::from_secs(number("DOCSHARD_SOAK_SECONDS").unwrap_or(60));
    let seed = number("DOCSHARD_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs() % 1_000_000)
    });
    let began = Instant::now();
    let run = campaign(seed, 25, |_| began.elapsed() < seconds);
    for (strike, times) in &run.hits {
        println!("{times:4} {strike}");
    }
}
