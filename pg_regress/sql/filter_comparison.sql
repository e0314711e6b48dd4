-- Filters: equality and comparisons, which compare within a type, and null against missing.
SELECT docshard.insert_many('cmp.c', ARRAY[
  '{"_id": 1, "v": 5}', '{"_id": 2, "v": 5.0}', '{"_id": 3, "v": 7}', '{"_id": 4, "v": "5"}', '{"_id": 5, "v": null}',
  '{"_id": 6}', '{"_id": 7, "v": true}', '{"_id": 8, "v": {"a": 1, "b": 2}}', '{"_id": 9, "v": [5, 8]}',
  '{"_id": 10, "v": {"$numberDecimal": "5.00"}}', '{"_id": 11, "v": []}']::jsonb[]) -> 'insertedCount' AS inserted;

CREATE FUNCTION ids(filter json) RETURNS text LANGUAGE sql BEGIN ATOMIC
  SELECT coalesce(string_agg(d ->> '_id', ' ' ORDER BY (d ->> '_id')::int), 'none') FROM docshard.find('cmp.c', filter) d;
END;

-- Numbers are equal by value, whatever their type; an array also matches by its elements.
SELECT ids('{"v": 5}') AS "v = 5", ids('{"v": {"$eq": 5.0}}') AS "$eq 5.0", ids('{"v": "5"}') AS "v = string 5";
SELECT ids('{"v": {"$gt": 5}}') AS "$gt 5", ids('{"v": {"$gte": 5}}') AS "$gte 5", ids('{"v": {"$lt": 7}}') AS "$lt 7",
       ids('{"v": {"$lte": 7}}') AS "$lte 7";
SELECT ids('{"v": {"$gte": 5, "$lt": 7}}') AS "5 <= v < 7", ids('{"v": {"$gt": 7, "$lt": 6}}') AS "array elements may share the work";
SELECT ids('{"v": {"$gt": ""}}') AS strings, ids('{"v": {"$gte": false}}') AS booleans;

-- null matches null and missing; $ne is the opposite of equality.
SELECT ids('{"v": null}') AS "null", ids('{"v": {"$ne": null}}') AS "not null", ids('{"v": {"$ne": 5}}') AS "not 5";
SELECT ids('{"v": {"$exists": true}}') AS "exists", ids('{"v": {"$exists": false}}') AS "missing",
       ids('{"v": {"$gte": null}}') AS "$gte null", ids('{"v": {"$gt": null}}') AS "$gt null";

-- $in, $nin; an empty list matches nothing.
SELECT ids('{"v": {"$in": [7, "5", null]}}') AS "$in", ids('{"v": {"$nin": [5, null]}}') AS "$nin",
       ids('{"v": {"$in": []}}') AS "$in nothing", ids('{"v": {"$nin": []}}') AS "$nin nothing";

-- Whole values: documents ignore the order of fields, arrays do not ignore that of elements.
SELECT ids('{"v": {"b": 2, "a": 1}}') AS "document", ids('{"v": {"a": 1}}') AS "part of it",
       ids('{"v": [5, 8]}') AS "array", ids('{"v": [8, 5]}') AS "other order", ids('{"v": []}') AS "empty array";

-- Dotted paths, also into arrays by position.
SELECT ids('{"v.a": 1}') AS "v.a", ids('{"v.0": 5}') AS "v.0", ids('{"v.1": 8}') AS "v.1", ids('{"v.a.x": null}') AS "v.a.x = null";
DROP FUNCTION ids;
SELECT docshard.drop_database('cmp');
