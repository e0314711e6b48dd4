-- UPDATE and DELETE that the shards do alone: when, and that they do what the ordinary way does.
-- Triggers and partitions of PostgreSQL's need these settings.
SET session_replication_role = origin;
SET default_tablespace = '';
SET client_min_messages = warning;
SET timezone = 'UTC';
SET plan_cache_mode = auto;
CREATE SCHEMA fd;
SELECT docshard.shard_collection('fd.t', '{"k": 1}');
SELECT docshard.create_index('fd.t', '{"n": 1}');
SELECT docshard.insert_many('fd.t', array_agg(jsonb_build_object('_id', n, 'k', n, 'n', n % 10, 'w', 'w' || n % 3, 'm', jsonb_build_object('x', n % 2)))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 100) n;
CREATE FOREIGN TABLE fd.t (_id int NOT NULL, k int NOT NULL, n int, w text, x int OPTIONS (path 'm.x'), at timestamptz, f float8, a int[], u uuid, doc jsonb OPTIONS (path ''))
  SERVER docshard OPTIONS (namespace 'fd.t');
CREATE FUNCTION fd.way(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE plan jsonb;
BEGIN
  EXECUTE 'EXPLAIN (FORMAT json) ' || statement INTO plan;
  RETURN CASE WHEN plan @? '$.** ? (@."Node Type" == "Foreign Scan" && @."Operation" != "Select")' THEN 'direct' ELSE 'rows' END;
END$$;
EXPLAIN (COSTS OFF) UPDATE fd.t SET w = 'x', x = NULL WHERE k = 5 AND n IN (1, 2);
EXPLAIN (COSTS OFF) DELETE FROM fd.t WHERE n > 8;
SELECT statement, fd.way(statement) FROM unnest(ARRAY[
  'DELETE FROM fd.t', 'DELETE FROM fd.t WHERE k < 10 OR w IS NULL', 'UPDATE fd.t SET at = now()', 'UPDATE fd.t SET n = (SELECT max(n) FROM fd.t)', 'UPDATE fd.t SET f = 0.5, u = NULL',
  'UPDATE fd.t SET n = n + 1', 'UPDATE fd.t SET n = k', 'UPDATE fd.t SET w = random()::text', 'UPDATE fd.t SET k = 1', 'UPDATE fd.t SET _id = 1', 'UPDATE fd.t SET a = ''{1}''',
  'UPDATE fd.t SET doc = ''{}''', 'DELETE FROM fd.t WHERE f = 1', 'DELETE FROM fd.t WHERE u IS NULL', 'DELETE FROM fd.t WHERE w LIKE ''a%''', 'DELETE FROM fd.t WHERE random() > 2',
  'DELETE FROM fd.t RETURNING _id', 'DELETE FROM fd.t USING generate_series(1, 2) g WHERE k = g', 'UPDATE fd.t SET w = (SELECT t.w)', 'DELETE FROM fd.t WHERE a = ''{1}''']) statement;
-- Counts, and what is written.
\set QUIET off
UPDATE fd.t SET w = 'x', x = NULL, at = '2026-01-01T00:00:00.1239Z', f = 0.5 WHERE k IN (5, 6);
UPDATE fd.t SET w = 'none' WHERE k = 1000;
UPDATE fd.t SET w = 'none' WHERE k = NULL;
\set QUIET on
SELECT docshard.find('fd.t', '{"k": {"$in": [5, 6]}}', '{"sort": {"k": 1}}');
PREPARE change(text, int) AS UPDATE fd.t SET w = $1 WHERE n = $2;
PREPARE remove(int) AS DELETE FROM fd.t WHERE k = $1;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE change('a', 3);
\set QUIET off
EXECUTE change('a', 3);
EXECUTE change(NULL, 3);
EXECUTE change('a', NULL);
EXECUTE remove(33);
EXECUTE remove(33);
\set QUIET on
SET plan_cache_mode = auto;
SELECT count(*), count(w) FROM fd.t WHERE n = 3;
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) UPDATE fd.t SET w = 'b' WHERE n = 4;
WITH gone AS (DELETE FROM fd.t WHERE n = 1), new AS (UPDATE fd.t SET w = 'cte' WHERE n = 2) SELECT 1;
SELECT count(*) FILTER (WHERE n = 1), count(*) FILTER (WHERE w = 'cte') FROM fd.t;
BEGIN;
SAVEPOINT a;
DELETE FROM fd.t WHERE n = 5;
SELECT count(*) FROM fd.t WHERE n = 5;
ROLLBACK TO a;
UPDATE fd.t SET w = 'kept' WHERE n = 5;
COMMIT;
SELECT w, count(*) FROM fd.t WHERE n = 5 GROUP BY w;

-- A value that does not fit a column of a condition is an error, and one elsewhere is not.
SELECT docshard.insert_many('fd.t', ARRAY['{"_id": 200, "k": 200, "n": [7, 8]}', '{"_id": 201, "k": 201, "n": 6.5}', '{"_id": 202, "k": 202, "w": 5}']::jsonb[]) -> 'insertedCount' AS inserted;
UPDATE fd.t SET w = 'y' WHERE n = 7;
DELETE FROM fd.t WHERE n >= 6 AND n < 7;
SELECT count(*) FROM fd.t WHERE w = 'y';
\set QUIET off
UPDATE fd.t SET w = 'y' WHERE k = 202;
DELETE FROM fd.t WHERE n = 6;
DELETE FROM fd.t WHERE k > 199;
\set QUIET on
-- It is NULL by the option, so that PostgreSQL evaluates conditions.
ALTER FOREIGN TABLE fd.t OPTIONS (ADD on_mismatch 'null');
SELECT fd.way('DELETE FROM fd.t WHERE n = 7'), fd.way('DELETE FROM fd.t'), fd.way('UPDATE fd.t SET w = 1');
ALTER FOREIGN TABLE fd.t OPTIONS (DROP on_mismatch);

-- What needs rows is done by rows: row triggers, the check of a view, generated columns, partitions. Statement triggers do not.
CREATE FUNCTION fd.note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE WARNING '% %', TG_OP, TG_LEVEL; RETURN coalesce(NEW, OLD); END$$;
CREATE TRIGGER each AFTER DELETE ON fd.t FOR EACH ROW EXECUTE FUNCTION fd.note();
CREATE TRIGGER all_rows BEFORE UPDATE ON fd.t FOR EACH STATEMENT EXECUTE FUNCTION fd.note();
SELECT fd.way('DELETE FROM fd.t'), fd.way('UPDATE fd.t SET w = 1');
UPDATE fd.t SET w = 'trigger' WHERE k = 8;
DROP TRIGGER each ON fd.t;
DROP TRIGGER all_rows ON fd.t;
CREATE VIEW fd.low AS SELECT * FROM fd.t WHERE n < 5 WITH CHECK OPTION;
CREATE VIEW fd.barrier WITH (security_barrier) AS SELECT * FROM fd.t WHERE n = 8;
SELECT fd.way('UPDATE fd.low SET n = 7'), fd.way('DELETE FROM fd.low'), fd.way('UPDATE fd.barrier SET w = NULL WHERE k = 8');
EXPLAIN (COSTS OFF) DELETE FROM fd.barrier WHERE w = 'trigger';
-- A reader's condition is not evaluated where it would see hidden rows.
SELECT fd.way('DELETE FROM fd.barrier WHERE w LIKE ''t%''');
CREATE TABLE fd.parts (k int NOT NULL, w text) PARTITION BY RANGE (k);
CREATE FOREIGN TABLE fd.part (k int NOT NULL, w text) SERVER docshard OPTIONS (namespace 'fd.t');
ALTER TABLE fd.parts ATTACH PARTITION fd.part FOR VALUES FROM (0) TO (1000);
SELECT fd.way('DELETE FROM fd.parts WHERE k = 8'), fd.way('DELETE FROM fd.part WHERE k = 8');
-- A cached plan is made anew when the shard key has changed.
SELECT docshard.insert_one('fd.key', '{"_id": 1, "n": 1}') -> 'acknowledged' AS ok, docshard.create_index('fd.key', '{"n": 1}');
CREATE FOREIGN TABLE fd.key (_id int NOT NULL, n int) SERVER docshard OPTIONS (namespace 'fd.key');
PREPARE increase(int) AS UPDATE fd.key SET n = $1 WHERE _id = 1;
SET plan_cache_mode = force_generic_plan;
EXECUTE increase(2);
SELECT docshard.shard_collection('fd.key', '{"n": 1}') -> 'ok' AS ok;
EXECUTE increase(3);
SET plan_cache_mode = auto;
SELECT * FROM fd.key;
DROP SCHEMA fd CASCADE;
SELECT docshard.drop_database('fd');
