//! Application roles log in to the router only. On shards they cannot log in; the router's service role acts for them.

use docshard_tests::logins::{
    NS, PATIENCE, create_role, service_login, service_session, spread, sqlstate_of, sqlstate_of_login, table,
};
use docshard_tests::{Cluster, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn application_roles_work_at_the_router_and_do_not_open_shards() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    // One role exists at a shard already, for another purpose.
    cluster.shards[1].unlogged_client().batch_execute("CREATE ROLE writer NOLOGIN").unwrap();
    let writer = create_role(&cluster, "writer", &json!({"write": "test"}));
    let reader = create_role(&cluster, "reader", &json!({"read": NS}));
    let router_session = |role, password| cluster.router.try_client_with(role, password).expect(role);

    // Through the router each role can do what it was granted.
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
            assert_eq!(sqlstate_of(&mut client, &update), "42501");
        }
    }

    // Application roles cannot log in to a shard with any password.
    for shard in &cluster.shards {
        for (role, password) in [("writer", &writer), ("reader", &reader)] {
            assert_eq!(sqlstate_of_login(shard.try_client_with(role, password)), "28P01");
            let at_shard = format!(
                "SELECT rolcanlogin OR rolsuper OR rolpassword IS NOT NULL FROM pg_authid WHERE rolname = '{role}'"
            );
            assert!(!shard.value::<bool>(&at_shard), "{role} at {}", shard.name);
        }
    }
    let mapped: i64 =
        cluster.router.value("SELECT count(*) FROM pg_user_mappings WHERE usename IN ('writer', 'reader')");
    assert_eq!(mapped, 0);

    // A shard checks privileges itself, whatever the router sends.
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
            assert_eq!(sqlstate_of(&mut client, &sql), "42501", "{sql}");
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

    // Grants are revoked on every node; then the role is removed from the shards.
    for role in ["writer", "reader"] {
        let drop = format!("DROP ROLE {role}");
        assert_eq!(sqlstate_of(&mut cluster.router.client(), &drop), "2BP01");
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
    assert_eq!(sqlstate_of(&mut client, "SET ROLE writer"), "42501");
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
        // The roles exist on the shard before its first chunk.
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

/// The role whose privileges a shard checks: the caller, or the owner of a SECURITY DEFINER function. For a superuser it is the
/// service role.
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

    // A member of the granted role has its privileges, and acts as that role at the shard. So does a session after SET ROLE.
    cluster.router.psql("GRANT app TO member");
    assert_eq!(sees("member", &member, &update), "app");
    assert_eq!(sees("member", &member, &format!("SET ROLE app; {update}")), "app");

    // SECURITY DEFINER functions, called by a role without privileges, directly and through a view.
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
    assert_eq!(sqlstate_of(&mut visitor, &update), "42501");
}

/// After a revoke and a new grant the shard has a new role; an existing session continues to work.
#[test]
fn a_role_that_comes_again_is_served() {
    let cluster = Cluster::with_passwords(2);
    spread(&cluster, 2);
    let password = create_role(&cluster, "app", &json!({"write": NS}));
    let mut session = cluster.router.try_client_with("app", &password).expect("a session");
    let find = format!("SELECT docshard.find('{NS}')");
    let update = format!("SELECT docshard.update_many('{NS}', '{{}}', '{{\"$inc\": {{\"n\": 1}}}}')");
    session.batch_execute(&find).expect("it was granted");
    let revoke = || cluster.router.psql("SELECT docshard.revoke_access('app')");
    let grant = || {
        cluster.router.psql(&format!("SELECT docshard.grant_access('app', '{{\"write\": \"{NS}\"}}')"));
    };
    for again in [&find, &update] {
        revoke();
        assert_eq!(sqlstate_of(&mut session, &find), "42501");
        grant();
        session.batch_execute(again).expect("it was granted again");
        session.batch_execute(again).expect("it was granted again");
    }
    // The session has not noticed that the grant was gone; also in a transaction that the shards have begun.
    for before in ["", "BEGIN", &format!("BEGIN; {find}"), &format!("BEGIN; SAVEPOINT s; {find}; ROLLBACK TO s")] {
        session.batch_execute(before).expect("it was granted");
        revoke();
        grant();
        session.batch_execute(&update).expect(before);
        session.batch_execute("COMMIT").expect(before);
    }
}

/// A grant changes the privileges of all tables. One that is being dropped has none any more.
#[test]
fn a_grant_beside_a_drop_leaves_out_the_collection() {
    let cluster = Cluster::start(1);
    let router = &cluster.router;
    router.psql("SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('test', 'shard0'); CREATE ROLE app");
    for collection in ["dropped", "kept"] {
        router.psql(&format!("SELECT docshard.insert_one('test.{collection}', '{{\"_id\": 0}}')"));
    }
    // As when recovery drops the copy of a change of layout.
    let id: i32 = router.value("SELECT id FROM docshard_catalog.collections WHERE namespace = 'test.dropped'");
    let mut dropping = cluster.shards[0].client();
    dropping.batch_execute(&format!("BEGIN; SELECT docshard_internal.drop_table({id})")).expect("a drop");
    let mut client = router.client();
    let granting =
        thread::spawn(move || client.batch_execute("SELECT docshard.grant_access('app', '{\"write\": \"test\"}')"));
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until("the grant waits", PATIENCE, || cluster.shards[0].value::<i64>(waits) > 0);
    dropping.batch_execute("COMMIT").expect("the drop");
    granting.join().expect("a thread").expect("the grant");
    router.psql("SET ROLE app; SELECT docshard.insert_one('test.kept', '{\"_id\": 1}')");
}

/// Statements of several roles in one session are cancelled at any moment, roll back to savepoints, or fail. Later statements
/// must run as their own role. At the shard each role may access one collection; the router would allow both.
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
        // Runs until each outcome was seen often enough.
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
                    // No effect of the interrupted statements remains.
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

/// `DROP OWNED` takes a role's rights away, which docshard does not notice. The view does not show them, and a new grant does not bring
/// them back.
#[test]
fn grants_that_drop_owned_has_taken_away_stay_away() {
    let cluster = Cluster::with_passwords(1);
    spread(&cluster, 1);
    cluster.router.psql("SELECT docshard.create_collection('test.other')");
    let password = create_role(&cluster, "app", &json!({"write": NS}));
    let shown = || -> String {
        cluster.router.value(
            "SELECT coalesce(string_agg(resource || ' ' || level, ', ' ORDER BY resource), '') FROM docshard.grants \
             WHERE role = 'app'",
        )
    };
    assert_eq!(shown(), format!("{NS} write"));
    cluster.router.psql("DROP OWNED BY app");
    assert_eq!(shown(), "");
    cluster.router.psql("SELECT docshard.grant_access('app', '{\"read\": \"test.other\"}')");
    assert_eq!(shown(), "test.other read");
    let mut session = cluster.router.try_client_with("app", &password).expect("a session");
    session.batch_execute("SELECT docshard.find('test.other')").expect("it was granted");
    assert_eq!(sqlstate_of(&mut session, &format!("SELECT docshard.find('{NS}')")), "42501");
    // Another grant adds to those that are in force.
    cluster.router.psql(&format!("SELECT docshard.grant_access('app', '{{\"read\": \"{NS}\"}}')"));
    assert_eq!(shown(), format!("test.other read, {NS} read"));
}
