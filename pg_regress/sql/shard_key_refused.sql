-- Every malformed shard key and option of shard_collection has its own error.
SELECT docshard.shard_collection('skr.c', '{}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '["a"]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '"a"');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": 1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": -1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": 2}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": 1.5}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": "text"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": null}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a..b": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{".a": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"$a": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a.$b": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": 1, "a.b": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": "hashed", "b": "hashed"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', (SELECT json_object_agg('f' || n, 1) FROM generate_series(1, 33) n));
\echo :LAST_ERROR_SQLSTATE
-- Options.
SELECT docshard.shard_collection('skr.c', '{"a": 1}', '{"uniqe": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": 1}', '{"unique": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": "hashed"}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": 1}', '{"numInitialChunks": 4}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": "hashed"}', '{"numInitialChunks": 0}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": "hashed"}', '{"numInitialChunks": 1000000}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('skr.c', '{"a": "hashed"}', '{"numInitialChunks": "many"}');
\echo :LAST_ERROR_SQLSTATE
-- Nothing was created.
SELECT count(*) FROM docshard.databases WHERE name = 'skr';
