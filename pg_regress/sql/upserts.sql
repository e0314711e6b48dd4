-- The document that an upsert inserts: the equalities of the filter, and then the update.
CREATE FUNCTION upserted(filter json, update json) RETURNS jsonb LANGUAGE sql AS
$$ SELECT docshard.find_one_and_update('up.c', filter, update, '{"upsert": true, "returnDocument": "after", "projection": {"_id": 0}}') $$;
SELECT upserted('{"a": 1, "b": {"$eq": 2}}', '{"$set": {"x": 1}}');
SELECT upserted('{"$and": [{"a": 2}, {"b.c": 3}, {"b.d": 4}]}', '{"$inc": {"n": 1}}');
SELECT upserted('{"a": {"$in": [3]}, "b": {"$all": [4]}}', '{"$set": {"x": 1}}');
SELECT upserted('{"$or": [{"a": 4}]}', '{"$set": {"x": 1}}');
SELECT upserted('{"$or": [{"a": 5}, {"a": 6}]}', '{"$set": {"x": 1}}');
SELECT upserted('{"a": {"$gt": 100}, "b": {"$ne": 2}, "c": {"$in": [1, 2]}, "d": {"$exists": true}, "$nor": [{"e": 1}]}', '{"$set": {"x": 1}}');
SELECT upserted('{"a": 7, "b": {"$gte": 1, "$lt": 3}}', '{"$setOnInsert": {"new": true}, "$push": {"l": 1}, "$min": {"m": 5}, "$mul": {"p": 3}}');
SELECT upserted('{"a": {"x": 1, "y": 2}}', '{"$set": {"a.y": 3, "a.z": 4}}');
SELECT upserted('{"a": [1, 2], "b": null}', '{"$push": {"a": 3}}');
-- The update may overwrite what the filter gave, but not _id.
SELECT upserted('{"a": 8, "_id": 8}', '{"$set": {"a": 9}}');
SELECT upserted('{"_id": 10}', '{"$set": {"_id": 11}}');
\echo :LAST_ERROR_SQLSTATE
SELECT upserted('{"_id": {"$gt": 1000}}', '{"$set": {"a": 12}}');
SELECT docshard.update_one('up.c', '{"_id": {"$in": [13]}}', '{"$set": {"a": 13}}', '{"upsert": true}') -> 'upsertedId' AS id;
-- A replacement takes only the _id from the filter.
SELECT docshard.replace_one('up.c', '{"_id": 14, "a": 14}', '{"b": 14}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.find('up.c', '{"_id": {"$in": [13, 14]}}', '{"sort": {"_id": 1}}');
SELECT docshard.replace_one('up.c', '{"_id": 15}', '{"_id": 16, "b": 1}', '{"upsert": true}');
-- Equalities that contradict each other, or that cannot form one document.
SELECT upserted('{"$and": [{"a": 20}, {"a": 21}]}', '{"$set": {"x": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT upserted('{"a": 22, "a.b": 23}', '{"$set": {"x": 1}}');
SELECT upserted('{"a": 24}', '{"$set": {"a.b": 1}}');
SELECT upserted('{"a": "s"}', '{"$inc": {"a": 1}}');
-- The key belongs to a document that does not match.
SELECT docshard.insert_one('up.c', '{"_id": 30, "a": 30}') -> 'insertedId' AS id;
SELECT upserted('{"_id": 30, "a": 31}', '{"$set": {"x": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('up.u', '{"k": 1}', '{"unique": true}');
SELECT docshard.insert_one('up.u', '{"_id": 1, "k": 1}') -> 'insertedId' AS id;
SELECT docshard.update_one('up.u', '{"x": 1}', '{"$set": {"k": 1}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('up.u', '{"k": 1}', '{"$set": {"x": 1}}', '{"upsert": true}') -> 'matchedCount' AS matched;
-- Nothing is inserted if a document matches; an unchanged document is not written.
SELECT docshard.update_one('up.u', '{"k": 1}', '{"$set": {"x": 1}}', '{"upsert": true}');
SELECT docshard.count_documents('up.u');
DROP FUNCTION upserted;
SELECT docshard.drop_database('up');
