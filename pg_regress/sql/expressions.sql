-- Expressions: $expr in filters, fields computed by projections, and their errors.
SELECT docshard.insert_many('expr.c', ARRAY[
  '{"_id": 1, "item": "pen", "spent": 45, "budget": 40, "tags": ["a", "b"], "at": {"$date": "2024-02-29T13:14:15Z"}}',
  '{"_id": 2, "item": "ink", "spent": 10, "budget": 20, "tags": ["b"], "size": {"w": 2, "h": 3}}',
  '{"_id": 3, "item": "pad", "spent": 20, "budget": 20}']::jsonb[]) -> 'insertedCount' AS inserted;

-- Comparisons between fields; MongoDB's order over types, where missing is less than null.
SELECT docshard.find('expr.c', '{"$expr": {"$gt": ["$spent", "$budget"]}}', '{"projection": {"item": 1}}');
SELECT docshard.find('expr.c', '{"$expr": {"$and": [{"$lte": ["$spent", "$budget"]}, {"$eq": [{"$type": "$tags"}, "missing"]}]}}', '{"projection": {"item": 1}}');
SELECT docshard.count_documents('expr.c', '{"$or": [{"item": "pen"}, {"$expr": {"$in": ["b", {"$ifNull": ["$tags", []]}]}}]}');
SELECT docshard.count_documents('expr.c', '{"$expr": {"$lt": ["$at", "$$NOW"]}}');
-- Variables of the statement.
SELECT docshard.find('expr.c', '{"$expr": {"$eq": ["$item", "$$wanted"]}}', '{"let": {"wanted": {"$concat": ["p", "ad"]}}, "projection": {"both": {"$concat": ["$$wanted", "!"]}}}');

-- Computed fields, literals, nested and through arrays. Other fields must be included explicitly.
SELECT docshard.find('expr.c', '{"_id": 1}', '{"projection": {"item": 1, "over": {"$subtract": ["$spent", "$budget"]}, "unit": "EUR", "year": {"$year": "$at"}}}');
SELECT docshard.find('expr.c', '{"_id": 2}', '{"projection": {"_id": 0, "size.area": {"$multiply": ["$size.w", "$size.h"]}, "size.w": 1}}');
SELECT docshard.find('expr.c', '{"_id": 1}', '{"projection": {"_id": 0, "upper": {"$map": {"input": "$tags", "as": "t", "in": {"$toUpper": "$$t"}}}, "last": {"$slice": ["$tags", -1]}}}');
SELECT docshard.find('expr.c', '{"_id": 3}', '{"projection": {"item": {"$cond": [{"$eq": ["$spent", "$budget"]}, "even", "$$REMOVE"]}, "none": "$nothing"}}');
-- A positional path: the element by which the document matched.
SELECT docshard.find('expr.c', '{"tags": "b"}', '{"projection": {"tags.$": 1}, "sort": {"_id": 1}}');

-- $jsonSchema, $sampleRate, $rand.
SELECT docshard.find('expr.c', '{"$jsonSchema": {"required": ["size"], "properties": {"size": {"bsonType": "object", "properties": {"w": {"minimum": 1}}}}}}', '{"projection": {"item": 1}}');
SELECT docshard.count_documents('expr.c', '{"$nor": [{"$jsonSchema": {"properties": {"tags": {"bsonType": "array", "minItems": 2}}}}]}');
SELECT docshard.count_documents('expr.c', '{"$sampleRate": 1}'), docshard.count_documents('expr.c', '{"$sampleRate": 0.0}'),
       docshard.count_documents('expr.c', '{"$expr": {"$lt": [{"$rand": {}}, 1]}}');

-- An equality with a constant selects the shard and the key like any other.
SELECT docshard.shard_collection('expr.s', '{"k": 1}') -> 'ok' AS sharded;
SELECT docshard.insert_many('expr.s', ARRAY['{"_id": 1, "k": 1}', '{"_id": 2, "k": 2}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.explain('expr.s', '{"$expr": {"$eq": ["$k", 2]}}')::jsonb -> 'keyBounds' AS bounds;
SELECT docshard.explain('expr.s', '{"$expr": {"$gte": ["$k", 2]}}')::jsonb -> 'keyBounds' AS bounds;
SELECT docshard.update_one('expr.s', '{"$expr": {"$eq": ["$k", 2]}}', '{"$set": {"hit": true}}');
SELECT docshard.find('expr.s', '{"$expr": {"$gte": ["$k", 2]}}');

-- Refused.
\set VERBOSITY default
SELECT docshard.find('expr.c', '{"$expr": {"$divide": [1, {"$subtract": ["$spent", 45]}]}}');
SELECT docshard.find('expr.c', '{"$expr": {"$nope": 1}}');
SELECT docshard.find('expr.c', '{"$expr": {"$eq": ["$$nobody", 1]}}');
SELECT docshard.find('expr.c', '{"tags": {"$elemMatch": {"$expr": true}}}');
SELECT docshard.find('expr.c', '{"$where": "this.spent > 1"}');
SELECT docshard.find('expr.c', '{"$jsonSchema": {"bsonType": "thing"}}');
SELECT docshard.find('expr.c', '{}', '{"projection": {"item": 0, "x": {"$add": [1, "$spent"]}}}');
SELECT docshard.find('expr.c', '{}', '{"projection": {"size": 1, "size.w": {"$literal": 1}}}');
SELECT docshard.find('expr.c', '{"item": "pen"}', '{"projection": {"tags.$": 1}}');
SELECT docshard.find('expr.c', '{}', '{"let": {"x": "$spent"}}');
