-- Where an index cannot be built concurrently, a warning says that it blocks writers, or the option refuses it.
SELECT docshard.insert_many('blocking.c', array_agg(jsonb_build_object('_id', n, 'a', n))) -> 'insertedCount' AS n FROM generate_series(1, 10) n;
-- Concurrently.
SELECT docshard.create_index('blocking.c', '{"a": 1}');
SELECT * FROM docshard.create_index('blocking.c', '{"b": 1}', '{"concurrently": true}');
SELECT name FROM docshard.create_index('blocking.c', '{"c": 1}', '{"concurrently": true}') AS name;
SELECT * FROM docshard.create_indexes('blocking.c', '[{"key": {"d": 1}, "concurrently": true}, {"key": {"e": 1}}]');
SELECT docshard.run_command('blocking', '{"createIndexes": "c", "indexes": [{"key": {"f": 1}, "name": "f"}]}') -> 'numIndexesAfter' AS after;
SELECT count(*) FROM docshard.changelog WHERE namespace = 'blocking.c' AND what = 'createIndex';
-- In the caller's transaction.
SELECT docshard.create_index('blocking.c', '{"g": 1}'), 1;
SELECT * FROM docshard.create_index('blocking.c', '{"h": 1}'), generate_series(1, 1);
SELECT 1 \; SELECT docshard.create_index('blocking.c', '{"i": 1}');
DO $$ BEGIN PERFORM docshard.create_index('blocking.c', '{"j": 1}'); END $$;
BEGIN;
SELECT docshard.create_index('blocking.c', '{"k": 1}');
SELECT docshard.create_indexes('blocking.c', '[{"key": {"l": 1}}, {"key": {"m": 1}, "concurrently": false}]');
SELECT docshard.run_command('blocking', '{"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n"}]}') -> 'ok' AS ok;
COMMIT;
-- Without a warning: it is asked for, or the index exists, or there are no documents.
BEGIN;
SELECT docshard.create_index('blocking.c', '{"o": 1}', '{"concurrently": false}');
SELECT docshard.create_indexes('blocking.c', '[{"key": {"p": 1}, "concurrently": false}, {"key": {"q": 1}, "concurrently": false}]');
SELECT docshard.create_index('blocking.c', '{"o": 1}');
SELECT docshard.create_index('blocking.c', '{"o": 1}', '{"concurrently": true}');
SELECT docshard.create_index('blocking.new', '{"o": 1}');
SELECT docshard.create_index('blocking.new2', '{"o": 1}', '{"concurrently": true}');
COMMIT;
-- Refused.
SELECT docshard.create_index('blocking.c', '{"r": 1}', '{"concurrently": true}'), 1;
\echo :LAST_ERROR_SQLSTATE
DO $$ BEGIN PERFORM docshard.create_indexes('blocking.c', '[{"key": {"r": 1}}, {"key": {"s": 1}, "concurrently": true}]'); END $$;
SELECT docshard.create_index('blocking.c', '{"r": 1}', '{"concurrently": "yes"}');
SELECT name FROM docshard.list_indexes('blocking.c') WHERE name IN ('r_1', 's_1');
SELECT docshard.drop_database('blocking') -> 'ok' AS ok;
