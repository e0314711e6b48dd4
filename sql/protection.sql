-- Protects a database that is part of a cluster from being dropped by mistake: see src/catalog/cluster/protection.rs.

-- Marks the database as part of a cluster, visibly for the whole server, because DROP DATABASE runs in another database.
CREATE FUNCTION docshard_internal.note_membership() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part CONSTANT text := CASE WHEN EXISTS (SELECT FROM docshard_data.node) THEN 'shard'
                               WHEN EXISTS (SELECT FROM docshard_catalog.shards WHERE server IS NOT NULL) THEN 'router' END;
    noted CONSTANT text := (SELECT split_part(c, '=', 2)
                              FROM pg_catalog.pg_db_role_setting s CROSS JOIN unnest(s.setconfig) c
                              JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase AND d.datname = current_database()
                             WHERE s.setrole = 0 AND starts_with(c, 'docshard.part_of_cluster='));
BEGIN
    IF part IS DISTINCT FROM noted THEN
        EXECUTE format('ALTER DATABASE %I %s', current_database(),
            coalesce('SET docshard.part_of_cluster = ' || quote_literal(part), 'RESET docshard.part_of_cluster'));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_membership AFTER INSERT OR DELETE ON docshard_catalog.shards
    FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.note_membership();
-- The router's worker changes these two tables every 5 seconds, so that a mark which ALTER DATABASE … RESET ALL has removed comes back. Those
-- of a copy do not change: its mark can be removed.
CREATE TRIGGER note_membership AFTER INSERT OR UPDATE OR DELETE ON docshard_data.node
    FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.note_membership();
CREATE TRIGGER note_membership AFTER INSERT OR UPDATE ON docshard_catalog.contacts
    FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.note_membership();
-- Also in sessions with session_replication_role = replica.
ALTER TABLE docshard_catalog.shards ENABLE ALWAYS TRIGGER note_membership;
ALTER TABLE docshard_data.node ENABLE ALWAYS TRIGGER note_membership;
ALTER TABLE docshard_catalog.contacts ENABLE ALWAYS TRIGGER note_membership;

-- Loads the library, whose hook checks drops, where it is not preloaded, and tells it that a statement begins. If the library's file is
-- missing or older, nothing is checked and nothing is blocked.
CREATE FUNCTION docshard_internal.watch_drops() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    BEGIN
        PERFORM docshard_internal.watch_change('load');
    EXCEPTION WHEN undefined_file OR undefined_function THEN
        RETURN;
    END;
    -- Not in the block above, which is a subtransaction. A hook checks the other drops, which have no end.
    IF NOT starts_with(tg_tag, 'DROP ') OR tg_tag IN ('DROP INDEX', 'DROP TRIGGER') THEN
        PERFORM docshard_internal.watch_change('begin');
    END IF;
END $$;
CREATE EVENT TRIGGER docshard_watch_drops ON ddl_command_start
    WHEN TAG IN ('DROP EXTENSION', 'DROP OWNED', 'DROP SCHEMA', 'DROP TABLE', 'ALTER TABLE', 'DROP SERVER', 'DROP USER MAPPING',
                 'DROP FOREIGN DATA WRAPPER', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'CREATE TRIGGER', 'ALTER SCHEMA',
                 'ALTER AGGREGATE', 'ALTER DOMAIN', 'ALTER EXTENSION', 'ALTER FOREIGN TABLE', 'ALTER FUNCTION', 'ALTER MATERIALIZED VIEW',
                 'ALTER OPERATOR', 'ALTER OPERATOR CLASS', 'ALTER OPERATOR FAMILY', 'ALTER PROCEDURE', 'ALTER ROUTINE',
                 'ALTER SEQUENCE', 'ALTER SERVER', 'ALTER TYPE', 'ALTER VIEW')
    EXECUTE FUNCTION docshard_internal.watch_drops();
-- The last script enables both event triggers: fired by the statements of these scripts, they would take a third of the time of
-- CREATE EXTENSION.
ALTER EVENT TRIGGER docshard_watch_drops DISABLE;
COMMENT ON EVENT TRIGGER docshard_watch_drops IS 'docshard: loads the library, which refuses to drop objects that a cluster needs';

-- Lets the library check what a statement has changed.
CREATE FUNCTION docshard_internal.check_changes() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused text;
    may_change_all boolean;
BEGIN
    -- A new object needs no library: it must not be a child of a table with docshard's triggers, and not replace an object of docshard.
    IF starts_with(tg_tag, 'CREATE ') AND tg_tag NOT IN ('CREATE RULE', 'CREATE TRIGGER') THEN
        SELECT coalesce('create a child of ' || i.inhparent::regclass, 'replace ' || c.object_identity) INTO refused
          FROM pg_event_trigger_ddl_commands() c
          LEFT JOIN pg_inherits i ON c.classid = 'pg_class'::regclass AND i.inhrelid = c.objid AND EXISTS (
               SELECT FROM pg_trigger g WHERE g.tgrelid = i.inhparent AND g.tgfoid = to_regproc('docshard_internal.capture_change'))
         WHERE i.inhrelid IS NOT NULL OR NOT c.in_extension AND EXISTS (
               SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'docshard'
                WHERE d.classid = c.classid AND d.objid = c.objid AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e')
         LIMIT 1;
        IF refused IS NOT NULL THEN
            RAISE EXCEPTION 'cannot % because docshard needs its objects as they are', refused USING ERRCODE = '2BP01',
                DETAIL = 'MongoDB error 20 (IllegalOperation).', HINT = 'Create an object of another name, or a table without INHERITS.';
        END IF;
        RETURN;
    END IF;
    IF to_regprocedure('docshard_internal.watch_change(text)') IS NULL
        AND EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c WHERE NOT c.in_extension)
    THEN
        RAISE EXCEPTION 'cannot rename function docshard_internal.watch_change(text), or its schema, because docshard checks changes by it'
            USING ERRCODE = '2BP01', DETAIL = 'MongoDB error 20 (IllegalOperation).',
            HINT = 'ALTER EXTENSION docshard UPDATE changes objects of docshard.';
    END IF;
    BEGIN
        PERFORM docshard_internal.watch_change('load');
    EXCEPTION WHEN undefined_file OR undefined_function THEN
        RETURN;
    END;
    SELECT EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() c
         WHERE c.classid IN ('pg_extension'::regclass, 'pg_foreign_server'::regclass, 'pg_namespace'::regclass) OR EXISTS (
               SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'docshard'
                WHERE d.classid = c.classid AND d.objid = c.objid AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'))
      INTO may_change_all;
    PERFORM docshard_internal.watch_change(CASE WHEN may_change_all THEN 'end of all' ELSE 'end' END);
END $$;
CREATE EVENT TRIGGER docshard_check_changes ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'CREATE TRIGGER', 'ALTER SCHEMA',
                 'ALTER AGGREGATE', 'ALTER DOMAIN', 'ALTER EXTENSION', 'ALTER FOREIGN TABLE', 'ALTER FUNCTION', 'ALTER MATERIALIZED VIEW',
                 'ALTER OPERATOR', 'ALTER OPERATOR CLASS', 'ALTER OPERATOR FAMILY', 'ALTER PROCEDURE', 'ALTER ROUTINE',
                 'ALTER SEQUENCE', 'ALTER SERVER', 'ALTER TYPE', 'ALTER VIEW',
                 'CREATE AGGREGATE', 'CREATE FOREIGN TABLE', 'CREATE FUNCTION', 'CREATE PROCEDURE', 'CREATE SCHEMA', 'CREATE TABLE', 'CREATE VIEW')
    EXECUTE FUNCTION docshard_internal.check_changes();
ALTER EVENT TRIGGER docshard_check_changes DISABLE;
COMMENT ON EVENT TRIGGER docshard_check_changes IS 'docshard: refuses changes of collections'' tables and of its own objects';
