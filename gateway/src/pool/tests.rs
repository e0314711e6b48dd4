//! Tests of the pools, with sessions that have no router.

use super::*;
use tokio::io::{AsyncWriteExt, DuplexStream};

const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(60);

fn who(role: &str, generation: u64) -> Identity {
    Identity { role: role.to_owned(), generation: Some(generation) }
}

/// Returns pools with these sessions, and the other ends of the sessions' connections: a session lives until its end is dropped. The first
/// role has generation 1, the second one 2.
fn pools(limit: usize, patience: Duration, sessions: &[(&str, u64)]) -> (Arc<Pools>, Vec<DuplexStream>) {
    let pools = Pools::new(limit, patience, SOON, Arc::default());
    let add = |(role, id): &(&str, u64)| {
        let (session, end) = Session::detached(*id);
        assert!(pools.add(role, session).is_some());
        end
    };
    let ends = sessions.iter().map(add).collect();
    (pools, ends)
}

fn ids(pools: &Pools, role: &str) -> Vec<u64> {
    pools.lock().roles.get(role).map_or(Vec::new(), |role| role.idle.iter().map(|session| session.id).collect())
}

fn count(pools: &Pools) -> usize {
    pools.lock().count()
}

async fn wait_for_waiters(pools: &Pools, role: &str, count: usize) {
    while pools.lock().roles[role].waiting.len() < count {
        tokio::task::yield_now().await;
    }
}

/// Sends the message with which PostgreSQL ends a session.
async fn send_fatal(end: &mut DuplexStream, sqlstate: &str) {
    let fields = format!("SFATAL\0VFATAL\0C{sqlstate}\0Mover\0\0");
    end.write_u8(b'E').await.unwrap();
    end.write_u32(4 + fields.len() as u32).await.unwrap();
    end.write_all(fields.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_session_is_leased_to_one_at_a_time() {
    let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("bob", 2)]);
    let ann = who("ann", 1);
    let lease = pools.lease(&ann, None).await.unwrap();
    assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::Timeout);
    assert_eq!(pools.lease(&who("eve", 1), None).await.unwrap_err(), Unavailable::NoSession);
    assert_eq!(pools.lease(&ann, Some(2)).await.unwrap_err(), Unavailable::Gone, "another role's session");
    drop(lease);
    // The client whose wait timed out is not given the returned session.
    assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![1], vec![2]));
}

#[tokio::test]
async fn a_client_that_waits_is_served_in_order_or_with_the_session_of_the_cursor() {
    let (pools, _ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
    let ann = who("ann", 1);
    let (first, second) = (pools.lease(&ann, Some(1)).await.unwrap(), pools.lease(&ann, Some(2)).await.unwrap());
    let wait = |wanted: Option<u64>| {
        let pools = pools.clone();
        async move { pools.lease(&who("ann", 1), wanted).await.unwrap().session().id }
    };
    let (cursor, any) = (tokio::spawn(wait(Some(2))), tokio::spawn(wait(None)));
    wait_for_waiters(&pools, "ann", 2).await;
    drop(first);
    assert_eq!(any.await.unwrap(), 1);
    assert!(!cursor.is_finished());
    drop(second);
    assert_eq!(cursor.await.unwrap(), 2);
    assert_eq!(ids(&pools, "ann").len(), 2);
}

#[tokio::test]
async fn a_statement_that_is_given_up_ends_only_its_session() {
    let (pools, _ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
    let ann = who("ann", 1);
    let mut lease = pools.lease(&ann, Some(2)).await.unwrap();
    lease.session().pretend_to_run();
    drop(lease);
    assert_eq!(pools.lease(&ann, Some(2)).await.unwrap_err(), Unavailable::Gone);
    // When the role's last session ends, its waiters fail at once.
    let mut lease = pools.lease(&ann, None).await.unwrap();
    lease.session().pretend_to_run();
    let waiting = tokio::spawn({
        let (pools, ann) = (pools.clone(), ann.clone());
        async move { pools.lease(&ann, None).await.map(drop) }
    });
    wait_for_waiters(&pools, "ann", 1).await;
    drop(lease);
    assert_eq!(waiting.await.unwrap(), Err(Unavailable::NoSession));
    assert!(pools.lock().roles.is_empty());
    // Without a salt (`Session::detached`) a login cannot prove that the password is the same, so it begins a new generation.
    let (session, _end) = Session::detached(3);
    assert_eq!(pools.add("ann", session), Some(2));
    assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::NoSession);
}

#[tokio::test]
async fn a_session_that_the_router_ends_while_idle_ends_the_generation() {
    for fatal in [true, false] {
        let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2), ("bob", 3)]);
        match fatal {
            true => send_fatal(&mut ends[1], "57P01").await,
            false => drop(ends.remove(1)),
        }
        assert_eq!(pools.lease(&who("ann", 1), None).await.unwrap_err(), Unavailable::NoSession);
        assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![], vec![3]));
    }
}

#[tokio::test]
async fn a_login_finds_sessions_that_the_router_has_ended() {
    let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2), ("bob", 3)]);
    let old = who("ann", 1);
    let mut lease = pools.lease(&old, Some(2)).await.unwrap();
    send_fatal(&mut ends[0], "57P01").await;
    let (session, _end) = Session::detached(4);
    assert_eq!(pools.add("ann", session), Some(3), "a generation is new to the whole gateway");
    assert_eq!(pools.lease(&old, None).await.unwrap_err(), Unavailable::NoSession);
    assert_eq!(pools.lease(&old, Some(4)).await.unwrap_err(), Unavailable::Gone, "a cursor of the new generation");
    assert_eq!(pools.lease(&who("ann", 3), Some(2)).await.unwrap_err(), Unavailable::Gone, "an old cursor");
    // A leased session of an ended generation counts against the limit until it is returned. It is then closed.
    assert_eq!(count(&pools), 3);
    assert!(lease.session().is_usable());
    drop(lease);
    assert_eq!((count(&pools), ids(&pools, "ann")), (2, vec![4]));
    assert!(pools.lease(&who("bob", 2), None).await.is_ok());
}

#[tokio::test]
async fn at_the_limit_a_login_finds_sessions_that_the_router_has_ended() {
    let (pools, mut ends) = pools(1, LATE, &[("ann", 1)]);
    send_fatal(&mut ends[0], "57P01").await;
    let (session, _end) = Session::detached(2);
    assert_eq!(pools.add("ann", session), Some(2));
    assert_eq!(ids(&pools, "ann"), [2]);
    // A session that has ended already is not added.
    let (session, end) = Session::detached(3);
    drop(end);
    assert_eq!(pools.add("ann", session), None);
}

#[tokio::test]
async fn a_session_that_the_router_ends_while_leased_ends_the_generation() {
    for running in [true, false] {
        let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
        let (ann, mut end) = (who("ann", 1), ends.remove(0));
        let mut lease = pools.lease(&ann, Some(1)).await.unwrap();
        // Another client logs in meanwhile. Its session joins the same generation.
        let (session, _end) = Session::detached(3);
        assert_eq!(pools.add("ann", session), Some(1));
        if running {
            let (error, ()) = tokio::join!(lease.session().run(None, "test", b""), send_fatal(&mut end, "57P01"));
            assert_eq!(error.unwrap().unwrap_err().sqlstate, "57P01");
        } else {
            drop(end);
        }
        drop(lease);
        assert!(pools.lock().roles.is_empty());
        assert_eq!(count(&pools), 0);
        assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::NoSession);
    }
}

#[tokio::test]
async fn a_session_that_the_router_ends_after_its_client_has_left_ends_the_generation() {
    let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
    let mut lease = pools.lease(&who("ann", 1), Some(1)).await.unwrap();
    lease.session().pretend_to_run();
    drop(lease);
    assert_eq!(ids(&pools, "ann"), [2]);
    send_fatal(&mut ends[0], "57P01").await;
    while !pools.lock().roles.is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_time_limit_ends_only_its_session() {
    let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2), ("ann", 3)]);
    send_fatal(&mut ends[2], "57P05").await;
    let mut lease = pools.lease(&who("ann", 1), None).await.unwrap();
    assert_eq!(lease.session().id, 2);
    let (error, ()) = tokio::join!(lease.session().run(None, "test", b""), send_fatal(&mut ends[1], "25P04"));
    assert!(error.unwrap().unwrap_err().fatal);
    drop(lease);
    assert_eq!((count(&pools), ids(&pools, "ann")), (1, vec![1]));
}

#[tokio::test]
async fn another_role_of_the_same_name_is_another_generation() {
    let (pools, _ends) = pools(9, LATE, &[("ann", 1)]);
    let (mut session, _end) = Session::detached(2);
    session.role += 1;
    assert_eq!(pools.add("ann", session), Some(2));
    assert_eq!(ids(&pools, "ann"), [2]);
    assert_eq!(pools.lease(&who("ann", 1), None).await.unwrap_err(), Unavailable::NoSession);
}

#[tokio::test]
async fn a_login_is_asked_for_if_all_sessions_have_transactions() {
    let (pools, _ends) = pools(4, SOON, &[("ann", 1), ("ann", 2)]);
    let ann = who("ann", 1);
    let wanted = Wanted { can_log_in: true, ..Wanted::default() };
    let (mut first, mut second) = (pools.lease(&ann, None).await.unwrap(), pools.lease(&ann, None).await.unwrap());
    first.pin();
    assert_eq!(pools.lease_such(&ann, wanted).await.unwrap_err(), Unavailable::Timeout, "the other one will be free");
    second.pin();
    assert_eq!(pools.lease_such(&ann, wanted).await.unwrap_err(), Unavailable::Full);
    assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::Timeout);
    let (session, _end) = Session::detached(3);
    assert_eq!(pools.add("ann", session), Some(1));
    let _third = pools.lease_such(&ann, wanted).await.unwrap();
    assert_eq!(pools.lease_such(&ann, wanted).await.unwrap_err(), Unavailable::Timeout, "ann uses its share");
    drop(first);
    assert!(pools.lease_such(&ann, wanted).await.is_ok());
}

#[tokio::test]
async fn a_session_in_a_transaction_does_not_come_back() {
    let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("ann", 2)]);
    let mut lease = pools.lease(&who("ann", 1), Some(1)).await.unwrap();
    lease.pin();
    lease.session().pretend_to_be_in_a_transaction();
    drop(lease);
    assert_eq!((ids(&pools, "ann"), count(&pools)), (vec![2], 1));
}

/// Opens this number of cursors in a session of `ann`.
fn open_cursors(pools: &Pools, session: u64, count: i64) {
    for number in 0..count {
        let id = (session as i64) << 32 | number;
        pools.cursors().insert("ann", id, session, None, ("test".to_owned(), "things".to_owned()));
    }
}

#[tokio::test]
async fn a_command_takes_the_session_with_the_fewest_cursors() {
    let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("ann", 2), ("ann", 3), ("ann", 4)]);
    let ann = who("ann", 1);
    for (session, count) in [(2, 1), (3, 2), (4, 1)] {
        open_cursors(&pools, session, count);
    }
    let mut leases = Vec::new();
    for expected in [1, 4, 2, 3] {
        leases.push(pools.lease(&ann, None).await.unwrap());
        assert_eq!(leases.last_mut().unwrap().session().id, expected);
    }
    // So does one that has waited.
    let waiting = tokio::spawn({
        let (pools, ann) = (pools.clone(), ann.clone());
        async move { pools.lease(&ann, None).await.map(|mut lease| lease.session().id) }
    });
    wait_for_waiters(&pools, "ann", 1).await;
    drop(leases);
    assert_eq!(waiting.await.unwrap(), Ok(1));
}

#[tokio::test]
async fn a_login_is_asked_for_if_all_sessions_have_as_many_cursors_as_they_may() {
    let (pools, _ends) = pools(2, SOON, &[("ann", 1)]);
    let ann = who("ann", 1);
    let wanted = Wanted { can_log_in: true, opens_cursor: true, ..Wanted::default() };
    let most = MAX_OF_SESSION as i64;
    open_cursors(&pools, 1, most - 1);
    assert!(pools.lease_such(&ann, wanted).await.is_ok());
    open_cursors(&pools, 1, most);
    assert_eq!(pools.lease_such(&ann, wanted).await.unwrap_err(), Unavailable::Full);
    for other in [Wanted { can_log_in: false, ..wanted }, Wanted { opens_cursor: false, ..wanted }] {
        assert!(pools.lease_such(&ann, other).await.is_ok());
    }
    let (session, _end) = Session::detached(2);
    pools.add("ann", session);
    assert_eq!(pools.lease_such(&ann, wanted).await.unwrap().session().id, 2);
    open_cursors(&pools, 2, most);
    assert!(pools.lease_such(&ann, wanted).await.is_ok(), "there is no room");
}

#[tokio::test]
async fn sessions_with_cursors_are_the_last_to_be_closed() {
    let (pools, _ends) = pools(4, SOON, &[("ann", 1), ("ann", 2), ("ann", 3), ("ann", 4)]);
    open_cursors(&pools, 1, 1);
    open_cursors(&pools, 2, 2);
    let (session, _end) = Session::detached(5);
    assert!(pools.add("bob", session).is_some());
    assert_eq!(ids(&pools, "ann"), [1, 2, 4]);
    pools.close_idle(Duration::ZERO);
    assert_eq!(ids(&pools, "ann"), [1, 2]);
    for (other, id) in [("carl", 6), ("dora", 7)] {
        let (session, _end) = Session::detached(id);
        assert!(pools.add(other, session).is_some());
    }
    assert_eq!(ids(&pools, "ann"), [2]);
}

#[tokio::test]
async fn the_anonymous_role_gets_more_sessions_while_all_have_cursors() {
    let (pools, _ends) = pools(2, SOON, &[("ann", 1)]);
    assert!(!pools.is_wanting("ann"));
    open_cursors(&pools, 1, 1);
    assert!(pools.is_wanting("ann"));
    let (session, _end) = Session::detached(2);
    pools.add("ann", session);
    open_cursors(&pools, 2, 1);
    assert!(!pools.is_wanting("ann"), "there is no room");
}

#[tokio::test]
async fn a_generation_comes_back_with_the_same_password_of_the_same_role() {
    let password = |salt: &str| Proof::Password(salt.into());
    for (proof, role, comes_back) in [
        (password("s=a"), 10, true),
        (password("s=b"), 10, false),
        (password("s=a"), 11, false),
        (Proof::Nothing, 10, false),
        (Proof::Certificate("s=a".into()), 10, false),
    ] {
        let pools = Pools::new(9, LATE, SOON, Arc::default());
        let (first, end) = proved(1, password("s=a"), 10);
        assert_eq!(pools.add("ann", first), Some(1));
        let ann = who("ann", 1);
        let old = pools.lease(&ann, None).await.unwrap();
        let (idle, idle_end) = proved(2, password("s=a"), 10);
        assert_eq!(pools.add("ann", idle), Some(1));
        drop((end, idle_end));
        // The generation has ended, and may come back. A client that can log in again fails at once. The others wait for another client's
        // login, and fail after the time `hold`, here `SOON`.
        let wanted = Wanted { can_log_in: true, ..Wanted::default() };
        assert_eq!(pools.lease_such(&ann, wanted).await.unwrap_err(), Unavailable::NoSession);
        assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::NoSession);
        let waiting = tokio::spawn({
            let (pools, ann) = (pools.clone(), ann.clone());
            async move { pools.lease(&ann, None).await.map(|mut lease| lease.session().id) }
        });
        tokio::task::yield_now().await;
        let (next, _end) = proved(3, proof, role);
        assert_eq!(pools.add("ann", next), Some(if comes_back { 1 } else { 2 }));
        assert_eq!(waiting.await.unwrap(), if comes_back { Ok(3) } else { Err(Unavailable::NoSession) });
        // The session that was leased before does not join the new pool. It is closed when it is returned.
        assert_eq!(count(&pools), 2);
        drop(old);
        assert_eq!((count(&pools), ids(&pools, "ann")), (1, vec![3]));
    }
}

fn proved(id: u64, proof: Proof, role: Oid) -> (Session, DuplexStream) {
    let (mut session, end) = Session::detached(id);
    (session.proof, session.role) = (proof, role);
    (session, end)
}

/// PostgreSQL demands one thing of a role, so an administrator has withdrawn the other.
#[tokio::test]
async fn clients_with_and_without_a_certificate_have_different_generations() {
    let (password, other_password) = (Proof::Password("a".into()), Proof::Password("b".into()));
    let (certificate, other_certificate) = (Proof::Certificate("a".into()), Proof::Certificate("b".into()));
    for (first, second, third) in [
        (&password, &other_password, &certificate),
        (&certificate, &other_certificate, &password),
        // The anonymous role's sessions serve everybody.
        (&Proof::Nothing, &certificate, &password),
        (&certificate, &Proof::Nothing, &password),
    ] {
        let pools = Pools::new(9, LATE, SOON, Arc::default());
        let mut ends = Vec::new();
        for (proof, generation) in [(first, 1), (second, 1), (third, 2)] {
            let (session, end) = proved(generation, proof.clone(), 10);
            ends.push(end);
            assert_eq!(pools.add("ann", session), Some(generation));
        }
        assert_eq!(pools.lease(&who("ann", 1), None).await.unwrap_err(), Unavailable::NoSession);
        assert_eq!(count(&pools), 1);
    }
}

/// As with a password, one client's login serves the others after a restart of the router.
#[tokio::test]
async fn a_generation_comes_back_with_the_same_certificate() {
    for (second, generation) in [("a", 1), ("b", 2)] {
        let pools = Pools::new(9, LATE, SOON, Arc::default());
        let (session, end) = proved(1, Proof::Certificate("a".into()), 10);
        assert_eq!(pools.add("ann", session), Some(1));
        drop(end);
        let (session, _end) = proved(2, Proof::Certificate(second.into()), 10);
        assert_eq!(pools.add("ann", session), Some(generation));
    }
}

#[tokio::test]
async fn clients_that_need_no_login_use_any_generation() {
    let (pools, _ends) = pools(9, LATE, &[("bob", 1), ("ann", 2)]);
    let without_login = Identity { role: "ann".to_owned(), generation: None };
    assert_eq!(pools.lease(&without_login, None).await.unwrap().session().id, 2);
}

#[tokio::test]
async fn a_role_keeps_one_idle_session() {
    let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("ann", 2), ("ann", 3), ("bob", 4)]);
    pools.close_idle(LATE);
    assert_eq!(ids(&pools, "ann"), [1, 2, 3]);
    let lease = pools.lease(&who("ann", 1), None).await.unwrap();
    pools.close_idle(Duration::ZERO);
    assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![], vec![4]));
    drop(lease);
    pools.close_idle(Duration::ZERO);
    assert_eq!(ids(&pools, "ann"), [3]);
    assert!(pools.lease(&who("ann", 1), None).await.is_ok(), "the generation goes on");
}

#[tokio::test]
async fn the_number_of_sessions_is_limited() {
    let (pools, _ends) = pools(2, SOON, &[("ann", 1), ("ann", 2), ("ann", 3)]);
    assert_eq!(ids(&pools, "ann"), [1, 2], "a third session of the same role is not kept");
    let (session, _end) = Session::detached(4);
    assert_eq!(pools.add("bob", session), Some(2), "it replaces an idle session of ann");
    assert_eq!((ids(&pools, "ann").len(), ids(&pools, "bob")), (1, vec![4]));
    let all = (pools.lease(&who("ann", 1), None).await.unwrap(), pools.lease(&who("bob", 2), None).await.unwrap());
    let (session, _end) = Session::detached(5);
    assert_eq!(pools.add("eve", session), None, "nothing is idle");
    // ann and bob have one idle session each. eve's login replaces one of them, and the role that loses its only session has no pool any more.
    drop(all);
    let (session, _end) = Session::detached(6);
    assert_eq!(pools.add("eve", session), Some(3));
    let lost = if ids(&pools, "ann").is_empty() { "ann" } else { "bob" };
    assert!(!pools.lock().roles.contains_key(lost));
}

#[tokio::test]
async fn at_the_limit_a_login_takes_the_place_of_the_one_who_has_most() {
    let all: Vec<(&str, u64)> = (1..=8).map(|id| ("dan", id)).collect();
    let (pools, mut ends) = pools(8, SOON, &all);
    let mut log_in = |role: &str, id: u64| {
        let (session, end) = Session::detached(id);
        ends.push(end);
        pools.add(role, session).map(|generation| who(role, generation))
    };
    let ann = log_in("ann", 20).unwrap();
    // One client's transaction uses ann's only session: another client of ann is told to log in, and gets a session.
    let wanted = Wanted { can_log_in: true, ..Wanted::default() };
    let mut transaction = pools.lease(&ann, None).await.unwrap();
    transaction.pin();
    assert!(pools.is_wanting("ann"));
    assert_eq!(pools.lease_such(&ann, wanted).await.unwrap_err(), Unavailable::Full);
    assert_eq!(log_in("ann", 21), Some(ann.clone()));
    let second = pools.lease_such(&ann, wanted).await.unwrap();
    // ann's logins replace dan's sessions, the oldest first, until both roles own four.
    (22..30).for_each(|id| assert_eq!(log_in("ann", id), Some(ann.clone())));
    assert_eq!((ids(&pools, "ann").len() + 2, ids(&pools, "dan")), (4, vec![5, 6, 7, 8]));
    (30..40).for_each(|id| assert!(log_in("dan", id).is_some()));
    assert_eq!((count(&pools), ids(&pools, "dan").len()), (8, 4));
    // A login of a third role replaces a session of the role that owns most, if that role owns at least two more. So bob gets two, which leaves
    // three each to ann and dan.
    (40..50).for_each(|id| assert!(log_in("bob", id).is_some()));
    assert_eq!(ids(&pools, "bob").len(), 2);
    assert_eq!(count(&pools), 8);
    drop((transaction, second));
}

#[tokio::test]
async fn a_role_leaves_sessions_to_others() {
    let all: Vec<(&str, u64)> = (1..=16).map(|id| ("eve", id)).collect();
    let (pools, _ends) = pools(16, SOON, &all);
    let eve = who("eve", 1);
    let mut held = Vec::new();
    while let Ok(lease) = pools.lease(&eve, None).await {
        held.push(lease);
    }
    assert_eq!(held.len(), 12, "three quarters of 16");
    let idle = ids(&pools, "eve");
    assert_eq!(pools.lease(&eve, Some(idle[0])).await.unwrap_err(), Unavailable::Timeout, "a cursor's, too");
    assert!(!pools.is_wanting("eve"));
    // A second role gets only two of the four sessions that are left: the last eighth of the 16 is for roles that use no session.
    let join = |role: &str, id: u64| {
        let (session, end) = Session::detached(id);
        std::mem::forget(end);
        pools.add(role, session).unwrap()
    };
    let mallory = who("mallory", join("mallory", 20));
    (21..30).for_each(|id| assert_eq!(Some(join("mallory", id)), mallory.generation));
    let mut others = Vec::new();
    while let Ok(lease) = pools.lease(&mallory, None).await {
        others.push(lease);
    }
    assert_eq!(others.len(), 2, "14 sessions are in use");
    for (number, role) in ["ann", "bob"].into_iter().enumerate() {
        let user = who(role, join(role, 40 + number as u64));
        others.push(pools.lease(&user, None).await.unwrap());
        assert_eq!(pools.lease(&user, None).await.unwrap_err(), Unavailable::Timeout);
    }
    // Leases of an ended generation still count against the role's share.
    others.remove(0);
    pools.lock().end("eve");
    let again = who("eve", join("eve", 60));
    assert_eq!(pools.lease(&again, None).await.unwrap_err(), Unavailable::Timeout);
    drop(held);
    assert!(pools.lock().retired.is_empty());
    assert!(pools.lease(&again, None).await.is_ok());
}

#[tokio::test]
async fn a_client_that_waits_is_served_when_its_roles_share_grows() {
    let (pools, _ends) = pools(
        8,
        LATE,
        &[("ann", 1), ("ann", 2), ("ann", 3), ("bob", 4), ("bob", 5), ("bob", 6), ("bob", 7), ("bob", 8)],
    );
    let (ann, bob) = (who("ann", 1), who("bob", 2));
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(pools.lease(&bob, None).await.unwrap());
    }
    let first = pools.lease(&ann, None).await.unwrap();
    let second = pools.lease(&ann, None).await.unwrap();
    let waiting = tokio::spawn({
        let (pools, ann) = (pools.clone(), ann.clone());
        async move { pools.lease(&ann, None).await.map(|mut lease| lease.session().id) }
    });
    wait_for_waiters(&pools, "ann", 1).await;
    assert_eq!(ids(&pools, "ann").len(), 1, "a session is idle, but ann uses its share");
    held.pop();
    assert!(waiting.await.unwrap().is_ok());
    drop((first, second));
    assert_eq!(ids(&pools, "ann").len(), 3);
}

#[tokio::test]
async fn clients_that_no_longer_wait_are_forgotten() {
    let (pools, _ends) = pools(9, LATE, &[("ann", 1)]);
    let ann = who("ann", 1);
    let _lease = pools.lease(&ann, None).await.unwrap();
    for _ in 0..5_000 {
        tokio::select! {
            biased;
            _ = pools.lease(&ann, None) => panic!("nothing is idle"),
            () = std::future::ready(()) => {}
        }
    }
    assert!(pools.lock().roles["ann"].waiting.len() <= MANY_WAITING);
}
