-- UPDATE and DELETE of collections as tables: which document is written, which fields of it, and what must be unchanged.
-- Triggers and partitions of PostgreSQL's need these settings.
SET session_replication_role = origin;
SET default_tablespace = '';
SET client_min_messages = warning;
SET timezone = 'UTC';
CREATE SCHEMA fu;
CREATE FUNCTION fu.same() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;

-- A row is its document, also if `_id` and the shard key do not fit their columns.
SELECT docshard.shard_collection('fu.odd', '{"k": 1}');
SELECT docshard.insert_many('fu.odd', ARRAY['{"_id": null, "k": 1, "name": "fine", "v": 1}', '{"_id": "five", "k": "x", "name": 7, "v": 2}',
  '{"_id": 3, "name": "no key", "v": 3}', '{"_id": 4, "k": null, "name": "null", "v": 4}', '{"_id": {"a": [1, 2.5]}, "k": {"longer": 1, "b": {"$numberDecimal": "1.5"}}, "v": 5}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fu.odd (_id int, k int, name text, v int) SERVER docshard OPTIONS (namespace 'fu.odd', on_mismatch 'null');
UPDATE fu.odd SET v = v * 10 WHERE name IS NULL RETURNING *;
UPDATE fu.odd SET v = v * 10 WHERE v IN (1, 3, 4) RETURNING *;
DELETE FROM fu.odd WHERE v = 20 RETURNING *;
SELECT docshard.find('fu.odd', '{}', '{"sort": {"v": 1}}');
DELETE FROM fu.odd;
SELECT docshard.count_documents('fu.odd');
-- A table without columns that identify a document.
CREATE FOREIGN TABLE fu.bare (v int) SERVER docshard OPTIONS (namespace 'fu.odd');
INSERT INTO fu.bare SELECT n % 3 FROM generate_series(1, 9) n;
UPDATE fu.bare SET v = 5 WHERE v = 2;
DELETE FROM fu.bare WHERE v = 0;
SELECT v, count(*) FROM fu.bare GROUP BY v ORDER BY v;
SELECT docshard.drop_collection('fu.odd');

-- What is set is written, and nothing else, whatever triggers there are.
SELECT docshard.insert_many('fu.kept', ARRAY['{"_id": 1, "likes": 5, "x": "no int", "f": {"$numberDecimal": "0.1"}, "b": {"$binary": {"base64": "AQI=", "subType": "05"}}, "m": {"y": 1, "x": 2}}',
  '{"_id": 2, "likes": 6, "f": {"$numberDecimal": "NaN"}, "a": [{"$numberDecimal": "0.1"}]}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fu.kept (_id int, likes int, x int, f float8, b bytea, a float8[], mx int OPTIONS (path 'm.x'), doc jsonb OPTIONS (path ''))
  SERVER docshard OPTIONS (namespace 'fu.kept', on_mismatch 'null');
CREATE TRIGGER same BEFORE UPDATE ON fu.kept FOR EACH ROW EXECUTE FUNCTION fu.same();
UPDATE fu.kept SET likes = likes + 1 RETURNING doc;
UPDATE fu.kept SET likes = NULL, mx = NULL WHERE _id = 1 RETURNING doc;
UPDATE fu.kept SET likes = NULL, doc = doc || '{"likes": 8, "q": 1}' WHERE _id = 2 RETURNING likes, doc;
UPDATE fu.kept SET f = f WHERE _id = 1 RETURNING doc -> 'f';
CREATE OR REPLACE FUNCTION fu.same() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.mx = coalesce(OLD.mx, 0) + 1; RETURN NEW; END$$;
UPDATE fu.kept SET likes = 1 RETURNING doc;
CREATE OR REPLACE FUNCTION fu.same() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.doc = NEW.doc || '{"by": "trigger"}'; RETURN NEW; END$$;
UPDATE fu.kept SET likes = 2 WHERE _id = 1 RETURNING doc;
DROP TRIGGER same ON fu.kept;
-- What a trigger sees is read; what nobody reads need not fit, nor have a type that a table can have.
CREATE FOREIGN TABLE fu.strict (_id int NOT NULL, x int NOT NULL, likes int, p point, u uuid NOT NULL, s text NOT NULL) SERVER docshard OPTIONS (namespace 'fu.kept');
UPDATE fu.strict SET likes = likes + 1 RETURNING _id, likes;
UPDATE fu.strict SET likes = likes + 1 RETURNING _id, x;
UPDATE fu.strict SET p = '(1,2)';
UPDATE fu.strict SET likes = x;
DELETE FROM fu.strict WHERE _id = 2 RETURNING likes;
DELETE FROM fu.strict RETURNING x;
ALTER FOREIGN TABLE fu.strict DROP COLUMN p;
CREATE OR REPLACE FUNCTION fu.same() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;
CREATE TRIGGER same BEFORE UPDATE ON fu.strict FOR EACH ROW EXECUTE FUNCTION fu.same();
UPDATE fu.strict SET likes = likes + 1;
ALTER FOREIGN TABLE fu.strict OPTIONS (ADD on_mismatch 'null');
UPDATE fu.strict SET likes = likes + 1;
ALTER FOREIGN TABLE fu.strict ALTER x DROP NOT NULL, ALTER u DROP NOT NULL, ALTER s DROP NOT NULL;
UPDATE fu.strict SET likes = likes + 1 RETURNING *;
DROP FOREIGN TABLE fu.strict;

-- A view checks what is stored.
CREATE FOREIGN TABLE fu.checked (_id int, k int, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'fu.checked');
CREATE VIEW fu.low AS SELECT _id, doc FROM fu.checked WHERE k < 10 WITH CHECK OPTION;
INSERT INTO fu.low VALUES (1, '{"k": 5}'), (2, '{"k": 6}');
INSERT INTO fu.low VALUES (3, '{"k": 50}');
UPDATE fu.low SET doc = doc || '{"k": 7}' WHERE _id = 1;
UPDATE fu.low SET doc = doc || '{"k": 70}' WHERE _id = 1;
SELECT * FROM fu.checked ORDER BY _id;

-- Values that a filter of MongoDB's would compare in another way, and deep documents.
SELECT docshard.insert_many('fu.values', ARRAY['{"_id": 1, "n": [0.1], "r": 0.1, "j": {"$undefined": true}}', '{"_id": 2, "n": [{"$numberDecimal": "0.1"}], "j": {"$regularExpression": {"pattern": "(", "options": ""}}}',
  '{"_id": 3, "n": [], "j": {"$minKey": 1}, "r": {"$numberDouble": "NaN"}}', '{"_id": 4, "j": {"$code": "f", "$scope": {"a": 1}}}', '{"_id": 5, "j": [[1, null], {"longer": 1, "b": {"$timestamp": {"t": 1, "i": 2}}}], "r": {"$numberDouble": "-0.0"}}']::jsonb[]
  || ('{"_id": 6, "j": ' || repeat('[', 80) || repeat(']', 80) || '}')::jsonb) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fu.values (_id int, n numeric[], r real, j jsonb, jj json OPTIONS (path 'j'), doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'fu.values');
UPDATE fu.values SET n = n || 1.5, r = r + 1 WHERE j IS NOT NULL;
UPDATE fu.values SET r = 0 WHERE length(jj::text) > 0;
UPDATE fu.values SET r = 2 WHERE length(doc::text) > 0 RETURNING _id, n, r;

-- Whole rows.
UPDATE fu.values v SET r = length(v::text) WHERE v IS NOT NULL OR _id = 1 RETURNING _id, r > 100 AS is_long;
UPDATE fu.values v SET r = length(v::text) + x FROM (VALUES (1, 1000), (20, 200)) w (id, x) WHERE _id = id RETURNING _id, r > 1000 AS is_long, (SELECT relname FROM pg_catalog.pg_class o WHERE o.oid = v.tableoid);
DELETE FROM fu.values WHERE ctid IN (SELECT ctid FROM fu.values LIMIT 1);
DELETE FROM fu.values WHERE ctid = '(0,1)';
SELECT ctid FROM fu.values;
-- A document's arrays have no dimensions.
UPDATE fu.values SET n = '{{1,2},{3,4}}' WHERE _id = 1;
INSERT INTO fu.values (_id, n) VALUES (7, '[2:3]={1,2}');
INSERT INTO fu.values (_id, n) VALUES (7, '{}'), (8, ARRAY[1, NULL]) RETURNING n;
DELETE FROM fu.values WHERE _id > 6;
UPDATE fu.values SET r = length(cmax::text);
UPDATE fu.values SET r = length(xmin::text);
DELETE FROM fu.values v WHERE v.* IS NOT DISTINCT FROM NULL;

-- Parts of a table may have other columns, other shard keys, and more columns.
SELECT docshard.shard_collection('fu.a', '{"w": 1}');
SELECT docshard.shard_collection('fu.b', '{"_id": "hashed"}');
CREATE TABLE fu.parts (_id int, k int, v int, w text) PARTITION BY RANGE (k);
CREATE FOREIGN TABLE fu.a (k int, w text, gone int, _id int, v int) SERVER docshard OPTIONS (namespace 'fu.a');
ALTER FOREIGN TABLE fu.a DROP COLUMN gone;
CREATE FOREIGN TABLE fu.b (_id int, k int, v int, w text) SERVER docshard OPTIONS (namespace 'fu.b');
ALTER TABLE fu.parts ATTACH PARTITION fu.a FOR VALUES FROM (0) TO (100);
ALTER TABLE fu.parts ATTACH PARTITION fu.b FOR VALUES FROM (100) TO (200);
CREATE TABLE fu.own PARTITION OF fu.parts FOR VALUES FROM (200) TO (300);
INSERT INTO fu.parts SELECT n, n * 10, 1, 'w' || n FROM generate_series(1, 29) n;
UPDATE fu.parts SET v = v + 1 WHERE k < 250;
UPDATE fu.parts p SET v = p.v + x FROM (VALUES (1, 10), (11, 20), (21, 30)) c (id, x) WHERE _id = id RETURNING (SELECT relname FROM pg_catalog.pg_class o WHERE o.oid = p.tableoid), p.*;
DELETE FROM fu.parts WHERE _id % 10 > 1;
SELECT * FROM fu.parts ORDER BY _id;
SELECT docshard.find('fu.a', '{}', '{"sort": {"_id": 1}}');
UPDATE fu.parts p SET w = left(p::text, 3) WHERE k < 200;
DELETE FROM fu.parts p WHERE p::text = '(1,10,12,w1)' RETURNING *;
-- Rows move between the parts, but not into one that the statement updates.
SET enable_partition_pruning = on;
UPDATE fu.parts SET k = k - 100 WHERE _id = 21;
UPDATE fu.parts SET k = 150 WHERE k >= 200 RETURNING *;
UPDATE fu.parts SET k = k - 100 WHERE k >= 100;
SELECT * FROM fu.parts ORDER BY _id;
-- A trigger of the statement sees the rows that COPY has inserted.
CREATE FUNCTION fu.counted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE WARNING '% rows', (SELECT count(*) FROM fu.parts); RETURN NULL; END$$;
CREATE TRIGGER counted AFTER INSERT ON fu.parts FOR EACH STATEMENT EXECUTE FUNCTION fu.counted();
COPY fu.parts (_id, k) FROM stdin;
101	5
102	105
\.
-- Children of a table.
CREATE TABLE fu.parent (_id int, v int);
CREATE FOREIGN TABLE fu.child (extra text) INHERITS (fu.parent) SERVER docshard OPTIONS (namespace 'fu.child');
INSERT INTO fu.parent VALUES (1, 1);
INSERT INTO fu.child VALUES (2, 2, 'e');
UPDATE fu.parent SET v = v + 1;
SELECT docshard.find('fu.child');
DELETE FROM fu.parent WHERE v = 3;
SELECT * FROM fu.parent;

-- Columns whose paths begin with another column's path: the longer path's value is set in the other value.
CREATE FOREIGN TABLE fu.inner (_id int NOT NULL, a jsonb, b int OPTIONS (path 'a.b'), d text OPTIONS (path 'a.c.d'), v int) SERVER docshard OPTIONS (namespace 'fu.inner');
INSERT INTO fu.inner VALUES (1, '{"b": 1, "x": 1}', 2, NULL, 0), (2, NULL, NULL, NULL, 0), (3, NULL, 3, 'd', 0);
UPDATE fu.inner SET a = a, b = b, d = d, v = v + 1 RETURNING *;
UPDATE fu.inner SET d = 'new', b = v + 5, a = '{"b": 7, "x": 2}' WHERE _id = 1 RETURNING *;
UPDATE fu.inner SET a = NULL, b = NULL, d = 'only' WHERE _id = 3 RETURNING *;
UPDATE fu.inner SET a = '7', b = NULL, d = NULL WHERE _id = 2 RETURNING *;
UPDATE fu.inner SET a = '7', b = v + 1 WHERE _id = 2;
\echo :LAST_ERROR_SQLSTATE
UPDATE fu.inner SET v = 3, b = NULL, d = 'set', a = '{"b": 1, "y": 1}' WHERE v = 1;
UPDATE fu.inner SET a = NULL, b = NULL WHERE _id = 3;
EXPLAIN (COSTS OFF) UPDATE fu.inner SET b = 2, a = '{"x": 1}';
SELECT docshard.find('fu.inner', '{}', '{"sort": {"_id": 1}}');
SET plan_cache_mode = force_generic_plan;
PREPARE both_paths (jsonb, int) AS UPDATE fu.inner SET a = $1, b = $2 WHERE _id = 1;
EXPLAIN (COSTS OFF) EXECUTE both_paths ('{"x": 1}', 8);
EXECUTE both_paths ('{"x": 1}', 8);
SELECT * FROM fu.inner WHERE _id = 1;
RESET plan_cache_mode;

-- A plan is not bound to the shard key that it was made with.
CREATE FOREIGN TABLE fu.again (_id int, a int) SERVER docshard OPTIONS (namespace 'fu.again');
INSERT INTO fu.again VALUES (1, 1);
SET plan_cache_mode = force_generic_plan;
PREPARE again (int) AS UPDATE fu.again SET a = a + 1 WHERE a = $1;
EXECUTE again (1);
SELECT docshard.drop_collection('fu.again');
SELECT docshard.shard_collection('fu.again', '{"other": 1}');
SELECT docshard.insert_one('fu.again', '{"_id": 1, "a": 1, "other": 5}') IS NOT NULL AS inserted;
EXECUTE again (1);
SELECT * FROM fu.again;
DROP SCHEMA fu CASCADE;
SELECT docshard.drop_database('fu');
