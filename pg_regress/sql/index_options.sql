-- Several indexes at once, dropping several, hidden ones, and documents that expire.
SELECT docshard.create_indexes('idxo.c', '[{"key": {"a": 1}}, {"key": {"b": -1, "c": 1}, "name": "bc"}, {"key": {"at": 1}, "expireAfterSeconds": 3600}]');
SELECT * FROM docshard.list_indexes('idxo.c');
SELECT namespace, name, keys, "unique", hidden, expire_after_s FROM docshard.indexes WHERE namespace = 'idxo.c' ORDER BY name;
-- Creating the same index again changes nothing; other options conflict.
SELECT docshard.create_index('idxo.c', '{"at": 1}', '{"expireAfterSeconds": 3600}');
SELECT docshard.create_index('idxo.c', '{"at": 1}', '{"expireAfterSeconds": 60}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxo.c', '{"a": 1}', '{"hidden": true}');
-- All indexes are created, or none.
SELECT docshard.create_indexes('idxo.c', '[{"key": {"x": 1}}, {"key": {"a": 0}}]');
SELECT docshard.create_indexes('idxo.c', '[{"key": {"x": 1}}, {"key": {"x": 1}}]');
SELECT docshard.run_command('idxo', '{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}, {"key": {"x": 1}, "name": "x"}]}');
SELECT docshard.create_indexes('idxo.c', '[{"key": {"a": 1}}, {"key": {"a": 1}}]');
SELECT docshard.create_indexes('idxo.c', '[]');
SELECT docshard.create_indexes('idxo.c', '{"key": {"x": 1}}');
SELECT docshard.create_indexes('idxo.c', '[{"name": "x"}]');
SELECT docshard.create_indexes('idxo.c', '[{"key": {"x": 1}, "bits": 26}]');
SELECT count(*) FROM docshard.list_indexes('idxo.c');
-- Invalid options for expiry.
SELECT docshard.create_index('idxo.c', '{"_id": 1}', '{"expireAfterSeconds": 1}');
SELECT docshard.create_index('idxo.c', '{"d": 1, "e": 1}', '{"expireAfterSeconds": 1}');
SELECT docshard.create_index('idxo.c', '{"d": 1}', '{"expireAfterSeconds": -1}');
SELECT docshard.create_index('idxo.c', '{"d": 1}', '{"expireAfterSeconds": 2147483648}');
SELECT docshard.create_index('idxo.c', '{"d": 1}', '{"expireAfterSeconds": "soon"}');
SELECT docshard.create_index('idxo.c', '{"_id": 1}', '{"hidden": true}');
-- A hidden index is not used by finds, but stays unique.
SELECT docshard.create_index('idxo.c', '{"h": 1}', '{"hidden": true, "unique": true}');
SELECT docshard.insert_many('idxo.c', ARRAY['{"_id": 1, "h": 1, "a": 1}', '{"_id": 2, "h": 2, "a": 2}']::jsonb[]) ->> 'insertedCount' AS inserted;
SELECT docshard.explain('idxo.c', '{"h": 2}') ->> 'accessPath' AS path;
SELECT docshard.explain('idxo.c', '{"a": 2}') ->> 'accessPath' AS path;
SELECT docshard.find('idxo.c', '{"h": 2}');
SELECT docshard.insert_one('idxo.c', '{"_id": 3, "h": 2}');
-- The same by commands.
SELECT docshard.run_command('idxo', '{"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "z", "hidden": true}, {"key": {"t": 1}, "name": "t", "expireAfterSeconds": 5}]}');
SELECT jsonb_path_query(docshard.run_command('idxo', '{"listIndexes": "c"}')::jsonb, '$.cursor.firstBatch[*]');
-- Dropped by keys, by names, and all.
SELECT docshard.drop_indexes('idxo.c', '{"b": -1, "c": 1}');
SELECT docshard.drop_indexes('idxo.c', '["z", "t"]');
SELECT docshard.drop_indexes('idxo.c', '["a_1", "none"]');
SELECT docshard.drop_indexes('idxo.c', '{"none": 1}');
SELECT docshard.drop_indexes('idxo.c', '7');
SELECT name FROM docshard.list_indexes('idxo.c');
SELECT docshard.drop_indexes('idxo.c');
SELECT name FROM docshard.list_indexes('idxo.c');
-- Sharding an empty collection keeps its indexes.
SELECT docshard.create_index('idxo.e', '{"h": 1}', '{"hidden": true}'), docshard.create_index('idxo.e', '{"t": 1}', '{"expireAfterSeconds": 7}');
SELECT docshard.shard_collection('idxo.e', '{"k": 1}');
SELECT * FROM docshard.list_indexes('idxo.e');
SELECT docshard.drop_database('idxo');
