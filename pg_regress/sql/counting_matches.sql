-- Counts with a filter that no index serves bypass the executor, with parallel processes if the planner would use them.
\set SHOW_CONTEXT never
SELECT docshard.insert_select('cm.c', $$
  SELECT jsonb_build_object('_id', n, 'n', n % 100, 'z', CASE WHEN n = 17000 THEN 0 ELSE 1 END,
                            'text', CASE n % 10 WHEN 0 THEN repeat(md5(n::text), 200) WHEN 1 THEN '' ELSE repeat('x', 700) END)
  FROM generate_series(1, 20000) n$$) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('cm.c', '{"_id": 0}') -> 'insertedId' AS id;
SELECT 'docshard_data.c' || id AS "table" FROM docshard_catalog.collections WHERE namespace = 'cm.c' \gset
VACUUM ANALYZE :table;
SELECT pg_relation_size(:'table') > 8 * 1024 * 1024 AS large;
SET min_parallel_table_scan_size = '1MB';

SELECT docshard.count_documents('cm.c', '{"n": 7}');
SELECT docshard.count_documents('cm.c', '{"n": {"$exists": false}}');
SELECT docshard.count_documents('cm.c', '{"text": {"$regex": "^x"}, "n": {"$gte": 50}}');
SELECT docshard.count_documents('cm.c', '{"text": {"$not": {"$regex": "^x"}}}', '{"skip": 1000}');
SELECT count(*) FROM :table WHERE docshard_internal.matches(doc, '{"text": {"$not": {"$regex": "^x"}}}');
SET max_parallel_workers_per_gather = 0;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
RESET max_parallel_workers_per_gather;
SET max_parallel_workers = 0;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
RESET max_parallel_workers;
-- An error in any process ends the count; the session continues.
SELECT docshard.count_documents('cm.c', '{"$expr": {"$gt": [{"$divide": [1, "$z"]}, 0]}}');
SELECT docshard.count_documents('cm.c', '{"n": 7}');
SET statement_timeout = 1;
SELECT docshard.count_documents('cm.c', '{"text": {"$regex": "a.*b.*c.*d.*e.*f.*q"}}');
RESET statement_timeout;
-- The transaction's own changes are counted, except those that were rolled back.
BEGIN;
SELECT docshard.update_many('cm.c', '{"n": 8}', '{"$set": {"n": 7}}') -> 'modifiedCount' AS modified;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
SAVEPOINT s;
SELECT docshard.delete_many('cm.c', '{"n": 7}') -> 'deletedCount' AS deleted;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
SELECT docshard.count_documents('cm.c', '{"$expr": {"$gt": [{"$divide": [1, "$z"]}, 0]}}');
ROLLBACK TO s;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
COMMIT;
-- Inside another statement, which may be parallel itself.
SELECT n, docshard.count_documents('cm.c', format('{"n": %s}', n)::json) FROM generate_series(6, 8) n;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
-- The user's privileges and row-level security apply.
CREATE ROLE regress_cm;
SELECT docshard.grant_access('regress_cm') IS NULL AS granted;
SET ROLE regress_cm;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
RESET ROLE;
-- An administrator who means it can switch the protection of collections' tables off.
ALTER EVENT TRIGGER docshard_check_changes DISABLE;
ALTER TABLE :table ENABLE ROW LEVEL SECURITY;
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
CREATE POLICY few ON :table USING (docshard_internal.matches(doc, '{"_id": {"$lt": 1000}}'));
SET ROLE regress_cm;
SELECT docshard.count_documents('cm.c', '{"n": 7}');
RESET ROLE;
REVOKE ALL ON :table FROM regress_cm;
ALTER TABLE :table DISABLE ROW LEVEL SECURITY;
SET ROLE regress_cm;
\set VERBOSITY sqlstate
SELECT docshard.count_documents('cm.c', '{"n": 7}');
\set VERBOSITY default
RESET ROLE;
DROP POLICY few ON :table;
DROP OWNED BY regress_cm;
DROP ROLE regress_cm;
SELECT docshard.drop_database('cm') -> 'dropped' AS dropped;
