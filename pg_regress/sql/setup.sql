-- The extension, for all tests after this one; the balancer is off, so that chunks stay where the tests put them.
SET client_min_messages = warning;
CREATE EXTENSION docshard CASCADE;
SELECT extname FROM pg_extension WHERE extname IN ('docshard', 'postgres_fdw') ORDER BY extname;
ALTER DATABASE regress SET statement_timeout = '60s';
SELECT docshard.stop_balancer();
