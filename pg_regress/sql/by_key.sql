-- Statements with the whole key use a fast path. A comment in the options disables it; the results are the same.
CREATE FUNCTION pg_temp.answer(operation text, ns text, arguments text[], options text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text; DECLARE detail text;
BEGIN
  EXECUTE format('SELECT docshard.%I(%L, %s%L)', operation, ns, (SELECT string_agg(quote_literal(a) || ', ', '') FROM unnest(arguments) a), options) INTO answer;
  RETURN answer;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RETURN replace(concat_ws(' | ', SQLSTATE, SQLERRM, detail), ns, 'ns');
END $$;
CREATE TEMP TABLE kinds (kind text PRIMARY KEY, pattern text);
INSERT INTO kinds VALUES ('unsharded', NULL), ('ranged', '{"a": 1, "b.c": 1}'), ('hashed', '{"_id": "hashed"}'), ('own', '{"_id": 1}'), ('collated', NULL);
SELECT kind, docshard.create_collection('twin.' || kind || side,
      (CASE kind WHEN 'collated' THEN '{"collation": {"locale": "en", "strength": 2}}' ELSE '{}' END)::json) IS NOT NULL
    AND docshard.create_index('twin.' || kind || side, '{"u": 1}', '{"partialFilterExpression": {"u": {"$gt": 0}}}') IS NOT NULL AS made
  FROM kinds, (VALUES ('_short'), ('_long')) s (side) ORDER BY kind, side;
SELECT kind, docshard.shard_collection('twin.' || kind || side, pattern::json) -> 'ok' AS sharded
  FROM kinds, (VALUES ('_short'), ('_long')) s (side) WHERE pattern IS NOT NULL ORDER BY kind, side;
SELECT count(docshard.insert_one('twin.' || kind || side, jsonb_build_object('_id', CASE WHEN n % 2 = 0 THEN to_jsonb('k' || n) ELSE to_jsonb(n) END, 'a', n % 4,
    'b', jsonb_build_object('c', format('x%s', n % 3)), 'v', n, 'l', '[]'::jsonb)))
  FROM kinds, (VALUES ('_short'), ('_long')) s (side), generate_series(1, 12) n;
CREATE TEMP TABLE calls (n serial, operation text, arguments text[]);
INSERT INTO calls (operation, arguments)
  SELECT operation, ARRAY[filter] || coalesce(ARRAY[update], '{}') FROM
    (VALUES (1, '{"a": 1, "b.c": "x1"}'), (2, '{"b.c": "x2", "a": 2.0}'), (3, '{"a": 3, "b.c": "x0", "_id": 3}'), (4, '{"_id": 5}'), (5, '{"_id": "k6"}'),
            (6, '{"_id": "K6"}'), (7, '{"_id": 99}'), (8, '{"_id": {"$eq": 7}}'), (9, '{"a": 1}'), (10, '{"_id": 5, "v": 5}'), (11, '{"a": 0, "b.c": "x1", "_id": 1}'),
            (12, '{"_id": {"$date": "today"}}'), (13, '{"_id": [1]}'), (14, '{}')) f (f, filter),
    -- When a session repeats an update, it uses the compiled one.
    (VALUES (1, 'find_one', NULL), (2, 'update_one', '{"$inc": {"v": 1}}'), (3, 'update_one', '{"$inc": {"v": 1}}'), (4, 'update_one', '{"$set": {"a": 1}}'), (5, 'update_one', '{"$set": {"a": 1}}'),
            (6, 'update_one', '{"$set": {"_id": 4}}'), (7, 'update_one', '{"$set": {"_id": 4}}'), (8, 'update_one', '{"$push": {"v": 1}}'), (9, 'update_one', '{"$push": {"v": 1}}'),
            (10, 'update_one', '{"$push": {"l": {"$each": [2, 1], "$sort": 1}}}'), (11, 'update_one', '{"$push": {"l": {"$each": [2, 1], "$sort": 1}}}'),
            (12, 'update_one', '[{"$set": {"w": {"$add": ["$v", 1]}}}]'), (13, 'update_one', '[{"$set": {"w": {"$add": ["$v", 1]}}}]'),
            (14, 'replace_one', '{"a": 1, "b": {"c": "x1"}, "v": 0, "l": []}'), (15, 'update_one', '{"v": 1}'), (16, 'delete_one', NULL), (17, 'delete_one', NULL), (18, 'find_one', NULL)) o (o, operation, update)
  ORDER BY f, o;
CREATE TEMP TABLE answers AS
  SELECT kind, n, operation, arguments, pg_temp.answer(operation, format('twin.%s_short', kind), arguments, '{}') AS short,
      pg_temp.answer(operation, format('twin.%s_long', kind), arguments, '{"comment": "the long way"}') AS long
    FROM (SELECT * FROM kinds, calls ORDER BY kind, n) c;
SELECT * FROM answers WHERE short IS DISTINCT FROM long ORDER BY kind, n;
SELECT kind, count(*) AS calls, count(*) FILTER (WHERE short LIKE '%"modifiedCount": 1%') AS updated, count(*) FILTER (WHERE short LIKE '%"deletedCount": 1%') AS deleted,
    count(*) FILTER (WHERE operation = 'find_one' AND short LIKE '{%') AS found, count(*) FILTER (WHERE short NOT LIKE '{%') AS refused FROM answers GROUP BY kind ORDER BY kind;
SELECT kind, (SELECT jsonb_agg(d ORDER BY d) FROM docshard.find('twin.' || kind || '_short') d) = (SELECT jsonb_agg(d ORDER BY d) FROM docshard.find('twin.' || kind || '_long') d) AS same,
    docshard.count_documents('twin.' || kind || '_short') FROM kinds ORDER BY kind;
SELECT DISTINCT short FROM answers WHERE short NOT LIKE '{%' ORDER BY 1;
-- A duplicate key of a unique index; read-only and read-write transactions; a place where nothing may be written.
SELECT docshard.create_index('twin.unsharded_short', '{"e": 1}', '{"unique": true, "sparse": true, "name": "e"}') IS NOT NULL AS made;
SELECT docshard.insert_many('twin.unsharded_short', ARRAY['{"_id": 101, "e": 1}', '{"_id": 102, "e": 3}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.update_one('twin.unsharded_short', '{"_id": 101}', '{"$inc": {"e": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('twin.unsharded_short', '{"_id": 101}', '{"$inc": {"e": 1}}');
SELECT docshard.insert_one('twin.own_short', '{"_id": 1, "v": 1}') -> 'insertedId' AS inserted;
BEGIN READ ONLY;
SELECT docshard.update_one('twin.own_short', '{"_id": 1}', '{"$inc": {"v": 1}}');
ROLLBACK;
BEGIN READ ONLY;
SELECT docshard.delete_one('twin.own_short', '{"_id": 1}');
ROLLBACK;
BEGIN;
SELECT docshard.update_one('twin.own_short', '{"_id": 1}', '{"$inc": {"e": 1}}');
SAVEPOINT s;
SELECT docshard.delete_one('twin.own_short', '{"_id": 1}');
SELECT docshard.find_one('twin.own_short', '{"_id": 1}') IS NULL AS gone;
ROLLBACK TO s;
SELECT docshard.update_one('twin.own_short', '{"_id": 1}', '{"$inc": {"e": 1}}') -> 'modifiedCount' AS modified;
COMMIT;
SELECT docshard.find_one('twin.own_short', '{"_id": 1}');
SELECT docshard.update_one('config.chunks', '{"_id": 1}', '{"$inc": {"v": 1}}');
SELECT docshard.delete_one('config.chunks', '{"_id": 1}');
SELECT docshard.delete_one('twin.nothing', '{"_id": 1}');
SELECT docshard.update_one('twin.nothing', '{"_id": 1}', '{"$inc": {"v": 1}}');
SELECT docshard.drop_database('twin') -> 'ok' AS dropped;
