-- Advice on shard keys: characteristics of a key, a find under a key that the collection does not have, a ranking with reasons, and errors.
SELECT docshard.create_collection('adv.events') -> 'ok' AS ok;
SELECT docshard.insert_select('adv.events', $$SELECT jsonb_build_object('_id', i, 'month', 1 + i / 300, 'user', 'u' || i * 7919 % 97, 'country', i % 3, 'tags', '[1]'::jsonb) FROM generate_series(0, 2999) i$$) -> 'insertedCount' AS inserted;
SELECT docshard.analyze_shard_key('adv.events', '{"country": 1}', '{"sampleRate": 1}') -> 'keyCharacteristics' AS country;
SELECT docshard.analyze_shard_key('adv.events', '{"_id": 1}') #> '{keyCharacteristics,monotonicity}' AS id;
SELECT docshard.analyze_shard_key('adv.events', '{"_id": "hashed"}') #> '{keyCharacteristics,monotonicity}' AS hashed;
SELECT docshard.analyze_shard_key('adv.events', '{"month": 1, "user": 1}') -> 'readDistribution' AS reads;
SELECT docshard.analyze_shard_key('adv.events', '{"nothing": 1}') #> '{keyCharacteristics,monotonicity}' AS constant;
-- At least one document is read.
SELECT docshard.analyze_shard_key('adv.events', '{"country": 1}', '{"sampleRate": 1e-300}') #> '{keyCharacteristics,numDocsTotal}' AS total;

-- Under another key.
SELECT e -> 'shardKey' AS key, e ->> 'stage' AS stage, (e -> 'keyBounds')::jsonb AS bounds, e -> 'targetedChunks' AS chunks, e -> 'assumed' AS assumed, e -> 'shards' AS shards
  FROM docshard.explain('adv.events', '{"month": 3, "user": "u5"}', '{"shardKey": {"month": 1, "user": 1}}') e;
SELECT e -> 'targetedChunks' AS chunks, e -> 'totalChunks' AS all FROM docshard.explain('adv.events', '{"user": "u5"}', '{"shardKey": {"user": "hashed"}, "limit": 3}') e;
SELECT docshard.explain('adv.events', '{"user": "u5"}') -> 'shardKey' AS key;

-- The ranking.
SELECT count(*) > 3 AS several, min((k.value ->> 'score')::numeric) >= 0 AS bounded FROM json_array_elements(docshard.suggest_shard_key('adv.events', '{"shards": 4}') -> 'keys') k;
SELECT k.value ->> 'verdict' AS verdict, r.value ->> 'trait' AS trait, r.value ->> 'text' AS text
  FROM json_array_elements(docshard.suggest_shard_key('adv.events', '{"shards": 4}') -> 'keys') k, json_array_elements(k.value -> 'reasons') r
 WHERE k.value ->> 'key' = '{"month":1,"user":1}';
SELECT docshard.suggest_shard_key('adv.events') -> 'note' AS note;

-- Errors.
CREATE FUNCTION pg_temp.failed(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE detail text;
BEGIN
    EXECUTE sql;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ' ' || SQLERRM || ' ' || detail;
END $$;
SELECT docshard.create_collection('adv.empty') -> 'ok' AS ok;
SELECT docshard.create_collection('adv.view', '{"viewOn": "events", "pipeline": []}') -> 'ok' AS ok;
SELECT pg_temp.failed('SELECT docshard.' || call) FROM (VALUES
  ('analyze_shard_key(''adv.events'', ''{"tags": 1}'')'), ('analyze_shard_key(''adv.events'', ''{}'')'), ('analyze_shard_key(''adv.events'', ''{"a": -1}'')'),
  ('analyze_shard_key(''adv.events'', ''{"a": 1}'', ''{"sampleRate": 0.5, "sampleSize": 10}'')'),
  ('analyze_shard_key(''adv.events'', ''{"a": 1}'', ''{"sampleRate": 0}'')'), ('analyze_shard_key(''adv.events'', ''{"a": 1}'', ''{"sampleRate": "x"}'')'),
  ('analyze_shard_key(''adv.events'', ''{"a": 1}'', ''{"sampleSize": 0}'')'), ('analyze_shard_key(''adv.events'', ''{"a": 1}'', ''{"sampleSize": 4}'')'), ('analyze_shard_key(''adv.events'', ''{"a": 1}'', ''{"shards": 1}'')'),
  ('analyze_shard_key(''adv.events'', ''{"a": 1}'', ''{"keyCharacteristics": false, "readWriteDistribution": false}'')'),
  ('analyze_shard_key(''adv.empty'', ''{"a": 1}'')'), ('analyze_shard_key(''adv.none'', ''{"a": 1}'')'), ('analyze_shard_key(''adv.view'', ''{"a": 1}'')'),
  ('analyze_shard_key(''config.chunks'', ''{"a": 1}'')'), ('analyze_shard_key(''adv.system.profile'', ''{"a": 1}'')'),
  ('configure_query_analyzer(''adv.system.profile'', ''{"mode": "off"}'')'), ('suggest_shard_key(''adv.empty'')'), ('suggest_shard_key(''adv.none'')'), ('suggest_shard_key(''adv.view'')'),
  ('suggest_shard_key(''adv.events'', ''{"sampleSize": 20001}'')'), ('explain(''adv.none'', ''{}'', ''{"shardKey": {"a": 1}}'')'),
  ('explain(''adv.events'', ''{}'', ''{"shardKey": {"tags": 1}}'')'), ('explain(''adv.events'', ''{}'', ''{"shardKey": 1}'')'),
  ('explain(''adv.view'', ''{}'', ''{"shardKey": {"a": 1}}'')'), ('explain(''adv.events'', ''[]'', ''{"shardKey": {"a": 1}}'')'), ('find(''adv.events'', ''{}'', ''{"shardKey": {"a": 1}}'')')) AS calls (call);
SELECT docshard.run_command('admin', '{"analyzeShardKey": "adv.events", "key": {"country": 1}, "sampleSize": 100000}') #> '{keyCharacteristics,numDistinctValues}' AS values;
SELECT docshard.drop_database('adv') -> 'ok' AS ok;
