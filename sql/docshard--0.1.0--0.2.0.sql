-- From 0.1.0 to 0.2.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

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
COMMENT ON COLUMN docshard_catalog.migrations.outcome IS 'what was decided: running (nothing yet), committed or aborted; stays when the state is done';
COMMENT ON COLUMN docshard.migrations.outcome IS 'committed: the recipient owns the chunk, or will; aborted: the donor keeps it; running: nothing is decided';

ALTER TABLE docshard_catalog.collections ADD COLUMN has_key_index boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN docshard_catalog.collections.has_key_index IS 'the shard key has an index of its own; false if another one that begins with the shard key was there before, or it was dropped';

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
                       ('admit_puller', 'accept_puller'), ('measure', 'measure_chunks'), ('estimate', 'estimate_sizes')) AS n (old, new)
          JOIN pg_catalog.pg_proc p ON p.proname = n.old AND p.pronamespace = 'docshard_internal'::pg_catalog.regnamespace
          -- An administrator's own function of that name is not renamed.
          JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s RENAME TO %I', renamed.function, renamed.new);
        EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef(renamed.oid), renamed.old || '_wrapper', renamed.new || '_wrapper');
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
