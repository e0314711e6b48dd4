-- Commands for collections, indexes, databases, shards, zones and the balancer.
CREATE FUNCTION run(db text, command json) RETURNS jsonb LANGUAGE sql AS $$ SELECT docshard.run_command(db, command) $$;

-- The server.
SELECT run('adm', '{"ping": 1}');
SELECT run('adm', '{"hello": 1}') - 'localTime' - 'connectionId';
SELECT run('adm', '{"isMaster": 1}') -> 'ismaster' AS ismaster;
SELECT jsonb_object_keys(run('adm', '{"buildInfo": 1}'));
SELECT command, spec ->> 'adminOnly' AS admin, spec -> 'aliases' AS aliases
FROM jsonb_each(run('adm', '{"listCommands": 1}') -> 'commands') AS c (command, spec) ORDER BY command COLLATE "C";

-- Collections and indexes.
SELECT run('adm', '{"create": "c"}');
SELECT run('adm', '{"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": -1}, "name": "ab"}, {"key": {"c": 1}, "name": "c_1", "unique": true, "background": true}]}');
SELECT run('adm', '{"createIndexes": "c", "indexes": [{"key": {"c": 1}, "name": "c_1", "unique": true}]}');
SELECT run('adm', '{"listIndexes": "c"}');
SELECT run('adm', '{"dropIndexes": "c", "index": {"a": 1, "b": -1}}'), run('adm', '{"dropIndexes": "c", "index": "*"}'), run('adm', '{"dropIndexes": "c", "index": "_id_"}');
SELECT run('adm', '{"listCollections": 1}') #> '{cursor,firstBatch,0}' #- '{info,uuid}';
SELECT run('adm', '{"insert": "c", "documents": [{"_id": 1, "a": "x"}, {"_id": 2}]}');
SELECT stats - 'storageSize' - 'totalIndexSize' - 'totalSize' - 'indexSizes' - 'shards' - 'size' - 'avgObjSize' AS stats,
  (stats ->> 'size')::int > 0 AS size, (stats ->> 'totalSize')::int > 0 AS total FROM run('adm', '{"collStats": "c"}') AS stats;
SELECT stats - 'storageSize' - 'indexSize' - 'totalSize' - 'dataSize' - 'avgObjSize' AS stats FROM run('adm', '{"dbStats": 1, "scale": 1024}') AS stats;
SELECT run('adm', '{"collStats": "none"}');
SELECT run('admin', '{"listDatabases": 1, "nameOnly": true, "filter": {"name": {"$in": ["adm", "config"]}}}');
SELECT database - 'sizeOnDisk' - 'shards' AS database FROM jsonb_array_elements(run('admin', '{"listDatabases": 1, "filter": {"name": "adm"}}') -> 'databases') AS database;
SELECT run('adm', '{"drop": "c"}');

-- Sharding.
SELECT run('admin', '{"enableSharding": "adm2", "primaryShard": "local"}');
SELECT run('admin', '{"shardCollection": "adm2.c", "key": {"k": 1}, "unique": false}');
SELECT run('adm2', '{"insert": "c", "documents": [{"_id": 1, "k": "a"}, {"_id": 2, "k": "h"}, {"_id": 3, "k": "p"}, {"_id": 4, "k": "z"}]}');
SELECT run('admin', '{"split": "adm2.c", "middle": {"k": "h"}}');
SELECT run('admin', '{"split": "adm2.c", "bounds": [{"k": "h"}, {"k": {"$maxKey": 1}}]}');
SELECT run('admin', '{"split": "adm2.c", "bounds": [{"k": "b"}, {"k": {"$maxKey": 1}}]}');
SELECT run('config', '{"find": "chunks", "filter": {"ns": "adm2.c"}, "projection": {"_id": 0, "min": 1, "max": 1, "shard": 1}}') #> '{cursor,firstBatch}';
SELECT run('admin', '{"moveChunk": "adm2.c", "find": {"k": "a"}, "to": "shard0"}') - 'millis';
SELECT run('admin', '{"moveChunk": "adm2.c", "bounds": [{"k": "p"}, {"k": {"$maxKey": 1}}], "to": "shard1"}') -> 'ok' AS ok;
SELECT run('admin', '{"moveRange": "adm2.c", "min": {"k": "h"}, "toShard": "shard0"}') -> 'ok' AS ok;
SELECT run('config', '{"find": "chunks", "filter": {"ns": "adm2.c"}, "projection": {"_id": 0, "min": 1, "shard": 1}}') #> '{cursor,firstBatch}';
SELECT run('admin', '{"mergeChunks": "adm2.c", "bounds": [{"k": {"$minKey": 1}}, {"k": "p"}]}');
SELECT run('adm2', '{"find": "c", "sort": {"k": 1}}') #> '{cursor,firstBatch}';
SELECT run('adm2', '{"update": "c", "updates": [{"q": {"k": "z"}, "u": {"$set": {"v": 1}}}, {"q": {"v": 1}, "u": {"$set": {"v": 2}}}]}');
SELECT run('adm2', '{"delete": "c", "deletes": [{"q": {"v": 1}, "limit": 1}]}') - 'hint';
SELECT run('adm2', '{"explain": {"find": "c", "filter": {"k": "a"}}}') #>> '{queryPlanner,winningPlan,stage}' AS stage;
SELECT shard, stats -> 'count' AS count FROM jsonb_each(run('adm2', '{"collStats": "c"}') -> 'shards') AS s (shard, stats) ORDER BY shard;
-- A move commits by itself.
BEGIN;
SELECT run('admin', '{"moveChunk": "adm2.c", "find": {"k": "a"}, "to": "local"}') ->> 'codeName' AS answer;
ROLLBACK;

-- Shards and zones.
SELECT shard - 'host' - 'addedAt' AS shard FROM jsonb_array_elements(run('admin', '{"listShards": 1}') -> 'shards') AS shard;
SELECT jsonb_object_keys(run('admin', '{"getShardMap": 1}') -> 'map');
SELECT run('admin', '{"addShardToZone": "shard0", "zone": "EU"}'), run('admin', '{"updateZoneKeyRange": "adm2.c", "min": {"k": "a"}, "max": {"k": "c"}, "zone": "EU"}');
SELECT docshard.find('config.tags');
SELECT run('admin', '{"removeShardFromZone": "shard0", "zone": "EU"}') - 'hint';
SELECT run('admin', '{"updateZoneKeyRange": "adm2.c", "min": {"k": "a"}, "max": {"k": "c"}, "zone": null}'), run('admin', '{"removeShardFromZone": "shard0", "zone": "EU"}');
SELECT run('admin', '{"flushRouterConfig": 1}');
SELECT run('admin', '{"movePrimary": "adm", "to": "shard1"}') -> 'ok' AS ok;

-- The balancer.
SELECT run('admin', '{"balancerStop": 1}'), run('admin', '{"balancerStatus": 1}') -> 'mode' AS mode;
SELECT run('admin', '{"configureCollectionBalancing": "adm2.c", "chunkSize": 64}');
SELECT docshard.find('config.collections', '{"_id": "adm2.c"}', '{"projection": {"maxChunkSizeBytes": 1, "key": 1}}');

SELECT run('adm', '{"dropDatabase": 1}'), run('adm2', '{"dropDatabase": 1}');
DROP FUNCTION run;
