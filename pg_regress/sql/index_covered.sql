-- Counts and finds that need only the fields of an index do not read the documents.
SELECT docshard.shard_collection('cov.c', '{"_id": "hashed"}');
SELECT docshard.insert_many('cov.c', (SELECT array_agg(jsonb_build_object('_id', n, 'state', n % 40, 'at', n % 7, 'pad', repeat('x', 300))) FROM generate_series(100, 3999) n)) -> 'insertedCount' AS inserted;
-- Of one state: values that are equal but not identical, and missing values; two documents are not in the b-tree.
SELECT docshard.insert_many('cov.c', ARRAY[
    '{"_id": 1, "state": 77}', '{"_id": 2, "state": 77, "at": null}', '{"_id": 3, "state": 77.0, "at": 5}', '{"_id": 4, "state": 77, "at": 5.0}',
    '{"_id": 5, "state": 77, "at": {"$numberDecimal": "5.00"}}', '{"_id": 6, "state": {"$numberDecimal": "77"}, "at": {"$numberDouble": "NaN"}}',
    '{"_id": 7, "state": 77, "at": {"b": 2.0, "c": [null, {"$undefined": true}]}}', '{"_id": 8, "state": 77, "at": {"$symbol": "s"}, "who": {}}', '{"_id": 9, "state": 77, "at": {"$date": "2020-01-01T00:00:00Z"}}',
    '{"_id": 10, "state": 77, "at": [5, 6]}', '{"_id": 11, "state": [77, 78], "at": 5}', '{"_id": 12, "state": 77, "at": {"$numberLong": "9007199254740993"}, "who": {"name": "ann"}}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT "table" FROM docshard.collections WHERE namespace = 'cov.c' \gset
CREATE FUNCTION pg_temp.asked(filter json, projection json, more jsonb) RETURNS TABLE (counted bigint, found text, examined int, stages text) LANGUAGE sql AS $$
  SELECT docshard.count_documents('cov.c', filter),
         (SELECT string_agg(d::text, ' ' ORDER BY d::text) FROM docshard.find('cov.c', filter, options) AS d),
         (docshard.explain('cov.c', filter, options, 'executionStats') #>> '{executionStats,totalDocsExamined}')::int,
         (SELECT string_agg(DISTINCT name #>> '{}', ' ' ORDER BY name #>> '{}') FROM jsonb_path_query(docshard.explain('cov.c', filter, options)::jsonb, 'strict $.shards[*].winningPlan.**.stage') AS name)
    FROM (SELECT (jsonb_build_object('projection', projection) || more)::json AS options) AS o;
$$;
CREATE TEMP TABLE questions (n serial, filter json, projection json, more jsonb DEFAULT '{}');
INSERT INTO questions (filter, projection) VALUES
    ('{"state": 77}', '{"state": 1, "at": 1, "_id": 0}'),
    ('{"state": 77, "at": 5}', '{"at": 1, "_id": 0}'),
    ('{"state": 77, "at": {"$exists": false}}', '{"state": 1, "_id": 0}'),
    ('{"state": 77, "at": null}', '{"state": 1, "at": 1, "_id": 0}'),
    ('{"state": 77, "at": {"$type": "double"}}', '{"state": 1, "at": 1, "_id": 0}'),
    ('{"state": 77, "at.b": 2}', '{"at.b": 1, "_id": 0}'),
    ('{"state": {"$in": [77, 78]}, "at": {"$gte": 5}}', '{"state": 1, "_id": 0}'),
    ('{"state": 30, "at": {"$lt": 3}}', '{"at": 1, "_id": 0}'),
    ('{"state": {"$gte": 39}, "at": {"$mod": [7, 6]}}', '{"state": 1, "_id": 0}'),
    ('{"state": {"$in": [38, 39, 77]}, "at": {"$ne": 3}}', '{"state": 1, "_id": 0}'),
    -- The index does not have what is needed.
    ('{"state": 77}', '{"state": 1}'),
    ('{"state": 77, "who.name": "ann"}', '{"state": 1, "_id": 0}'),
    ('{"state": 77, "$expr": {"$eq": ["$at", 5]}}', '{"at": 1, "_id": 0}'),
    ('{"state": 77}', '{"pad": 0, "_id": 0}'),
    ('{"state": 77}', '{"at": {"$slice": 1}, "_id": 0, "state": 1}');
VACUUM ANALYZE :table;
SELECT n, asked.counted, found FROM questions, pg_temp.asked(filter, projection, more) AS asked ORDER BY n \g (format=unaligned tuples_only=on)
CREATE TEMP TABLE before AS SELECT n, asked.* FROM questions, pg_temp.asked(filter, projection, more) AS asked;
SELECT docshard.create_index('cov.c', '{"state": 1, "at": -1}');
VACUUM ANALYZE :table;
-- The results are the same; the documents that are read are the two outside the b-tree.
SELECT n, asked.counted = before.counted AND asked.found IS NOT DISTINCT FROM before.found AS same, asked.examined, asked.stages
  FROM questions JOIN before USING (n), pg_temp.asked(filter, projection, more) AS asked ORDER BY n;
-- A count has its own plan.
SELECT filter, explained #>> '{executionStats,totalDocsExamined}' AS examined, explained #>> '{executionStats,nReturned}' AS returned,
       (SELECT sum((n #>> '{}')::int) FROM jsonb_path_query(explained, 'strict $.executionStats.shards[*].executionStages.nCounted') AS n) AS counted,
       (SELECT string_agg(DISTINCT name #>> '{}', ' ' ORDER BY name #>> '{}') FROM jsonb_path_query(explained, 'strict $.executionStats.shards[*].executionStages.**.stage') AS name) AS stages
  FROM (VALUES ('{"state": 77}'), ('{"state": 77, "at": {"$type": "double"}}'), ('{"pad": 5}'), ('{"_id": 5}'), ('{"_id": {"$gt": 3000}}'), ('{}')) AS f (filter),
       LATERAL (SELECT docshard.run_command('cov', json_build_object('explain', json_build_object('count', 'c', 'query', filter::json), 'verbosity', 'executionStats'))::jsonb AS explained) AS e;
-- In the index's order, forwards and backwards, with the documents outside the b-tree.
CREATE FUNCTION pg_temp.sorted(filter json, more json) RETURNS TABLE (found text, examined int, stages text) LANGUAGE sql AS $$
  SELECT (SELECT string_agg(d::text, ' ' ORDER BY n) FROM docshard.find('cov.c', filter, more) WITH ORDINALITY AS f (d, n)),
         (docshard.explain('cov.c', filter, more, 'executionStats') #>> '{executionStats,totalDocsExamined}')::int,
         (SELECT string_agg(DISTINCT name #>> '{}', ' ' ORDER BY name #>> '{}') FROM jsonb_path_query(docshard.explain('cov.c', filter, more)::jsonb, 'strict $.shards[*].winningPlan.**.stage') AS name);
$$;
SELECT * FROM pg_temp.sorted('{"state": 77}', '{"projection": {"at": 1, "_id": 0}, "sort": {"at": -1}, "limit": 7}');
SELECT * FROM pg_temp.sorted('{"state": 77}', '{"projection": {"at": 1, "_id": 0}, "sort": {"state": -1, "at": 1}, "limit": 5, "skip": 2}');
SELECT * FROM pg_temp.sorted('{"state": {"$gte": 39}, "at": {"$not": {"$gte": 2}}}', '{"projection": {"at": 1, "state": 1, "_id": 0}, "sort": {"state": 1, "at": -1}, "limit": 5}');
SELECT * FROM pg_temp.sorted('{}', '{"projection": {"at": 1, "state": 1, "_id": 0}, "sort": {"state": -1, "at": 1}, "limit": 6}');
SELECT * FROM pg_temp.sorted('{"state": {"$gte": 77}}', '{"projection": {"state": 1, "_id": 0}, "sort": {"state": 1, "at": -1}}');
SELECT * FROM pg_temp.sorted('{"state": 77}', '{"projection": {"pad": 1, "_id": 0}, "sort": {"at": -1}, "limit": 1}');
-- Paths below a document, and paths that do not exist.
SELECT docshard.create_index('cov.c', '{"who.name": 1}', '{"sparse": true}');
SELECT docshard.create_index('cov.c', '{"who.name": 1, "state": 1}');
VACUUM ANALYZE :table;
SELECT string_agg(d::text, ' ' ORDER BY d::text) FROM docshard.find('cov.c', '{"who.name": null, "state": {"$gte": 77}}', '{"projection": {"who.name": 1, "_id": 0}, "hint": {"who.name": 1, "state": 1}}') AS d;
SELECT d FROM docshard.find('cov.c', '{"who.name": {"$exists": true}}', '{"projection": {"who.name": 1, "_id": 0}}') AS d;
-- Counts by shard key and _id, and by a unique index.
SELECT docshard.count_documents('cov.c', '{"_id": {"$lt": 200}}') AS ids, docshard.count_documents('cov.c', '{"_id": {"$in": [3, 3.0, 5, 50]}}') AS some;
SELECT docshard.create_collection('cov.d');
SELECT docshard.create_index('cov.d', '{"name": 1}', '{"unique": true}');
SELECT docshard.insert_many('cov.d', (SELECT array_agg(jsonb_build_object('_id', n, 'name', n)) FROM generate_series(1, 2000) n)) -> 'insertedCount' AS inserted;
SELECT docshard.count_documents('cov.d', '{"name": {"$gt": 1990}}') AS counted;
SELECT d FROM docshard.find('cov.d', '{"name": {"$gt": 1998}}', '{"projection": {"name": 1, "_id": 0}}') AS d ORDER BY 1;
-- SQL over the table: index-only scans if the index has all fields, and the same results for every form of statement.
SELECT docshard.create_collection('cov.e');
SELECT docshard.create_index('cov.e', '{"a": 1, "b": 1}');
SELECT docshard.insert_many('cov.e', (SELECT array_agg(jsonb_build_object('_id', n, 'a', n % 10, 'b', n, 'pad', repeat('x', 300))) FROM generate_series(1, 1000) n)) -> 'insertedCount' AS inserted;
SELECT "table" FROM docshard.collections WHERE namespace = 'cov.e' \gset
VACUUM ANALYZE :table;
CREATE FUNCTION pg_temp.rows(statement text, index_only text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text; BEGIN
  PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_indexonlyscan', index_only, true);
  EXECUTE 'SELECT string_agg(q::text, chr(10) ORDER BY q::text) FROM (' || statement || ') AS q' INTO answer;
  RETURN answer;
END $$;
CREATE FUNCTION pg_temp.is_index_only(statement text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE plan json; BEGIN
  PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_indexonlyscan', 'on', true);
  EXECUTE 'EXPLAIN (FORMAT JSON) ' || statement INTO plan;
  RETURN plan::text ~ 'Index Only Scan';
END $$;
CREATE TEMP TABLE shapes (n serial, statement text);
INSERT INTO shapes (statement) VALUES
    ('SELECT count(*) FROM T t WHERE A = VALUE'),
    ('SELECT A AS a, B AS b FROM T t WHERE A = VALUE'),
    ('SELECT length(B) + length(A) AS l, B FROM T t WHERE A = VALUE AND length(B) > 3'),
    ('SELECT B FROM T t WHERE A = VALUE ORDER BY B DESC LIMIT 5'),
    ('SELECT length(B) AS l FROM T t WHERE A = VALUE ORDER BY B LIMIT 5'),
    ('SELECT repeat(encode(B, $$hex$$), 3) AS r FROM T t WHERE A = VALUE ORDER BY B LIMIT 5'),
    ('SELECT max(encode(B, $$hex$$)) FROM T t WHERE A = VALUE'),
    ('SELECT A AS a, count(*) FROM T t WHERE A > VALUE GROUP BY A HAVING min(length(B)) > 0'),
    ('SELECT DISTINCT B FROM T t WHERE A = VALUE'),
    ('SELECT row_number() OVER (ORDER BY B) AS n, B FROM T t WHERE A = VALUE'),
    ('SELECT generate_series(1, 2) AS g, B FROM T t WHERE A = VALUE'),
    ('SELECT doc ->> $$b$$ AS b FROM T t WHERE A = VALUE'),
    ('SELECT t FROM T t WHERE A = VALUE'),
    ('SELECT skey, B FROM T t WHERE A = VALUE'),
    ('SELECT ctid IS NULL AS n FROM T t WHERE A = VALUE'),
    ('SELECT count(*) FROM T t WHERE A = VALUE AND doc ? $$b$$'),
    ('SELECT count(*) FROM T t JOIN T u USING (id) WHERE A = VALUE'),
    ('SELECT k, (SELECT count(*) FROM T t WHERE A = k) AS c FROM (SELECT A AS k FROM T t WHERE B > VALUE) AS of'),
    ('SELECT count(*) FROM T t WHERE A = VALUE AND EXISTS (SELECT FROM T u WHERE u.id = t.id)'),
    ('SELECT B FROM T t WHERE A = VALUE UNION ALL SELECT B FROM T t WHERE A > VALUE'),
    ('SELECT * FROM (SELECT B AS b FROM T t WHERE A = VALUE) AS q ORDER BY b'),
    ('SELECT B FROM (SELECT * FROM T WHERE skey IS NOT NULL) AS t WHERE A = VALUE'),
    ('SELECT count(*) FROM T t WHERE A = VALUE AND (EXISTS (SELECT FROM T u WHERE u.id = t.id) OR length(B) = 0)'),
    ('SELECT count(*) FROM T t WHERE A = VALUE AND ((SELECT count(*) FROM T u WHERE u.doc = t.doc) > 5 OR length(B) > 0)'),
    ('SELECT (SELECT count(*) FROM T u WHERE u.id <> t.doc::text::bytea) AS c FROM T t WHERE A = VALUE'),
    ('SELECT B FROM T t WHERE A = VALUE LIMIT (SELECT 100)'),
    ('SELECT x.b FROM T u, LATERAL (SELECT B AS b FROM T t WHERE A = VALUE AND t.doc = u.doc LIMIT 1) AS x'),
    ('WITH q AS MATERIALIZED (SELECT B AS b FROM T t WHERE A = VALUE) SELECT count(*) FROM q');
UPDATE shapes SET statement = replace(regexp_replace(regexp_replace(regexp_replace(statement, '\mT\M', :'table', 'g'), '\mA\M', $$docshard_internal.index_key(t.doc, '{"a":1,"b":1}'::text, 0)$$, 'g'),
    '\mB\M', $$docshard_internal.index_key(t.doc, '{"a":1,"b":1}'::text, 1)$$, 'g'), 'VALUE', $$'\x30c01400000000000002'::bytea$$);
SELECT n, pg_temp.rows(statement, 'on') IS NOT DISTINCT FROM pg_temp.rows(statement, 'off') AS same, pg_temp.rows(statement, 'on') IS NOT NULL AS some, pg_temp.is_index_only(statement) FROM shapes ORDER BY n;
-- Statements that change or lock rows need the documents, and so does row-level security.
BEGIN;
SELECT statement AS first FROM shapes WHERE n = 2 \gset
SET LOCAL enable_seqscan = off;
SELECT count(*) FROM (:first FOR UPDATE) AS q;
DELETE FROM :table AS t WHERE docshard_internal.index_key(t.doc, '{"a":1,"b":1}'::text, 0) = '\x30c01400000000000002'::bytea;
ROLLBACK;
CREATE ROLE regress_covered;
GRANT USAGE ON SCHEMA docshard_data, docshard_internal TO regress_covered;
GRANT SELECT ON :table TO regress_covered;
-- An administrator who means it can switch the protection of collections' tables off.
ALTER EVENT TRIGGER docshard_check_changes DISABLE;
ALTER TABLE :table ENABLE ROW LEVEL SECURITY;
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
CREATE POLICY few ON :table USING ((doc ->> 'b')::int < 100);
BEGIN;
SET LOCAL ROLE regress_covered;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SELECT count(*) FROM :table AS t WHERE docshard_internal.index_key(t.doc, '{"a":1,"b":1}'::text, 0) = '\x30c01400000000000002'::bytea;
ROLLBACK;
DROP OWNED BY regress_covered;
DROP ROLE regress_covered;
SELECT docshard.drop_database('cov');
