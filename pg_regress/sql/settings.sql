-- Settings of the cluster are shown, set and reset; unknown names and values out of bounds are refused.
SELECT * FROM docshard.settings ORDER BY name;
SELECT docshard.set_setting('chunk_size_mb', '64');
SELECT name, value, "default" FROM docshard.settings WHERE name = 'chunk_size_mb';
SELECT docshard.set_setting('chunk_size_mb', NULL);
SELECT value FROM docshard.settings WHERE name = 'chunk_size_mb';
SELECT docshard.set_setting('chunk_size_mb', '0');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.set_setting('chunk_size_mb', '1.5');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.set_setting('chunk_size', '64');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.set_setting('balancer_enabled', 'maybe');
\echo :LAST_ERROR_SQLSTATE
-- A setting is rolled back with its transaction.
BEGIN;
SELECT docshard.set_setting('chunk_size_mb', '64');
ROLLBACK;
SELECT value FROM docshard.settings WHERE name = 'chunk_size_mb';
