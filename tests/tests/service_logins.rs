//! The logins between nodes: their passwords are rotated while clients connect, no log contains them, and the roles are
//! dropped when a shard is removed.

use docshard_tests::logins::{
    NS, PATIENCE, assert_not_logged, create_role, secrets, service_login, service_session, spread, sqlstate_of,
    sqlstate_of_login,
};
use docshard_tests::moving::nodes;
use docshard_tests::{Cluster, Node, is_thorough, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The service role's password is rotated repeatedly while clients connect, work and disconnect.
#[test]
fn passwords_rotate_while_clients_connect() {
    let (clients, rotations) = if is_thorough() { (32, 5) } else { (8, 3) };
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let password = create_role(&cluster, "app", &json!({"write": NS}));
    let stop = AtomicBool::new(false);
    let sessions = AtomicU64::new(0);
    let (first, mut passwords) = (secrets(&cluster), Vec::new());
    thread::scope(|scope| {
        for client in 0..clients {
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
        for _ in 0..rotations {
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
    // As soon as the role is unlocked, the worker finishes the rotation.
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.rotation"), 1);
    holder.batch_execute("ROLLBACK").unwrap();
    all.extend(secrets(&cluster));

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
        "SELECT count(*) FROM pg_foreign_server WHERE srvname <> 'docshard'".to_owned(),
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

/// Two databases of one server are shards under one service role, as `docshard.accept_router` allows. One leaves, then the other.
#[test]
fn a_shard_that_leaves_takes_no_rights_of_another_database() {
    let cluster = Cluster::servers(1);
    let (router, server) = (&cluster.router, &cluster.shards[0]);
    let at = |database: &str| server.try_client_as("postgres", database).expect("a session");
    router.psql("CREATE EXTENSION docshard CASCADE");
    router.psql("SELECT docshard.stop_balancer()");
    server.psql("CREATE ROLE svc LOGIN PASSWORD 'its-password'");
    for name in ["da", "db"] {
        server.psql(&format!("CREATE DATABASE {name}"));
        at(name)
            .batch_execute("CREATE EXTENSION docshard CASCADE; SELECT docshard.accept_router('svc')")
            .expect("it accepts the router");
        let options = json!({"name": name, "user": "svc", "password": "its-password"});
        let conn = format!("host=127.0.0.1 port={} dbname={name}", server.port);
        router.psql(&format!("SELECT docshard.add_shard('{conn}', '{options}')"));
    }
    // The router's own role stays, or nothing could be moved from or to its database.
    let own = router.client().batch_execute("SELECT docshard.accept_router('svc')").expect_err("it is the router");
    let own = own.as_db_error().expect("an error of the server");
    assert!(own.message().contains("this database is the router of a cluster"), "{own:?}");
    let app = create_role(&cluster, "app", &json!({"write": "test"}));
    for sql in [
        "SELECT docshard.enable_sharding('test', 'local')",
        "SELECT docshard.shard_collection('test.things', '{\"k\": 1}')",
        "SELECT docshard.insert_many('test.things', array_agg(jsonb_build_object('k', k))) FROM generate_series(1, 20) AS k",
        "SELECT docshard.split_at('test.things', '{\"k\": 10}')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 1}', 'da')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 10}', 'db')",
        "SELECT docshard.move_chunk('test.things', '{\"k\": 10}', 'da')",
    ] {
        router.psql(sql);
    }
    let pullers: String =
        server.value("SELECT string_agg(quote_ident(rolname), ', ') FROM pg_roles WHERE rolname LIKE 'docshard\\_%'");
    for name in ["da", "db"] {
        server.psql(&format!(
            "REVOKE CONNECT ON DATABASE {name} FROM PUBLIC; GRANT CONNECT ON DATABASE {name} TO svc, {pullers}; \
             GRANT CREATE ON TABLESPACE pg_default TO svc, {pullers}"
        ));
    }
    let rights = |database: &str| -> String {
        server.value(&format!("SELECT datacl::text FROM pg_database WHERE datname = '{database}'"))
    };
    // The router's own database pulls from `da` by this role, which `db` has, too.
    let puller: String = server.value("SELECT min(rolname) FROM pg_roles WHERE rolname LIKE 'docshard\\_%'");
    let works = || {
        for role in ["svc", &puller] {
            let needed = "SELECT has_database_privilege($1, 'da', 'CONNECT') AND has_tablespace_privilege($1, 'pg_default', 'CREATE')";
            assert!(server.client().query_one(needed, &[&role]).expect("an answer").get::<_, bool>(0), "{role}");
        }
        let mut session = router.try_client_with("app", &app).expect("a session");
        let count: i64 = session
            .query_one(&format!("SELECT docshard.count_documents('{NS}', '{{}}')"), &[])
            .expect("the shard acts for the role")
            .get(0);
        assert_eq!(count, 20);
        for to in ["local", "da"] {
            router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 1}}', '{to}')"));
        }
    };
    let leave = |name: &str| {
        let remove = || router.value::<String>(&format!("SELECT docshard.remove_shard('{name}') ->> 'state'"));
        wait_until("it is removed", PATIENCE, || remove() == "completed");
    };
    let dismantle = |name: &str| {
        at(name)
            .batch_execute("SELECT docshard.dismantle((SELECT docshard.dismantle() ->> 'confirm'))")
            .expect("it is dismantled");
        let left = "SELECT string_agg(d.refobjid::regrole || ' ' || pg_describe_object(d.classid, d.objid, 0), '; ') \
                    FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass \
                    AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert_eq!(at(name).query_one(left, &[]).expect("an answer").get::<_, Option<String>>(0), None, "{name}");
        assert!(!rights(name).contains("docshard_"), "{name}: {}", rights(name));
    };
    works();
    leave("db");
    works();
    dismantle("db");
    works();
    // The last one takes the roles along.
    router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 1}}', 'local')"));
    router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 10}}', 'local')"));
    leave("da");
    dismantle("da");
    let roles = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'docshard\\_%' OR rolname = 'app'";
    assert_eq!(server.value::<i64>(roles), 0);
    let members = "SELECT count(*) FROM pg_auth_members WHERE member = 'svc'::regrole";
    assert_eq!(server.value::<i64>(members), 0);
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
         GRANT EXECUTE ON FUNCTION docshard.add_shard, docshard.shard_collection(text, json, json), docshard.enable_sharding, docshard.split_at, \
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

/// The error of a statement that must fail: SQLSTATE, message and hint.
fn failure(node: &Node, sql: &str) -> (String, String, String) {
    let error = node.client().batch_execute(sql).expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    (error.code().code().to_owned(), error.message().to_owned(), error.hint().unwrap_or_default().to_owned())
}

/// Moves the documents of a key there and back.
fn assert_moves(cluster: &Cluster, from: (i64, &str), to: &[&str]) {
    for to in to.iter().chain([&from.1]) {
        let moved = format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {}}}', '{to}') ->> 'documents'", from.0);
        assert!(cluster.router.value::<Option<String>>(&moved).is_some(), "to {to}");
    }
}

/// A shard that is restored from a backup does not know the password that the router has got since.
#[test]
fn a_shard_from_before_a_rotation_is_repaired() {
    let mut cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    create_role(&cluster, "app", &json!({"write": NS}));
    let mut all = secrets(&cluster);
    let backup = cluster.shards[0].backup();
    cluster.router.psql("SELECT docshard.rotate_service_password()");
    all.extend(secrets(&cluster));
    cluster.shards[0].restore(backup);

    // The error comes at once: after the first login that is refused.
    let (service, _) = service_login(&cluster, "shard0");
    cluster.shards[0].psql(&format!("ALTER ROLE {service} SET log_min_messages = 'debug1'"));
    let refusals = || cluster.shards[0].log().matches("password authentication failed").count();
    let before = refusals();
    let (code, message, hint) = failure(&cluster.router, &format!("SELECT docshard.find('{NS}')"));
    assert!(code == "28P01" && message.contains("shard0"), "{code}: {message}");
    assert!(hint.contains("docshard.add_shard()") && hint.contains("another shard"), "{hint}");
    assert!(refusals() < before + 40, "{} logins were refused meanwhile", refusals() - before);
    let pending = cluster.router.psql("SELECT docshard.rotate_service_password()");
    assert!(pending.contains("docshard_shard0"), "{pending}");

    cluster.router.add_shard(&cluster.shards[0]);
    cluster.router.psql("SELECT docshard.accept_shard('shard0')");
    let count = format!("SELECT docshard.count_documents('{NS}')");
    assert_eq!(cluster.router.value::<i64>(&count), 3);
    assert_moves(&cluster, (100, "shard0"), &["shard1", "local"]);
    wait_until("the rotation is complete", PATIENCE, || {
        cluster.router.value("SELECT count(*) = 0 FROM docshard_catalog.rotation")
    });
    let pending = cluster.router.psql("SELECT docshard.rotate_service_password()");
    assert!(!pending.contains("pending"), "{pending}");
    assert_eq!(cluster.router.value::<i64>(&count), 3);
    all.extend(secrets(&cluster));
    assert_not_logged(&cluster, &all);
}

/// A router that is restored from a backup does not know the passwords that its shards have got since.
#[test]
fn a_router_from_before_a_rotation_is_repaired() {
    let mut cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let backup = cluster.router.backup();
    cluster.router.psql("SELECT docshard.rotate_service_password()");
    cluster.router.restore(backup);
    let count = format!("SELECT docshard.count_documents('{NS}')");
    assert_eq!(failure(&cluster.router, &count).0, "28P01");
    for shard in &cluster.shards {
        cluster.router.add_shard(shard);
    }
    assert_eq!(cluster.router.value::<i64>(&count), 3);
    // The shards may have been counted since the backup, so that they are ahead.
    cluster.router.psql("SELECT docshard.take_over_cluster()");
    wait_until("the router writes", PATIENCE, || {
        let update = format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$inc\": {{\"n\": 1}}}}')");
        cluster.router.client().batch_execute(&update).is_ok()
    });
    assert_moves(&cluster, (100, "shard0"), &["shard1"]);
    let rotated: Value = cluster.router.value("SELECT docshard.rotate_service_password()");
    assert_eq!(rotated, json!({"ok": 1}));
    assert_eq!(cluster.router.value::<i64>(&count), 3);
}

/// The logins and servers by which shards reach each other were deleted at a shard. One call creates them again.
#[test]
fn the_logins_between_shards_are_repaired() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let (puller, service) = (
        cluster.shards[0].value::<String>(
            "SELECT option_value FROM pg_user_mappings, pg_options_to_table(umoptions) \
             WHERE srvname = 'docshard_shard1' AND option_name = 'user'",
        ),
        cluster.shards[0].service_role(),
    );
    cluster.shards[0].unguard();
    cluster.shards[0].psql("ALTER SERVER docshard_shard1 RENAME TO mistake");
    cluster.shards[0].psql("ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS");
    let hint = failure(&cluster.router, &format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 200}}', 'shard0')")).2;
    assert!(hint.contains("docshard.add_shard()") && hint.contains("\"shard0\""), "{hint}");
    cluster.router.add_shard(&cluster.shards[0]);
    assert_moves(&cluster, (200, "shard1"), &["shard0"]);

    for broken in [
        format!("REVOKE USAGE ON FOREIGN SERVER docshard_shard1 FROM {service}"),
        format!("ALTER USER MAPPING FOR {service} SERVER docshard_shard1 OPTIONS (SET password 'mistake')"),
        format!("ALTER USER MAPPING FOR {service} SERVER docshard_shard1 OPTIONS (SET user 'mistake')"),
        "ALTER SERVER docshard_shard1 OPTIONS (SET port '1')".to_owned(),
        format!("REVOKE USAGE ON SCHEMA docshard_data, docshard_internal FROM {service}"),
    ] {
        cluster.shards[0].unlogged_client().batch_execute(&broken).expect(&broken);
        failure(&cluster.router, &format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 200}}', 'shard0')"));
        cluster.router.add_shard(&cluster.shards[0]);
        assert_moves(&cluster, (200, "shard1"), &["shard0"]);
    }
    // The role by which the shard logs in at the other one.
    cluster.shards[1].psql(&format!("ALTER ROLE {puller} NOLOGIN"));
    cluster.shards[1].psql(&format!("DROP OWNED BY {puller}; DROP ROLE {puller}"));
    cluster.router.add_shard(&cluster.shards[0]);
    assert_moves(&cluster, (200, "shard1"), &["shard0"]);

    // Options that an administrator has added stay.
    cluster.shards[0].psql("ALTER SERVER docshard_shard1 OPTIONS (ADD application_name 'mine')");
    cluster.router.add_shard(&cluster.shards[0]);
    let option = "SELECT count(*) FROM pg_foreign_server WHERE 'application_name=mine' = ANY (srvoptions)";
    assert_eq!(cluster.shards[0].value::<i64>(option), 1);
    assert_not_logged(&cluster, &secrets(&cluster));
}

/// A failed login does not show whether the server leads to another shard or the password is wrong. The error says where it leads, or its
/// hint that it may lead to another shard.
#[test]
fn a_server_with_the_address_of_a_sibling_is_named() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let lead =
        |to: &Node| cluster.router.psql(&format!("ALTER SERVER docshard_shard0 OPTIONS (SET port '{}')", to.port));
    lead(&cluster.shards[1]);
    let (code, message, _) = failure(&cluster.router, &format!("SELECT docshard.find('{NS}')"));
    assert_eq!(code, "08004", "{message}");
    assert!(message.contains("expected shard \"shard0\"") && message.contains("shard \"shard1\""), "{message}");
    let error: String = cluster.router.value("SELECT error FROM docshard.health WHERE shard = 'shard0'");
    assert!(error.contains("expected shard \"shard0\"") && error.contains("shard \"shard1\""), "{error}");
    // One of the sibling's hosts, and the other way round.
    let set = |shard: &str, host: &str, port: &str| {
        let sql = format!("ALTER SERVER docshard_{shard} OPTIONS (SET host '{host}', SET port '{port}')");
        cluster.router.psql(&sql);
    };
    let host: String = cluster.router.value(
        "SELECT option_value FROM pg_foreign_server, pg_options_to_table(srvoptions) \
         WHERE srvname = 'docshard_shard1' AND option_name = 'host'",
    );
    let (twice, port) = (format!("{host},{host}"), cluster.shards[1].port);
    for (of_shard0, of_shard1) in [
        ((&host, port.to_string()), (&twice, format!("1,{port}"))),
        ((&twice, format!("1,{port}")), (&host, port.to_string())),
        ((&twice, format!("{port},1")), (&twice, format!("2,{port}"))),
        ((&host, port.to_string()), (&twice, port.to_string())),
    ] {
        set("shard0", of_shard0.0, &of_shard0.1);
        set("shard1", of_shard1.0, &of_shard1.1);
        let (code, message, _) = failure(&cluster.router, &format!("SELECT docshard.find('{NS}')"));
        assert_eq!(code, "08004", "{of_shard0:?}, {of_shard1:?}: {message}");
        assert!(message.contains("expected shard \"shard0\"") && message.contains("shard \"shard1\""), "{message}");
    }
    set("shard1", &host, &port.to_string());
    set("shard0", &host, &port.to_string());
    // An address under another name: the call that repairs says where it leads.
    cluster.router.psql("ALTER SERVER docshard_shard0 OPTIONS (ADD hostaddr '127.0.0.1')");
    let (code, message, hint) = failure(&cluster.router, &format!("SELECT docshard.find('{NS}')"));
    assert!(code == "28P01" && hint.contains("another shard"), "{code}: {message}: {hint}");
    let options = json!({"name": "shard0", "user": "postgres", "password": cluster.shards[1].password()});
    let conn = format!("host=127.0.0.1 port={} dbname=postgres", cluster.shards[1].port);
    let sql = format!("SELECT docshard.add_shard('{conn}', '{options}')");
    let error = cluster.router.unlogged_client().batch_execute(&sql).expect_err("a sibling");
    let error = error.as_db_error().expect("an error of the server");
    assert!(error.message().contains("shard \"shard1\""), "{error:?}");

    cluster.router.psql("ALTER SERVER docshard_shard0 OPTIONS (DROP hostaddr)");
    lead(&cluster.shards[0]);
    assert_eq!(cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), 3);
}

/// A view of the shards' health is right while passwords change.
#[test]
fn shards_are_reachable_during_a_rotation() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = cluster.router.client();
                while !stop.load(Ordering::Relaxed) {
                    let rows = client.query("SELECT shard, error FROM docshard.health WHERE NOT reachable", &[]);
                    let wrong: Vec<(String, String)> =
                        rows.expect("the health").iter().map(|row| (row.get(0), row.get(1))).collect();
                    if !wrong.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    assert_eq!(wrong, []);
                }
            });
        }
        for _ in 0..10 {
            cluster.router.psql("SELECT docshard.rotate_service_password()");
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
