-- Protects a database that is part of a cluster from being dropped by mistake: see src/catalog/protection.rs.

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
CREATE TRIGGER note_membership AFTER INSERT OR DELETE ON docshard_data.node
    FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.note_membership();
-- Also in sessions with session_replication_role = replica.
ALTER TABLE docshard_catalog.shards ENABLE ALWAYS TRIGGER note_membership;
ALTER TABLE docshard_data.node ENABLE ALWAYS TRIGGER note_membership;

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
    -- Not in the block above, which is a subtransaction.
    PERFORM docshard_internal.watch_change('begin');
END $$;
CREATE EVENT TRIGGER docshard_watch_drops ON ddl_command_start
    WHEN TAG IN ('DROP EXTENSION', 'DROP OWNED', 'DROP SCHEMA', 'DROP TABLE', 'ALTER TABLE', 'DROP SERVER', 'DROP USER MAPPING',
                 'DROP FOREIGN DATA WRAPPER', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'ALTER SCHEMA')
    EXECUTE FUNCTION docshard_internal.watch_drops();
ALTER EVENT TRIGGER docshard_watch_drops ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER docshard_watch_drops IS 'docshard: loads the library, which refuses to drop objects that a cluster needs';

-- Lets the library check what a statement has changed.
CREATE FUNCTION docshard_internal.check_changes() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    BEGIN
        PERFORM docshard_internal.watch_change('load');
    EXCEPTION WHEN undefined_file OR undefined_function THEN
        RETURN;
    END;
    PERFORM docshard_internal.watch_change('end');
END $$;
CREATE EVENT TRIGGER docshard_check_changes ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'ALTER SCHEMA')
    EXECUTE FUNCTION docshard_internal.check_changes();
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER docshard_check_changes IS 'docshard: refuses changes of collections'' tables';
