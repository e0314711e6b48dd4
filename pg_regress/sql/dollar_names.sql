-- Names of fields that start with `$` or have a dot, as MongoDB allows them.
SELECT docshard.insert_many('dollar.c', ARRAY[
  '{"_id": 1, "$price": 5, "a": {"$b": 1, "xyz": 2}, "l": [{"$set": {"$inc": 1}}]}',
  '{"_id": 2, "a.b": 3, "ref": {"$ref": "c", "$id": {"$oid": "0123456789abcdef01234567"}, "$db": "d"}}',
  '{"_id": {"$ref": "c", "$id": 1}, "a": {"$id": {"$numberInt": "7"}, "$scope": {}}}']::jsonb[]);
SELECT docshard.find('dollar.c', '{}', '{"sort": {"_id": 1}}');
-- Inside a path they are found, but they are no operators and no conditions of their own.
SELECT docshard.find('dollar.c', '{"a.$b": 1}', '{"projection": {"_id": 1}}');
SELECT docshard.find('dollar.c', '{"a": {"$eq": {"$b": 1, "xyz": 2}}}', '{"projection": {"_id": 1}}');
SELECT docshard.find('dollar.c', '{"$expr": {"$gt": [{"$getField": {"$literal": "$price"}}, 4]}}', '{"projection": {"_id": 1}}');
SELECT docshard.find('dollar.c', '{"ref.$id": {"$oid": "0123456789abcdef01234567"}}', '{"projection": {"_id": 1}}');
SELECT docshard.find('dollar.c', '{"a": {"$b": 1}}');
SELECT docshard.find('dollar.c', '{"$price": 5}');
SELECT docshard.find('dollar.c', '{}', '{"projection": {"$price": 1}}');
SELECT docshard.find('dollar.c', '{}', '{"sort": {"$price": 1}}');
SELECT docshard.create_index('dollar.c', '{"$price": 1}');
SELECT docshard.shard_collection('dollar.s', '{"a.$b": 1}');
-- Indexes of other fields find whole values with such names.
SELECT docshard.create_index('dollar.c', '{"a": 1}') IS NOT NULL AS created;
SELECT docshard.find('dollar.c', '{"a": {"$eq": {"$b": 1, "xyz": 2}}}', '{"projection": {"_id": 1}, "hint": "a_1"}');
SELECT docshard.create_index('dollar.c', '{"$**": 1}') IS NOT NULL AS created;
SELECT docshard.find('dollar.c', '{"a.$b": 1}', '{"projection": {"_id": 1}, "hint": "$**_1"}');
-- In an existing document only a pipeline sets such a field at the root.
SELECT docshard.update_one('dollar.c', '{"_id": 1}', '{"$set": {"a.$b": 2, "n": {"$x": [{"$y": 1}]}}}');
SELECT docshard.update_one('dollar.c', '{"_id": 1}', '{"$set": {"$price": 6}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('dollar.c', '{"_id": 9}', '{"$set": {"$price": 6}}');
SELECT docshard.update_one('dollar.c', '{"_id": 9}', '{"$set": {"$price": 6}}', '{"upsert": true}');
SELECT docshard.replace_one('dollar.c', '{"_id": 9}', '{"a": 1, "$price": 6}');
SELECT docshard.replace_one('dollar.c', '{"_id": 9}', '{"a": {"$b": 1}}');
SELECT docshard.update_one('dollar.c', '{"_id": 1}',
  '[{"$replaceWith": {"$setField": {"field": {"$literal": "$price"}, "input": "$$ROOT", "value": 7}}}]');
SELECT docshard.update_one('dollar.c', '{"_id": 1}', '{"$unset": {"l": 1}}');
SELECT docshard.find('dollar.c', '{"_id": {"$in": [1, 9]}}', '{"sort": {"_id": 1}}');
-- No update makes an object that would be a value of Extended JSON.
SELECT docshard.update_one('dollar.c', '{"_id": 1}', '{"$set": {"a.$date": "2020-01-01T00:00:00Z"}}');
SELECT docshard.update_one('dollar.c', '{"_id": 1}', '{"$rename": {"n": "b.$oid"}}');
SELECT docshard.update_one('dollar.c', '{"_id": 1}', '[{"$set": {"n": {"$arrayToObject": {"$literal": [["$oid", "0123456789abcdef01234567"]]}}}}]');
-- Pipelines read, join and write them.
SELECT docshard.aggregate('dollar.c', '[{"$match": {"_id": 1}}, {"$project": {"_id": 0, "fields": {"$objectToArray": "$a"}}}]');
SELECT docshard.aggregate('dollar.c', '[{"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]');
SELECT docshard.distinct('dollar.c', 'a');
SELECT docshard.insert_many('dollar.other', ARRAY['{"_id": 1, "k": {"$b": 2, "xyz": 2}}', '{"_id": 2, "k": {"$b": 1}}']::jsonb[]);
SELECT docshard.aggregate('dollar.other', '[{"$lookup": {"from": "c", "localField": "k", "foreignField": "a", "as": "found", "pipeline": [{"$project": {"_id": 1}}]}}, {"$sort": {"_id": 1}}]');
SELECT docshard.aggregate('dollar.c', '[{"$match": {"_id": {"$in": [1, 2]}}}, {"$out": "copy"}]');
SELECT docshard.find('dollar.copy', '{}', '{"sort": {"_id": 1}}');
-- A merge sets fields, so it inserts such documents, and does not change existing ones.
SELECT docshard.aggregate('dollar.c', '[{"$match": {"_id": 1}}, {"$merge": "merged"}]');
SELECT docshard.find('dollar.merged');
SELECT docshard.aggregate('dollar.c', '[{"$match": {"_id": 1}}, {"$set": {"x": 1}}, {"$merge": "merged"}]');
-- Sharded, and as a table.
SELECT docshard.shard_collection('dollar.c', '{"_id": "hashed"}') IS NOT NULL AS sharded;
SELECT docshard.find('dollar.c', '{"a.$b": {"$exists": true}}', '{"projection": {"a": 1}, "sort": {"_id": 1}}');
CREATE FOREIGN TABLE dollar_c (doc jsonb OPTIONS (path '')) SERVER docshard OPTIONS (namespace 'dollar.c');
INSERT INTO dollar_c VALUES ('{"_id": 20, "$price": 1, "a": {"$b": 5}}');
SELECT doc FROM dollar_c WHERE doc ? '$price' ORDER BY doc -> '_id';
INSERT INTO dollar_c VALUES ('{"_id": 21, "a": {"$b": 5, "$oid": 1}}');
DROP FOREIGN TABLE dollar_c;
SELECT docshard.drop_database('dollar');
