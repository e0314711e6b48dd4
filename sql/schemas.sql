-- The four schemas of docshard.
--   docshard            the public functions and views (created by the control file's schema)
--   docshard_catalog    the router's metadata: readable by roles with a grant, written only by the extension
--   docshard_data       on every shard: the documents, and the shard's own state
--   docshard_internal   functions that a router calls at a shard; not for users
--
-- Pins the search path for the whole script: CREATE EXTENSION also searches the schemas of required extensions, in which other roles
-- may have created operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

-- The owner of one of these schemas, or a role that may create objects there, controls docshard. PostgreSQL uses an existing schema
-- `docshard` whoever owns it, and refuses the others if they exist.
DO $$
DECLARE
    encoding CONSTANT text := pg_catalog.pg_encoding_to_char(d.encoding) FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database();
BEGIN
    IF encoding <> 'UTF8' THEN
        RAISE EXCEPTION 'docshard needs a database that is encoded in UTF8, this one is in %', encoding
            USING ERRCODE = '0A000', DETAIL = 'MongoDB error 96 (OperationFailed).',
                  HINT = 'CREATE DATABASE … ENCODING ''UTF8'' TEMPLATE template0.';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner
                WHERE n.nspname = 'docshard'
                  AND (NOT (o.rolsuper OR o.rolname = current_user)
                       OR EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner)
                       OR EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid)
                       OR EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid)
                       OR EXISTS (SELECT FROM pg_catalog.pg_type t WHERE t.typnamespace = n.oid)
                       OR EXISTS (SELECT FROM pg_catalog.pg_operator o WHERE o.oprnamespace = n.oid))) THEN
        RAISE EXCEPTION 'the schema "docshard" exists already, and has objects or belongs to somebody else'
            USING ERRCODE = '42P06', HINT = 'Look who made it; then DROP SCHEMA docshard, or rename it.';
    END IF;
END $$;

CREATE SCHEMA docshard_catalog;
CREATE SCHEMA docshard_data;
CREATE SCHEMA IF NOT EXISTS docshard_internal;

COMMENT ON SCHEMA docshard_catalog IS 'docshard: metadata of the cluster (on the router)';
COMMENT ON SCHEMA docshard_data IS 'docshard: documents and ownership (on every shard)';
COMMENT ON SCHEMA docshard_internal IS 'docshard: functions that routers call at shards; not for direct use';
