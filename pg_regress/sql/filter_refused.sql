-- Malformed filters are errors with MongoDB's code, raised before any document is read.
SELECT docshard.find('f.c', '{"a": ');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '[1]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '5');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"$foo": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"$foo": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"$gt": 1, "b": 2}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"b": 2, "$gt": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"$in": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"$in": [{"$gt": 1}]}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"$not": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"$not": {}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"$and": []}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"$or": {"a": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"$nor": [1]}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"a": {"$near": [1, 2]}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"$where": "true"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('f.c', '{"a": {"$foo": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.delete_many('f.c', '{"a": {"$foo": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_many('f.c', '{"a": {"$foo": 1}}', '{"$set": {"b": 1}}');
\echo :LAST_ERROR_SQLSTATE
-- Malformed Extended JSON.
SELECT docshard.find('f.c', '{"_id": {"$oid": "xyz"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('f.c', '{"at": {"$date": "yesterday"}}');
\echo :LAST_ERROR_SQLSTATE
