-- Values that are not documents; documents that are too large, too deep, or have an invalid _id.
SELECT docshard.insert_one('ref.c', '[]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ref.c', '"text"');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ref.c', '{"a": }');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ref.c', '{"_id": [1]}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ref.c', '{"_id": {"$regularExpression": {"pattern": "a", "options": ""}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ref.c', '{"_id": {"$undefined": true}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ref.c', '{"_id": {"$a": 1}}');
\echo :LAST_ERROR_SQLSTATE
-- An object with the name of a type of Extended JSON would be a value of that type.
SELECT docshard.insert_one('ref.c', '{"$date": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ref.c', '{"a": {"b": {"$regex": 1}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('ref.c', ARRAY['{"_id": 1}', '{"_id": 2, "$oid": 1}']::jsonb[]);
\echo :LAST_ERROR_SQLSTATE
-- jsonb cannot contain a zero byte.
SELECT docshard.insert_one('ref.c', '{"a": "\u0000"}');
\echo :LAST_ERROR_SQLSTATE
-- At most 100 levels.
SELECT docshard.insert_one('ref.c', (repeat('{"a":', 100) || '1' || repeat('}', 100))::jsonb) ? 'insertedId' AS "100 levels";
SELECT docshard.insert_one('ref.c', (repeat('{"a":', 101) || '1' || repeat('}', 101))::jsonb);
\echo :LAST_ERROR_SQLSTATE
-- At most 16 MiB.
SELECT docshard.insert_one('ref.c', jsonb_build_object('a', repeat('x', 15 * 1024 * 1024))) ? 'insertedId' AS "15 MiB";
SELECT docshard.insert_one('ref.c', jsonb_build_object('a', repeat('x', 17 * 1024 * 1024)));
\echo :LAST_ERROR_SQLSTATE
-- Growing beyond the limit, too.
SELECT docshard.insert_one('ref.c', jsonb_build_object('_id', 1, 'a', repeat('x', 9 * 1024 * 1024)));
SELECT docshard.update_one('ref.c', '{"_id": 1}', json_build_object('$set', json_build_object('b', repeat('x', 9 * 1024 * 1024))));
\echo :LAST_ERROR_SQLSTATE
-- An _id must fit into a b-tree.
SELECT docshard.insert_one('ref.c', jsonb_build_object('_id', repeat('x', 10000)));
\echo :LAST_ERROR_SQLSTATE
-- The domain is checked for every writer.
SELECT '{"a": 1}'::docshard.document;
SELECT '[1]'::docshard.document;
\echo :LAST_ERROR_SQLSTATE
SELECT '{"$a": 1}'::docshard.document;
SELECT '{"$oid": 1}'::docshard.document;
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_database('ref');
