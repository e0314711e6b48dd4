-- Splitting and merging chunks, and refused moves. (Moves need several servers: tests/tests/migration/.)
CREATE VIEW bounds AS
SELECT min, max FROM docshard.chunks WHERE namespace = 'chunks.c' ORDER BY min::text;

SELECT docshard.shard_collection('chunks.c', '{"a": 1, "b": 1}');
SELECT docshard.insert_many('chunks.c', array_agg(jsonb_build_object('_id', i, 'a', i / 10, 'b', i))) ->> 'insertedCount'
  FROM generate_series(0, 99) i;

-- At a given key, where omitted last fields count as MinKey; at the median of the existing documents.
SELECT docshard.split_at('chunks.c', '{"a": 5}');
SELECT docshard.split_find('chunks.c', '{"a": 1, "b": 0}');
TABLE bounds;
SELECT docshard.count_documents('chunks.c');

-- Neighbours on one shard are merged.
SELECT docshard.merge_chunks('chunks.c', '[{"a": {"$minKey": 1}}, {"a": {"$maxKey": 1}, "b": {"$maxKey": 1}}]');
TABLE bounds;

-- A chunk of a hashed field is split at a hash, and found by a value.
SELECT docshard.shard_collection('chunks.h', '{"a": "hashed"}', '{"numInitialChunks": 1}');
SELECT docshard.split_at('chunks.h', '{"a": {"$numberLong": "4611686018427387904"}}');
SELECT docshard.insert_many('chunks.h', array_agg(jsonb_build_object('_id', i, 'a', i))) ->> 'insertedCount'
  FROM generate_series(1, 10) i;
SELECT docshard.split_find('chunks.h', '{"a": 1}');
SELECT count(*) FROM docshard.chunks WHERE namespace = 'chunks.h';

-- What is refused.
SELECT docshard.split_at('chunks.c', '{"a": {"$minKey": 1}}');
SELECT docshard.split_at('chunks.c', '{"a": {"$maxKey": 1}, "b": {"$maxKey": 1}}');
SELECT docshard.split_at('chunks.c', '{"b": 1}');
SELECT docshard.split_at('chunks.c', '{"a": [1]}');
SELECT docshard.split_at('chunks.c', '{}');
SELECT docshard.split_at('chunks.c', '5');
SELECT docshard.split_at('chunks.h', '{"a": "x"}');
SELECT docshard.split_at('chunks.none', '{"a": 1}');
SELECT docshard.split_at('nodot', '{"a": 1}');
SELECT docshard.split_find('chunks.c', '{"a": 1}');
SELECT docshard.split_find('chunks.c', '[]');
SELECT docshard.delete_many('chunks.c', '{"_id": {"$gt": 0}}') ->> 'deletedCount';
SELECT docshard.split_find('chunks.c', '{"a": 0, "b": 0}');
SELECT docshard.merge_chunks('chunks.c', '[{"a": {"$minKey": 1}}, {"a": {"$maxKey": 1}, "b": {"$maxKey": 1}}]');
SELECT docshard.merge_chunks('chunks.c', '[{"a": 1}, {"a": 2}]');
SELECT docshard.merge_chunks('chunks.h', '[{"a": 1}, {"a": {"$maxKey": 1}}]');
SELECT docshard.merge_chunks('chunks.c', '[{"a": 1}]');
SELECT docshard.create_collection('chunks.u');
SELECT docshard.split_at('chunks.u', '{"a": 1}');

-- Moving.
SELECT docshard.move_chunk('chunks.c', '{"a": 1, "b": 1}', 'local');
SELECT docshard.move_chunk('chunks.c', '{"a": 1, "b": 1}', 'nowhere');
SELECT docshard.move_chunk('chunks.c', '{"b": 1}', 'local');
SELECT docshard.move_chunk('chunks.c', '{"a": 1, "b": 1}', 'local', '{"secondaryThrottle": true}');
SELECT docshard.move_chunk('chunks.u', '{"_id": 1}', 'local');
SELECT docshard.move_chunk('chunks.none', '{"a": 1}', 'local');
SELECT docshard.move_range('chunks.c', '{"a": 1}', '{"a": 2}', 'local');
BEGIN;
INSERT INTO docshard_catalog.shards (name, server) VALUES ('other', 'docshard_other');
CREATE SERVER docshard_other FOREIGN DATA WRAPPER postgres_fdw;
SELECT docshard.move_chunk('chunks.c', '{"a": 1, "b": 1}', 'other');
ROLLBACK;
SELECT docshard.recover_moves();

DROP VIEW bounds;
SELECT docshard.drop_database('chunks');
