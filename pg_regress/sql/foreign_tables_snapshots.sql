-- A foreign table never shows a reader what was written after its snapshot.
SET session_replication_role = origin;
SET default_tablespace = '';
SET client_min_messages = warning;
\set SHOW_CONTEXT never
CREATE SCHEMA fn;
CREATE FOREIGN TABLE fn.z (_id int, v int) SERVER docshard OPTIONS (namespace 'fn.z');
CREATE TABLE fn.p (_id int, v int);
CREATE TABLE fn.local (a int);
INSERT INTO fn.z SELECT g, 0 FROM generate_series(1, 1200) g;
INSERT INTO fn.p TABLE fn.z;
ANALYZE fn.p;
SELECT docshard.create_collection('fn.view', '{"viewOn": "z"}');
CREATE FOREIGN TABLE fn.view (_id int, v int) SERVER docshard OPTIONS (namespace 'fn.view');

-- A function that is not volatile has the snapshot of the statement that calls it.
CREATE FUNCTION fn.count() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM fn.z';
CREATE FUNCTION fn.count_now() RETURNS bigint VOLATILE LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT count(*) FROM fn.z); END$$;
CREATE FUNCTION fn.value(i int) RETURNS int STABLE LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT v FROM fn.z WHERE _id = i); END$$;
DELETE FROM fn.z WHERE _id BETWEEN 101 AND 102 RETURNING _id, fn.count();
UPDATE fn.z SET v = 5 WHERE _id BETWEEN 101 AND 105 RETURNING _id, fn.value(101);
WITH w AS (UPDATE fn.z SET v = 8 WHERE _id BETWEEN 101 AND 105 RETURNING 1) SELECT fn.value(101), count(*) FROM w;
DELETE FROM fn.z WHERE _id < 3 RETURNING _id, (SELECT count(*) FROM fn.view);
SELECT docshard.delete_one('fn.z', '{"_id": 1}') IS NOT NULL AS deleted, fn.count();
SELECT count(*) FROM fn.z WHERE v = 0;
UPDATE fn.z SET v = 0 WHERE _id = 1 RETURNING fn.count_now();
SELECT fn.count() FROM fn.z WHERE _id = 1;

-- So has a loop, a cursor, and a query whose rows fire triggers, while they have not begun to read a table.
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
DO $$DECLARE r record; BEGIN FOR r IN SELECT p._id, z.v FROM fn.p JOIN fn.z ON z._id = p._id LOOP UPDATE fn.z SET v = 1 WHERE _id = 1201 - r._id; END LOOP; END$$;
DO $$DECLARE r record; n int := 0; BEGIN FOR r IN SELECT * FROM fn.z ORDER BY _id LOOP UPDATE fn.z SET v = 1 WHERE _id = r._id + 600; n := n + r.v; END LOOP; RAISE WARNING 'saw % of its writes', n; END$$;
UPDATE fn.z SET v = 0;
CREATE FUNCTION fn.later() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN UPDATE fn.z SET v = 77 WHERE _id = NEW.a + 1000; RETURN NEW; END$$;
CREATE TRIGGER later BEFORE INSERT ON fn.local FOR EACH ROW EXECUTE FUNCTION fn.later();
INSERT INTO fn.local SELECT p._id FROM fn.p LEFT JOIN fn.z ON z._id = p._id WHERE coalesce(z.v, 0) = 0;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;
INSERT INTO fn.local SELECT _id FROM fn.z WHERE _id < 4 RETURNING *;
BEGIN;
DECLARE begun CURSOR FOR SELECT _id FROM fn.z ORDER BY _id;
FETCH 1 FROM begun;
DECLARE c CURSOR FOR SELECT count(*) FROM fn.z;
SAVEPOINT before;
DELETE FROM fn.z WHERE _id <= 100;
SELECT count(*) FROM fn.z;
FETCH 1 FROM begun;
ROLLBACK TO before;
-- What was rolled back is not seen.
FETCH c;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT count(*) FROM fn.z;
SAVEPOINT innermost;
DELETE FROM fn.z WHERE _id <= 100;
RELEASE innermost;
FETCH c;
ROLLBACK;
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT count(*) FROM fn.local, fn.z;
SELECT docshard.insert_one('fn.z', '{"_id": 0, "v": 0}') IS NOT NULL AS inserted;
COMMIT;
-- Each statement of a transaction sees those before it, also under REPEATABLE READ.
BEGIN ISOLATION LEVEL REPEATABLE READ;
DELETE FROM fn.z WHERE _id <= 100;
SELECT count(*), fn.count(), fn.count_now() FROM fn.view;
SELECT docshard.delete_many('fn.z', '{"_id": {"$lte": 200}}') IS NOT NULL AS deleted;
SELECT count(*), fn.count(), fn.count_now() FROM fn.view;
ROLLBACK;
SELECT count(*), sum(v) FROM fn.z;
DROP SCHEMA fn CASCADE;
SELECT docshard.drop_database('fn');
