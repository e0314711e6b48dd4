-- Privileges: without grant_access a role may do nothing; with it, it may use documents but not administration.
SELECT docshard.shard_collection('priv.c', '{"_id": "hashed"}');
SELECT docshard.insert_many('priv.c', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 30) n;
CREATE ROLE regress_app LOGIN;
CREATE ROLE regress_other LOGIN;
SET ROLE regress_app;
SELECT docshard.find('priv.c');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.pack('{}');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM docshard_data.placement;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT docshard.grant_access('nobody_such');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('regress_app', '{"pasword": "x"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('regress_app');
SELECT docshard.grant_access('regress_app');

SET ROLE regress_app;
SELECT docshard.count_documents('priv.c');
-- The casts of arguments of any type.
SELECT docshard.count_documents('priv.c', '{}'::jsonb) AS jsonb, docshard.count_documents('priv.c', '{}'::text) AS text,
       docshard.count_documents('priv.c', '{}'::json, '{}'::varchar) AS varchar;
SELECT docshard.insert_one('priv.c', '{"_id": 31}') -> 'insertedId' AS id;
SELECT docshard.update_many('priv.c', '{}', '{"$set": {"v": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.delete_many('priv.c', '{"_id": {"$gt": 30}}') -> 'deletedCount' AS deleted;
SELECT docshard.find('priv.c', '{"_id": {"$lt": 3}}', '{"sort": {"_id": 1}}');
SELECT name FROM docshard.list_indexes('priv.c');
SELECT namespace, shard FROM docshard.chunks WHERE namespace = 'priv.c' ORDER BY min_key LIMIT 1;
SELECT name, state FROM docshard.shards ORDER BY name;
SELECT name, value FROM docshard.settings WHERE name = 'chunk_size_mb';
-- No administration, and no access to the tables behind it.
SELECT docshard.shard_collection('priv.d', '{"a": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_collection('priv.c');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.add_shard('dbname=x');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.remove_shard('local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.set_setting('chunk_size_mb', '1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_chunk('priv.c', '{"_id": 1}', 'local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('priv.c', '{"a": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('regress_app');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.stop_balancer();
\echo :LAST_ERROR_SQLSTATE
UPDATE docshard_catalog.chunks SET jumbo = true;
\echo :LAST_ERROR_SQLSTATE
DELETE FROM docshard_data.placement;
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM docshard_data.service;
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM docshard_catalog.rotation;
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.rotate_service_password();
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.accept_router('regress_app');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.puller_verifier();
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.create_role('postgres');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.drop_table(1);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.create_table(99, 1, 1, false);
\echo :LAST_ERROR_SQLSTATE
-- A write to an unknown namespace would create a collection.
SELECT docshard.insert_one('priv.new', '{"_id": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('priv.new'), docshard.update_many('priv.new', '{}', '{"$set": {"a": 1}}') -> 'matchedCount' AS matched;
-- A role that may not write to a collection cannot block those that may.
RESET ROLE;
SELECT substring("table" FROM '[0-9]+$') AS number FROM docshard.collections WHERE namespace = 'priv.c' \gset
SELECT token, p.version FROM docshard_data.placement p WHERE collection_id = :number \gset
GRANT USAGE ON SCHEMA docshard_internal TO regress_other;
SET ROLE regress_other;
\set VERBOSITY sqlstate
SELECT docshard_internal.lock_and_check(:number, :token, :version, NULL, NULL);
SELECT docshard_internal.lock_upsert(:number, 1);
SELECT docshard_internal.insert_documents(:number, :token, :version, '\x000000010000000000000004'::bytea || '\x00' || docshard_internal.pack('{}'));
SELECT docshard_internal.delete_document(:number, :token, :version, '\x00', NULL, NULL);
\set VERBOSITY default
SET ROLE regress_app;
SELECT docshard_internal.lock_and_check(:number, :token, :version, NULL, NULL), docshard_internal.lock_upsert(:number, 1);
SELECT docshard_internal.lock_and_check(99999, 1, 1, NULL, NULL);
SELECT docshard_internal.lock_upsert(99999, 1);
-- Collections that an administrator creates later are accessible, too.
RESET ROLE;
SELECT docshard.create_collection('priv.new');
SET ROLE regress_app;
SELECT docshard.insert_one('priv.new', '{"_id": 1}');
SET ROLE regress_other;
SELECT docshard.count_documents('priv.c');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT docshard.count_documents('priv.c');
-- Databases and single collections, to read or to write.
SELECT docshard.create_collection('priv2.a'), docshard.create_collection('priv2.b');
SELECT docshard.revoke_access('regress_app');
SET ROLE regress_app;
SELECT docshard.count_documents('priv.c');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT docshard.grant_access('regress_app', '{"read": ["priv", "priv2.a"], "write": "priv2.b"}');
SELECT * FROM docshard.grants WHERE role = 'regress_app' ORDER BY resource;
SET ROLE regress_app;
SELECT docshard.count_documents('priv.c'), docshard.count_documents('priv2.a');
SELECT docshard.insert_one('priv2.b', '{"_id": 1}'), docshard.count_documents('priv2.b');
SELECT docshard.insert_one('priv.c', '{"_id": 99}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('priv2.a', '{}', '{"$set": {"a": 1}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.delete_many('priv.c', '{}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.run_command('priv', '{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}') -> 'code' AS code;
-- What a role may not read is left out where all collections are described.
RESET ROLE;
SELECT docshard.create_collection('priv2.hidden'), docshard.create_collection('priv3.hidden');
SET ROLE regress_app;
SELECT namespace, name FROM docshard.index_usage ORDER BY namespace, name;
SELECT docshard.run_command('priv2', '{"dbStats": 1}') -> 'collections' AS collections;
SELECT docshard.run_command('priv3', '{"dbStats": 1}') -> 'collections' AS collections;
SELECT docshard.run_command('admin', '{"listDatabases": 1, "filter": {"name": "priv3"}}') -> 'databases' AS databases;
RESET ROLE;
SELECT count(*) AS hidden FROM docshard.index_usage WHERE namespace LIKE 'priv_.hidden';
SELECT docshard.drop_collection('priv2.hidden'), docshard.drop_collection('priv3.hidden');
SET ROLE regress_app;
-- The router checks the rights for its own documents itself.
SELECT count(*) >= 0 AS readable FROM docshard_data.placement;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- Members of a role have its rights; a member that does not inherit has none.
CREATE ROLE regress_member LOGIN IN ROLE regress_app;
CREATE ROLE regress_outsider LOGIN NOINHERIT IN ROLE regress_app;
SET ROLE regress_member;
SELECT docshard.count_documents('priv.c'), docshard.insert_one('priv2.b', '{"_id": 2}');
SET ROLE regress_outsider;
SELECT docshard.count_documents('priv.c');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- A SECURITY DEFINER function has its owner's rights.
CREATE FUNCTION priv_count() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  AS $$ SELECT docshard.count_documents('priv2.b') $$;
ALTER FUNCTION priv_count() OWNER TO regress_app;
GRANT USAGE ON SCHEMA docshard TO regress_other;
SET ROLE regress_other;
SELECT priv_count();
SELECT docshard.count_documents('priv2.b');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.run_command('priv2', '{"ping": 1}') - 'hint' AS answer;
SELECT * FROM docshard.list_shards();
-- No function tells such a role about a schema that it need not know.
DO $$
DECLARE called text;
BEGIN
    FOR called IN
        SELECT format('SELECT docshard.%I(%s)', p.proname, (
               SELECT string_agg(CASE WHEN t IN ('text'::regtype, 'varchar'::regtype) THEN $v$'priv2.b'$v$ WHEN t = 'bool'::regtype THEN 'false'
                                      WHEN t IN ('int4'::regtype, 'int8'::regtype) THEN '1' ELSE $v$'{}'$v$ END || '::' || format_type(t, NULL), ', ' ORDER BY o)
                 FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, o)))
          FROM pg_proc p WHERE p.pronamespace = 'docshard'::regnamespace AND has_function_privilege(p.oid, 'EXECUTE')
        UNION ALL
        SELECT format('SELECT * FROM docshard.%I', c.relname) FROM pg_class c WHERE c.relnamespace = 'docshard'::regnamespace AND c.relkind = 'v' AND has_table_privilege(c.oid, 'SELECT')
        ORDER BY 1
    LOOP
        BEGIN
            EXECUTE called;
        EXCEPTION WHEN OTHERS THEN
            IF SQLERRM ~ 'docshard_(catalog|data)' THEN
                RAISE NOTICE '%: %', called, SQLERRM;
            END IF;
        END;
    END LOOP;
END $$;
RESET ROLE;
REVOKE USAGE ON SCHEMA docshard FROM regress_other;
DROP FUNCTION priv_count;
-- Both kinds in one transaction, and after an error.
BEGIN;
SET LOCAL ROLE regress_app;
SELECT docshard.insert_one('priv2.b', '{"_id": 3}');
SAVEPOINT s;
SELECT docshard.insert_one('priv.c', '{"_id": 99}');
ROLLBACK TO s;
SELECT docshard.insert_one('priv2.b', '{"_id": 4}');
SET LOCAL ROLE postgres;
SELECT docshard.insert_one('priv.c', '{"_id": 99}');
SET LOCAL ROLE regress_app;
SELECT docshard.count_documents('priv2.b'), docshard.count_documents('priv.c');
ROLLBACK;
SELECT docshard.count_documents('priv2.b'), docshard.count_documents('priv.c');
-- Grants are revoked.
SELECT docshard.revoke_access('regress_app', '{"read": "priv.c"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.revoke_access('regress_app', '{"write": "priv2.b"}');
SET ROLE regress_app;
SELECT docshard.count_documents('priv2.b');
SELECT docshard.insert_one('priv2.b', '{"_id": 5}');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT docshard.grant_access('regress_app', '{"read": 5}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('regress_app', '{"read": "a$b"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('pg_monitor');
\echo :LAST_ERROR_SQLSTATE
-- Monitoring needs no access to documents; an administrator need not be a superuser.
CREATE ROLE regress_monitor LOGIN IN ROLE pg_monitor;
CREATE ROLE regress_dba LOGIN;
GRANT USAGE ON SCHEMA docshard, docshard_internal TO regress_dba;
GRANT EXECUTE ON FUNCTION docshard.create_collection(text, json), docshard.shard_collection(text, json, json), docshard.move_chunk, docshard.drop_database, docshard.create_index(text, json, json) TO regress_dba;
SET ROLE regress_monitor;
SELECT docshard.status() LIKE '%priv2%' AS status, docshard.balancer_status() ->> 'mode' AS mode;
SELECT count(*) > 0 AS rows FROM docshard.get_shard_distribution('priv.c');
SELECT docshard.count_documents('priv.c');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_database('priv2');
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_dba;
SELECT docshard.shard_collection('priv3.c', '{"k": 1}');
SELECT docshard.create_index('priv3.c', '{"n": 1}');
SELECT docshard.drop_database('priv3');
SELECT docshard.count_documents('priv.c');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- A role with grants cannot be dropped; after a revoke it can.
\set VERBOSITY terse
DROP ROLE regress_app;
\set VERBOSITY default
SELECT docshard.revoke_access('regress_app');
DROP ROLE regress_member, regress_outsider, regress_app, regress_monitor;
DROP OWNED BY regress_dba;
DROP ROLE regress_dba;
SELECT * FROM docshard.grants WHERE role LIKE 'regress_%' AND role NOT IN ('regress_cm', 'regress_counter', 'regress_commands', 'regress_config', 'regress_cursors');
SELECT docshard.drop_database('priv2');
-- The functions that PUBLIC may call.
\pset format unaligned
SELECT DISTINCT p.pronamespace::regnamespace || '.' || p.proname AS function FROM pg_proc p
 WHERE p.pronamespace IN ('docshard'::regnamespace, 'docshard_internal'::regnamespace) AND has_function_privilege('regress_other', p.oid, 'EXECUTE')
 ORDER BY 1;
\pset format aligned
SELECT docshard.drop_database('priv');
