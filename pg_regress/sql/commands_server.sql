-- Commands about the server, the cluster and its sessions.
-- currentOp shows what PostgreSQL tracks.
SET track_activities = on;
-- The primary shard does not depend on other tests.
SELECT docshard.enable_sharding('srv', 'local');
CREATE FUNCTION run(db text, command json) RETURNS jsonb LANGUAGE sql AS $$ SELECT docshard.run_command(db, command) $$;
SELECT string_agg(name, ' ' ORDER BY name) AS fields FROM jsonb_object_keys(run('srv', '{"serverStatus": 1, "repl": 0}')) AS name;
SELECT status -> 'process' AS process, (status #>> '{connections,current}')::int > 0 AS connections, status ? 'localTime' AS time FROM run('srv', '{"serverStatus": 1}') AS status;
SELECT string_agg(name, ' ' ORDER BY name) AS fields FROM jsonb_object_keys(run('srv', '{"hostInfo": 1}') -> 'system') AS name;
SELECT run('admin', '{"getLog": "startupWarnings"}'), run('admin', '{"getLog": "*"}'), run('admin', '{"getLog": "global"}') ->> 'codeName' AS log;
SELECT run('admin', '{"getParameter": 1, "featureCompatibilityVersion": 1}'), run('admin', '{"getParameter": "*"}'), run('admin', '{"getParameter": 1}') ->> 'errmsg' AS none;
SELECT run('admin', '{"getCmdLineOpts": 1}') #- '{parsed,net,port}' AS options;
SELECT run('admin', '{"getDefaultRWConcern": 1}') - 'localUpdateWallClockTime' AS concern;
SELECT run('srv', '{"connectionStatus": 1}') #> '{authInfo,authenticatedUsers,0,user}' = to_jsonb(current_user::text) AS is_current, run('srv', '{"whatsmyuri": 1}') ->> 'you' <> '' AS address;
SELECT run('admin', '{"top": 1}');
SELECT run('admin', '{"createSearchIndexes": "c", "indexes": [{"definition": {}}]}');
SELECT jsonb_array_length(run('admin', '{"currentOp": 1, "$ownOps": true}') -> 'inprog') > 0 AS operations;
SELECT string_agg(name, ' ' ORDER BY name) AS fields FROM (SELECT DISTINCT jsonb_object_keys(operation) AS name FROM docshard.aggregate('admin.$cmd.aggregate', '[{"$currentOp": {"allUsers": false}}, {"$match": {"active": true}}]') AS operation) AS f WHERE name NOT IN ('client', 'appName');
-- Other fields are a filter.
SELECT run('admin', '{"currentOp": 1, "type": "op", "ns": "srv.none"}'), jsonb_array_length(run('admin', '{"currentOp": 1, "active": true, "op": {"$in": ["command"]}}') -> 'inprog') > 0 AS active,
       run('admin', '{"currentOp": 1, "ns": {"$nope": 1}}') ->> 'codeName' AS operator;
SELECT string_agg(name, ' ' ORDER BY name) AS statistics FROM jsonb_object_keys(run('srv', '{"serverStatus": 1}') #> '{shardingStatistics,unshardCollection}') AS name;
SELECT run('srv', '{"serverStatus": 1, "connections": 0, "transactions": false, "asserts": 1}') ?| '{connections,transactions,asserts}' AS shown;
SELECT run('admin', '{"getParameter": {"showDetails": true}, "authenticationMechanisms": 1}'),
       run('admin', '{"getParameter": 1, "logLevel": 1}') ->> 'codeName' AS unknown, run('admin', '{"getParameter": {"allParameters": 1}}') ->> 'codeName' AS number,
       run('admin', '{"getParameter": {"allParameters": true, "setAt": "never"}}') ->> 'codeName' AS never, run('srv', '{"getParameter": "*"}') ->> 'codeName' AS other_database;
SELECT run('admin', '{"killOp": 1, "op": 1.5}') ->> 'codeName' AS fraction, run('admin', '{"killOp": 1, "op": 99999999999}') ->> 'codeName' AS large, run('admin', '{"killOp": 1, "op": "7", "x": 1}') ->> 'info' AS text;
SELECT run('srv', '{"listCommands": 1, "x": 1}') #> '{commands,find,apiVersions}' AS versions, run('srv', '{"listCommands": 1}') #> '{commands,serverStatus,apiVersions}' AS none;
SELECT run('admin', '{"killOp": 1, "op": 999999999}'), run('admin', '{"killOp": 1, "op": "x"}') ->> 'codeName' AS text, run('admin', '{"killOp": 1}') ->> 'codeName' AS none;

-- Stages that describe the cluster.
SELECT docshard.shard_collection('srv.s', '{"b": 1, "a": 1}'), docshard.create_collection('srv.plain', '{"collation": {"locale": "en"}}'), docshard.create_collection('srv.v', '{"viewOn": "s", "pipeline": []}');
SELECT docshard.insert_one('srv.s', '{"_id": 1, "a": 1, "b": 1}') -> 'acknowledged' AS inserted;
SELECT doc #- '{info,uuid}' FROM docshard.aggregate('srv.$cmd.aggregate', '[{"$listClusterCatalog": {"shards": true, "tracked": true, "balancingConfiguration": true}}, {"$sort": {"ns": 1}}]') AS doc;
SELECT count(*) FROM docshard.aggregate('admin.$cmd.aggregate', '[{"$listClusterCatalog": {}}, {"$match": {"db": "srv"}}]');
SELECT doc #- '{shards,0,ownedSizeBytes}' #- '{shards,0,shardName}' FROM docshard.aggregate('admin.$cmd.aggregate', '[{"$shardedDataDistribution": {}}, {"$match": {"ns": "srv.s"}}]') AS doc;
SELECT run('srv', '{"aggregate": 1, "pipeline": [{"$shardedDataDistribution": {}}], "cursor": {}}') ->> 'codeName' AS not_admin,
       run('admin', '{"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": 1}}], "cursor": {}}') ->> 'codeName' AS type,
       run('admin', '{"aggregate": 1, "pipeline": [{"$currentOp": {"nope": true}}], "cursor": {}}') ->> 'codeName' AS option,
       run('srv', '{"aggregate": "s", "pipeline": [{"$listClusterCatalog": {}}], "cursor": {}}') ->> 'codeName' AS collection,
       run('srv', '{"aggregate": 1, "pipeline": [{"$match": {}}, {"$listClusterCatalog": {}}], "cursor": {}}') ->> 'codeName' AS second;

-- Draining.
SELECT run('admin', '{"shardDrainingStatus": "shard1"}') ->> 'codeName' AS idle, run('admin', '{"commitShardRemoval": "shard1"}') ->> 'codeName' AS not_draining, run('admin', '{"startShardDraining": "none"}') ->> 'codeName' AS missing;
SELECT run('srv', '{"checkMetadataConsistency": "s", "dbMetadataLockMaxTimeMS": 10}') #> '{cursor,firstBatch}' AS found;
SELECT run('srv', '{"create": "engine", "storageEngine": {}}'), run('srv', '{"create": "images", "changeStreamPreAndPostImages": {"enabled": true}}') ->> 'codeName' AS images;
SELECT run('admin', '{"startShardDraining": "shard1"}'), run('admin', '{"startShardDraining": "shard1"}');
SELECT run('admin', '{"shardDrainingStatus": "shard1"}') -> 'ok' AS status, run('admin', '{"shardDrainingStatus": 1}') #> '{drainingShards,0,shard}' AS shard;
SELECT run('admin', '{"listShards": 1, "filter": {"draining": true}}') #> '{shards,0,_id}' AS draining;
SELECT run('admin', '{"stopShardDraining": "shard1"}'), run('admin', '{"shardDrainingStatus": 1}');

-- The stable API.
SELECT run('srv', '{"count": "s", "apiVersion": "1", "apiStrict": true, "apiDeprecationErrors": true}'),
       run('srv', '{"serverStatus": 1, "apiVersion": "1", "apiStrict": true}') ->> 'codeName' AS strict,
       run('srv', '{"count": "s", "apiVersion": "2"}') ->> 'codeName' AS version,
       run('srv', '{"count": "s", "apiStrict": true}') -> 'code' AS no_version;
SELECT docshard.drop_database('srv');
DROP FUNCTION run;
