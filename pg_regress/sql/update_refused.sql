-- Updates that are refused with MongoDB's codes; the documents stay unchanged.
SELECT docshard.insert_one('updr.c', '{"_id": 1, "s": "text", "n": 9223372036854775807, "l": [1], "z": null}');
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"_id": 2}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.replace_one('updr.c', '{"_id": 1}', '{"_id": 2}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$unset": {"_id": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$foo": {"a": 2}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"a": 2}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"a": 2}, "b": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '[{"$group": {"_id": 1}}]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.replace_one('updr.c', '{"_id": 1}', '{"$set": {"a": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"l.$": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$inc": {"s": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$inc": {"z": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$inc": {"a": "1"}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$inc": {"n": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"a": 1}, "$inc": {"a": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"a": 1, "a.b": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"s.x": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"l.x": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"a..b": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"$a": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"a": 1}}', '{"upsrt": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('updr.c', '{"_id": 1}', '{"$set": {"a": 1}}', '{"upsert": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_many('updr.c', '{}', '{"a": 1}');
\echo :LAST_ERROR_SQLSTATE
-- The functions that a router calls at a shard check where the row is.
SELECT "table", substring("table" FROM '[0-9]+$') AS number FROM docshard.collections WHERE namespace = 'updr.c' \gset
SELECT docshard_internal.replace_document(:number, '(0,999)', skey, id, doc, '{"_id": 1, "bad": 1}') FROM :table;
SELECT docshard_internal.replace_document(:number, '(0,0)', skey, id, doc, '{"_id": 1, "bad": 1}') FROM :table;
SELECT docshard_internal.replace_document(:number, ctid, skey, '\x00', doc, '{"_id": 1, "bad": 1}') FROM :table;
SELECT docshard_internal.replace_document(:number, '(4294967294,1)', skey, id, doc, '{"_id": 1, "bad": 1}') FROM :table;
SELECT docshard_internal.replace_document(:number, '(4294967295,1)', skey, id, doc, '{"_id": 1, "bad": 1}') FROM :table;
SELECT pg_relation_size(:'table') / current_setting('block_size')::int AS blocks;
-- They also check the document.
SELECT docshard_internal.replace_document(:number, ctid, skey, id, doc, '{"_id": 1, "bad": {"$regex": 1}}') FROM :table;
SELECT docshard_internal.replace_document(:number, ctid, skey, id, doc, '[1]') FROM :table;
SELECT docshard_internal.replace_document(:number, ctid, skey, id, doc, '{"_id": 1, "bad": {"$numberLong": "5"}}') FROM :table;
SELECT docshard_internal.update_found(:number, '(4294967295,1)', skey, id, doc, '{}', '{"update": {"$set": {"bad": 1}}}', '{}') FROM :table;
SELECT docshard_internal.update_found(:number, '(0,999)', skey, id, doc, '{}', '{"update": {"$set": {"bad": 1}}}', '{}') FROM :table;
SELECT docshard.find('updr.c');
SELECT docshard.drop_database('updr');
