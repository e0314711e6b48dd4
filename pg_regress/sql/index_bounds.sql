-- min and max: a range of the hinted index in its order, the first key included, the last one excluded.
SELECT docshard.create_index('bnd.c', '{"a": 1, "b": -1}');
SELECT docshard.create_index('bnd.c', '{"b": 1, "c": 1}');
SELECT docshard.insert_many('bnd.c', (SELECT array_agg(jsonb_build_object('_id', n, 'a', n / 10, 'b', n % 10, 'c', n)) FROM generate_series(0, 999) n)) -> 'insertedCount' AS inserted;
SELECT "table" FROM docshard.collections WHERE namespace = 'bnd.c' \gset
ANALYZE :table;
CREATE FUNCTION pg_temp.ids(filter json, options json) RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(d ->> '_id', ' ' ORDER BY n) FROM docshard.find('bnd.c', filter, options) WITH ORDINALITY AS f (d, n);
$$;
SELECT filter, options, pg_temp.ids(filter::json, options::json) FROM (VALUES
    ('{}', '{"min": {"a": 7, "b": 2}, "max": {"a": 8, "b": 7}, "hint": {"a": 1, "b": -1}}'),
    ('{}', '{"min": {"a": 7, "b": 5}, "max": {"a": 7, "b": 2}, "hint": "a_1_b_-1"}'),
    ('{"c": {"$mod": [2, 0]}}', '{"min": {"a": 7, "b": 2}, "max": {"a": 8, "b": 7}, "hint": "a_1_b_-1"}'),
    ('{"a": 8}', '{"min": {"a": 7, "b": 2}, "max": {"a": 9, "b": 7}, "hint": "a_1_b_-1", "limit": 4, "skip": 1}'),
    ('{}', '{"min": {"a": 7, "b": 2}, "max": {"a": 8, "b": 7}, "hint": "a_1_b_-1", "sort": {"a": -1, "b": 1}}'),
    ('{}', '{"min": {"a": 7, "b": 2}, "max": {"a": 8, "b": 7}, "hint": "a_1_b_-1", "sort": {"c": 1}}'),
    ('{}', '{"max": {"a": 0, "b": 4}, "hint": "a_1_b_-1"}'),
    ('{}', '{"min": {"a": 99, "b": 3}, "hint": "a_1_b_-1", "projection": {"c": 0}}'),
    ('{}', '{"min": {"b": 3, "c": 970}, "max": {"b": 4, "c": 20}, "hint": "b_1_c_1"}'),
    ('{}', '{"min": {"a": {"$minKey": 1}, "b": 0}, "max": {"a": 0, "b": {"$minKey": 1}}, "hint": "a_1_b_-1", "limit": 3}'),
    ('{}', '{"min": {"_id": 17}, "max": {"_id": 21.5}, "hint": {"_id": 1}}'),
    ('{"b": {"$gt": 8}}', '{"min": {"_id": 950}, "hint": "_id_", "sort": {"_id": -1}}'),
    ('{}', '{"min": {}, "max": {}, "limit": 3, "sort": {"_id": 1}}')) AS f (filter, options);
-- Hardly more documents are read than returned.
SELECT options, (docshard.explain('bnd.c', '{}', options, 'executionStats') #>> '{executionStats,totalDocsExamined}')::int AS examined,
       (SELECT string_agg(stage #>> '{}', ' ') FROM jsonb_path_query(docshard.explain('bnd.c', '{}', options)::jsonb, 'strict $.shards[*].winningPlan.**.stage') AS stage) AS plan
  FROM unnest(ARRAY['{"min": {"a": 7, "b": 2}, "max": {"a": 8, "b": 7}, "hint": "a_1_b_-1"}', '{"min": {"b": 3, "c": 900}, "max": {"b": 4, "c": 20}, "hint": "b_1_c_1"}',
         '{"min": {"b": 3, "c": 100}, "hint": "b_1_c_1", "limit": 5}', '{"min": {"_id": 17}, "max": {"_id": 21}, "hint": "_id_"}']::json[]) AS options;
-- For an array one element must be in the range, together with the other fields. A value that is too long for the index is compared as a whole.
SELECT docshard.insert_many('bnd.c', ARRAY[jsonb_build_object('_id', 2000, 'a', '[7, 500]'::jsonb, 'b', 5), jsonb_build_object('_id', 2001, 'a', '[7, 500]'::jsonb, 'b', 0), jsonb_build_object('_id', 2002, 'a', '[]'::jsonb),
         jsonb_build_object('_id', 2003, 'a', repeat('x', 3000) || 'b', 'b', 1), jsonb_build_object('_id', 2004, 'a', repeat('x', 3000) || 'd', 'b', 1), jsonb_build_object('_id', 2005)]) -> 'insertedCount' AS inserted;
SELECT options, pg_temp.ids('{}', options::json) FROM (VALUES
    ('{"min": {"a": 7, "b": 6}, "max": {"a": 7, "b": 4}, "hint": "a_1_b_-1"}'),
    ('{"min": {"a": 400, "b": 0}, "max": {"a": 500, "b": 4}, "hint": "a_1_b_-1"}'),
    ('{"min": {"a": {"$minKey": 1}, "b": 0}, "max": {"a": 0, "b": {"$maxKey": 1}}, "hint": "a_1_b_-1"}')) AS f (options);
SELECT pg_temp.ids('{}', json_build_object('min', json_build_object('a', repeat('x', 3000) || 'c', 'b', 0), 'hint', 'a_1_b_-1'));
-- The document is returned at the position of that element, unless there is a sort.
SELECT options, pg_temp.ids('{"_id": {"$not": {"$mod": [5, 1]}}, "b": {"$lt": 6}}', options::json) FROM (VALUES
    ('{"min": {"a": 98, "b": 3}, "hint": "a_1_b_-1", "limit": 12}'),
    ('{"min": {"a": 98, "b": 3}, "hint": "a_1_b_-1", "sort": {"a": 1, "b": -1}, "limit": 12}')) AS f (options);
-- A sparse or partial index lacks documents, and so does its range.
SELECT docshard.create_indexes('bnd.c', '[{"key": {"p": 1}, "sparse": true}, {"key": {"c": 1}, "partialFilterExpression": {"a": {"$gt": 98}}}, {"key": {"z": "hashed"}}, {"key": {"$**": 1}}, {"key": {"h": 1}, "hidden": true}, {"key": {"s": 1}, "name": "ci", "collation": {"locale": "en", "strength": 2}}]');
SELECT docshard.insert_many('bnd.c', '{"{\"_id\": 3000, \"p\": 1}","{\"_id\": 3001, \"p\": null}","{\"_id\": 3002, \"s\": \"Bob\"}"}') -> 'insertedCount' AS inserted;
SELECT pg_temp.ids('{}', '{"min": {"p": {"$minKey": 1}}, "hint": "p_1"}') AS sparse, pg_temp.ids('{}', '{"min": {"c": 2}, "max": {"c": 994}, "hint": "c_1"}') AS partial,
       pg_temp.ids('{}', '{"min": {"s": "aaa"}, "max": {"s": "BOC"}, "hint": "ci", "collation": {"locale": "en", "strength": 2}}') AS collated;
-- Invalid ranges.
CREATE FUNCTION pg_temp.refused(filter json, options json) RETURNS text LANGUAGE plpgsql AS $$
DECLARE detail text;
BEGIN
  PERFORM docshard.find('bnd.c', filter, options);
  RETURN 'none';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RETURN format('%s %s %s', SQLSTATE, substring(detail FROM '\d+'), SQLERRM);
END $$;
SELECT options, pg_temp.refused('{}', options) FROM unnest(ARRAY[
    '{"min": {"a": 1, "b": 1}}', '{"max": {"a": 1, "b": 1}, "hint": {"$natural": 1}}', '{"min": {"a": 1}, "hint": "a_1_b_-1"}', '{"min": {"b": 1, "a": 1}, "hint": "a_1_b_-1"}',
    '{"min": {"a": 1, "b": 1}, "max": {"a": 2}, "hint": "a_1_b_-1"}', '{"min": {"a": 1, "b": 1}, "max": {"a": 1, "b": 2}, "hint": "a_1_b_-1"}', '{"min": {"a": 1, "b": 1}, "max": {"a": 1, "b": 1}, "hint": "a_1_b_-1"}',
    '{"min": {"z": 1}, "hint": {"z": "hashed"}}', '{"min": {"$**": 1}, "hint": "$**_1"}', '{"min": {"h": 1}, "hint": "h_1"}', '{"min": {"x": 1}, "hint": {"x": 1}}', '{"min": {"s": "x"}, "hint": "ci"}', '{"min": {"s": 1}, "hint": "ci"}',
    '{"min": [1], "hint": "a_1_b_-1"}', '{"min": {"_id": "x"}, "hint": "_id_", "collation": {"locale": "en"}}']::json[]) AS options;
SELECT docshard.find('config.shards', '{}', '{"min": {"_id": ""}, "hint": "_id_"}');
SELECT docshard.find_one('bnd.c', '{}', '{"min": {"a": 50, "b": 3}, "hint": "a_1_b_-1", "projection": {"_id": 1}}');
-- The same in a command, with a cursor, and over several shards.
SELECT docshard.run_command('bnd', '{"find": "c", "min": {"a": 50, "b": 1}, "max": {"a": 51, "b": 8}, "hint": "a_1_b_-1", "projection": {"_id": 1}, "batchSize": 2}') #> '{cursor,firstBatch}';
SELECT docshard.run_command('bnd', '{"explain": {"find": "c", "min": {"_id": 4}, "hint": "_id_"}}') #> '{queryPlanner,winningPlan,shards,0,winningPlan}';
SELECT docshard.shard_collection('bnd.c', '{"_id": "hashed"}');
SELECT docshard.run_command('bnd', '{"find": "c", "min": {"a": 50, "b": 1}, "max": {"a": 500, "b": 3}, "filter": {"_id": {"$gt": 988}}, "hint": "a_1_b_-1", "projection": {"_id": 1}}') #> '{cursor,firstBatch}';
SELECT pg_temp.ids('{}', '{"min": {"_id": 17}, "max": {"_id": 21.5}, "hint": {"_id": 1}, "skip": 1}');
SELECT docshard.run_command('bnd', '{"find": "c", "min": {"a": 50, "b": 1}}') - 'errmsg';
SELECT docshard.drop_database('bnd');
