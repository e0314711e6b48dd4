-- explain of pipelines: which stages the shards run and which the router, and what they return.
SELECT docshard.enable_sharding('exp', 'local');
SELECT docshard.shard_collection('exp.inbox', '{"recipient": 1, "sent": 1}');
SELECT docshard.create_index('exp.inbox', '{"from": 1}');
SELECT docshard.insert_many('exp.inbox', array_agg(jsonb_build_object('_id', n, 'recipient', 'user' || n % 10, 'sent', n, 'from', 'user' || n % 7, 'tags', jsonb_build_array(n % 2, 'x'))))
       -> 'insertedCount' AS inserted
  FROM generate_series(1, 1000) n;
SELECT docshard.split_at('exp.inbox', '{"recipient": "user3"}');
SELECT docshard.split_at('exp.inbox', '{"recipient": "user6"}');
SELECT docshard.move_chunk('exp.inbox', '{"recipient": "user4", "sent": 1}', 'shard0') ->> 'documents' AS documents;
SELECT docshard.move_chunk('exp.inbox', '{"recipient": "user7", "sent": 1}', 'shard1') ->> 'documents' AS documents;

CREATE FUNCTION parts(pipeline json, options json DEFAULT '{}', OUT stage text, OUT targets text, OUT path text, OUT shards json, OUT merger json) LANGUAGE sql AS $$
  SELECT e ->> 'stage', e ->> 'targetedShards', e ->> 'accessPath', e #> '{splitPipeline,shardsPart}', e #> '{splitPipeline,mergerPart}'
    FROM docshard.explain('exp.inbox', pipeline, options) e
$$;
\x on
-- Partial groups, and whole ones: every recipient is on one shard.
SELECT * FROM parts('[{"$match": {"sent": {"$gt": 5}}}, {"$group": {"_id": "$from", "n": {"$sum": 1}}}, {"$sort": {"n": -1}}, {"$limit": 2}]');
SELECT * FROM parts('[{"$group": {"_id": "$recipient", "n": {"$sum": 1}}}, {"$sort": {"n": -1}}, {"$limit": 2}]');
SELECT * FROM parts('[{"$group": {"_id": "$recipient", "n": {"$sum": 1}}}]', '{"collation": {"locale": "en"}}');
-- A bounded sort, a limit, and fields that the router needs.
SELECT * FROM parts('[{"$unwind": "$tags"}, {"$sort": {"tags": 1, "sent": -1}}, {"$skip": 1}, {"$limit": 3}, {"$project": {"sent": 1}}]');
SELECT * FROM parts('[{"$unwind": "$tags"}, {"$limit": 3}]');
SELECT * FROM parts('[{"$sort": {"from": 1}}, {"$skip": 2}, {"$limit": 3}, {"$set": {"a": 1}}]');
SELECT * FROM parts('[{"$sample": {"size": 2}}, {"$project": {"sent": 1}}]');
SELECT * FROM parts('[{"$match": {"recipient": "user4"}}, {"$sort": {"from": 1}}, {"$limit": 3}, {"$set": {"a": 1}}]');
SELECT * FROM parts('[{"$bucketAuto": {"groupBy": "$sent", "buckets": 2}}]');
-- One shard runs everything; an index; one document; a count; nothing.
SELECT * FROM parts('[{"$match": {"recipient": "user4"}}, {"$group": {"_id": "$from"}}, {"$bucketAuto": {"groupBy": "$_id", "buckets": 2}}]');
SELECT * FROM parts('[{"$match": {"recipient": "user4"}}, {"$group": {"_id": "$from"}}, {"$merge": "senders"}]');
SELECT * FROM parts('[{"$match": {"from": {"$gte": "user5"}}}, {"$group": {"_id": null, "n": {"$max": "$sent"}}}]');
SELECT * FROM parts('[{"$match": {"recipient": "user4", "sent": 4, "_id": 4}}, {"$unwind": "$tags"}]');
SELECT * FROM parts('[{"$match": {"from": "user1"}}, {"$count": "n"}]');
SELECT * FROM parts('[{"$match": {"recipient": {"$in": []}}}, {"$facet": {"n": [{"$count": "n"}]}}]');
\x off
-- What the stages of each shard return, and those of the router.
CREATE FUNCTION run(pipeline json, OUT place text, OUT stages text) RETURNS SETOF record LANGUAGE sql AS $$
  WITH explained AS (SELECT docshard.explain('exp.inbox', pipeline, '{}', 'executionStats') AS e),
  places AS (
    SELECT s ->> 'shard' AS place, s -> 'stages' AS stages FROM explained, json_array_elements(e -> 'shards') s
    UNION ALL SELECT 'router', e #> '{executionStats,mergerStages}' FROM explained)
  SELECT place, (SELECT string_agg(format('%s: %s', (SELECT min(k) FROM json_object_keys(stage) k WHERE k LIKE '$%'), stage ->> 'nReturned'), ', ' ORDER BY n)
                   FROM json_array_elements(stages) WITH ORDINALITY AS s (stage, n)) FROM places
  UNION ALL SELECT 'returned', e #>> '{executionStats,nReturned}' FROM explained
$$;
SELECT * FROM run('[{"$unwind": "$tags"}, {"$group": {"_id": "$from", "n": {"$sum": 1}}}, {"$match": {"n": {"$gte": 286}}}]');
SELECT * FROM run('[{"$match": {"from": "user3", "sent": {"$gt": 100}}}, {"$group": {"_id": "$recipient"}}, {"$count": "groups"}]');
SELECT * FROM run('[{"$match": {"recipient": "user4"}}, {"$sort": {"from": 1}}, {"$limit": 7}, {"$group": {"_id": "$from"}}]');
SELECT * FROM run('[{"$match": {"recipient": "user4", "sent": 4, "_id": 4}}, {"$unwind": "$tags"}]');
-- The router only passes on what shards return.
SELECT * FROM run('[{"$match": {"sent": {"$gt": 3}}}, {"$group": {"_id": "$recipient"}}]');
-- What a shard finds documents by, and the fields of a stage. With a hint: once autovacuum has analyzed the small tables, a scan of all is cheaper.
SELECT s #> '{stages,0,$cursor,queryPlanner,winningPlan}' AS cursor, s #> '{stages,1}' AS stage
  FROM docshard.explain('exp.inbox', '[{"$match": {"recipient": "user4"}}, {"$group": {"_id": "$from"}}]', '{"hint": "recipient_1_sent_1"}') e, json_array_elements(e -> 'shards') s;
SELECT s #>> '{stages,0,$cursor,executionStats,executionStages,stage}' AS cursor, k
  FROM docshard.explain('exp.inbox', '[{"$match": {"recipient": "user4"}}, {"$group": {"_id": "$from"}}]', '{"hint": "recipient_1_sent_1"}', 'executionStats') e, json_array_elements(e -> 'shards') s,
       json_object_keys(s #> '{stages,1}') k;
-- Temporary files.
SET work_mem = '64kB';
SELECT stage ->> 'usedDisk' AS used_disk FROM docshard.explain('exp.inbox', '[{"$set": {"s": {"$range": [0, 60]}}}, {"$group": {"_id": "$sent", "s": {"$first": "$s"}}}, {"$sort": {"s": 1, "_id": 1}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]', '{}', 'executionStats') e,
  json_array_elements(e #> '{executionStats,mergerStages}') stage;
RESET work_mem;
-- Other namespaces.
SELECT docshard.explain('exp.none', '[{"$count": "n"}]') ->> 'exists' AS there, docshard.explain('exp.none', '[{"$unwind": "$a"}]') ->> 'exists' AS there_either;
SELECT docshard.explain('exp.$cmd.aggregate', '[{"$documents": [{"a": 1}]}, {"$match": {"a": 1}}]') -> 'stages' AS stages;
SELECT docshard.explain('config.chunks', '[{"$match": {"shard": "local"}}, {"$unwind": "$a"}]') -> 'splitPipeline' AS split;
-- The command, the option, and views.
SELECT r #> '{splitPipeline,mergerPart}' AS merger FROM unnest(ARRAY[
  '{"explain": {"aggregate": "inbox", "pipeline": [{"$group": {"_id": "$from"}}], "cursor": {}}}',
  '{"aggregate": "inbox", "pipeline": [{"$group": {"_id": "$from"}}], "explain": true}']) AS command, docshard.run_command('exp', command::json) r;
SELECT docshard.create_collection('exp.sent', '{"viewOn": "inbox", "pipeline": [{"$match": {"recipient": "user4"}}]}');
SELECT e ->> 'targetedShards' AS targets, e #> '{shards,0,stages,1}' AS stage FROM docshard.explain('exp.sent', '[{"$group": {"_id": "$from"}}]') e;
-- The same plan as the only result of aggregate.
SELECT a = e::jsonb AS same, a ->> 'targetedShards' AS targets FROM docshard.explain('exp.inbox', '[{"$match": {"recipient": "user4"}}]', '{"hint": "recipient_1_sent_1"}') e,
  docshard.aggregate('exp.inbox', '[{"$match": {"recipient": "user4"}}]', '{"explain": true, "hint": "recipient_1_sent_1"}') a;
-- Refused.
SELECT docshard.explain('exp.inbox', '[{"$nope": 1}]');
DROP FUNCTION parts;
DROP FUNCTION run;
SELECT docshard.drop_database('exp');
