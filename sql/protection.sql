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

-- Loads the library, whose hook checks drops, where it is not preloaded. If its file is missing or older, drops are not checked and
-- not blocked.
CREATE FUNCTION docshard_internal.watch_drops() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM docshard_internal.load_library();
EXCEPTION WHEN undefined_file OR undefined_function THEN
    NULL;
END $$;
CREATE EVENT TRIGGER docshard_watch_drops ON ddl_command_start
    WHEN TAG IN ('DROP EXTENSION', 'DROP OWNED', 'DROP SCHEMA', 'DROP TABLE', 'ALTER TABLE', 'DROP SERVER', 'DROP USER MAPPING',
                 'DROP FOREIGN DATA WRAPPER')
    EXECUTE FUNCTION docshard_internal.watch_drops();
COMMENT ON EVENT TRIGGER docshard_watch_drops IS 'docshard: loads the library, which refuses to drop objects that a cluster needs';
