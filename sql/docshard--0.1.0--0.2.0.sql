-- From 0.1.0 to 0.2.0.

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

ALTER TABLE docshard_catalog.migrations ADD COLUMN outcome text NOT NULL DEFAULT 'running';
UPDATE docshard_catalog.migrations
   SET outcome = CASE WHEN state IN ('committed', 'moved') OR state = 'done' AND step = 'moved' THEN 'committed'
                      WHEN state = 'running' THEN 'running' ELSE 'aborted' END,
       step = CASE state WHEN 'done' THEN state ELSE step END;
ALTER TABLE docshard_catalog.migrations ADD CONSTRAINT migrations_outcome
    CHECK (CASE state WHEN 'moved' THEN outcome = 'committed' WHEN 'done' THEN outcome IN ('committed', 'aborted')
                      ELSE outcome = state END);
CREATE OR REPLACE VIEW docshard.migrations AS
SELECT m.id, m.namespace, d.name AS donor, r.name AS recipient, m.state, m.step, m.reason, m.documents, m.bytes, m.error,
       docshard_internal.bound_json(c.key::text, m.min) AS min,
       docshard_internal.bound_json(c.key::text, m.max) AS max,
       m.estimated, m.rounds, m.lag, m.stall_ms, m.attempts, m.durations, m.started_at, m.updated_at, m.outcome
  FROM docshard_catalog.migrations m
  LEFT JOIN docshard_catalog.collections c ON c.id = m.collection_id
  LEFT JOIN docshard_catalog.shards d ON d.id = m.donor
  LEFT JOIN docshard_catalog.shards r ON r.id = m.recipient;
COMMENT ON COLUMN docshard_catalog.migrations.outcome IS 'the decision: running (none yet), committed or aborted; stays when the state is done';
COMMENT ON COLUMN docshard.migrations.outcome IS 'committed: the recipient owns the chunk, or will; aborted: the donor keeps it; running: nothing is decided';

ALTER TABLE docshard_catalog.collections ADD COLUMN has_key_index boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN docshard_catalog.collections.has_key_index IS 'the shard key has an index of its own; false if another one that begins with the shard key was there before, if the shard key is unique and has a unique index, or if it was dropped';

CREATE TABLE docshard_catalog.views (
    namespace      text PRIMARY KEY,
    database       text NOT NULL REFERENCES docshard_catalog.databases ON UPDATE CASCADE,
    view_on        text NOT NULL CHECK (view_on <> ''),
    pipeline       json NOT NULL,
    collation_spec json,
    created_at     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE docshard_catalog.views IS 'Views: pipelines over a collection or another view of the same database, which are read like collections';
COMMENT ON COLUMN docshard_catalog.views.view_on IS 'the collection or view that it reads, by its name in the database';
COMMENT ON COLUMN docshard_catalog.views.collation_spec IS 'the collation of its statements; null: simple';
SELECT pg_catalog.pg_extension_config_dump('docshard_catalog.views', '');
GRANT SELECT ON docshard_catalog.views TO PUBLIC;
CREATE VIEW docshard.views AS
SELECT v.namespace, v.database, v.view_on, v.pipeline, v.collation_spec AS "collation", v.created_at
  FROM docshard_catalog.views v;
COMMENT ON VIEW docshard.views IS 'Views: pipelines that are read like collections';
COMMENT ON COLUMN docshard.views.view_on IS 'the collection or view that it reads, in the same database';
GRANT SELECT ON docshard.views TO PUBLIC;

-- Renamed functions of the shard protocol.
DO $$
DECLARE
    renamed record;
BEGIN
    FOR renamed IN
        SELECT p.oid, p.oid::pg_catalog.regprocedure AS function, n.old, n.new
          FROM (VALUES ('divide_leaving', 'divide_range'), ('note_leaving', 'locate_range'), ('load_arrived', 'load_batch'),
                       ('apply_arrived', 'apply_changes'), ('receive_part', 'decode_part'),
                       ('forget_changes', 'delete_copied_changes'), ('exclude_from_migration', 'exclude_range_writers'),
                       ('end_hand_over', 'release_range_writers'), ('write_uncaptured', 'bypass_capture'),
                       ('migration_writers', 'range_writers'), ('make_role', 'create_role'), ('pull_verifier', 'puller_verifier'),
                       ('admit_puller', 'accept_puller'), ('measure', 'measure_chunks'), ('estimate', 'estimate_sizes'),
                       ('steers', 'load_library'), ('taken', 'find_conflict'), ('put_document', 'replace_document'),
                       ('moves', 'changes_key'), ('restored', 'restore_document')) AS n (old, new)
          JOIN pg_catalog.pg_proc p ON p.proname = n.old AND p.pronamespace = 'docshard_internal'::pg_catalog.regnamespace
          -- An administrator's own function of that name is not renamed.
          JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s RENAME TO %I', renamed.function, renamed.new);
        EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef(renamed.oid), renamed.old || '_wrapper', renamed.new || '_wrapper');
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION docshard_internal.watch_drops() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM docshard_internal.load_library();
EXCEPTION WHEN undefined_file OR undefined_function THEN
    NULL;
END $$;

-- New functions.
CREATE FUNCTION docshard.aggregate(ns text, pipeline json, options json DEFAULT '{}')
RETURNS SETOF jsonb STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'aggregate_wrapper';
REVOKE ALL ON FUNCTION docshard.aggregate(text, json, json) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION docshard.aggregate(text, json, json) TO PUBLIC;
CREATE FUNCTION docshard_internal.run_pipeline(collection integer, token bigint, version bigint, work text)
RETURNS SETOF bytea STRICT STABLE PARALLEL UNSAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'run_pipeline_wrapper';
REVOKE ALL ON FUNCTION docshard_internal.run_pipeline(integer, bigint, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION docshard_internal.run_pipeline(integer, bigint, bigint, text) TO PUBLIC;

CREATE FUNCTION docshard.modify_collection(ns text, options json)
RETURNS json STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'modify_collection_wrapper';
REVOKE ALL ON FUNCTION docshard.modify_collection(text, json) FROM PUBLIC;

DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(e.extowner) FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard');
BEGIN
    EXECUTE pg_catalog.format('ALTER TABLE docshard_catalog.views OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER VIEW docshard.views OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER FUNCTION docshard.modify_collection(text, json) OWNER TO %I', owner);
END $$;

-- A shard's service role has privileges on all of these objects: it got them when the shard was added. Privileges granted by a script
-- count as initial, and pg_dump skips them; a restored dump must grant these again, so they must not count as that.
DO $$
DECLARE
    service CONSTANT regrole := (SELECT s.role FROM docshard_data.service s);
    target record;
BEGIN
    IF service IS NULL THEN
        RETURN;
    END IF;
    FOR target IN
        SELECT o.privilege, o.class, o.id, i.initprivs
          FROM (VALUES ('SELECT ON docshard_catalog.views', 'pg_catalog.pg_class'::pg_catalog.regclass, 'docshard_catalog.views'::pg_catalog.regclass::oid),
                       ('SELECT ON docshard.views', 'pg_catalog.pg_class', 'docshard.views'::pg_catalog.regclass::oid),
                       ('EXECUTE ON FUNCTION docshard_internal.run_pipeline', 'pg_catalog.pg_proc',
                        'docshard_internal.run_pipeline'::pg_catalog.regproc::oid)) AS o (privilege, class, id)
          JOIN pg_catalog.pg_init_privs i ON i.classoid = o.class AND i.objoid = o.id AND i.objsubid = 0
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', target.privilege, service);
        UPDATE pg_catalog.pg_init_privs SET initprivs = target.initprivs
         WHERE classoid = target.class AND objoid = target.id AND objsubid = 0;
    END LOOP;
END $$;

-- Functions with changed arguments or results. Roles that could call the old one can call the new one.
CREATE FUNCTION docshard_internal.delete_range(migration bigint, collection integer, lo bytea, hi bytea)
RETURNS TABLE (documents bigint, micros bigint) VOLATILE PARALLEL UNSAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'delete_range_wrapper';
CREATE FUNCTION docshard_internal.find_by_index_range(collection integer, token bigint, version bigint, lo bytea[], hi bytea[], search text)
RETURNS bytea STRICT STABLE PARALLEL UNSAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'find_by_index_range_wrapper';
DO $$
DECLARE
    replaced record;
    granted record;
BEGIN
    FOR replaced IN
        SELECT old.oid, old.oid::pg_catalog.regprocedure AS old, new.oid AS new_oid, new.oid::pg_catalog.regprocedure AS new, old.proacl, old.proowner
          FROM (VALUES ('remove_leaving', 'delete_range', 'bigint, integer, bytea, bytea'),
                       ('find_few', 'find_by_index_range', 'integer, bigint, bigint, bytea[], bytea[], text')) AS n (old, new, arguments)
          JOIN pg_catalog.pg_proc old ON old.proname = n.old AND old.pronamespace = 'docshard_internal'::pg_catalog.regnamespace
          JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = old.oid AND d.deptype = 'e'
          JOIN pg_catalog.pg_proc new ON new.oid = pg_catalog.format('docshard_internal.%s(%s)', n.new, n.arguments)::pg_catalog.regprocedure
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO %I', replaced.new, pg_catalog.pg_get_userbyid(replaced.proowner));
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', replaced.new);
        FOR granted IN
            SELECT a.grantee, a.is_grantable FROM pg_catalog.aclexplode(replaced.proacl) a WHERE a.grantee <> replaced.proowner
        LOOP
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s', replaced.new,
                CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(granted.grantee)) END,
                CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
        END LOOP;
        -- Privileges granted by a script count as initial, and pg_dump skips them. That is right only for those that were initial before:
        -- the service role got its privileges later, and a restored dump must grant them again.
        UPDATE pg_catalog.pg_init_privs
           SET initprivs = (SELECT i.initprivs FROM pg_catalog.pg_init_privs i
                             WHERE i.classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND i.objoid = replaced.oid AND i.objsubid = 0)
         WHERE classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objoid = replaced.new_oid AND objsubid = 0;
        EXECUTE pg_catalog.format('DROP FUNCTION %s', replaced.old);
    END LOOP;
END $$;

-- Comments in plainer words.
COMMENT ON COLUMN docshard_catalog.cluster.copy IS 'why this database was found to be a copy of the router, so that it takes no writes; null: it was not';
COMMENT ON COLUMN docshard_catalog.shards.node IS 'system identifier / database oid when it was added, for information: a restored shard has others. The shard is identified by docshard_data.node';
COMMENT ON TABLE docshard_catalog.contacts IS 'The last known position of each shard: a server that is behind it is an old copy, or has lost writes';
COMMENT ON COLUMN docshard_catalog.contacts.counter IS 'the counter that the shard has committed; stored here afterwards';
COMMENT ON COLUMN docshard_catalog.contacts.at IS 'when the counter was advanced';
COMMENT ON COLUMN docshard_catalog.contacts.trouble IS 'why the shard is refused; null: it is not refused';
COMMENT ON COLUMN docshard_catalog.contacts.is_ahead IS 'the shard has been used by a newer catalog than this one, which is an older copy';
COMMENT ON COLUMN docshard_catalog.contacts.lost_from IS 'writes acknowledged between this time and lost_to may have been lost in a failover; null: none';
COMMENT ON TABLE docshard_catalog.databases IS 'Databases; the primary shard stores the unsharded collections';
COMMENT ON COLUMN docshard_catalog.collections.collation_spec IS 'the collation of statements that name none; null: simple';
COMMENT ON COLUMN docshard_catalog.collections.version IS 'the last ownership version that was assigned; never reused';
COMMENT ON COLUMN docshard_catalog.collections.token IS 'random: distinguishes collections with the same name or number';
COMMENT ON COLUMN docshard_catalog.collections.revision IS 'increased by every change that cached chunk maps must see';
COMMENT ON TABLE docshard_catalog.chunks IS 'Owners of keys: half-open ranges [min, max) of encoded shard keys, without gap or overlap';
COMMENT ON COLUMN docshard_catalog.chunks.revision IS 'the collection''s revision at the last change of bounds or owner: a session with a cached map reads only newer rows';
COMMENT ON TABLE docshard_catalog.zones IS 'The zones of each shard';
COMMENT ON TABLE docshard_catalog.zone_ranges IS 'Keys that are stored on the shards of a zone only: half-open ranges without overlap, also of collections that are not yet sharded';
COMMENT ON TABLE docshard_catalog.grants IS 'Rights of roles on documents: see docshard.grant_access()';
COMMENT ON COLUMN docshard_catalog.indexes.wildcard_projection IS 'the fields that a wildcard index contains; null: those of its key';
COMMENT ON COLUMN docshard_catalog.indexes.is_sparse IS 'contains only documents that have at least one of its fields';
COMMENT ON COLUMN docshard_catalog.indexes.partial_filter IS 'contains only documents that match this filter; null: all';
COMMENT ON COLUMN docshard_catalog.indexes.collation_spec IS 'the collation of its strings; null: simple';
COMMENT ON COLUMN docshard_catalog.indexes.expire_after_s IS 'documents are deleted this many seconds after the date in its field';
COMMENT ON TABLE docshard_catalog.index_builds IS 'Indexes that are being built without blocking writes, and remains of failed builds; id is that of the future index';
COMMENT ON COLUMN docshard_catalog.index_builds.relations IS 'the index''s relations on each shard, in schema docshard_data';
COMMENT ON TABLE docshard_catalog.migrations IS 'Moves of chunks: durable state. running -> committed | aborted decides; committed -> moved changes the map; moved and aborted -> done when everything is cleaned up';
COMMENT ON COLUMN docshard_catalog.migrations.token IS 'the collection''s token';
COMMENT ON COLUMN docshard_catalog.migrations.version IS 'the ownership version that both shards will have';
COMMENT ON COLUMN docshard_catalog.migrations.donor_version IS 'the donor''s version before the move; recipient_version likewise';
COMMENT ON COLUMN docshard_catalog.migrations.estimated IS 'the number of documents, as the donor''s planner estimated';
COMMENT ON COLUMN docshard_catalog.migrations.rounds IS 'how often the changes made meanwhile were copied; lag: their number in the last round';
COMMENT ON COLUMN docshard_catalog.migrations.attempts IS 'how often the hand-over was started and rolled back because it would have blocked writers for too long';
COMMENT ON COLUMN docshard_catalog.migrations.durations IS 'milliseconds of each step that has ended; step_at: when the current one began';
COMMENT ON COLUMN docshard_catalog.migrations.error IS 'why it was aborted, or why it cannot end';
COMMENT ON TABLE docshard_catalog.last_sizes IS 'The number of documents of each shard at its last measurement, by its statistics';
COMMENT ON TABLE docshard_catalog.pending_drops IS 'Tables and indexes that must still be dropped at shards that could not be reached; done there before anything else';
COMMENT ON TABLE docshard_catalog.lost_shards IS 'Shards that were removed as lost, and are refused if they come back; removed_at is null while a token to remove them is valid; readable only by the extension''s owner';
COMMENT ON TABLE docshard_catalog.changelog IS 'Events of the cluster: shards, collections, splits, moves';
COMMENT ON TABLE docshard_catalog.rotation IS 'Servers whose user mapping has yet to get the service role''s new password; readable only by the extension''s owner';
COMMENT ON COLUMN docshard_catalog.balancer_state.resting IS 'shards and collections that are skipped for a while after an error';
COMMENT ON TABLE docshard_catalog.balancer_state IS 'The balancer''s current action and its last error; see docshard.balancer_status()';
COMMENT ON TABLE docshard_data.node IS 'The cluster to which this shard belongs, and the shard''s name';
COMMENT ON COLUMN docshard_data.node.router IS 'the router that connected last: system identifier / database oid';
COMMENT ON COLUMN docshard_data.node.epoch IS 'the epoch of that router; one with a lower epoch is refused';
COMMENT ON COLUMN docshard_data.node.counter IS 'advanced by the router''s worker: a copy with a lower value is older';
COMMENT ON COLUMN docshard_data.node.counted_at IS 'the router''s clock when it began to advance the counter: writes acknowledged before are here';
COMMENT ON TABLE docshard_data.service IS 'The role as which the router works here; readable only by the extension''s owner';
COMMENT ON COLUMN docshard_data.service.secret IS 'the password with which this shard logs in at others, to pull documents that move here';
COMMENT ON TABLE docshard_data.placement IS 'The version of this shard: its rows are exactly the documents that it owns at that version';
COMMENT ON TABLE docshard_data.capture_parts IS 'The parts into which a captured range is divided for copying: each begins at a key and ends before the next part''s; null is before all ids, or after all keys';
COMMENT ON COLUMN docshard.shards.server IS 'the postgres_fdw server by which to connect; null for this database';
COMMENT ON VIEW docshard.zones IS 'The zones of each shard; zone_ranges has their keys';
COMMENT ON VIEW docshard.zone_ranges IS 'Ranges of keys that are stored on the shards of a zone only: from min up to but not including max';
COMMENT ON VIEW docshard.databases IS 'Databases; the primary shard stores the unsharded collections';
COMMENT ON COLUMN docshard.collections."table" IS 'the table with its documents, on every shard that has some';
COMMENT ON VIEW docshard.chunks IS 'Owners of keys: from min up to but not including max; the last chunk includes its max';
COMMENT ON VIEW docshard.migrations IS 'Moves of chunks: running ones (state is not done) and ended ones';
COMMENT ON COLUMN docshard.migrations.estimated IS 'the expected number of documents; documents: the number copied so far';
COMMENT ON COLUMN docshard.migrations.lag IS 'the number of changed keys in the last round that copied changes';
COMMENT ON COLUMN docshard.migrations.attempts IS 'how often the hand-over was rolled back because it would have blocked writers for too long';
COMMENT ON COLUMN docshard.migrations.durations IS 'milliseconds of each step';
COMMENT ON VIEW docshard.changelog IS 'Events of the cluster, oldest first by id';
COMMENT ON VIEW docshard.health IS 'The health of each shard, queried now; it answers within 3 seconds even if shards do not respond';
COMMENT ON COLUMN docshard.health.lag_bytes IS 'how far its slowest standby is behind';
COMMENT ON COLUMN docshard.health.oldest_in_doubt_s IS 'the age of the oldest transaction that is prepared on the shard, in seconds';
COMMENT ON VIEW docshard_data.identity IS 'The identity and position of this shard, which another shard compares before it pulls documents: cluster/timeline/counter/shard';
COMMENT ON ACCESS METHOD docshard_unique IS 'docshard: several keys for each row, each of them unique';
COMMENT ON EVENT TRIGGER docshard_watch_drops IS 'docshard: loads the library, which refuses to drop objects that a cluster needs';
COMMENT ON SCHEMA docshard_internal IS 'docshard: functions that routers call at shards; not for direct use';
COMMENT ON VIEW docshard_data.capture_changes IS 'Keys that changed in a captured range, with their current documents; null if there is none';
COMMENT ON VIEW docshard_data.capture_packed IS 'The current documents of a captured range, part by part, packed';
COMMENT ON COLUMN docshard.index_usage.since IS 'the earliest time since which a shard counts accesses; null: since the index was created';
