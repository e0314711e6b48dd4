-- Owners of a database create, change and drop its collections and indexes, by writes and by MongoDB's commands.
CREATE ROLE regress_owner LOGIN;
CREATE ROLE regress_writer LOGIN;
SELECT docshard.enable_sharding('owned', 'shard0') ->> 'ok' AS ok, docshard.enable_sharding('others', 'local') ->> 'ok' AS ok;
SELECT docshard.insert_one('others.c', '{"_id": 1}');
SELECT docshard.grant_access('regress_owner', '{"own": "owned", "read": "others"}') ->> 'ok' AS ok, docshard.grant_access('regress_writer', '{"write": "owned"}') ->> 'ok' AS ok;
SELECT role, resource, level FROM docshard.grants WHERE role IN ('regress_owner', 'regress_writer') ORDER BY 1, 2;
CREATE FUNCTION owned(command text, VARIADIC parts text[] DEFAULT '{}') RETURNS jsonb LANGUAGE sql
  RETURN docshard.run_command('owned', format(command, VARIADIC parts)::json) - 'hint';

SET ROLE regress_owner;
SELECT docshard.insert_one('owned.a', '{"_id": 1, "k": 1}');
SELECT docshard.update_one('owned.b', '{"_id": 1}', '{"$set": {"k": 2}}', '{"upsert": true}') -> 'upsertedId' AS upserted;
SELECT owned('{"create": "c", "collation": {"locale": "en"}, "validator": {"k": {"$gt": 0}}}');
SELECT owned('{"create": "v", "viewOn": "a", "pipeline": [{"$match": {"k": 1}}]}');
SELECT owned('{"collMod": "v", "viewOn": "a", "pipeline": [{"$match": {"k": {"$gt": 0}}}]}');
SELECT owned('{"createIndexes": "d", "indexes": [{"key": {"k": 1}, "name": "k_1", "unique": true}, {"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 60}]}');
SELECT owned('{"collMod": "d", "index": {"name": "at_1", "hidden": true}}');
SELECT owned('{"collMod": "c", "validationLevel": "off"}');
SELECT owned('{"dropIndexes": "d", "index": "k_1"}');
SELECT owned('{"aggregate": "a", "pipeline": [{"$out": "copy"}], "cursor": {}}') - 'cursor' AS answer;
SELECT owned('{"aggregate": "b", "pipeline": [{"$out": "copy"}], "cursor": {}}') - 'cursor' AS answer;
SELECT owned('{"aggregate": "a", "pipeline": [{"$merge": "merged"}], "cursor": {}}') -> 'ok' AS ok;
SELECT docshard.count_documents('owned.copy') AS copy, docshard.count_documents('owned.merged') AS merged, docshard.count_documents('owned.v') AS v;
SELECT docshard.run_command('admin', '{"renameCollection": "owned.copy", "to": "owned.renamed"}');
SELECT owned('{"drop": "merged"}'), owned('{"drop": "merged"}');
SELECT owned('{"drop": "v"}');
BEGIN;
SELECT docshard.insert_one('owned.in_block', '{"_id": 1}') -> 'insertedId' AS id;
SELECT owned('{"createIndexes": "in_block", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}') -> 'numIndexesAfter' AS indexes;
SELECT docshard.insert_one('owned.in_block', '{"_id": 2}') -> 'insertedId' AS id;
COMMIT;
SELECT docshard.count_documents('owned.in_block');
SELECT current_user, current_setting('search_path') AS search_path;


-- Nothing else, and no other database.
SELECT docshard.insert_one('others.new', '{"_id": 1}');
SELECT docshard.insert_one('others.c', '{"_id": 2}');
SELECT docshard.run_command('others', '{"create": "new"}') - 'hint' AS answer;
SELECT docshard.run_command('others', '{"drop": "c"}') - 'hint' AS answer;
SELECT docshard.run_command('others', '{"drop": "none"}') - 'hint' AS answer;
SELECT docshard.run_command('others', '{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}') - 'hint' AS answer;
SELECT docshard.run_command('others', '{"collMod": "c", "validationLevel": "off"}') - 'hint' AS answer;
SELECT docshard.run_command('admin', '{"renameCollection": "others.c", "to": "owned.stolen"}') - 'hint' AS answer;
SELECT docshard.run_command('admin', '{"renameCollection": "owned.a", "to": "others.given"}') - 'hint' AS answer;
SELECT owned('{"aggregate": "a", "pipeline": [{"$out": {"db": "others", "coll": "out"}}], "cursor": {}}');
SELECT owned('{"dropDatabase": 1}');
SELECT docshard.run_command('admin', '{"shardCollection": "owned.a", "key": {"k": 1}}') - 'hint' AS answer;
SELECT owned('{"insert": "c", "documents": [{"_id": 1}], "bypassDocumentValidation": true}');
SELECT docshard.create_collection('owned.by_function');
SELECT docshard.drop_collection('owned.a');
SELECT docshard.grant_access('regress_writer', '{"own": "owned"}');

SET ROLE regress_writer;
SELECT docshard.insert_one('owned.a', '{"_id": 7}');
SELECT docshard.insert_one('owned.new', '{"_id": 1}');
SELECT owned('{"create": "new"}');
RESET ROLE;

-- A level is taken, and the lower one stays.
SELECT docshard.revoke_access('regress_owner', '{"own": "owned"}') ->> 'ok' AS ok;
SELECT docshard.revoke_access('regress_owner', '{"own": "owned"}');
SELECT role, resource, level FROM docshard.grants WHERE role = 'regress_owner' ORDER BY 1, 2;
SET ROLE regress_owner;
SELECT docshard.insert_one('owned.a', '{"_id": 8}');
SELECT docshard.insert_one('owned.new', '{"_id": 1}');
SELECT owned('{"drop": "a"}');
RESET ROLE;
SELECT docshard.grant_access('regress_owner', '{"own": "owned.new"}') ->> 'ok' AS ok;
SET ROLE regress_owner;
SELECT docshard.insert_one('owned.new', '{"_id": 1}');
SELECT owned('{"create": "newer"}');
-- A view may read the whole database, by whoever reads it: who owns a single name makes none of it.
SELECT owned('{"drop": "new"}') -> 'ok' AS ok, owned('{"create": "new", "viewOn": "renamed", "pipeline": []}') ->> 'codeName' AS viewed;
RESET ROLE;
-- In the transaction that has created a collection shards could not give privileges on it.
BEGIN;
SELECT docshard.create_collection('owned.later') ->> 'ok' AS ok;
SELECT docshard.revoke_access('regress_owner', '{"read": "owned"}');
ROLLBACK;
-- A change of access would wait at the shards for the transaction that has renamed one.
BEGIN;
SELECT docshard.rename_collection('owned.renamed', 'owned.later') ->> 'ok' AS ok;
SELECT docshard.grant_access('regress_owner', '{"read": "owned"}');
ROLLBACK;
-- What owners create is where all collections are.
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_space LOCATION '';
SELECT docshard.grant_access('regress_owner', '{"own": "others.here"}') ->> 'ok' AS ok;
SET ROLE regress_owner;
SET default_tablespace = 'regress_space';
SELECT docshard.insert_one('others.here', '{"_id": 2}') -> 'insertedId' AS id;
SELECT docshard.run_command('others', '{"createIndexes": "here", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}') -> 'ok' AS ok;
RESET ROLE;
SELECT count(*) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE t.spcname = 'regress_space';
-- An administrator's collections are where the administrator wants them, although a superuser has the privileges of every owner.
SET default_tablespace = 'regress_space';
SELECT docshard.run_command('others', '{"drop": "here"}') -> 'ok' AS dropped, docshard.run_command('others', '{"create": "here"}') -> 'ok' AS created;
RESET default_tablespace;
SELECT count(*) > 0 AS there FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE t.spcname = 'regress_space';
SELECT docshard.drop_collection('others.here');
DROP TABLESPACE regress_space;
SELECT docshard.revoke_access('regress_owner') ->> 'ok' AS ok, docshard.revoke_access('regress_writer') ->> 'ok' AS ok;
SELECT count(*) FROM docshard.check_metadata_consistency('owned.a');
SELECT docshard.drop_database('owned') ->> 'ok' AS ok, docshard.drop_database('others') ->> 'ok' AS ok;
DROP FUNCTION owned;
DROP ROLE regress_owner, regress_writer;
