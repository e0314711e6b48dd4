//! Writes that a client numbers, and sends again: each is executed once.

use crate::with_old_map;
use bson::{Bson, Document, doc};
use docshard_tests::moving::{Moving, NS, Pending};
use docshard_tests::{Fault, wait_until};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A session of a client.
#[derive(Clone, Copy)]
struct Session(u8);

impl Session {
    fn new() -> Self {
        static LAST: AtomicU8 = AtomicU8::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// The statement of a numbered command.
    fn sql(self, number: i64, command: &Document) -> String {
        let mut command = command.clone();
        let lsid = doc! { "id": bson::Uuid::from_bytes([self.0; 16]) };
        command.extend(doc! { "lsid": lsid, "txnNumber": number });
        let hex: String = command.to_vec().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        let database = if command.contains_key("bulkWrite") { "admin" } else { "test" };
        format!("SELECT docshard.run_command_bson('{database}', '\\x{hex}')")
    }

    fn run(self, moving: &Moving, number: i64, command: &Document) -> Document {
        reply(moving.cluster.router.value(&self.sql(number, command)))
    }

    fn start(self, moving: &Moving, number: i64, command: &Document) -> Pending<Vec<u8>> {
        moving.spawn_value(self.sql(number, command))
    }
}

fn reply(bytes: Vec<u8>) -> Document {
    Document::from_reader(bytes.as_slice()).expect("BSON")
}

fn is_ok(reply: &Document) -> bool {
    reply.get_f64("ok").is_ok_and(|ok| ok > 0.0)
}

fn code(reply: &Document) -> i32 {
    reply.get_i32("code").unwrap_or(0)
}

fn collection() -> &'static str {
    NS.split_once('.').expect("a namespace").1
}

fn increment(k: i32) -> Document {
    doc! { "update": collection(), "updates": [{ "q": { "_id": k, "k": k }, "u": { "$inc": { "n": 1 } } }] }
}

/// Commands of every kind that write to the moving chunk, and what is counted after one execution.
fn commands() -> Vec<(Document, &'static str)> {
    let inc = doc! { "$inc": { "n": 1 } };
    let first = doc! { "q": { "_id": 1, "k": 1 }, "u": &inc };
    let beside = doc! { "q": { "_id": 150, "k": 150 }, "u": &inc };
    let info = vec![doc! { "ns": NS }];
    vec![
        (increment(1), "1"),
        // Its key is not known: it is found on two shards.
        (doc! { "update": collection(), "updates": [{ "q": { "_id": 1 }, "u": &inc }] }, "1"),
        (doc! { "update": collection(), "updates": [{ "q": { "_id": 1, "k": 1 }, "u": &inc, "upsert": true }] }, "1"),
        (doc! { "update": collection(), "updates": [&first, &beside] }, "1"),
        (doc! { "findAndModify": collection(), "query": { "_id": 1, "k": 1 }, "update": &inc, "new": true }, "1"),
        (
            doc! { "findAndModify": collection(), "query": { "n": 0 }, "sort": { "k": 1 }, "update": { "$inc": { "n": 1000 } } },
            "0",
        ),
        (
            doc! { "bulkWrite": 1, "nsInfo": &info, "ops": [{ "update": 0, "filter": { "_id": 1, "k": 1 }, "updateMods": &inc }] },
            "1",
        ),
        (doc! { "insert": collection(), "documents": [{ "_id": 1001, "k": 2 }] }, "0"),
        (doc! { "insert": collection(), "documents": [{ "_id": 1002, "k": 2 }, { "_id": 1003, "k": 160 }] }, "0"),
        (doc! { "insert": collection(), "documents": [{ "k": 2, "without": "_id" }] }, "0"),
        (doc! { "delete": collection(), "deletes": [{ "q": { "_id": 3, "k": 3 }, "limit": 1 }] }, "0"),
        (
            doc! { "delete": collection(), "deletes": [{ "q": { "n": 0, "k": { "$gt": 5, "$lt": 50 } }, "limit": 1 }] },
            "0",
        ),
    ]
}

/// All documents, as text.
fn content(moving: &Moving) -> String {
    moving.cluster.router.psql(&format!("SELECT d FROM docshard.find('{NS}', '{{}}') d ORDER BY d->'_id', d->'k'"))
}

/// The reply without what says that the write was executed before, and whether it was.
fn without_statements(mut reply: Document) -> (Document, bool) {
    let names = ["retriedStmtIds", "retriedStmtId"];
    let was_executed = names.map(|name| reply.remove(name).is_some()).contains(&true);
    (reply, was_executed)
}

#[test]
fn n01_every_write_is_executed_once_though_its_chunk_has_moved() {
    let moving = Moving::start(200);
    for (command, n) in commands() {
        let session = Session::new();
        moving.run(&format!(
            "SELECT docshard.update_one('{NS}', '{{\"k\": 1, \"_id\": 1}}', '{{\"$set\": {{\"n\": 0}}}}')"
        ));
        let (first, was_executed) = without_statements(session.run(&moving, 1, &command));
        assert!(!was_executed && is_ok(&first), "{command} {first}");
        let after = content(&moving);
        assert!(moving.field(1, "n").is_some_and(|found| n == "0" || found == n), "{command}");
        for _ in 0..2 {
            let again = without_statements(session.run(&moving, 1, &command));
            assert_eq!(again, (first.clone(), true), "{command}");
            assert_eq!(content(&moving), after, "{command}");
            moving.move_to(&moving.other()).expect("a move");
        }
        assert_eq!(without_statements(session.run(&moving, 1, &command)), (first, true), "{command}");
        assert_eq!(content(&moving), after, "{command}");
    }
    moving.check_clean();
}

#[test]
fn n02_without_the_moves_copy_a_write_is_executed_twice() {
    let moving = Moving::start(200);
    moving.cluster.router.switch_off("numbered_writes");
    let session = Session::new();
    session.run(&moving, 1, &increment(1));
    moving.move_to("shard1").expect("a move");
    session.run(&moving, 1, &increment(1));
    assert_eq!(moving.field(1, "n").as_deref(), Some("2"));
}

#[test]
fn n03_the_second_attempt_waits_for_the_first() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for (number, (command, _)) in (1..).zip(commands()) {
        let session = Session::new();
        router.arm("dispatch.sending", Fault::Pause);
        let attempts = [0, 1].map(|_| session.start(&moving, number, &command));
        router.await_fault("dispatch.sending");
        router.release("dispatch.sending");
        let replies = attempts.map(|attempt| without_statements(reply(attempt.join().unwrap().expect("a reply"))));
        let [(one, one_again), (other, other_again)] = replies;
        assert_eq!(one, other, "{command}");
        assert!(one_again != other_again, "{command}: one of them executes it");
    }
}

/// The first attempt stays behind with an old map, until its chunk has moved and the second one has been executed at the new owner.
#[test]
fn n04_an_attempt_that_comes_late_finds_the_later_one() {
    let moving = Moving::start(200);
    for command in [commands().remove(0).0, commands().remove(4).0] {
        let before: i64 = moving.field(1, "n").unwrap().parse().unwrap();
        let session = Session::new();
        let late = with_old_map(&moving, || session.start(&moving, 1, &command));
        moving.move_to(&moving.other()).expect("a move");
        let (second, was_executed) = without_statements(session.run(&moving, 1, &command));
        assert!(!was_executed, "{second}");
        moving.cluster.router.release("dispatch.sending");
        let late = reply(late.join().unwrap().expect("a reply"));
        assert_eq!(without_statements(late), (second, true));
        assert_eq!(moving.field(1, "n"), Some((before + 1).to_string()));
    }
    moving.check();
}

/// The router crashes with all its sessions after the shard has answered, and after the shard has committed.
#[test]
fn n05_the_router_crashes_around_the_commit() {
    let crashes = |moving: &Moving| moving.cluster.router.log().matches("all server processes terminated").count();
    let mut moving = Moving::start(200);
    for (point, command) in [
        ("dispatch.answered", increment(1)),
        ("decide.prepared", commands().remove(3).0),
        ("decide.prepared", increment(1)),
    ] {
        let before: i64 = moving.field(1, "n").unwrap().parse().unwrap();
        let session = Session::new();
        let crashed = crashes(&moving);
        moving.cluster.router.rearm(point, Fault::Kill);
        let first = session.start(&moving, 1, &command);
        // One shard decides alone, without that point.
        let first = first.join().unwrap();
        moving.cluster.router.clear_faults();
        // A server still accepts clients until it notices that a process has died.
        wait_until("the router has crashed", PATIENCE, || first.is_ok() || crashes(&moving) > crashed);
        wait_until("the router is back", PATIENCE, || moving.cluster.router.try_client().is_ok());
        let second = session.run(&moving, 1, &command);
        assert!(is_ok(&second), "{second}");
        assert_eq!(second.contains_key("retriedStmtIds"), first.is_ok(), "{second}");
        assert_eq!(moving.field(1, "n"), Some((before + 1).to_string()), "{point}");
    }
    // A shard crashes after its commit: the number is as durable as the write.
    let session = Session::new();
    let before: i64 = moving.field(1, "n").unwrap().parse().unwrap();
    session.run(&moving, 1, &increment(1));
    let owner = moving.owner();
    moving.cluster.node(&owner).crash();
    moving.cluster.node(&owner).start();
    assert!(session.run(&moving, 1, &increment(1)).contains_key("retriedStmtIds"));
    assert_eq!(moving.field(1, "n"), Some((before + 1).to_string()));
}

/// A client's open transaction has claimed for the same session at the recipient.
#[test]
fn n06_a_move_does_not_wait_for_a_session_with_writers_excluded() {
    let moving = Moving::start(200);
    let session = Session::new();
    session.run(&moving, 1, &increment(1));
    let mut open = moving.cluster.router.client();
    open.batch_execute(&format!("BEGIN; {}", session.sql(2, &increment(120)))).unwrap();
    let mover = moving.start_move("shard1");
    let stays = "SELECT count(*) > 0 FROM docshard.migrations WHERE state = 'running' AND attempts > 0";
    wait_until("a hand-over is taken back", PATIENCE, || moving.cluster.router.value::<bool>(stays));
    // Writers of the chunk are not stopped.
    moving
        .run(&format!("SELECT docshard.update_one('{NS}', '{{\"k\": 2, \"_id\": 2}}', '{{\"$inc\": {{\"n\": 1}}}}')"));
    open.batch_execute("COMMIT").unwrap();
    mover.join().unwrap().expect("a move");
    // The session has gone on.
    assert_eq!(code(&session.run(&moving, 1, &increment(1))), 225);
    assert_eq!(moving.field(1, "n").as_deref(), Some("1"));
    moving.check();
}

/// Each write is sent by two clients at once, while chunks move.
#[test]
fn n07_pairs_of_clients_under_moves() {
    let moving = Moving::start(200);
    let rounds: i64 = 60;
    thread::scope(|scope| {
        for k in 1..5 {
            let moving = &moving;
            scope.spawn(move || {
                let session = Session::new();
                for number in 1..=rounds {
                    let command = if number % 2 == 0 {
                        increment(k)
                    } else {
                        doc! { "findAndModify": collection(), "query": { "_id": k }, "update": { "$inc": { "n": 1 } } }
                    };
                    let pair = [0, 1].map(|_| session.start(moving, number, &command));
                    for attempt in pair {
                        let reply = reply(attempt.join().unwrap().expect("a reply"));
                        // As for any write that meets a move and another writer, its client may have to send it once more.
                        if !is_ok(&reply) {
                            let again = session.run(moving, number, &command);
                            assert!(is_ok(&again), "{reply} {again}");
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..6 {
                moving.move_to(&moving.other()).expect("a move");
            }
        });
    });
    for k in 1..5 {
        assert_eq!(moving.field(k, "n"), Some(rounds.to_string()), "document {k}");
    }
    moving.check();
}

#[test]
fn n08_numbers_expire() {
    let moving = Moving::start(200);
    let (old, new) = (Session::new(), Session::new());
    let shard = moving.shard("shard0");
    let count = || shard.value::<i64>("SELECT count(*) FROM docshard_data.numbered_writes");
    for session in [old, new] {
        session.run(&moving, 1, &increment(1));
    }
    assert_eq!(count(), 2);
    shard.psql("UPDATE docshard_data.numbered_writes SET written_at = now() - interval '31 minutes' WHERE session = (SELECT session FROM docshard_data.numbered_writes ORDER BY session LIMIT 1)");
    let forget = |most: i64| shard.value::<i64>(&format!("SELECT docshard_internal.forget_numbered_writes({most})"));
    assert_eq!((forget(0), count(), forget(10), count(), forget(10)), (0, 2, 1, 1, 0));
    assert!(new.run(&moving, 1, &increment(1)).contains_key("retriedStmtIds"));
}

#[test]
fn n09_a_number_belongs_to_its_role_and_command() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.psql("CREATE ROLE ann");
    router.psql(&format!("SELECT docshard.grant_access('ann', '{{\"write\": \"{NS}\"}}')"));
    let session = Session::new();
    let first = session.run(&moving, 5, &increment(1));
    let mut as_ann = router.client();
    as_ann.batch_execute("SET ROLE ann").unwrap();
    let mut run = |command: &Document| reply(as_ann.query_one(&session.sql(5, command), &[]).unwrap().get(0));
    assert_eq!(run(&increment(1)), first, "another role's session");
    assert_eq!(moving.field(1, "n").as_deref(), Some("2"));
    assert!(as_ann.batch_execute("TABLE docshard_data.numbered_writes").is_err());
    let of = |reply: Document| code(&reply);
    let delete = doc! { "delete": collection(), "deletes": [{ "q": { "_id": 1, "k": 1 }, "limit": 1 }] };
    assert_eq!(of(session.run(&moving, 5, &delete)), 217);
    assert_eq!(of(session.run(&moving, 4, &increment(1))), 225);
    let many = doc! { "update": collection(), "updates": [{ "q": {}, "u": { "$inc": { "n": 1 } }, "multi": true }] };
    assert_eq!(of(session.run(&moving, 6, &many)), 72);
    let all = doc! { "delete": collection(), "deletes": [{ "q": {}, "limit": 0 }] };
    assert_eq!(of(session.run(&moving, 6, &all)), 72);
    assert_eq!(of(session.run(&moving, -1, &increment(1))), 72);
    assert_eq!(of(session.run(&moving, 6, &doc! { "find": collection() })), 50768);
    let mut open = increment(1);
    open.insert("autocommit", Bson::Boolean(false));
    assert_eq!(of(session.run(&moving, 6, &open)), 20);
    // A failed write leaves nothing: it is executed when it is sent again.
    let duplicate = doc! { "insert": collection(), "documents": [{ "_id": 1, "k": 1 }] };
    for _ in 0..2 {
        let failed = session.run(&moving, 7, &duplicate);
        assert_eq!(failed.get_array("writeErrors").map_or(0, Vec::len), 1, "{failed}");
        assert!(!failed.contains_key("retriedStmtIds"));
    }
    assert_eq!(moving.field(1, "n").as_deref(), Some("2"));
}

/// Each attempt computes another key, of the time.
#[test]
fn n12_the_time_does_not_decide_where_a_number_is_claimed() {
    let moving = Moving::start(200);
    let of_time = doc! { "$mod": [{ "$toLong": "$$NOW" }, 200] };
    let is = |value: &Bson| doc! { "$expr": { "$eq": ["$k", value] } };
    let (now, variable) = (is(&of_time.clone().into()), is(&Bson::from("$$day")));
    let either = doc! { "$or": [{ "k": 6 }, &now] };
    let inc = doc! { "$inc": { "n": 1 } };
    let update = |query: &Document, with: Option<&Document>| {
        let mut update = doc! { "update": collection(), "updates": [{ "q": query, "u": &inc }] };
        update.extend(with.map(|value| ("let".to_owned(), Bson::from(doc! { "day": value }))));
        update
    };
    for command in [
        update(&now, None),
        update(&either, None),
        update(&variable, Some(&of_time)),
        doc! { "findAndModify": collection(), "query": &now, "update": &inc },
        doc! { "findAndModify": collection(), "query": &either, "remove": true },
        doc! { "delete": collection(), "deletes": [{ "q": &now, "limit": 1 }] },
    ] {
        let session = Session::new();
        let before = content(&moving);
        let (first, was_executed) = without_statements(session.run(&moving, 1, &command));
        assert!(is_ok(&first) && !was_executed, "{command} {first}");
        let after = content(&moving);
        let changed = before.lines().filter(|line| !after.contains(line)).count();
        assert!(changed <= 1, "{command}");
        for _ in 0..12 {
            thread::sleep(Duration::from_millis(23));
            assert_eq!(without_statements(session.run(&moving, 1, &command)), (first.clone(), true), "{command}");
            assert_eq!(content(&moving), after, "{command}");
        }
    }
}
