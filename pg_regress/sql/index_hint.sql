-- Hints are obeyed or refused, and never change a result; docshard.notablescan refuses scans of all documents.
SELECT docshard.create_indexes('hint.c', '[{"key": {"a": 1}}, {"key": {"b": 1, "a": -1}}, {"key": {"s": 1}, "sparse": true},
  {"key": {"h": 1}, "hidden": true}, {"key": {"b": 1}, "name": "high", "partialFilterExpression": {"b": {"$gt": 50}}}, {"key": {"b": 1}, "name": "all"}]');
SELECT docshard.insert_many('hint.c', array_agg(jsonb_build_object('_id', n, 'a', n % 10, 'b', n % 100, 'h', n) || CASE WHEN n % 50 = 0 THEN '{"s": 1}'::jsonb ELSE '{}' END)) -> 'insertedCount' AS inserted
  FROM generate_series(1, 1000) n;
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT "table" FROM docshard.collections WHERE database = 'hint' LOOP EXECUTE 'ANALYZE ' || name; END LOOP;
END $$;
CREATE FUNCTION plan_of(filter json, options json) RETURNS text LANGUAGE sql BEGIN ATOMIC
  SELECT string_agg(DISTINCT coalesce((SELECT i.name FROM docshard.indexes i WHERE i.namespace = 'hint.c' AND line #>> '{}' ~ (' ' || i.relation || '( |$)')),
                    CASE WHEN line #>> '{}' ~ '_(pkey|id)( |$)' THEN '_id_' WHEN line #>> '{}' ~ 'Seq Scan' THEN 'all documents' END), ', ')
    FROM jsonb_path_query(docshard.explain('hint.c', filter, options)::jsonb, '$.shards[*].plan[*]') AS line;
END;
-- By name, by keys, and $natural. Without the hint the planner would choose another plan.
SELECT filter, hint, plan_of(filter, json_build_object('hint', hint)) AS by, plan_of(filter, json_build_object('hint', hint, 'sort', '{"_id": 1}'::json)) AS sorted,
       docshard.count_documents('hint.c', filter, json_build_object('hint', hint)) AS n, docshard.count_documents('hint.c', filter) AS n_without,
       (SELECT md5(string_agg(d::text, '' ORDER BY d ->> '_id')) FROM docshard.find('hint.c', filter, json_build_object('hint', hint)) d)
         IS NOT DISTINCT FROM (SELECT md5(string_agg(d::text, '' ORDER BY d ->> '_id')) FROM docshard.find('hint.c', filter) d) AS same
  FROM (VALUES ('{}'::json, '"a_1"'::json), ('{}', '{"b": 1, "a": -1}'), ('{}', '"_id_"'), ('{}', '{"$natural": 1}'), ('{}', '{}'),
       ('{"a": 3}', '"a_1"'), ('{"a": 3}', '"all"'), ('{"a": 3}', '{"_id": 1}'), ('{"a": 3}', '{"$natural": -1}'), ('{"a": 3, "b": 3}', '"a_1"'),
       ('{"_id": 7}', '"a_1"'), ('{"_id": 7}', '"_id_"'), ('{"_id": 7}', '{"$natural": 1}'), ('{"h": {"$lt": 5}}', '"b_1_a_-1"'),
       ('{"b": 70}', '"high"'), ('{"b": {"$gte": 60}}', '"high"'), ('{"s": 1}', '{"s": 1}'), ('{"s": {"$exists": true}}', '"s_1"'), ('{"$or": [{"a": 1}, {"h": 2}]}', '"a_1"')) AS v (filter, hint);
-- The other statements.
SELECT docshard.find_one('hint.c', '{"a": 3}', '{"sort": {"_id": 1}, "hint": "a_1"}');
SELECT docshard.distinct('hint.c', 'a', '{"b": {"$lt": 3}}', '{"hint": "a_1"}');
SELECT docshard.update_one('hint.c', '{"_id": 7}', '{"$set": {"x": 1}}', '{"hint": "a_1"}'), docshard.update_many('hint.c', '{"a": 3}', '{"$set": {"x": 1}}', '{"hint": "all"}'),
       docshard.replace_one('hint.c', '{"_id": 8}', '{"a": 8, "b": 8, "h": 8}', '{"hint": {"$natural": 1}}'), docshard.delete_one('hint.c', '{"_id": 7}', '{"hint": "b_1_a_-1"}'),
       docshard.delete_many('hint.c', '{"a": 3, "b": 3}', '{"hint": "_id_"}'), docshard.update_one('hint.c', '{"_id": 2000}', '{"$set": {"a": 1}}', '{"upsert": true, "hint": "a_1"}');
SELECT docshard.find_one_and_update('hint.c', '{"_id": 9}', '{"$inc": {"a": 1}}', '{"hint": "a_1", "returnNewDocument": true}'), docshard.find_and_modify('hint.c', '{"query": {"_id": 9}, "remove": true, "hint": {"a": 1}}');
SELECT docshard.bulk_write('hint.c', '[{"updateOne": {"filter": {"_id": 10}, "update": {"$set": {"x": 2}}, "hint": "a_1"}}, {"deleteMany": {"filter": {"_id": 11}, "hint": "none"}}]');
SELECT docshard.run_command('hint', '{"count": "c", "query": {"a": 4}, "hint": {"a": 1}}'), docshard.run_command('hint', '{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 3}}, "hint": "none"}]}');
SELECT docshard.run_command('hint', '{"explain": {"find": "c", "filter": {"b": 3}, "hint": "a_1"}}') ->> 'queryPlanner' ~ 'by_index' AS steered;
-- Refused: unknown, hidden and ambiguous indexes, and indexes that may lack matching documents.
SELECT docshard.find('hint.c', '{}', '{"hint": "none"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('hint.c', '{}', '{"hint": {"a": -1}}');
SELECT docshard.find('hint.c', '{"h": 3}', '{"hint": "h_1"}');
SELECT docshard.count_documents('hint.c', '{"b": 70}', '{"hint": {"b": 1}}');
SELECT docshard.count_documents('hint.c', '{}', '{"hint": "s_1"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('hint.c', '{"b": 50}', '{"hint": "high"}');
SELECT docshard.delete_many('hint.c', '{"_id": -1}', '{"hint": "none"}');
SELECT docshard.find('hint.c', '{}', '{"hint": 5}');
SELECT docshard.find('hint.c', '{}', '{"hint": {"$natural": 2}}');
SELECT docshard.find('hint.c', '{}', '{"hint": {"$near": 1}}');
SELECT count(*) FROM docshard.find('hint.none', '{}', '{"hint": "none"}');

SET docshard.notablescan = on;
SELECT docshard.find('hint.c', '{"x": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('hint.c', '{"h": 3}');
SELECT docshard.count_documents('hint.c', '{"s": null}');
SELECT docshard.update_many('hint.c', '{"x": 1}', '{"$set": {"y": 1}}');
SELECT docshard.run_command('hint', '{"delete": "c", "deletes": [{"q": {"x": 1}, "limit": 0}]}');
SELECT docshard.find('hint.c', '{"a": 1}', '{"hint": {"$natural": 1}}');
SELECT docshard.count_documents('hint.c') AS everything, docshard.count_documents('hint.c', '{"a": 1, "x": null}') AS a, docshard.count_documents('hint.c', '{"_id": {"$gt": 990}}') AS ids,
       docshard.count_documents('hint.c', '{"x": null}', '{"hint": "all"}') AS hinted;
-- Where the planner would scan all documents, it uses an index instead.
SELECT filter, plan_of(filter, '{}') AS by FROM unnest(ARRAY['{"a": {"$gte": 0}}', '{"b": {"$gt": 1}, "x": 1}', '{"_id": {"$gt": 1}}']::json[]) AS filter;
RESET docshard.notablescan;
SELECT filter, plan_of(filter, '{}') AS by FROM unnest(ARRAY['{"a": {"$gte": 0}}', '{"b": {"$gt": 1}, "x": 1}', '{"_id": {"$gt": 1}}']::json[]) AS filter;
DROP FUNCTION plan_of;
SELECT docshard.drop_database('hint');
