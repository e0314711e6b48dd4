-- Writing to collections as tables: INSERT, COPY, UPDATE, DELETE, in transactions and through views.
-- Triggers and partitions of PostgreSQL's need these settings.
SET session_replication_role = origin;
SET default_tablespace = '';
SET client_min_messages = warning;
SET timezone = 'UTC';
\set VERBOSITY terse
SELECT docshard.shard_collection('fw.items', '{"k": 1}');
CREATE SCHEMA fw;
CREATE FOREIGN TABLE fw.items (_id int, k int, s text, n numeric, f float8, t timestamptz, d date, b boolean, u uuid, y bytea, o text OPTIONS (type 'objectId'),
                               a text[], j jsonb, x int OPTIONS (path 'm.x'), doc jsonb OPTIONS (path ''))
  SERVER docshard OPTIONS (namespace 'fw.items');
-- Every type is stored as itself. NULL leaves the field out; a column wins over the document.
INSERT INTO fw.items VALUES (1, 1, 'a', 1.50, 2, '2026-01-01 00:00:00.123456', '2026-01-02', true, '00112233-4455-6677-8899-aabbccddeeff', '\x0102',
                             '0123456789ABCDEF01234567', ARRAY['p', NULL], '{"q": [1]}', 7, NULL);
INSERT INTO fw.items (_id, k, doc) VALUES (2, 2, '{"k": 5, "m": {"y": 1}, "z": true}'), (3, 3, NULL);
INSERT INTO fw.items (k, x, doc) VALUES (4, 5, '{"_id": 4, "m": {"x": 1, "y": 2}}') RETURNING _id, k, x, doc;
-- A column wins over one whose path is the beginning of its own, whatever their order.
CREATE FOREIGN TABLE fw.inner (_id int, y int OPTIONS (path 'm.y.z'), x int OPTIONS (path 'm.x'), m jsonb, my jsonb OPTIONS (path 'm.y')) SERVER docshard OPTIONS (namespace 'fw.inner');
INSERT INTO fw.inner VALUES (1, 2, 3, '{"a": 1, "x": 0}', '{"b": 1}');
SELECT docshard.find('fw.inner', '{}');
SELECT docshard.find('fw.items', '{}', '{"sort": {"_id": 1}}');
INSERT INTO fw.items (k) VALUES (5) RETURNING doc ? '_id' AS has_id, _id;
SELECT docshard.delete_one('fw.items', '{"k": 5}') -> 'deletedCount' AS deleted;
INSERT INTO fw.items (_id, k) SELECT n, n FROM generate_series(10, 30) n;
SELECT count(*) FROM fw.items;
INSERT INTO fw.items (_id, k) VALUES (10, 10);
INSERT INTO fw.items (_id, k) VALUES (10, 10), (31, 31) ON CONFLICT DO NOTHING;
INSERT INTO fw.items (_id, k) VALUES (10, 10) ON CONFLICT DO NOTHING RETURNING _id;
INSERT INTO fw.items (_id, k) VALUES (10, 10) ON CONFLICT (_id) DO NOTHING;
SELECT count(*) FROM fw.items;
-- COPY.
COPY fw.items (_id, k, s, a) FROM stdin;
100	100	one	{x,y}
101	101	\N	\N
\.
COPY fw.items (_id, k, s) FROM stdin WITH (FORMAT csv, NULL 'none');
102,102,"a ""quoted"" one"
103,103,none
\.
COPY fw.items (_id, k) FROM stdin;
104	104
104	104
\.
SELECT docshard.find('fw.items', '{"_id": {"$gte": 100}}', '{"sort": {"_id": 1}}');
COPY (SELECT _id, s, a FROM fw.items WHERE _id >= 100 ORDER BY _id) TO stdout;
-- UPDATE: by any condition; NULL unsets; the shard key, too; RETURNING.
UPDATE fw.items SET s = 'b', n = n * 2, a = NULL, x = x + 1 WHERE _id = 1 RETURNING s, n, a, x, doc;
UPDATE fw.items SET s = 's' || k WHERE k BETWEEN 10 AND 12;
UPDATE fw.items SET doc = doc || '{"z": false}', s = 'two' WHERE _id = 2 RETURNING doc;
UPDATE fw.items SET doc = NULL WHERE _id = 2;
UPDATE fw.items SET doc = jsonb_set(doc, '{a}', NULL), s = 'three' WHERE _id = 2;
UPDATE fw.items SET k = 1000 WHERE _id = 3;
UPDATE fw.items SET _id = 5 WHERE _id = 3;
UPDATE fw.items SET s = v.s FROM (VALUES (20, 'first'), (20, 'second'), (21, 'third')) v (id, s) WHERE _id = v.id AND v.s <> 'second' OR _id = v.id AND v.id = 21;
WITH changed AS (UPDATE fw.items SET b = false WHERE _id IN (20, 21) RETURNING _id, s) SELECT * FROM changed ORDER BY _id;
SELECT docshard.find('fw.items', '{"_id": {"$in": [1, 2, 3, 10, 12, 20, 21]}}', '{"sort": {"_id": 1}, "projection": {"u": 0, "y": 0, "o": 0, "t": 0, "d": 0}}');
DELETE FROM fw.items WHERE _id = 20 RETURNING _id, s, doc;
DELETE FROM fw.items USING (VALUES (21), (22)) v (id) WHERE _id = v.id;
SELECT count(*) FROM fw.items;
-- Writes are part of the transaction.
BEGIN;
INSERT INTO fw.items (_id, k) VALUES (200, 200);
SAVEPOINT one;
UPDATE fw.items SET s = 'x' WHERE _id = 200;
DELETE FROM fw.items WHERE _id = 1;
SELECT s, (SELECT count(*) FROM fw.items WHERE _id = 1) FROM fw.items WHERE _id = 200;
ROLLBACK TO one;
SELECT s, (SELECT count(*) FROM fw.items WHERE _id = 1) FROM fw.items WHERE _id = 200;
ROLLBACK;
SELECT count(*) FROM fw.items WHERE _id = 200;
-- Views, triggers, functions.
CREATE VIEW fw.small AS SELECT _id, k, s FROM fw.items WHERE k < 100 WITH CHECK OPTION;
INSERT INTO fw.small VALUES (50, 50, 'v') RETURNING *;
INSERT INTO fw.small VALUES (51, 151, 'v');
UPDATE fw.small SET s = 'w' WHERE _id IN (50, 102);
SELECT _id, s FROM fw.items WHERE _id IN (50, 51, 102) ORDER BY 1;
CREATE FUNCTION fw.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE WARNING '% % %: % %', TG_WHEN, TG_LEVEL, TG_OP, CASE WHEN TG_OP <> 'INSERT' THEN OLD.s END, CASE WHEN TG_OP <> 'DELETE' THEN NEW.s END;
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  IF TG_WHEN = 'BEFORE' THEN NEW.s = NEW.s || '!'; END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER before BEFORE INSERT OR UPDATE OR DELETE ON fw.items FOR EACH ROW EXECUTE FUNCTION fw.note();
CREATE TRIGGER after AFTER INSERT OR UPDATE OR DELETE ON fw.items FOR EACH ROW EXECUTE FUNCTION fw.note();
INSERT INTO fw.items (_id, k, s) VALUES (60, 60, 'new');
UPDATE fw.items SET s = 'newer' WHERE _id = 60;
DELETE FROM fw.items WHERE _id = 60;
COPY fw.items (_id, k, s) FROM stdin;
61	61	copied
\.
SELECT s FROM fw.items WHERE _id = 61;
DROP TRIGGER before ON fw.items;
DROP TRIGGER after ON fw.items;
-- A table without the document, one without a key, and one that stores NULL as null.
CREATE FOREIGN TABLE fw.keyed (_id int, k int, s text) SERVER docshard OPTIONS (namespace 'fw.items', null_as 'null');
INSERT INTO fw.keyed VALUES (70, 70, NULL);
UPDATE fw.keyed SET s = 'keyed' WHERE _id = 61;
DELETE FROM fw.keyed WHERE k = 50;
SELECT docshard.find('fw.items', '{"_id": {"$in": [50, 61, 70]}}', '{"sort": {"_id": 1}}');
CREATE FOREIGN TABLE fw.bare (s text) SERVER docshard OPTIONS (namespace 'fw.items');
\set VERBOSITY default
UPDATE fw.bare SET s = 'x';
-- Values that no document can have.
INSERT INTO fw.items (_id, k, t) VALUES (300, 1, 'infinity');
INSERT INTO fw.items (_id, k, o) VALUES (300, 1, 'x');
INSERT INTO fw.items (_id, k, doc) VALUES (300, 1, '[1]');
INSERT INTO fw.items (_id, k, x, doc) VALUES (300, 1, 2, '{"m": 5}');
INSERT INTO fw.items (_id, k, n) VALUES (300, 1, 1e40 + 1);
SELECT count(*) FROM fw.items WHERE _id = 300;
\set VERBOSITY terse
-- A collection that does not exist is created, as by every insert.
CREATE FOREIGN TABLE fw.fresh (_id int, a int) SERVER docshard OPTIONS (namespace 'fw.fresh');
INSERT INTO fw.fresh VALUES (1, 1);
SELECT docshard.find('fw.fresh');
-- TRUNCATE deletes all documents, as part of the transaction.
BEGIN;
TRUNCATE fw.fresh;
SELECT count(*) FROM fw.fresh;
ROLLBACK;
SELECT count(*) FROM fw.fresh;
TRUNCATE fw.fresh, fw.keyed RESTART IDENTITY CASCADE;
SELECT (SELECT count(*) FROM fw.fresh), (SELECT count(*) FROM fw.items), docshard.count_documents('fw.items');
-- A table follows its collection to another name. Without its collection it cannot be read.
SELECT docshard.rename_collection('fw.fresh', 'fw."old"');
SELECT docshard.insert_one('fw."old"', '{"_id": 7, "a": 8}') ->> 'insertedId' AS inserted;
TABLE fw.fresh;
SELECT ftoptions FROM pg_foreign_table WHERE ftrelid = 'fw.fresh'::regclass;
SELECT docshard.drop_collection('fw."old"');
\set VERBOSITY default
TABLE fw.fresh;
EXPLAIN TABLE fw.fresh;
UPDATE fw.fresh SET a = 1;
TRUNCATE fw.fresh;
\set VERBOSITY terse
INSERT INTO fw.fresh VALUES (2, 2);
TABLE fw.fresh;
-- Partitions.
CREATE TABLE fw.parted (_id int, k int) PARTITION BY RANGE (_id);
CREATE TABLE fw.parted_local PARTITION OF fw.parted FOR VALUES FROM (0) TO (10);
CREATE FOREIGN TABLE fw.parted_docs PARTITION OF fw.parted FOR VALUES FROM (10) TO (100) SERVER docshard OPTIONS (namespace 'fw.parted');
INSERT INTO fw.parted SELECT n, n FROM generate_series(8, 12) n;
UPDATE fw.parted SET k = k + 1;
SELECT tableoid::regclass, * FROM fw.parted ORDER BY _id;
DELETE FROM fw.parted WHERE _id > 8;
SELECT docshard.count_documents('fw.parted'), (SELECT count(*) FROM fw.parted);
-- The policies of a partitioned table are checked in its foreign partitions, too, also for rows that an UPDATE moves there.
INSERT INTO fw.parted VALUES (8, 1), (10, 1), (11, 30);
CREATE ROLE regress_docshard_fw;
SELECT docshard.grant_access('regress_docshard_fw', '{"write": "fw.parted"}') ->> 'ok' AS granted;
GRANT USAGE ON SCHEMA fw TO regress_docshard_fw;
GRANT ALL ON fw.parted TO regress_docshard_fw;
ALTER TABLE fw.parted ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON fw.parted USING (k < 20);
SET ROLE regress_docshard_fw;
INSERT INTO fw.parted VALUES (12, 50);
INSERT INTO fw.parted VALUES (10, 50);
INSERT INTO fw.parted SELECT n, n FROM generate_series(18, 20) n;
INSERT INTO fw.parted VALUES (12, 2), (13, 3);
UPDATE fw.parted SET k = 50 WHERE _id = 10;
UPDATE fw.parted SET k = k + 19;
UPDATE fw.parted SET _id = 14, k = 50 WHERE _id = 8;
UPDATE fw.parted SET _id = 14 WHERE _id = 8;
UPDATE fw.parted SET k = k + 1 WHERE _id < 13;
SELECT * FROM fw.parted ORDER BY _id;
RESET ROLE;
SELECT * FROM fw.parted ORDER BY _id;
-- Large rows: PostgreSQL hands over fewer of them at once. They are rows of several partitions, of which some exist already.
CREATE FOREIGN TABLE fw.parted_large PARTITION OF fw.parted FOR VALUES FROM (100) TO (1000) SERVER docshard OPTIONS (namespace 'fw.large');
ALTER TABLE fw.parted ADD t text;
INSERT INTO fw.parted SELECT n, n, repeat('x', 1000000) FROM generate_series(90, 112) n;
INSERT INTO fw.parted SELECT n, n, repeat('y', 3000000) FROM generate_series(111, 113) n ON CONFLICT DO NOTHING;
INSERT INTO fw.parted_large (_id, k, t) SELECT n, n, repeat('z', CASE WHEN n % 50 = 0 THEN 9000000 ELSE 10 END) FROM generate_series(113, 350) n ON CONFLICT DO NOTHING;
SELECT tableoid::regclass, left(t, 1), count(*), sum(length(t)) FROM fw.parted WHERE t IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2;
SELECT docshard.revoke_access('regress_docshard_fw', '{"write": "fw.parted"}') ->> 'ok' AS revoked;
DROP OWNED BY regress_docshard_fw;
DROP ROLE regress_docshard_fw;
DROP SCHEMA fw CASCADE;
SELECT docshard.drop_database('fw');
