-- Elements of arrays in updates: by arrayFilters, by the match of the filter, or all; and the time.
SELECT docshard.insert_many('ua.c', ARRAY['{"_id": 1, "l": [1, 5, 9], "g": [{"a": 1, "b": [1, 2]}, {"a": 2, "b": [3]}]}',
                                          '{"_id": 2, "l": [5, 5], "g": []}']::jsonb[]) -> 'insertedCount' AS inserted;
-- $[identifier]: the elements that an array filter accepts.
SELECT docshard.update_many('ua.c', '{}', '{"$inc": {"l.$[big]": 100}}', '{"arrayFilters": [{"big": {"$gte": 5}}]}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"g.$[x].b.$[y]": 0}}', '{"arrayFilters": [{"x.a": 1}, {"y": {"$gt": 1}}]}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$inc": {"g.$[].a": 10}}') -> 'modifiedCount' AS modified;
SELECT docshard.find('ua.c', '{}', '{"sort": {"_id": 1}}');
-- $: the element by which the filter matched.
SELECT docshard.update_many('ua.c', '{"l": {"$gt": 100}}', '{"$set": {"l.$": 0}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('ua.c', '{"g.a": 12}', '{"$set": {"g.$.hit": true}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('ua.c', '{"g": {"$elemMatch": {"a": 11, "b": 1}}}', '{"$unset": {"g.$.b": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.find('ua.c', '{}', '{"sort": {"_id": 1}}');
-- Refused updates change nothing.
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$": 0}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('ua.c', '{"_id": 9, "l": 1}', '{"$set": {"l.$": 0}}', '{"upsert": true}');
SELECT docshard.update_one('ua.c', '{"l": 0}', '{"$set": {"l.$.m.$": 0}}');
SELECT docshard.update_one('ua.c', '{"l": 0}', '{"$set": {"$": 0}}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$[x]": 0}}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$[x]": 0}}', '{"arrayFilters": [{"x": 1}, {"y": 1}]}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$[x]": 0}}', '{"arrayFilters": [{"x": 1}, {"x": 2}]}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$[x]": 0}}', '{"arrayFilters": [{"x": 1, "y": 2}]}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$[x]": 0}}', '{"arrayFilters": [{}]}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$[x]": 0}}', '{"arrayFilters": [{"X": 1}]}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"l.$[x]": 0}}', '{"arrayFilters": {"x": 1}}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"g.$[x]": 0}}', '{"arrayFilters": [{"x": {"$foo": 1}}]}');
SELECT docshard.replace_one('ua.c', '{"_id": 1}', '{"l": 0}', '{"arrayFilters": [{"x": 1}]}');
SELECT docshard.update_one('ua.c', '{"_id": 1}', '{"$set": {"_id.$[x]": 0}}', '{"arrayFilters": [{"x": 1}]}');
SELECT docshard.find('ua.c', '{}', '{"sort": {"_id": 1}}');
-- The time of the statement is the same in all documents.
SELECT docshard.update_many('ua.c', '{}', '{"$currentDate": {"at": true, "d": {"$type": "date"}, "t": {"$type": "timestamp"}}, "$unset": {"l": 1, "g": 1}}') -> 'modifiedCount' AS modified;
SELECT count(DISTINCT (doc - '_id')) AS times, bool_and(doc -> 'at' = doc -> 'd') AS same,
       bool_and((doc -> 'at' ->> '$date')::timestamptz BETWEEN now() - interval '1 hour' AND now() + interval '1 hour') AS recent,
       bool_and(jsonb_typeof(doc #> '{t,$timestamp,t}') = 'number') AS stamped
  FROM docshard.find('ua.c') AS doc;
SELECT docshard.update_one('ua.c', '{"_id": 3}', '{"$currentDate": {"at": true}}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.update_one('ua.c', '{"_id": 3}', '{"$currentDate": {"at": 1}}');
SELECT docshard.update_one('ua.c', '{"_id": 3}', '{"$currentDate": {"at": true}, "$set": {"at": 1}}');
SELECT docshard.drop_database('ua');
