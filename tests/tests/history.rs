//! Clients read and write while chunks move and accidents are injected at every step of a move. The recorded history must be
//! one that an unsharded database could have produced.
//!
//! `make soak SECONDS=…` does the same for longer. A seed determines the order of the accidents and what each client does. It is
//! printed; `make soak SEED=…`, or DOCSHARD_SEED for `cargo test`, repeats it. `HISTORY_VERBOSE=1` prints events as they happen.

use docshard_tests::history::check::Violation;
use docshard_tests::history::nemesis::{Injection, Plan};
use docshard_tests::history::run::Run;
use docshard_tests::history::workload::Size;
use docshard_tests::is_thorough;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const SIZE: Size = Size { clients: 6, keys: 120, fillers: 800 };

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Fails, with a report, if there are violations or anomalies.
fn fail_if_wrong(run: &Run, seed: u64, violations: &[Violation]) {
    let anomalies = run.workload.anomalies();
    if violations.is_empty() && anomalies.is_empty() {
        return;
    }
    panic!(
        "SEED={seed}: {} violations, {} anomalies\n{}\n{}",
        violations.len(),
        anomalies.len(),
        run.report(violations),
        anomalies.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n")
    );
}

/// Changes layouts, with an accident in each, until `goes_on` returns false; chunks move at the same time.
fn campaign_of_layouts(seed: u64, round: usize, mut goes_on: impl FnMut(&Run) -> bool) -> Run {
    println!("SEED={seed}");
    let mut run = Run::start(seed, SIZE);
    let mut plan = Plan::new(seed);
    loop {
        let injections: Vec<Injection> = plan.by_ref().take(round).collect();
        for injection in injections {
            if !goes_on(&run) {
                break;
            }
            run.inject_into_layout(injection);
            fail_if_wrong(&run, seed, &run.check_now());
        }
        let violations = run.check_at_rest();
        fail_if_wrong(&run, seed, &violations);
        if !goes_on(&run) {
            println!("{}\n{} pairs of accident and step", run.report(&[]), run.injected.len());
            return run;
        }
    }
}

/// Injects accidents until `goes_on` returns false. After every `round` of them the clients pause, and the
/// whole history is checked.
fn campaign(seed: u64, round: usize, mut goes_on: impl FnMut(&Run) -> bool) -> Run {
    println!("SEED={seed}");
    let mut run = Run::start(seed, SIZE);
    let mut plan = Plan::new(seed);
    let mut writes = 0;
    loop {
        let injections: Vec<Injection> = plan.by_ref().take(round).collect();
        for injection in injections {
            if !goes_on(&run) {
                break;
            }
            run.inject(injection);
            fail_if_wrong(&run, seed, &run.check_now());
        }
        let violations = run.check_at_rest();
        fail_if_wrong(&run, seed, &violations);
        assert!(run.workload.writes() > writes, "no write was acknowledged in this round");
        writes = run.workload.writes();
        if !goes_on(&run) {
            println!("{}\n{} pairs of accident and step", run.report(&[]), run.injected.len());
            return run;
        }
    }
}

#[test]
fn nothing_is_lost_whatever_accident_happens_during_a_move() {
    let pairs = if is_thorough() { 32 } else { 16 };
    let run = campaign(number("DOCSHARD_SEED").unwrap_or(1), pairs / 2, |run| run.injected.len() < pairs);
    let steps: BTreeSet<_> = run.injected.keys().map(|injection| injection.step).collect();
    assert!(run.injected.len() >= pairs - 2 && steps.len() >= 6, "{:?}", run.injected);
}

#[test]
fn nothing_is_lost_whatever_accident_happens_during_a_change_of_layout() {
    let pairs = if is_thorough() { 10 } else { 6 };
    let run = campaign_of_layouts(number("DOCSHARD_SEED").unwrap_or(1), pairs / 2, |run| run.injected.len() < pairs);
    let steps: BTreeSet<_> = run.injected.keys().map(|injection| injection.step).collect();
    assert!(steps.len() >= 4, "{:?}", run.injected);
}

/// Like [`soak`], for changes of layout.
#[test]
#[ignore = "runs as long as it is told to: make soak SECONDS=600"]
fn soak_of_layouts() {
    let seconds = Duration::from_secs(number("DOCSHARD_SOAK_SECONDS").unwrap_or(60));
    let seed = number("DOCSHARD_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let began = Instant::now();
    campaign_of_layouts(seed, 25, |_| began.elapsed() < seconds);
}

/// Runs for DOCSHARD_SOAK_SECONDS, with a new seed unless one is given.
#[test]
#[ignore = "runs as long as it is told to: make soak SECONDS=600"]
fn soak() {
    let seconds = Duration::from_secs(number("DOCSHARD_SOAK_SECONDS").unwrap_or(60));
    let seed = number("DOCSHARD_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs() % 1_000_000)
    });
    let began = Instant::now();
    let run = campaign(seed, 25, |_| began.elapsed() < seconds);
    for (injection, times) in &run.injected {
        println!("{times:4} {injection}");
    }
}
