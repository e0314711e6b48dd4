//! One identity between nodes: the router logs in at shards as one service role, which is no superuser, and acts there for
//! application roles, which cannot log in. The servers ask everybody for a password, and keep nothing out of their logs.

use docshard_tests::{Cluster, Node, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const NS: &str = "test.things";
const PATIENCE: Duration = Duration::from_secs(60);

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    std::iter::once(&cluster.router).chain(&cluster.shards)
}

/// A collection on `local` and on the shards: keys from `100 * (n + 1)` on are on `shard<n>`.
fn spread(cluster: &Cluster, shards: usize) {
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer()");
    router.psql("SELECT docshard.enable_sharding('test', 'local')");
    router.psql(&format!("SELECT docshard.shard_collection('{NS}', '{{\"k\": 1}}')"));
    for n in 0..shards {
        let k = 100 * (n + 1);
        router.psql(&format!("SELECT docshard.split_at('{NS}', '{{\"k\": {k}}}')"));
        router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {k}}}', 'shard{n}')"));
    }
    for k in (0..=shards).map(|n| 100 * n) {
        router.psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": {k}, \"k\": {k}, \"n\": 0}}')"));
    }
}

/// Makes a role that logs in at the router, with a password, which is returned.
fn create_role(cluster: &Cluster, role: &str, grants: &Value) -> String {
    let password = format!("password-of-{role}");
    cluster
        .router
        .unlogged_client()
        .batch_execute(&format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'"))
        .expect(role);
    if !grants.is_null() {
        cluster.router.psql(&format!("SELECT docshard.grant_access('{role}', '{grants}')"));
    }
    password
}

/// The SQLSTATE of a statement that must fail.
fn refused(client: &mut Client, sql: &str) -> String {
    let error = client.batch_execute(sql).expect_err(sql);
    error.code().unwrap_or_else(|| panic!("{sql}: {error}")).code().to_owned()
}

/// Why a connection is not accepted.
fn not_accepted(result: Result<Client, postgres::Error>) -> String {
    match result {
        Ok(_) => panic!("it is accepted"),
        Err(error) => error.code().unwrap_or_else(|| panic!("{error}")).code().to_owned(),
    }
}

/// As whom the router logs in at a shard: user and password.
fn service_login(cluster: &Cluster, shard: &str) -> (String, String) {
    let option = |name: &str| -> String {
        cluster.router.value(&format!(
            "SELECT option_value FROM pg_user_mappings, pg_options_to_table(umoptions)
              WHERE srvname = 'docshard_{shard}' AND usename = 'postgres' AND option_name = '{name}'"
        ))
    };
    (option("user"), option("password"))
}

/// A session at a shard as the router's.
fn service_session(cluster: &Cluster, shard: &Node) -> Client {
    let (user, password) = service_login(cluster, &shard.name);
    shard.try_client_with(&user, &password).unwrap_or_else(|e| panic!("{} as {user}: {e}", shard.name))
}

fn table(cluster: &Cluster) -> String {
    cluster.router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = '{NS}'"))
}

/// The passwords, verifiers and secrets that nodes know at this moment.
fn secrets(cluster: &Cluster) -> Vec<String> {
    let mut all = Vec::new();
    for node in nodes(cluster) {
        all.extend(node.password().map(str::to_owned));
        let mut ask = |sql: &str| {
            let rows = node.client().query(sql, &[]).unwrap_or_else(|e| panic!("{}: {sql}: {e}", node.name));
            all.extend(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)));
        };
        ask("SELECT rolpassword FROM pg_authid");
        ask("SELECT option_value FROM pg_user_mappings, pg_options_to_table(umoptions) WHERE option_name = 'password'");
        if node.value::<bool>("SELECT to_regclass('docshard_data.service') IS NOT NULL") {
            ask("SELECT secret FROM docshard_data.service");
            ask("SELECT password FROM docshard_catalog.rotation");
        }
    }
    all
}

fn assert_not_logged(cluster: &Cluster, secrets: &[String]) {
    assert!(secrets.len() > 10, "only {} secrets", secrets.len());
    for node in nodes(cluster) {
        let log = node.log();
        // It is what the test takes it for.
        assert!(log.contains("LOG:  statement: ") && log.contains("connection authorized"), "{}", node.name);
        for secret in secrets {
            assert!(secret.len() >= 12, "too short to be told from other text: {secret}");
            let found = log.lines().find(|line| line.contains(secret.as_str()));
            assert!(found.is_none(), "{}: {found:?}", node.name);
        }
        let found = log.lines().find(|line| line.contains("SCRAM-SHA-256$"));
        assert!(found.is_none(), "{}: {found:?}", node.name);
    }
}

#[test]
fn application_roles_work_at_the_router_and_do_not_open_shards() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    // One has been at a shard for another purpose.
    cluster.shards[1].unlogged_client().batch_execute("CREATE ROLE writer NOLOGIN").unwrap();
    let writer = create_role(&cluster, "writer", &json!({"write": "test"}));
    let reader = create_role(&cluster, "reader", &json!({"read": NS}));
    let router_session = |role, password| cluster.router.try_client_with(role, password).expect(role);

    // The router lets each do what it was granted.
    let (find, update) = (
        format!("SELECT docshard.find('{NS}')"),
        format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$inc\": {{\"n\": 1}}}}')"),
    );
    for (role, password) in [("writer", &writer), ("reader", &reader)] {
        let mut client = router_session(role, password);
        assert_eq!(client.query(&find, &[]).expect("a find on all shards").len(), 3);
        if role == "writer" {
            client.batch_execute(&update).expect("an update on all shards");
        } else {
            assert_eq!(refused(&mut client, &update), "42501");
        }
    }

    // Their passwords open no shard: they can't log in there, with any.
    for shard in &cluster.shards {
        for (role, password) in [("writer", &writer), ("reader", &reader)] {
            assert_eq!(not_accepted(shard.try_client_with(role, password)), "28P01");
            let at_shard = format!(
                "SELECT rolcanlogin OR rolsuper OR rolpassword IS NOT NULL FROM pg_authid WHERE rolname = '{role}'"
            );
            assert!(!shard.value::<bool>(&at_shard), "{role} at {}", shard.name);
        }
    }
    let mapped: i64 =
        cluster.router.value("SELECT count(*) FROM pg_user_mappings WHERE usename IN ('writer', 'reader')");
    assert_eq!(mapped, 0);

    // A shard looks for itself, whatever the router says.
    let table = table(&cluster);
    for shard in &cluster.shards {
        let mut client = service_session(&cluster, shard);
        client.batch_execute("SET ROLE reader").expect("the service role acts for it");
        client.batch_execute(&format!("SELECT * FROM {table}")).expect("it may read");
        for sql in [
            format!("INSERT INTO {table} SELECT '\\x00', '\\x00', doc FROM {table}"),
            format!("UPDATE {table} SET doc = doc"),
            format!("DELETE FROM {table}"),
            format!("SELECT * FROM {table} FOR UPDATE"),
            format!("SELECT docshard_internal.lock_upsert({}, 1)", table.trim_start_matches("docshard_data.c")),
        ] {
            assert_eq!(refused(&mut client, &sql), "42501", "{sql}");
        }
    }
    cluster.router.psql("UPDATE docshard_catalog.grants SET level = 'write' WHERE role = 'reader'::regrole");
    let mut forged = router_session("reader", &reader);
    for k in [100, 200] {
        let update = format!("SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}')");
        let error = forged.batch_execute(&update).expect_err("the shard refuses");
        let error = error.as_db_error().expect("the server's");
        assert_eq!(error.code().code(), "42501", "{error:?}");
        assert!(error.where_().unwrap_or_default().contains("shard"), "{error:?}");
    }
    cluster.router.psql("UPDATE docshard_catalog.grants SET level = 'read' WHERE role = 'reader'::regrole");

    // What was granted is revoked everywhere, and then nothing is left of the role.
    for role in ["writer", "reader"] {
        let drop = format!("DROP ROLE {role}");
        assert_eq!(refused(&mut cluster.router.client(), &drop), "2BP01");
        cluster.router.psql(&format!("SELECT docshard.revoke_access('{role}')"));
        cluster.router.psql(&drop);
        let there = format!("SELECT count(*) FROM pg_roles WHERE rolname = '{role}'");
        assert_eq!(cluster.shards[0].value::<i64>(&there), 0, "{role}");
    }
    let shard = &cluster.shards[1];
    assert_eq!(shard.value::<i64>("SELECT count(*) FROM pg_roles WHERE rolname IN ('writer', 'reader')"), 1);
    let left =
        "SELECT count(*) FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = 'writer'::regrole";
    assert_eq!(shard.value::<i64>(left), 0, "the role that was there has no privileges");
    let mut client = service_session(&cluster, shard);
    assert_eq!(refused(&mut client, "SET ROLE writer"), "42501");
}

#[test]
fn a_shard_is_added_under_load_without_an_error() {
    let cluster = Cluster::servers_with_passwords(2);
    cluster.router.add_shard(&cluster.shards[0]);
    spread(&cluster, 1);
    let password = create_role(&cluster, "app", &json!({"write": "test"}));
    create_role(&cluster, "other", &json!({"read": NS}));
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in 0..4_u64 {
            let (cluster, stop, done, password) = (&cluster, &stop, &done, &password);
            scope.spawn(move || {
                let mut session = cluster.router.try_client_with("app", password).expect("a session");
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let k = 100 * (n % 2) + client;
                    let update = format!(
                        "SELECT docshard.update_one('{NS}', '{{\"k\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}', '{{\"upsert\": true}}')"
                    );
                    session.batch_execute(&update).unwrap_or_else(|e| panic!("{update}: {e:?}"));
                    session.batch_execute(&format!("SELECT docshard.count_documents('{NS}')")).expect("a count");
                    done.fetch_add(1, Ordering::Relaxed);
                    if n % 20 == 0 {
                        session = cluster.router.try_client_with("app", password).expect("another session");
                    }
                }
            });
        }
        let more = |what: &str, number: u64| {
            let before = done.load(Ordering::Relaxed);
            wait_until(what, PATIENCE, || done.load(Ordering::Relaxed) >= before + number);
        };
        more("statements run", 20);
        let new = &cluster.shards[1];
        cluster.router.add_shard(new);
        // The roles are there before the first chunk.
        let roles = "SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles WHERE rolname IN ('app', 'other') AND NOT rolcanlogin";
        assert_eq!(new.value::<String>(roles), "app other");
        assert_eq!(new.value::<i64>("SELECT count(*) FROM docshard_data.placement"), 0);
        more("statements run with the new shard", 20);
        cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
        more("statements run on the new shard", 20);
        cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 0}}', 'shard1')"));
        more("statements run on the new shard alone", 20);
        stop.store(true, Ordering::Relaxed);
    });
    let table = table(&cluster);
    let may = |role: &str, what: &str| {
        cluster.shards[1].value::<bool>(&format!("SELECT has_table_privilege('{role}', '{table}', '{what}')"))
    };
    assert!(may("app", "INSERT") && may("other", "SELECT") && !may("other", "INSERT"));
}

/// The service role's password changes again and again while clients come, connect and go.
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
                // One stays connected, the others come anew each time.
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
        for _ in 0..ROTATIONS {
            let (began, before) = (Instant::now(), sessions.load(Ordering::Relaxed));
            let servers = [("shard0", &cluster.shards[0]), ("shard1", &cluster.shards[1]), ("local", &cluster.router)];
            let logins = || servers.map(|(server, _)| service_login(&cluster, server));
            let old = logins();
            cluster.router.psql("SELECT docshard.rotate_service_password()");
            let new = logins();
            for (at, (_, node)) in servers.into_iter().enumerate() {
                assert!(old[at].0 == new[at].0 && old[at].1 != new[at].1);
                assert_eq!(not_accepted(node.try_client_with(&old[at].0, &old[at].1)), "28P01");
                // What the router would tell another shard, were it asked for the password itself, is good for nothing here.
                let (theirs, password) = &new[(at + 1) % 3];
                assert!(*theirs != new[at].0 && *password != new[at].1);
                assert_eq!(not_accepted(node.try_client_with(&new[at].0, password)), "28P01");
                assert_eq!(not_accepted(node.try_client_with(theirs, password)), "28P01");
            }
            passwords.extend(old.into_iter().chain(new).map(|(_, password)| password));
            wait_until("sessions were opened", PATIENCE, || sessions.load(Ordering::Relaxed) >= before + 20);
            thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.rotation"), 0);
    // Moves use other passwords, and go on.
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    assert_not_logged(&cluster, &[first, passwords, secrets(&cluster)].concat());
}

/// The router has noted a password, and has told the shard, when it crashes.
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

/// A rotation that a shard interrupts leaves nothing in a log either, and the next one ends it.
#[test]
fn no_secret_is_logged_though_statements_fail() {
    let mut cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let app = create_role(&cluster, "app", &json!({"write": NS}));
    let mut all = secrets(&cluster);
    all.push(app.clone());

    // A shard on which the role is locked, and whose administrator cancels the change.
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

    // One that is down.
    cluster.shards[1].stop();
    let answer = cluster.router.psql("SELECT docshard.rotate_service_password()");
    assert!(!answer.contains("docshard_shard0"), "{answer}");
    cluster.shards[1].start();
    cluster.router.psql("SELECT docshard.rotate_service_password()");
    all.extend(secrets(&cluster));
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_catalog.rotation"), 0);
    let mut session = cluster.router.try_client_with("app", &app).expect("a session");
    assert_eq!(session.query(&format!("SELECT docshard.find('{NS}')"), &[]).expect("a find").len(), 3);

    // Statements that fail at a shard, as the service role and for others, and at the router.
    assert_eq!(
        refused(&mut session, &format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 100, \"k\": 100}}')")),
        "23505"
    );
    for sql in
        ["SELECT docshard_internal.set_service_password('x')", "SELECT docshard_internal.accept_puller('x', 'y')"]
    {
        assert_eq!(refused(&mut service_session(&cluster, &cluster.shards[0]), sql), "22023", "{sql}");
    }
    // A wrong login for add_shard, by somebody who has taken care as the documentation says.
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

/// What a removed shard knew, and what others knew of it, is gone; it can be added again.
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
    // That was in use.
    for node in [&cluster.router, &cluster.shards[0], &cluster.shards[1]] {
        node.try_client_with(&puller, &secret).unwrap_or_else(|e| panic!("{puller} at {}: {e}", node.name));
    }
    cluster.router.psql("SELECT docshard.start_balancer()");
    let remove = || cluster.router.value::<String>("SELECT docshard.remove_shard('shard2') ->> 'state'");
    wait_until("shard2 is removed", PATIENCE, || remove() == "completed");

    for node in [&cluster.router, &cluster.shards[0], &cluster.shards[1]] {
        assert_eq!(not_accepted(node.try_client_with(&puller, &secret)), "28P01", "{}", node.name);
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
    // The others move on.
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

/// Whose privileges count at a shard: the caller's, or the owner's of a function that runs as its owner; a superuser is the
/// service role there.
#[test]
fn the_role_at_a_shard_is_the_one_whose_privileges_count() {
    let cluster = Cluster::with_passwords(1);
    spread(&cluster, 1);
    let app = create_role(&cluster, "app", &json!({"write": NS}));
    let member = create_role(&cluster, "member", &Value::Null);
    let visitor = create_role(&cluster, "visitor", &Value::Null);
    create_role(&cluster, "owner", &json!({"write": NS}));
    let (service, _) = service_login(&cluster, "shard0");
    let shard = &cluster.shards[0];
    shard.psql(&format!(
        "CREATE TABLE seen (number serial, role name, login name); GRANT INSERT ON seen TO PUBLIC; GRANT USAGE ON seen_number_seq TO PUBLIC; \
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql \
           AS $$BEGIN INSERT INTO public.seen (role, login) VALUES (current_user, session_user); RETURN NULL; END$$; \
         CREATE TRIGGER see AFTER INSERT OR UPDATE ON {} FOR EACH STATEMENT EXECUTE FUNCTION see()",
        table(&cluster)
    ));
    let seen = || -> String {
        let roles =
            shard.value::<Option<String>>("SELECT string_agg(role, ' ' ORDER BY number) FROM seen").unwrap_or_default();
        assert_eq!(shard.value::<i64>(&format!("SELECT count(*) FROM seen WHERE login <> '{service}'")), 0);
        shard.psql("TRUNCATE seen");
        roles
    };
    let update =
        format!("SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$gte\": 100}}}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    let sees = |role: &str, password: &str, sql: &str| {
        let mut client = cluster.router.try_client_with(role, password).expect(role);
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{role}: {sql}: {e:?}"));
        seen()
    };
    assert_eq!(sees("app", &app, &update), "app");
    cluster.router.psql(&update);
    assert_eq!(seen(), service, "a superuser");

    // A member has what the role has, and is it at the shard. So is somebody who has become it.
    cluster.router.psql("GRANT app TO member");
    assert_eq!(sees("member", &member, &update), "app");
    assert_eq!(sees("member", &member, &format!("SET ROLE app; {update}")), "app");

    // Functions that run as their owner, called by who has nothing, also by way of a view.
    cluster.router.psql(&format!(
        "CREATE FUNCTION act() RETURNS jsonb LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ {update}::jsonb $$; \
         ALTER FUNCTION act() OWNER TO owner; CREATE VIEW acting AS SELECT act(); ALTER VIEW acting OWNER TO owner; \
         GRANT SELECT ON acting TO PUBLIC"
    ));
    assert_eq!(sees("visitor", &visitor, "SELECT act()"), "owner");
    assert_eq!(sees("visitor", &visitor, "SELECT * FROM acting"), "owner");
    assert_eq!(sees("app", &app, &format!("BEGIN; {update}; SELECT act(); {update}; COMMIT")), "app owner app");
    assert_eq!(
        sees("app", &app, &format!("BEGIN; SELECT act(); SAVEPOINT s; {update}; ROLLBACK TO s; {update}; COMMIT")),
        "owner app"
    );
    let mut visitor = cluster.router.try_client_with("visitor", &visitor).expect("a session");
    assert_eq!(refused(&mut visitor, &update), "42501");
}

/// A superuser is needed to create the extension at a new shard, and for nothing else; what logs in for that is forgotten.
#[test]
fn no_superuser_is_needed_beyond_creating_the_extension() {
    let cluster = Cluster::servers_with_passwords(2);
    cluster.router.add_shard(&cluster.shards[0]);
    // An administrator who is no superuser, and a shard that its own superuser has prepared.
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
    assert_eq!(refused(&mut session, &add("its_router", "wrong", "shard1")), "08001");
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

    // Nobody that the cluster knows is powerful, and no administrator's login is kept.
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
    // So their passwords may change.
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

/// Databases of one server share its roles: what one cluster's router may ask for touches no other's.
#[test]
fn a_router_reaches_no_roles_but_its_own() {
    let cluster = Cluster::with_passwords(1);
    let shard = &cluster.shards[0];
    let theirs = "password-of-another-router";
    shard
        .unlogged_client()
        .batch_execute(&format!(
            "CREATE ROLE docshard_0badf00d LOGIN PASSWORD '{theirs}'; CREATE ROLE docshard_0badf00d_1 LOGIN PASSWORD '{theirs}'; \
             CREATE ROLE tenant; CREATE ROLE boss SUPERUSER; CREATE ROLE keeper CREATEROLE; \
             CREATE ROLE deputy IN ROLE pg_read_server_files; CREATE ROLE friend IN ROLE boss; CREATE ROLE group_of_friends; \
             GRANT friend TO group_of_friends; CREATE ROLE mate IN ROLE tenant; CREATE ROLE insider IN ROLE docshard_0badf00d"
        ))
        .expect("roles of others");
    shard.psql("CREATE DATABASE tenants OWNER tenant");
    let mut client = service_session(&cluster, shard);
    // What verifies is of no password that anybody has.
    let verifier = format!("SCRAM-SHA-256$4096:AAAAAAAAAAAAAAAAAAAAAA==${0}:{0}", "A".repeat(43) + "=");
    for role in ["docshard_0badf00d", "docshard_0badf00d_1"] {
        for sql in [
            format!("SELECT docshard_internal.accept_puller('{role}', '{verifier}')"),
            format!("SELECT docshard_internal.disconnect_shard('docshard_none', '{role}')"),
            format!("SELECT docshard_internal.create_role('{role}')"),
        ] {
            assert_eq!(refused(&mut client, &sql), "55000", "{sql}");
        }
        shard.try_client_with(role, theirs).unwrap_or_else(|e| panic!("{role}: {e}"));
    }
    for role in [
        "postgres",
        "boss",
        "keeper",
        "deputy",
        "tenant",
        "friend",
        "group_of_friends",
        "mate",
        "insider",
        "pg_signal_backend",
        "pg_monitor",
        "pg_read_all_data",
    ] {
        for sql in [format!("SELECT docshard_internal.create_role('{role}')"), format!("SET ROLE {role}")] {
            let code = refused(&mut client, &sql);
            assert!(["55000", "42501"].contains(&code.as_str()), "{sql}: {code}");
        }
    }
    for sql in [
        "ALTER ROLE CURRENT_USER SUPERUSER",
        "ALTER ROLE postgres PASSWORD NULL",
        "CREATE ROLE mine",
        "CREATE EXTENSION file_fdw",
        "COPY docshard_data.node TO '/tmp/x'",
        "SELECT pg_read_file('PG_VERSION')",
        "SELECT * FROM docshard_data.service",
        "SELECT docshard.accept_router('tenant')",
        "ALTER FUNCTION docshard_internal.create_role(text) SECURITY INVOKER",
    ] {
        assert_eq!(refused(&mut client, sql), "42501", "{sql}");
    }
    for text in ["SCRAM-SHA-256$garbage", "secret", "md5d41d8cd98f00b204e9800998ecf8427e"] {
        let sql = format!("SELECT docshard_internal.set_service_password('{text}')");
        assert_eq!(refused(&mut client, &sql), "22023", "{sql}");
    }
    for option in ["passfile", "sslkey", "sslcert", "service", "krbsrvname", "options"] {
        let sql = format!(
            "SELECT docshard_internal.connect_shard('docshard_x', ARRAY['{option}'], ARRAY['/etc/passwd'], 'docshard_x_1')"
        );
        assert_eq!(refused(&mut client, &sql), "22023", "{sql}");
    }
}

/// Revoked and granted again it is another role at the shards; a session that was there before goes on.
#[test]
fn a_role_that_comes_again_is_served() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let password = create_role(&cluster, "app", &json!({"write": NS}));
    let mut session = cluster.router.try_client_with("app", &password).expect("a session");
    let find = format!("SELECT docshard.find('{NS}')");
    session.batch_execute(&find).expect("it was granted");
    cluster.router.psql("SELECT docshard.revoke_access('app')");
    assert_eq!(refused(&mut session, &find), "42501");
    cluster.router.psql(&format!("SELECT docshard.grant_access('app', '{{\"write\": \"{NS}\"}}')"));
    // The first statement may still find the shard's session as it was.
    let _ = session.batch_execute(&find);
    for _ in 0..3 {
        session.batch_execute(&find).expect("it was granted again");
    }
}

/// A shard reads at another one what is on its way to it, and nothing else.
#[test]
fn a_shard_reads_at_another_only_what_moves() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let id: i32 = cluster.router.value("SELECT id FROM docshard.shards WHERE name = 'shard1'");
    let (service, _) = service_login(&cluster, "shard0");
    let secret: String = cluster.shards[1].value("SELECT secret FROM docshard_data.service");
    let prefix = service.rsplit_once("_s").expect("a service role's name").0;
    let mut client = cluster.shards[0].try_client_with(&format!("{prefix}_{id}"), &secret).expect("shard1 at shard0");
    let table = table(&cluster);
    let number = table.trim_start_matches("docshard_data.c");
    let (skey, after): (String, String) = {
        let row = cluster.shards[0]
            .client()
            .query_one(&format!("SELECT skey::text, (skey || '\\x00')::text FROM {table}"), &[])
            .unwrap();
        (row.get(0), row.get(1))
    };
    let documents = [
        format!("SELECT * FROM docshard_internal.pack_part({number}, '{skey}', NULL, '{after}', NULL)"),
        format!("SELECT docshard_internal.current_document({number}, '{skey}', '\\x00')"),
    ];
    let more = [
        format!("SELECT * FROM docshard_internal.pack_part({number}, '', NULL, NULL, NULL)"),
        format!("SELECT * FROM docshard_internal.pack_part({number}, '{skey}', NULL, NULL, NULL)"),
        format!("SELECT * FROM docshard_internal.pack_part({number}, '{skey}', NULL, '{after}', '\\xff')"),
        format!("SELECT docshard_internal.current_document({number}, '{after}', '\\x00')"),
        format!("SELECT * FROM {table}"),
        "SELECT * FROM docshard_data.capture".to_owned(),
        "SELECT * FROM docshard_data.service".to_owned(),
        "SELECT docshard_internal.puller_verifier()".to_owned(),
        "DELETE FROM docshard_data.capture_changes".to_owned(),
        format!("SET ROLE {service}"),
        "CREATE TABLE docshard_data.mine ()".to_owned(),
    ];
    for sql in documents.iter().chain(&more) {
        assert_eq!(refused(&mut client, sql), "42501", "{sql}");
    }
    // As a move does.
    cluster.shards[0].psql(&format!("INSERT INTO docshard_data.capture VALUES ({number}, 1, '{skey}', '{after}')"));
    for sql in &documents {
        client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    for sql in &more {
        assert_eq!(refused(&mut client, sql), "42501", "{sql}");
    }
}

/// What a shard sends is checked: bytes that are no document are an error of that statement, and the router goes on.
#[test]
fn a_shard_that_answers_nonsense_is_refused() {
    let cluster = Cluster::with_passwords(1);
    spread(&cluster, 1);
    let shard = &cluster.shards[0];
    let arguments: String = shard.value(
        "SELECT pg_get_function_arguments(oid) FROM pg_proc WHERE oid = 'docshard_internal.pack(jsonb)'::regprocedure",
    );
    let find = format!("SELECT docshard.find('{NS}', '{{\"n\": 0}}')");
    assert_eq!(cluster.router.client().query(&find, &[]).expect("a find").len(), 2);
    for nonsense in [
        "''",
        "'\\xdeadbeef'",
        "'\\xffffffffffffffff'",
        "'\\x01000020ffffff7f'",
        "'\\x0000005000000000'",
        "'\\x0100002004000080'",
    ] {
        shard.psql(&format!(
            "CREATE OR REPLACE FUNCTION docshard_internal.pack({arguments}) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT AS $$SELECT {nonsense}::bytea$$"
        ));
        let mut client = cluster.router.client();
        let error = client.query(&find, &[]).expect_err(nonsense);
        assert!(error.code().is_some(), "{nonsense}: {error:?}");
        // The same session goes on.
        let own = format!("SELECT docshard.count_documents('{NS}', '{{\"k\": 0}}')");
        assert_eq!(client.query_one(&own, &[]).expect("the router's own part").get::<_, i64>(0), 1);
    }
    // Numbers that nothing can be calculated with.
    let arguments: String = shard.value("SELECT pg_get_function_arguments('docshard_internal.divide_range'::regproc)");
    for parts in [i64::MAX, -1] {
        shard.psql(&format!(
            "CREATE OR REPLACE FUNCTION docshard_internal.divide_range({arguments}) RETURNS bigint LANGUAGE sql AS $$SELECT {parts}::bigint$$"
        ));
        let chunk: Value = cluster
            .router
            .value(&format!("SELECT min FROM docshard.chunks WHERE namespace = '{NS}' AND shard = 'shard0' LIMIT 1"));
        let sql = format!("SELECT docshard.move_chunk('{NS}', '{chunk}', 'local')");
        let error = cluster.router.client().query(&sql, &[]).unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert_eq!(message, format!("malformed answer to divide_range: {parts} parts"));
    }
}

/// Statements of several roles in one session, which are cancelled at any moment, roll back to savepoints, or fail: what comes
/// later runs as its own role. The shard allows each role one collection, where the router would allow both.
#[test]
fn the_role_at_a_shard_is_right_whatever_is_interrupted() {
    let cluster = Cluster::start(1);
    let (router, shard) = (&cluster.router, &cluster.shards[0]);
    router.psql("SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('test', 'shard0')");
    for collection in ["one", "two"] {
        router.psql(&format!("SELECT docshard.insert_one('test.{collection}', '{{\"_id\": 0, \"n\": 0}}')"));
    }
    for (role, others) in [("one", "two"), ("two", "one")] {
        router.psql(&format!(
            "CREATE ROLE {role} LOGIN; SELECT docshard.grant_access('{role}', '{{\"write\": \"test\"}}')"
        ));
        let table: String =
            router.value(&format!("SELECT \"table\" FROM docshard.collections WHERE namespace = 'test.{others}'"));
        shard.psql(&format!("REVOKE ALL ON {table} FROM {role}"));
    }
    let mut client = router.client();
    client.batch_execute("SET client_min_messages = error").expect("a setting");
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).expect("a row").get(0);
    let done = AtomicBool::new(false);
    let (mut right, mut refused, mut interrupted) = (0, 0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut canceller, mut random) = (router.client(), fastrand::Rng::with_seed(7));
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_micros(random.u64(500..8_000)));
                canceller.execute("SELECT pg_cancel_backend($1)", &[&pid]).expect("a cancel");
            }
        });
        let mut random = fastrand::Rng::with_seed(8);
        let mut number = 0;
        // As long as it takes to have seen enough of each.
        let limit = Instant::now() + PATIENCE;
        while (right <= 300 || refused <= 100 || interrupted <= 100) && Instant::now() < limit {
            let isolation = ["READ COMMITTED", "REPEATABLE READ"][random.usize(..2)];
            let in_block = random.bool();
            let mut failed = in_block && client.batch_execute(&format!("BEGIN ISOLATION LEVEL {isolation}")).is_err();
            let mut savepoint = false;
            for _ in 0..random.u32(1..6) {
                if in_block && (failed || random.u32(..4) == 0) {
                    let sql = if savepoint { "ROLLBACK TO s" } else { "SAVEPOINT s" };
                    failed = client.batch_execute(sql).is_err() || (failed && !savepoint);
                    savepoint |= !failed;
                    continue;
                }
                number += 1;
                let role = ["one", "two", "NONE"][random.usize(..3)];
                let collection = ["one", "two"][random.usize(..2)];
                let call = match random.u32(..5) {
                    0 => format!("count_documents('test.{collection}')"),
                    1 => format!("find_one('test.{collection}', '{{\"_id\": 0}}')"),
                    2 => format!("update_one('test.{collection}', '{{\"_id\": 0}}', '{{\"$inc\": {{\"n\": 1}}}}')"),
                    3 => format!("insert_one('test.{collection}', '{{\"_id\": {number}}}')"),
                    _ => format!("insert_one('test.{collection}', '{{\"_id\": 0}}')"),
                };
                let sql = format!("SET ROLE {role}; SELECT docshard.{call}; RESET ROLE");
                let allowed = role == "NONE" || role == collection;
                let code = client.batch_execute(&sql).err().map(|e| e.code().expect("a code").code().to_owned());
                failed = code.is_some();
                match code.as_deref() {
                    None | Some("23505") => {
                        assert!(allowed, "{role} could {call}");
                        right += 1;
                    }
                    Some("42501") => {
                        assert!(!allowed, "{role} could not {call}");
                        refused += 1;
                    }
                    Some("57014") => interrupted += 1,
                    other => panic!("{sql}: {other:?}"),
                }
                if failed && !in_block {
                    // Nothing has stayed of it.
                    break;
                }
            }
            if in_block {
                let end = if random.bool() { "COMMIT" } else { "ROLLBACK" };
                if client.batch_execute(end).is_err() {
                    let _ = client.batch_execute("ROLLBACK");
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(right > 100 && refused > 50 && interrupted > 50, "{right} {refused} {interrupted}");
}
