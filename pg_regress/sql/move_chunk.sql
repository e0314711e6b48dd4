-- Moving chunks: documents move with them; counts and results stay the same.
SELECT docshard.enable_sharding('mv', 'shard0');
SELECT docshard.shard_collection('mv.c', '{"name": 1}');
SELECT docshard.create_index('mv.c', '{"n": 1}');
SELECT docshard.insert_many('mv.c', array_agg(jsonb_build_object('_id', n, 'name', 'n' || n % 10, 'n', n))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 100) n;
SELECT docshard.split_at('mv.c', '{"name": "n3"}');
SELECT docshard.split_at('mv.c', '{"name": "n7"}');
CREATE VIEW mv_chunks AS SELECT shard, min, max FROM docshard.chunks WHERE namespace = 'mv.c' ORDER BY min_key;

SELECT docshard.move_chunk('mv.c', '{"name": "n5"}', 'shard1') ->> 'documents' AS documents;
SELECT docshard.move_range('mv.c', '{"name": "n7"}', '{"name": {"$maxKey": 1}}', 'local') ->> 'documents' AS documents;
TABLE mv_chunks;
SELECT docshard.count_documents('mv.c'), docshard.count_documents('mv.c', '{"n": {"$lte": 50}}');
SELECT docshard.find('mv.c', '{"n": {"$gt": 90}}', '{"sort": {"n": -1}, "limit": 5, "projection": {"_id": 0, "n": 1}}');
SELECT shard, chunks, documents FROM docshard.get_shard_distribution('mv.c', '{"count": true}') ORDER BY shard;
-- Each document is only on the shard that the map names.
SELECT docshard.update_many('mv.c', '{}', '{"$set": {"seen": true}}') -> 'modifiedCount' AS modified;
-- Chunks on different shards cannot be merged; after a move to one shard they can.
SELECT docshard.merge_chunks('mv.c', '[{"name": {"$minKey": 1}}, {"name": "n7"}]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_chunk('mv.c', '{"name": "n0"}', 'shard1') ->> 'documents' AS documents;
SELECT docshard.merge_chunks('mv.c', '[{"name": {"$minKey": 1}}, {"name": "n7"}]');
TABLE mv_chunks;
SELECT donor, recipient, state, reason, documents, error, min, max FROM docshard.migrations WHERE namespace = 'mv.c' ORDER BY id;
SELECT what, count(*) FROM docshard.changelog WHERE namespace = 'mv.c' GROUP BY what ORDER BY what;
-- The shard that got its first chunk has the index, too.
SELECT relation FROM docshard.indexes WHERE namespace = 'mv.c' \gset
\set here :DBNAME
\connect regress_shard1
SELECT to_regclass('docshard_data.' || :'relation') IS NOT NULL AS index_is_here;
\connect :here
DROP VIEW mv_chunks;
SELECT docshard.drop_database('mv');
-- Unsharded collections move with their database.
SELECT docshard.enable_sharding('mp', 'shard0');
SELECT docshard.insert_many('mp.c', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 10) n;
SELECT docshard.move_primary('mp', 'shard1');
SELECT docshard.move_primary('mp', 'shard1');
SELECT primary_shard FROM docshard.databases WHERE name = 'mp';
SELECT shard FROM docshard.chunks WHERE namespace = 'mp.c';
SELECT docshard.count_documents('mp.c');
SELECT docshard.move_primary('mp', 'nowhere');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_primary('none', 'shard1');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT docshard.move_primary('mp', 'shard0');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT docshard.drop_database('mp');
