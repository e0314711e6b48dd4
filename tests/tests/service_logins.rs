//! The logins between nodes: their passwords are rotated while clients connect, no log contains them, and the roles are
//! dropped when a shard is removed.

use docshard_tests::logins::{
    NS, PATIENCE, assert_not_logged, create_role, secrets, service_login, service_session, spread, sqlstate_of,
    sqlstate_of_login,
};
use docshard_tests::moving::nodes;
use docshard_tests::{Cluster, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The service role's password is rotated repeatedly while clients connect, work and disconnect.
#[test]
fn passwords_rotate_while_clients_connect() {
    const CLIENTS: usize = 32;
    const ROTATIONS: usize = 5;
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let password = create_role(&cluster, "app", &json!({"write": NS}));
    let stop = AtomicBool::new(false);
    let sessions = AtomicU64::new(0);
    let (first, mut passwords) = (secrets(&cluster), Vec::new());
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (cluster, stop, sessions, password) = (&cluster, &stop, &sessions, &password);
            scope.spawn(move || {
                // One session stays connected, the others are opened anew.
                let mut old = cluster.router.try_client_with("app", password).expect("a session");
                while !stop.load(Ordering::Relaxed) {
                    let mut new = cluster.router.try_client_with("app", password).expect("a session");
                    for session in [&mut old, &mut new] {
                        let k = 100 + 100 * (client % 2);
                        let update = format!(
                            "SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}')"
                        );
                        session.batch_execute(&update).unwrap_or_else(|e| panic!("{update}: {e:?}"));
                        session.batch_execute(&format!("SELECT docshard.find('{NS}')")).expect("a find on all shards");
                    }
                    sessions.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            // Nothing is wrong with a shard whose password is being changed.
            let refused = "SELECT string_agg(error, '; ') FROM docshard.shard_health(60000) WHERE error ~ 'password'";
            let mut monitor = cluster.router.client();
            while !stop.load(Ordering::Relaxed) {
                let error: Option<String> = monitor.query_one(refused, &[]).expect("the health").get(0);
                assert_eq!(error, None);
            }
        });
        for _ in 0..ROTATIONS {
            let (began, before) = (Instant::now(), sessions.load(Ordering::Relaxed));
            let servers = [("shard0", &cluster.shards[0]), ("shard1", &cluster.shards[1]), ("local", &cluster.router)];
            let logins = || servers.map(|(server, _)| service_login(&cluster, server));
            let old = logins();
            cluster.router.psql("SELECT docshard.rotate_service_password()");
            let new = logins();
            for (at, (_, node)) in servers.into_iter().enumerate() {
                assert!(old[at].0 == new[at].0 && old[at].1 != new[at].1);
                assert_eq!(sqlstate_of_login(node.try_client_with(&old[at].0, &old[at].1)), "28P01");
                // A password for another shard, which that shard could learn by asking for it in plain text, is of no use here.
                let (theirs, password) = &new[(at + 1) % 3];
                assert!(*theirs != new[at].0 && *password != new[at].1);
                assert_eq!(sqlstate_of_login(node.try_client_with(&new[at].0, password)), "28P01");
                assert_eq!(sqlstate_of_login(node.try_client_with(theirs, password)), "28P01");
            }
            passwords.extend(old.into_iter().chain(new).map(|(_, password)| password));
            wait_until("sessions were opened", PATIENCE, || sessions.load(Ordering::Relaxed) >= before + 20);
            thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.rotation"), 0);
    // Moves use other passwords, and continue to work.
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    assert_not_logged(&cluster, &[first, passwords, secrets(&cluster)].concat());
}

/// The router crashes after it has stored a password and sent it to the shard.
#[test]
fn a_rotation_that_was_interrupted_is_finished_by_the_worker() {
    let cluster = Cluster::with_passwords(1);
    spread(&cluster, 1);
    let (service, before) = service_login(&cluster, "shard0");
    let new = "the-password-that-was-noted-before-the-crash";
    cluster.shards[0].unlogged_client().batch_execute(&format!("ALTER ROLE {service} PASSWORD '{new}'")).unwrap();
    cluster
        .router
        .unlogged_client()
        .batch_execute(&format!(
            "INSERT INTO docshard_catalog.rotation (server, password) VALUES ('docshard_shard0', '{new}')"
        ))
        .unwrap();
    wait_until("the worker has finished it", PATIENCE, || {
        cluster.router.value("SELECT count(*) = 0 FROM docshard_catalog.rotation")
    });
    assert_eq!(service_login(&cluster, "shard0"), (service, new.to_owned()));
    assert_ne!(before, new);
    cluster.router.psql(&format!("SELECT docshard.find('{NS}')"));
}

/// A rotation that fails at a shard logs no secret either, and the next rotation completes it.
#[test]
fn no_secret_is_logged_though_statements_fail() {
    let mut cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let app = create_role(&cluster, "app", &json!({"write": NS}));
    let mut all = secrets(&cluster);
    all.push(app.clone());

    // The role is locked on this shard, and its administrator cancels the change.
    let (service, _) = service_login(&cluster, "shard0");
    let mut holder = cluster.shards[0].client();
    holder.batch_execute(&format!("BEGIN; ALTER ROLE {service} CONNECTION LIMIT 90")).unwrap();
    thread::scope(|scope| {
        let rotation = scope.spawn(|| {
            let rotated = cluster.router.client().query_one("SELECT docshard.rotate_service_password()", &[]);
            rotated.expect("an answer").get::<_, Value>(0)
        });
        let waiting =
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%set_service_password%' AND wait_event_type = 'Lock'";
        wait_until("the change waits", PATIENCE, || {
            !cluster.shards[0].client().query(waiting, &[]).unwrap().is_empty()
        });
        all.extend(secrets(&cluster));
        let cancelled = format!("SELECT bool_and(pg_cancel_backend(pid)) FROM ({waiting}) AS w");
        assert!(cluster.shards[0].value::<bool>(&cancelled));
        let answer = rotation.join().expect("a rotation");
        assert!(answer.to_string().contains("docshard_shard0"), "the answer names who is late: {answer}");
    });
    holder.batch_execute("ROLLBACK").unwrap();
    all.extend(secrets(&cluster));
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.rotation"), 1);

    // A shard that is down.
    cluster.shards[1].stop();
    let answer = cluster.router.psql("SELECT docshard.rotate_service_password()");
    assert!(!answer.contains("docshard_shard0"), "{answer}");
    cluster.shards[1].start();
    cluster.router.psql("SELECT docshard.rotate_service_password()");
    all.extend(secrets(&cluster));
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.rotation"), 0);
    let mut session = cluster.router.try_client_with("app", &app).expect("a session");
    assert_eq!(session.query(&format!("SELECT docshard.find('{NS}')"), &[]).expect("a find").len(), 3);

    // Statements that fail at a shard, as the service role and as other roles, and at the router.
    assert_eq!(
        sqlstate_of(&mut session, &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 100, \"k\": 100}}')")),
        "23505"
    );
    for sql in
        ["SELECT docshard_internal.set_service_password('x')", "SELECT docshard_internal.accept_puller('x', 'y')"]
    {
        assert_eq!(sqlstate_of(&mut service_session(&cluster, &cluster.shards[0]), sql), "22023", "{sql}");
    }
    // add_shard with a wrong login, used as the documentation recommends.
    let port = cluster.shards[0].port;
    let wrong = "wrong-password-of-postgres";
    let error = cluster
        .router
        .unlogged_client()
        .batch_execute(&format!(
            "SELECT docshard.add_shard('host=127.0.0.1 port={port} dbname=postgres', '{{\"user\": \"postgres\", \"password\": \"{wrong}\"}}')"
        ))
        .expect_err("it is wrong");
    assert!(!format!("{error:?}").contains(wrong), "{error:?}");
    all.push(wrong.to_owned());
    assert_not_logged(&cluster, &all);
}

/// All secrets that a removed shard had, and that others had for it, are deleted. It can be added again.
#[test]
fn nothing_is_left_of_a_removed_shard() {
    let cluster = Cluster::with_passwords(3);
    spread(&cluster, 3);
    create_role(&cluster, "app", &json!({"write": NS}));
    let mut all = secrets(&cluster);
    let id: i32 = cluster.router.value("SELECT id FROM docshard.shards WHERE name = 'shard2'");
    let (service, _) = service_login(&cluster, "shard2");
    let puller = format!("{}_{id}", service.rsplit_once("_s").expect("a service role's name").0);
    let secret: String = cluster.shards[2].value("SELECT secret FROM docshard_data.service");
    // Checks that they existed before.
    for node in [&cluster.router, &cluster.shards[0], &cluster.shards[1]] {
        node.try_client_with(&puller, &secret).unwrap_or_else(|e| panic!("{puller} at {}: {e}", node.name));
    }
    cluster.router.psql("SELECT docshard.start_balancer()");
    let remove = || cluster.router.value::<String>("SELECT docshard.remove_shard('shard2') ->> 'state'");
    wait_until("shard2 is removed", PATIENCE, || remove() == "completed");

    for node in [&cluster.router, &cluster.shards[0], &cluster.shards[1]] {
        assert_eq!(sqlstate_of_login(node.try_client_with(&puller, &secret)), "28P01", "{}", node.name);
        for sql in [
            format!("SELECT count(*) FROM pg_roles WHERE rolname = '{puller}'"),
            "SELECT count(*) FROM pg_foreign_server WHERE srvname = 'docshard_shard2'".to_owned(),
            "SELECT count(*) FROM pg_user_mappings WHERE srvname = 'docshard_shard2'".to_owned(),
        ] {
            assert_eq!(node.value::<i64>(&sql), 0, "{}: {sql}", node.name);
        }
    }
    let removed = &cluster.shards[2];
    for sql in [
        format!("SELECT count(*) FROM pg_roles WHERE rolname LIKE '{service}\\_%'"),
        "SELECT count(*) FROM pg_foreign_server".to_owned(),
        "SELECT count(*) FROM pg_user_mappings".to_owned(),
        "SELECT count(secret) FROM docshard_data.service".to_owned(),
        "SELECT count(*) FROM docshard_data.node".to_owned(),
    ] {
        assert_eq!(removed.value::<i64>(&sql), 0, "{sql}");
    }
    // Moves between the other shards still work.
    cluster.router.psql("SELECT docshard.stop_balancer()");
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'local')"));
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));

    cluster.router.add_shard(removed);
    all.extend(secrets(&cluster));
    for to in ["shard2", "shard0"] {
        let moved = format!("SELECT (docshard.move_chunk('{NS}', '{{\"k\": 100}}', '{to}') ->> 'documents')::bigint");
        assert!(cluster.router.value::<i64>(&moved) > 0, "to {to}");
    }
    assert_not_logged(&cluster, &all);
}

/// Only the creation of the extension on a new shard needs a superuser, and that login is not stored.
#[test]
fn no_superuser_is_needed_beyond_creating_the_extension() {
    let cluster = Cluster::servers_with_passwords(2);
    cluster.router.add_shard(&cluster.shards[0]);
    // The administrator is not a superuser, and the shard was prepared by its own superuser.
    let dba = create_role(&cluster, "dba", &Value::Null);
    cluster.router.psql(
        "GRANT USAGE ON SCHEMA docshard, docshard_internal TO dba; \
         GRANT EXECUTE ON FUNCTION docshard.add_shard, docshard.shard_collection, docshard.enable_sharding, docshard.split_at, \
           docshard.move_chunk, docshard.stop_balancer, docshard.grant_access, docshard.revoke_access, docshard.rotate_service_password, \
           docshard.remove_shard TO dba",
    );
    let theirs = "password-that-the-shard-has-chosen";
    cluster.shards[1]
        .unlogged_client()
        .batch_execute(&format!(
            "CREATE EXTENSION docshard CASCADE; CREATE ROLE its_router LOGIN PASSWORD '{theirs}'; SELECT docshard.accept_router('its_router')"
        ))
        .expect("a superuser prepares the shard");
    let mut session = cluster.router.try_client_with("dba", &dba).expect("a session");
    let conn = format!("host=127.0.0.1 port={} dbname=postgres", cluster.shards[1].port);
    let add = |user: &str, password: &str, name: &str| {
        let options = json!({"name": name, "user": user, "password": password});
        format!("SELECT docshard.add_shard('{conn}', '{options}')")
    };
    assert_eq!(sqlstate_of(&mut session, &add("its_router", "wrong", "shard1")), "08001");
    session.batch_execute(&add("its_router", theirs, "shard1")).expect("an administrator adds the shard");
    for sql in [
        "SELECT docshard.stop_balancer()",
        "SELECT docshard.enable_sharding('test', 'local')",
        "SELECT docshard.shard_collection('test.things', '{\"k\": 1}')",
        "SELECT docshard.split_at('test.things', '{\"k\": 100}')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard0')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'local')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard1')",
        "SELECT docshard.rotate_service_password()",
    ] {
        session.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    // The cluster's roles have no special privileges, and no administrator's login is stored.
    for node in nodes(&cluster) {
        let powerful = "SELECT count(*) FROM pg_roles WHERE (rolname LIKE 'docshard\\_%' OR rolname = 'its_router')
           AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)";
        assert_eq!(node.value::<i64>(powerful), 0, "{}", node.name);
        let kept: Vec<String> = node
            .client()
            .query("SELECT option_value FROM pg_user_mappings, pg_options_to_table(umoptions)", &[])
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert!(!kept.is_empty(), "{}", node.name);
        for admin in nodes(&cluster) {
            assert!(
                !kept.iter().any(|value| value == "postgres" || Some(value.as_str()) == admin.password()),
                "{kept:?}"
            );
        }
    }
    // The administrators' passwords may therefore change.
    for shard in &cluster.shards {
        shard.unlogged_client().batch_execute("ALTER ROLE postgres PASSWORD 'another-one' NOLOGIN").unwrap();
    }
    session.batch_execute("SELECT docshard.move_chunk('test.things', '{\"k\": 100}', 'shard0')").expect("a move");
    let app = create_role(&cluster, "app", &Value::Null);
    session.batch_execute("SELECT docshard.grant_access('app', '{\"write\": \"test\"}')").expect("a grant");
    let mut client = cluster.router.try_client_with("app", &app).expect("a session");
    client.batch_execute(&format!("SELECT docshard.insert_one('{NS}', '{{\"k\": 100}}')")).expect("an insert");
    session.batch_execute("SELECT docshard.rotate_service_password()").expect("a rotation");
    session.batch_execute("SELECT docshard.revoke_access('app')").expect("a revocation");
}
