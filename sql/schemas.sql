-- The four rooms of docshard.
--   docshard            the public functions and views (made by the control file's schema)
--   docshard_catalog    the router's metadata: readable by those who were granted something, written only by the extension
--   docshard_data       on every shard: the documents, and what the shard knows of its own ownership
--   docshard_internal   functions that a router calls at a shard; no interface for people
CREATE SCHEMA docshard_catalog;
CREATE SCHEMA docshard_data;
CREATE SCHEMA IF NOT EXISTS docshard_internal;

COMMENT ON SCHEMA docshard_catalog IS 'docshard: metadata of the cluster (on the router)';
COMMENT ON SCHEMA docshard_data IS 'docshard: documents and ownership (on every shard)';
COMMENT ON SCHEMA docshard_internal IS 'docshard: what routers call at shards; not for direct use';
