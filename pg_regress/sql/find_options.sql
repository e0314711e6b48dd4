-- find: sort, skip, limit, projection; find_one and count_documents with theirs.
SELECT docshard.insert_many('opt.c', ARRAY[
  '{"_id": 1, "name": "Cid", "age": 30, "address": {"city": "Rome", "zip": "1"}}',
  '{"_id": 2, "name": "Ann", "age": 20, "address": {"city": "Oslo", "zip": "2"}}',
  '{"_id": 3, "name": "Bob", "age": 30, "tags": [{"t": 1, "u": 2}, {"t": 3}]}',
  '{"_id": 4, "name": "Dot"}']::jsonb[]) -> 'insertedCount' AS inserted;

-- Sorted by several fields, in both directions; a missing value sorts like null, first.
SELECT docshard.find('opt.c', '{}', '{"sort": {"age": 1, "name": -1}, "projection": {"name": 1, "age": 1}}');
SELECT docshard.find('opt.c', '{}', '{"sort": {"age": -1, "name": 1}, "projection": {"name": 1, "_id": 0}}');
SELECT docshard.find('opt.c', '{}', '{"sort": {"address.city": 1, "_id": -1}, "projection": {"address.city": 1}}');
SELECT docshard.find('opt.c', '{}', '{"sort": {"_id": 1}, "skip": 1, "limit": 2, "projection": {"name": 1}}');
SELECT docshard.find('opt.c', '{}', '{"sort": {"_id": 1}, "skip": 10}');
-- A limit of 0 means no limit.
SELECT count(*) FROM docshard.find('opt.c', '{}', '{"limit": 0, "skip": 0}');

-- Include, exclude, dotted, through arrays.
SELECT docshard.find('opt.c', '{"_id": 1}', '{"projection": {"address.city": 1, "age": true}}');
SELECT docshard.find('opt.c', '{"_id": 1}', '{"projection": {"address.city": 0, "name": false, "_id": 0}}');
SELECT docshard.find('opt.c', '{"_id": 3}', '{"projection": {"tags.t": 1}}');
SELECT docshard.find('opt.c', '{"_id": 3}', '{"projection": {"tags.t": 0}}');
SELECT docshard.find('opt.c', '{"_id": 1}', '{"projection": {"_id": 1}}');
SELECT docshard.find('opt.c', '{"_id": 4}', '{"projection": {"_id": 0}}');
SELECT docshard.find('opt.c', '{"_id": 4}', '{"projection": {}}');
SELECT docshard.find('opt.c', '{"_id": 1}', '{"projection": {"nothing": 1}}');

-- find_one: the first in this order, or null.
SELECT docshard.find_one('opt.c', '{"age": 30}', '{"sort": {"name": 1}, "projection": {"name": 1}}');
SELECT docshard.find_one('opt.c', '{}', '{"sort": {"_id": 1}, "skip": 2, "projection": {"name": 1}}');
SELECT docshard.find_one('opt.c', '{"age": 99}') IS NULL AS nobody;

-- Counts, exact and estimated.
SELECT docshard.count_documents('opt.c') AS everything, docshard.count_documents('opt.c', '{"age": 30}') AS thirty,
       docshard.count_documents('opt.c', '{}', '{"skip": 1, "limit": 2}') AS part,
       docshard.count_documents('opt.c', '{}', '{"skip": 10}') AS beyond;
SELECT docshard.insert_many('opt.many', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 1000) n;
SELECT "table" FROM docshard.collections WHERE namespace = 'opt.many' \gset
ANALYZE :table;
SELECT docshard.estimated_document_count('opt.many');

-- A collection that does not exist is empty.
SELECT docshard.find('opt.none'), docshard.find_one('opt.none');
SELECT docshard.count_documents('opt.none'), docshard.estimated_document_count('nowhere.none');

-- Invalid options.
SELECT docshard.find('opt.c', '{}', '{"limt": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '[]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"limit": -1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"skip": -1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"limit": "many"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"sort": {"a": 2}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"sort": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"sort": {"": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"projection": {"name": 1, "age": 0}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"projection": {"a": 1, "a.b": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('opt.c', '{}', '{"projection": "name"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find_one('opt.c', '{}', '{"limit": 2}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('opt.c', '{}', '{"sort": {"a": 1}}');
\echo :LAST_ERROR_SQLSTATE

-- A document whose arrays one sort cannot order is an error, also where its key finds it; a sort by one field is none.
SELECT docshard.insert_one('opt.c', '{"_id": 5, "b": [1, 2], "c": [3, 4]}') -> 'insertedId' AS inserted;
SELECT docshard.find('opt.c', '{"_id": 5}', '{"sort": {"b": 1, "c": 1}}');
SELECT docshard.find_one('opt.c', '{"_id": 5}', '{"sort": {"b": 1, "c": 1}}');
SELECT docshard.find_one('opt.c', '{"_id": 5}', '{"sort": {"b": 1}}');
SELECT docshard.find_one_and_update('opt.c', '{"_id": 5}', '{"$set": {"d": 1}}', '{"sort": {"b": 1, "c": 1}}');
SELECT docshard.aggregate('opt.c', '[{"$match": {"_id": 5}}, {"$sort": {"b": 1, "c": 1}}]');
SELECT docshard.find('opt.c', '{"_id": 5}', '{}');
SELECT docshard.drop_database('opt');
