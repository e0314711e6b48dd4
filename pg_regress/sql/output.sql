-- The text that a find sends to a client is the text that PostgreSQL makes of the same documents.
SELECT docshard.insert_many('out.kinds', ARRAY[
  '{"_id": 1}',
  '{"_id": 2, "nothing": null, "yes": true, "no": false, "": "a name of no letters"}',
  '{"_id": 3, "ints": [0, -1, 9999, 10000, -10000, 2147483647, -9223372036854775808]}',
  '{"_id": 4, "doubles": [0.5, -0.25, 1.0, 100.00, 1e-7, 1e20, 1.25e22, -5e-30]}',
  '{"_id": 5, "text": "\b\f\n\r\t\"\\/\u0001\u001f\u007f", "é": "漢字 \ud83d\ude00", "long": "abcdefgh\"abcdefgh\\"}',
  '{"_id": 6, "a": {}, "b": [], "c": [{}, [], [[1], {"x": {"y": [null]}}]]}',
  '{"_id": {"$oid": "5f0000000000000000000007"}, "d": {"$date": "2026-11-23T00:00:00Z"}, "n": {"$numberDecimal": "1.50"}}'
]::jsonb[]) ->> 'insertedCount' AS inserted;
SELECT format('{"_id": %s, "all": %s}', 8, jsonb_object_agg('f' || n, repeat('x', n))) AS wide
FROM generate_series(1, 100) n \gset
SELECT docshard.insert_one('out.kinds', :'wide') -> 'acknowledged' AS inserted;

-- One document, and all of them: rows as they arrive, compared with PostgreSQL's cast to text.
SELECT docshard.find_one('out.kinds', '{"_id": 5}') AS came \gset
SELECT docshard.find_one('out.kinds', '{"_id": 5}')::text = :'came' AS same;
SELECT docshard.find_one('out.kinds', '{"_id": 8}') AS came \gset
SELECT docshard.find_one('out.kinds', '{"_id": 8}')::text = :'came' AS same;
\pset format unaligned
\pset tuples_only on
SELECT docshard.find('out.kinds', '{"_id": {"$ne": 8}}', '{"sort": {"_id": 1}}');
SELECT d::text FROM docshard.find('out.kinds', '{"_id": {"$ne": 8}}', '{"sort": {"_id": 1}}') AS d;
-- The same for the other forms in which a client may ask.
SELECT * FROM docshard.find('out.kinds', '{"_id": {"$in": [2, 6]}}', '{"sort": {"_id": 1}}');
SELECT f.d AS document FROM docshard.find('out.kinds', '{"_id": 4}') AS f(d);
SELECT docshard.find('out.kinds', '{"_id": 4}'), 'another column';
SELECT docshard.find('out.kinds', '{"_id": 4}') -> 'doubles' -> 0;
SELECT docshard.find('out.kinds', '{"_id": {"$lt": 4}}', '{"sort": {"_id": 1}}') LIMIT 2;
PREPARE by_id (int) AS SELECT docshard.find('out.kinds', json_build_object('_id', $1));
EXECUTE by_id (1);
EXECUTE by_id (2);
BEGIN;
DECLARE few CURSOR FOR SELECT docshard.find('out.kinds', '{"_id": {"$lt": 4}}', '{"sort": {"_id": 1}}');
FETCH 2 FROM few;
FETCH ALL FROM few;
COMMIT;
COPY (SELECT docshard.find('out.kinds', '{"_id": 2}')) TO STDOUT;
\set FETCH_COUNT 1
SELECT docshard.find('out.kinds', '{"_id": {"$lt": 4}}', '{"sort": {"_id": 1}}');
\unset FETCH_COUNT
\pset null (null)
SELECT docshard.find_one('out.kinds', '{"_id": 404}');
SELECT docshard.find('out.kinds', '{"_id": 404}');
-- In the client's encoding; an error if that lacks a character.
SET client_encoding = 'LATIN1';
SELECT docshard.find_one('out.kinds', '{"_id": 5}');
SELECT docshard.insert_one('out.kinds', '{"_id": 9, "word": "se\u00f1or"}') -> 'insertedId';
SELECT docshard.find_one('out.kinds', '{"_id": 9}') AS came \gset
SELECT docshard.find_one('out.kinds', '{"_id": 9}')::text = :'came' AS same, length(:'came');
RESET client_encoding;
SELECT docshard.find_one('out.kinds', '{"_id": 9}');
-- Shows which of them docshard writes itself: PostgreSQL's own output of jsonb is disabled.
BEGIN;
UPDATE pg_type SET typoutput = 'void_out'::regproc WHERE oid = 'jsonb'::regtype;
SELECT docshard.find('out.kinds', '{"_id": 1}');
SELECT * FROM docshard.find('out.kinds', '{"_id": 1}');
SELECT f.d AS document FROM docshard.find('out.kinds', '{"_id": {"$lt": 3}}') AS f(d) WHERE f.d ? 'yes';
SELECT docshard.find_one('out.kinds', '{"_id": 1}');
SELECT docshard.find('out.kinds', '{"_id": 1}'), 'another column';
SELECT '{"_id": 1}'::jsonb;
EXECUTE by_id (1);
ROLLBACK;
-- A find that fails half way, and the next one.
SELECT docshard.find('out.kinds', '{"$expr": {"$divide": [1, {"$subtract": ["$_id", 3]}]}}', '{"sort": {"_id": 1}}');
SELECT docshard.find('out.kinds', '{"_id": 1}');
SELECT docshard.drop_collection('out.kinds');
