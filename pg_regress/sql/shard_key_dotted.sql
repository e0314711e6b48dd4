-- A shard key of dotted fields, given by its path or by an embedded document, in filters and in administration.
SELECT docshard.shard_collection('dotted.r', '{"a.b": 1}') -> 'ok' AS ok, docshard.shard_collection('dotted.h', '{"a.b": "hashed"}') -> 'ok' AS ok;
SELECT docshard.split_at('dotted.r', '{"a.b": 5}') -> 'ok' AS ok;
SELECT docshard.explain(ns, f) -> 'stage' AS stage, docshard.explain(ns, f)::jsonb -> 'keyBounds' AS bounds
  FROM unnest(ARRAY['dotted.r', 'dotted.h']) ns, unnest(ARRAY['{"a.b": 7}', '{"a": {"b": 7}}', '{"a": {"c": 1, "b": 7}}', '{"a": {"c": 1}}', '{"a": 7}']::json[]) f;
SELECT docshard.update_one(ns, '{"a": {"b": 7}}', '{"$set": {"v": 1}}', '{"upsert": true}') -> 'upsertedCount' AS upserted,
    docshard.update_many(ns, '{"a": {"b": 8}}', '{"$set": {"v": 1}}', '{"upsert": true}') -> 'upsertedCount' AS upserted,
    docshard.update_one(ns, '{"a": {"b": 7}}', '{"$inc": {"v": 1}}') -> 'modifiedCount' AS modified,
    docshard.find_one_and_delete(ns, '{"a": {"b": 8}}') -> 'v' AS deleted
  FROM unnest(ARRAY['dotted.r', 'dotted.h']) ns;
SELECT docshard.insert_many('dotted.r', array_agg(jsonb_build_object('_id', n, 'a', jsonb_build_object('b', n)))) -> 'insertedCount' AS inserted FROM generate_series(10, 19) n;
SELECT docshard.split_find('dotted.r', '{"a.b": 12}') -> 'ok' AS ok;
SELECT docshard.split_find('dotted.r', '{"a": {"b": 12}}') -> 'ok' AS ok;
SELECT docshard.clear_jumbo_flag('dotted.r', '{"a.b": 12}') -> 'ok' AS ok;
SELECT docshard.move_chunk('dotted.r', '{"a.b": 7}', 'shard0') -> 'ok' AS ok;
SELECT docshard.move_chunk('dotted.h', '{"a.b": {"$eq": 7}}', 'shard1') -> 'ok' AS ok;
SELECT docshard.run_command('admin', '{"moveChunk": "dotted.r", "find": {"a": {"b": 12}}, "to": "shard0"}') -> 'ok' AS ok;
SELECT min, shard FROM docshard.chunks WHERE namespace = 'dotted.r' ORDER BY min_key;
SELECT docshard.move_chunk('dotted.r', '{"a": 7}', 'shard0');
SELECT docshard.move_chunk('dotted.r', '{"a.b": {"$gt": 7}}', 'shard0');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_database('dotted');
