-- explain: the shards of a find and the reason, the statements for them, and their plans.
SELECT docshard.enable_sharding('ex', 'local');
SELECT docshard.shard_collection('ex.inbox', '{"recipient": 1, "sent": 1}');
SELECT docshard.create_index('ex.inbox', '{"from": 1}');
SELECT docshard.insert_many('ex.inbox', array_agg(jsonb_build_object('_id', n, 'recipient', 'user' || n % 10, 'sent', n, 'from', 'user' || n % 7)))
       -> 'insertedCount' AS inserted
  FROM generate_series(1, 1000) n;
SELECT docshard.split_at('ex.inbox', '{"recipient": "user3"}');
SELECT docshard.split_at('ex.inbox', '{"recipient": "user6"}');
SELECT docshard.move_chunk('ex.inbox', '{"recipient": "user4", "sent": 1}', 'shard0') ->> 'documents' AS documents;
SELECT docshard.move_chunk('ex.inbox', '{"recipient": "user7", "sent": 1}', 'shard1') ->> 'documents' AS documents;

CREATE FUNCTION targets(filter json, options json DEFAULT '{}', OUT stage text, OUT shards text, OUT chunks text, OUT bounds json) LANGUAGE sql AS $$
  SELECT e ->> 'stage', (SELECT string_agg(s ->> 'shard', ' ' ORDER BY s ->> 'shard') FROM json_array_elements(e -> 'shards') s),
         (e ->> 'targetedChunks') || ' of ' || (e ->> 'totalChunks'), e -> 'keyBounds'
    FROM docshard.explain('ex.inbox', filter, options) e
$$;
-- One owner's inbox is on one shard; without a filter all shards are asked; a range asks those that it meets.
SELECT * FROM targets('{"recipient": "user4"}', '{"sort": {"sent": -1}, "limit": 20}');
SELECT * FROM targets('{"recipient": "user4", "sent": 104}');
SELECT * FROM targets('{"recipient": {"$in": ["user1", "user9"]}}');
SELECT * FROM targets('{"recipient": {"$gte": "user2", "$lt": "user5"}}');
SELECT * FROM targets('{"recipient": {"$gt": "user6"}}');
SELECT * FROM targets('{"$or": [{"recipient": "user1"}, {"recipient": "user2", "sent": {"$gt": 5}}]}');
SELECT * FROM targets('{"from": "user1"}', '{"sort": {"sent": -1}}');
SELECT * FROM targets('{}');
SELECT * FROM targets('{"sent": 5}');
SELECT * FROM targets('{"recipient": {"$ne": "user4"}}');
SELECT * FROM targets('{"$or": [{"recipient": "user1"}, {"from": "user1"}]}');
SELECT * FROM targets('{"recipient": {"$in": []}}');
SELECT * FROM targets('{"recipient": null}');
SELECT docshard.explain('ex.inbox', '{"from": "user1"}') ->> 'reason' AS reason;
SELECT docshard.explain('ex.inbox', '{"recipient": "user1"}') ->> 'reason' AS reason;
-- The shards' plans in MongoDB's terms, and what they take when they run.
CREATE FUNCTION plans(filter json, options json DEFAULT '{}', OUT shard text, OUT plan json) RETURNS SETOF record LANGUAGE sql AS $$
  SELECT s ->> 'shard', s -> 'winningPlan' FROM docshard.explain('ex.inbox', filter, options) e, json_array_elements(e -> 'shards') s
$$;
SET docshard.notablescan = on;
SELECT * FROM plans('{"recipient": "user4", "sent": 104}');
SELECT * FROM plans('{"_id": 104}');
RESET docshard.notablescan;
SELECT * FROM plans('{"from": "user1"}', '{"hint": "from_1"}');
SELECT * FROM plans('{"likes": 1}', '{"hint": {"$natural": 1}, "sort": {"likes": 1}, "limit": 2}');
CREATE FUNCTION run(filter json, options json DEFAULT '{}', verbosity text DEFAULT 'executionStats', OUT returned text, OUT keys text, OUT documents text, OUT shards text) LANGUAGE sql AS $$
  SELECT e #>> '{executionStats,nReturned}', e #>> '{executionStats,totalKeysExamined}', e #>> '{executionStats,totalDocsExamined}',
         (SELECT string_agg(format('%s: %s of %s', s ->> 'shardName', s ->> 'nReturned', s ->> 'totalDocsExamined'), ', ')
            FROM json_array_elements(e #> '{executionStats,shards}') s)
    FROM docshard.explain('ex.inbox', filter, options, verbosity) e
$$;
SELECT * FROM run('{"recipient": "user4", "sent": 104}');
-- An index may still contain entries of documents that have moved away.
SELECT returned, keys::int >= documents::int AS keys, documents, shards FROM run('{"from": "user1"}', '{"hint": "from_1"}');
SELECT * FROM run('{"from": "user1"}', '{"hint": {"$natural": 1}, "skip": 5, "limit": 20}', 'allPlansExecution');
SELECT * FROM run('{"recipient": {"$in": []}}');
SELECT * FROM run('{}', '{}', 'queryPlanner');
SELECT e #>> '{executionStats,executionSuccess}' AS success, (e #>> '{executionStats,executionTimeMillis}')::int < 60000 AS in_time,
       e #>> '{executionStats,shards,0,executionStages,stage}' AS stage, e #>> '{executionStats,shards,0,executionStages,docsExamined}' AS documents
  FROM docshard.explain('ex.inbox', '{"recipient": "user4", "sent": 104}', '{}', 'executionStats') e;
SELECT docshard.explain('ex.inbox', '{}', '{}', 'everything');
\echo :LAST_ERROR_SQLSTATE
SELECT (r #> '{executionStats,nReturned}') AS returned, r #> '{executionStats,totalDocsExamined}' IS NOT NULL AS documents
  FROM docshard.run_command('ex', '{"explain": {"delete": "inbox", "deletes": [{"q": {"from": "user1"}, "limit": 0}]}, "verbosity": "executionStats"}') r;
SELECT docshard.count_documents('ex.inbox', '{"from": "user1"}') AS still_there;
DROP FUNCTION plans;
DROP FUNCTION run;
-- A collection that does not exist, and an unsharded one.
SELECT docshard.explain('ex.none');
SELECT docshard.insert_one('ex.plain', '{"_id": 1}') -> 'insertedId' AS id;
SELECT e ->> 'stage' AS stage, e -> 'shardKey' AS key, e ->> 'reason' AS reason FROM docshard.explain('ex.plain', '{"_id": 1}') e;
SELECT docshard.explain('ex.inbox', '{"a": {"$foo": 1}}');
\echo :LAST_ERROR_SQLSTATE
-- The access path, the shards' statement, and that of shards which decline. Numbers are those of collections and indexes.
CREATE FUNCTION unnumbered(sql text) RETURNS text LANGUAGE sql AS $$ SELECT regexp_replace(sql, '(^|[^$0-9a-z])([a-z]?)[0-9]+', '\1\2N', 'g') $$;
SELECT unnumbered(json_extract_path_text(e, VARIADIC path)) AS explained
  FROM docshard.explain('ex.inbox', '{"from": "user1"}', '{"limit": 5}') e,
       (VALUES (ARRAY['accessPath']), ('{sql}'), ('{shards,0,winningPlan}'), ('{shards,0,plan}'), ('{ifDeclined,accessPath}'), ('{ifDeclined,sql}')) AS p (path);
SELECT filter, e ->> 'accessPath' AS path, unnumbered(e ->> 'sql') AS sql, e #> '{shards,0,winningPlan}' AS plan
  FROM unnest('{"{\"recipient\": \"user4\", \"sent\": 104, \"_id\": 104}", "{\"recipient\": {\"$in\": []}}"}'::text[]) AS filter,
       docshard.explain('ex.inbox', filter::json, '{"limit": 1}') e;
SELECT command, r #>> '{queryPlanner,winningPlan,accessPath}' AS path, unnumbered(r #>> '{queryPlanner,winningPlan,sql}') AS sql
  FROM unnest(ARRAY['{"count": "inbox"}', '{"count": "inbox", "query": {"likes": 1}}', '{"distinct": "inbox", "key": "from"}',
                    '{"update": "inbox", "updates": [{"q": {"from": "user1"}, "u": {"$set": {"a": 1}}}]}']) AS command,
       docshard.run_command('ex', json_build_object('explain', command::json)) r;
-- A sort with a limit that no index has the order of.
SELECT e ->> 'accessPath' AS path, unnumbered(e ->> 'sql') AS sql, e #> '{shards,0,winningPlan}' AS plan
  FROM docshard.explain('ex.inbox', '{"likes": {"$gte": 1}}', '{"sort": {"likes": 1}, "skip": 2, "limit": 5}') e;
SELECT e #> '{executionStats,nReturned}' AS returned, e #> '{executionStats,totalKeysExamined}' AS keys, e #> '{executionStats,totalDocsExamined}' AS documents
  FROM docshard.explain('ex.inbox', '{}', '{"sort": {"likes": 1}, "skip": 2, "limit": 5}', 'executionStats') e;
-- The forms of explain agree.
SELECT docshard.find('ex.inbox', '{"recipient": "user4"}', '{"sort": {"sent": -1}, "limit": 2, "projection": {"sent": 1}}');
SELECT docshard.find('ex.inbox', '{"from": "user1"}', '{"sort": {"sent": -1}, "skip": 1, "limit": 3, "projection": {"sent": 1}}');
SELECT docshard.find('ex.inbox', '{}', '{"sort": {"from": 1, "sent": 1}, "skip": 140, "limit": 3, "projection": {"from": 1, "recipient": 1}}');
SELECT docshard.count_documents('ex.inbox', '{"from": "user1"}'), docshard.count_documents('ex.inbox', '{}', '{"skip": 10, "limit": 900}');
-- The variables and the collation of a distinct and of a write are those of the command: under a collation, no bound of a string targets a shard.
SELECT left(r ->> 'errmsg', 60) AS error, r #>> '{queryPlanner,winningPlan,reason}' AS reason, r #>> '{queryPlanner,winningPlan,targetedShards}' AS shards
  FROM (VALUES ('{"distinct": "inbox", "key": "from", "query": {"recipient": "USER4"}, "collation": {"locale": "en", "strength": 2}}'),
               ('{"update": "inbox", "updates": [{"q": {"recipient": "USER4"}, "u": {"$set": {"x": 1}}, "multi": true, "collation": {"locale": "en", "strength": 2}}]}'),
               ('{"delete": "inbox", "deletes": [{"q": {"$expr": {"$eq": ["$recipient", "$$who"]}}, "limit": 0}], "let": {"who": "user4"}}'),
               ('{"findAndModify": "inbox", "query": {"$expr": {"$eq": ["$recipient", "$$who"]}}, "remove": true, "let": {"who": "user4"}}')) AS commands (command),
       docshard.run_command('ex', json_build_object('explain', command::json)) r;
DROP FUNCTION unnumbered;
DROP FUNCTION targets;
SELECT docshard.drop_database('ex');
