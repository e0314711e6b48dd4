-- A field that is given twice in a JSON argument. A filter has both conditions.
SELECT docshard.insert_select('twice.t', 'SELECT jsonb_build_object(''_id'', n, ''a'', n) FROM generate_series(1, 5) n') AS inserted;
SELECT docshard.find('twice.t', '{"a": {"$gte": 4}, "a": {"$lte": 4}}');
SELECT docshard.find('twice.t', '{"a": {"$gt": 1, "$gt": 3}}', '{"sort": {"_id": 1}}');
SELECT docshard.find('twice.t', '{"_id": 1, "_id": 2}');
SELECT docshard.count_documents('twice.t', '{"$or": [{"a": 1}, {"a": 2}], "$or": [{"a": 2}, {"a": 3}]}');
SELECT docshard.distinct('twice.t', 'a', '{"a": {"$ne": 1, "$ne": 2, "$ne": 3}}');
SELECT docshard.aggregate('twice.t', '[{"$match": {"a": {"$gte": 2}, "a": {"$lte": 2}}}]');
SELECT docshard.run_command('twice', '{"count": "t", "query": {"a": {"$gte": 2}, "a": {"$lte": 2}}}');
BEGIN;
SELECT docshard.update_many('twice.t', '{"a": {"$gte": 4}, "a": {"$lte": 4}}', '{"$set": {"b": 1}, "$inc": {"c": 1}, "$set": {"d": 1}}');
SELECT docshard.find('twice.t', '{"b": 1}');
SELECT docshard.delete_many('twice.t', '{"a": {"$gte": 4}, "a": {"$lte": 100}}');
SELECT docshard.find('twice.t', '{}', '{"sort": {"_id": 1}}');
ROLLBACK;
-- As with $and, an upsert has no value for a field of two conditions.
SELECT docshard.update_one('twice.t', '{"_id": 9, "_id": 9}', '{"$set": {"a": 9}}', '{"upsert": true}');
-- Anything else is refused, and nothing is changed.
SELECT docshard.update_many('twice.t', '{}', '{"$set": {"a": 1}, "$set": {"a": 2}}');
SELECT docshard.update_many('twice.t', '{}', '{"$set": {"b": {"x": 1, "x": 2}}}');
SELECT docshard.find('twice.t', '{}', '{"sort": {"a": 1, "a": -1}}');
SELECT docshard.find('twice.t', '{}', '{"limit": 1, "limit": 2}');
SELECT docshard.find('twice.t', '{}', '{"projection": {"a": 1, "a": 0}}');
SELECT docshard.aggregate('twice.t', '[{"$match": {"a": 1}, "$match": {"a": 2}}]');
SELECT docshard.bulk_write('twice.t', '[{"insertOne": {"document": {"_id": 6}}, "insertOne": {"document": {"_id": 7}}}]');
SELECT docshard.create_index('twice.t', '{"a": 1, "a": -1}');
SELECT docshard.shard_collection('twice.s', '{"a": 1, "a": "hashed"}');
SELECT docshard.run_command('twice', '{"find": "t", "limit": 1, "limit": 2}');
SELECT docshard.count_documents('twice.t') AS unchanged;
-- A partial index has both conditions, too.
SELECT docshard.create_index('twice.t', '{"a": 1}', '{"partialFilterExpression": {"a": {"$gt": 1}, "a": {"$lt": 4}}}');
SELECT docshard.list_indexes('twice.t') AS index;
