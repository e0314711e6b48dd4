-- Moving a range: chunks are split at its ends.
SELECT docshard.enable_sharding('mr', 'shard0');
SELECT docshard.shard_collection('mr.c', '{"k": 1}');
SELECT docshard.insert_many('mr.c', array_agg(jsonb_build_object('_id', k, 'k', k))) -> 'insertedCount' AS inserted
  FROM generate_series(0, 99) k;
CREATE VIEW mr_chunks AS SELECT shard, min, max FROM docshard.chunks WHERE namespace = 'mr.c' ORDER BY min_key;

-- A part of a chunk in its middle, at its beginning, at its end, and a whole chunk.
SELECT (docshard.move_range('mr.c', '{"k": 20}', '{"k": 30}', 'shard1')::jsonb) - 'millis' - 'bytes' AS moved;
TABLE mr_chunks;
SELECT (docshard.move_range('mr.c', '{"k": {"$minKey": 1}}', '{"k": 10}', 'shard1')::jsonb) - 'millis' - 'bytes' AS moved;
SELECT (docshard.move_range('mr.c', '{"k": 90}', '{"k": {"$maxKey": 1}}', 'shard1')::jsonb) - 'millis' - 'bytes' AS moved;
SELECT (docshard.move_range('mr.c', '{"k": 20}', '{"k": 30}', 'local')::jsonb) - 'millis' - 'bytes' AS moved;
TABLE mr_chunks;
-- Documents on the target stay; the others are moved chunk by chunk.
SELECT docshard.move_range('mr.c', '{"k": 92}', '{"k": 95}', 'shard1');
SELECT (docshard.move_range('mr.c', '{"k": 5}', '{"k": 25}', 'shard1')::jsonb) - 'millis' - 'bytes' AS moved;
TABLE mr_chunks;
SELECT docshard.count_documents('mr.c'), docshard.count_documents('mr.c', '{"k": {"$gte": 5, "$lt": 25}}');
SELECT shard, documents FROM docshard.get_shard_distribution('mr.c', '{"count": true}') ORDER BY shard;
-- With one bound only: about a chunk's size from there, within the chunk.
SELECT (docshard.move_range('mr.c', '{"k": 50}', NULL, 'shard1')::jsonb) - 'millis' - 'bytes' AS moved;
SELECT (docshard.move_range('mr.c', NULL, '{"k": 40}', 'local')::jsonb) - 'millis' - 'bytes' AS moved;
TABLE mr_chunks;
SELECT docshard.insert_many('mr.c', array_agg(jsonb_build_object('_id', k, 'k', k, 'pad', repeat(md5(k::text), 60)))) -> 'insertedCount' AS inserted
  FROM generate_series(1000, 2999) k;
SELECT docshard.configure_collection_balancing('mr.c', '{"chunkSize": 1}');
SELECT (docshard.move_range('mr.c', '{"k": 1000}', NULL, 'local')::jsonb ->> 'documents')::int BETWEEN 300 AND 700 AS about_one_mb;
SELECT (docshard.move_range('mr.c', NULL, '{"k": {"$maxKey": 1}}', 'shard0')::jsonb ->> 'documents')::int BETWEEN 300 AND 700 AS about_one_mb;
SELECT count(*) FROM mr_chunks;
SELECT docshard.count_documents('mr.c');

-- Invalid ranges.
SELECT docshard.move_range('mr.c', '{"k": 5}', '{"k": 5}', 'shard1');
SELECT docshard.move_range('mr.c', '{"k": 9}', '{"k": 5}', 'shard1');
SELECT docshard.move_range('mr.c', '{"k": {"$maxKey": 1}}', '{"k": {"$minKey": 1}}', 'shard1');
SELECT docshard.move_range('mr.c', NULL, NULL, 'shard1');
SELECT docshard.move_range('mr.c', '{"x": 5}', '{"k": 5}', 'shard1');
SELECT docshard.move_range('mr.c', '{"k": 5}', '7', 'shard1');
SELECT docshard.move_range('mr.c', '{"k": [5]}', '{"k": 7}', 'shard1');
SELECT docshard.move_range('mr.c', '{"k": 5}', '{"k": 7}', 'nowhere');
SELECT docshard.move_range('mr.none', '{"k": 5}', '{"k": 7}', 'shard1');
SELECT docshard.move_range('mr.c', '{"k": 5}', '{"k": 7}', 'shard1', '{"waitForDelete": true}');
BEGIN;
SELECT docshard.move_range('mr.c', '{"k": 5}', '{"k": 7}', 'shard1');
ROLLBACK;
SELECT count(*) FROM mr_chunks;
DROP VIEW mr_chunks;
SELECT docshard.drop_database('mr');
