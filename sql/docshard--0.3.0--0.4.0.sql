-- From 0.3.0 to 0.4.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

-- All tables that are changed are locked before the first change. A worker that reads a table and then writes to it would otherwise deadlock
-- with this script, which first takes a weak lock, and later a strong one.
DO $$
DECLARE
    tables CONSTANT text := (
        SELECT pg_catalog.string_agg(pg_catalog.format('%I.%I', n.nspname, c.relname), ', ' ORDER BY c.oid)
          FROM pg_catalog.pg_extension e
          JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.refobjid = e.oid AND d.deptype = 'e'
          JOIN pg_catalog.pg_class c ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid AND c.relkind = 'r'
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
         WHERE e.extname = 'docshard');
BEGIN
    FOR attempt IN 1..3000 LOOP
        BEGIN
            EXECUTE 'LOCK TABLE ' || tables || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            -- What has been locked is free again.
            PERFORM pg_catalog.pg_sleep(0.02);
        END;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = 'tables of docshard are in use',
        HINT = 'Repeat ALTER EXTENSION docshard UPDATE when no transaction that has used docshard is open.';
END $$;

-- The database config: unsharded collections that are not on their primary shard, running moves, the balancer's last round, automerge, and
-- what MongoDB's clients count in the changelog. A move that has ended, or was given up, also has the entry moveChunk.from, which MongoDB's
-- clients count.
CREATE OR REPLACE VIEW docshard_internal.config_changelog AS
SELECT l.id * 2 + e.n AS position, l.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', 'config-' || pg_catalog.to_char(l.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || '-' || l.id || e.suffix,
         'server', 'config', 'shard', 'config', 'clientAddr', '', 'time', docshard_internal.config_date(l.at),
         'what', coalesce(e.what, l.what), 'ns', coalesce(l.namespace, ''), 'details', l.details::jsonb || e.details) AS doc
  FROM docshard_catalog.changelog l,
       LATERAL (SELECT 0, '', NULL::text, '{}'::jsonb
                UNION ALL SELECT 1, '-from', 'moveChunk.from', '{"note": "success"}' WHERE l.what = 'moveChunk'
                UNION ALL SELECT 1, '-from', 'moveChunk.from', '{"note": "aborted"}' WHERE l.what = 'moveChunk.error')
         AS e (n, suffix, what, details);

-- An unsharded collection is in config.collections and config.chunks while it is not on its database's primary shard.
CREATE OR REPLACE VIEW docshard_internal.config_collections AS
SELECT c.namespace COLLATE "C" AS position, c.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', c.namespace, 'key', coalesce(c.key::jsonb, '{"_id": 1}'), 'unique', c.is_unique, 'noBalance', NOT c.balance, 'dropped', false,
         'uuid', docshard_internal.collection_uuid(c.id, c.token),
         'lastmodEpoch', docshard_internal.config_object_id(c.created_at, c.token),
         'lastmod', docshard_internal.config_date(c.created_at),
         'timestamp', docshard_internal.config_timestamp(extract(epoch FROM c.created_at)::bigint, c.id))
       || CASE WHEN c.chunk_size_mb IS NULL THEN '{}'::jsonb
               ELSE pg_catalog.jsonb_build_object('maxChunkSizeBytes', c.chunk_size_mb::bigint * 1048576) END
       || CASE WHEN c.key IS NULL THEN '{"unsplittable": true}' ELSE '{}'::jsonb END AS doc
  FROM docshard_catalog.collections c
 WHERE c.key IS NOT NULL
    OR EXISTS (SELECT FROM docshard_catalog.chunks k JOIN docshard_catalog.databases d ON d.name = c.database
                WHERE k.collection_id = c.id AND k.shard_id <> d.primary_shard);

CREATE OR REPLACE VIEW docshard_internal.config_chunks AS
SELECT c.namespace || ' ' || pg_catalog.encode(k.min, 'hex') COLLATE "C" AS position, c.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', pg_catalog.jsonb_build_object('$oid', pg_catalog.substr(
                  pg_catalog.md5(c.id || ' ' || c.token || ' ' || pg_catalog.encode(k.min, 'hex')), 1, 24)),
         'uuid', docshard_internal.collection_uuid(c.id, c.token), 'ns', c.namespace,
         'min', CASE WHEN c.key IS NULL THEN '{"_id": {"$minKey": 1}}' ELSE docshard_internal.bound_json(c.key::text, k.min)::jsonb END,
         'max', CASE WHEN c.key IS NULL THEN '{"_id": {"$maxKey": 1}}' ELSE docshard_internal.bound_json(c.key::text, k.max)::jsonb END,
         'shard', s.name, 'lastmod', docshard_internal.config_timestamp(k.version, 0),
         'lastmodEpoch', docshard_internal.config_object_id(c.created_at, c.token))
       || CASE WHEN k.jumbo THEN '{"jumbo": true}' ELSE '{}'::jsonb END AS doc
  FROM docshard_catalog.chunks k
  JOIN docshard_catalog.collections c ON c.id = k.collection_id
  JOIN docshard_catalog.shards s ON s.id = k.shard_id
 WHERE c.key IS NOT NULL
    OR k.shard_id <> (SELECT d.primary_shard FROM docshard_catalog.databases d WHERE d.name = c.database);

-- The last round of the balancer.
CREATE VIEW docshard_internal.config_actionlog AS
SELECT 1 AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object(
         '_id', 'balancer-' || pg_catalog.to_char(b.last_round_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
         'server', 'config', 'shard', 'config', 'clientAddr', '', 'time', docshard_internal.config_date(b.last_round_at),
         'what', 'balancer.round', 'ns', '',
         'details', pg_catalog.jsonb_build_object('errorOccured', b.last_error IS NOT NULL)
           || CASE WHEN b.last_error IS NULL THEN '{}'::jsonb ELSE pg_catalog.jsonb_build_object('errmsg', b.last_error) END) AS doc
  FROM docshard_catalog.balancer_state b WHERE b.last_round_at IS NOT NULL;

-- Collections with a running move.
CREATE VIEW docshard_internal.config_locks AS
SELECT m.namespace COLLATE "C" AS position, m.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', m.namespace, 'state', 2, 'process', 'ConfigServer', 'who', 'ConfigServer:balancer',
         'when', docshard_internal.config_date(pg_catalog.min(m.started_at)), 'why', 'Migrating chunk(s) in collection ' || m.namespace) AS doc
  FROM docshard_catalog.migrations m WHERE m.state <> 'done' GROUP BY m.namespace;

CREATE OR REPLACE VIEW docshard_internal.config_settings AS
SELECT position, NULL::text AS ns, doc FROM (
    SELECT e.position, pg_catalog.jsonb_build_object('_id', e.name, 'enabled', s.value = 'true')
      FROM docshard.settings s, (VALUES (0, 'automerge'), (1, 'autosplit')) AS e (position, name) WHERE s.name = 'balancer_enabled'
    UNION ALL
    SELECT 2, pg_catalog.jsonb_build_object(
             '_id', 'balancer', 'mode', CASE s.value WHEN 'true' THEN 'full' ELSE 'off' END, 'stopped', s.value <> 'true')
           || CASE WHEN a.value = '' OR o.value = '' THEN '{}'::jsonb ELSE pg_catalog.jsonb_build_object(
                'activeWindow', pg_catalog.jsonb_build_object('start', a.value, 'stop', o.value)) END
      FROM docshard.settings s
      JOIN docshard.settings a ON a.name = 'active_window_start'
      JOIN docshard.settings o ON o.name = 'active_window_stop'
     WHERE s.name = 'balancer_enabled'
    UNION ALL
    SELECT 3, pg_catalog.jsonb_build_object('_id', 'chunksize', 'value', s.value::bigint)
      FROM docshard.settings s WHERE s.name = 'chunk_size_mb') AS settings (position, doc);

CREATE OR REPLACE VIEW docshard_internal.config_mongos AS
SELECT 1 AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object(
         '_id', coalesce(pg_catalog.host(pg_catalog.inet_server_addr()), 'localhost') || ':' || pg_catalog.current_setting('port'),
         'ping', docshard_internal.config_date(pg_catalog.clock_timestamp()),
         'up', extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::bigint,
         'waiting', true, 'mongoVersion', '8.0.0',
         'docshardVersion', (SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard')) AS doc;

GRANT SELECT ON docshard_internal.config_actionlog, docshard_internal.config_locks TO PUBLIC;

CREATE FUNCTION docshard.rename_collection(ns text, "to" text, options json DEFAULT '{}')
    RETURNS json VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    LANGUAGE c AS 'MODULE_PATHNAME', 'rename_collection_wrapper';
REVOKE ALL ON FUNCTION docshard.rename_collection(text, text, json) FROM PUBLIC;

-- New objects belong to the extension's owner, not to who updates it.
DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(extowner) FROM pg_catalog.pg_extension WHERE extname = 'docshard');
BEGIN
    EXECUTE pg_catalog.format('ALTER FUNCTION docshard.rename_collection(text, text, json) OWNER TO %I', owner);
    EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION docshard.rename_collection(text, text, json) FROM PUBLIC');
    EXECUTE pg_catalog.format('ALTER VIEW docshard_internal.config_actionlog OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER VIEW docshard_internal.config_locks OWNER TO %I', owner);
END $$;

-- Foreign tables: see sql/tables.sql.
CREATE FUNCTION docshard_internal.fdw_handler() RETURNS fdw_handler STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'fdw_handler_wrapper';
REVOKE ALL ON FUNCTION docshard_internal.fdw_handler() FROM PUBLIC;
CREATE FUNCTION docshard_internal.fdw_validator(options text[], catalog oid) RETURNS void
STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'fdw_validator_wrapper';
REVOKE ALL ON FUNCTION docshard_internal.fdw_validator(text[], oid) FROM PUBLIC;
CREATE FUNCTION docshard.import_database(db text, schema text) RETURNS void
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'import_database_wrapper';
CREATE FOREIGN DATA WRAPPER docshard HANDLER docshard_internal.fdw_handler VALIDATOR docshard_internal.fdw_validator;
CREATE SERVER docshard FOREIGN DATA WRAPPER docshard;
COMMENT ON FOREIGN DATA WRAPPER docshard IS 'docshard: collections as tables';
COMMENT ON SERVER docshard IS 'docshard: the collections of this cluster';
REVOKE ALL ON FUNCTION docshard.import_database(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION docshard.import_database(text, text) TO PUBLIC;
DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(extowner) FROM pg_catalog.pg_extension WHERE extname = 'docshard');
BEGIN
    EXECUTE pg_catalog.format('ALTER FUNCTION docshard.import_database(text, text) OWNER TO %I', owner);
    -- Only a superuser may own a foreign-data wrapper.
    IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = owner) THEN
        EXECUTE pg_catalog.format('ALTER FOREIGN DATA WRAPPER docshard OWNER TO %I', owner);
        EXECUTE pg_catalog.format('ALTER SERVER docshard OWNER TO %I', owner);
    END IF;
END $$;

-- Validators of collections.
ALTER TABLE docshard_catalog.collections ADD COLUMN validation text;
COMMENT ON COLUMN docshard_catalog.collections.validation IS 'validator, validationLevel and validationAction as they were set, as JSON; null: nothing is';
ALTER TABLE docshard_data.placement ADD COLUMN validator_id bigint, ADD COLUMN validator text;
COMMENT ON COLUMN docshard_data.placement.validator IS 'the definition of the validator of new documents, as JSON; null: none. Its validator_id is equal for equal definitions';
CREATE OR REPLACE VIEW docshard.collections AS
SELECT c.namespace, c.database, c.key IS NOT NULL AS sharded, c.key, c.is_unique AS "unique", c.balance, c.chunk_size_mb,
       (SELECT count(*) FROM docshard_catalog.chunks k WHERE k.collection_id = c.id) AS chunks,
       'docshard_data.c' || c.id AS "table", c.version, c.created_at, c.collation_spec AS "collation",
       c.validation::json AS validation
  FROM docshard_catalog.collections c
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.');
COMMENT ON COLUMN docshard.collections.validation IS 'validator, validationLevel and validationAction, as far as they are set';

CREATE FUNCTION docshard_internal.set_validator(collection int, token bigint, definition text) RETURNS void
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'set_validator_wrapper';

-- Writes that MongoDB's clients number, and are executed once.
CREATE TABLE docshard_data.numbered_writes (
    session       bytea NOT NULL,
    received      bool NOT NULL,
    number        bigint NOT NULL,
    command       text NOT NULL,
    collection_id int NOT NULL,
    skey          bytea NOT NULL,
    answer        bigint,
    reply         bytea,
    written_at    timestamptz NOT NULL DEFAULT pg_catalog.now(),
    written_by    xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    PRIMARY KEY (session, received)
) WITH (fillfactor = 50);
COMMENT ON TABLE docshard_data.numbered_writes IS 'Of each session of MongoDB''s clients the last write that was executed here, which a client that sends it again must not repeat; not dumped';
COMMENT ON COLUMN docshard_data.numbered_writes.session IS 'the number of the session''s role at the router, and the session''s UUID';
COMMENT ON COLUMN docshard_data.numbered_writes.received IS 'a move has brought the row';
COMMENT ON COLUMN docshard_data.numbered_writes.command IS 'empty if only the number is known: a write that was executed elsewhere';
COMMENT ON COLUMN docshard_data.numbered_writes.written_by IS 'the transaction, by which a move finds the rows that it has not copied';
COMMENT ON COLUMN docshard_data.numbered_writes.skey IS 'the key with whose range the row moves; with the empty one, with any range of the collection';
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON docshard_data.numbered_writes EXECUTE FUNCTION docshard_internal.capture_change();
ALTER TABLE docshard_data.numbered_writes ENABLE ALWAYS TRIGGER refuse_truncate;

CREATE FUNCTION docshard_internal.claim_write(collection int, token bigint, version bigint, number bytea, skey bytea) RETURNS bytea
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'claim_write_wrapper';
CREATE FUNCTION docshard_internal.find_violations(collection int, token bigint, version bigint, documents bytea) RETURNS text
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'find_violations_wrapper';
CREATE FUNCTION docshard_internal.remember_reply(collection int, token bigint, version bigint, number bytea, reply bytea) RETURNS bool
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'remember_reply_wrapper';
CREATE FUNCTION docshard_internal.insert_once(collection int, token bigint, version bigint, number bytea, documents bytea) RETURNS bigint
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insert_once_wrapper';
CREATE FUNCTION docshard_internal.update_once(collection int, token bigint, version bigint, number bytea, skey bytea, id bytea, filter text,
    update text, fixed text[]) RETURNS bigint
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'update_once_wrapper';
CREATE FUNCTION docshard_internal.delete_once(collection int, token bigint, version bigint, number bytea, skey bytea, id bytea, filter text)
RETURNS bigint
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'delete_once_wrapper';
CREATE FUNCTION docshard_internal.forget_numbered_writes(most bigint) RETURNS bigint
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'forget_numbered_writes_wrapper';
CREATE FUNCTION docshard_internal.numbered_writes(collection int, lo bytea, hi bytea, since text, after bytea) RETURNS text
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'numbered_writes_wrapper';
CREATE FUNCTION docshard_internal.load_numbered_writes(writes text) RETURNS bytea
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'load_numbered_writes_wrapper';

-- The order of documents' fields, on the ways on which documents are text.
CREATE FUNCTION docshard_internal.detach_order(doc jsonb) RETURNS bytea
IMMUTABLE STRICT PARALLEL SAFE COST 20 LANGUAGE c AS 'MODULE_PATHNAME', 'detach_order_wrapper';
CREATE FUNCTION docshard_internal.attach_order(doc jsonb, detached bytea) RETURNS jsonb
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'attach_order_wrapper';
CREATE OR REPLACE VIEW docshard_data.capture_changes AS
SELECT l.migration_id, l.seq, l.skey, l.id, d.doc, docshard_internal.detach_order(d.doc) AS field_order
  FROM docshard_data.capture_log l,
       LATERAL (SELECT docshard_internal.current_document(l.collection_id, l.skey, l.id) AS doc OFFSET 0) AS d;
CREATE TABLE docshard_data.field_orders (
    collection_id int NOT NULL,
    skey          bytea NOT NULL,
    id            bytea NOT NULL,
    field_order   bytea NOT NULL
);
COMMENT ON TABLE docshard_data.field_orders IS 'Empty: a dump has the order of documents'' fields in its place';
-- A dump has documents as text, which has no order of fields. Instead of the rows of `field_orders`, which has none, a dump has what
-- `field_orders()` returns. When they are restored, after the documents, the documents get the order again.
CREATE FUNCTION docshard_internal.field_orders()
RETURNS TABLE (collection_id int, skey bytea, id bytea, field_order bytea)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE number text;
BEGIN
    FOR number IN SELECT pg_catalog.substr(c.relname, 2) FROM pg_catalog.pg_class c
                   WHERE c.relnamespace = 'docshard_data'::pg_catalog.regnamespace AND c.relkind = 'r' AND c.relname ~ '^c[0-9]{1,9}$'
                   ORDER BY c.oid
    LOOP
        RETURN QUERY EXECUTE pg_catalog.format(
            'SELECT %s, d.skey, d.id, d.detached FROM (SELECT t.skey, t.id, docshard_internal.detach_order(t.doc) AS detached '
            'FROM ONLY docshard_data.c%s t OFFSET 0) AS d WHERE d.detached IS NOT NULL', number, number);
    END LOOP;
END $$;
CREATE FUNCTION docshard_internal.restore_field_orders() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE number int;
BEGIN
    FOR number IN SELECT DISTINCT r.collection_id FROM restored r
                   WHERE pg_catalog.to_regclass('docshard_data.c' || r.collection_id) IS NOT NULL
    LOOP
        EXECUTE pg_catalog.format(
            'UPDATE ONLY docshard_data.c%s t SET doc = docshard_internal.attach_order(t.doc, r.field_order) '
            'FROM restored r WHERE r.collection_id = %s AND (t.skey, t.id) = (r.skey, r.id)', number, number);
    END LOOP;
    DELETE FROM docshard_data.field_orders;
    RETURN NULL;
END $$;
CREATE TRIGGER restore_field_orders AFTER INSERT ON docshard_data.field_orders
    REFERENCING NEW TABLE AS restored FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.restore_field_orders();
SELECT pg_catalog.pg_extension_config_dump('docshard_data.field_orders',
    'WHERE false UNION ALL SELECT f.* FROM docshard_internal.field_orders() AS f');
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON docshard_data.field_orders EXECUTE FUNCTION docshard_internal.capture_change();
ALTER TABLE docshard_data.field_orders ENABLE ALWAYS TRIGGER refuse_truncate;

DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(extowner) FROM pg_catalog.pg_extension WHERE extname = 'docshard');
    service CONSTANT regrole := (SELECT s.role FROM docshard_data.service s JOIN pg_catalog.pg_roles r ON r.oid = s.role);
    target record;
BEGIN
    EXECUTE pg_catalog.format('ALTER TABLE docshard_data.numbered_writes OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER TABLE docshard_data.field_orders OWNER TO %I', owner);
    FOR target IN
        SELECT 'EXECUTE ON FUNCTION ' || p.oid::pg_catalog.regprocedure AS privilege, 'pg_catalog.pg_proc'::pg_catalog.regclass AS class, p.oid,
               p.oid::pg_catalog.regprocedure AS function,
               p.proname IN ('claim_write', 'find_violations', 'remember_reply', 'insert_once', 'update_once', 'delete_once', 'detach_order',
                             'attach_order') AS is_for_all
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'docshard_internal'::pg_catalog.regnamespace
           AND p.proname IN ('claim_write', 'find_violations', 'remember_reply', 'insert_once', 'update_once', 'delete_once', 'detach_order', 'attach_order',
                             'field_orders', 'restore_field_orders',
                             'forget_numbered_writes', 'numbered_writes', 'load_numbered_writes', 'set_validator', 'fdw_handler', 'fdw_validator')
        UNION ALL
        SELECT 'SELECT, INSERT, UPDATE, DELETE ON docshard_data.numbered_writes', 'pg_catalog.pg_class',
               'docshard_data.numbered_writes'::pg_catalog.regclass, NULL, false
        UNION ALL
        SELECT 'SELECT, INSERT, UPDATE, DELETE ON docshard_data.field_orders', 'pg_catalog.pg_class',
               'docshard_data.field_orders'::pg_catalog.regclass, NULL, false
    LOOP
        IF target.function IS NOT NULL THEN
            EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO %I', target.function, owner);
            EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', target.function);
        END IF;
        IF target.is_for_all THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', target.function);
        END IF;
        -- As in the script before: what a script grants counts as initial, which pg_dump leaves out, so that is undone.
        IF service IS NOT NULL THEN
            DECLARE
                initial CONSTANT aclitem[] := (SELECT i.initprivs FROM pg_catalog.pg_init_privs i
                                                WHERE i.classoid = target.class AND i.objoid = target.oid AND i.objsubid = 0);
            BEGIN
                EXECUTE pg_catalog.format('GRANT %s TO %s', target.privilege, service);
                UPDATE pg_catalog.pg_init_privs SET initprivs = initial
                 WHERE classoid = target.class AND objoid = target.oid AND objsubid = 0 AND initial IS NOT NULL;
                DELETE FROM pg_catalog.pg_init_privs
                 WHERE classoid = target.class AND objoid = target.oid AND objsubid = 0 AND initial IS NULL;
            END;
        END IF;
    END LOOP;
END $$;

-- Which server has begun a move that was begun before is not known: it is judged as that of another one.
ALTER TABLE docshard_catalog.migrations ADD COLUMN server_started_at timestamptz NOT NULL DEFAULT '-infinity';
ALTER TABLE docshard_catalog.migrations ALTER COLUMN server_started_at SET DEFAULT pg_catalog.pg_postmaster_start_time();
COMMENT ON COLUMN docshard_catalog.migrations.server_started_at IS 'the start of the server whose process moves the chunk: another one may lack the decision';
-- The epoch of this router at a shard that has reported one which a take-over did not follow.
ALTER TABLE docshard_catalog.contacts ADD COLUMN epoch bigint;
COMMENT ON COLUMN docshard_catalog.contacts.epoch IS 'the epoch of this router at the shard, if it is higher than that of docshard_catalog.cluster: the shard had reported one that was not followed';
-- What the router has changed in its own database alone.
ALTER TABLE docshard_data.node ADD COLUMN definitions bigint;
COMMENT ON COLUMN docshard_data.node.definitions IS 'the newest entry of the router''s changelog that changes a definition: a copy of the router without it is older; null: not known';

CREATE OR REPLACE VIEW docshard.index_usage AS
SELECT c.namespace, s.name, s.keys::text::json AS keys, s.accesses, s.bytes, s.since, s.shards
  FROM docshard_catalog.collections c
 CROSS JOIN LATERAL (
       SELECT i.name, i.keys::text AS keys, pg_catalog.sum(i.accesses)::bigint AS accesses, pg_catalog.sum(i.bytes)::bigint AS bytes,
              pg_catalog.min(i.since) AS since, pg_catalog.count(*) AS shards
         FROM docshard.index_stats(c.namespace) i GROUP BY i.name, i.keys::text) s
-- As a read of the collection: the view leaves out what the caller may not read. It also leaves out the copy that a change of a layout makes.
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.')
   AND ((SELECT r.rolsuper OR r.oid = e.extowner FROM pg_catalog.pg_roles r, pg_catalog.pg_extension e
          WHERE r.rolname = current_user AND e.extname = 'docshard')
     OR EXISTS (SELECT FROM docshard_catalog.grants g
                 WHERE g.resource IN ('*', c.database, c.namespace) AND pg_catalog.pg_has_role(g.role, 'USAGE')));

-- Roles may own databases: create, change and drop collections.
ALTER TABLE docshard_catalog.grants DROP CONSTRAINT grants_level_check;
ALTER TABLE docshard_catalog.grants ADD CONSTRAINT grants_level_check CHECK (level IN ('read', 'write', 'own'));

-- The order of fields is kept when all shards have this release.
ALTER TABLE docshard_catalog.cluster ADD COLUMN keeps_order boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN docshard_catalog.cluster.keeps_order IS 'documents keep the order of their fields: all shards have a release that knows it';
ALTER TABLE docshard_catalog.cluster ADD COLUMN timeline bigint NOT NULL
    DEFAULT ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint;
-- After a failover before this update, numbers were not left out yet.
UPDATE docshard_catalog.cluster SET timeline = 1;
COMMENT ON COLUMN docshard_catalog.cluster.timeline IS 'the timeline of the router''s WAL in which numbers of collections, indexes, migrations, shards and entries of the changelog were last assigned';
UPDATE docshard_catalog.cluster SET keeps_order = false
 WHERE EXISTS (SELECT FROM docshard_catalog.shards WHERE server IS NOT NULL);

-- The keeper ends the sessions of a replaced router also after it was restarted itself.
ALTER TABLE docshard_catalog.contacts ADD COLUMN must_fence boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN docshard_catalog.contacts.must_fence IS 'sessions of a router that this one has replaced may go on at the shard: the keeper ends them';

-- Changes of a collection's layout.
-- A copy into which a collection's documents are copied is not listed.
CREATE OR REPLACE VIEW docshard.shards AS
SELECT s.name, s.id,
       CASE WHEN s.server IS NULL THEN 'this database' ELSE coalesce(o.host, '') || coalesce(':' || o.port, '') || coalesce('/' || o.dbname, '') END AS host,
       CASE WHEN s.draining THEN 'draining' ELSE 'active' END AS state,
       s.max_size_mb, s.server,
       (SELECT count(*) FROM docshard_catalog.chunks k JOIN docshard_catalog.collections c ON c.id = k.collection_id
         WHERE k.shard_id = s.id AND NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.')) AS chunks,
       s.added_at
  FROM docshard_catalog.shards s
  LEFT JOIN pg_catalog.pg_foreign_server f ON f.srvname = s.server
  LEFT JOIN LATERAL (
        SELECT max(option_value) FILTER (WHERE option_name = 'host') AS host,
               max(option_value) FILTER (WHERE option_name = 'port') AS port,
               max(option_value) FILTER (WHERE option_name = 'dbname') AS dbname
          FROM pg_catalog.pg_options_to_table(f.srvoptions)) o ON true;
CREATE OR REPLACE VIEW docshard.databases AS
SELECT d.name, s.name AS primary_shard, d.partitioned,
       (SELECT count(*) FROM docshard_catalog.collections c
         WHERE c.database = d.name AND NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.')) AS collections
  FROM docshard_catalog.databases d
  JOIN docshard_catalog.shards s ON s.id = d.primary_shard;
CREATE OR REPLACE VIEW docshard.chunks AS
SELECT c.namespace, s.name AS shard,
       docshard_internal.bound_json(c.key::text, k.min) AS min,
       docshard_internal.bound_json(c.key::text, k.max) AS max,
       k.jumbo, k.version, k.min AS min_key, k.max AS max_key
  FROM docshard_catalog.chunks k
  JOIN docshard_catalog.collections c ON c.id = k.collection_id
  JOIN docshard_catalog.shards s ON s.id = k.shard_id
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.');
CREATE OR REPLACE VIEW docshard.indexes AS
SELECT c.namespace, i.name, i.keys, i.is_unique AS "unique", i.is_hidden AS hidden, i.is_sparse AS sparse, i.partial_filter,
       i.expire_after_s, i.collation_spec AS "collation", i.wildcard_projection, 'i' || i.id AS relation
  FROM docshard_catalog.indexes i
  JOIN docshard_catalog.collections c ON c.id = i.collection_id
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.');

CREATE TABLE docshard_catalog.resharding (
    id            bigint PRIMARY KEY,
    collection_id int NOT NULL,
    copy_id       int NOT NULL,
    namespace     text NOT NULL,
    copy          text NOT NULL,
    command       text NOT NULL,
    old_key       json,
    key           json,
    request       bigint,
    state         text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'committed', 'aborted', 'done')),
    outcome       text NOT NULL DEFAULT 'running',
    step          text NOT NULL DEFAULT 'registered',
    documents     bigint NOT NULL DEFAULT 0,
    bytes         bigint NOT NULL DEFAULT 0,
    estimated     bigint NOT NULL DEFAULT 0,
    rounds        int NOT NULL DEFAULT 0,
    lag           bigint NOT NULL DEFAULT 0,
    stall_ms      bigint NOT NULL DEFAULT 0,
    attempts      int NOT NULL DEFAULT 0,
    commit_now    boolean NOT NULL DEFAULT false,
    error         text,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    step_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    server_started_at timestamptz NOT NULL DEFAULT pg_catalog.pg_postmaster_start_time(),
    CONSTRAINT resharding_outcome
               CHECK (CASE state WHEN 'done' THEN outcome IN ('committed', 'aborted') ELSE outcome = state END)
);
CREATE UNIQUE INDEX resharding_running ON docshard_catalog.resharding (namespace) WHERE state = 'running';
COMMENT ON TABLE docshard_catalog.resharding IS 'Changes of the layout of collections: durable state. running -> committed gives the copy the collection''s name; committed and aborted -> done when everything is cleaned up. Numbers are those of migrations';
COMMENT ON COLUMN docshard_catalog.resharding.copy_id IS 'the collection into which the documents are copied; copy: its name, until it gets that of the collection';
COMMENT ON COLUMN docshard_catalog.resharding.command IS 'reshardCollection, moveCollection, unshardCollection or compact';
COMMENT ON COLUMN docshard_catalog.resharding.key IS 'the new shard key; null: unsharded';
COMMENT ON COLUMN docshard_catalog.resharding.request IS 'a hash of the requested layout with all its options: a call for the same one waits for this change';
COMMENT ON COLUMN docshard_catalog.resharding.outcome IS 'the decision: running (none yet), committed or aborted; stays when the state is done';
COMMENT ON COLUMN docshard_catalog.resharding.commit_now IS 'writers may wait longer than docshard.max_write_stall';
COMMENT ON COLUMN docshard_catalog.resharding.server_started_at IS 'the start of the server whose process changes the layout: another one may lack the decision';
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON docshard_catalog.resharding EXECUTE FUNCTION docshard_internal.capture_change();
ALTER TABLE docshard_catalog.resharding ENABLE ALWAYS TRIGGER refuse_truncate;
SELECT pg_catalog.pg_extension_config_dump('docshard_catalog.resharding', '');
GRANT SELECT ON docshard_catalog.resharding TO PUBLIC;
CREATE VIEW docshard.resharding AS
SELECT r.id, r.namespace, r.command, r.state, r.outcome, r.step, r.old_key, r.key, r.documents, r.bytes, r.estimated,
       CASE WHEN r.state = 'running' AND r.step = 'cloning' AND r.documents > 0 AND r.estimated >= r.documents
            THEN pg_catalog.make_interval(secs => extract(epoch FROM r.updated_at - r.step_at)::float8
                                                  * (r.estimated - r.documents) / r.documents) END AS remaining,
       r.rounds, r.lag, r.stall_ms, r.attempts, r.error, r.started_at, r.updated_at
  FROM docshard_catalog.resharding r;
COMMENT ON VIEW docshard.resharding IS 'Changes of the layout of collections (shard key, chunks, shards): running ones and ended ones';
COMMENT ON COLUMN docshard.resharding.outcome IS 'committed: the collection has its new layout; aborted: it keeps the old one; running: nothing is decided';
COMMENT ON COLUMN docshard.resharding.documents IS 'the number copied so far; estimated: the expected number';
COMMENT ON COLUMN docshard.resharding.remaining IS 'an estimate of the time until all documents are copied; null in other steps';
COMMENT ON COLUMN docshard.resharding.lag IS 'the number of changed keys in the last round that copied changes';
COMMENT ON COLUMN docshard.resharding.stall_ms IS 'how long writers had to wait for the decision';
COMMENT ON COLUMN docshard.resharding.attempts IS 'how often the decision was put off because writers would have waited for too long';
COMMENT ON COLUMN docshard.health.last_contact IS 'when the router last heard of it; every 5 seconds, unless it is asked now';
GRANT SELECT ON docshard.resharding TO PUBLIC;

-- Statements are sampled, for advice on shard keys.
ALTER TABLE docshard_catalog.collections ADD COLUMN sampled_every_us bigint CHECK (sampled_every_us > 0);
COMMENT ON COLUMN docshard_catalog.collections.sampled_every_us IS 'statements are sampled, at most one in this number of microseconds; null: they are not';
CREATE TABLE docshard_catalog.sampled_statements (
    id            bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    collection_id int NOT NULL,
    at            timestamptz NOT NULL,
    kind          text NOT NULL,
    filter        text NOT NULL,
    modification  text,
    many          boolean NOT NULL
);
CREATE INDEX sampled_statements_of ON docshard_catalog.sampled_statements (collection_id, id);
COMMENT ON TABLE docshard_catalog.sampled_statements IS 'Some of the statements of collections whose statements are sampled; they contain users'' data; not dumped';
COMMENT ON COLUMN docshard_catalog.sampled_statements.modification IS 'the update of an update or a find_and_modify; null: it deletes, or the update is longer than a sample may be';
COMMENT ON COLUMN docshard_catalog.sampled_statements.many IS 'it writes all documents that match, not one';
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON docshard_catalog.sampled_statements EXECUTE FUNCTION docshard_internal.capture_change();
ALTER TABLE docshard_catalog.sampled_statements ENABLE ALWAYS TRIGGER refuse_truncate;
REVOKE ALL ON docshard_catalog.sampled_statements FROM PUBLIC;
CREATE FUNCTION docshard.configure_query_analyzer(ns text, options json) RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'configure_query_analyzer_wrapper';

CREATE FUNCTION docshard.analyze_shard_key(ns text, key json, options json DEFAULT '{}') RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'analyze_shard_key_wrapper';
CREATE FUNCTION docshard.suggest_shard_key(ns text, options json DEFAULT '{}') RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'suggest_shard_key_wrapper';
CREATE FUNCTION docshard.check_metadata_consistency(ns text DEFAULT NULL, options json DEFAULT '{}')
RETURNS TABLE (type text, namespace text, shard text, description text, details json, repair text)
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'check_metadata_consistency_wrapper';

CREATE FUNCTION docshard_internal.storage_space(collection int)
RETURNS TABLE (documents bigint, stored bigint, indexes bigint, free bigint)
STRICT STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'storage_space_wrapper';
ALTER TABLE docshard_data.capture_parts ADD COLUMN file bigint, ADD COLUMN place bigint, ADD COLUMN next_place bigint,
                                        ADD COLUMN target_key text, ADD COLUMN target_share bytea;
COMMENT ON COLUMN docshard_data.capture_parts.file IS 'the relfilenode in which a part of a whole table has its places; null for a part of a range';
COMMENT ON COLUMN docshard_data.capture_parts.place IS 'where a part of a whole table begins: a row''s block number times 65536, and its line number';
COMMENT ON COLUMN docshard_data.capture_parts.target_key IS 'only documents that have a key of target_share by this shard key; null: all';
CREATE FUNCTION docshard_internal.pack_share(collection int, file bigint, place bigint, next_place bigint, key text, share bytea)
RETURNS TABLE (documents bigint, packed text)
STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'pack_share_wrapper';
CREATE FUNCTION docshard_internal.load_share(resharding bigint, collection int, batch int, key text, share bytea)
RETURNS TABLE (documents bigint, refused bytea)
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'load_share_wrapper';
CREATE FUNCTION docshard_internal.apply_share(resharding bigint, collection int, batch int, old_key text, key text, share bytea)
RETURNS TABLE (documents bigint, refused bytea)
STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'apply_share_wrapper';
CREATE OR REPLACE VIEW docshard_data.capture_packed AS
SELECT migration_id, part, documents, packed
  FROM docshard_data.capture_parts, LATERAL (
       SELECT p.documents, p.packed FROM docshard_internal.pack_part(collection_id, skey, id, next_skey, next_id) AS p
        WHERE target_key IS NULL
       UNION ALL
       SELECT p.documents, p.packed
         FROM docshard_internal.pack_share(collection_id, file, place, next_place, target_key, target_share) AS p
        WHERE target_key IS NOT NULL) AS packed;

CREATE FUNCTION docshard.reshard_collection(ns text, key json, options json DEFAULT '{}') RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'reshard_collection_wrapper';
CREATE FUNCTION docshard.abort_reshard_collection(ns text) RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'abort_reshard_collection_wrapper';
CREATE FUNCTION docshard.commit_reshard_collection(ns text) RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'commit_reshard_collection_wrapper';
CREATE FUNCTION docshard.refine_collection_shard_key(ns text, key json, options json DEFAULT '{}') RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'refine_collection_shard_key_wrapper';
CREATE FUNCTION docshard.unshard_collection(ns text, shard text DEFAULT NULL, options json DEFAULT '{}') RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'unshard_collection_wrapper';
CREATE FUNCTION docshard.move_collection(ns text, shard text, options json DEFAULT '{}') RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'move_collection_wrapper';
CREATE FUNCTION docshard.compact(ns text, options json DEFAULT '{}') RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'compact_wrapper';
CREATE FUNCTION docshard.start_shard_draining(shard text) RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'start_shard_draining_wrapper';
CREATE FUNCTION docshard.stop_shard_draining(shard text) RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'stop_shard_draining_wrapper';
CREATE FUNCTION docshard.shard_draining_status(shard text DEFAULT NULL) RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'shard_draining_status_wrapper';
CREATE FUNCTION docshard.commit_shard_removal(shard text) RETURNS json
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'commit_shard_removal_wrapper';

-- Operations are counted by chunk.
CREATE FUNCTION docshard_internal.at_keys(collection integer, token bigint, version bigint, keys bytea[]) RETURNS boolean
STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'at_keys_wrapper';
CREATE FUNCTION docshard_internal.find_in_index_range(collection integer, token bigint, version bigint, lo bytea[], hi bytea[], search text, keys_read bytea[]) RETURNS bytea
STABLE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'find_in_index_range_wrapper';
CREATE FUNCTION docshard_internal.sampled_accesses(most integer)
RETURNS TABLE (collection integer, key bytea, reads bigint, writes bigint, samples bigint)
VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'sampled_accesses_wrapper';
CREATE FUNCTION docshard.chunk_load(timeout_ms integer DEFAULT 2500)
RETURNS TABLE (namespace text, shard text, min json, max json, reads double precision, writes double precision, share double precision, note text, min_key bytea)
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'chunk_load_wrapper';
CREATE VIEW docshard.hot_chunks AS
SELECT namespace, shard, min, max, reads, writes, share, note, min_key
  FROM docshard.chunk_load() AS l;
COMMENT ON VIEW docshard.hot_chunks IS 'The operations of chunks, the busiest first; asks the shards, now; it answers within 3 seconds even if shards do not respond';
COMMENT ON COLUMN docshard.hot_chunks.min IS 'the chunk''s bounds; null: statements that are for no certain chunk, see note';
COMMENT ON COLUMN docshard.hot_chunks.reads IS 'statements in a second, an estimate from samples in which an operation loses half of its weight in a minute; writes: in the same way, an insert for each document';
COMMENT ON COLUMN docshard.hot_chunks.share IS 'percentage of the collection''s operations';
COMMENT ON COLUMN docshard.hot_chunks.note IS 'why the chunk cannot be split by load, or why a shard tells nothing';
COMMENT ON COLUMN docshard.hot_chunks.min_key IS 'the bound as it is compared; join with chunks.min_key';
GRANT SELECT ON docshard.hot_chunks TO PUBLIC;
GRANT EXECUTE ON FUNCTION docshard.chunk_load TO pg_monitor;

DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(extowner) FROM pg_catalog.pg_extension WHERE extname = 'docshard');
    -- Who executes or reads what the new objects go with: the service role, and the roles of shards that pull.
    target record;
BEGIN
    EXECUTE pg_catalog.format('ALTER TABLE docshard_catalog.resharding OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER TABLE docshard_catalog.sampled_statements OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER VIEW docshard.resharding OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER VIEW docshard.hot_chunks OWNER TO %I', owner);
    FOR target IN
        SELECT p.oid::pg_catalog.regprocedure AS function, p.pronamespace = 'docshard'::pg_catalog.regnamespace AS is_api,
               p.proname IN ('at_keys', 'find_in_index_range') AS is_for_all
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'docshard_internal'::pg_catalog.regnamespace AND p.proname IN ('pack_share', 'load_share', 'apply_share', 'storage_space', 'sampled_accesses', 'at_keys', 'find_in_index_range')
            OR p.pronamespace = 'docshard'::pg_catalog.regnamespace
               AND p.proname IN ('reshard_collection', 'abort_reshard_collection', 'commit_reshard_collection', 'refine_collection_shard_key',
                                 'unshard_collection', 'move_collection', 'compact', 'start_shard_draining', 'stop_shard_draining',
                                 'shard_draining_status', 'commit_shard_removal',
                                 'configure_query_analyzer', 'analyze_shard_key', 'suggest_shard_key', 'check_metadata_consistency', 'chunk_load')
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO %I', target.function, owner);
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', target.function);
        IF target.is_for_all THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', target.function);
        END IF;
        IF target.is_api THEN
            EXECUTE pg_catalog.format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', target.function);
        END IF;
    END LOOP;
    FOR target IN
        SELECT DISTINCT 'EXECUTE ON FUNCTION ' || n.oid::pg_catalog.regprocedure AS privilege, 'pg_catalog.pg_proc'::pg_catalog.regclass AS class,
               n.oid, a.grantee
          FROM (VALUES ('pack_share', 'pack_part'), ('load_share', 'load_batch'), ('apply_share', 'apply_changes'),
                       ('storage_space', 'measure_range'),
                       ('sampled_accesses', 'measure_chunks'), ('at_keys', 'at_version'), ('find_in_index_range', 'find_by_index_range')) AS f (new, former)
          JOIN pg_catalog.pg_proc n ON n.pronamespace = 'docshard_internal'::pg_catalog.regnamespace AND n.proname = f.new
          JOIN pg_catalog.pg_proc o ON o.pronamespace = 'docshard_internal'::pg_catalog.regnamespace AND o.proname = f.former,
               LATERAL pg_catalog.aclexplode(o.proacl) AS a
         WHERE a.grantee NOT IN (0, o.proowner)
        UNION ALL
        SELECT DISTINCT 'SELECT ON ' || t.oid::pg_catalog.regclass, 'pg_catalog.pg_class'::pg_catalog.regclass, t.oid, a.grantee
          FROM (VALUES ('docshard_catalog.resharding'::pg_catalog.regclass, 'docshard_catalog.migrations'::pg_catalog.regclass),
                       ('docshard.resharding', 'docshard.migrations'), ('docshard.hot_chunks', 'docshard.health')) AS r (new, former)
          JOIN pg_catalog.pg_class t ON t.oid = r.new
          JOIN pg_catalog.pg_class o ON o.oid = r.former,
               LATERAL pg_catalog.aclexplode(o.relacl) AS a
         WHERE a.grantee NOT IN (0, o.relowner) AND a.privilege_type = 'SELECT'
    LOOP
        -- What a script grants counts as initial, which pg_dump leaves out, so that is undone.
        DECLARE
            initial CONSTANT aclitem[] := (SELECT i.initprivs FROM pg_catalog.pg_init_privs i
                                            WHERE i.classoid = target.class AND i.objoid = target.oid AND i.objsubid = 0);
        BEGIN
            EXECUTE pg_catalog.format('GRANT %s TO %s', target.privilege, target.grantee::pg_catalog.regrole);
            UPDATE pg_catalog.pg_init_privs SET initprivs = initial
             WHERE classoid = target.class AND objoid = target.oid AND objsubid = 0 AND initial IS NOT NULL;
            DELETE FROM pg_catalog.pg_init_privs
             WHERE classoid = target.class AND objoid = target.oid AND objsubid = 0 AND initial IS NULL;
        END;
    END LOOP;
END $$;
