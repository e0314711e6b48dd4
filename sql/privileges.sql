-- Privileges, one list for each kind of caller. Only superusers may use the schemas until docshard.grant_access(role); then the
-- role may use the documents that it was granted, and read the cluster's state. tests/tests/privileges.rs checks every function
-- against these lists. This is the last script: it begins with functions that are made of others.

-- The second form of functions with json arguments: see any_json.sql.
DO $$
DECLARE
    taking_any CONSTANT name[] := ARRAY[
        'insert_one', 'insert_many', 'find', 'find_one', 'aggregate', 'count_documents', 'distinct', 'explain', 'run_command',
        'update_one', 'update_many', 'replace_one', 'delete_one', 'delete_many', 'bulk_write', 'find_one_and_update',
        'find_one_and_replace', 'find_one_and_delete', 'find_and_modify', 'create_collection', 'create_index', 'create_indexes',
        'shard_collection'];
    form record;
BEGIN
    FOR form IN
        SELECT p.proname, p.probin, p.prosrc, pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg(pg_catalog.format('%I %s', p.proargnames[a.n],
                           CASE a.type WHEN 'pg_catalog.text'::pg_catalog.regtype THEN 'pg_catalog.varchar' WHEN 'pg_catalog.jsonb[]'::pg_catalog.regtype THEN 'docshard.any_json[]'
                           ELSE 'docshard.any_json' END)
                       || coalesce(' DEFAULT ' || pg_catalog.pg_get_function_arg_default(p.oid, a.n::int), ''), ', ' ORDER BY a.n)
                  FROM pg_catalog.unnest(p.proargtypes) WITH ORDINALITY AS a (type, n)) AS arguments
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'docshard'::pg_catalog.regnamespace AND p.proname = ANY (taking_any)
    LOOP
        EXECUTE pg_catalog.format('CREATE FUNCTION docshard.%I(%s) RETURNS %s VOLATILE PARALLEL UNSAFE LANGUAGE c AS %L, %L',
            form.proname, form.arguments, form.result, form.probin,
            CASE WHEN form.proname IN ('insert_one', 'insert_many') THEN form.proname || '_any_wrapper' ELSE form.prosrc END);
    END LOOP;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA docshard, docshard_internal FROM PUBLIC;

DO $$
DECLARE
    -- Documents and read-only functions: they run with the caller's privileges.
    for_all CONSTANT name[] := ARRAY[
        'insert_one', 'insert_many', 'insert_select', 'find', 'find_one', 'aggregate', 'count_documents', 'estimated_document_count', 'distinct',
        'explain', 'run_command', 'run_command_bson', 'update_one', 'update_many', 'replace_one', 'delete_one', 'delete_many',
        'bulk_write', 'find_one_and_update', 'find_one_and_replace', 'find_one_and_delete', 'find_and_modify',
        'list_shards', 'list_indexes', 'list_index_builds', 'index_stats', 'list_settings', 'balancer_status',
        'date', 'object_id', 'decimal', 'to_timestamptz', 'to_numeric', 'error_code', 'import_database'];
    -- Functions that statements of such a caller use at a shard.
    for_all_at_shards CONSTANT name[] := ARRAY[
        'hello', 'at_version', 'at_keys', 'by_index', 'load_library', 'count_all', 'count_matching', 'find_document', 'find_by_index_range', 'find_in_index_range', 'run_pipeline', 'lock_and_check', 'claim_write', 'remember_reply', 'insert_once', 'update_once', 'delete_once', 'insert_documents', 'find_violations', 'find_conflict', 'update_document', 'update_found', 'replace_document', 'may_update', 'delete_document', 'matches', 'project',
        'sort_key', 'sort_field_key', 'index_key', 'index_types', 'restore_document', 'unique_keys', 'check_index_key', 'has_index_entries', 'index_entries', 'entries_meet', 'key_within', 'key_field_within',
        'apply_update', 'changes_key', 'lock_upsert', 'distinct_values', 'pack', 'unpack', 'detach_order', 'attach_order', 'is_document', 'bound_json', 'list_settings',
        'config_date', 'config_timestamp', 'config_object_id', 'collection_uuid', 'any_json', 'any_json_in', 'any_json_out'];
    -- Monitoring: also for members of pg_monitor.
    for_monitors CONSTANT name[] := ARRAY[
        'status', 'balancer_status', 'balancer_collection_status', 'get_shard_distribution', 'list_shards', 'list_indexes',
        'list_index_builds', 'list_orphaned_relations', 'shard_health', 'chunk_load'];
    -- Functions at a shard that the service role may not execute with its own privileges.
    for_service_as_owner CONSTANT name[] := ARRAY[
        'set_service_password', 'create_role', 'drop_role', 'puller_verifier', 'connect_shard', 'set_server_address', 'accept_puller',
        'disconnect_shard', 'leave_cluster', 'dismantle_node', 'node_health'];
    function record;
BEGIN
    FOR function IN
        SELECT p.oid::pg_catalog.regprocedure AS name, p.proname, p.pronamespace = 'docshard'::pg_catalog.regnamespace AS is_api
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace IN ('docshard'::pg_catalog.regnamespace, 'docshard_internal'::pg_catalog.regnamespace)
    LOOP
        IF function.proname = ANY (CASE WHEN function.is_api THEN for_all ELSE for_all_at_shards END) THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', function.name);
        -- Administrative functions run with the owner's privileges, so that a caller needs EXECUTE only.
        ELSIF function.is_api AND function.proname <> 'accept_router'
           OR NOT function.is_api AND function.proname = ANY (for_service_as_owner) THEN
            EXECUTE pg_catalog.format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', function.name);
        END IF;
        IF function.is_api AND function.proname = ANY (for_monitors) THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO pg_monitor', function.name);
        END IF;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA docshard, docshard_internal, docshard_catalog, docshard_data TO pg_monitor;
GRANT SELECT ON ALL TABLES IN SCHEMA docshard TO PUBLIC;
-- Every function for routers reads which cluster a database belongs to.
GRANT SELECT ON docshard_data.node TO PUBLIC;

-- The last statements of CREATE EXTENSION: see protection.sql. ALWAYS includes sessions with session_replication_role = replica.
ALTER EVENT TRIGGER docshard_watch_drops ENABLE ALWAYS;
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
