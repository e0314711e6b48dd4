-- Moves that are refused before anything is copied, each for a different reason.
SELECT docshard.enable_sharding('no', 'shard0');
SELECT docshard.shard_collection('no.c', '{"k": 1}');
SELECT docshard.create_index('no.c', '{"n": 1}');
SELECT docshard.insert_many('no.c', array_agg(jsonb_build_object('_id', k, 'k', k, 'pad', pad))) -> 'insertedCount' AS inserted
  FROM generate_series(0, 99) k, LATERAL (SELECT string_agg(md5(k * n || ''), '') AS pad FROM generate_series(1, 1000) n) AS pads;
SELECT docshard.split_at('no.c', '{"k": 50}');
-- shard1 has had documents of the collection before.
SELECT docshard.move_chunk('no.c', '{"k": 50}', 'shard1') ->> 'documents' AS documents;
SELECT relation FROM docshard.indexes WHERE namespace = 'no.c' \gset
SELECT "table" FROM docshard.collections WHERE namespace = 'no.c' \gset
\set here :DBNAME

-- Names and keys.
SELECT docshard.move_chunk('no.none', '{"k": 1}', 'shard1');
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'nowhere');
SELECT docshard.move_chunk('no.c', '{"n": 1}', 'shard1');
SELECT docshard.move_chunk('no.c', '7', 'shard1');
SELECT docshard.move_chunk('no.c', '{"k": [1]}', 'shard1');
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'shard0');
SELECT docshard.abort_migration('no.c');
SELECT docshard.abort_migration('no.none');
SELECT docshard.abort_migration(-1);

-- The recipient has another version of docshard, no prepared transactions, or lacks an index.
\connect regress_shard1
UPDATE pg_extension SET extversion = '0.0.9' WHERE extname = 'docshard';
\connect :here
\set VERBOSITY sqlstate
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'shard1');
\set VERBOSITY default
SELECT replace(:'LAST_ERROR_MESSAGE', extversion, 'VERSION') AS message FROM pg_extension WHERE extname = 'docshard';
\connect regress_shard1
UPDATE pg_extension SET extversion = (SELECT default_version FROM pg_available_extensions WHERE name = 'docshard') WHERE extname = 'docshard';
-- An administrator who means it can switch the protection of collections' tables off.
ALTER EVENT TRIGGER docshard_check_changes DISABLE;
ALTER INDEX docshard_data.:relation RENAME TO hidden;
\connect :here
\set VERBOSITY sqlstate
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'shard1');
\set VERBOSITY default
SELECT regexp_replace(:'LAST_ERROR_MESSAGE', 'i\d+', 'iN') AS error;

\connect regress_shard1
ALTER INDEX docshard_data.hidden RENAME TO :relation;
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
\connect :here

-- A full shard, and one that is being removed.
SELECT max_size_mb FROM docshard_catalog.shards WHERE name = 'shard1' \gset
UPDATE docshard_catalog.shards SET max_size_mb = 1 WHERE name = 'shard1';
\set VERBOSITY sqlstate
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'shard1');
\set VERBOSITY default
SELECT regexp_replace(:'LAST_ERROR_MESSAGE', 'hold \d+', 'hold N') AS error;
UPDATE docshard_catalog.shards SET max_size_mb = :max_size_mb, draining = true WHERE name = 'shard1';
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'shard1');
UPDATE docshard_catalog.shards SET draining = false WHERE name = 'shard1';

-- A jumbo chunk, and how to move it nevertheless.
UPDATE docshard_catalog.chunks SET jumbo = true WHERE collection_id = (SELECT id FROM docshard_catalog.collections WHERE namespace = 'no.c');
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'shard1');
SELECT docshard.move_range('no.c', '{"k": {"$minKey": 1}}', '{"k": 50}', 'shard1');

-- While another move of the collection is under way.
BEGIN;
INSERT INTO docshard_catalog.migrations (id, token, collection_id, namespace, min, max, donor, recipient, version, donor_version, recipient_version)
SELECT 1000000, token, id, namespace, '\x00', '\x01', 1, 2, 0, 0, 0 FROM docshard_catalog.collections WHERE namespace = 'no.c';
SET LOCAL lock_timeout = 20;
SAVEPOINT here;
SELECT docshard.split_at('no.c', '{"k": 7}');
ROLLBACK TO here;
SELECT docshard.create_index('no.c', '{"other": 1}');
ROLLBACK TO here;
SELECT docshard.drop_collection('no.c');
ROLLBACK TO here;
SELECT docshard.merge_chunks('no.c', '[{"k": {"$minKey": 1}}, {"k": {"$maxKey": 1}}]');
ROLLBACK;

-- Nothing has changed.
SELECT shard, documents FROM docshard.get_shard_distribution('no.c', '{"count": true}') ORDER BY shard;
SELECT docshard.move_chunk('no.c', '{"k": 1}', 'shard1', '{"forceJumbo": true}') ->> 'documents' AS documents;
SELECT docshard.count_documents('no.c');
SELECT docshard.drop_database('no');
