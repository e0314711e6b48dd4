-- Collections as tables: definitions, values, conditions that go down, orders, limits, and what is refused.
SET client_min_messages = warning;
\set VERBOSITY terse
SELECT docshard.shard_collection('ft.inbox', '{"recipient": 1, "sent": 1}');
SELECT docshard.create_index('ft.inbox', '{"likes": 1}');
SELECT docshard.insert_many('ft.inbox', array_agg(jsonb_build_object(
         '_id', n, 'recipient', 'r' || n % 5, 'sent', docshard.date('2026-01-01 00:00:00+00'::timestamptz + n * interval '1 hour'),
         'likes', n % 7, 'tags', jsonb_build_array('a', 'b' || n % 3), 'meta', jsonb_build_object('x', n)))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 100) n;
CREATE SCHEMA ft;
CREATE FOREIGN TABLE ft.inbox (_id int NOT NULL, recipient text NOT NULL, sent timestamptz NOT NULL, likes int, tags text[],
                               x int OPTIONS (path 'meta.x'), doc jsonb OPTIONS (path ''))
  SERVER docshard OPTIONS (namespace 'ft.inbox');
\d ft.inbox
SELECT * FROM ft.inbox WHERE _id <= 2 ORDER BY _id;
SELECT count(*), sum(likes), min(sent AT TIME ZONE 'UTC') FROM ft.inbox;
SELECT tableoid::regclass, * FROM ft.inbox WHERE _id = 7;

-- What goes to the shards.
-- As versions of PostgreSQL name initial plans differently, and later ones sort the input of ordered aggregates.
CREATE FUNCTION ft.plan(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
    RETURN NEXT regexp_replace(line, ' \(returns \$\d\)', '');
  END LOOP;
END $$;
SELECT count(set_config(name, 'off', false)) < 2 AS set FROM pg_settings WHERE name = 'enable_presorted_aggregate';
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE recipient = ''r1'' ORDER BY sent DESC LIMIT 3');
SELECT _id FROM ft.inbox WHERE recipient = 'r1' ORDER BY sent DESC LIMIT 3;
SELECT _id FROM ft.inbox WHERE recipient = 'r1' ORDER BY sent DESC LIMIT 3 OFFSET 2;
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE recipient IN (''r1'', ''r2'') AND sent >= ''2026-01-02 00:00:00.0005+00''');
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE likes BETWEEN 2 AND 4 AND NOT (x = 5 OR x IS NULL)');
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE recipient LIKE ''r%1'' AND x <> 5 AND x NOT IN (6, 7)');
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE doc @> ''{"tags": ["b1"], "meta": {"x": 4}}'' AND doc ->> ''recipient'' = ''r4'' AND (doc #>> ''{meta,x}'')::int < 9 AND doc ? ''likes''');
SELECT _id FROM ft.inbox WHERE doc @> '{"tags": ["b1"], "meta": {"x": 4}}' AND doc ->> 'recipient' = 'r4' AND (doc #>> '{meta,x}')::int < 9 AND doc ? 'likes';
SELECT count(*) FROM ft.inbox WHERE likes = 1 AND likes = 2;
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE likes = NULL::int');
-- These stay here: a function, an order that MongoDB does not have, a limit above a condition that is evaluated here.
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE length(recipient) = 2 LIMIT 3');
SELECT ft.plan('SELECT _id FROM ft.inbox ORDER BY likes LIMIT 3');
SELECT ft.plan('SELECT _id FROM ft.inbox ORDER BY likes NULLS FIRST LIMIT 3');
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE likes > 3 ORDER BY likes LIMIT 3');
SELECT ft.plan('SELECT likes, count(*) FROM ft.inbox GROUP BY likes LIMIT 3');
SELECT likes, count(*) FROM ft.inbox GROUP BY likes ORDER BY likes LIMIT 3;
-- Parameters.
PREPARE newest(text, int) AS SELECT _id FROM ft.inbox WHERE recipient = $1 ORDER BY sent DESC LIMIT $2;
SET plan_cache_mode = force_generic_plan;
EXECUTE newest('r1', 2);
EXECUTE newest('r2', 0);
EXECUTE newest('r2', NULL) \g (format=unaligned tuples_only)
EXECUTE newest('r2', -1);
EXECUTE newest(NULL, 2);
EXPLAIN (COSTS OFF) EXECUTE newest('r3', 2);
RESET plan_cache_mode;
-- The values of an outer table reach the shards one by one, of an array all at once.
CREATE TABLE ft.people (name text PRIMARY KEY);
INSERT INTO ft.people VALUES ('r1'), ('r3'), ('r9');
ANALYZE ft.people;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SELECT ft.plan('SELECT name, x.n FROM ft.people, LATERAL (SELECT count(*) AS n FROM ft.inbox WHERE recipient = name) x');
SELECT name, x.n FROM ft.people, LATERAL (SELECT count(*) AS n FROM ft.inbox WHERE recipient = name) x ORDER BY name;
RESET enable_hashjoin;
RESET enable_mergejoin;
CREATE TABLE ft.many AS SELECT 'r' || n % 7 AS name, n FROM generate_series(1, 1100) n;
ANALYZE ft.many;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SELECT ft.plan('SELECT * FROM ft.many JOIN ft.inbox ON recipient = name AND likes > n % 5');
SELECT ft.plan('SELECT * FROM ft.many LEFT JOIN ft.inbox ON recipient = name WHERE likes IS NULL');
SELECT count(*), sum(_id), count(DISTINCT n) FROM ft.many JOIN ft.inbox ON recipient = name AND likes > n % 5;
SELECT count(*) FROM ft.many LEFT JOIN ft.inbox ON recipient = name WHERE likes IS NULL;
RESET enable_hashjoin;
RESET enable_mergejoin;
SELECT ft.plan('SELECT count(*) FROM ft.inbox WHERE recipient = ANY (ARRAY(SELECT name FROM ft.people))');
SELECT count(*) FROM ft.inbox WHERE recipient = ANY (ARRAY(SELECT name FROM ft.people));

-- Groups.
SELECT ft.plan('SELECT count(*) FROM ft.inbox');
SELECT ft.plan('SELECT likes, count(*), count(x), sum(x), avg(x), min(sent), max(recipient COLLATE "C") FROM ft.inbox WHERE recipient = ''r1'' GROUP BY likes HAVING count(*) > 2 ORDER BY likes');
SELECT likes, count(*), count(x), sum(x), avg(x), min(sent) AT TIME ZONE 'UTC' AS min, max(recipient COLLATE "C") FROM ft.inbox WHERE recipient = 'r1' GROUP BY likes HAVING count(*) > 2 ORDER BY likes;
SELECT upper(recipient), count(*) + 1 AS more FROM ft.inbox WHERE likes = 3 GROUP BY recipient ORDER BY count(*) DESC, 1;
SELECT ft.plan('SELECT DISTINCT recipient, likes FROM ft.inbox WHERE likes > 4');
SELECT DISTINCT likes FROM ft.inbox WHERE likes > 4 ORDER BY 1;
SELECT count(x), sum(x), avg(x), min(x), max(recipient COLLATE "C"), count(*) FROM ft.inbox WHERE recipient = 'r9';
SELECT count(*), sum(x) FROM ft.inbox WHERE recipient = NULL;
SELECT likes, count(*) FROM ft.inbox WHERE recipient = 'r9' GROUP BY 1;
SELECT name, (SELECT count(*) FROM ft.inbox WHERE recipient = name) FROM ft.people ORDER BY 1;
-- These are grouped here: an order of strings that shards do not have, a distinct argument, a filter, an order, a function, a condition that is evaluated here.
SELECT ft.plan('SELECT min(recipient COLLATE ucs_basic) FROM ft.inbox');
SELECT ft.plan('SELECT count(DISTINCT likes), sum(x) FILTER (WHERE likes = 1), array_agg(x ORDER BY x) FROM ft.inbox');
SELECT ft.plan('SELECT length(recipient), count(*) FROM ft.inbox GROUP BY 1');
SELECT ft.plan('SELECT tags, count(*) FROM ft.inbox GROUP BY 1');
SELECT ft.plan('SELECT recipient, likes, count(*) FROM ft.inbox GROUP BY ROLLUP (1, 2)');
SELECT ft.plan('SELECT count(*) FROM ft.inbox WHERE recipient LIKE ''r1%''');

-- Types, and values that do not fit.
SELECT docshard.insert_many('ft.types', ARRAY[
  '{"_id": 1, "i": 5.0, "f": 0.5, "n": {"$numberDecimal": "1.50"}, "s": "a", "d": {"$date": "2026-02-03T00:00:00Z"}, "t": {"$date": "2026-02-03T04:05:06.789Z"}, "u": {"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}, "y": {"$binary": {"base64": "AQI=", "subType": "00"}}, "o": {"$oid": "0123456789abcdef01234567"}, "p": {"$oid": "0123456789abcdef01234567"}, "a": [1, null, 3], "j": {"x": [1]}, "b": true}',
  '{"_id": 2}',
  '{"_id": 3, "i": null, "j": null, "a": [], "s": ""}',
  '{"_id": 4, "i": "five", "f": "x", "n": [], "s": 5, "d": {"$date": "2026-02-03T04:05:06Z"}, "t": "2026-02-03", "u": "00112233-4455-6677-8899-aabbccddeeff", "y": "x", "o": "0123456789abcdef01234567", "p": 5, "a": "1", "j": 5, "b": 1}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE ft.types (_id int, i int, f real, n numeric, s text, d date, t timestamp, u uuid, y bytea, o text OPTIONS (type 'objectId'),
                               p bytea OPTIONS (type 'objectId'), a int[], j jsonb, j2 json OPTIONS (path 'j'), b boolean)
  SERVER docshard OPTIONS (namespace 'ft.types');
\x on
SELECT * FROM ft.types WHERE _id < 4 ORDER BY _id;
\x off
SELECT i FROM ft.types WHERE _id = 4;
SELECT j FROM ft.types WHERE _id = 4;
SELECT count(*) FROM ft.types WHERE i IS NOT NULL;
SELECT count(*) FROM ft.types WHERE i = 5;
SELECT ft.plan('SELECT count(i), sum(i) FROM ft.types');
SELECT sum(i) FROM ft.types;
SELECT sum(i) FROM ft.types WHERE _id < 4;
SELECT count(*) FROM ft.types;
SELECT count(s) FROM ft.types;
SELECT d, count(*) FROM ft.types GROUP BY 1;
SELECT d, t, o, count(*) FROM ft.types WHERE _id < 4 GROUP BY 1, 2, 3 ORDER BY 4;
SELECT docshard.insert_one('ft.types', '{"_id": 5, "i": [5, 6]}') IS NOT NULL AS inserted;
SELECT count(*) FROM ft.types WHERE i = 5 AND _id <> 4;
SELECT docshard.delete_one('ft.types', '{"_id": 5}') -> 'deletedCount' AS deleted;
ALTER FOREIGN TABLE ft.types OPTIONS (ADD on_mismatch 'null');
SELECT _id, i, f, n, s, d, t, u, y, o, p, a, j, b FROM ft.types WHERE _id = 4;
SELECT _id FROM ft.types WHERE i IS NULL ORDER BY _id;
SELECT count(i), sum(i), count(*) FROM ft.types;
SELECT ft.plan('SELECT count(*) FROM ft.types');
SELECT ft.plan('SELECT count(i) FROM ft.types');
SELECT _id FROM ft.types WHERE o = '0123456789abcdef01234567' AND p = '\x0123456789abcdef01234567' AND u = '00112233-4455-6677-8899-AABBCCDDEEFF' AND t > '-infinity' AND d < 'infinity';
SELECT ft.plan('SELECT _id FROM ft.types WHERE o = ''0123456789abcdef01234567'' AND t <= ''2026-02-03 04:05:06.7894''');
SELECT ft.plan('SELECT _id FROM ft.types WHERE o = ''x''');
-- numeric(p, s) rounds, and has a limit.
SELECT docshard.insert_many('ft.rounded', ARRAY['{"_id": 1, "n": 12345}', '{"_id": 2, "n": 1.25}', '{"_id": 3, "n": 99.95}', '{"_id": 4, "n": {"$numberDecimal": "-99.94"}}',
  '{"_id": 5, "n": {"$numberDouble": "Infinity"}}', '{"_id": 6, "n": {"$numberDouble": "NaN"}}', '{"_id": 7, "n": 1e300}', '{"_id": 8, "n": 0.001}', '{"_id": 9, "n": 99}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE ft.rounded (_id int, n numeric(3, 1)) SERVER docshard OPTIONS (namespace 'ft.rounded');
CREATE FOREIGN TABLE ft.rounded_null (_id int, n numeric(3, 1), a numeric(3, -2) OPTIONS (path 'n'), b numeric(2, 4) OPTIONS (path 'n')) SERVER docshard OPTIONS (namespace 'ft.rounded', on_mismatch 'null');
SELECT * FROM ft.rounded WHERE _id = 1;
TABLE ft.rounded_null ORDER BY _id;
CREATE VIEW ft.some WITH (security_barrier) AS SELECT * FROM ft.rounded WHERE _id + 0 = 2;
TABLE ft.some;
-- A condition that is nested deeply, and conditions with values that filters compare in another way.
SELECT ft.plan('SELECT _id FROM ft.inbox WHERE ' || repeat('(likes = 1 OR (x = 2 AND ', 100) || 'x = 3' || repeat('))', 100)) LIMIT 1;
SELECT docshard.insert_many('ft.special', ARRAY['{"_id": 1, "a": {"$code": "f", "$scope": {}}}', '{"_id": 2, "a": {"$undefined": true}}',
  '{"_id": 3, "a": {"$regularExpression": {"pattern": "b", "options": ""}}}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE ft.special (_id int, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'ft.special');
SELECT _id FROM ft.special WHERE doc @> '{"a": {"$code": "f"}}' OR doc @> '{"a": {"$undefined": true}}' OR doc @> '{"a": {"$regularExpression": {"pattern": "(", "options": ""}}}' ORDER BY 1;
-- Several conditions on one path, of which one is a value that JSON lacks.
CREATE FOREIGN TABLE ft.oids (_id int, o text OPTIONS (type 'objectId'), doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'ft.types');
SELECT _id FROM ft.oids WHERE doc @> '{"o": {"$oid": "0123456789abcdef01234567"}}' AND o = '0123456789abcdef01234567';
SELECT _id FROM ft.oids WHERE o = '000000000000000000000001' AND doc @> '{"o": {"$oid": "0123456789abcdef01234567"}}';
SELECT _id FROM ft.special WHERE doc @> '{"a": {"$regularExpression": {"pattern": "b", "options": ""}}}' AND doc ->> 'a' <> 'x' AND doc ->> 'a' IS NOT NULL;
-- An array on the way to a column.
SELECT docshard.insert_one('ft.nested', '{"_id": 1, "a": [{"b": 1}]}') IS NOT NULL AS inserted;
CREATE FOREIGN TABLE ft.nested (b int OPTIONS (path 'a.b')) SERVER docshard OPTIONS (namespace 'ft.nested');
SELECT * FROM ft.nested;
-- A collection with a collation of its own, a view, and one that does not exist.
SELECT docshard.create_collection('ft.collated', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.insert_many('ft.collated', ARRAY['{"_id": 1, "s": "a"}', '{"_id": 2, "s": "A"}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE ft.collated (_id int, s text) SERVER docshard OPTIONS (namespace 'ft.collated');
SELECT _id FROM ft.collated WHERE s = 'a';
SELECT docshard.create_collection('ft.liked', '{"viewOn": "inbox", "pipeline": [{"$match": {"likes": {"$gt": 5}}}]}');
CREATE FOREIGN TABLE ft.liked (_id int, likes int, recipient text) SERVER docshard OPTIONS (namespace 'ft.liked');
SELECT ft.plan('SELECT recipient, count(*) FROM ft.liked WHERE _id < 50 GROUP BY 1 ORDER BY 1');
SELECT recipient, count(*) FROM ft.liked WHERE _id < 50 GROUP BY 1 ORDER BY 1;
SELECT s, count(*) FROM ft.collated GROUP BY s ORDER BY s COLLATE "C";
CREATE FOREIGN TABLE ft.missing (_id int) SERVER docshard OPTIONS (namespace 'ft.missing');
SELECT * FROM ft.missing;

-- Statistics of a sample.
ANALYZE ft.inbox;
SELECT attname, null_frac, n_distinct, most_common_vals FROM pg_stats WHERE schemaname = 'ft' AND tablename = 'inbox' AND attname IN ('_id', 'recipient', 'tags') ORDER BY 1;
ANALYZE ft.types (i, s);
SELECT attname, null_frac FROM pg_stats WHERE schemaname = 'ft' AND tablename = 'types' ORDER BY 1;
ANALYZE ft.liked;
SELECT reltuples FROM pg_class WHERE oid = 'ft.liked'::regclass;
ANALYZE ft.missing;

-- What is refused.
\set VERBOSITY default
CREATE FOREIGN TABLE ft.bad (_id int) SERVER docshard;
CREATE FOREIGN TABLE ft.bad (_id int) SERVER docshard OPTIONS (namespace 'nodot');
CREATE FOREIGN TABLE ft.bad (_id int) SERVER docshard OPTIONS (namespace 'a.b', colour 'red');
CREATE FOREIGN TABLE ft.bad (_id int) SERVER docshard OPTIONS (namespace 'a.b', on_mismatch 'ignore');
CREATE FOREIGN TABLE ft.bad (_id int) SERVER docshard OPTIONS (namespace 'a.b', null_as '0');
CREATE FOREIGN TABLE ft.bad (_id int OPTIONS (path 'a..b')) SERVER docshard OPTIONS (namespace 'a.b');
CREATE FOREIGN TABLE ft.bad (_id int OPTIONS (path '$a')) SERVER docshard OPTIONS (namespace 'a.b');
CREATE FOREIGN TABLE ft.bad (_id int OPTIONS (type 'string')) SERVER docshard OPTIONS (namespace 'a.b');
CREATE SERVER another FOREIGN DATA WRAPPER docshard OPTIONS (host 'localhost');
CREATE USER MAPPING FOR CURRENT_USER SERVER docshard OPTIONS (user 'x');
CREATE FOREIGN TABLE ft.bad (a inet, b int) SERVER docshard OPTIONS (namespace 'ft.types');
SELECT b FROM ft.bad WHERE false;
SELECT a FROM ft.bad;
DROP FOREIGN TABLE ft.bad;
CREATE FOREIGN TABLE ft.bad (a text OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'ft.types');
SELECT a FROM ft.bad;
SELECT * FROM ft.inbox WHERE _id = 1 FOR UPDATE;
SELECT ctid FROM ft.inbox;
SELECT count(*) FROM ft.inbox WHERE xmin::text <> '1';
DELETE FROM ft.inbox WHERE ctid IN (SELECT ctid FROM ft.inbox LIMIT 1);
INSERT INTO ft.liked VALUES (1);
TRUNCATE ft.liked;

-- A reader's condition is not evaluated before one of a view with a security barrier: it would count hidden rows. The view's own conditions go down.
CREATE VIEW ft.mine WITH (security_barrier) AS SELECT * FROM ft.inbox WHERE recipient || '' = 'r1' AND likes >= 0;
CREATE VIEW ft.hers WITH (security_barrier) AS SELECT * FROM ft.inbox WHERE likes = 3;
EXPLAIN (COSTS OFF) SELECT count(*) FROM ft.mine WHERE _id = 5;
EXPLAIN (COSTS OFF) SELECT count(*) FROM ft.hers WHERE _id = 5;
EXPLAIN (COSTS OFF) SELECT count(*) FROM ft.mine m, ft.hers h WHERE m._id = 5 AND h._id = 5;
-- Later versions of PostgreSQL leave out the constant key of the group.
SELECT line FROM ft.plan('SELECT count(*) FROM (SELECT _id FROM ft.mine GROUP BY _id) m WHERE _id = 5') AS line WHERE line NOT LIKE '%Group Key%';
DROP VIEW ft.mine, ft.hers;
-- Rows that a view omits do not count for its LIMIT, and undefined is not NULL in groups of several keys.
SELECT docshard.insert_many('fl.c', ARRAY['{"_id": 1, "v": [1]}', '{"_id": 2, "v": [2]}', '{"_id": 3, "v": 3}', '{"_id": 4, "v": 4}', '{"_id": 5, "v": 50}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE SCHEMA fl;
CREATE FOREIGN TABLE fl.c (_id int NOT NULL, v int, h int) SERVER docshard OPTIONS (namespace 'fl.c');
CREATE VIEW fl.low WITH (security_barrier) AS SELECT _id, v FROM fl.c WHERE v < 10 ORDER BY _id LIMIT 2;
CREATE ROLE regress_docshard_fl;
GRANT USAGE ON SCHEMA fl TO regress_docshard_fl;
GRANT SELECT ON fl.low TO regress_docshard_fl;
SET ROLE regress_docshard_fl;
SELECT * FROM fl.low;
SELECT count(*) FROM fl.low;
RESET ROLE;
DROP OWNED BY regress_docshard_fl;
DROP ROLE regress_docshard_fl;
SELECT docshard.delete_many('fl.c', '{"_id": {"$lt": 3}}') -> 'deletedCount' AS deleted, docshard.insert_one('fl.c', '{"_id": 6, "v": null}') IS NOT NULL AS inserted;
SELECT v, h, count(*) FROM fl.c GROUP BY v, h ORDER BY v;
SELECT docshard.insert_one('fl.c', '{"_id": 7, "v": {"$undefined": true}}') IS NOT NULL AS inserted;
SELECT v, h, count(*) FROM fl.c GROUP BY v, h ORDER BY v;
SELECT DISTINCT h, v FROM fl.c;
DROP SCHEMA fl CASCADE;
SELECT docshard.drop_database('fl');
-- An array has a limit.
SELECT count(*) FROM ft.inbox WHERE _id = ANY (ARRAY(SELECT generate_series(1, 100000)));
SELECT count(*) FROM ft.inbox WHERE _id = ANY (ARRAY(SELECT generate_series(1, 100001)));
SELECT count(*) FROM ft.inbox WHERE _id IN (SELECT unnest(ARRAY(SELECT generate_series(1, 200000))));

-- Foreign tables for all collections of a database.
\set VERBOSITY terse
SET client_min_messages = notice;
SELECT docshard.insert_many('ft.a_collection_with_a_name_that_is_longer_than_postgresql_allows_for_tables', ARRAY['{"_id": 1, "a": 1, "doc": 2, "x.y": 3}', '{"_id": 2, "a": 2.5, "o": {"$oid": "0123456789abcdef01234567"}}', '{"_id": 3, "a": "x", "t": ["x"]}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE SCHEMA imported;
IMPORT FOREIGN SCHEMA ft EXCEPT (types, nested, liked) FROM SERVER docshard INTO imported OPTIONS (on_mismatch 'null');
\d imported.*
SELECT a, o, t, doc_2 ->> '_id' AS id FROM imported.a_collection_with_a_name_that_is_longer_than_postgresql_allows_ ORDER BY doc_2 ->> '_id';
IMPORT FOREIGN SCHEMA ft LIMIT TO (types) FROM SERVER docshard INTO imported;
SELECT count(*) FROM imported.types WHERE _id < 4;
IMPORT FOREIGN SCHEMA nowhere FROM SERVER docshard INTO imported;
IMPORT FOREIGN SCHEMA ft FROM SERVER docshard INTO imported OPTIONS (colour 'red');
DROP SCHEMA imported CASCADE;
CREATE SCHEMA imported;
SELECT docshard.import_database('ft', 'imported');
SELECT count(*) FROM imported.inbox WHERE recipient = 'r1';
SELECT docshard.import_database('ft', 'nowhere');
SELECT docshard.import_database('ft', '');
SELECT docshard.insert_one('fi.odd', '{"_id": 1, "ctid": 5, "xmin": "x"}') IS NOT NULL AS inserted;
SELECT docshard.create_collection('fi.failing', '{"viewOn": "odd", "pipeline": [{"$project": {"a": {"$toInt": "$xmin"}}}]}');
IMPORT FOREIGN SCHEMA fi FROM SERVER docshard INTO imported;
SELECT _id, ctid_2, xmin_2 FROM imported.odd;
IMPORT FOREIGN SCHEMA fi LIMIT TO (failing) FROM SERVER docshard INTO imported;
-- The sample is of all documents, not of those that were stored first.
SELECT docshard.insert_many('fi.grown', array_agg(CASE WHEN n > 1500 THEN '{"later": 1}' ELSE '{"first": 1}' END::jsonb)) -> 'insertedCount' AS inserted FROM generate_series(1, 3000) n;
IMPORT FOREIGN SCHEMA fi LIMIT TO (grown) FROM SERVER docshard INTO imported;
SELECT attname FROM pg_attribute WHERE attrelid = 'imported.grown'::regclass AND attnum > 0 ORDER BY attnum;
SELECT docshard.drop_database('fi');

SET client_min_messages = warning;
DROP SCHEMA imported, ft CASCADE;
SELECT docshard.drop_database('ft');
