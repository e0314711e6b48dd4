-- Malformed indexes, and indexes that do not exist.
SELECT docshard.create_collection('idxr.c');
SELECT docshard.create_index('idxr.c', '{}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '["a"]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": 0}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": "text"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a..b": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"$a": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', (SELECT json_object_agg('f' || n, 1) FROM generate_series(1, 33) n));
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": 1}', '{"bits": 26}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": "btree"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.run_command('idxr', '{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "bytes": 26}]}') ->> 'code' AS code;
SELECT docshard.create_index('idxr.c', '{"a": 1}', '{"name": ""}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": 1}', '{"name": "_id_"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": 1}', '{"unique": "yes"}');
\echo :LAST_ERROR_SQLSTATE

-- The same name with other keys, the same keys under another name, the same keys with other options.
SELECT docshard.create_index('idxr.c', '{"a": 1}', '{"name": "mine"}');
SELECT docshard.create_index('idxr.c', '{"b": 1}', '{"name": "mine"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": 1}', '{"name": "other"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxr.c', '{"a": 1}', '{"name": "mine", "unique": true}');
\echo :LAST_ERROR_SQLSTATE
-- _id has its index already.
SELECT docshard.create_index('idxr.c', '{"_id": 1}');

SELECT docshard.drop_index('idxr.c', 'none');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_index('idxr.c', '_id_');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_index('idxr.none', 'a_1');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM docshard.list_indexes('idxr.none');
\echo :LAST_ERROR_SQLSTATE
-- A value may be too long for a b-tree.
SELECT docshard.insert_one('idxr.c', jsonb_build_object('_id', 2, 'a', repeat('x', 5000)));
SELECT docshard.count_documents('idxr.c', json_build_object('a', repeat('x', 5000))) AS same,
       docshard.count_documents('idxr.c', json_build_object('a', repeat('x', 5001))) AS longer;
-- A collection has at most 64 indexes, with that of _id and the shard key's own.
SELECT docshard.shard_collection('idxr.many', '{"k": 1}') -> 'ok' AS ok;
SELECT count(docshard.create_index('idxr.many', json_build_object('f' || n, 1))) FROM generate_series(1, 62) n;
SELECT docshard.create_index('idxr.many', '{"f63": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM docshard.list_indexes('idxr.many');
SELECT docshard.drop_database('idxr');
