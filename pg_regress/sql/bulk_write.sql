-- Many writes in one call.
SELECT docshard.bulk_write('bulk.c', '[
  {"insertOne": {"document": {"_id": 1, "n": 1}}}, {"insertOne": {"document": {"_id": 2, "n": 2}}}, {"insertOne": {"document": {"_id": 3, "n": 3}}},
  {"updateOne": {"filter": {"_id": 1}, "update": {"$inc": {"n": 10}}}},
  {"updateMany": {"filter": {"n": {"$lt": 9}}, "update": {"$set": {"l": [1, 2]}}}},
  {"updateMany": {"filter": {"l": 2}, "update": {"$inc": {"l.$[x]": 5}}, "arrayFilters": [{"x": 2}]}},
  {"replaceOne": {"filter": {"_id": 9}, "replacement": {"n": 9}, "upsert": true}},
  {"deleteOne": {"filter": {"_id": 2}}}]') AS bulk \gset
SELECT jsonb_pretty(:'bulk');
SELECT docshard.find('bulk.c', '{}', '{"sort": {"_id": 1}}');
-- Ordered: the first failure ends the call; earlier operations stay.
SELECT docshard.bulk_write('bulk.c', '[{"insertOne": {"document": {"_id": 4}}}, {"insertOne": {"document": {"_id": 1}}},
  {"insertOne": {"document": {"_id": 5}}}, {"deleteMany": {"filter": {}}}]');
SELECT docshard.count_documents('bulk.c');
-- Unordered: all operations are tried; each error has the index of its operation.
SELECT docshard.bulk_write('bulk.c', '[{"insertOne": {"document": {"_id": 4}}}, {"insertOne": {"document": {"_id": 6}}},
  {"updateOne": {"filter": {"_id": 6}, "update": {"$inc": {"_id": 1}}}}, {"updateOne": {"filter": {"$foo": 1}, "update": {"$set": {"a": 1}}}},
  {"insertOne": {"document": {"_id": [1]}}}, {"insertOne": {"document": 5}}, {"updateOne": {"filter": {"_id": 6}, "update": {"$set": {"ok": true}}}}]',
  '{"ordered": false}') AS bulk \gset
SELECT :'bulk'::jsonb - 'writeErrors' AS result;
SELECT e FROM jsonb_array_elements(:'bulk'::jsonb -> 'writeErrors') AS e;
SELECT docshard.find('bulk.c', '{"_id": {"$gte": 4}}', '{"sort": {"_id": 1}}');
-- It is part of the caller's transaction.
BEGIN;
SELECT docshard.bulk_write('bulk.c', '[{"deleteMany": {"filter": {}}}]') -> 'deletedCount' AS deleted;
ROLLBACK;
SELECT docshard.count_documents('bulk.c');
-- Sharded over several nodes.
SELECT docshard.shard_collection('bulk.s', '{"_id": "hashed"}');
SELECT docshard.bulk_write('bulk.s', (SELECT json_agg(json_build_object('insertOne', json_build_object('document', json_build_object('_id', n % 15)))) FROM generate_series(1, 20) n),
  '{"ordered": false}') AS bulk \gset
SELECT :'bulk'::jsonb -> 'insertedCount' AS inserted, jsonb_path_query_array(:'bulk', '$.writeErrors[*].index') AS failed;
SELECT docshard.bulk_write('bulk.s', '[{"updateOne": {"filter": {"x": 1}, "update": {"$set": {"_id": 99}}, "upsert": true}}, {"replaceOne": {"filter": {"_id": {"$gt": 90}}, "replacement": {"x": 2}}}, {"deleteOne": {"filter": {"x": 2}}},
  {"updateMany": {"filter": {"x": 1}, "update": {"$set": {"x": 2}}, "upsert": true}}]') - 'insertedIds' AS bulk;
-- Invalid lists of operations.
SELECT docshard.bulk_write('bulk.c', '[]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.bulk_write('bulk.c', '{}');
SELECT docshard.bulk_write('bulk.c', '[{"insertOne": {"document": {"_id": 77}}}, {"insertTwo": {}}]');
SELECT docshard.bulk_write('bulk.c', '[{"updateOne": {"filter": {}}}]');
SELECT docshard.bulk_write('bulk.c', '[{"deleteOne": {"filter": {}, "sort": {"a": 1}}}]');
SELECT docshard.bulk_write('bulk.c', '[{"deleteOne": {"filter": {}}, "deleteMany": {"filter": {}}}]');
SELECT docshard.bulk_write('bulk.c', '[{"deleteOne": {"filter": {}}}]', '{"orderd": true}');
SELECT docshard.count_documents('bulk.c');
-- A duplicate key is reported as in MongoDB: with the index's pattern and the document's keys.
SELECT docshard.create_index('bulk.k', '{"a.b": 1, "c": -1}', '{"name": "abc", "unique": true}');
SELECT docshard.insert_many('bulk.k', ARRAY['{"_id": 1, "a": {"b": "x"}, "c": 1}', '{"_id": 2, "a": {"b": "x"}}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT jsonb_pretty(docshard.bulk_write('bulk.k', '[
  {"insertOne": {"document": {"a": {"b": "x"}}}}, {"updateOne": {"filter": {"_id": 2}, "update": {"$set": {"c": 1}}}}]',
  '{"ordered": false}') -> 'writeErrors') AS errors;
SELECT jsonb_pretty(docshard.run_command('bulk', '{"findAndModify": "k", "query": {"_id": 2}, "update": {"$set": {"c": 1}}}')) AS answer;
SELECT docshard.drop_database('bulk');
