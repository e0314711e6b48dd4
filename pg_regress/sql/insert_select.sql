-- Inserting what a query returns: one column of documents, streamed in batches.
SELECT docshard.insert_select('sel.c', 'SELECT jsonb_build_object(''_id'', n, ''square'', n * n) FROM generate_series(1, 2500) n');
SELECT docshard.count_documents('sel.c'), docshard.find_one('sel.c', '{"_id": 2500}');
-- From one collection into another.
SELECT docshard.insert_select('sel.d', $$SELECT docshard.find('sel.c', '{"_id": {"$lte": 3}}')$$);
SELECT docshard.find('sel.d', '{}', '{"sort": {"_id": 1}}');
-- All or nothing.
SELECT docshard.insert_select('sel.c', 'SELECT jsonb_build_object(''_id'', n) FROM generate_series(2500, 2600) n');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_select('sel.c', 'SELECT 1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_select('sel.c', 'SELECT NULL::jsonb');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_select('sel.c', 'SELEC');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_select('sel.c', 'DELETE FROM pg_class');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_select('sel.c', 'SELECT ''{}''::jsonb WHERE false');
SELECT docshard.count_documents('sel.c');
-- json and text are parsed as documents; other types are refused.
SELECT docshard.insert_select('sel.x', $$SELECT '{"_id": 1, "a": 1}'::text;$$);
SELECT docshard.insert_select('sel.x', $$VALUES ('{"_id": 2, "b": 1}'::json) -- a comment$$);
SELECT docshard.insert_select('sel.x', $$SELECT '\x0100'::bytea$$);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_select('sel.x', 'SELECT ''{'' ');
\echo :LAST_ERROR_SQLSTATE
-- It must not be found in a schema that others may write to.
SELECT docshard.insert_select('sel.x', 'SELECT doc FROM things');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('sel.x', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.drop_database('sel');
