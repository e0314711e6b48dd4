-- bulkWrite: several collections in one command, and the results as a cursor.
CREATE FUNCTION run(command json) RETURNS jsonb LANGUAGE sql AS $$ SELECT docshard.run_command('admin', command) $$;
SELECT docshard.shard_collection('bulk.a', '{"_id": 1}'), docshard.create_collection('bulk.b');

SELECT run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}, {"ns": "bulk.b"}], "ops": [
  {"insert": 0, "document": {"_id": 1, "n": 1}}, {"insert": 0, "document": {"_id": 2, "n": 2}}, {"insert": 1, "document": {"_id": 1}},
  {"update": 0, "filter": {"n": {"$gt": 0}}, "updateMods": {"$inc": {"n": 10}}, "multi": true},
  {"update": 1, "filter": {"_id": 5}, "updateMods": {"$set": {"n": 5}}, "upsert": true},
  {"update": 1, "filter": {"_id": 1}, "updateMods": {"_id": 1, "whole": true}},
  {"update": 0, "filter": {}, "updateMods": [{"$set": {"first": "$$v"}}], "sort": {"n": -1}},
  {"delete": 1, "filter": {"_id": 5}}, {"delete": 0, "filter": {"_id": 77}, "multi": true}], "let": {"v": 7}}');
SELECT docshard.find('bulk.a', '{}', '{"sort": {"_id": 1}}'), docshard.find('bulk.b', '{}', '{"sort": {"_id": 1}}');

-- Ordered: the first failure ends it. Unordered: the others are done.
SELECT run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [
  {"insert": 0, "document": {"_id": 3}}, {"insert": 0, "document": {"_id": 1}}, {"insert": 0, "document": {"_id": 4}}]}');
SELECT run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ordered": false, "ops": [
  {"insert": 0, "document": {"_id": 3}}, {"insert": 0, "document": {"_id": 4}},
  {"update": 0, "filter": {"_id": 4}, "updateMods": {"$nope": 1}}, {"delete": 0, "filter": {"_id": 4}}]}');
-- An update that is none, or a field without a value, refuses the command. The command's own value may be anything.
SELECT run('{"bulkWrite": null, "nsInfo": [{"ns": "bulk.a"}], "ops": [{"delete": 0, "filter": {}}, {"update": 0, "filter": {}, "updateMods": 5}]}');
SELECT run('{"bulkWrite": "x", "nsInfo": [{"ns": "bulk.a"}], "ops": [{"delete": 0, "filter": null}]}');
SELECT run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [{"delete": 0, "filter": {}, "hint": 1}]}');
SELECT run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "errorsOnly": true, "ops": [
  {"update": 0, "filter": {"_id": 3}, "updateMods": {"$set": {"n": 3}}}, {"insert": 0, "document": {"_id": 3}}]}');

-- More results than the first batch.
SELECT reply #> '{cursor,firstBatch}' AS first, docshard.run_command('admin', json_build_object('getMore', reply #> '{cursor,id}', 'collection', '$cmd.bulkWrite')) #> '{cursor}' AS next
FROM run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.b"}], "cursor": {"batchSize": 1}, "ops": [{"insert": 0, "document": {"_id": 8}}, {"delete": 0, "filter": {"_id": 8}}]}') AS reply;

-- Refused.
SELECT run('{"bulkWrite": 1, "nsInfo": [], "ops": []}') ->> 'codeName' AS empty,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [{"insert": 1, "document": {}}]}') ->> 'errmsg' AS which,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [{"insert": -1, "document": {}}]}') ->> 'codeName' AS negative,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [{"replace": 0}]}') ->> 'errmsg' AS kind,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [3]}') ->> 'codeName' AS number,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk"}], "ops": [{"insert": 0, "document": {}}]}') ->> 'codeName' AS namespace,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "config.shards"}], "ops": [{"insert": 0, "document": {}}]}') ->> 'codeName' AS config,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a", "collectionUUID": "x"}], "ops": [{"insert": 0, "document": {}}]}') ->> 'errmsg' AS uuid,
       run('{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [{"update": 0, "filter": {}, "updateMods": {"$set": {"a": 1}}, "multi": true, "sort": {"a": 1}}]}') ->> 'errmsg' AS sort,
       docshard.run_command('bulk', '{"bulkWrite": 1, "nsInfo": [{"ns": "bulk.a"}], "ops": [{"insert": 0, "document": {}}]}') ->> 'codeName' AS db;
SELECT docshard.drop_database('bulk');
DROP FUNCTION run;
