-- Filters: $and, $or, $nor, $not, and several conditions together; arrays of documents.
SELECT docshard.insert_many('logic.c', ARRAY[
  '{"_id": 1, "a": 1, "b": 1}', '{"_id": 2, "a": 1, "b": 2}', '{"_id": 3, "a": 2, "b": 2}', '{"_id": 4}',
  '{"_id": 5, "items": [{"sku": "x", "n": 1}, {"sku": "y", "n": 9}]}',
  '{"_id": 6, "items": [{"sku": "x", "n": 9}]}']::jsonb[]) -> 'insertedCount' AS inserted;

CREATE FUNCTION ids(filter json) RETURNS text LANGUAGE sql BEGIN ATOMIC
  SELECT coalesce(string_agg(d ->> '_id', ' ' ORDER BY (d ->> '_id')::int), 'none') FROM docshard.find('logic.c', filter) d;
END;

SELECT ids('{}') AS everything, ids('{"a": 1, "b": 2}') AS "both", ids('{"$and": [{"a": 1}, {"b": 2}]}') AS "$and",
       ids('{"$or": [{"a": 2}, {"b": 1}]}') AS "$or", ids('{"$nor": [{"a": 2}, {"b": 1}]}') AS "$nor";
SELECT ids('{"a": {"$not": {"$gt": 1}}}') AS "$not $gt", ids('{"a": {"$not": {"$exists": true}}}') AS "$not $exists",
       ids('{"a": 1, "$or": [{"b": 2}, {"b": 3}]}') AS "with $or";
SELECT ids('{"a": {"$gt": 0, "$ne": 2}}') AS "two operators", ids('{"$and": [{"a": {"$gt": 0}}, {"a": {"$lt": 1}}]}') AS "none";

-- Conditions on an array of documents may be met by different ones.
SELECT ids('{"items.sku": "x"}') AS "some sku", ids('{"items.sku": "x", "items.n": 1}') AS "two conditions",
       ids('{"items.n": {"$gt": 5}}') AS "some n", ids('{"items": {"sku": "x", "n": 9}}') AS "a whole element",
       ids('{"items.0.n": 9}') AS "the first one", ids('{"items.n": {"$ne": 1}}') AS "no n is 1";

-- A comment changes nothing.
SELECT ids('{"a": 1, "$comment": "why not"}') AS commented;
DROP FUNCTION ids;
SELECT docshard.drop_database('logic');
