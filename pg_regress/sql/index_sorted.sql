-- A find reads an index in the order of its sort if the fields after those with equality conditions have that order.
SELECT docshard.create_index('srt.c', '{"from": 1, "sent": -1, "n": 1}');
SELECT docshard.create_index('srt.c', '{"sent": 1}');
SELECT docshard.insert_many('srt.c', (SELECT array_agg(jsonb_build_object('_id', n, 'from', 'u' || n % 10, 'sent', n / 20, 'n', -n)) FROM generate_series(1, 5000) n)) -> 'insertedCount' AS inserted;
SELECT docshard.insert_many('srt.c', ARRAY['{"_id": 6000, "from": ["u1", "u2"], "sent": 200, "n": 1}', '{"_id": 6001, "from": "u1", "sent": [0, 240], "n": 2}',
  '{"_id": 6002, "from": "u1", "n": 3}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT "table" FROM docshard.collections WHERE namespace = 'srt.c' \gset
ANALYZE :table;
CREATE FUNCTION pg_temp.found(filter json, options json) RETURNS TABLE (ids text, examined text, in_memory bigint) LANGUAGE sql AS $$
  SELECT (SELECT string_agg(d ->> '_id', ' ' ORDER BY n) FROM docshard.find('srt.c', filter, options) WITH ORDINALITY AS f (d, n)),
         docshard.explain('srt.c', filter, options, 'executionStats') #>> '{executionStats,totalDocsExamined}',
         (SELECT count(*) FROM jsonb_path_query(docshard.explain('srt.c', filter, options)::jsonb, '$.shards[*].winningPlan.** ? (@.stage == "SORT" && exists (@.** ? (@.stage == "COLLSCAN")))'));
$$;
SELECT filter, options, found.* FROM (VALUES
    ('{"from": "u1"}', '{"sort": {"sent": -1, "n": 1}, "limit": 4}'),
    ('{"from": "u1"}', '{"sort": {"sent": 1, "n": -1}, "limit": 4}'),
    ('{"from": "u1"}', '{"sort": {"sent": -1, "n": 1}, "limit": 2, "skip": 2}'),
    ('{"from": "u1", "sent": 200}', '{"sort": {"n": 1}, "limit": 3}'),
    ('{"from": "u1", "sent": {"$lt": 200}}', '{"sort": {"from": 1, "sent": -1, "n": 1}, "limit": 3}'),
    ('{"from": "u2"}', '{"sort": {"sent": -1, "n": 1}, "limit": 3, "projection": {"n": 1}}'),
    ('{}', '{"sort": {"sent": 1}, "limit": 2}'),
    ('{"from": {"$in": ["u1", "u2"]}}', '{"sort": {"sent": -1, "n": 1}, "limit": 3}'),
    ('{"from": "u1"}', '{"sort": {"n": 1}, "limit": 3}')) AS f (filter, options), pg_temp.found(filter::json, options::json) AS found;
-- Without a sort, too, hardly more documents are read than the limit.
SELECT (docshard.explain('srt.c', '{"from": "u1"}', '{"limit": 3}', 'executionStats') #>> '{executionStats,totalDocsExamined}')::int < 100 AS few;
-- Also without a limit: the result is the same as without an index, and only documents with arrays are sorted.
CREATE FUNCTION pg_temp.streamed(filter json, options json) RETURNS TABLE (n bigint, right_order boolean, plan text) LANGUAGE sql AS $$
  WITH found AS (SELECT array_agg(d -> '_id' ORDER BY n) AS ids FROM docshard.find('srt.c', filter, options) WITH ORDINALITY AS f (d, n)),
       sorted AS (SELECT array_agg(d -> '_id' ORDER BY n) AS ids FROM docshard.find('srt.c', filter, regexp_replace(options::text, '}$', ', "hint": {"$natural": 1}}')::json) WITH ORDINALITY AS f (d, n))
  SELECT cardinality(found.ids), found.ids = sorted.ids,
         (SELECT string_agg(stage #>> '{}', ' ') FROM jsonb_path_query(docshard.explain('srt.c', filter, options)::jsonb, 'strict $.shards[*].winningPlan.**.stage') AS stage)
    FROM found, sorted;
$$;
SELECT filter, options, streamed.* FROM (VALUES
    ('{"from": "u1"}', '{"sort": {"sent": -1, "n": 1}}'),
    ('{"from": "u1"}', '{"sort": {"sent": 1, "n": -1}, "skip": 490}'),
    ('{"from": "u1"}', '{"sort": {"from": 1, "sent": -1, "n": 1}}'),
    ('{"from": "u1", "sent": 200}', '{"sort": {"from": 1, "sent": -1, "n": 1}}'),
    ('{"from": "u1", "sent": {"$gt": 100}}', '{"sort": {"sent": -1, "n": 1}}'),
    ('{"from": {"$in": ["u1", "u2"]}}', '{"sort": {"from": -1, "sent": 1, "n": -1}}'),
    ('{}', '{"sort": {"from": 1, "sent": -1, "n": 1}, "projection": {"n": 1}}'),
    ('{}', '{"sort": {"_id": -1}}'),
    -- Fields with equality conditions have the opposite direction; the index has another order; another index is more selective.
    ('{"from": "u1"}', '{"sort": {"from": -1, "sent": -1, "n": 1}}'),
    ('{"from": "u1"}', '{"sort": {"sent": -1, "n": -1}}'),
    ('{"sent": {"$lt": 1}}', '{"sort": {"from": 1, "sent": -1, "n": 1}}')) AS f (filter, options), pg_temp.streamed(filter::json, options::json) AS streamed;
-- A cursor returns the first documents before the others are read.
CREATE FUNCTION pg_temp.few_read() RETURNS boolean LANGUAGE sql AS $$
  SELECT seq_tup_read = 0 AND idx_tup_fetch BETWEEN 1 AND 200 FROM pg_stat_xact_user_tables WHERE format('%I.%I', schemaname, relname) = (SELECT "table"::text FROM docshard.collections WHERE namespace = 'srt.c');
$$;
SELECT pg_stat_force_next_flush();
BEGIN;
DECLARE few CURSOR FOR SELECT docshard.find('srt.c', '{}', '{"sort": {"from": -1, "sent": 1, "n": -1}, "projection": {"n": 1}}');
FETCH 2 FROM few;
SELECT pg_temp.few_read();
ROLLBACK;
SELECT pg_stat_force_next_flush();
BEGIN;
SELECT jsonb_path_query_array(docshard.run_command('srt', '{"find": "c", "sort": {"sent": 1}, "projection": {"sent": 1}, "batchSize": 3}'), '$.cursor.firstBatch[*].sent');
SELECT pg_temp.few_read();
ROLLBACK;
-- A unique index serves like any other.
SELECT docshard.create_index('srt.u', '{"a": 1, "b": -1}', '{"unique": true}');
SELECT docshard.insert_many('srt.u', (SELECT array_agg(jsonb_build_object('_id', n, 'a', n % 7, 'b', n)) FROM generate_series(1, 700) n)) -> 'insertedCount' AS inserted;
SELECT options, (SELECT string_agg(d ->> '_id', ' ' ORDER BY n) FROM docshard.find('srt.u', '{"a": 3, "b": {"$gt": 670}}', options) WITH ORDINALITY AS f (d, n)) AS ids,
       (SELECT string_agg(stage #>> '{}', ' ') FROM jsonb_path_query(docshard.explain('srt.u', '{"a": 3, "b": {"$gt": 670}}', options)::jsonb, 'strict $.shards[*].winningPlan.**.stage') AS stage) AS plan
  FROM unnest(ARRAY['{"sort": {"b": 1}, "hint": "a_1_b_-1"}', '{"sort": {"a": 1, "b": 1}, "hint": "a_1_b_-1"}', '{"sort": {"a": 1, "b": -1}, "hint": "a_1_b_-1"}']::json[]) AS options;
-- Each branch of an $or may use its own index.
SELECT docshard.create_index('srt.c', '{"n": 1}');
SELECT filter::text, docshard.count_documents('srt.c', filter) AS n, string_agg(DISTINCT name #>> '{}', ' ') AS by,
       docshard.explain('srt.c', filter, '{}', 'executionStats') #>> '{executionStats,totalDocsExamined}' AS examined
  FROM unnest(ARRAY['{"$or": [{"n": -7}, {"from": "u1", "sent": 240}]}', '{"$or": [{"n": {"$lt": -4995}}, {"n": 1, "from": "u2"}, {"sent": null}]}',
         '{"_id": {"$ne": 7}, "$or": [{"n": -7}, {"n": -8, "sent": 0}]}', '{"$or": [{"n": -7}, {"other": 1}]}']::json[]) AS filter
  LEFT JOIN LATERAL jsonb_path_query(docshard.explain('srt.c', filter)::jsonb, 'strict $.shards[*].winningPlan.**.indexName') AS name ON true
 GROUP BY 1, 2, 4 ORDER BY 1;
-- An index on _id has the order of _id whatever the shard key is, and serves ranges of it.
SELECT docshard.shard_collection('srt.hashed', '{"_id": "hashed"}'), docshard.shard_collection('srt.ranged', '{"_id": 1}'), docshard.shard_collection('srt.other', '{"k": 1}');
SELECT ns, docshard.insert_many(ns, (SELECT array_agg(jsonb_build_object('_id', n, 'k', n % 10)) FROM generate_series(1, 2000) n)) -> 'insertedCount' AS inserted,
       (SELECT string_agg(d ->> '_id', ' ' ORDER BY n) FROM docshard.find(ns, '{"k": {"$gt": 4}}', '{"sort": {"_id": -1}, "limit": 4}') WITH ORDINALITY AS f (d, n)) AS last,
       docshard.explain(ns, '{}', '{"sort": {"_id": -1}, "limit": 4}', 'executionStats') #>> '{executionStats,totalDocsExamined}' AS examined,
       docshard.explain(ns, '{"_id": {"$gt": 100, "$lte": 104}}', '{}', 'executionStats') #>> '{executionStats,totalDocsExamined}' AS between
  FROM unnest(ARRAY['srt.hashed', 'srt.ranged', 'srt.other']) AS ns;
SELECT docshard.drop_database('srt');
