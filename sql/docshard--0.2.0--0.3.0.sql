-- From 0.2.0 to 0.3.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);
