-- Updates by a pipeline: $set, $unset, $project, $replaceWith, and their other names.
SELECT docshard.insert_many('pipe.c', ARRAY[
  '{"_id": 1, "marks": [7, 9], "name": {"first": "Ann", "last": "Ash"}}',
  '{"_id": 2, "marks": [4], "name": {"first": "Bob"}}']::jsonb[]) -> 'insertedCount' AS inserted;

SELECT docshard.update_many('pipe.c', '{}', '[{"$set": {"best": {"$max": "$marks"}}}, {"$set": {"passed": {"$gte": ["$best", 5]}, "name.full": {"$concat": ["$name.first", " ", {"$ifNull": ["$name.last", "?"]}]}}}, {"$unset": "name.first"}]');
SELECT docshard.find('pipe.c', '{}', '{"sort": {"_id": 1}}');
-- An update without effect: matched, not modified.
SELECT docshard.update_many('pipe.c', '{}', '[{"$addFields": {"best": {"$max": "$marks"}}}]');
SELECT docshard.update_one('pipe.c', '{"_id": 2}', '[{"$project": {"marks": 1, "count": {"$size": "$marks"}}}]');
SELECT docshard.find_one('pipe.c', '{"_id": 2}');
-- The _id stays if the stage does not mention it.
SELECT docshard.update_one('pipe.c', '{"_id": 2}', '[{"$replaceWith": {"kept": "$marks", "n": "$$n"}}]', '{"let": {"n": 5}}');
SELECT docshard.find_one('pipe.c', '{"_id": 2}');
SELECT docshard.update_one('pipe.c', '{"_id": 2}', '[{"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"last": {"$arrayElemAt": ["$kept", -1]}}]}}}]');
SELECT docshard.find_one('pipe.c', '{"_id": 2}');

-- An upsert starts from the filter's equalities.
SELECT docshard.update_one('pipe.c', '{"_id": 9, "kind": "x"}', '[{"$set": {"label": {"$concat": ["$kind", "-", {"$toString": "$_id"}]}}}]', '{"upsert": true}');
SELECT docshard.find_one('pipe.c', '{"_id": 9}');
-- The same in one statement that returns the document.
SELECT docshard.find_one_and_update('pipe.c', '{"_id": 9}', '[{"$set": {"seen": {"$add": [{"$ifNull": ["$seen", 0]}, 1]}}}]', '{"returnDocument": "after"}');
SELECT docshard.find_one('pipe.c', '{"_id": 9}') -> 'seen' AS seen;
-- The time is the same for the whole statement.
SELECT docshard.update_many('pipe.c', '{}', '[{"$set": {"at": "$$NOW", "again": "$$NOW"}}]');
SELECT docshard.count_documents('pipe.c', '{"$expr": {"$and": [{"$eq": ["$at", "$again"]}, {"$lte": ["$at", "$$NOW"]}]}}');

-- Refused updates write nothing.
SELECT docshard.update_one('pipe.c', '{"_id": 1}', '[{"$set": {"_id": 5}}]');
SELECT docshard.update_one('pipe.c', '{"_id": 1}', '[{"$match": {"a": 1}}]');
SELECT docshard.update_one('pipe.c', '{"_id": 1}', '[{"$nope": 1}]');
SELECT docshard.update_one('pipe.c', '{"_id": 1}', '[{"$set": {"a": 1}, "$unset": "b"}]');
SELECT docshard.update_one('pipe.c', '{"_id": 1}', '[{"$replaceWith": "$best"}]');
SELECT docshard.update_one('pipe.c', '{"_id": 1}', '[{"$set": {"bad": {"$divide": ["$best", 0]}}}]');
SELECT docshard.update_one('pipe.c', '{"_id": 1}', '[{"$set": {"a": 1}}]', '{"arrayFilters": [{"x": 1}]}');
SELECT docshard.find_one('pipe.c', '{"_id": 1}', '{"projection": {"best": 1, "bad": 1}}');
