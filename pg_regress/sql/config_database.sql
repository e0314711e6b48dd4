-- The virtual database config shows the catalog in MongoDB's shapes, through the same filters, sorts and projections.
SELECT docshard.shard_collection('conf.c', '{"a": 1, "b": 1}');
SELECT docshard.split_at('conf.c', '{"a": 5, "b": {"$date": "2024-01-01T00:00:00Z"}}');
SELECT docshard.shard_collection('conf.h', '{"_id": "hashed"}', '{"numInitialChunks": 2}');
SELECT docshard.create_collection('conf.plain');

SELECT doc - '_id' - 'uuid' - 'lastmodEpoch' - 'shard' FROM docshard.find('config.chunks', '{"ns": "conf.c"}') AS doc;
SELECT docshard.find('config.chunks', '{"ns": {"$regex": "^conf"}}', '{"sort": {"ns": -1, "min": -1}, "projection": {"_id": 0, "ns": 1, "min": 1}}');
SELECT docshard.count_documents('config.chunks', '{"ns": "conf.h"}'), docshard.count_documents('config.chunks', '{"ns": "conf.h"}', '{"limit": 1}');
SELECT docshard.find('config.chunks', '{"ns": "conf.c"}', '{"skip": 1, "limit": 1, "projection": {"max": 1, "_id": 0}}');
-- Chunks and collections are joined by uuid.
SELECT count(*) FROM docshard.find('config.collections', '{"_id": "conf.c"}') AS c, docshard.find('config.chunks') AS k WHERE c -> 'uuid' = k -> 'uuid';
SELECT doc - 'uuid' - 'lastmodEpoch' - 'lastmod' - 'timestamp' FROM docshard.find('config.collections', '{"_id": {"$regex": "^conf"}}') AS doc;
SELECT docshard.find('config.databases', '{"_id": "conf"}', '{"projection": {"primary": 0}}');
SELECT docshard.find('config.shards', '{"_id": "local"}', '{"projection": {"host": 1, "state": 1, "tags": 1}}');
SELECT docshard.find_one('config.settings', '{"_id": "chunksize"}'), docshard.find_one('config.settings', '{"_id": "balancer"}');
SELECT doc - 'time' - '_id' FROM docshard.find('config.changelog', '{"ns": "conf.c", "what": "split"}') AS doc;
SELECT jsonb_object_keys(docshard.find_one('config.mongos'));
SELECT docshard.find_one('config.version') - 'clusterId';
SELECT docshard.find('config.nothing'), docshard.count_documents('config.nothing');
SELECT docshard.estimated_document_count('config.shards') = docshard.count_documents('config.shards') AS same;
SELECT docshard.run_command('config', '{"listCollections": 1, "nameOnly": true, "filter": {"name": "shards"}}');
SELECT docshard.run_command('config', '{"count": "chunks", "query": {"ns": "conf.c"}}');
-- Statistics and explain work on these collections, too.
SELECT stats ->> 'ns' AS ns, stats -> 'count' = to_jsonb(docshard.count_documents('config.chunks')) AS count, (stats -> 'size')::int > 100 AS size, stats -> 'nindexes' AS nindexes
  FROM (VALUES (docshard.run_command('config', '{"collStats": "chunks"}')), (docshard.run_command('config', '{"collStats": "nothing"}'))) AS v (stats);
SELECT stats -> 'collections' AS collections, (stats -> 'objects')::int > 5 AS objects FROM docshard.run_command('config', '{"dbStats": 1}') AS stats;
SELECT docshard.run_command('config', '{"listIndexes": "chunks"}'), docshard.run_command('config', '{"listIndexes": "nothing"}');
SELECT name, keys FROM docshard.list_indexes('config.shards');
SELECT plan ->> 'stage' AS stage, plan #>> '{shards,0,shard}' AS shard, plan #> '{executionStats,nReturned}' AS n
  FROM docshard.explain('config.chunks', '{"ns": "conf.c"}', '{"sort": {"min": 1}}', 'executionStats') AS e (json), LATERAL (SELECT json::jsonb) AS p (plan);
SELECT docshard.run_command('config', '{"explain": {"count": "chunks", "query": {"ns": "conf.c"}}}') #>> '{queryPlanner,winningPlan,shards,0,shard}' AS shard,
       docshard.run_command('config', '{"explain": {"distinct": "chunks", "key": "ns"}}') #>> '{queryPlanner,winningPlan,stage}' AS stage,
       docshard.run_command('config', '{"explain": {"find": "nothing"}}') #>> '{queryPlanner,winningPlan,exists}' AS exists;

-- Every role with access to documents may read it.
CREATE ROLE regress_config;
SELECT docshard.grant_access('regress_config');
SET ROLE regress_config;
SELECT name, (SELECT count(*) > 0 FROM docshard.find('config.' || name)) AS has_documents
FROM unnest('{changelog,chunks,collections,databases,mongos,settings,shards,version}'::text[]) AS name;
SELECT docshard.find('config.tags');
RESET ROLE;

SELECT docshard.distinct('config.chunks', 'ns', '{"ns": {"$regex": "^conf"}}');

-- The updates that helpers of MongoDB's shell send are operations.
CREATE FUNCTION put(name text, id text, change json) RETURNS jsonb LANGUAGE sql AS $$
  SELECT docshard.run_command('config', json_build_object('update', name, 'updates', json_build_array(json_build_object('q', json_build_object('_id', id), 'u', change, 'upsert', true)))) - 'hint' $$;
SELECT put('collections', 'conf.c', '{"$set": {"noBalance": true}}'), docshard.find_one('config.collections', '{"_id": "conf.c"}') -> 'noBalance' AS no_balance;
SELECT put('collections', 'conf.c', '{"$set": {"noBalance": false}}'), docshard.find_one('config.collections', '{"_id": "conf.c"}') -> 'noBalance' AS no_balance;
SELECT put('collections', 'conf.plain', '{"$set": {"noBalance": true}}'), put('collections', 'conf.none', '{"$set": {"noBalance": true}}');
SELECT put('settings', 'chunksize', '{"value": 64}'), docshard.find_one('config.settings', '{"_id": "chunksize"}') AS size;
SELECT put('settings', 'chunksize', '{"$set": {"value": 100000}}') ->> 'codeName' AS large, put('settings', 'chunksize', '{"$set": {"value": "x"}}') ->> 'codeName' AS text;
SELECT put('settings', 'chunksize', '{"$unset": {"value": 1}}'), docshard.find_one('config.settings', '{"_id": "chunksize"}') AS size;
SELECT put('settings', 'balancer', '{"$set": {"activeWindow": {"start": "23:00", "stop": "5:00"}}}') ->> 'codeName' AS time, put('settings', 'balancer', '{"$set": {"activeWindow": {"start": "23:00"}}}') ->> 'codeName' AS one;
SELECT put('settings', 'balancer', '{"$set": {"activeWindow": {"start": "23:00", "stop": "05:00"}}}'), docshard.find_one('config.settings', '{"_id": "balancer"}') -> 'activeWindow' AS window;
SELECT put('settings', 'balancer', '{"$unset": {"activeWindow": true}}'), docshard.find_one('config.settings', '{"_id": "balancer"}') -> 'activeWindow' AS window;
SELECT put('settings', 'balancer', '{"$set": {"mode": "some"}}') ->> 'codeName' AS mode, put('settings', 'automerge', '{"$set": {"enabled": false}}') ->> 'codeName' AS merge,
       put('shards', 'local', '{"$set": {"tags": []}}') ->> 'codeName' AS shards, put('collections', 'conf.c', '{"$inc": {"noBalance": 1}}') ->> 'codeName' AS operator;
DROP FUNCTION put;
SELECT docshard.find('config.locks'), docshard.count_documents('config.actionlog') <= 1 AS rounds;

-- It is read-only.
SELECT docshard.insert_one('config.settings', '{"_id": "chunksize", "value": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('config.settings', '{"_id": "chunksize"}', '{"$set": {"value": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.delete_many('config.chunks', '{}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_collection('config.mine');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.run_command('config', '{"update": "settings", "updates": [{"q": {"_id": "chunksize"}, "u": {"$set": {"other": 1}}}]}') - 'hint';
SELECT docshard.drop_database('conf');
