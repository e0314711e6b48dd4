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

/// A client's open transaction has claimed a number of the same session at the recipient: neither it nor the move waits for the other.
#[test]
fn n06_a_move_does_not_wait_for_a_session() {
    let moving = Moving::start(200);
    let session = Session::new();
    session.run(&moving, 1, &increment(1));
    for end in ["ROLLBACK", "COMMIT"] {
        let mut open = moving.cluster.router.client();
        open.batch_execute(&format!("BEGIN; {}", session.sql(2, &increment(120)))).unwrap();
        moving.move_to(&moving.other()).expect("a move");
        assert!(session.run(&moving, 1, &increment(1)).contains_key("retriedStmtIds"));
        open.batch_execute(end).unwrap();
        moving.move_to(&moving.other()).expect("a move");
    }
    // The session has gone on.
    moving.move_to("shard1").expect("a move");
    assert_eq!(code(&session.run(&moving, 1, &increment(1))), 225);
    assert_eq!(moving.field(1, "n").as_deref(), Some("1"));
    assert!(session.run(&moving, 2, &increment(120)).contains_key("retriedStmtIds"));
    assert_eq!(moving.field(120, "n").as_deref(), Some("1"));
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
    for session in [old, new] {
        session.run(&moving, 1, &increment(1));
    }
    // In one transaction: the shard's worker forgets old numbers, too.
    let mut client = moving.shard("shard0").client();
    let mut shard = client.transaction().unwrap();
    let mut value = |sql: &str| shard.query_one(sql, &[]).unwrap().get::<_, i64>(0);
    let count = "SELECT count(*) FROM docshard_data.numbered_writes";
    assert_eq!(value(count), 2);
    let age = "WITH aged AS (UPDATE docshard_data.numbered_writes SET written_at = now() - interval '31 minutes' \
               WHERE session = (SELECT session FROM docshard_data.numbered_writes ORDER BY session LIMIT 1) RETURNING 1) SELECT count(*) FROM aged";
    assert_eq!(value(age), 1);
    for (most, forgotten, left) in [(0, 0, 2), (10, 1, 1), (10, 0, 1)] {
        assert_eq!(value(&format!("SELECT docshard_internal.forget_numbered_writes({most})")), forgotten);
        assert_eq!(value(count), left);
    }
    shard.commit().unwrap();
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

/// The session's later write, in another chunk of the donor, has taken the place of the first one there.
#[test]
fn n10_a_session_that_has_gone_on_elsewhere_repeats_nothing() {
    let moving = Moving::start(200);
    let session = Session::new();
    session.run(&moving, 1, &increment(1));
    session.run(&moving, 2, &increment(190));
    moving.move_to("shard1").expect("a move");
    let refused = session.run(&moving, 1, &increment(1));
    assert_eq!((code(&refused), moving.field(1, "n").as_deref()), (225, Some("1")), "{refused}");
    // The second write's chunk follows: its reply takes the place of the bare number.
    moving.move_chunk(190, "shard1").expect("a move");
    assert!(session.run(&moving, 2, &increment(190)).contains_key("retriedStmtIds"));
    assert_eq!(code(&session.run(&moving, 1, &increment(1))), 225);
    // What the recipient has got it hands on.
    moving.move_to("shard0").expect("a move");
    moving.move_chunk(190, "shard0").expect("a move");
    assert_eq!(code(&session.run(&moving, 1, &increment(1))), 225);
    assert!(session.run(&moving, 2, &increment(190)).contains_key("retriedStmtIds"));
    for k in [1, 190] {
        assert_eq!(moving.field(k, "n").as_deref(), Some("1"));
    }
    moving.check();
}

/// Sessions write here and there, and chunks move, are split and merged, in any order: an old number is refused or answered, the last one
/// answered, and none is executed again.
#[test]
fn n11_any_order_of_writes_and_moves() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for k in [30, 60, 130] {
        router.psql(&format!("SELECT docshard.split_at('{NS}', '{{\"k\": {k}}}')"));
    }
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let keys = [1, 40, 80, 110, 140, 190];
    let sessions: Vec<_> = (0..5).map(|_| Session::new()).collect();
    let mut sent: Vec<Vec<(i32, Document)>> = vec![Vec::new(); sessions.len()];
    for round in 0..40 {
        for _ in 0..6 {
            let at = below(sessions.len() as u64) as usize;
            let k = keys[below(keys.len() as u64) as usize];
            let number = 1 + sent[at].len() as i64;
            let reply = sessions[at].run(&moving, number, &increment(k));
            assert!(is_ok(&reply) && !reply.contains_key("retriedStmtIds"), "{reply}");
            sent[at].push((k, reply));
        }
        let k = keys[below(keys.len() as u64) as usize];
        moving.move_chunk(k.into(), ["shard0", "shard1"][below(2) as usize]).expect("a move");
        for (session, sent) in sessions.iter().zip(&sent) {
            let Some((last, earlier)) = sent.split_last() else { continue };
            let number = earlier.len() as i64 + 1;
            let again = without_statements(session.run(&moving, number, &increment(last.0)));
            assert_eq!(again, (last.1.clone(), true), "round {round}");
            for _ in 0..3.min(earlier.len()) {
                let at = below(earlier.len() as u64) as usize;
                let late = session.run(&moving, at as i64 + 1, &increment(earlier[at].0));
                // It was the session's last one at its shard, or a later one is known there.
                let is_same = without_statements(late.clone()) == (earlier[at].1.clone(), true);
                assert!(code(&late) == 225 || is_same, "round {round}: {late}");
            }
        }
    }
    for k in keys {
        let count = sent.iter().flatten().filter(|(written, _)| *written == k).count();
        assert_eq!(moving.field(k.into(), "n"), Some(count.to_string()), "document {k}");
    }
    moving.check_clean();
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

/// The numbers of other sessions are at the recipient before writers are excluded, also those of chunks that stay.
#[test]
fn n13_most_numbers_are_copied_before_writers_wait() {
    let moving = Moving::start(200);
    let session = Session::new();
    session.run(&moving, 1, &increment(1));
    let (donor, recipient) = (moving.shard("shard0"), moving.shard("shard1"));
    donor.psql(
        "INSERT INTO docshard_data.numbered_writes (session, received, number, command, collection_id, skey, reply) \
         SELECT decode(lpad(to_hex(i), 40, '0'), 'hex'), false, 7, 'update test.moved', collection_id, \
           CASE WHEN i % 2 = 0 THEN skey ELSE '\\xff' END, convert_to(repeat('x', 300), 'UTF8') \
         FROM docshard_data.numbered_writes, generate_series(1, 20000) i",
    );
    moving.cluster.router.arm("move.frozen", Fault::Pause);
    let mover = moving.start_move("shard1");
    moving.cluster.router.await_fault("move.frozen");
    let copied = "SELECT count(*) FROM docshard_data.numbered_writes WHERE number = 7";
    assert_eq!(recipient.value::<i64>(copied), 20_000);
    let with_reply = format!("{copied} AND reply IS NOT NULL");
    assert_eq!(recipient.value::<i64>(&with_reply), 10_000, "those of the range that moves");
    moving.cluster.router.release("move.frozen");
    mover.join().unwrap().expect("a move");
    assert!(session.run(&moving, 1, &increment(1)).contains_key("retriedStmtIds"));
    moving.check();
}

/// A reply that is too large is not stored. The write is executed once all the same.
#[test]
fn n14_a_large_reply_is_not_stored() {
    let moving = Moving::start(200);
    moving.run(&format!(
        "SELECT docshard.update_one('{NS}', '{{\"k\": 1, \"_id\": 1}}', jsonb_build_object('$set', \
         jsonb_build_object('large', repeat('x', 2000000)))::json)"
    ));
    let session = Session::new();
    let command =
        doc! { "findAndModify": collection(), "query": { "_id": 1, "k": 1 }, "update": { "$inc": { "n": 1 } } };
    let first = session.run(&moving, 1, &command);
    assert!(is_ok(&first) && first.get_document("value").is_ok_and(|value| value.contains_key("large")));
    for _ in 0..2 {
        let again = session.run(&moving, 1, &command);
        assert_eq!(code(&again), 217, "{again}");
        assert!(again.get_str("errmsg").is_ok_and(|message| message.contains("1 MB")), "{again}");
        moving.move_to(&moving.other()).expect("a move");
    }
    assert_eq!(moving.field(1, "n").as_deref(), Some("1"));
    let size = "SELECT coalesce(sum(octet_length(reply)), 0)::int8 FROM docshard_data.numbered_writes";
    assert_eq!(["shard0", "shard1"].map(|name| moving.shard(name).value::<i64>(size)), [0, 0]);
}

/// At the router's own shard clients could call the shard's functions: only for sessions of their own role.
#[test]
fn n15_no_role_speaks_for_another_ones_session() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    router.psql("CREATE ROLE ann; CREATE ROLE bob; SELECT docshard.enable_sharding('loc', 'local')");
    router.psql("SELECT docshard.insert_one('loc.bobs', '{\"_id\": 1}')");
    router.psql("SELECT docshard.grant_access('bob', '{\"write\": \"loc.bobs\"}')");
    let place = "SELECT c.id || ', ' || c.token || ', ' || p.version FROM docshard_catalog.collections c \
                 JOIN docshard_catalog.placements p ON p.collection_id = c.id WHERE c.namespace = 'loc.bobs'";
    let place: String = router.value(place);
    let number = |role: &str| {
        format!(
            "int8send(1) || int4send((SELECT oid::int8::int4 FROM pg_roles WHERE rolname = '{role}')) || \
             decode(repeat('07', 16), 'hex') || 'update loc.bobs'::bytea"
        )
    };
    let calls = |role: &str| {
        let number = number(role);
        [
            format!("SELECT docshard_internal.claim_write({place}, {number}, '')"),
            format!("SELECT docshard_internal.remember_reply({place}, {number}, '\\x0102')"),
            format!(
                "SELECT docshard_internal.update_once({place}, {number}, '', '\\x00', NULL, '{{\"$set\": {{\"a\": 1}}}}', '{{}}')"
            ),
            format!("SELECT docshard_internal.delete_once({place}, {number}, '', '\\x00', NULL)"),
            format!("SELECT docshard_internal.insert_once({place}, {number}, '\\x00')"),
        ]
    };
    let mut bob = router.client();
    bob.batch_execute("SET ROLE bob").unwrap();
    for call in calls("ann") {
        let refused = bob.batch_execute(&call).expect_err(&call);
        assert_eq!(refused.code().map(|code| code.code()), Some("42501"), "{call}: {refused:?}");
    }
    for call in &calls("bob")[..2] {
        bob.batch_execute(call).unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }
    // The router itself calls them for its clients.
    let inc = doc! { "$inc": { "n": 1 } };
    for command in [
        doc! { "update": "bobs", "updates": [{ "q": { "_id": 1 }, "u": &inc }] },
        doc! { "findAndModify": "bobs", "query": { "_id": 1 }, "update": &inc, "new": true },
    ] {
        let session = Session::new();
        let sql = session.sql(1, &command).replace("'test'", "'loc'");
        let mut run = || without_statements(reply(bob.query_one(&sql, &[]).unwrap().get(0)));
        let (first, was_executed) = run();
        assert!(is_ok(&first) && !was_executed, "{first}");
        assert_eq!(run(), (first, true));
    }
    let long =
        format!("SELECT docshard_internal.claim_write({place}, {} || repeat('x', 2000)::bytea, '')", number("bob"));
    assert!(bob.batch_execute(&long).is_err());
}

/// What a role makes a shard keep is limited, though nothing has expired.
#[test]
fn n16_a_role_has_so_many_numbers() {
    let moving = Moving::start(200);
    let shard = moving.shard("shard0");
    let fill = |role: &str, count: i64, reply: &str| {
        shard.psql(&format!(
            "INSERT INTO docshard_data.numbered_writes (session, received, number, command, collection_id, skey, reply, written_at) \
             SELECT decode('{role}' || lpad(to_hex(i), 32, '0'), 'hex'), false, 1, 'x', 1, '', {reply}, now() - i * interval '1 ms' \
             FROM generate_series(1, {count}) i"
        ));
    };
    let count = |condition: &str| {
        shard.value::<i64>(&format!("SELECT count(*) FROM docshard_data.numbered_writes WHERE {condition}"))
    };
    fill("00000001", 200_010, "NULL");
    fill("00000002", 100, "convert_to(repeat('x', 1000000), 'UTF8')");
    fill("00000003", 10, "'x'");
    for _ in 0..3 {
        shard.value::<i64>("SELECT docshard_internal.forget_numbered_writes(10000)");
    }
    assert_eq!(count("substr(session, 1, 4) = '\\x00000001'"), 200_000, "those that were written last");
    assert_eq!(count("substr(session, 1, 4) = '\\x00000002'"), 100);
    assert_eq!(count("substr(session, 1, 4) = '\\x00000002' AND reply IS NOT NULL"), 64);
    assert_eq!(count("substr(session, 1, 4) = '\\x00000003' AND reply IS NOT NULL"), 10);
}

/// A filter may be as long as a command. The key at which its number is claimed is no longer than a document's.
#[test]
fn n17_a_long_filter_claims_at_a_short_key() {
    let moving = Moving::start(20);
    let long = "x".repeat(100_000);
    let inc = doc! { "$inc": { "n": 1 } };
    for filter in [doc! { "k": &long }, doc! { "_id": 1, "k": &long }, doc! { "k": { "$gte": &long } }] {
        for command in [
            doc! { "update": collection(), "updates": [{ "q": &filter, "u": &inc }] },
            doc! { "findAndModify": collection(), "query": &filter, "update": &inc },
        ] {
            let session = Session::new();
            let run = || without_statements(session.run(&moving, 1, &command));
            let (first, was_executed) = run();
            assert!(is_ok(&first) && !was_executed, "{first}");
            assert_eq!(run(), (first, true));
        }
    }
    let longest = |shard: &str| {
        let sql = "SELECT max(octet_length(skey)) FROM docshard_data.numbered_writes";
        moving.shard(shard).value::<Option<i32>>(sql).unwrap_or(0)
    };
    let longest = longest("shard0").max(longest("shard1"));
    assert!((1000..=2600).contains(&longest), "{longest}");
}
