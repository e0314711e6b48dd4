-- Null arguments. Where null means something for one argument, the others must not be null.
SELECT docshard.set_setting(NULL, '64');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.enable_sharding(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.enable_sharding(NULL, 'local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range(NULL, '{"k": 1}', '{"k": 2}', 'EU');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range('nulls.c', NULL, '{"k": 2}', 'EU');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range('nulls.c', '{"k": 1}', NULL, NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_range(NULL, '{"k": 1}', '{"k": 2}', 'local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_range('nulls.c', '{"k": 1}', NULL, NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_range('nulls.c', '{"k": 1}', NULL, 'local', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('nulls.c', ARRAY['{"_id": 1}', NULL]::jsonb[]);
\echo :LAST_ERROR_SQLSTATE

-- Every other function returns null or no rows, and does nothing, like PostgreSQL's own functions.
SELECT docshard.insert_one('nulls.c', NULL) IS NULL AS nothing;
SELECT docshard.update_many('nulls.c', NULL, '{"$set": {"a": 1}}') IS NULL AS nothing;
SELECT docshard.run_command('nulls', NULL) IS NULL AS nothing;
SELECT docshard.find('nulls.c', NULL);
SELECT count(*) FROM docshard.collections WHERE namespace = 'nulls.c';
