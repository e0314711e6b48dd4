-- Conditions and values of foreign tables at the edges of their types mean what they mean for plain tables.
SET session_replication_role = origin;
SET default_tablespace = '';
SET client_min_messages = warning;
CREATE SCHEMA fv;
CREATE FUNCTION fv.deep(levels int) RETURNS jsonb LANGUAGE sql AS $$SELECT (repeat('{"a": ', levels) || '1' || repeat('}', levels))::jsonb$$;

-- A text of a document is compared under the collation of the operator, which may take different strings for equal ones.
CREATE COLLATION fv.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
SELECT docshard.insert_many('fv.c', ARRAY['{"_id": 1, "a": "X", "n": "5"}', '{"_id": 2, "a": "x", "n": 5}', '{"_id": 3, "a": "y"}']::jsonb[]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fv.c (_id int, a text, doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'fv.c');
SELECT _id FROM fv.c WHERE (doc ->> 'a') COLLATE fv.ci = 'x' ORDER BY 1;
SELECT _id FROM fv.c WHERE (doc #>> '{a}') COLLATE fv.ci IN ('x', 'Y') ORDER BY 1;
SELECT _id FROM fv.c WHERE a COLLATE fv.ci = 'x' ORDER BY 1;
SELECT _id FROM fv.c WHERE (doc ->> 'n')::int = 5 AND (doc ->> 'a') COLLATE fv.ci = 'x' ORDER BY 1;
EXPLAIN (COSTS OFF) SELECT _id FROM fv.c WHERE (doc ->> 'a') COLLATE fv.ci = 'x';
EXPLAIN (COSTS OFF) SELECT _id FROM fv.c WHERE doc ->> 'a' = 'x' AND doc ->> 'a' IN ('x', 'y') AND (doc ->> 'n')::int = 5;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SELECT count(*) FROM (VALUES ('x'), ('Y')) l (n) JOIN fv.c ON (c.doc ->> 'a') COLLATE fv.ci = l.n;
RESET enable_hashjoin;
RESET enable_mergejoin;
DELETE FROM fv.c WHERE (doc ->> 'a') COLLATE fv.ci = 'x';
SELECT _id FROM fv.c;

-- A jsonb is a document as the functions take it: no number beyond a double.
CREATE FOREIGN TABLE fv.y (_id int, j jsonb, js jsonb[], doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'fv.y');
INSERT INTO fv.y (_id, j) VALUES (1, '{"a": 1e400}');
INSERT INTO fv.y (_id, js) VALUES (1, ARRAY['-1e400']::jsonb[]);
INSERT INTO fv.y (_id, doc) VALUES (1, '{"a": [1e400]}');
INSERT INTO fv.y (_id, j) VALUES (1, fv.deep(300));
INSERT INTO fv.y (_id, j, js) VALUES (1, '{"a": 1e30, "b": {"$numberDecimal": "1e400"}}', ARRAY['1.5', '{"$date": {"$numberLong": "0"}}']::jsonb[]) RETURNING j, js;
UPDATE fv.y SET j = '1e400';
UPDATE fv.y SET j = '1e400' WHERE _id = 1 RETURNING j;
UPDATE fv.y SET doc = '{"_id": 1, "a": 1e400}';
SELECT docshard.insert_one('fv.y', '{"_id": 2, "a": 1e400}'::jsonb);
SELECT _id, j FROM fv.y;

-- A constant may nest deeper than a document.
SELECT count(*) FROM fv.y WHERE doc @> fv.deep(1000);
SELECT count(*) FROM fv.y WHERE j @> (SELECT fv.deep(n) FROM generate_series(300, 300) n);
PREPARE contained AS SELECT count(*) FROM fv.y WHERE NOT doc @> $1;
EXECUTE contained (fv.deep(300));

-- A long prefix narrows by what it begins with.
SELECT docshard.insert_many('fv.s', ARRAY[jsonb_build_object('_id', 1, 's', repeat('x', 1500)), jsonb_build_object('_id', 2, 's', repeat('x', 1001)), jsonb_build_object('_id', 3, 's', repeat('x', 1000) || '%')]) -> 'insertedCount' AS inserted;
CREATE FOREIGN TABLE fv.s (_id int, s text COLLATE "C") SERVER docshard OPTIONS (namespace 'fv.s');
SELECT _id FROM fv.s WHERE s LIKE repeat('x', 1000) ORDER BY 1;
SELECT _id FROM fv.s WHERE s LIKE repeat('x', 1000) || '\%' ORDER BY 1;
SELECT _id FROM fv.s WHERE s LIKE repeat('x', 1001) ORDER BY 1;
SELECT _id FROM fv.s WHERE s LIKE repeat('x', 1001) || '%' ORDER BY 1;
SELECT _id FROM fv.s WHERE s LIKE repeat('x', 1501) || '%' ORDER BY 1;

-- A type with elements that is no array is a type that no column can have.
CREATE FOREIGN TABLE fv.v (_id int, v int2vector) SERVER docshard OPTIONS (namespace 'fv.v');
SELECT docshard.insert_one('fv.v', '{"_id": 1, "v": []}') IS NOT NULL AS inserted;
SELECT * FROM fv.v;
SELECT _id FROM fv.v;
-- The error of a type that rounds dates names its precision.
CREATE FOREIGN TABLE fv.z (_id int, t timestamptz(0)) SERVER docshard OPTIONS (namespace 'fv.v');
SELECT t FROM fv.z;

-- A statement's only column, if it is jsonb, is sent in another way; the text is the same, also of values from other tables.
CREATE TABLE fv.texts (n int, value jsonb);
INSERT INTO fv.texts VALUES (1, '5'), (2, '"a\"\\\u0001é\u2028😀/"'), (3, 'null'), (4, '[1.10, -0.0, 1e40, 0.0000001, 12345678901234567890.5, true]'),
  (5, '{}'), (6, '[]'), (7, '{"b": {"a": [[], {}, "x"]}, "a": "1"}'), (8, NULL), (9, to_jsonb(repeat('long ', 3)));
SELECT value FROM fv.texts, (SELECT 1 FROM fv.c LIMIT 1) one ORDER BY n;
SELECT value::text FROM fv.texts, (SELECT 1 FROM fv.c LIMIT 1) one ORDER BY n;
SET client_encoding = 'LATIN1';
SELECT value FROM fv.texts, (SELECT 1 FROM fv.c LIMIT 1) one WHERE n IN (4, 7) ORDER BY n;
RESET client_encoding;
DROP TABLE fv.texts;
DROP SCHEMA fv CASCADE;
SELECT docshard.drop_database('fv');
