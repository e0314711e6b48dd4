-- Zones: the shards of a zone, and the ranges of keys that belong to it; before and after the collection is sharded.
CREATE FUNCTION pg_temp.chunks(ns text) RETURNS SETOF text LANGUAGE sql AS
$$ SELECT format('%s -->> %s on %s', min, max, shard) FROM docshard.chunks WHERE namespace = ns ORDER BY min_key $$;

SELECT docshard.add_shard_to_zone('local', 'EU');
SELECT docshard.add_shard_to_zone('local', 'EU');
SELECT docshard.add_shard_to_zone('local', 'US');
SELECT * FROM docshard.zones ORDER BY zone;
SELECT docshard.add_shard_to_zone('nowhere', 'EU');
SELECT docshard.add_shard_to_zone('local', '');

-- Ranges are given before the collection exists: its initial chunks end at their bounds.
SELECT docshard.update_zone_key_range('zones.c', '{"a": 10}', '{"a": 20}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"a": 20}', '{"a": {"$maxKey": 1}}', 'US');
SELECT namespace, min, max, zone FROM docshard.zone_ranges ORDER BY namespace, min_key;
SELECT docshard.shard_collection('zones.c', '{"a": 1, "b": 1}');
SELECT pg_temp.chunks('zones.c');
SELECT namespace, min, max, zone FROM docshard.zone_ranges ORDER BY namespace, min_key;

-- Refused: overlapping ranges, zones without shards, malformed bounds, bounds in the wrong order or with different fields.
SELECT docshard.update_zone_key_range('zones.c', '{"a": 15}', '{"a": 16}', 'EU');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range('zones.c', '{"a": 1}', '{"a": 11}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"a": {"$minKey": 1}}', '{"a": {"$maxKey": 1}}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"a": 1}', '{"a": 2}', 'ASIA');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range('zones.c', '{"a": 2}', '{"a": 1}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"a": 2}', '{"a": 2}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"a": 2}', '{"a": 3, "b": 1}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"b": 2}', '{"b": 3}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"a": [2]}', '{"a": 3}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{}', '{}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '5', '6', 'EU');
SELECT docshard.update_zone_key_range('zones.none', '{"$a": 1}', '{"$a": 2}', 'EU');
SELECT docshard.update_zone_key_range('nodot', '{"a": 2}', '{"a": 3}', 'EU');

-- The same range again changes its zone; adjacent ranges do not overlap; null removes a range.
SELECT docshard.update_zone_key_range('zones.c', '{"a": 10}', '{"a": 20}', 'US');
SELECT docshard.update_zone_key_range('zones.c', '{"a": 5}', '{"a": 10}', 'EU');
SELECT docshard.update_zone_key_range('zones.c', '{"a": 20}', '{"a": {"$maxKey": 1}}', NULL);
SELECT docshard.update_zone_key_range('zones.c', '{"a": 30}', '{"a": 40}', NULL);
SELECT namespace, min, max, zone FROM docshard.zone_ranges ORDER BY namespace, min_key;

-- A zone with ranges keeps its last shard, and the cluster keeps its last shard.
SELECT docshard.remove_shard_from_zone('local', 'EU');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
-- Without a server, as changes of metadata wait for the lock on every other database.
INSERT INTO docshard_catalog.shards (name) VALUES ('other');
SELECT docshard.set_setting('chunk_size_mb', NULL); -- which tells sessions to look again
SAVEPOINT before;
SELECT docshard.remove_shard('local');
ROLLBACK TO before;
SELECT docshard.add_shard_to_zone('other', 'EU');
SELECT docshard.remove_shard_from_zone('local', 'EU');
SELECT * FROM docshard.zones ORDER BY zone, shard;
ROLLBACK;
SELECT docshard.update_zone_key_range('zones.c', '{"a": 5}', '{"a": 10}', NULL);
SELECT docshard.remove_shard_from_zone('local', 'EU');
SELECT docshard.remove_shard_from_zone('local', 'EU');
SELECT * FROM docshard.zones ORDER BY zone;

-- The bounds of a hashed collection are hashes. Ranges that do not fit the shard key are reported when it is sharded.
SELECT docshard.update_zone_key_range('zones.h', '{"h": 0}', '{"h": {"$maxKey": 1}}', 'US');
SELECT docshard.shard_collection('zones.h', '{"other": "hashed"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('zones.h', '{"h": "hashed"}', '{"numInitialChunks": 3}');
SELECT pg_temp.chunks('zones.h');

-- A collection with documents is split at its ranges, too.
SELECT docshard.insert_many('zones.e', array_agg(jsonb_build_object('_id', i))) ->> 'insertedCount' FROM generate_series(1, 9) i;
SELECT docshard.update_zone_key_range('zones.e', '{"_id": 4}', '{"_id": 7}', 'US');
SELECT docshard.shard_collection('zones.e', '{"_id": 1}');
SELECT pg_temp.chunks('zones.e');
SELECT docshard.count_documents('zones.e', '{"_id": {"$gte": 4, "$lt": 7}}');

-- A range is removed with its collection, and with its database.
SELECT docshard.drop_collection('zones.e');
SELECT docshard.update_zone_key_range('zones.later', '{"_id": 4}', '{"_id": 7}', 'US');
SELECT DISTINCT namespace FROM docshard.zone_ranges ORDER BY 1;
SELECT docshard.drop_database('zones');
SELECT count(*) FROM docshard.zone_ranges;
SELECT docshard.remove_shard_from_zone('local', 'US');
SELECT count(*) FROM docshard.zones;
