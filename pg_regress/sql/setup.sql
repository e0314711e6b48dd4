-- The extension, for all tests after this one.
SET client_min_messages = warning;
CREATE EXTENSION docshard CASCADE;
SELECT extname FROM pg_extension WHERE extname IN ('docshard', 'postgres_fdw') ORDER BY extname;
