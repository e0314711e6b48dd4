-- A statement over collections as tables means what it means over plain tables: sums are exact, strings are compared by their bytes, and no part of it sees what another part writes.
SET session_replication_role = origin;
SET default_tablespace = '';
SET client_min_messages = warning;
SET extra_float_digits = 1;
CREATE SCHEMA fs;

-- Sums of integers, whatever numbers they are stored as.
SELECT docshard.insert_many('fs.sums', ARRAY['{"_id": 1, "l": {"$numberDouble": "4611686018427387904"}, "i": {"$numberDouble": "5"}}', '{"_id": 2, "l": {"$numberDouble": "1234567890123456768"}, "i": 5}',
  '{"_id": 3, "l": {"$numberDecimal": "9223372036854775807"}, "i": {"$numberDecimal": "5.00"}}', '{"_id": 4, "l": 9223372036854775807, "i": {"$numberDouble": "-0.0"}}', '{"_id": 5, "l": 4611686018427387904, "i": {"$numberDecimal": "1E+1"}}',
  '{"_id": 6, "l": {"$numberDouble": "-9223372036854775808"}}', '{"_id": 7, "l": {"$numberDecimal": "9007199254740993"}, "i": null}', '{"_id": 8, "l": {"$numberDouble": "9007199254740992"}}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fs.sums (_id int, l bigint, i int, h smallint OPTIONS (path 'i'), n numeric OPTIONS (path 'l'), f float8 OPTIONS (path 'l')) SERVER docshard OPTIONS (namespace 'fs.sums');
EXPLAIN (COSTS OFF) SELECT sum(l), avg(l), count(l), min(l), max(l) FROM fs.sums;
SELECT sum(l), avg(l), count(l), min(l), max(l) FROM fs.sums;
SELECT sum(l), avg(l), count(l), min(l), max(l) FROM (SELECT * FROM fs.sums OFFSET 0) s;
SELECT sum(i), avg(i), sum(h), avg(h), min(i), max(h) FROM fs.sums;
SELECT sum(i), avg(i), sum(h), avg(h), min(i), max(h) FROM (SELECT * FROM fs.sums OFFSET 0) s;
SELECT l, count(*), sum(l), avg(l) FROM fs.sums GROUP BY l ORDER BY l;
SELECT l, count(*), sum(l), avg(l) FROM (SELECT * FROM fs.sums OFFSET 0) s GROUP BY l ORDER BY l;
SELECT sum(n), sum(f), avg(n), max(n), min(f) FROM fs.sums;
SELECT _id FROM fs.sums WHERE l = 9007199254740993 OR l > 9223372036854775806 ORDER BY _id;
SELECT docshard.insert_one('fs.sums', '{"_id": 9, "l": {"$numberDouble": "9223372036854775808"}}') IS NOT NULL AS inserted;
SELECT sum(l) FROM fs.sums;

-- A view with a collation compares with it in its own stages; the table compares bytes.
SELECT docshard.insert_many('fs.plain', ARRAY['{"_id": 1, "name": "Ada", "a": 1}', '{"_id": 2, "name": "ada", "a": 2}', '{"_id": 3, "name": "ADA", "a": 3}', '{"_id": 4, "name": "bob", "a": 4}', '{"_id": 5, "name": "BOB"}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.create_collection('fs.loose', '{"viewOn": "plain", "pipeline": [{"$match": {"name": {"$in": ["ada", "bob"]}}}], "collation": {"locale": "en", "strength": 2}}');
SELECT docshard.create_collection('fs.twice', '{"viewOn": "loose", "pipeline": [{"$match": {"name": {"$ne": "BOB"}}}], "collation": {"locale": "en", "strength": 2}}');
CREATE FOREIGN TABLE fs.loose (_id int, name text COLLATE "C", a int) SERVER docshard OPTIONS (namespace 'fs.loose');
CREATE FOREIGN TABLE fs.nulls (_id int, name text COLLATE "C", a int) SERVER docshard OPTIONS (namespace 'fs.loose', on_mismatch 'null');
CREATE FOREIGN TABLE fs.twice (_id int, name text COLLATE "C", a int) SERVER docshard OPTIONS (namespace 'fs.twice');
CREATE VIEW fs.barrier WITH (security_barrier) AS SELECT * FROM fs.loose WHERE name = 'ada';
EXPLAIN (COSTS OFF) SELECT * FROM fs.loose WHERE name >= 'a' ORDER BY name LIMIT 2;
EXPLAIN (COSTS OFF) SELECT name, count(*) FROM fs.loose WHERE name <> 'ada' GROUP BY name;
SELECT * FROM fs.loose WHERE name = 'ada';
SELECT _id FROM fs.loose WHERE name <> 'ada' ORDER BY _id;
SELECT _id FROM fs.nulls WHERE name <> 'ada' AND name NOT IN ('BOB', 'x') ORDER BY _id;
SELECT _id FROM fs.loose WHERE name IN ('ADA', 'Bob') OR name < 'AD' ORDER BY _id;
SELECT name FROM fs.loose WHERE name LIKE 'a%';
SELECT name FROM fs.loose ORDER BY name LIMIT 4;
SELECT name, count(*), sum(a) FROM fs.loose GROUP BY name ORDER BY name;
SELECT DISTINCT name FROM fs.loose ORDER BY name;
SELECT min(name), max(name), count(DISTINCT name), count(*) FROM fs.loose;
SELECT count(*) FROM fs.loose WHERE name = 'Bob';
SELECT * FROM fs.barrier;
SELECT * FROM fs.twice WHERE name > 'A' ORDER BY name DESC;
SELECT l._id, r._id FROM fs.loose l JOIN fs.twice r ON l.name = r.name ORDER BY 1, 2;

-- A statement does not see what it writes.
CREATE FOREIGN TABLE fs.c (_id int, k int, n int) SERVER docshard OPTIONS (namespace 'fs.c');
CREATE TABLE fs.p (_id int, k int, n int);
INSERT INTO fs.c SELECT g, g % 3, 0 FROM generate_series(1, 9) g;
INSERT INTO fs.p TABLE fs.c;
CREATE FUNCTION fs.both(statement text) RETURNS TABLE (as_table text, rows text) LANGUAGE plpgsql AS $$
DECLARE t text; done bigint;
BEGIN
  FOREACH t IN ARRAY ARRAY['c', 'p'] LOOP
    BEGIN
      EXECUTE replace(statement, '@', 'fs.' || t);
      GET DIAGNOSTICS done = ROW_COUNT;
      EXECUTE format('SELECT %L || '': '' || coalesce(string_agg(format(''%%s %%s %%s'', _id, k, n), '', '' ORDER BY _id), ''none'') FROM fs.%I', done, t) INTO rows;
      RAISE EXCEPTION 'undo' USING errcode = 'UNDO0';
    EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
    END;
    as_table := t;
    RETURN NEXT;
  END LOOP;
END$$;
CREATE FUNCTION fs.same(statement text) RETURNS text LANGUAGE sql AS $$SELECT CASE WHEN count(DISTINCT rows) = 1 THEN 'as plain: ' || min(rows) ELSE 'WRONG ' || string_agg(as_table || ' ' || rows, ' / ' ORDER BY as_table) END FROM fs.both(statement)$$;
CREATE FUNCTION fs.greatest_of(int) RETURNS int STABLE LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT max(n) FROM fs.c WHERE k = $1); END$$;
SELECT fs.same('DELETE FROM @ x WHERE (SELECT count(*) FROM @ y WHERE y.k = x.k) > 1');
SELECT fs.same('UPDATE @ x SET n = 1 + (SELECT max(n) FROM @ y WHERE y.k = x.k)');
SELECT fs.same('UPDATE @ x SET n = CASE WHEN _id = 1 THEN 7 ELSE (SELECT sum(n) FROM @) END');
SELECT fs.same('UPDATE @ x SET (k, n) = (SELECT count(*), max(n) + 1 FROM @ y WHERE y.k <= x.k)');
SELECT fs.same('UPDATE @ SET n = 1 + (SELECT max(n) FROM fs.c y WHERE y.k = 1)');
UPDATE fs.c SET n = 1 + fs.greatest_of(k) WHERE k = 1 RETURNING *;
UPDATE fs.c SET n = 0;
SELECT fs.same('INSERT INTO @ SELECT g, 5, (SELECT count(*) FROM @ y WHERE y.k = 5 + g * 0) FROM generate_series(101, 103) g');
INSERT INTO fs.c SELECT g, 5, (SELECT count(*) FROM fs.c y WHERE y.k = 5 + g * 0) FROM generate_series(101, 1200) g;
SELECT n, count(*) FROM fs.c WHERE k = 5 GROUP BY n;
DELETE FROM fs.c WHERE k = 5;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
SELECT fs.same('DELETE FROM @ x WHERE EXISTS (SELECT FROM @ y WHERE y.k = x.k AND y._id <> x._id)');
SELECT fs.same('DELETE FROM @ x USING @ y WHERE y.k = x.k AND y._id = x._id + 3');
SELECT fs.same('UPDATE @ x SET k = y.k + 1 FROM @ y WHERE y.k = x.k AND y._id = x._id + 3');
SELECT fs.same('INSERT INTO @ SELECT x._id + 100, x.k, y._id FROM @ x JOIN @ y ON y._id = x.k + 1');
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;
SELECT fs.same('WITH d AS (DELETE FROM @ WHERE k = 1 RETURNING *) INSERT INTO @ SELECT _id + 100, k, n + (SELECT count(*) FROM d) FROM d');
SELECT fs.same('WITH i AS (INSERT INTO @ VALUES (500, 1, 1) RETURNING *) SELECT count(*) FROM @ WHERE k = 1');
-- A cursor that is open keeps its rows; and more rows are written than work_mem holds.
BEGIN;
DECLARE rows CURSOR FOR SELECT * FROM fs.c ORDER BY _id;
FETCH 1 FROM rows;
UPDATE fs.c SET n = 1 WHERE _id > 7;
FETCH LAST FROM rows;
ROLLBACK;
SET work_mem = '64kB';
INSERT INTO fs.c SELECT g + 1000, 9, g FROM generate_series(1, 1200) g;
UPDATE fs.c SET n = n + 1 WHERE k = 9;
SELECT count(*), sum(n) FROM fs.c WHERE k = 9;
DELETE FROM fs.c WHERE k = 9;
RESET work_mem;
-- What cannot be read as it was is refused.
WITH u AS (UPDATE fs.c SET n = 5 RETURNING 1) SELECT (SELECT count(*) FROM u), (SELECT sum(n) FROM fs.c);
WITH u AS (UPDATE fs.c SET n = 5 RETURNING _id) SELECT count(*) FROM u JOIN fs.c USING (_id);
UPDATE fs.c SET n = 5 WHERE k = 1 RETURNING _id, (SELECT sum(n) FROM fs.c);
WITH u AS (UPDATE fs.c SET n = 5), v AS (UPDATE fs.c SET n = n + (SELECT count(*) FROM fs.p) RETURNING 1) SELECT 1 AS one;
WITH u AS (DELETE FROM fs.c WHERE k = 1), v AS (UPDATE fs.c SET n = 5) SELECT count(*) FROM fs.c;
WITH u AS (DELETE FROM fs.c WHERE k = 1) SELECT count(*) AS before FROM fs.c;
SELECT count(*) FROM fs.c;
INSERT INTO fs.c SELECT * FROM fs.p WHERE k = 1;
SELECT docshard.create_collection('fs.seen', '{"viewOn": "c"}');
CREATE FOREIGN TABLE fs.seen (_id int, n int) SERVER docshard OPTIONS (namespace 'fs.seen');
DELETE FROM fs.c RETURNING (SELECT sum(n) FROM fs.seen);
SELECT count(*), sum(n) FROM fs.c;
UPDATE fs.c SET n = 5 WHERE k = 1 RETURNING _id, (SELECT count(*) FROM fs.loose), (SELECT sum(i) FROM fs.sums WHERE _id < 3);
WITH u AS (UPDATE fs.c SET n = 6 WHERE k = 1 RETURNING _id) SELECT count(*) FROM u JOIN fs.sums USING (_id);
-- A row in a trigger is written after those before it, as in a plain table.
CREATE FUNCTION fs.counts() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN EXECUTE format('SELECT sum(n) FROM %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME) INTO NEW.n; RETURN NEW; END$$;
UPDATE fs.c SET n = 1;
UPDATE fs.p SET n = 1;
CREATE TRIGGER counts BEFORE UPDATE ON fs.c FOR EACH ROW EXECUTE FUNCTION fs.counts();
CREATE TRIGGER counts BEFORE UPDATE ON fs.p FOR EACH ROW EXECUTE FUNCTION fs.counts();
UPDATE fs.c SET k = k WHERE _id IN (1, 2, 3);
UPDATE fs.p SET k = k WHERE _id IN (1, 2, 3);
SELECT (SELECT array_agg(n ORDER BY n) FROM fs.c) AS c, (SELECT array_agg(n ORDER BY n) FROM fs.p) AS p;
DROP TRIGGER counts ON fs.c;

-- PostgreSQL asks foreign parts for marks of rows of local parts.
CREATE TABLE fs.parts (_id int, k int, v int) PARTITION BY RANGE (k);
CREATE TABLE fs.own PARTITION OF fs.parts FOR VALUES FROM (0) TO (10);
CREATE FOREIGN TABLE fs.far PARTITION OF fs.parts FOR VALUES FROM (10) TO (20) SERVER docshard OPTIONS (namespace 'fs.far');
INSERT INTO fs.parts SELECT g, g, 0 FROM generate_series(1, 19) g;
CREATE TABLE fs.others AS TABLE fs.parts;
UPDATE fs.others o SET v = p.v + 1 FROM fs.parts p WHERE p.k = o.k;
DELETE FROM fs.others o USING fs.parts p WHERE p.k = o.k AND p.k BETWEEN 8 AND 12 RETURNING p.*, (SELECT relname FROM pg_catalog.pg_class c WHERE c.oid = p.tableoid);
SELECT o.k, p.k FROM fs.others o, fs.parts p WHERE p.k = o.k ORDER BY p.k DESC LIMIT 1 FOR UPDATE OF o;
MERGE INTO fs.others o USING fs.parts p ON p.k = o.k WHEN MATCHED AND p.k > 15 THEN UPDATE SET v = 5;
SELECT v, count(*) FROM fs.others GROUP BY v ORDER BY v;
UPDATE fs.others o SET v = 1 FROM fs.parts p WHERE p.k = o.k RETURNING p.ctid;
UPDATE fs.others o SET v = 1 FROM fs.parts p WHERE p.k = o.k AND p.ctid = '(0,1)';
UPDATE fs.others o SET v = 1 FROM fs.parts p WHERE p.k = o.k AND p.ctid IS DISTINCT FROM o.ctid;
UPDATE fs.others o SET v = 1 FROM fs.parts p WHERE p.k = o.k AND p.xmin = '1';
SELECT o.k, p.ctid FROM fs.others o, fs.parts p WHERE p.k = o.k FOR UPDATE OF o;
CREATE TABLE fs.base (_id int, v int);
CREATE FOREIGN TABLE fs.kind () INHERITS (fs.base) SERVER docshard OPTIONS (namespace 'fs.kind');
INSERT INTO fs.base VALUES (1, 1);
INSERT INTO fs.kind VALUES (2, 2);
UPDATE fs.base b SET v = b.v + q.v FROM fs.base q WHERE q._id <> b._id;
SELECT * FROM fs.base ORDER BY _id;

-- A number in a path is the name of a field, and not an element of an array.
SELECT docshard.insert_many('fs.paths', ARRAY['{"_id": 1, "a": [5]}', '{"_id": 2, "a": {"0": 5}}', '{"_id": 3}', '{"_id": 4, "a": {"b": [7]}}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fs.paths (_id int, z int OPTIONS (path 'a.0'), y int OPTIONS (path 'a.b.0')) SERVER docshard OPTIONS (namespace 'fs.paths', on_mismatch 'null');
UPDATE fs.paths SET z = 1 WHERE _id = 1;
UPDATE fs.paths SET z = NULL WHERE _id = 1;
UPDATE fs.paths SET z = 1;
ALTER FOREIGN TABLE fs.paths OPTIONS (SET on_mismatch 'error');
UPDATE fs.paths SET z = 1;
ALTER FOREIGN TABLE fs.paths OPTIONS (SET on_mismatch 'null');
UPDATE fs.paths SET z = 1 WHERE _id IN (2, 3, 4) RETURNING *;
UPDATE fs.paths SET y = 1 WHERE _id = 4;
UPDATE fs.paths SET y = z WHERE _id = 2 RETURNING *;
SELECT docshard.find('fs.paths', '{}', '{"sort": {"_id": 1}}');
DROP SCHEMA fs CASCADE;
SELECT docshard.drop_database('fs');
