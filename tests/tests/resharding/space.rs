//! Space for the copy of a change of layout: what is missing is noticed before, and a disk that becomes full ends the change cleanly.

use crate::{NS, check, check_clean, cluster, code, json, reshard, run};
use docshard_tests::{Cluster, Node};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

fn sqlstate(error: &postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

#[test]
fn a_change_is_refused_for_which_a_recipient_has_no_space() {
    let cluster = cluster(2000);
    let mut client = cluster.router.client();
    cluster.shards[1].switch_off("free_space");
    for statement in [
        reshard(r#"{"u": 1}"#, "{}"),
        format!("SELECT docshard.compact('{NS}')"),
        format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"),
    ] {
        let error = json(&mut client, &statement).expect_err("no space");
        assert_eq!((sqlstate(&error), &*code(&error)), ("53100", "MongoDB error 14031 (OutOfDiskSpace)"), "{error:?}");
        let error = error.as_db_error().expect("the server's");
        assert!(error.message().contains("shard \"shard1\" has not enough free space"), "{}", error.message());
        assert!(error.message().contains("MiB are needed, 0.0 MiB are free"), "{}", error.message());
        assert!(error.hint().is_some_and(|hint| hint.contains("checkSpace")), "{error:?}");
    }
    let command = format!(r#"{{"reshardCollection": "{NS}", "key": {{"u": 1}}}}"#);
    let answer = json(&mut client, &format!("SELECT docshard.run_command('admin', '{command}')")).expect("an answer");
    assert_eq!((&answer["ok"], &answer["code"]), (&0.into(), &14031.into()), "{answer}");
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.resharding"), 0);
    check_clean(&cluster);
    // Only recipients need space.
    json(&mut client, &reshard(r#"{"u": 1}"#, r#"{"checkSpace": false}"#)).expect("it is not checked");
    json(&mut client, &format!("SELECT docshard.unshard_collection('{NS}', 'shard0')")).expect("another recipient");
    let error = json(&mut client, &format!("SELECT docshard.move_collection('{NS}', 'shard1')")).expect_err("no space");
    assert_eq!(sqlstate(&error), "53100");
    cluster.shards[1].switch_on("free_space");
    json(&mut client, &format!("SELECT docshard.move_collection('{NS}', 'shard1')")).expect("there is space");
    check(&cluster, 2000);
}

/// A small file system in memory, until it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None if it cannot be mounted.
    fn mount(mib: u32) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("docshard-small-{}-{mib}", std::process::id()));
        std::fs::create_dir_all(&path).ok()?;
        let disk = Self(path);
        let options = format!("size={mib}m,mode=1777");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&disk.0).status();
        mounted.is_ok_and(|status| status.success()).then_some(disk)
    }
}

impl SmallDisk {
    /// The shard's new tables are on this disk.
    fn is_default_of(&self, shard: &Node) {
        let folder = self.0.join("tables");
        let folder = folder.to_str().expect("a path of ASCII");
        shard.program("/bin/mkdir", &[folder]);
        shard.psql(&format!("CREATE TABLESPACE small LOCATION '{folder}'"));
        shard.psql("GRANT CREATE ON TABLESPACE small TO PUBLIC");
        shard.psql("ALTER DATABASE postgres SET default_tablespace = 'small'");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_disk_that_becomes_full_ends_a_change_cleanly() {
    // Dropped after the servers.
    let Some(disk) = SmallDisk::mount(12) else {
        println!("skipped: only root can mount a file system");
        return;
    };
    let cluster = Cluster::start(2);
    let shard = &cluster.shards[1];
    disk.is_default_of(shard);
    run(&cluster, "SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('test', 'shard0')");
    let documents = "SELECT jsonb_build_object('_id', i, 'text', (SELECT string_agg(md5(random()::text || g), '') FROM generate_series(1, 60) g))";
    run(&cluster, &format!("SELECT docshard.insert_select('{NS}', $${documents} FROM generate_series(1, 9000) i$$)"));
    run(&cluster, "SELECT docshard.insert_one('test.beside', '{\"_id\": 1}')");
    let mut client = cluster.router.client();
    json(&mut client, "SELECT docshard.move_collection('test.beside', 'shard1')").expect("it is small");
    let place: String = shard.value("SELECT DISTINCT t.spcname::text FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.relname ~ '^c[0-9]+$'");
    assert_eq!(place, "small");

    let to = |options: &str| format!("SELECT docshard.move_collection('{NS}', 'shard1', '{options}')");
    let error = json(&mut client, &to("{}")).expect_err("there is not enough space");
    assert_eq!(sqlstate(&error), "53100", "{error:?}");
    assert!(error.as_db_error().is_some_and(|error| error.message().contains("MiB are needed")), "{error:?}");
    let error = json(&mut client, &to(r#"{"checkSpace": false}"#)).expect_err("the disk becomes full");
    assert_eq!(sqlstate(&error), "53100", "{error:?}");
    assert!(error.as_db_error().is_some_and(|error| !error.message().contains("MiB are needed")), "{error:?}");

    assert_eq!(cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), 9000);
    let owner = format!("SELECT shard FROM docshard.chunks WHERE namespace = '{NS}'");
    assert_eq!(cluster.router.value::<String>(&owner), "shard0");
    assert_eq!(
        cluster.router.value::<String>(
            "SELECT DISTINCT outcome FROM docshard.resharding WHERE outcome = 'aborted' AND state = 'done'"
        ),
        "aborted"
    );
    let found: Option<String> =
        cluster.router.value("SELECT json_agg(c)::text FROM docshard.check_metadata_consistency() c");
    assert_eq!(found, None);
    for ns in [NS, "test.beside"] {
        let update = format!("SELECT docshard.update_one('{ns}', '{{\"_id\": 1}}', '{{\"$set\": {{\"n\": 1}}}}')");
        let changed: Value = json(&mut client, &update).expect("a write");
        assert_eq!(changed["modifiedCount"], 1, "{ns}");
    }
    let free: i64 = shard.value(&format!("SELECT free FROM docshard_internal.storage_space({})", 0));
    assert!(free > 8 << 20, "{free} bytes are free again");
}

/// Documents arrive uncompressed: the space for them is estimated, and given back before all have arrived.
#[test]
fn documents_that_compress_well_need_space_while_they_arrive() {
    for (mib, is_enough) in [(60, false), (110, true)] {
        let Some(disk) = SmallDisk::mount(mib) else {
            println!("skipped: only root can mount a file system");
            return;
        };
        let cluster = Cluster::start(2);
        disk.is_default_of(&cluster.shards[1]);
        run(&cluster, "SELECT docshard.stop_balancer(); SELECT docshard.enable_sharding('test', 'shard0')");
        let documents =
            "SELECT jsonb_build_object('_id', i, 'text', repeat('x', 4000000)) FROM generate_series(1, 40) i";
        run(&cluster, &format!("SELECT docshard.insert_select('{NS}', $${documents}$$)"));
        let moved = json(&mut cluster.router.client(), &format!("SELECT docshard.move_collection('{NS}', 'shard1')"));
        match moved {
            Ok(done) => assert!(is_enough && done["documents"] == 40, "{mib} MiB: {done}"),
            Err(error) => {
                assert!(!is_enough, "{mib} MiB: {error:?}");
                assert_eq!(sqlstate(&error), "53100", "{error:?}");
                assert!(
                    error.as_db_error().is_some_and(|error| error.message().contains("MiB are needed")),
                    "{error:?}"
                );
            }
        }
        assert_eq!(cluster.router.value::<i64>(&format!("SELECT docshard.count_documents('{NS}')")), 40);
    }
}
