//! At each fault point of a move, and of the recovery of a move, a process fails or dies, or a server crashes. Afterwards
//! the chunk is completely on one shard, no document is missing or duplicated, leftovers are cleaned up automatically, and a
//! later move succeeds.
//!
//! In `make test` a test has two of its kinds of accidents at a point, and others at the next point. `make test-all` has all kinds at each
//! point, and moves a large chunk, too, with one kind of accident at each point; `DOCSHARD_FAULT_ROWS=100000` makes all of them do so.

use docshard_tests::faults::names;
use docshard_tests::moving::{Moving, PATIENCE};
use docshard_tests::{Fault, Node, is_thorough, wait_until};

/// The accident at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accident {
    /// an ERROR
    Error,
    /// the coordinator's process is killed, and so all sessions of the router end
    KillCoordinator,
    /// the move's sessions at the donor are ended
    EndSessions(Role),
    /// one of the move's sessions is killed, and so all sessions of that shard end
    KillSession(Role),
    /// a server crashes
    Crash(Role),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Router,
    Donor,
    Recipient,
}

use Accident::{Crash, EndSessions, Error, KillCoordinator, KillSession};
use Role::{Donor, Recipient, Router};

/// The points of a move in order. A point that a move reaches only after a fault comes with that fault.
fn points() -> Vec<(&'static str, Option<(&'static str, Fault)>)> {
    let ways = [
        ("move.recipient_first", None),
        ("move.aborted", Some(("move.cloned", Fault::Error))),
        ("recover.begin", Some(("move.prepared", Fault::Kill))),
        ("recover.step", Some(("move.decided", Fault::Kill))),
    ];
    let on_the_way = names("point", "router").into_iter().filter(|name| {
        // This point belongs to a mechanism that is switched off.
        (name.starts_with("move.") || name.starts_with("recover."))
            && !["move.recipient_first", "move.resumed"].contains(name)
    });
    on_the_way.map(|name| (name, ways.iter().find(|(way, _)| *way == name).and_then(|(_, before)| *before))).collect()
}

fn await_server(node: &Node) {
    wait_until(&format!("{} is back", node.name), PATIENCE, || node.try_client().is_ok());
}

/// Injects an accident at a point of a move, and checks the cluster after everything has ended.
fn strike(moving: &mut Moving, point: &'static str, before: Option<(&'static str, Fault)>, accident: Accident) {
    let (from, to) = (moving.owner(), moving.other());
    let node = |role: Role| match role {
        Router => "router".to_owned(),
        Donor => from.clone(),
        Recipient => to.clone(),
    };
    if let Some((way, fault)) = before {
        moving.cluster.router.arm(way, fault);
    }
    let fault = match accident {
        Error => Fault::Error,
        KillCoordinator => Fault::Kill,
        _ => Fault::Pause,
    };
    moving.cluster.router.arm(point, fault);
    let mover = moving.start_move(&to);
    moving.cluster.router.await_fault(point);
    let session =
        "FROM pg_stat_activity WHERE application_name LIKE 'docshard m %' OR application_name = 'docshard recovery'";
    match accident {
        Error | KillCoordinator => {}
        EndSessions(role) => {
            let sql = format!("SELECT count(pg_terminate_backend(pid)) {session}");
            moving.shard(&node(role)).value::<i64>(&sql);
        }
        KillSession(role) => {
            let shard = moving.shard(&node(role));
            // The move's own rather than one of the recovery, and the youngest: others may be about to end.
            let own = "ORDER BY application_name = 'docshard recovery', backend_start DESC LIMIT 1";
            let pid = shard.client().query_opt(&format!("SELECT pid {session} {own}"), &[]).expect("a query");
            if let Some(pid) = pid {
                shard.kill(u32::try_from(pid.get::<_, i32>(0)).expect("a process id"));
            }
        }
        Crash(role) => {
            let node = moving.cluster.node(&node(role));
            node.crash();
            node.start();
        }
    }
    moving.cluster.router.release(point);
    let outcome = mover.join().unwrap();
    await_server(&moving.cluster.router);
    // Clean-up is automatic.
    wait_until(&format!("{accident:?} at {point}: all is cleaned"), PATIENCE, || {
        let unfinished = "SELECT FROM docshard_catalog.migrations WHERE state <> 'done'";
        let rows = moving.cluster.router.try_client().and_then(|mut client| client.query(unfinished, &[]));
        rows.is_ok_and(|rows| rows.is_empty())
    });
    let owner = moving.owner();
    println!("{point}: {accident:?}: {} on {owner}", if owner == to { "moved" } else { "stayed" });
    if outcome.is_ok() {
        assert_eq!(owner, to, "{accident:?} at {point}: it was told to have moved");
    }
    moving.check_chunk();
}

/// Injects the listed accidents at every point, and then runs a move without accident.
fn strike_everywhere(rows: i64, accidents: impl Fn(usize) -> Vec<Accident>) {
    let mut moving = Moving::with_chunk(rows, 100);
    moving.run("INSERT INTO docshard_catalog.settings VALUES ('balancer_interval_ms', '200')");
    for (number, (point, before)) in points().into_iter().enumerate() {
        for accident in accidents(number) {
            strike(&mut moving, point, before, accident);
        }
        moving.cluster.router.clear_faults();
        // The next point's move does not show that moves still work, as it may fail early.
        moving.move_to(&moving.other()).expect("a later move");
    }
    moving.check();
}

/// Of these accidents, those that a run has at the point with that number.
fn some(all: &[Accident], number: usize) -> Vec<Accident> {
    if is_thorough() {
        return all.to_vec();
    }
    all.iter().cycle().skip(2 * number % all.len()).take(2).copied().collect()
}

fn rows(default: i64) -> i64 {
    std::env::var("DOCSHARD_FAULT_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(default)
}

const FEW: i64 = 1_000;

#[test]
fn errors_and_dying_processes_at_every_point() {
    const ALL: [Accident; 4] = [Error, EndSessions(Donor), KillCoordinator, EndSessions(Recipient)];
    strike_everywhere(rows(FEW), |number| some(&ALL, number));
}

#[test]
fn crashing_servers_at_every_point() {
    const ALL: [Accident; 5] =
        [KillSession(Donor), Crash(Recipient), Crash(Router), KillSession(Recipient), Crash(Donor)];
    strike_everywhere(rows(FEW), |number| some(&ALL, number));
}

#[test]
fn a_chunk_of_100000_documents_at_every_point() {
    if !is_thorough() {
        return;
    }
    const EACH: [Accident; 5] = [KillCoordinator, Crash(Recipient), Error, Crash(Donor), Crash(Router)];
    strike_everywhere(100_000, |number| vec![EACH[number % EACH.len()]]);
}
