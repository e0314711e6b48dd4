-- renameCollection, collMod of indexes, and the order of keys.
CREATE FUNCTION run(db text, command json) RETURNS jsonb LANGUAGE sql AS $$ SELECT docshard.run_command(db, command) $$;
SELECT docshard.shard_collection('ren.a', '{"k": 1}'), docshard.split_at('ren.a', '{"k": 5}');
SELECT docshard.insert_many('ren.a', '{"{\"_id\": 1, \"k\": 1}","{\"_id\": 2, \"k\": 9}"}') -> 'acknowledged' AS inserted;
SELECT docshard.create_index('ren.a', '{"b": 1, "a": 1}', '{"partialFilterExpression": {"z": 1, "a": {"$gt": 0}}}');
SELECT docshard.add_shard_to_zone('local', 'ren_zone') -> 'ok' AS zone, docshard.update_zone_key_range('ren.a', '{"k": 1}', '{"k": 2}', 'ren_zone') -> 'ok' AS ok;
CREATE ROLE regress_of_a;
CREATE ROLE regress_of_b;
SELECT docshard.grant_access('regress_of_a', '{"read": "ren.a"}'), docshard.grant_access('regress_of_b', '{"write": "ren.b"}');

SELECT run('admin', '{"renameCollection": "ren.a", "to": "ren.b"}');
SELECT docshard.find('ren.b', '{}', '{"sort": {"_id": 1}}'), docshard.count_documents('ren.a') AS old;
SELECT namespace, zone FROM docshard.zone_ranges WHERE namespace LIKE 'ren.%';
SELECT docshard.list_indexes('ren.b');
-- Rights belong to names.
SET ROLE regress_of_a;
SELECT docshard.find('ren.b');
SET ROLE regress_of_b;
SELECT docshard.update_many('ren.b', '{}', '{"$set": {"seen": true}}') -> 'modifiedCount' AS modified;
RESET ROLE;
SELECT run('admin', '{"renameCollection": "ren.b", "to": "ren.b"}'), run('admin', '{"renameCollection": "ren.none", "to": "ren.c"}') ->> 'codeName' AS missing,
       run('admin', '{"renameCollection": "ren.b", "to": "other.b"}') ->> 'codeName' AS database, run('admin', '{"renameCollection": "ren.b", "to": "ren."}') ->> 'codeName' AS name,
       run('admin', '{"renameCollection": "ren.b", "to": "ren.c", "dropTarget": "x"}') ->> 'codeName' AS uuid, run('ren', '{"renameCollection": "ren.b", "to": "ren.c"}') ->> 'codeName' AS db;
SELECT docshard.create_collection('ren.c'), docshard.create_collection('ren.v', '{"viewOn": "b", "pipeline": [{"$project": {"z": 1, "k": 1}}]}');
SELECT docshard.rename_collection('ren.b', 'ren.c');
SELECT run('admin', '{"renameCollection": "ren.b", "to": "ren.v"}') ->> 'codeName' AS onto_view, run('admin', '{"renameCollection": "ren.v", "to": "ren.w"}') ->> 'codeName' AS view;
SELECT docshard.rename_collection('ren.b', 'ren.c', '{"dropTarget": true}');
SELECT docshard.find('ren.c', '{"k": 9}'), docshard.find('ren.v');
-- It is a change of the transaction.
BEGIN;
SELECT docshard.rename_collection('ren.c', 'ren.d'), docshard.count_documents('ren.d') AS d, docshard.count_documents('ren.c') AS c;
SELECT docshard.insert_one('ren.d', '{"_id": 3, "k": 3}') -> 'acknowledged' AS inserted;
ROLLBACK;
SELECT docshard.count_documents('ren.d') AS d, docshard.count_documents('ren.c') AS c;
-- The old name is free.
SELECT docshard.insert_one('ren.a', '{"_id": "new"}') -> 'insertedId' AS id, docshard.count_documents('ren.c');

-- An index that is hidden is not used.
SELECT docshard.create_index('ren.c', '{"h": 1}');
SELECT run('ren', '{"collMod": "c", "index": {"name": "h_1", "hidden": true}}');
SELECT hidden, expire_after_s FROM docshard.indexes WHERE namespace = 'ren.c' AND name = 'h_1';
SELECT docshard.explain('ren.c', '{"h": 1}')::text LIKE '%h_1%' AS used;
SELECT run('ren', '{"collMod": "c", "index": {"keyPattern": {"h": 1}, "hidden": false, "expireAfterSeconds": 60}}');
SELECT run('ren', '{"collMod": "c", "index": {"name": "h_1", "expireAfterSeconds": 90}}'), run('ren', '{"collMod": "c", "index": {"name": "h_1", "expireAfterSeconds": 90}}');
SELECT docshard.modify_collection('ren.c', '{"index": {"name": "h_1", "hidden": true}}');
SELECT run('ren', '{"collMod": "c", "index": {"name": "none", "hidden": true}}') ->> 'codeName' AS missing,
       run('ren', '{"collMod": "c", "index": {"name": "_id_", "hidden": true}}') ->> 'codeName' AS id,
       run('ren', '{"collMod": "c", "index": {"name": "k_1", "hidden": true}}') ->> 'errmsg' AS own,
       run('ren', '{"collMod": "c", "index": {"name": "h_1", "keyPattern": {"h": 1}, "hidden": true}}') ->> 'errmsg' AS both,
       run('ren', '{"collMod": "c", "index": {"hidden": true}}') ->> 'errmsg' AS neither,
       run('ren', '{"collMod": "c", "index": {"name": "h_1"}}') ->> 'errmsg' AS nothing,
       run('ren', '{"collMod": "c", "index": {"name": "h_1", "expireAfterSeconds": -1}}') ->> 'codeName' AS negative,
       run('ren', '{"collMod": "c", "index": {"name": "b_1_a_1", "expireAfterSeconds": 1}}') ->> 'codeName' AS compound,
       run('ren', '{"collMod": "c", "index": {"name": "h_1", "unique": true}}') ->> 'codeName' AS "unique",
       run('ren', '{"collMod": "v", "index": {"name": "h_1", "hidden": true}}') ->> 'codeName' AS view;
-- The last index of the shard key cannot be hidden.
SELECT docshard.create_collection('ren.k'), docshard.create_index('ren.k', '{"k": 1, "x": 1}'), docshard.shard_collection('ren.k', '{"k": 1}');
SELECT run('ren', '{"collMod": "k", "index": {"name": "k_1_x_1", "hidden": true}}') ->> 'errmsg' AS refused;

SELECT reply - 'shards' AS reply FROM run('ren', '{"validate": "c"}') AS reply;
SELECT run('ren', '{"validate": "none"}') ->> 'codeName' AS missing, run('ren', '{"validate": "v"}') ->> 'codeName' AS view, run('ren', '{"validate": "c", "repair": true}') ->> 'codeName' AS repair;
SELECT reply - 'millis' AS reply FROM run('ren', '{"dataSize": "ren.c"}') AS reply;
SELECT run('ren', '{"dataSize": "ren.c", "min": {"k": 1}}') ->> 'codeName' AS part;
SELECT docshard.drop_database('ren');
SELECT docshard.remove_shard_from_zone('local', 'ren_zone') -> 'ok' AS zone;
SELECT docshard.revoke_access('regress_of_a'), docshard.revoke_access('regress_of_b');
DROP ROLE regress_of_a;
DROP ROLE regress_of_b;
DROP FUNCTION run;
