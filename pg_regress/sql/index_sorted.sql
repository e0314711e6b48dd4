-- A find with a limit reads an index in the order of its sort, where that is the order of the columns behind what the filter gives.
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
-- Without a sort, too, hardly more is read than the limit.
SELECT (docshard.explain('srt.c', '{"from": "u1"}', '{"limit": 3}', 'executionStats') #>> '{executionStats,totalDocsExamined}')::int < 100 AS few;
-- Each filter of an $or may go by an index of its own.
SELECT docshard.create_index('srt.c', '{"n": 1}');
SELECT filter::text, docshard.count_documents('srt.c', filter) AS n, string_agg(DISTINCT name #>> '{}', ' ') AS by,
       docshard.explain('srt.c', filter, '{}', 'executionStats') #>> '{executionStats,totalDocsExamined}' AS examined
  FROM unnest(ARRAY['{"$or": [{"n": -7}, {"from": "u1", "sent": 240}]}', '{"$or": [{"n": {"$lt": -4995}}, {"n": 1, "from": "u2"}, {"sent": null}]}',
         '{"_id": {"$ne": 7}, "$or": [{"n": -7}, {"n": -8, "sent": 0}]}', '{"$or": [{"n": -7}, {"other": 1}]}']::json[]) AS filter
  LEFT JOIN LATERAL jsonb_path_query(docshard.explain('srt.c', filter)::jsonb, 'strict $.shards[*].winningPlan.**.indexName') AS name ON true
 GROUP BY 1, 2, 4 ORDER BY 1;
SELECT docshard.drop_database('srt');
