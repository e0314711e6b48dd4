-- Writes to one document of a sharded collection without the shard key: any shard may have it, and only one document changes.
SELECT docshard.enable_sharding('nokey', 'shard0');
SELECT docshard.shard_collection('nokey.c', '{"k": 1}');
SELECT count(docshard.split_at('nokey.c', json_build_object('k', at))) AS splits FROM unnest(ARRAY[10, 20]) at;
SELECT docshard.move_chunk('nokey.c', '{"k": 10}', 'shard1') ->> 'documents' AS documents;
SELECT docshard.move_chunk('nokey.c', '{"k": 20}', 'local') ->> 'documents' AS documents;
SELECT docshard.insert_many('nokey.c', array_agg(jsonb_build_object('_id', n, 'k', n, 'g', n % 3, 'v', 0, 'w', 100 - n))) -> 'insertedCount' AS inserted FROM generate_series(0, 29) n;
CREATE VIEW changed AS SELECT d -> '_id' AS id, d -> 'k' AS k, d -> 'v' AS v FROM docshard.find('nokey.c', '{"v": {"$ne": 0}}', '{"sort": {"_id": 1}}') d;

-- At each of the shards, by different filters.
SELECT docshard.update_one('nokey.c', '{"w": 95}', '{"$inc": {"v": 1}}');
SELECT docshard.update_one('nokey.c', '{"w": 85}', '[{"$set": {"v": {"$add": ["$v", "$w"]}}}]') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('nokey.c', '{"$expr": {"$eq": ["$w", 75]}}', '{"$inc": {"v": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('nokey.c', '{"w": 1000}', '{"$inc": {"v": 1}}');
TABLE changed;
-- If many documents match, exactly one is changed.
SELECT docshard.update_one('nokey.c', '{"g": 1}', '{"$set": {"g": 7}}') -> 'modifiedCount' AS modified;
SELECT docshard.count_documents('nokey.c', '{"g": 7}');
SELECT docshard.update_one('nokey.c', '{}', '{"$set": {"g": 8}}') -> 'modifiedCount' AS modified;
SELECT docshard.count_documents('nokey.c', '{"g": 8}');
SELECT docshard.delete_one('nokey.c', '{"g": 2}');
SELECT docshard.count_documents('nokey.c', '{"g": 2}');
-- An update without effect matches nevertheless.
SELECT docshard.update_one('nokey.c', '{"w": 95}', '{"$set": {"v": 1}}');
-- The first document in a sort order, from any shard; by the keys' own order, by an index, and without one.
SELECT docshard.find_one_and_update('nokey.c', '{"v": 0}', '{"$set": {"v": "first by w"}}', '{"sort": {"w": 1}}') -> '_id' AS id;
SELECT docshard.find_one_and_update('nokey.c', '{"v": 0}', '{"$set": {"v": "last by w"}}', '{"sort": {"w": -1}}') -> '_id' AS id;
SELECT docshard.find_one_and_update('nokey.c', '{"v": 0}', '{"$set": {"v": "last by k"}}', '{"sort": {"k": -1}}') -> '_id' AS id;
SELECT docshard.create_index('nokey.c', '{"w": 1}') IS NOT NULL AS made;
SELECT docshard.find_one_and_delete('nokey.c', '{"v": 0}', '{"sort": {"w": 1}}') -> '_id' AS id;
SELECT docshard.find_one_and_replace('nokey.c', '{"v": 0}', '{"k": 21, "v": "moved"}', '{"sort": {"w": -1}, "returnDocument": "after"}');
SELECT docshard.update_one('nokey.c', '{"v": 0}', '{"$set": {"v": "by hint"}}', '{"sort": {"w": 1}, "hint": {"w": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.find_and_modify('nokey.c', '{"query": {"v": 0}, "sort": {"w": 1}, "update": {"$set": {"v": "by command"}}, "new": true, "fields": {"v": 1}}');
TABLE changed;
-- An update that moves the document to another shard.
SELECT docshard.update_one('nokey.c', '{"v": "moved"}', '{"$set": {"k": 11}}') -> 'modifiedCount' AS modified;
SELECT docshard.replace_one('nokey.c', '{"v": "moved"}', '{"v": "moved", "w": 1}') -> 'modifiedCount' AS modified;
SELECT docshard.find('nokey.c', '{"k": null}');
SELECT docshard.update_one('nokey.c', '{"v": "moved"}', '{"$set": {"k": [1]}}');
\echo :LAST_ERROR_SQLSTATE
-- By bulk_write, and by commands.
SELECT docshard.bulk_write('nokey.c', '[{"updateOne": {"filter": {"v": "moved"}, "update": {"$set": {"v": "bulk"}}}}, {"replaceOne": {"filter": {"v": "bulk"}, "replacement": {"k": 15, "v": "bulk too"}}}, {"deleteOne": {"filter": {"v": "bulk too"}}}]') - 'insertedIds' AS bulk;
SELECT docshard.run_command('nokey', '{"update": "c", "updates": [{"q": {"v": "by hint"}, "u": {"$set": {"v": "command"}}}, {"q": {"v": "command"}, "u": {"$set": {"v": 0}}, "sort": {"k": 1}}]}');
SELECT docshard.run_command('nokey', '{"delete": "c", "deletes": [{"q": {"v": "by command"}, "limit": 1}]}');
-- Upserts: a document on any shard is updated; otherwise the new document goes to the shard of its key, which is null if missing.
SELECT docshard.update_one('nokey.c', '{"w": 95}', '{"$set": {"v": "found"}}', '{"upsert": true}');
SELECT docshard.update_one('nokey.c', '{"w": 500, "_id": "u1"}', '{"$set": {"v": "new"}}', '{"upsert": true}');
SELECT docshard.update_one('nokey.c', '{"w": 500, "_id": "u1"}', '{"$set": {"v": "not new"}}', '{"upsert": true}');
SELECT docshard.find_one_and_update('nokey.c', '{"w": 501}', '{"$set": {"k": 12, "_id": "u2", "v": "new"}}', '{"upsert": true, "returnDocument": "after"}');
SELECT docshard.replace_one('nokey.c', '{"k": {"$gt": 25}, "w": 502}', '{"_id": "u3", "k": 26, "w": 502, "v": "new"}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.update_one('nokey.c', '{"w": 503}', '{"$set": {"k": [1]}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_many('nokey.c', '{"w": 503}', '{"$set": {"k": 1}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE
TABLE changed;
SELECT shard, documents FROM docshard.get_shard_distribution('nokey.c', '{"count": true}') ORDER BY shard;
-- In a transaction: its own writes are found, and rolled back with it.
BEGIN;
SELECT docshard.update_one('nokey.c', '{"v": "found"}', '{"$set": {"v": "again", "k": 27}}') -> 'modifiedCount' AS modified;
SAVEPOINT s;
SELECT docshard.delete_one('nokey.c', '{"v": "again"}') -> 'deletedCount' AS deleted;
SELECT docshard.update_one('nokey.c', '{"v": "again"}', '{"$set": {"v": "gone"}}') -> 'matchedCount' AS matched;
ROLLBACK TO s;
SELECT docshard.update_one('nokey.c', '{"v": "again"}', '{"$set": {"v": "there"}}') -> 'matchedCount' AS matched;
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT docshard.update_one('nokey.c', '{"v": "found"}', '{"$set": {"v": "again"}}') -> 'modifiedCount' AS modified;
SELECT docshard.find_one_and_delete('nokey.c', '{"v": "again"}', '{"sort": {"w": 1}}') -> '_id' AS id;
COMMIT;
SELECT docshard.count_documents('nokey.c', '{"v": {"$in": ["found", "again"]}}');
-- By a shard key of several fields, dotted and hashed, one of them the _id.
SELECT docshard.shard_collection('nokey.d', '{"_id": 1, "a.b": "hashed"}');
SELECT docshard.insert_many('nokey.d', array_agg(jsonb_build_object('_id', n, 'a', jsonb_build_object('b', n, 'c', n), 'v', -n))) -> 'insertedCount' AS inserted FROM generate_series(0, 29) n;
SELECT count(docshard.split_at('nokey.d', json_build_object('_id', at, 'a.b', 0))) AS splits FROM unnest(ARRAY[10, 20]) at;
SELECT docshard.move_chunk('nokey.d', '{"_id": 15, "a.b": 0}', 'shard1') ->> 'ok' AS ok;
SELECT docshard.update_one('nokey.d', '{"a.c": 17}', '{"$set": {"v": "found"}}', '{"sort": {"v": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.find_one_and_delete('nokey.d', '{"v": {"$lt": 0}}', '{"sort": {"v": 1}}');
SELECT docshard.find_one_and_update('nokey.d', '{"v": "found"}', '{"$set": {"a.b": -17}}', '{"sort": {"v": 1}, "returnDocument": "after"}');
DROP VIEW changed;
SELECT docshard.drop_database('nokey');
