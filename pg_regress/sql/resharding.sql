-- Changes of a collection's layout on one node: the documents, indexes and rights stay.
SELECT docshard.stop_balancer() -> 'ok' AS ok;
SELECT docshard.shard_collection('rsh.users', '{"name": 1}') -> 'ok' AS ok;
SELECT docshard.create_index('rsh.users', '{"age": -1}', '{"expireAfterSeconds": 3600, "hidden": true}');
SELECT docshard.insert_select('rsh.users', $$SELECT jsonb_build_object('_id', i, 'name', 'n' || i, 'age', i % 7, 'city', i % 3) FROM generate_series(1, 100) i$$) -> 'insertedCount' AS inserted;
SELECT docshard.reshard_collection('rsh.users', '{"city": 1, "_id": 1}', '{"numInitialChunks": 3}') -> 'documents' AS documents;
SELECT namespace, key FROM docshard.collections WHERE database = 'rsh';
SELECT name, keys, hidden, expire_after_s FROM docshard.indexes WHERE namespace = 'rsh.users' ORDER BY name;
SELECT docshard.find_one('rsh.users', '{"_id": 42}');
SELECT docshard.count_documents('rsh.users', '{"city": 1}') AS count;
SELECT command, state, outcome, old_key, key, documents, error FROM docshard.resharding WHERE namespace = 'rsh.users';

-- The same key changes nothing, unless it is asked for.
SELECT docshard.reshard_collection('rsh.users', '{"city": 1, "_id": 1}');
SELECT docshard.reshard_collection('rsh.users', '{"city": 1, "_id": 1}', '{"forceRedistribution": true}') -> 'documents' AS documents;

-- Options must be valid also if nothing is done.
SELECT docshard.reshard_collection('rsh.users', '{"city": 1, "_id": 1}', '{"commitTimeoutMS": -1}');
SELECT docshard.reshard_collection('rsh.users', '{"city": 1, "_id": 1}', '{"zones": {}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.reshard_collection('rsh.users', '{"city": 1, "_id": 1}', '{"zones": [1]}');

-- A longer key needs an index.
SELECT docshard.refine_collection_shard_key('rsh.users', '{"city": 1, "_id": 1, "age": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('rsh.users', '{"city": 1, "_id": 1, "age": 1}');
SELECT docshard.refine_collection_shard_key('rsh.users', '{"city": 1, "_id": 1, "age": 1}') -> 'documents' AS documents;
SELECT docshard.refine_collection_shard_key('rsh.users', '{"age": 1, "city": 1}');
\echo :LAST_ERROR_SQLSTATE

-- Zones: ranges of the former key are replaced.
SELECT docshard.add_shard_to_zone('local', 'here') -> 'ok' AS ok;
SELECT docshard.update_zone_key_range('rsh.users', '{"city": 1}', '{"city": 2}', 'here') -> 'ok' AS ok;
SELECT docshard.reshard_collection('rsh.users', '{"age": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.reshard_collection('rsh.users', '{"age": 1}', '{"zones": [{"min": {"age": 1}, "max": {"age": 3}, "zone": "here"}]}') -> 'documents' AS documents;
SELECT min, max, zone FROM docshard.zone_ranges WHERE namespace = 'rsh.users';

-- Unsharded, compacted, and errors.
SELECT docshard.unshard_collection('rsh.users', 'local') -> 'documents' AS documents;
SELECT namespace, key FROM docshard.collections WHERE database = 'rsh';
SELECT docshard.move_collection('rsh.users', 'local') -> 'note' AS note;
SELECT docshard.compact('rsh.users') -> 'documents' AS documents;
SELECT docshard.reshard_collection('rsh.users', '{"city": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.abort_reshard_collection('rsh.users');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.run_command('admin', '{"reshardCollection": "rsh.none", "key": {"a": 1}}') ->> 'codeName' AS code;
BEGIN;
SELECT docshard.compact('rsh.users');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT docshard.remove_shard_from_zone('local', 'here') -> 'ok' AS ok;

-- Shard keys compare by bytes, whatever the collection's default collation is. Options by which MongoDB samples and places have no effect.
SELECT docshard.create_collection('rsh.own', '{"collation": {"locale": "en", "strength": 2}}') -> 'ok' AS ok,
       docshard.shard_collection('rsh.own', '{"a": 1}', '{"collation": {"locale": "simple"}}') -> 'ok' AS ok;
SELECT docshard.reshard_collection('rsh.own', '{"b": 1}', '{"collation": {"locale": "en"}}');
SELECT docshard.run_command('admin', '{"reshardCollection": "rsh.own", "key": {"b": 1}, "demoMode": true, "relaxed": true, "numSamplesPerChunk": 2}') -> 'ok' AS ok;
SELECT key FROM docshard.collections WHERE namespace = 'rsh.own';
SELECT docshard.drop_database('rsh');
